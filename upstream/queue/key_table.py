"""The Key Table: from the bytes of a key to its record.

One record of 128 bytes, two cache lines, holds all that the queue knows of a key; the
first line is all that an update of a waiting key touches. A record is named by its *slot*, a small
number that stays the same while the key is known and is reused afterwards.

Keys are found through an open-addressing table of (hash, slot) pairs with linear
probing. The hash is seeded, so that nobody can choose keys that collide. The table grows
without a pause: a larger one takes new keys at once, and each later call moves a few
entries over. Until all have moved, a key that is not in the new table is looked up in
the old one, whose entries stay where they are.

Keys of up to 12 bytes live in the record itself, longer ones in the page pool.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from upstream.queue.memory_manager import (
    UNIT_BYTES,
    MemoryManager,
    allocate,
    free,
    has_room,
    pool_at,
)
from upstream.queue.raw import (
    Region,
    address_of,
    copy,
    i64,
    inlined,
    kernel,
    load_i64,
    load_u8,
    load_u16,
    load_u32,
    load_u64,
    record_at,
    same,
    store_u64,
)

__all__ = [
    "DELETED",
    "KEY",
    "KEY_BYTES",
    "KNOWN",
    "KNOWN_RATE",
    "NO_ROOM",
    "RESET",
    "TABLE_FULL",
    "KeyTable",
    "find",
    "hash_bytes",
    "insert",
    "key_at",
    "key_bytes_address",
    "remove",
]

KEY = np.dtype(
    [
        ("key_length", "u4"),
        ("key_reference", "u4"),  # with the next field: the key's bytes, if 12 or fewer
        ("key_tail", "u8"),
        ("updates", "u4"),  # updates that the waiting unit stands for
        ("payload", "u4"),  # reference of the waiting unit's row, 0: none
        ("time", "i8"),  # event time of the newest update accepted
        ("last", "f8"),  # arrival of the newest update accepted
        ("gap", "f8"),  # estimated mean time between updates; NaN: not known yet
        ("span", "f4"),  # time between the last two distinct arrival times
        ("group", "u4"),  # updates that arrived at `last`
        ("rate_class", "u2"),
        ("in_flight", "u2"),  # units handed out and neither delivered nor given back
        ("cost_class", "u1"),
        ("flags", "u1"),
        ("count", "u2"),  # gaps that the estimate has seen, up to 1/alpha
        # ---- second cache line
        ("next", "u4"),  # neighbours in the rate class; `next` of a free record: next free one
        ("prev", "u4"),
        ("since", "f8"),  # first enqueue since the last dequeue; NaN: not waiting
        ("stale_since", "f8"),  # NaN while the delivered result is fresh
        ("area", "f8"),  # integral of the key's staleness up to its last change
        ("born", "f8"),
        ("ticket", "i8"),  # the waiting unit's place in the order of first enqueues
        ("answered", "i8"),  # newest ticket delivered, 0: none
        ("hash", "u4"),
        ("weight", "f4"),
    ]
)
KEY_BYTES = KEY.itemsize
assert KEY_BYTES == 128

# Flags of a record
DELETED = 1  # the waiting or last unit is a delete
RESET = 2  # a delete came within the waiting unit: what was before it does not count
KNOWN_RATE = 4  # the rate was given, not estimated
KNOWN = 8  # the record belongs to a key

INLINE_KEY_BYTES = 12
NO_ROOM = -1
TABLE_FULL = -2
DEAD_SLOT = 0xFFFFFFFF

TABLE = np.dtype(
    [
        ("keys", "i8"),  # address of the records
        ("entries", "i8"),  # address of the table
        ("mask", "i8"),
        ("old_entries", "i8"),  # address of the table that is being left, 0: none
        ("old_mask", "i8"),
        ("cursor", "i8"),  # entries of the old table below it have moved
        ("known", "i8"),  # keys known
        ("top", "i8"),  # slots below were used at least once; slot 0 never is
        ("free_slot", "i8"),
        ("reserved", "i8"),
        ("seed", "u8"),
    ]
)

TOP = list(TABLE.names or ()).index("top")

key_at = record_at(KEY)
table_at = record_at(TABLE)

_K0 = np.uint64(0x9E3779B97F4A7C15)
_K1 = np.uint64(0xD6E8FEB86659FD93)
_K2 = np.uint64(0xFF51AFD7ED558CCD)
_S32 = np.uint64(32)
_S29 = np.uint64(29)
_LOW = np.uint64(0xFFFFFFFF)


@inlined
def _mix(h: Any, word: Any) -> Any:
    h = (h ^ word) * _K1
    return h ^ (h >> _S29)


@inlined
def hash_bytes(address: int, length: int, seed: Any) -> int:
    """A seeded 32-bit hash; never reads outside the bytes."""
    h = seed ^ (np.uint64(length) * _K0)
    at = 0
    while at + 8 <= length:
        h = _mix(h, load_u64(address + at))
        at += 8
    rest = length - at
    if rest > 0:
        if length >= 8:
            word = load_u64(address + length - 8)
        elif rest >= 4:
            low = np.uint64(load_u32(address + at))
            high = np.uint64(load_u32(address + length - 4))
            word = low | (high << _S32)
        elif rest >= 2:
            low = np.uint64(load_u16(address + at))
            high = np.uint64(load_u8(address + length - 1))
            word = low | (high << _S32)
        else:
            word = np.uint64(load_u8(address + at))
        h = _mix(h, word)
    h = (h ^ (h >> _S32)) * _K2
    return i64((h ^ (h >> _S29)) >> _S32)


@inlined
def key_bytes_address(pool: Any, record_address: int) -> int:
    """Where the bytes of a record's key begin."""
    key = key_at(record_address)
    if key.key_length <= INLINE_KEY_BYTES:
        return record_address + 4
    return i64(pool.base + i64(key.key_reference) * UNIT_BYTES)


