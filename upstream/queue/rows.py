"""Rows: how the columns of an update are packed into one piece of memory.

A batch arrives as Arrow columns; the queue keeps, per key, one row of the values that are
not part of the key. A row is

    [null bits][value of column 1][value of column 2]...

with fixed-width values as they are, a boolean as a byte, and text or binary as 16 bytes:
its length, followed by the bytes themselves if there are 12 or fewer, otherwise by a
reference into the page pool. Columns of any other type (nested ones, and those with a
merge function of the user's) keep 8 bytes that refer to an `ArrivedValues` store.

This module holds the kernels for one row. `upstream.queue.layout` knows which column is
what, and `upstream.queue.frozen` turns rows into Arrow again.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from upstream.queue.memory_manager import UNIT_BYTES, allocate, free
from upstream.queue.raw import (
    clear,
    copy,
    copy_short,
    f64,
    i64,
    inlined,
    kernel,
    load_f32,
    load_f64,
    load_i8,
    load_i16,
    load_i32,
    load_i64,
    load_u8,
    load_u16,
    load_u32,
    load_u64,
    record_at,
    same,
    store_f32,
    store_f64,
    store_i16,
    store_i32,
    store_i64,
    store_u8,
    store_u32,
    store_u64,
)

__all__ = [
    "COLUMN",
    "COLUMN_BYTES",
    "INLINE_TEXT_BYTES",
    "absorb_row",
    "column_at",
    "copy_row_in",
    "free_row",
    "free_text",
    "held_null",
    "is_null",
    "key_of_row",
    "load_number",
    "load_order",
    "mark_long_texts",
    "matches",
    "open_columns",
    "put_rows",
    "reserve_texts",
    "text_at",
]

COLUMN = np.dtype(
    [
        # What the layout says
        ("child", "i4"),  # its place in the arriving batch
        ("kind", "i4"),
        ("width", "i4"),  # bytes that it takes in a row
        ("place", "i4"),  # where they begin
        ("bit", "i4"),  # its null bit
        ("merge", "i4"),
        ("number", "i4"),
        ("held_nulls", "i4"),  # 1 once a row may hold a null
        # What the arriving batch says
        ("validity", "i8"),  # address of its bitmap, 0: nothing is null
        ("values", "i8"),  # address of values, or of the offsets of text
        ("text", "i8"),  # address of the bytes of text
        ("offset", "i8"),  # index of the batch's first row in these
    ]
)
COLUMN_BYTES = COLUMN.itemsize
INLINE_TEXT_BYTES = 12
LONGEST_TEXT_BYTES = 2**32 - 1


# How a column is stored; TEXT has 32-bit offsets, LARGE_TEXT 64-bit ones
FIXED, BOOLEAN, TEXT, LARGE_TEXT, ARRIVED = 0, 1, 2, 3, 4
# What becomes of the value that a unit holds when another update arrives
LAST, FIRST, MINIMUM, MAXIMUM, SUM, COUNT = 0, 1, 2, 3, 4, 5
# How the bytes of a number are read
NO_NUMBER, I8, I16, I32, I64, U8, U16, U32, U64, F32, F64 = 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10

column_at = record_at(COLUMN)


@kernel
def open_columns(columns: int, count: int, array: int) -> None:
    """Point the columns at the buffers of an exported record batch (ArrowArray)."""
    base = load_i64(array + 16)
    children = load_i64(array + 48)
    for i in range(count):
        column = column_at(columns + i * COLUMN_BYTES)
        child = load_i64(children + i64(column.child) * 8)
        buffers = load_i64(child + 40)
        column.offset = load_i64(child + 16) + base
        column.validity = 0 if load_i64(child + 8) == 0 else load_i64(buffers)
        if column.kind != ARRIVED:
            column.values = load_i64(buffers + 8)
        if column.kind == TEXT or column.kind == LARGE_TEXT:
            column.text = load_i64(buffers + 16)


@inlined
def is_null(column: Any, row: int) -> bool:
    """Whether the arriving value is null."""
    if column.validity == 0:
        return False
    at = column.offset + row
    return (load_u8(column.validity + (at >> 3)) >> (at & 7)) & 1 == 0


@inlined
def text_at(column: Any, row: int) -> tuple[int, int]:
    """Address and length of an arriving text."""
    at = column.offset + row
    if column.kind == TEXT:
        start = i64(load_i32(column.values + at * 4))
        return column.text + start, i64(load_i32(column.values + at * 4 + 4)) - start
    start = load_i64(column.values + at * 8)
    return column.text + start, load_i64(column.values + at * 8 + 8) - start


@inlined
def _bit(column: Any, row: int) -> int:
    at = column.offset + row
    return i64((load_u8(column.values + (at >> 3)) >> (at & 7)) & 1)


@kernel
def matches(column: Any, row: int, wanted: int, length: int) -> bool:
    """Whether an arriving value equals the `length` bytes at `wanted`."""
    if is_null(column, row):
        return False
    if column.kind == BOOLEAN:
        return _bit(column, row) == i64(load_u8(wanted))
    if column.kind == FIXED:
        return same(column.values + (column.offset + row) * column.width, wanted, length)
    address, size = text_at(column, row)
    return size == length and same(address, wanted, length)


@inlined
def key_of_row(columns: int, count: int, row: int, scratch: int) -> tuple[int, int]:
    """Address and length of a row's key bytes; only keys of several columns are copied."""
    if count == 1:
        column = column_at(columns)
        if column.kind == TEXT or column.kind == LARGE_TEXT:
            return text_at(column, row)
        if column.kind == FIXED:
            width = i64(column.width)
            return column.values + (column.offset + row) * width, width
    length = 0
    for i in range(count):
        column = column_at(columns + i * COLUMN_BYTES)
        if column.kind == FIXED:
            width = i64(column.width)
            copy(scratch + length, column.values + (column.offset + row) * width, width)
            length += width
        elif column.kind == BOOLEAN:
            store_u8(scratch + length, np.uint8(_bit(column, row)))
            length += 1
        else:
            address, size = text_at(column, row)
            store_u32(scratch + length, np.uint32(size))
            copy(scratch + length + 4, address, size)
            length += 4 + size
    return scratch, length


