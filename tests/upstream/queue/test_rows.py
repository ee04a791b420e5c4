"""Values and keys of every Arrow type come out of a queue as they went in."""

from __future__ import annotations

import datetime as dt
import itertools
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.upstream.queue.opened import moved, open_update_queue
from upstream.errors import SchemaError
from upstream.model import Receipt
from upstream.queue.layout import plain_type

DAY = dt.date(2024, 2, 29)
LONG = "a text that does not fit into a row " * 3
HUGE = "é" * 40_000


def integers(kind: pa.DataType) -> list[Any]:
    bits = kind.bit_width
    low = 0 if pa.types.is_unsigned_integer(kind) else -(2 ** (bits - 1))
    high = 2**bits - 1 if low == 0 else 2 ** (bits - 1) - 1
    return [low, None, high, 1, None, 7]


TEXTS = ["", None, LONG, "twelve bytes", None, HUGE]
BYTES = [b"", None, b"\0\xff" * 30, b"\0" * 12, None, b"thirteen byte"]
TICKS = [0, None, -(2**31), 2**31 - 1, None, 86_399]
STRUCTS = [{"a": 1, "b": "x"}, None, {"a": None, "b": None}, {"a": 3, "b": LONG}, None, {"a": 0}]
LISTS = [[], None, [1, None, 3], [4] * 100, None, [5]]

TYPES: list[tuple[pa.DataType, list[Any]]] = [
    *((kind, integers(kind)) for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64())),
    *((kind, integers(kind)) for kind in (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())),
    (pa.float16(), [np.float16(v) if v is not None else v for v in (0.5, None, -2, 1, None, 9)]),
    (pa.float32(), [0.5, None, -0.0, float("inf"), None, 1e-30]),
    (pa.float64(), [0.1, None, -0.0, float("-inf"), None, 1e300]),
    (pa.bool_(), [True, None, False, True, None, False]),
    (pa.string(), TEXTS),
    (pa.large_string(), TEXTS),
    (pa.string_view(), TEXTS),
    (pa.dictionary(pa.int8(), pa.string()), TEXTS),
    (pa.dictionary(pa.int32(), pa.int64()), integers(pa.int64())),
    (pa.run_end_encoded(pa.int32(), pa.string()), TEXTS),
    (pa.binary(), BYTES),
    (pa.large_binary(), BYTES),
    (pa.binary_view(), BYTES),
    (pa.binary(5), [b"12345", None, b"\0" * 5, b"\xff" * 5, None, b"abcde"]),
    *((pa.timestamp(unit), TICKS) for unit in ("s", "ms", "us", "ns")),
    (pa.timestamp("us", "UTC"), TICKS),
    (pa.timestamp("ns", "Europe/Zurich"), TICKS),
    (pa.timestamp("ms", "+05:30"), TICKS),
    (pa.date32(), [DAY, None, dt.date(1, 1, 1), dt.date(9999, 12, 31), None, DAY]),
    (pa.date64(), [DAY, None, dt.date(1900, 1, 1), DAY, None, DAY]),
    *((pa.time32(unit), [0, None, 1, 86_399, None, 5]) for unit in ("s", "ms")),
    *((pa.time64(unit), [0, None, 1, 86_399, None, 5]) for unit in ("us", "ns")),
    *((pa.duration(unit), TICKS) for unit in ("s", "ms", "us", "ns")),
    (pa.month_day_nano_interval(), [(1, 2, 3), None, (-1, 0, 0), (0, 0, 0), None, (9, 9, 9)]),
    (pa.decimal128(38, 10), [Decimal(v) if v else None for v in ("1.5", 0, "-7", "1e20", 0, "2")]),
    (pa.decimal256(70, 5), [Decimal(v) if v else None for v in ("1.5", 0, "-7", "1e60", 0, "2")]),
    (pa.null(), [None] * 6),
    (pa.struct([("a", pa.int64()), ("b", pa.string())]), STRUCTS),
    (pa.list_(pa.int64()), LISTS),
    (pa.large_list(pa.int64()), LISTS),
    (pa.list_(pa.int64(), 2), [[1, 2], None, [None, 0], [3, 4], None, [5, 6]]),
    (pa.map_(pa.string(), pa.int64()), [[("a", 1)], None, [], [("b", None)], None, [("c", 3)]]),
    (pa.list_(pa.struct([("x", pa.list_(pa.string()))])), [[{"x": ["y"]}], None, [], [], None, []]),
]
every_type = pytest.mark.parametrize(("kind", "given"), TYPES, ids=[str(kind) for kind, _ in TYPES])


def column_of(kind: pa.DataType, given: list[Any]) -> pa.Array:
    if pa.types.is_run_end_encoded(kind):
        return pc.run_end_encode(pa.array(given, kind.value_type))
    return pa.array(given, kind)