@inlined
def _probe(
    table: Any, pool: Any, entries: int, mask: int, hashed: int, key: int, length: int
) -> int:
    at = hashed & mask
    while True:
        entry = load_u64(entries + at * 8)
        if entry == np.uint64(0):
            return 0
        if i64(entry >> _S32) == hashed:
            slot = i64(entry & _LOW)
            if slot != DEAD_SLOT:
                record_address = table.keys + slot * KEY_BYTES
                if key_at(record_address).key_length == length and same(
                    key_bytes_address(pool, record_address), key, length
                ):
                    return slot
        at = (at + 1) & mask


@inlined
def find(table: Any, pool: Any, hashed: int, key: int, length: int) -> int:
    """The slot of a key, or 0."""
    slot = _probe(table, pool, table.entries, table.mask, hashed, key, length)
    if slot == 0 and table.old_entries != 0:
        slot = _probe(table, pool, table.old_entries, table.old_mask, hashed, key, length)
    return slot


@kernel
def _place(entries: int, mask: int, hashed: int, slot: int) -> None:
    at = hashed & mask
    while load_u64(entries + at * 8) != np.uint64(0):
        at = (at + 1) & mask
    store_u64(entries + at * 8, (np.uint64(hashed) << _S32) | np.uint64(slot))


@kernel
def migrate(table: Any, most: int) -> None:
    """Move up to `most` entries of the old table to the new one."""
    if table.old_entries == 0:
        return
    stop = min(table.cursor + most, table.old_mask + 1)
    for at in range(table.cursor, stop):
        entry = load_u64(table.old_entries + at * 8)
        if entry != np.uint64(0) and i64(entry & _LOW) != DEAD_SLOT:
            _place(table.entries, table.mask, i64(entry >> _S32), i64(entry & _LOW))
    table.cursor = stop
    if stop == table.old_mask + 1:
        table.old_entries = 0


