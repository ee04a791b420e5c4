"""Columns of every allowed type become whole numbers; positions count per key."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from upstream.errors import InputError
from upstream.windows import positions
from upstream.windows.axis import ticks

COLUMNS = {
    "list": [3, -1],
    "int8": np.array([3, -1], np.int8),
    "arrow int16": pa.array([3, -1], pa.int16()),
    "arrow uint64": pa.array([3, 2**63 - 1], pa.uint64()),
    "timestamp": pa.array([3, -1], pa.timestamp("us", "UTC")),
    "date32": pa.array([3, -1], pa.date32()),
    "date64": pa.array([86_400_000, -86_400_000], pa.date64()),
    "duration": pa.array([3, -1], pa.duration("ns")),
    "time32": pa.array([3, 1], pa.time32("s")),
    "sliced": pa.array([None, 3, -1], pa.timestamp("s")).slice(1),
    "chunked": pa.chunked_array([pa.array([3]), pa.array([-1])]),
    "no chunks": pa.chunked_array([], pa.timestamp("s")),
    "empty": [],
}


@pytest.mark.parametrize("name", COLUMNS)
def test_columns_become_int64(name: str) -> None:
    column = COLUMNS[name]
    result = ticks(column)
    assert result.dtype == np.int64
    plain = pa.chunked_array([column]) if isinstance(column, pa.Array) else column
    if isinstance(plain, pa.ChunkedArray):
        width = getattr(plain.type, "bit_width", 64)
        plain = plain.cast(pa.int32() if width == 32 else pa.int64()).to_pylist()
    assert result.tolist() == list(plain)


def test_the_shape_is_kept() -> None:
    assert ticks(5).shape == ()
    assert ticks([[1, 2], [3, 4]]).tolist() == [[1, 2], [3, 4]]


BAD: dict[str, Callable[[], object]] = {
    r"row 1 is null": lambda: ticks(pa.array([1, None, 3])),
    r"row 0 is null": lambda: ticks(pa.chunked_array([[None]], pa.timestamp("us"))),
    r"whole numbers or an Arrow column of times, but float64 came": lambda: ticks([1.5]),
    r"but bool came": lambda: ticks([True]),
    r"timestamps, dates or durations, but string came": lambda: ticks(pa.array(["1"])),
    r"but month_day_nano_interval came": lambda: ticks(
        pa.array([(1, 2, 3)], pa.month_day_nano_interval())
    ),
    r"64 bits wide": lambda: ticks(np.array([2**63], np.uint64)),
    r"columns of one length, but \[2, 1\] came": lambda: positions(
        [pa.array([1, 2]), pa.array([1])]
    ),
    r"one or more columns of one length, but \[\] came": lambda: positions([]),
}


@pytest.mark.parametrize("message", BAD)
def test_bad_input_says_what_was_needed_and_what_came(message: str) -> None:
    with pytest.raises(InputError, match=message):
        BAD[message]()


KEYS = st.lists(st.tuples(st.sampled_from(["a", "b", None]), st.sampled_from([1, 2, None])))


def counted(keys: list[Any]) -> list[int]:
    seen: Counter[Any] = Counter()
    result = []
    for key in keys:
        result.append(seen[key])
        seen[key] += 1
    return result


@given(KEYS, st.integers(0, 9))
def test_positions_count_the_rows_of_each_key(rows: list[tuple[Any, Any]], cut: int) -> None:
    texts = pa.array([text for text, _ in rows], pa.string())
    numbers = pa.array([number for _, number in rows], pa.int8())
    assert positions(texts).tolist() == counted([text for text, _ in rows])
    assert positions([texts, numbers]).tolist() == counted(rows)
    pieces = [texts[:cut].dictionary_encode(), texts[cut:].dictionary_encode()]
    assert positions(pa.chunked_array(pieces)).tolist() == counted([text for text, _ in rows])