@every_type
@pytest.mark.parametrize("between", ["nothing", "a give-back", "a dump", "both"])
def test_values_of_every_type_come_out_as_they_went_in(
    kind: pa.DataType, given: list[Any], between: str
) -> None:
    queue = open_update_queue()
    first, second = given * 3, given[::-1] * 3
    keys = np.arange(18)
    queue.put_many(pa.RecordBatch.from_arrays([pa.array(keys), column_of(kind, first)], ["k", "v"]))
    if between in ("a dump", "both"):
        queue = moved(queue)
    if between in ("a give-back", "both"):
        queue.give_back(queue.plan().id)
    # A slice that begins amid a byte of the null bits replaces some of the values.
    whole = pa.RecordBatch.from_arrays([pa.array(keys), column_of(kind, second)], ["k", "v"])
    receipt = queue.put_many(whole.slice(5, 9))
    assert receipt == Receipt(accepted=9, conflated=9, superseded=0, shed=0)
    queue.check()
    batch = queue.plan().to_arrow()
    batch.validate(full=True)
    expected = pa.array(first[:5] + second[5:14] + first[14:], plain_type(kind))
    assert batch.column("k").to_pylist() == keys.tolist()
    assert batch.column("v").type == plain_type(kind)
    assert batch.column("v").equals(expected)
    assert batch.column("_updates").to_pylist() == [1] * 5 + [2] * 9 + [1] * 4
    assert queue.memory.used_bytes == 0, "memory stayed behind"


def test_all_types_side_by_side() -> None:
    """Rows wider than a null byte, every type beside every other."""
    queue = open_update_queue()
    names = [f"c{i}" for i in range(len(TYPES))]
    columns = [column_of(kind, given) for kind, given in TYPES]
    rows = pa.RecordBatch.from_arrays([pa.array(range(6)), *columns], ["k", *names])
    queue.put_many(rows)
    queue = moved(queue)
    batch = queue.plan().to_arrow()
    for name, (kind, content) in zip(names, TYPES, strict=True):
        assert batch.column(name).equals(pa.array(content, plain_type(kind))), kind


def test_not_a_number_stays_what_it_is() -> None:
    queue = open_update_queue()
    queue.put_many(pa.table({"k": [1, 2], "v": [float("nan"), 1.0]}))
    out = queue.plan().to_arrow().column("v").to_numpy()
    assert np.isnan(out[0])
    assert out[1] == 1.0


def test_a_table_of_many_chunks_and_an_encoding_that_changes() -> None:
    queue = open_update_queue()
    texts = [f"text {i}" for i in range(5000)]
    chunks = [pa.array(texts[i : i + 1250]) for i in range(0, 5000, 1250)]
    queue.put_many(pa.table({"k": pa.chunked_array(chunks), "v": np.arange(5000)}))
    encoded = pa.array(texts).dictionary_encode()
    queue.put_many(pa.table({"k": encoded, "v": np.arange(5000) * 2}))
    batch = queue.plan().to_arrow()
    assert batch.column("k").to_pylist() == texts
    assert batch.column("v").to_pylist() == (np.arange(5000) * 2).tolist()
    assert set(batch.column("_updates").to_pylist()) == {2}


KEYS: list[tuple[pa.DataType, list[Any]]] = [
    (kind, [value for value in given if value is not None])
    for kind, given in TYPES
    if not pa.types.is_floating(kind)
    and not pa.types.is_nested(kind)
    and not pa.types.is_null(kind)
    and not pa.types.is_interval(kind)
]


def distinct(given: list[Any]) -> list[Any]:
    return list(dict.fromkeys(given))


@pytest.mark.parametrize(("kind", "given"), KEYS, ids=[str(kind) for kind, _ in KEYS])
def test_keys_of_every_type(kind: pa.DataType, given: list[Any]) -> None:
    queue = open_update_queue()
    keys = distinct(given)
    for version in range(2):
        queue.put_many(
            pa.RecordBatch.from_arrays(
                [column_of(kind, keys), pa.array([version] * len(keys))], ["k", "v"]
            )
        )
    names = [name for name, _ in queue.staleness().stalest(10)]
    assert len(set(names)) == len(keys)
    queue = moved(queue)
    batch = queue.plan().to_arrow()
    assert batch.column("k").equals(pa.array(keys, plain_type(kind)))
    assert batch.column("v").to_pylist() == [1] * len(keys)


def test_an_interval_is_no_key() -> None:
    """It has no order and no text by which rules and people could name it."""
    keys = pa.array([(1, 2, 3)], pa.month_day_nano_interval())
    with pytest.raises(SchemaError, match="key column 'k'"):
        open_update_queue().put_many(pa.table({"k": keys}))


def test_keys_of_several_columns_of_different_types() -> None:
    """All combinations are keys of their own: lengths keep neighbours apart."""
    queue = open_update_queue(key=["a", "b", "c", "d"])
    parts: list[list[Any]] = [["", "x", "xy"], [0, -1], [True, False], ["", "yx", "y"]]
    rows = [dict(zip("abcd", key, strict=True)) for key in itertools.product(*parts)]
    schema = pa.schema(
        [("d", pa.large_string()), ("b", pa.int16()), ("c", pa.bool_()), ("a", pa.string())]
    )
    queue.put_many(pa.RecordBatch.from_pylist(rows, schema=schema))
    receipt = queue.put_many(pa.RecordBatch.from_pylist(rows[::-1], schema=schema).slice(7))
    assert receipt.conflated == len(rows) - 7
    batch = queue.plan().to_arrow()
    assert batch.schema.names[:4] == ["d", "b", "c", "a"]
    assert batch.select(schema.names).to_pylist() == [
        {name: row[name] for name in schema.names} for row in rows
    ]