@kernel
def insert(table: Any, pool: Any, hashed: int, key: int, length: int) -> int:
    """The slot of a key that was not known; NO_ROOM or TABLE_FULL, and then nothing changed."""
    if (table.known + 1) * 5 > (table.mask + 1) * 4:
        return TABLE_FULL
    if table.free_slot == 0 and (table.top == table.reserved or not has_room(pool, KEY_BYTES)):
        return NO_ROOM
    reference = 0
    if length > INLINE_KEY_BYTES:
        reference = allocate(pool, length)
        if reference == 0:
            return NO_ROOM
    if table.free_slot != 0:
        slot = table.free_slot
        table.free_slot = i64(key_at(table.keys + slot * KEY_BYTES).next)
    else:
        slot = table.top
        table.top += 1
        pool.other_bytes += KEY_BYTES
    record_address = table.keys + slot * KEY_BYTES
    record = key_at(record_address)
    record.key_length = length
    if length > INLINE_KEY_BYTES:
        record.key_reference = reference
        copy(pool.base + reference * UNIT_BYTES, key, length)
    else:
        copy(record_address + 4, key, length)
    record.hash = hashed
    record.payload = 0
    record.time = np.iinfo(np.int64).min
    record.since = np.nan
    record.last = np.nan
    record.gap = np.nan
    record.span = np.nan
    record.group = 0
    record.updates = 0
    record.next = 0
    record.prev = 0
    record.stale_since = np.nan
    record.area = 0.0
    record.born = np.nan
    record.ticket = 0
    record.answered = 0
    record.weight = 1.0
    record.rate_class = 0
    record.cost_class = 0
    record.flags = KNOWN
    record.in_flight = 0
    record.count = 0
    table.known += 1
    _place(table.entries, table.mask, hashed, slot)
    return i64(slot)


@kernel
def _erase(entries: int, mask: int, hashed: int, slot: int) -> bool:
    """Empty the entry of a slot and close the gap that it leaves."""
    at = hashed & mask
    while True:
        entry = load_u64(entries + at * 8)
        if entry == np.uint64(0):
            return False
        if i64(entry & _LOW) == slot:
            break
        at = (at + 1) & mask
    hole = at
    while True:
        at = (at + 1) & mask
        entry = load_u64(entries + at * 8)
        if entry == np.uint64(0):
            break
        home = i64(entry >> _S32) & mask
        # An entry may move up to the hole if its home does not lie behind the hole.
        if ((at - home) & mask) >= ((at - hole) & mask):
            store_u64(entries + hole * 8, entry)
            hole = at
    store_u64(entries + hole * 8, np.uint64(0))
    return True


@kernel
def remove(table: Any, pool: Any, slot: int) -> None:
    """Forget a key; its record must hold no waiting unit."""
    record = key_at(table.keys + slot * KEY_BYTES)
    hashed = i64(record.hash)
    _erase(table.entries, table.mask, hashed, slot)
    if table.old_entries != 0:
        at = hashed & table.old_mask
        while True:
            entry = load_u64(table.old_entries + at * 8)
            if entry == np.uint64(0):
                break
            if i64(entry & _LOW) == slot:
                dead = (np.uint64(hashed) << _S32) | np.uint64(DEAD_SLOT)
                store_u64(table.old_entries + at * 8, dead)
                break
            at = (at + 1) & table.old_mask
    if record.key_length > INLINE_KEY_BYTES:
        free(pool, i64(record.key_reference))
    record.flags = 0
    record.next = table.free_slot
    table.free_slot = slot
    table.known -= 1


@kernel
def _migrate(table_address: int, most: int) -> None:
    migrate(table_at(table_address), most)


@kernel
def _read_keys(
    table_address: int, pool_address: int, slots: int, count: int, starts: int, out: int
) -> None:
    table = table_at(table_address)
    pool = pool_at(pool_address)
    for i in range(count):
        record_address = table.keys + load_i64(slots + i * 8) * KEY_BYTES
        length = i64(key_at(record_address).key_length)
        copy(out + load_i64(starts + i * 8), key_bytes_address(pool, record_address), length)


