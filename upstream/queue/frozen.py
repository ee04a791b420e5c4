"""Frozen rows: what a batch of the update queue is made of, and how it becomes Arrow.

Freezing copies rows; turning them into columns waits until somebody asks, so that a
caller who takes one unit at a time does not pay for Arrow.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from upstream.queue.departures import UNIT, UNIT_BYTES_FROZEN
from upstream.queue.layout import Layout
from upstream.queue.raw import (
    address_of,
    copy,
    i64,
    kernel,
    load_i64,
    load_u32,
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
    column_at,
    held_null,
)

__all__ = ["FrozenRows", "key_texts", "keys_to_arrow"]


@kernel
def _fixed_column(
    rows: int, stride: int, count: int, place: int, width: int, bit: int, out: int, valid: int
) -> int:
    """Copy one fixed-width value per row; answers how many are null."""
    nulls = 0
    for i in range(count):
        row = rows + i * stride
        copy(out + i * width, row + place, width)
        if held_null(row, bit):
            store_u8(valid + i, np.uint8(0))
            nulls += 1
        else:
            store_u8(valid + i, np.uint8(1))
    return nulls


@kernel
def _text_offsets(
    rows: int, stride: int, count: int, place: int, bit: int, large: bool, out: int, valid: int
) -> int:
    """Write the offsets of one text per row; answers the bytes of all of them."""
    total = 0
    for i in range(count):
        row = rows + i * stride
        if large:
            store_i64(out + i * 8, total)
        else:
            store_i32(out + i * 4, np.int32(total))
        null = held_null(row, bit)
        store_u8(valid + i, np.uint8(0 if null else 1))
        if not null:
            total += i64(load_u32(row + place))
    if large:
        store_i64(out + count * 8, total)
    else:
        store_i32(out + count * 4, np.int32(total))
    return total


@kernel
def _texts(rows: int, stride: int, count: int, place: int, bit: int, heap: int, out: int) -> None:
    for i in range(count):
        row = rows + i * stride
        if held_null(row, bit):
            continue
        length = i64(load_u32(row + place))
        if length > INLINE_TEXT_BYTES:
            copy(out, heap + load_i64(row + place + 8), length)
        else:
            copy(out, row + place + 4, length)
        out += length


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
    keys: NDArray[np.uint8],
    starts: NDArray[np.int64],
    lengths: NDArray[np.int64],
) -> list[pa.Array]:
    """The key columns of keys whose bytes begin at `starts`."""
    starts, lengths = np.ascontiguousarray(starts), np.ascontiguousarray(lengths)
    count = len(starts)
    arrays = []
    for number, name in enumerate(layout.key_names):
        data_type = layout.schema.field(name).type
        column = layout.key_columns[number]
        where = (
            address_of(layout.key_columns),
            len(layout.key_names),
            number,
            address_of(keys),
            address_of(starts),
            address_of(lengths),
            count,
        )
        if column["kind"] in (FIXED, BOOLEAN):
            values = np.empty(count * int(column["width"]), np.uint8)
            _key_values(*where, address_of(values))
            arrays.append(_fixed_array(data_type, values, count, None))
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


def _bitmap(valid: NDArray[np.uint8]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(valid, bitorder="little"))


def _fixed_array(
    data_type: pa.DataType, values: NDArray[np.uint8], count: int, validity: pa.Buffer | None
) -> pa.Array:
    if pa.types.is_boolean(data_type):
        values = np.packbits(values, bitorder="little")
    return pa.Array.from_buffers(data_type, count, [validity, pa.py_buffer(values)])


class FrozenRows:
    """The units of one batch: immutable, two buffers and the arrived values."""

    def __init__(
        self,
        layout: Layout,
        rows: NDArray[np.uint8],
        heap: NDArray[np.uint8],
        arrived_values: dict[str, pa.Array],
    ) -> None:
        self._layout = layout
        self.stride = UNIT_BYTES_FROZEN + layout.row_bytes
        self.rows = rows
        self.heap = heap
        self.arrived_values = arrived_values
        self.count = len(rows) // self.stride

    def __len__(self) -> int:
        return self.count

    @cached_property
    def units(self) -> NDArray[Any]:
        """The UNIT records."""
        strided = np.lib.stride_tricks.as_strided(
            self.rows, (self.count, UNIT_BYTES_FROZEN), (self.stride, 1)
        )
        return np.ascontiguousarray(strided).view(UNIT).reshape(self.count)

    @property
    def nbytes(self) -> int:
        """The memory that the batch holds."""
        return (
            self.rows.nbytes
            + self.heap.nbytes
            + sum(values.nbytes for values in self.arrived_values.values())
        )

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
        keys = keys_to_arrow(
            layout, self.heap, units["key_start"], units["key_length"].astype(np.int64)
        )
        columns = dict(zip(layout.key_names, keys, strict=True))
        for i, name in enumerate(layout.value_names):
            columns[name] = self._column(layout.columns[i], name)
        since = np.rint(units["since"] * 1e6).astype(np.int64)
        arrays = [columns[name] for name in layout.schema.names]
        arrays.append(pa.array(self.updates))
        arrays.append(pa.array(since).cast(layout.output_schema.field(-1).type))
        return pa.RecordBatch.from_arrays(arrays, schema=layout.output_schema)

    def _column(self, column: Any, name: str) -> pa.Array:
        data_type = self._layout.schema.field(name).type
        if column["kind"] == ARRIVED:
            return self.arrived_values[name]
        count, place, bit = self.count, int(column["place"]), int(column["bit"])
        rows = address_of(self.rows) + UNIT_BYTES_FROZEN
        valid = np.empty(count, np.uint8)
        if column["kind"] in (FIXED, BOOLEAN):
            width = int(column["width"])
            values = np.empty(count * width, np.uint8)
            nulls = _fixed_column(
                rows, self.stride, count, place, width, bit, address_of(values), address_of(valid)
            )
            return _fixed_array(data_type, values, count, _bitmap(valid) if nulls else None)
        large = bool(column["kind"] == LARGE_TEXT)
        offsets = np.empty(count + 1, np.int64 if large else np.int32)
        where = (rows, self.stride, count, place, bit)
        size = _text_offsets(*where, large, address_of(offsets), address_of(valid))
        text = np.empty(size, np.uint8)
        _texts(*where, address_of(self.heap), address_of(text))
        validity = None if valid.all() else _bitmap(valid)
        buffers = [validity, pa.py_buffer(offsets), pa.py_buffer(text)]
        return pa.Array.from_buffers(data_type, count, buffers)

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
        rows = np.frombuffer(buffers[0], np.uint8)
        heap = np.frombuffer(buffers[1], np.uint8)
        arrived: dict[str, pa.Array] = {}
        if len(buffers) > 2:
            table = pa.ipc.open_stream(pa.py_buffer(buffers[2])).read_all()
            arrived = {name: table.column(name).combine_chunks() for name in table.schema.names}
        return cls(layout, rows, heap, arrived)