@kernel
def _set_null(row: int, bit: int, null: bool) -> None:
    address = row + (bit >> 3)
    mask = np.uint8(1 << (bit & 7))
    if null:
        store_u8(address, load_u8(address) | mask)
    else:
        store_u8(address, load_u8(address) & ~mask)


@kernel
def held_null(row: int, bit: int) -> bool:
    """Whether a value of a stored row is null."""
    return (load_u8(row + (bit >> 3)) >> (bit & 7)) & 1 != 0


@inlined
def free_text(pool: Any, cell: int) -> None:
    """Give back the memory of a long text."""
    if load_u32(cell) > INLINE_TEXT_BYTES:
        free(pool, i64(load_u32(cell + 4)))


@inlined
def _load_integer(address: int, number: int) -> int:
    if number == I64:
        return load_i64(address)
    if number == I32:
        return i64(load_i32(address))
    if number == I16:
        return i64(load_i16(address))
    if number == I8:
        return i64(load_i8(address))
    if number == U8:
        return i64(load_u8(address))
    if number == U16:
        return i64(load_u16(address))
    return i64(load_u32(address))


@kernel
def _store_integer(address: int, number: int, value: int) -> None:
    if number == I64 or number == U64:
        store_i64(address, value)
    elif number == I32 or number == U32:
        store_i32(address, np.int32(value))
    elif number == I16 or number == U16:
        store_i16(address, np.int16(value))
    else:
        store_u8(address, np.uint8(value))


@kernel
def load_number(column: Any, row: int) -> float:
    """An arriving number as a float."""
    address = column.values + (column.offset + row) * i64(column.width)
    if column.number == F64:
        return load_f64(address)
    if column.number == F32:
        return f64(load_f32(address))
    if column.number == U64:
        return f64(load_u64(address))
    return f64(_load_integer(address, column.number))


