"""Reading one unit as a dictionary, without Arrow, which would cost more than the reading.

It is for those who take one unit at a time: `plan(1)` and the asyncio queue. Types that a
row holds as plain numbers or text can be read so; with any other, Arrow is asked.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from upstream.queue import rows

if TYPE_CHECKING:
    from upstream.queue.layout import Layout

__all__ = ["RowReader"]

# The fields of a UNIT that a reader needs: since, key_start, key_length, updates
_UNIT = struct.Struct("<d24xqI4xI12x")
_LENGTH = struct.Struct("<I")
_HEAP_PLACE = struct.Struct("<q")
_NUMBERS = {
    rows.I8: "b",
    rows.I16: "h",
    rows.I32: "i",
    rows.I64: "q",
    rows.U8: "B",
    rows.U16: "H",
    rows.U32: "I",
    rows.U64: "Q",
    rows.F32: "f",
    rows.F64: "d",
}

Decode = Callable[[Any], Any]


class _Field:
    """How the bytes of one column become a value."""

    def __init__(self, column: Any, data_type: pa.DataType) -> None:
        self.place, self.bit = int(column["place"]), int(column["bit"])
        self.is_text = column["kind"] in (rows.TEXT, rows.LARGE_TEXT)
        code = "?" if column["kind"] == rows.BOOLEAN else _NUMBERS.get(int(column["number"]), "")
        self.unpack = struct.Struct("<" + code).unpack_from
        self.width = int(column["width"])
        self.known = self.is_text or bool(code)
        self.decode: Decode | None = None
        if pa.types.is_string(data_type) or pa.types.is_large_string(data_type):
            self.decode = lambda text: str(text, "utf-8")
        elif self.is_text:
            self.decode = bytes
        elif pa.types.is_temporal(data_type):
            self.decode = lambda ticks: pa.scalar(ticks, data_type).as_py()

    def in_row(self, row: memoryview, at: int, heap: memoryview) -> Any:
        """The value in the row that begins at `at`."""
        if row[at + (self.bit >> 3)] >> (self.bit & 7) & 1:
            return None
        at += self.place
        if not self.is_text:
            return self._number(row, at)
        (length,) = _LENGTH.unpack_from(row, at)
        if length > rows.INLINE_TEXT_BYTES:
            (start,) = _HEAP_PLACE.unpack_from(row, at + 8)
            text = heap[start : start + length]
        else:
            text = row[at + 4 : at + 4 + length]
        return text if self.decode is None else self.decode(text)

    def in_key(self, key: memoryview, at: int, *, alone: bool) -> tuple[Any, int]:
        """The value in a key's bytes, and where the next one begins."""
        if not self.is_text:
            return self._number(key, at), at + self.width
        end = len(key)
        if not alone:
            (length,) = _LENGTH.unpack_from(key, at)
            at, end = at + 4, at + 4 + length
        text = key[at:end]
        return (text if self.decode is None else self.decode(text)), end

    def _number(self, source: memoryview, at: int) -> Any:
        (number,) = self.unpack(source, at)
        return number if self.decode is None else self.decode(number)


class RowReader:
    """Reads the units of one stream."""

    def __init__(self, layout: Layout, keys: list[_Field], values: list[_Field]) -> None:
        self._names = layout.schema.names
        self._extra = layout.output_schema.names[len(self._names) :]
        self._since_type = layout.output_schema.field(-1).type
        names = [*layout.key_names, *layout.value_names]
        self._order = [names.index(name) for name in self._names]
        self._keys, self._values = keys, values

    @classmethod
    def of(cls, layout: Layout) -> RowReader | None:
        """The reader for a layout, if it has no column that must be read by Arrow."""
        keys, values = (
            [
                _Field(column, layout.schema.field(name).type)
                for column, name in zip(columns[: len(names)], names, strict=True)
            ]
            for columns, names in (
                (layout.key_columns, layout.key_names),
                (layout.columns, layout.value_names),
            )
        )
        if layout.arrived_names or not all(field.known for field in keys + values):
            return None
        return cls(layout, keys, values)

    def read(self, frozen: pa.Buffer, heap: pa.Buffer, at: int) -> dict[str, Any]:
        """The unit that begins at `at`."""
        row, texts = memoryview(frozen), memoryview(heap)
        since, key_start, key_length, updates = _UNIT.unpack_from(row, at)
        key, place = texts[key_start : key_start + key_length], 0
        found = []
        for field in self._keys:
            value, place = field.in_key(key, place, alone=len(self._keys) == 1)
            found.append(value)
        at += _UNIT.size
        found += [field.in_row(row, at, texts) for field in self._values]
        unit = dict(zip(self._names, [found[i] for i in self._order], strict=True))
        began = pa.scalar(round(since * 1e6), self._since_type).as_py()
        unit.update(zip(self._extra, (updates, began), strict=True))
        return unit
