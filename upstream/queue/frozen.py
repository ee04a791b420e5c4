"""Frozen rows: what a batch of the update queue is made of, and how it becomes Arrow.

Freezing copies rows; turning them into columns waits until somebody asks. A caller who
takes one unit at a time does not pay for Arrow: see `upstream.queue.row_reader`.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from upstream.queue.departures import UNIT, UNIT_BYTES_FROZEN, unit_at
from upstream.queue.layout import BOOKKEEPING, Layout
from upstream.queue.raw import (
    address_of,
    clear,
    copy,
    copy_short,
    i64,
    inlined,
    kernel,
    load_i64,
    load_u8,
    load_u32,
    record_at,
    store_i32,
    store_i64,
    store_u8,
)
from upstream.queue.rows import (
    ARRIVED,
    BOOLEAN,
    COLUMN_BYTES,
    FIXED,
    INLINE_TEXT_BYTES,
    LARGE_TEXT,
    LAST,
    TEXT,
    column_at,
    held_null,
)

__all__ = ["FrozenRows", "key_texts", "keys_to_arrow", "values_to_arrow"]


OUT = np.dtype(
    [
        ("nulls", "i8"),
        ("text_bytes", "i8"),
        # Addresses
        ("validity", "i8"),  # 0: nothing is null
        ("values", "i8"),  # or the offsets of text
        ("text", "i8"),
    ]
)
OUT_BYTES = OUT.itemsize
out_at = record_at(OUT)


@kernel
def _measure(
    columns: int, column_count: int, rows: int, stride: int, count: int, outs: int
) -> None:
    """Per column, how many values are null and how long the texts are altogether."""
    for j in range(column_count):
        column = column_at(columns + j * COLUMN_BYTES)
        out = out_at(outs + j * OUT_BYTES)
        text = column.kind == TEXT or column.kind == LARGE_TEXT
        if not text and column.held_nulls == 0 and column.merge == LAST:
            continue
        bit, place = i64(column.bit), i64(column.place)
        for i in range(count):
            row = rows + i * stride
            if held_null(row, bit):
                out.nulls += 1
            elif text:
                out.text_bytes += i64(load_u32(row + place))


@kernel
def _write(
    columns: int, column_count: int, rows: int, stride: int, count: int, heap: int, outs: int
) -> None:
    """Turn rows into columns, each in the place that was made for it."""
    for j in range(column_count):
        column = column_at(columns + j * COLUMN_BYTES)
        out = out_at(outs + j * OUT_BYTES)
        bit, first = i64(column.bit), rows + i64(column.place)
        if out.validity != 0:
            clear(out.validity, (count + 7) // 8)
            for i in range(count):
                if not held_null(rows + i * stride, bit):
                    _set_bit(out.validity, i)
        if column.kind == BOOLEAN:
            clear(out.values, (count + 7) // 8)
            for i in range(count):
                if load_u8(first + i * stride) != 0:
                    _set_bit(out.values, i)
        elif column.kind == FIXED and column.width == 8:
            for i in range(count):
                store_i64(out.values + i * 8, load_i64(first + i * stride))
        elif column.kind == FIXED:
            width = i64(column.width)
            for i in range(count):
                copy(out.values + i * width, first + i * stride, width)
        elif column.kind != ARRIVED:
            _write_texts(column, out, rows, stride, count, heap)


@inlined
def _set_bit(bitmap: int, at: int) -> None:
    address = bitmap + (at >> 3)
    store_u8(address, load_u8(address) | np.uint8(1 << (at & 7)))


@kernel
def _write_texts(column: Any, out: Any, rows: int, stride: int, count: int, heap: int) -> None:
    bit, place = i64(column.bit), i64(column.place)
    large = column.kind == LARGE_TEXT
    total = 0
    for i in range(count):
        row = rows + i * stride
        _write_offset(out, i, total, large)
        if held_null(row, bit):
            continue
        length = i64(load_u32(row + place))
        if length > INLINE_TEXT_BYTES:
            copy(out.text + total, heap + load_i64(row + place + 8), length)
        else:
            copy_short(out.text + total, row + place + 4, length)
        total += length
    _write_offset(out, count, total, large)


@inlined
def _write_offset(out: Any, at: int, offset: int, large: bool) -> None:
    if large:
        store_i64(out.values + at * 8, offset)
    else:
        store_i32(out.values + at * 4, np.int32(offset))


@kernel
def _write_bookkeeping(units: int, stride: int, count: int, updates: int, since: int) -> None:
    for i in range(count):
        unit = unit_at(units + i * stride)
        store_i64(updates + i * 8, i64(unit.updates))
        store_i64(since + i * 8, i64(np.rint(unit.since * 1e6)))


@kernel
def _key_field(
    columns: int, count: int, wanted: int, keys: int, starts: int, lengths: int, at: int
) -> tuple[int, int]:
    """Address and length of one column's part of a key."""
    address = keys + load_i64(starts + at * 8)
    if count == 1:
        return address, load_i64(lengths + at * 8)
    for i in range(count):
        column = column_at(columns + i * COLUMN_BYTES)
        if column.kind == FIXED or column.kind == BOOLEAN:
            length = i64(column.width)
        else:
            length = i64(load_u32(address))
            address += 4
        if i == wanted:
            break
        address += length
    return address, length