@inlined
def load_order(column: Any, row: int) -> int:
    """An arriving number as an int64 that sorts like it."""
    address = column.values + (column.offset + row) * i64(column.width)
    if column.number == U64:
        return load_i64(address) ^ i64(-0x8000000000000000)
    if column.number < F32:
        return _load_integer(address, column.number)
    x = f64(load_f32(address)) if column.number == F32 else load_f64(address)
    bits = f64(x + 0.0).view(np.int64)
    return bits if bits >= 0 else bits ^ i64(0x7FFFFFFFFFFFFFFF)


@kernel
def _combine(merge: int, number: int, held: int, arrived: int) -> None:
    """Merge the number at `arrived` into the one at `held`."""
    if number >= F32:
        x = f64(load_f32(held)) if number == F32 else load_f64(held)
        y = f64(load_f32(arrived)) if number == F32 else load_f64(arrived)
        if merge == SUM:
            z = x + y
        elif np.isnan(x) or (merge == MINIMUM and y < x) or (merge == MAXIMUM and y > x):
            z = y
        else:
            z = x
        if number == F32:
            store_f32(held, np.float32(z))
        else:
            store_f64(held, z)
    elif number == U64:
        u = load_u64(held)
        v = load_u64(arrived)
        if merge == SUM:
            u = u + v
        elif (merge == MINIMUM and v < u) or (merge == MAXIMUM and v > u):
            u = v
        store_u64(held, u)
    else:
        i = _load_integer(held, number)
        j = _load_integer(arrived, number)
        if merge == SUM:
            i = i + j
        elif (merge == MINIMUM and j < i) or (merge == MAXIMUM and j > i):
            i = j
        _store_integer(held, number, i)


@kernel
def _set_value(column: Any, cells: int, row: int) -> None:
    """Overwrite the value of a row with a number or boolean that arrives."""
    cell = cells + i64(column.place)
    if column.kind == BOOLEAN:
        store_u8(cell, np.uint8(_bit(column, row)))
    elif column.width == 8:
        store_u64(cell, load_u64(column.values + (column.offset + row) * 8))
    elif column.width == 4:
        store_u32(cell, load_u32(column.values + (column.offset + row) * 4))
    else:
        width = i64(column.width)
        copy(cell, column.values + (column.offset + row) * width, width)


@kernel
def _set_text(column: Any, pool: Any, cells: int, row: int, pending: int) -> None:
    """Overwrite the text of a row; long text goes to `pending`, which was allocated for it."""
    cell = cells + i64(column.place)
    free_text(pool, cell)
    address, length = text_at(column, row)
    store_u32(cell, np.uint32(length))
    if length > INLINE_TEXT_BYTES:
        store_u32(cell + 4, np.uint32(pending))
        copy(pool.base + pending * UNIT_BYTES, address, length)
    else:
        copy_short(cell + 4, address, length)


@kernel
def mark_long_texts(columns: int, count: int, first_row: int, rows: int, long: int) -> None:
    """Set one byte per arriving row: 1 if it has text that does not fit into the row."""
    clear(long, rows)
    for i in range(count):
        column = column_at(columns + i * COLUMN_BYTES)
        if column.kind == TEXT:
            offsets = column.values + (column.offset + first_row) * 4
            for k in range(rows):
                length = load_i32(offsets + k * 4 + 4) - load_i32(offsets + k * 4)
                if length > INLINE_TEXT_BYTES:
                    store_u8(long + k, np.uint8(1))
        elif column.kind == LARGE_TEXT:
            offsets = column.values + (column.offset + first_row) * 8
            for k in range(rows):
                length = load_i64(offsets + k * 8 + 8) - load_i64(offsets + k * 8)
                if length > INLINE_TEXT_BYTES:
                    store_u8(long + k, np.uint8(1))