class KeyTable:
    """The records of all known keys, and the way to them."""

    def __init__(self, *, most_keys: int, seed: int | None = None) -> None:
        self._reserve(most_keys + 1)
        self._entries = np.zeros(1024, np.uint64)
        self._old_entries: NDArray[np.uint64] | None = None
        self.table = np.zeros(1, TABLE)
        self.address = address_of(self.table)  # where the kernels find the table
        self._integers = self.table.view(np.int64).data
        self.table["seed"] = int.from_bytes(os.urandom(8), "little") if seed is None else seed
        self.table["top"] = 1
        self._place()

    def _reserve(self, slots: int) -> None:
        self._region = Region(slots * KEY_BYTES)
        self._reserved = slots

    def _place(self) -> None:
        self._region.array(KEY, 1)["since"] = np.nan  # slot 0 is nobody, and never waits
        self.table["keys"] = self._region.address
        self.table["reserved"] = self._reserved
        self.table["entries"] = address_of(self._entries)
        self.table["mask"] = len(self._entries) - 1

    def __len__(self) -> int:
        return int(self.table["known"][0])

    @property
    def table_bytes(self) -> int:
        """Bytes of the hash table, the old one included while it is being left."""
        old = 0 if self._old_entries is None else self._old_entries.nbytes
        return self._entries.nbytes + old

    def records(self) -> NDArray[Any]:
        """All records, by slot, shared with the kernels; those without the flag KNOWN are free."""
        return self._region.array(KEY, self._integers[TOP])

    @property
    def top(self) -> int:
        """Slots below were used at least once."""
        return self._integers[TOP]

    @property
    def most_slots(self) -> int:
        """Slots that there is address space for."""
        return self._reserved

    @property
    def record_bytes(self) -> int:
        """Bytes of the records, free ones included."""
        return self._integers[TOP] * KEY_BYTES

    @property
    def moving(self) -> bool:
        """Whether a smaller table is still being left."""
        return self._old_entries is not None

    def grow(self) -> None:
        """Begin to move into a table of twice the size."""
        _migrate(self.address, 2**62)
        self._old_entries = self._entries
        self._entries = np.zeros(2 * len(self._old_entries), np.uint64)
        self.table["old_entries"] = address_of(self._old_entries)
        self.table["old_mask"] = len(self._old_entries) - 1
        self.table["cursor"] = 0
        self._place()

    def settle(self) -> None:
        """Let go of the old table once nothing is left in it."""
        if self._old_entries is not None and self.table["old_entries"][0] == 0:
            self._old_entries = None

    def read(
        self, memory: MemoryManager, slots: NDArray[Any]
    ) -> tuple[pa.Buffer, NDArray[np.int64], NDArray[np.int64]]:
        """The bytes of keys one after the other, where each begins, and its length."""
        slots = np.ascontiguousarray(slots, np.int64)
        lengths = self.records()["key_length"][slots].astype(np.int64)
        starts = np.cumsum(lengths) - lengths
        keys = pa.allocate_buffer(int(lengths.sum()))
        _read_keys(
            self.address,
            memory.address,
            address_of(slots),
            len(slots),
            address_of(starts),
            keys.address,
        )
        return keys, starts, lengths

    def dump(self) -> list[Any]:
        """The table as buffers, to be taken in by `load`."""
        _migrate(self.address, 2**62)
        self.settle()
        return [
            self.table.tobytes(),
            self._entries,
            self._region.bytes(0, int(self.table["top"][0]) * KEY_BYTES),
        ]

    def load(self, buffers: list[Any]) -> None:
        """Become the table that was dumped."""
        self.table[:] = np.frombuffer(buffers[0], TABLE)
        self._entries = np.frombuffer(buffers[1], np.uint64).copy()
        top = int(self.table["top"][0])
        if top > self._reserved:
            self._reserve(top)
        self._region.bytes(0, top * KEY_BYTES)[:] = memoryview(buffers[2]).cast("B")
        self._place()