@kernel
def _key_offsets(
    columns: int,
    count: int,
    wanted: int,
    keys: int,
    starts: int,
    lengths: int,
    rows: int,
    out: int,
) -> None:
    total = 0
    for i in range(rows):
        store_i64(out + i * 8, total)
        _, length = _key_field(columns, count, wanted, keys, starts, lengths, i)
        total += length
    store_i64(out + rows * 8, total)


@kernel
def _key_values(
    columns: int,
    count: int,
    wanted: int,
    keys: int,
    starts: int,
    lengths: int,
    rows: int,
    out: int,
) -> None:
    for i in range(rows):
        address, length = _key_field(columns, count, wanted, keys, starts, lengths, i)
        copy(out, address, length)
        out += length


def keys_to_arrow(
    layout: Layout,
    keys: pa.Buffer,
    starts: NDArray[np.int64],
    lengths: NDArray[Any],
) -> list[pa.Array]:
    """The key columns of keys whose bytes begin at `starts`."""
    starts = np.ascontiguousarray(starts)
    lengths = lengths.astype(np.int64)
    count = len(starts)
    arrays = []
    for number, name in enumerate(layout.key_names):
        data_type = layout.schema.field(name).type
        column = layout.key_columns[number]
        where = (
            layout.key_columns_address,
            len(layout.key_names),
            number,
            keys.address,
            address_of(starts),
            address_of(lengths),
            count,
        )
        if column["kind"] in (FIXED, BOOLEAN):
            values = np.empty(count * int(column["width"]), np.uint8)
            _key_values(*where, address_of(values))
            if column["kind"] == BOOLEAN:
                values = np.packbits(values, bitorder="little")
            buffers = [None, pa.py_buffer(values)]
        else:
            offsets = np.empty(count + 1, np.int64)
            _key_offsets(*where, address_of(offsets))
            values = np.empty(int(offsets[-1]), np.uint8)
            _key_values(*where, address_of(values))
            if column["kind"] != LARGE_TEXT:
                offsets = offsets.astype(np.int32)
            buffers = [None, pa.py_buffer(offsets), pa.py_buffer(values)]
        arrays.append(pa.Array.from_buffers(data_type, count, buffers))
    return arrays