@kernel
def reserve_texts(
    columns: int, count: int, pool: Any, row: int, begins: bool, pending: int
) -> bool:
    """Allocate room for the long texts of an arriving row, before anything is changed.

    `pending` is the address of one reference per column. False where the pool has no room.
    """
    for i in range(count):
        column = column_at(columns + i * COLUMN_BYTES)
        if (column.kind != TEXT and column.kind != LARGE_TEXT) or is_null(column, row):
            continue
        if column.merge == FIRST and not begins:
            continue
        _, length = text_at(column, row)
        if length <= INLINE_TEXT_BYTES:
            continue
        reference = allocate(pool, length) if length < LONGEST_TEXT_BYTES else 0
        store_i64(pending + i * 8, reference)
        if reference == 0:
            for j in range(i):
                earlier = column_at(columns + j * COLUMN_BYTES)
                if earlier.kind == TEXT or earlier.kind == LARGE_TEXT:
                    _free_pending(earlier, pool, row, begins, load_i64(pending + j * 8))
            return False
    return True


@kernel
def _free_pending(column: Any, pool: Any, row: int, begins: bool, reference: int) -> None:
    if is_null(column, row) or (column.merge == FIRST and not begins):
        return
    _, length = text_at(column, row)
    if length > INLINE_TEXT_BYTES:
        free(pool, reference)


@kernel
def put_rows(
    columns: int,
    count: int,
    pool: Any,
    first_row: int,
    rows: int,
    cells: int,
    begins: int,
    pending: int,
) -> None:
    """Store a block of arriving rows, column by column.

    `cells` is the address of one row address per arriving row, 0 where it goes nowhere, and
    `begins` of one byte per row: 1 if nothing that is held there is to be merged with.
    """
    for i in range(count):
        column = column_at(columns + i * COLUMN_BYTES)
        if column.kind == ARRIVED:
            continue
        if column.merge != LAST:
            _merge_column(column, pool, first_row, rows, cells, begins, pending + i * 8, count * 8)
        elif column.validity != 0 or column.held_nulls != 0:
            column.held_nulls = 1
            _put_nullable(column, pool, first_row, rows, cells, pending + i * 8, count * 8)
        elif column.kind == FIXED and column.width == 8:
            source = column.values + (column.offset + first_row) * 8
            place = i64(column.place)
            for k in range(rows):
                row_cells = load_i64(cells + k * 8)
                if row_cells != 0:
                    store_u64(row_cells + place, load_u64(source + k * 8))
        elif column.kind == TEXT:
            _put_texts(column, pool, first_row, rows, cells, pending + i * 8, count * 8)
        else:
            for k in range(rows):
                row_cells = load_i64(cells + k * 8)
                if row_cells != 0:
                    reference = load_i64(pending + (k * count + i) * 8)
                    _put_value(column, pool, row_cells, first_row + k, reference)


@kernel
def _put_texts(
    column: Any, pool: Any, first_row: int, rows: int, cells: int, pending: int, step: int
) -> None:
    offsets = column.values + (column.offset + first_row) * 4
    place, text = i64(column.place), column.text
    start = i64(load_i32(offsets))
    for k in range(rows):
        end = i64(load_i32(offsets + k * 4 + 4))
        row_cells = load_i64(cells + k * 8)
        if row_cells != 0:
            cell = row_cells + place
            length = end - start
            free_text(pool, cell)
            store_u32(cell, np.uint32(length))
            if length > INLINE_TEXT_BYTES:
                reference = load_i64(pending + k * step)
                store_u32(cell + 4, np.uint32(reference))
                copy(pool.base + reference * UNIT_BYTES, text + start, length)
            else:
                copy_short(cell + 4, text + start, length)
        start = end


@kernel
def _put_nullable(
    column: Any, pool: Any, first_row: int, rows: int, cells: int, pending: int, step: int
) -> None:
    for k in range(rows):
        row_cells = load_i64(cells + k * 8)
        if row_cells != 0:
            _put_value(column, pool, row_cells, first_row + k, load_i64(pending + k * step))


