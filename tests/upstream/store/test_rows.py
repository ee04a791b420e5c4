"""Rows of any schema come back from a file as they went in."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from upstream.store.rows import RowFormat, decode_schema, encode_schema

TEXT = pa.array(["a", None, "", "längerer Text", "b" * 300])
COLUMNS: dict[str, Any] = {
    "numbers": pa.array([1, 2, None, -(2**63), 2**63 - 1], pa.int64()),
    "booleans": pa.array([True, False, None, True, True]),
    "text": TEXT,
    "large text": TEXT.cast(pa.large_string()),
    "view": TEXT.cast(pa.string_view()),
    "dictionary": TEXT.dictionary_encode(),
    "times": pa.array([0, 1, None, -1, 2**60], pa.timestamp("us", "UTC")),
    "decimals": pa.array([Decimal("1.50"), None] + [Decimal("-0.01")] * 3, pa.decimal128(9, 2)),
    "lists": pa.array([[1, 2], [], None, [None], [3]]),
    "structs": pa.array([{"a": 1, "b": ["x"]}, None, {"a": None, "b": []}] + [{"a": 2}] * 2),
    "dictionary in a list": pa.array([["x"], [], None, ["y", "x"], ["z"]]).cast(
        pa.list_(pa.dictionary(pa.int32(), pa.string()))
    ),
    "nulls": pa.nulls(5),
}


def there_and_back(rows: pa.RecordBatch, through: RowFormat) -> pa.RecordBatch:
    data = b"".join(bytes(memoryview(piece)) for piece in through.encode(rows))
    schema = decode_schema(memoryview(encode_schema(rows.schema)))
    return RowFormat(schema).decode(memoryview(data))


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("times", [1, 20_000], ids=["small", "large"])
def test_every_type_comes_back(name: str, times: int) -> None:
    column = pa.concat_arrays([COLUMNS[name]] * times)
    rows = pa.record_batch({name: column})
    through = RowFormat(rows.schema)
    for part in (rows, rows.slice(3), rows.slice(1, 2), rows.slice(2, 0), rows):
        found = there_and_back(part, through)
        found.validate(full=True)
        assert found.schema.equals(rows.schema, check_metadata=True)
        assert found.equals(part)


def test_a_slice_brings_nothing_but_itself() -> None:
    rows = pa.record_batch({"text": ["x" * 100] * 100_000})
    through = RowFormat(rows.schema)
    for part in (rows.slice(50_000, 3), rows.slice(50_000, 20_000)):
        size = sum(memoryview(piece).nbytes for piece in through.encode(part))
        assert size < 120 * len(part) + 1000


def test_large_buffers_are_not_copied() -> None:
    rows = pa.record_batch({"numbers": pa.array(range(100_000))})
    pieces: list[Any] = RowFormat(rows.schema).encode(rows)
    address = rows.column(0).buffers()[1].address
    assert address in [getattr(piece, "address", None) for piece in pieces]


def test_metadata_of_the_schema_comes_back() -> None:
    schema = pa.schema([pa.field("a", pa.int64(), metadata={"unit": "m"})], metadata={"k": "v"})
    found = decode_schema(memoryview(encode_schema(schema)))
    assert found.equals(schema, check_metadata=True)