def values_to_arrow(
    layout: Layout, rows: int, stride: int, count: int, heap: pa.Buffer
) -> list[pa.Array | None]:
    """The value columns of `count` frozen rows, the first at address `rows`; None for columns
    whose values stay in Arrow arrays."""
    columns = layout.value_columns
    outs = np.zeros(len(columns), OUT)
    where = (layout.columns_address, len(columns), rows, stride, count)
    _measure(*where, address_of(outs))
    made: list[list[pa.Buffer | None]] = []
    for column, out in zip(columns, outs, strict=True):
        if column.kind == ARRIVED:
            made.append([])
            continue
        nulls, text_bytes = int(out["nulls"]), int(out["text_bytes"])
        buffers = [pa.allocate_buffer((count + 7) // 8) if nulls else None]
        buffers += [pa.allocate_buffer(size) for size in column.sizes(count, text_bytes)]
        for name, buffer in zip(("validity", "values", "text"), buffers, strict=False):
            out[name] = buffer.address if buffer is not None else 0
        made.append(buffers)
    _write(*where, heap.address, address_of(outs))
    return [
        pa.Array.from_buffers(column.type, count, buffers) if buffers else None
        for column, buffers in zip(columns, made, strict=True)
    ]


def key_texts(columns: list[pa.Array]) -> pa.Array:
    """Keys as text: as rules match them and as people read them; columns joined by "|"."""
    texts = []
    for column in columns:
        if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
            column = pa.array([value.decode(errors="replace") for value in column.to_pylist()])
        elif pa.types.is_fixed_size_binary(column.type):
            column = pa.array([value.hex() for value in column.to_pylist()], pa.string())
        texts.append(column.cast(pa.string()))
    return texts[0] if len(texts) == 1 else pc.binary_join_element_wise(*texts, "|")


# So few units are read one by one; Arrow would cost more than the reading.
FEW_UNITS = 16


class FrozenRows:
    """The units of one batch: immutable, two buffers and the arrived values.

    A frozen row is a UNIT and the row itself; `heap` has the keys and the long texts.
    """

    def __init__(
        self,
        layout: Layout,
        rows: pa.Buffer,
        heap: pa.Buffer,
        arrived_values: dict[str, pa.Array],
    ) -> None:
        self._layout = layout
        self.stride = UNIT_BYTES_FROZEN + layout.row_bytes
        self.rows = rows
        self.heap = heap
        self.arrived_values = arrived_values
        self.count = rows.size // self.stride

    def __len__(self) -> int:
        return self.count

    @cached_property
    def units(self) -> NDArray[Any]:
        """The UNIT records."""
        whole = np.frombuffer(self.rows, np.uint8).reshape(self.count, self.stride)
        units = np.ascontiguousarray(whole[:, :UNIT_BYTES_FROZEN])
        return units.view(UNIT).reshape(self.count)

    @property
    def nbytes(self) -> int:
        """The memory that the batch holds."""
        size: int = self.rows.size + self.heap.size
        for values in self.arrived_values.values():
            size += values.nbytes
        return size

    @property
    def since(self) -> NDArray[np.float64]:
        return np.asarray(self.units["since"], np.float64)

    @property
    def arrived(self) -> NDArray[np.float64]:
        return np.asarray(self.units["arrived"], np.float64)

    @property
    def updates(self) -> NDArray[np.int64]:
        return self.units["updates"].astype(np.int64)

    @cached_property
    def arrow(self) -> pa.RecordBatch:
        """The units as columns: the stream's own, then the bookkeeping."""
        layout, units = self._layout, self.units
        keys = keys_to_arrow(layout, self.heap, units["key_start"], units["key_length"])
        columns = dict(zip(layout.key_names, keys, strict=True))
        first = self.rows.address + UNIT_BYTES_FROZEN
        values = values_to_arrow(layout, first, self.stride, self.count, self.heap)
        columns.update(zip(layout.value_names, values, strict=True))
        columns.update(self.arrived_values)
        arrays = [columns[name] for name in layout.schema.names]
        arrays += self._bookkeeping()
        return pa.RecordBatch.from_arrays(arrays, schema=layout.output_schema)

    def _bookkeeping(self) -> list[pa.Array]:
        count = self.count
        updates, since = pa.allocate_buffer(count * 8), pa.allocate_buffer(count * 8)
        _write_bookkeeping(self.rows.address, self.stride, count, updates.address, since.address)
        return [
            pa.Array.from_buffers(field.type, count, [None, buffer])
            for field, buffer in zip(BOOKKEEPING, (updates, since), strict=True)
        ]

    def pylist(self) -> list[dict[str, Any]]:
        """The units as dictionaries."""
        reader = self._layout.row_reader
        if reader is None or self.count > FEW_UNITS or "arrow" in self.__dict__:
            return self.arrow.to_pylist()
        return [reader.read(self.rows, self.heap, i * self.stride) for i in range(self.count)]

    def to_parts(self) -> tuple[dict[str, Any], list[Any]]:
        """The batch as buffers, to be taken in by `from_parts`."""
        buffers: list[Any] = [self.rows, self.heap]
        if self.arrived_values:
            values = pa.RecordBatch.from_pydict(self.arrived_values)
            with pa.BufferOutputStream() as sink:
                with pa.ipc.new_stream(sink, values.schema) as writer:
                    writer.write_batch(values)
                buffers.append(sink.getvalue())
        return {}, buffers

    @classmethod
    def from_parts(cls, layout: Layout, buffers: list[Any]) -> FrozenRows:
        rows, heap = map(pa.py_buffer, buffers[:2])
        arrived: dict[str, pa.Array] = {}
        if len(buffers) > 2:
            table = pa.ipc.open_stream(pa.py_buffer(buffers[2])).read_all()
            arrived = {name: table.column(name).combine_chunks() for name in table.schema.names}
        return cls(layout, rows, heap, arrived)
