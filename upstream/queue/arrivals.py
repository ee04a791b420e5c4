"""Arrival: the kernels through which a batch enters the queue.

`prepare` looks at a batch and changes nothing; `admit` takes its rows one after another:

    find the key -> older than what is held? superseded
                 -> observe its rate -> store the row (where it lives, what it merges with)
                 -> did it not wait? it begins to wait, and is stale from now on

Hashes are computed for a block of rows at a time, and the table entries and records that
they lead to are fetched ahead: with many keys the time goes into waiting for memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from upstream.queue.key_scheduler import enqueue, scheduler_at
from upstream.queue.key_table import (
    DELETED,
    KEY_BYTES,
    KNOWN,
    KNOWN_RATE,
    NO_ROOM,
    RESET,
    find,
    hash_bytes,
    insert,
    key_at,
    migrate,
    remove,
    table_at,
)
from upstream.queue.layout import BAD_TIME, BAD_WEIGHT, NULL_KEY
from upstream.queue.memory_manager import UNIT_BYTES, allocate, free, pool_at
from upstream.queue.rates import observe
from upstream.queue.raw import (
    clear,
    i64,
    inlined,
    kernel,
    load_f64,
    load_i64,
    load_u8,
    load_u32,
    load_u64,
    prefetch,
    record_at,
    store_i64,
    store_u8,
    store_u32,
)
from upstream.queue.rows import (
    COLUMN_BYTES,
    F32,
    TEXT,
    column_at,
    is_null,
    key_of_row,
    load_number,
    load_order,
    mark_long_texts,
    matches,
    open_columns,
    put_rows,
    reserve_texts,
    text_at,
)
from upstream.queue.state import queue_at, totals_at
from upstream.staleness.rules import add_key, rise

__all__ = [
    "BLOCK",
    "BLOCK_ROWS",
    "admit",
    "block_at",
    "born",
    "enqueue_begun",
    "prepare",
    "read_block",
]

BLOCK_ROWS = 128

BLOCK = np.dtype(
    [
        # Addresses of one entry per row of the block
        ("keys", "i8"),  # address of the key's bytes
        ("lengths", "i8"),
        ("hashes", "i8"),
        ("times", "i8"),
        ("deletes", "i8"),
        ("long", "i8"),  # 1: some text of the row needs memory of its own
        ("cells", "i8"),  # address of the row in the pool, 0: superseded
        ("begins", "i8"),  # 1: nothing that is held is merged with
        ("pending", "i8"),  # per column a reference to memory for long text
    ]
)
block_at = record_at(BLOCK)
# Entries of an outgrown table that move over with each arriving row.
MOVES_PER_ROW = 8


@kernel
def prepare(queue_address: int, array: int) -> int:
    """Point the columns at a batch; 0, or 8 * (first bad row) + what is wrong with it."""
    queue = queue_at(queue_address)
    rows = load_i64(array)
    open_columns(queue.columns, queue.column_count, array)
    open_columns(queue.key_columns, queue.key_count, array)
    bad_row, problem = rows, 0
    scratch = 0
    for i in range(queue.key_count):
        column = column_at(queue.key_columns + i * COLUMN_BYTES)
        if column.validity != 0:
            for row in range(bad_row):
                if is_null(column, row):
                    bad_row, problem = row, NULL_KEY
                    break
        if column.kind < TEXT:
            scratch += i64(column.width)
        elif queue.key_count > 1:
            longest = 0
            for row in range(rows):
                _, length = text_at(column, row)
                longest = max(longest, length)
            scratch += 4 + longest
    queue.key_scratch_bytes = scratch * min(rows, BLOCK_ROWS)
    if queue.time_column >= 0:
        column = column_at(queue.columns + queue.time_column * COLUMN_BYTES)
        if column.validity != 0 or column.number >= F32:
            for row in range(bad_row):
                if is_null(column, row) or np.isnan(load_number(column, row)):
                    bad_row, problem = row, BAD_TIME
                    break
    if queue.weight_column >= 0:
        column = column_at(queue.columns + queue.weight_column * COLUMN_BYTES)
        for row in range(bad_row):
            if not is_null(column, row):
                weight = load_number(column, row)
                if not (weight > 0.0 and weight < np.inf):
                    bad_row, problem = row, BAD_WEIGHT
                    break
    return 0 if problem == 0 else 8 * bad_row + problem


@inlined
def read_block(queue: Any, table: Any, block: Any, start: int, count: int) -> None:
    """Keys, hashes, times and deletes of a block of rows; table entries are fetched ahead."""
    scratch = queue.key_scratch
    for i in range(count):
        key, length = key_of_row(queue.key_columns, queue.key_count, start + i, scratch)
        if key == scratch:
            scratch += length
        hashed = hash_bytes(key, length, table.seed)
        store_i64(block.keys + i * 8, key)
        store_i64(block.lengths + i * 8, length)
        store_i64(block.hashes + i * 8, hashed)
        prefetch(table.entries + (hashed & table.mask) * 8)
    if queue.time_column >= 0:
        column = column_at(queue.columns + queue.time_column * COLUMN_BYTES)
        for i in range(count):
            store_i64(block.times + i * 8, load_order(column, start + i))
    if queue.has_text != 0:
        mark_long_texts(queue.columns, queue.column_count, start, count, block.long)
    if queue.delete_column >= 0:
        column = column_at(queue.columns + queue.delete_column * COLUMN_BYTES)
        for i in range(count):
            deletes = matches(column, start + i, queue.delete_value, queue.delete_length)
            store_u8(block.deletes + i, np.uint8(deletes))


@inlined
def _fetch_block(table: Any, pool: Any, block: Any, count: int, row_bytes: int) -> None:
    """Fetch the records that the first entries of the probes name, then their rows."""
    for i in range(count):
        entry = load_u64(table.entries + (load_i64(block.hashes + i * 8) & table.mask) * 8)
        record_address = table.keys + i64(entry & np.uint64(0xFFFFFFFF)) * KEY_BYTES
        prefetch(record_address)
    for i in range(count):
        entry = load_u64(table.entries + (load_i64(block.hashes + i * 8) & table.mask) * 8)
        record_address = table.keys + i64(entry & np.uint64(0xFFFFFFFF)) * KEY_BYTES
        cells = pool.base + i64(key_at(record_address).payload) * UNIT_BYTES
        prefetch(cells)
        prefetch(cells + row_bytes - 1)


@kernel
def born(queue: Any, key: Any, slot: int, at: float) -> None:
    key.weight = queue.weight
    key.born = at
    add_key(totals_at(queue.totals), at)
    add_key(totals_at(queue.queue_totals), at)
    store_u32(queue.born + queue.born_count * 4, np.uint32(slot))
    queue.born_count += 1


@kernel
def _begin(queue: Any, key: Any, slot: int, at: float) -> None:
    """A key begins to wait; it is put in line when the call is over."""
    key.since = at
    rise(totals_at(queue.queue_totals), at, at)
    if np.isnan(key.stale_since):
        key.stale_since = at
        rise(totals_at(queue.totals), at, at)
    store_u32(queue.begun + queue.begun_count * 4, np.uint32(slot))
    queue.begun_count += 1


@kernel
def admit(
    queue_address: int, start: int, stop: int, now: float, arrived: int, in_line: bool
) -> int:
    """Take rows `start` to `stop` of the prepared batch; answers the first row not taken.

    `arrived` is the address of the rows' arrival times, or 0: then all arrive `now`. With
    `in_line` false the keys that begin to wait are left to `enqueue_begun`.
    """
    queue = queue_at(queue_address)
    pool = pool_at(queue.pool)
    table = table_at(queue.table)
    block = block_at(queue.block)
    alpha = scheduler_at(queue.scheduler).alpha
    queue.begun_count = 0
    queue.born_count = 0
    queue.stopped = 0
    migrate(table, 64 + MOVES_PER_ROW * (stop - start))
    row = start
    while row < stop and queue.stopped == 0:
        count = min(BLOCK_ROWS, stop - row)
        read_block(queue, table, block, row, count)
        _fetch_block(table, pool, block, count, queue.row_bytes)
        placed = 0
        while placed < count:
            at = now if arrived == 0 else load_f64(arrived + (row + placed) * 8)
            queue.stopped = _place_row(queue, pool, table, block, row, placed, at, alpha)
            if queue.stopped != 0:
                break
            placed += 1
        put_rows(
            queue.columns,
            queue.column_count,
            pool,
            row,
            placed,
            block.cells,
            block.begins,
            block.pending,
        )
        row += placed
    queue.accepted += row - start
    if in_line:
        enqueue_begun(queue_address, now, arrived, row - 1)
    return row


@inlined
def _place_row(
    queue: Any, pool: Any, table: Any, block: Any, first: int, i: int, at: float, alpha: float
) -> int:
    """Find out where row `i` of the block goes and what it means for its key; 0, or why there
    is no place for it. The values themselves are stored for the whole block afterwards."""
    hashed, key = load_i64(block.hashes + i * 8), load_i64(block.keys + i * 8)
    length = load_i64(block.lengths + i * 8)
    time = 0 if queue.time_column < 0 else load_i64(block.times + i * 8)
    slot = find(table, pool, hashed, key, length)
    known = slot != 0
    if not known:
        slot = insert(table, pool, hashed, key, length)
        if slot < 0:
            return slot
    record = key_at(table.keys + slot * KEY_BYTES)
    if time < record.time:
        queue.superseded += 1
        store_i64(block.cells + i * 8, 0)
        if queue.wants_rows != 0:
            store_u32(queue.row_slots + (first + i) * 4, np.uint32(0))
        return 0
    deletes = queue.delete_column >= 0 and load_u8(block.deletes + i) != 0
    waits = record.payload != 0
    # A delete, and the first update after it, leave nothing to merge with.
    begins = not waits or deletes or record.flags & DELETED != 0
    if not waits:
        record.payload = allocate(pool, queue.row_bytes)
    if record.payload == 0 or (
        queue.has_text != 0
        and load_u8(block.long + i) != 0
        and not reserve_texts(
            queue.columns,
            queue.column_count,
            pool,
            first + i,
            begins,
            block.pending + i * queue.column_count * 8,
        )
    ):
        if not waits and record.payload != 0:
            free(pool, i64(record.payload))
            record.payload = 0
        if not known:
            remove(table, pool, slot)
        return NO_ROOM
    cells = pool.base + i64(record.payload) * UNIT_BYTES
    store_i64(block.cells + i * 8, cells)
    store_u8(block.begins + i, np.uint8(begins))
    if not known:
        born(queue, record, slot, at)
    record.time = time
    observe(record, at, alpha)
    if waits:
        record.updates += 1
        queue.conflated += 1
    else:
        clear(cells, queue.row_bytes)
        record.flags &= KNOWN | KNOWN_RATE
        record.updates = 1
        _begin(queue, record, slot, at)
    if queue.delete_column >= 0:
        if deletes:
            record.flags |= DELETED | RESET
        else:
            record.flags &= 255 - DELETED
    if queue.weight_column >= 0:
        column = column_at(queue.columns + queue.weight_column * COLUMN_BYTES)
        if not is_null(column, first + i):
            record.weight = load_number(column, first + i)
    if queue.wants_rows != 0:
        store_u32(queue.row_slots + (first + i) * 4, np.uint32(slot))
        store_u8(queue.row_begins + first + i, np.uint8(begins))
    return 0


@kernel
def enqueue_begun(queue_address: int, now: float, arrived: int, last_row: int) -> None:
    """Put the keys that began to wait in line, their rates known as of the end of the call."""
    queue = queue_at(queue_address)
    if queue.begun_count == 0:
        return
    scheduler = scheduler_at(queue.scheduler)
    totals = totals_at(queue.totals)
    at = now if arrived == 0 or last_row < 0 else load_f64(arrived + last_row * 8)
    elapsed = at - totals["started"]
    if queue.accepted > 0 and elapsed > 0.0:
        scheduler.prior_gap = elapsed * table_at(queue.table).known / queue.accepted
    for i in range(queue.begun_count):
        enqueue(scheduler, i64(load_u32(queue.begun + i * 4)), at)
