"""Departure: the kernels through which units leave the queue, and come back.

    freeze      a unit is copied into a batch; its key waits no longer
    answer_all  the results of a batch are out; staleness falls
    return_all  a batch comes back; what is newer in the queue wins
    drop        the waiting units of keys are lost (shed), or the keys are forgotten

A frozen unit is a `UNIT` record followed by the row; keys and long texts stand in a heap
beside it, so that a batch is two buffers that can be written down as they are.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from upstream.queue.key_scheduler import insert_waiting, scheduler_at, unlink
from upstream.queue.key_table import (
    DELETED,
    KEY_BYTES,
    KNOWN,
    RESET,
    key_at,
    key_bytes_address,
    remove,
    table_at,
)
from upstream.queue.memory_manager import UNIT_BYTES, allocate, free, pool_at
from upstream.queue.raw import (
    copy,
    i64,
    kernel,
    load_f64,
    load_i64,
    load_u32,
    prefetch,
    record_at,
    store_i64,
    store_u8,
)
from upstream.queue.rows import (
    COLUMN_BYTES,
    INLINE_TEXT_BYTES,
    LARGE_TEXT,
    TEXT,
    absorb_row,
    column_at,
    copy_row_in,
    free_row,
)
from upstream.queue.state import queue_at, totals_at
from upstream.staleness.rules import answer, drop_key, fall, key_area

__all__ = [
    "UNIT",
    "UNIT_BYTES_FROZEN",
    "answer_all",
    "drop",
    "freeze",
    "freeze_text",
    "frozen_bytes",
    "in_flight_twice",
    "return_all",
    "unit_at",
]

UNIT = np.dtype(
    [
        ("since", "f8"),  # first enqueue
        ("arrived", "f8"),  # arrival of its newest update
        ("time", "i8"),
        ("ticket", "i8"),
        ("key_start", "i8"),  # where the key's bytes begin in the heap
        ("key_length", "u4"),
        ("slot", "u4"),
        ("updates", "u4"),  # updates that it stands for
        ("weight", "f4"),
        ("cost_class", "u1"),
        ("flags", "u1"),
        ("spare", "u2"),
        ("spare2", "u4"),
    ]
)
UNIT_BYTES_FROZEN = UNIT.itemsize
unit_at = record_at(UNIT)

# What became of a unit that was given back
BACK_IN_LINE, UNDER_NEWER, OVERTAKEN = 1, 2, 3


@kernel
def frozen_bytes(queue_address: int, slots: int, count: int) -> int:
    """Bytes of heap that the units of these keys need."""
    queue = queue_at(queue_address)
    pool = pool_at(queue.pool)
    table = table_at(queue.table)
    total = 0
    for i in range(count):
        if i + 8 < count:
            ahead = table.keys + i64(load_u32(slots + (i + 8) * 4)) * KEY_BYTES
            prefetch(ahead)
            prefetch(ahead + 64)
        record = key_at(table.keys + i64(load_u32(slots + i * 4)) * KEY_BYTES)
        total += i64(record.key_length)
        if queue.has_text == 0:
            prefetch(pool.base + i64(record.payload) * UNIT_BYTES)
            continue
        cells = pool.base + i64(record.payload) * UNIT_BYTES
        for j in range(queue.column_count):
            column = column_at(queue.columns + j * COLUMN_BYTES)
            if column.kind == TEXT or column.kind == LARGE_TEXT:
                length = i64(load_u32(cells + i64(column.place)))
                if length > INLINE_TEXT_BYTES:
                    total += length
    return total


@kernel
def freeze(queue_address: int, slots: int, count: int, now: float, frozen: int, heap: int) -> None:
    """Copy the units of keys that were taken out of the line, and free their rows."""
    queue = queue_at(queue_address)
    pool = pool_at(queue.pool)
    table = table_at(queue.table)
    stride = UNIT_BYTES_FROZEN + queue.row_bytes
    used = 0
    for i in range(count):
        slot = i64(load_u32(slots + i * 4))
        record_address = table.keys + slot * KEY_BYTES
        record = key_at(record_address)
        unit = unit_at(frozen + i * stride)
        unit.since = record.since
        unit.arrived = record.last
        unit.time = record.time
        unit.ticket = record.ticket
        unit.key_start = used
        unit.key_length = record.key_length
        unit.slot = slot
        unit.updates = record.updates
        unit.weight = record.weight
        unit.cost_class = record.cost_class
        unit.flags = record.flags
        length = i64(record.key_length)
        copy(heap + used, key_bytes_address(pool, record_address), length)
        used += length
        cells = pool.base + i64(record.payload) * UNIT_BYTES
        row = frozen + i * stride + UNIT_BYTES_FROZEN
        copy(row, cells, queue.row_bytes)
        if queue.has_text != 0:
            used = freeze_text(queue, pool, row, heap, used)
        _let_go(queue, pool, record, now)
        record.flags &= 255 - RESET
        record.in_flight += 1
    queue.handed_out += count


@kernel
def freeze_text(queue: Any, pool: Any, row: int, heap: int, used: int) -> int:
    """Move the long texts of a copied row into the heap."""
    for j in range(queue.column_count):
        column = column_at(queue.columns + j * COLUMN_BYTES)
        if column.kind != TEXT and column.kind != LARGE_TEXT:
            continue
        cell = row + i64(column.place)
        length = i64(load_u32(cell))
        if length > INLINE_TEXT_BYTES:
            reference = i64(load_u32(cell + 4))
            copy(heap + used, pool.base + reference * UNIT_BYTES, length)
            store_i64(cell + 8, used)
            used += length
    return used


@kernel
def _let_go(queue: Any, pool: Any, record: Any, now: float) -> None:
    """Free the row of a key that has left the line."""
    cells = pool.base + i64(record.payload) * UNIT_BYTES
    if queue.has_text != 0:
        free_row(queue.columns, queue.column_count, pool, cells)
    free(pool, i64(record.payload))
    record.payload = 0
    record.updates = 0
    fall(totals_at(queue.queue_totals), record.since, np.nan, now)
    record.since = np.nan


@kernel
def in_flight_twice(queue_address: int, frozen: int, stride: int, count: int) -> bool:
    """Whether another unit of some key of the batch is in flight too."""
    table = table_at(queue_at(queue_address).table)
    for i in range(count):
        if key_at(table.keys + i64(unit_at(frozen + i * stride).slot) * KEY_BYTES).in_flight > 1:
            return True
    return False


@kernel
def answer_all(
    queue_address: int, frozen: int, stride: int, count: int, at: float, others: int
) -> None:
    """The results of a batch are out.

    `others` is the address of one float per unit: the earliest first enqueue among units of
    the same key that are newer and still in flight, NaN if there are none; 0 if there are
    none at all.
    """
    queue = queue_at(queue_address)
    table = table_at(queue.table)
    totals = totals_at(queue.totals)
    for i in range(count):
        unit = unit_at(frozen + i * stride)
        record = key_at(table.keys + i64(unit.slot) * KEY_BYTES)
        record.in_flight -= 1
        answer(totals, unit.arrived, at)
        if unit.ticket <= record.answered:
            continue  # a newer answer is out already
        record.answered = unit.ticket
        newer = np.nan if others == 0 else load_f64(others + i * 8)
        if np.isnan(newer):
            newer = record.since
        fall(totals, record.stale_since, newer, at)
        record.area = key_area(record.area, record.stale_since, newer, totals["at"])
        record.stale_since = newer


@kernel
def return_all(
    queue_address: int,
    frozen: int,
    stride: int,
    count: int,
    heap: int,
    now: float,
    newest: int,
    fates: int,
) -> None:
    """A batch comes back.

    `newest` is the address of one ticket per unit, the newest of the same key among other
    units in flight, 0 if there are none. `fates` receives what became of each unit.
    """
    queue = queue_at(queue_address)
    pool = pool_at(queue.pool)
    table = table_at(queue.table)
    scheduler = scheduler_at(queue.scheduler)
    queue_totals = totals_at(queue.queue_totals)
    # From the last to the first: in each class the older go in front of the younger at once.
    for i in range(count - 1, -1, -1):
        unit_address = frozen + i * stride
        unit = unit_at(unit_address)
        row = unit_address + UNIT_BYTES_FROZEN
        slot = i64(unit.slot)
        record = key_at(table.keys + slot * KEY_BYTES)
        record.in_flight -= 1
        queue.handed_out -= 1
        if unit.ticket < max(record.answered, load_i64(newest + i * 8)):
            queue.conflated += 1
            store_u8(fates + i, np.uint8(OVERTAKEN))
            continue
        if np.isnan(record.since):
            store_u8(fates + i, np.uint8(BACK_IN_LINE))
            record.payload = allocate(pool, queue.row_bytes)
            cells = pool.base + i64(record.payload) * UNIT_BYTES
            copy_row_in(queue.columns, queue.column_count, queue.row_bytes, pool, cells, row, heap)
            record.updates = unit.updates
            record.flags = (record.flags & (255 - DELETED - RESET)) | (
                unit.flags & (DELETED | RESET)
            )
            fall(queue_totals, np.nan, unit.since, now)
        else:
            store_u8(fates + i, np.uint8(UNDER_NEWER))
            unlink(scheduler, slot)
            queue.conflated += 1
            record.updates += unit.updates
            if record.flags & RESET == 0:
                if unit.flags & DELETED == 0:
                    cells = pool.base + i64(record.payload) * UNIT_BYTES
                    absorb_row(queue.columns, queue.column_count, pool, cells, row, heap)
                if unit.flags & (DELETED | RESET) != 0:
                    record.flags |= RESET
            fall(queue_totals, record.since, unit.since, now)
        record.since = unit.since
        record.ticket = unit.ticket
        insert_waiting(scheduler, slot, now)


@kernel
def drop(queue_address: int, slots: int, count: int, now: float, forget: int) -> None:
    """Lose the waiting units of keys; with `forget` 2 the keys themselves, with 1 those of
    which nothing was ever handed out."""
    queue = queue_at(queue_address)
    pool = pool_at(queue.pool)
    table = table_at(queue.table)
    scheduler = scheduler_at(queue.scheduler)
    for i in range(count):
        slot = i64(load_u32(slots + i * 4))
        record = key_at(table.keys + slot * KEY_BYTES)
        if not np.isnan(record.since):
            unlink(scheduler, slot)
            _let_go(queue, pool, record, now)
            queue.shed += 1
        if forget == 2 or (forget == 1 and record.answered == 0 and record.in_flight == 0):
            drop_key(totals_at(queue.totals), record.stale_since, now)
            drop_key(totals_at(queue.queue_totals), np.nan, now)
            remove(table, pool, slot)


@kernel
def dead(queue_address: int, slots: int, tickets: int, count: int, out: int) -> None:
    """For each key 1 if its delete, of this ticket, is still the last that was heard of it."""
    queue = queue_at(queue_address)
    table = table_at(queue.table)
    for i in range(count):
        record = key_at(table.keys + i64(load_u32(slots + i * 4)) * KEY_BYTES)
        gone = (
            record.flags & KNOWN != 0
            and record.flags & DELETED != 0
            and np.isnan(record.since)
            and record.in_flight == 0
            and record.answered == load_i64(tickets + i * 8)
        )
        store_u8(out + i, np.uint8(gone))
