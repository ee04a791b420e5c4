"""The Layout: what each column of a stream is to the queue.

It is made once, from the schema of the first batch and the configuration, and says which
columns form the key, which holds the event time, the weight and the mark of a delete, how
the others are stored and merged, and how large a row is. All that can be wrong with a
schema is found here.
"""

from __future__ import annotations

import importlib
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from upstream.config import QueueConfig
from upstream.errors import ConfigError, InputError, SchemaError
from upstream.queue import rows
from upstream.queue.raw import address_of
from upstream.queue.row_reader import RowReader

__all__ = ["UPDATES_COLUMN", "WAITING_SINCE_COLUMN", "Layout", "plain_type"]

UPDATES_COLUMN = "_updates"
WAITING_SINCE_COLUMN = "_waiting_since"
BOOKKEEPING = (
    pa.field(UPDATES_COLUMN, pa.int64()),
    pa.field(WAITING_SINCE_COLUMN, pa.timestamp("us", "UTC")),
)

MergeFunction = Callable[[pa.Array, pa.Array], pa.Array]

_MERGES = {
    "last": rows.LAST,
    "first": rows.FIRST,
    "min": rows.MINIMUM,
    "max": rows.MAXIMUM,
    "sum": rows.SUM,
    "count": rows.COUNT,
}
# The same merges for types that the kernel does not compute with.
_MERGE_FUNCTIONS: dict[str, MergeFunction] = {
    "min": pc.min_element_wise,
    "max": pc.max_element_wise,
    "sum": lambda held, arrived: pc.coalesce(pc.add(held, arrived).cast(held.type), held, arrived),
}


_NUMBERS = {
    pa.int8(): rows.I8,
    pa.int16(): rows.I16,
    pa.int32(): rows.I32,
    pa.int64(): rows.I64,
    pa.uint8(): rows.U8,
    pa.uint16(): rows.U16,
    pa.uint32(): rows.U32,
    pa.uint64(): rows.U64,
    pa.float32(): rows.F32,
    pa.float64(): rows.F64,
}


def plain_type(data_type: pa.DataType) -> pa.DataType:
    """The type in which the queue keeps and hands out values: encodings are undone."""
    if pa.types.is_dictionary(data_type):
        return plain_type(data_type.value_type)
    if pa.types.is_run_end_encoded(data_type):
        return plain_type(data_type.value_type)
    if pa.types.is_string_view(data_type):
        return pa.string()
    if pa.types.is_binary_view(data_type):
        return pa.binary()
    return data_type


def _is_time(data_type: pa.DataType) -> bool:
    return bool(
        pa.types.is_temporal(data_type)
        and not pa.types.is_interval(data_type)
        and data_type.bit_width in (32, 64)
    )


def _number(data_type: pa.DataType) -> int:
    if _is_time(data_type):
        return rows.I64 if data_type.bit_width == 64 else rows.I32
    return _NUMBERS.get(data_type, rows.NO_NUMBER)


def _is_text(data_type: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(data_type)
        or pa.types.is_binary(data_type)
        or pa.types.is_large_string(data_type)
        or pa.types.is_large_binary(data_type)
    )


def _kind(data_type: pa.DataType) -> int:
    if pa.types.is_boolean(data_type):
        return rows.BOOLEAN
    if pa.types.is_string(data_type) or pa.types.is_binary(data_type):
        return rows.TEXT
    if pa.types.is_large_string(data_type) or pa.types.is_large_binary(data_type):
        return rows.LARGE_TEXT
    if (
        isinstance(data_type, pa.BaseExtensionType)
        or pa.types.is_nested(data_type)
        or pa.types.is_interval(data_type)
    ):
        return rows.ARRIVED
    try:
        fixed = data_type.bit_width % 8 == 0 and data_type.bit_width > 0
    except ValueError:
        fixed = False
    return rows.FIXED if fixed else rows.ARRIVED