@kernel
def _put_value(column: Any, pool: Any, cells: int, row: int, pending: int) -> None:
    """Overwrite one value, which may be null."""
    null = is_null(column, row)
    _set_null(cells, i64(column.bit), null)
    if column.kind == TEXT or column.kind == LARGE_TEXT:
        if null:
            free_text(pool, cells + i64(column.place))
            store_u32(cells + i64(column.place), np.uint32(0))
        else:
            _set_text(column, pool, cells, row, pending)
    elif not null:
        _set_value(column, cells, row)


@kernel
def _merge_column(
    column: Any,
    pool: Any,
    first_row: int,
    rows: int,
    cells: int,
    begins: int,
    pending: int,
    step: int,
) -> None:
    column.held_nulls = 1
    bit = i64(column.bit)
    for k in range(rows):
        row, row_cells = first_row + k, load_i64(cells + k * 8)
        if row_cells == 0:
            continue
        cell = row_cells + i64(column.place)
        begin = load_u8(begins + k) != 0
        if column.merge == COUNT:
            held = 0 if begin else _load_integer(cell, column.number)
            _store_integer(cell, column.number, held + 1)
            _set_null(row_cells, bit, False)
        elif begin:
            _put_value(column, pool, row_cells, row, load_i64(pending + k * step))
        elif column.merge != FIRST and not is_null(column, row):
            if held_null(row_cells, bit):
                _put_value(column, pool, row_cells, row, 0)
            else:
                width = i64(column.width)
                arrived = column.values + (column.offset + row) * width
                _combine(column.merge, column.number, cell, arrived)


@kernel
def free_row(columns: int, count: int, pool: Any, cells: int) -> None:
    """Give back the long texts of a row; its own memory is the caller's."""
    for i in range(count):
        column = column_at(columns + i * COLUMN_BYTES)
        if column.kind == TEXT or column.kind == LARGE_TEXT:
            free_text(pool, cells + i64(column.place))


@kernel
def copy_row_in(
    columns: int, count: int, stride: int, pool: Any, cells: int, frozen: int, heap: int
) -> None:
    """Copy a frozen row back; its long texts, which stand in the heap, get room of their own."""
    copy(cells, frozen, stride)
    for i in range(count):
        column = column_at(columns + i * COLUMN_BYTES)
        if column.kind != TEXT and column.kind != LARGE_TEXT:
            continue
        cell = cells + i64(column.place)
        length = i64(load_u32(cell))
        if length > INLINE_TEXT_BYTES:
            reference = allocate(pool, length)
            copy(pool.base + reference * UNIT_BYTES, heap + load_i64(cell + 8), length)
            store_u32(cell + 4, np.uint32(reference))


@kernel
def absorb_row(columns: int, count: int, pool: Any, cells: int, frozen: int, heap: int) -> None:
    """Merge an older, frozen row under the newer one at `cells`."""
    for i in range(count):
        column = column_at(columns + i * COLUMN_BYTES)
        if column.merge == LAST or column.kind == ARRIVED:
            continue
        cell = cells + i64(column.place)
        older = frozen + i64(column.place)
        bit = i64(column.bit)
        text = column.kind == TEXT or column.kind == LARGE_TEXT
        if column.merge == COUNT:
            _combine(SUM, column.number, cell, older)
        elif column.merge == FIRST:
            if text:
                free_text(pool, cell)
            _set_null(cells, bit, held_null(frozen, bit))
            copy(cell, older, i64(column.width))
            length = i64(load_u32(cell))
            if text and length > INLINE_TEXT_BYTES:
                reference = allocate(pool, length)
                copy(pool.base + reference * UNIT_BYTES, heap + load_i64(cell + 8), length)
                store_u32(cell + 4, np.uint32(reference))
        elif not held_null(frozen, bit):
            if held_null(cells, bit):
                _set_null(cells, bit, False)
                copy(cell, older, i64(column.width))
            else:
                _combine(column.merge, column.number, cell, older)
