"""One unit read without Arrow equals the same unit read with it."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.upstream.queue.opened import open_update_queue

NUMBERS: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int8(): st.integers(-128, 127),
    pa.uint16(): st.integers(0, 2**16 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.float32(): st.floats(width=32, allow_nan=False),
    pa.float64(): st.floats(allow_nan=False),
    pa.bool_(): st.booleans(),
}
TEXTS: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.string(): st.text(max_size=30),
    pa.large_string(): st.text(max_size=30),
    pa.binary(): st.binary(max_size=30),
}
TIMES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.timestamp("us", "UTC"): st.datetimes(
        dt.datetime(1900, 1, 1), dt.datetime(2200, 1, 1), timezones=st.just(dt.UTC)
    ),
    pa.timestamp("ms"): st.integers(0, 10**12),
    pa.date32(): st.dates(),
    pa.duration("us"): st.timedeltas(dt.timedelta(-9), dt.timedelta(9)),
    pa.time64("us"): st.times(),
}
ALL = NUMBERS | TEXTS | TIMES
KEYS = {t: s for t, s in ALL.items() if not pa.types.is_floating(t)}


@st.composite
def rows(draw: st.DrawFn) -> tuple[list[str], pa.RecordBatch]:
    keys = draw(st.lists(st.sampled_from(list(KEYS)), min_size=1, max_size=3))
    values = draw(st.lists(st.sampled_from(list(ALL)), max_size=5))
    count = draw(st.integers(1, 4))
    names = [f"key {i}" for i in range(len(keys))]
    columns = [
        pa.array(draw(st.lists(ALL[t], min_size=count, max_size=count)), t) for t in keys
    ] + [
        pa.array(draw(st.lists(st.none() | ALL[t], min_size=count, max_size=count)), t)
        for t in values
    ]
    order = draw(st.permutations(range(len(columns))))
    named = [*names, *(f"value {i}" for i in range(len(values)))]
    return names, pa.record_batch([columns[i] for i in order], [named[i] for i in order])


@given(rows())
def test_equals_arrow(drawn: tuple[list[str], pa.RecordBatch]) -> None:
    names, batch = drawn
    queue = open_update_queue(key=names)
    queue.put_many(batch)
    planned = queue.plan()
    assert queue.layout is not None
    assert queue.layout.row_reader is not None
    read = planned.to_pylist()
    assert "arrow" not in vars(planned.content)
    assert read == planned.to_arrow().to_pylist()
    assert [list(row) for row in read] == [planned.to_arrow().schema.names] * len(read)


@pytest.mark.parametrize("kind", [pa.decimal128(10, 2), pa.list_(pa.int64())], ids=str)
def test_other_types_are_read_by_arrow(kind: pa.DataType) -> None:
    queue = open_update_queue()
    queue.put_many(pa.table({"k": ["a"], "v": pa.array([None], kind)}))
    assert queue.layout is not None
    assert queue.layout.row_reader is None
    assert queue.plan().to_pylist()[0]["v"] is None