class ValueColumn(NamedTuple):
    """A column that is not part of the key, as it is handed out."""

    name: str
    type: pa.DataType
    kind: int
    width: int

    def sizes(self, count: int, text_bytes: int) -> tuple[int, ...]:
        """Bytes of the Arrow buffers behind the bitmap, for so many values."""
        if self.kind == rows.BOOLEAN:
            return ((count + 7) // 8,)
        if self.kind == rows.FIXED:
            return (count * self.width,)
        return ((count + 1) * (8 if self.kind == rows.LARGE_TEXT else 4), text_bytes)


class Layout:
    """How the columns of one stream are read, kept and handed out."""

    def __init__(self, schema: pa.Schema, config: QueueConfig) -> None:
        self.config = config
        self.arriving_schema = schema
        self.schema = pa.schema([(field.name, plain_type(field.type)) for field in schema])
        self.output_schema = pa.schema([*self.schema, *BOOKKEEPING])
        self.encoded = [i for i, field in enumerate(schema) if field.type != plain_type(field.type)]
        self.key_names = [config.key] if isinstance(config.key, str) else list(config.key)
        self._check_names()
        self._check_key()
        self.value_names = [name for name in self.schema.names if name not in self.key_names]
        self.merge_functions: dict[str, MergeFunction] = {}
        self.key_columns = self._columns(self.key_names)
        self.columns = self._columns(self.value_names)
        self._place_values()
        self.time = self._time_column()
        self.weight = self._weight_column()
        self.delete, self.delete_bytes = self._delete_column()
        self.columns_address = address_of(self.columns)
        self.key_columns_address = address_of(self.key_columns)
        self.row_reader = RowReader.of(self)

    # ---- what the kernels are told

    def _columns(self, names: list[str]) -> Any:
        columns = np.zeros(max(len(names), 1), rows.COLUMN)
        for i, name in enumerate(names):
            data_type = self.schema.field(name).type
            kind = _kind(data_type)
            columns[i]["child"] = self.schema.get_field_index(name)
            columns[i]["kind"] = kind
            columns[i]["bit"] = i
            columns[i]["number"] = _number(data_type)
            columns[i]["width"] = {
                rows.BOOLEAN: 1,
                rows.TEXT: 16,
                rows.LARGE_TEXT: 16,
                rows.ARRIVED: 8,
            }.get(kind) or data_type.bit_width // 8
        return columns

    def _place_values(self) -> None:
        """Decide on merges, then on where each value stands in a row."""
        for name, merge in self.config.merge.items():
            column = self.columns[self.value_names.index(name)]
            self._set_merge(column, name, merge)
        place = (len(self.value_names) + 7) // 8
        for column in self.columns[: len(self.value_names)]:
            column["place"] = place
            place += int(column["width"])
        self.row_bytes = max(place, 1)
        kinds = self.columns["kind"][: len(self.value_names)]
        self.has_text = bool(np.isin(kinds, [rows.TEXT, rows.LARGE_TEXT]).any())
        self.arrived_names = [
            name for name, kind in zip(self.value_names, kinds, strict=True) if kind == rows.ARRIVED
        ]
        self.value_columns = [
            ValueColumn(name, self.schema.field(name).type, int(kind), int(width))
            for name, kind, width in zip(
                self.value_names, kinds, self.columns["width"][: len(kinds)], strict=True
            )
        ]
        self.arrived_places = {
            name: int(self.columns[self.value_names.index(name)]["place"])
            for name in self.arrived_names
        }

    def _set_merge(self, column: Any, name: str, merge: str) -> None:
        data_type = self.schema.field(name).type
        column["merge"] = _MERGES.get(merge, rows.LAST)
        if merge == "count" and not pa.types.is_integer(data_type):
            raise SchemaError(
                f"merge.{name} = 'count' needs an integer column, but {name!r} is {data_type}"
            )
        if merge in ("last", "first", "count"):
            return
        if ":" in merge:
            self.merge_functions[name] = _load_function(name, merge)
        elif column["number"] != rows.NO_NUMBER and not (
            merge == "sum" and _is_time(data_type) and not pa.types.is_duration(data_type)
        ):
            return
        else:
            self.merge_functions[name] = _MERGE_FUNCTIONS[merge]
        empty = pa.array([], data_type)
        try:
            result = self.merge_functions[name](empty, empty)
        except Exception as error:
            raise SchemaError(
                f"merge.{name} = {merge!r} cannot work on column {name!r} of type {data_type}: "
                f"{error}"
            ) from error
        if getattr(result, "type", None) != data_type and merge in _MERGES:
            self.merge_functions[name] = _casting(self.merge_functions[name], data_type)
        column["merge"] = rows.LAST
        column["kind"], column["width"] = rows.ARRIVED, 8

    def _time_column(self) -> int:
        name = self.config.time
        if name is None:
            return -1
        data_type = self.schema.field(name).type
        if _number(data_type) == rows.NO_NUMBER:
            raise SchemaError(
                f"time column {name!r} has type {data_type}: expected a timestamp, a date or a "
                f"number (parse text before it enters the queue)"
            )
        return self.value_names.index(name)

    def _weight_column(self) -> int:
        name = self.config.weight_column
        if name is None:
            return -1
        data_type = self.schema.field(name).type
        if _NUMBERS.get(data_type) is None:
            raise SchemaError(f"weight_column {name!r} has type {data_type}: expected a number")
        return self.value_names.index(name)

    def _delete_column(self) -> tuple[int, Any]:
        name, value = self.config.delete_column, self.config.delete_value
        if name is None:
            return -1, np.zeros(1, np.uint8)
        data_type = self.schema.field(name).type
        if value is None:
            value = True if pa.types.is_boolean(data_type) else "D"
        try:
            scalar = pa.scalar(value, data_type)
        except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError) as error:
            raise SchemaError(
                f"delete_value {value!r} does not fit delete_column {name!r} of type {data_type}: "
                f"{error}"
            ) from error
        number = _number(data_type)
        if pa.types.is_boolean(data_type):
            encoded = bytes([bool(value)])
        elif _is_text(data_type):
            encoded = value.encode() if isinstance(value, str) else scalar.as_py()
        elif number not in (rows.NO_NUMBER, rows.F32, rows.F64) and isinstance(value, int):
            encoded = struct.pack("<" + " bhiqBHIQ"[number], value)
        else:
            raise SchemaError(
                f"delete_column {name!r} has type {data_type}: expected text, an integer or "
                f"a boolean"
            )
        return self.value_names.index(name), np.frombuffer(encoded, np.uint8).copy()

    # ---- what can be wrong

    def _check_names(self) -> None:
        names = self.schema.names
        doubled = sorted({name for name in names if names.count(name) > 1})
        if doubled:
            raise SchemaError(f"column {doubled[0]!r} occurs {names.count(doubled[0])} times")
        for field in BOOKKEEPING:
            if field.name in names:
                raise SchemaError(
                    f"column name {field.name!r} is reserved for what the queue adds to a "
                    f"batch: rename the column before it enters the queue"
                )
        config = self.config
        wanted = [("key", name) for name in self.key_names]
        wanted += [("merge", name) for name in config.merge]
        for option in ("time", "weight_column", "delete_column"):
            if getattr(config, option) is not None:
                wanted.append((option, getattr(config, option)))
        for option, name in wanted:
            if name not in names:
                raise SchemaError(
                    f"{option} names column {name!r}, which is missing: the batch has "
                    f"{', '.join(map(repr, names)) or 'no columns'}"
                )
            if option in ("weight_column", "delete_column") and name in self.key_names:
                raise SchemaError(f"{option} {name!r} is a key column: expected a value column")

    def _check_key(self) -> None:
        for name in self.key_names:
            data_type = self.schema.field(name).type
            kind = _kind(data_type)
            if kind == rows.ARRIVED or pa.types.is_floating(data_type):
                raise SchemaError(
                    f"key column {name!r} has type {data_type}: expected text, binary, integers, "
                    f"decimals, dates, times or booleans (cast it before it enters the queue)"
                )

    def conform(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch with exactly the columns of the layout, or an error that names the first
        difference."""
        names = self.schema.names
        arrived = batch.schema.names
        for name in names:
            if name not in arrived:
                raise SchemaError(
                    f"column {name!r} is missing: the queue has {', '.join(map(repr, names))}, "
                    f"the batch {', '.join(map(repr, arrived)) or 'no columns'}"
                )
        extra = [name for name in arrived if name not in names]
        if extra or len(arrived) != len(names):
            raise SchemaError(
                f"column {(extra or arrived)[0]!r} is not a column of the queue, which has "
                f"{', '.join(map(repr, names))}: a queue keeps the schema of its first batch"
            )
        columns = []
        for field in self.schema:
            column = batch.column(batch.schema.get_field_index(field.name))
            if plain_type(column.type) != field.type:
                raise SchemaError(
                    f"column {field.name!r} has type {column.type}, but {field.type} in the "
                    f"queue: a queue keeps the schema of its first batch"
                )
            columns.append(_plain(column, field.type))
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def describe_row(self, batch: pa.RecordBatch, row: int, problem: int) -> InputError:
        """The error for the first row that cannot be taken."""
        name, expected = "", ""
        if problem == NULL_KEY:
            name = next(n for n in self.key_names if batch.column(n)[row].as_py() is None)
            what = f"key column {name!r} is null"
            expected = "a key in every row (filter such rows out, or fill them)"
        elif problem == BAD_TIME:
            name = str(self.config.time)
            what = f"time column {name!r} is {batch.column(name)[row].as_py()}"
            expected = "a time in every row"
        else:
            name = str(self.config.weight_column)
            what = f"weight_column {name!r} is {batch.column(name)[row].as_py()}"
            expected = "a positive, finite number, or null for the weight that the key had"
        return InputError(f"row {row}: {what}; expected {expected}. Nothing of it was taken")

    def addresses(self) -> dict[str, int]:
        """What the kernels are told of the layout."""
        return {
            "columns": self.columns_address,
            "column_count": len(self.value_names),
            "key_columns": self.key_columns_address,
            "key_count": len(self.key_names),
            "row_bytes": self.row_bytes,
            "has_text": self.has_text,
            "time_column": self.time,
            "weight_column": self.weight,
            "delete_column": self.delete,
            "delete_value": address_of(self.delete_bytes),
            "delete_length": len(self.delete_bytes),
            "wants_rows": bool(self.arrived_names),
        }


# Why a row cannot be taken
NULL_KEY, BAD_TIME, BAD_WEIGHT = 1, 2, 3


def _plain(column: pa.Array, data_type: pa.DataType) -> pa.Array:
    if column.type == data_type:
        return column
    if pa.types.is_run_end_encoded(column.type):
        return _plain(pc.run_end_decode(column), data_type)
    if pa.types.is_dictionary(column.type):
        return _plain(column.dictionary_decode(), data_type)
    return column.cast(data_type)


def _casting(function: MergeFunction, data_type: pa.DataType) -> MergeFunction:
    return lambda held, arrived: function(held, arrived).cast(data_type)


def _load_function(column: str, name: str) -> MergeFunction:
    module_name, _, function_name = name.partition(":")
    try:
        function = getattr(importlib.import_module(module_name), function_name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"merge.{column} = {name!r} cannot be loaded: {error}") from error
    if not callable(function):
        raise ConfigError(f"merge.{column} = {name!r} is not a function, but {function!r}")
    return function  # type: ignore[no-any-return]  # checked by its first call, on no rows
