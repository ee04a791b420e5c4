"""The key table against a dictionary, while it grows and while keys leave."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from upstream.queue.key_table import (
    KEY_BYTES,
    KNOWN,
    NO_ROOM,
    TABLE_FULL,
    KeyTable,
    find,
    hash_bytes,
    insert,
    migrate,
    remove,
    table_at,
)
from upstream.queue.memory_manager import PAGE_BYTES, MemoryManager, pool_at
from upstream.queue.raw import address_of, kernel


@kernel
def _find(table: int, pool: int, hashed: int, key: int, length: int) -> int:
    return find(table_at(table), pool_at(pool), hashed, key, length)


@kernel
def _insert(table: int, pool: int, hashed: int, key: int, length: int) -> int:
    return insert(table_at(table), pool_at(pool), hashed, key, length)


@kernel
def _remove(table: int, pool: int, slot: int) -> None:
    remove(table_at(table), pool_at(pool), slot)


@kernel
def _migrate(table: int, most: int) -> None:
    migrate(table_at(table), most)


@kernel
def _hash(address: int, length: int, seed: Any) -> int:
    return hash_bytes(address, length, seed)


class Table:
    """A key table that hashes as a test tells it to."""

    def __init__(self, spread: int = 2**32, limit_bytes: int = 1 << 26) -> None:
        self.limit_bytes = limit_bytes
        self.memory = MemoryManager(limit_bytes=limit_bytes)
        self.keys = KeyTable(most_keys=100_000, seed=7)
        self.spread = spread

    def _where(self, key: bytes) -> tuple[int, int, int, int, int, Any]:
        held = np.frombuffer(key + b"\0", np.uint8)
        hashed = int(_hash(address_of(held), len(key), np.uint64(7))) % self.spread
        where = (self.keys.address, self.memory.address, hashed, address_of(held), len(key))
        return (*where, held)

    def find(self, key: bytes) -> int:
        *where, _alive = self._where(key)
        return int(_find(*where))

    def insert(self, key: bytes) -> int:
        *where, _alive = self._where(key)
        return int(_insert(*where))

    def remove(self, slot: int) -> None:
        _remove(self.keys.address, self.memory.address, slot)

    def migrate(self, entries: int) -> None:
        _migrate(self.keys.address, entries)
        self.keys.settle()

    def read(self, slots: list[int]) -> list[bytes]:
        content, starts, lengths = self.keys.read(self.memory, np.array(slots))
        return [
            content[int(start) : int(start + length)].to_pybytes()
            for start, length in zip(starts, lengths, strict=True)
        ]

    def moved(self) -> Table:
        """The same table, dumped and loaded elsewhere."""
        other = Table(self.spread, self.limit_bytes)
        other.keys.load([bytes(buffer) for buffer in self.keys.dump()])
        other.memory.load([bytes(buffer) for buffer in self.memory.dump()])
        return other


keys = st.one_of(
    st.binary(max_size=40),
    st.integers(0, 300).map(lambda n: b"key %d" % n),
    st.integers(0, 300).map(lambda n: b"a key that is rather long %d" % n),
    st.integers(0, 3).map(lambda n: bytes([n]) * 70_000),
)


class KeyTableMachine(RuleBasedStateMachine):
    """Keys come and go, the table grows at any time; a dictionary knows the slots."""

    # The fewer hashes there are, the more keys collide.
    @initialize(spread=st.sampled_from([1, 3, 40, 2**32]))
    def open(self, spread: int) -> None:
        self.table = Table(spread)
        self.slots: dict[bytes, int] = {}
        self.gone: set[bytes] = set()

    @rule(batch=st.lists(keys, min_size=1, max_size=40))
    def insert(self, batch: list[bytes]) -> None:
        for key in batch:
            found = self.table.find(key)
            assert found == self.slots.get(key, 0)
            if not found:
                slot = self.table.insert(key)
                assert slot > 0
                assert slot not in self.slots.values()
                self.slots[key] = slot
                self.gone.discard(key)

    @precondition(lambda self: self.slots)
    @rule(data=st.data(), count=st.sampled_from([1, 3, 30]))
    def remove(self, data: st.DataObject, count: int) -> None:
        at = data.draw(st.integers(0, len(self.slots) - 1))
        for key in list(self.slots)[at : at + count]:
            self.table.remove(self.slots.pop(key))
            self.gone.add(key)

    @rule()
    def grow(self) -> None:
        if len(self.table.keys._entries) < 2**14:
            self.table.keys.grow()

    @rule(entries=st.sampled_from([1, 64, 500, 5000]))
    def migrate(self, entries: int) -> None:
        self.table.migrate(entries)

    @rule()
    def move(self) -> None:
        self.table = self.table.moved()

    @invariant()
    def check(self) -> None:
        if not hasattr(self, "slots"):
            return
        assert len(self.table.keys) == len(self.slots)
        for key, slot in self.slots.items():
            assert self.table.find(key) == slot
        for key in self.gone:
            assert self.table.find(key) == 0
        assert self.table.read(list(self.slots.values())) == list(self.slots)
        known = np.flatnonzero(self.table.keys.records()["flags"] & KNOWN)
        assert sorted(self.slots.values()) == known.tolist()
        self.table.memory.check()

    def teardown(self) -> None:
        for slot in getattr(self, "slots", {}).values():
            self.table.remove(slot)
        if hasattr(self, "table"):
            assert self.table.memory.used_bytes == 0, "the memory of a long key stayed behind"


KeyTableMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=25)
TestKeyTable = KeyTableMachine.TestCase


@pytest.mark.parametrize("length", [*range(41), 4095, 70_000, 1_000_000])
def test_keys_of_every_length_that_differ_in_one_byte(length: int) -> None:
    table = Table(spread=1)  # found by comparing bytes alone
    base = bytes(i % 251 for i in range(length))
    variants = [base, base + b"\0"]
    for at in {0, length // 3, length // 2, length - 8, length - 1} & set(range(length)):
        variants.append(base[:at] + bytes([base[at] ^ 1]) + base[at + 1 :])
    slots = [table.insert(key) for key in variants]
    assert len(set(slots)) == len(variants)
    assert [table.find(key) for key in variants] == slots
    assert table.read(slots) == variants


@given(key=st.binary(min_size=1, max_size=40), data=st.data())
def test_every_byte_counts_in_the_hash(key: bytes, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(key) - 1))
    other = key[:at] + bytes([key[at] ^ data.draw(st.integers(1, 255))]) + key[at + 1 :]
    table = Table()
    assert table._where(key)[2] != table._where(other)[2] or len(key) > 8


def test_hashes_spread_and_depend_on_the_seed() -> None:
    texts = [np.frombuffer(b"key %d" % n, np.uint8) for n in range(4000)]
    one, two = (
        np.array([_hash(address_of(text), len(text), np.uint64(seed)) for text in texts])
        for seed in (1, 2)
    )
    assert (one != two).mean() > 0.99
    assert one.min() >= 0
    assert one.max() < 2**32
    used = len(np.unique(one & 1023))
    assert used > 0.95 * 1024, "4000 keys over 1024 places leave about 20 empty"


def test_a_table_fills_to_four_fifths_and_says_so() -> None:
    table = Table()
    while table.insert(b"%d" % len(table.keys)) > 0:
        pass
    assert len(table.keys) == 819
    assert table.insert(b"x") == TABLE_FULL
    table.keys.grow()
    assert table.insert(b"x") > 0
    assert table.keys.moving
    assert table.find(b"17") != 0


def test_growth_is_spread_over_many_calls() -> None:
    table = Table()
    names = [b"%d" % n for n in range(800)]
    slots = {name: table.insert(name) for name in names}
    table.keys.grow()
    bytes_while_moving = table.keys.table_bytes
    calls = 0
    while table.keys.moving:
        table.migrate(64)
        calls += 1
        gone = names.pop()
        table.remove(slots.pop(gone))
        assert table.find(gone) == 0
        assert all(table.find(name) == slot for name, slot in slots.items())
    assert calls == 1024 // 64
    assert table.keys.table_bytes < bytes_while_moving


def test_a_slot_is_used_again_and_carries_nothing_over() -> None:
    table = Table()
    slot = table.insert(b"first")
    record = table.keys.records()[slot : slot + 1]
    fresh = record.copy()
    for name in record.dtype.names or ():
        if name not in ("key_length", "key_reference", "key_tail", "hash", "flags"):
            record[name] = 77
    table.remove(slot)
    assert table.insert(b"first") == slot
    assert record.tobytes() == fresh.tobytes()


def test_no_room_leaves_everything_as_it_was() -> None:
    table = Table(limit_bytes=3 * PAGE_BYTES)
    count = 0
    while table.insert(b"a key that needs memory of its own %d" % count) > 0:
        count += 1
        if len(table.keys) > 800 and not table.keys.moving:
            table.keys.grow()
        table.migrate(64)
    assert table.insert(b"a key that needs memory of its own as well") == NO_ROOM
    assert len(table.keys) == count
    used = table.memory.used_bytes + int(table.memory.pool["other_bytes"][0])
    assert used <= 3 * PAGE_BYTES
    assert used > 3 * PAGE_BYTES - PAGE_BYTES - KEY_BYTES
    assert table.find(b"a key that needs memory of its own as well") == 0
    table.remove(table.find(b"a key that needs memory of its own 5"))
    assert table.insert(b"a key that needs memory of its own 9999") > 0
