from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from simulator.traces import read_trace
from upstream.errors import InputError

TRACE = pa.table(
    {
        "symbol": ["A", "B", "A", "B", "A"],
        "side": ["bid", "bid", "ask", "bid", "bid"],
        "at": [10.0, 11.0, 11.0, 12.5, 14.0],
        "price": [1, 2, 3, 4, 5],
    }
)


def write(folder: Path, table: pa.Table, name: str = "trace.parquet") -> Path:
    file = folder / name
    if name.endswith(".csv"):
        pa.csv.write_csv(table, file)
    else:
        pq.write_table(table, file)
    return file


@pytest.mark.parametrize("name", ["trace.parquet", "trace.csv"])
def test_rows_become_updates(tmp_path: Path, name: str) -> None:
    stream = read_trace(write(tmp_path, TRACE, name), key="symbol", time="at")
    assert stream.times.tolist() == [0.0, 1.0, 1.0, 2.5, 4.0]
    assert stream.keys.tolist() == [0, 1, 0, 1, 0]
    assert stream.names == ("A", "B")
    assert stream.rates.tolist() == [3 / 5, 2 / 5]  # five updates, a gap of 1 each
    assert stream.event_times is None
    assert not stream.memoryless


def test_a_key_may_have_several_columns(tmp_path: Path) -> None:
    stream = read_trace(write(tmp_path, TRACE), key=["symbol", "side"], time="at")
    assert stream.names == ("A|bid", "B|bid", "A|ask")


def test_a_trace_can_be_replayed_faster(tmp_path: Path) -> None:
    stream = read_trace(write(tmp_path, TRACE), key="symbol", time="at", speedup=2.0)
    assert stream.times.tolist() == [0.0, 0.5, 0.5, 1.25, 2.0]
    assert stream.rate == pytest.approx(2.0)


def test_rows_arrive_in_the_order_of_their_arrival_time(tmp_path: Path) -> None:
    shuffled = TRACE.take([4, 1, 2, 3, 0])
    stream = read_trace(write(tmp_path, shuffled), key="symbol", time="at", event_time="price")
    assert stream.times.tolist() == [0.0, 1.0, 1.0, 2.5, 4.0]
    assert [stream.names[key] for key in stream.keys] == ["A", "B", "A", "B", "A"]
    assert stream.event_times is not None
    assert stream.event_times.tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_timestamps_keep_their_digits(tmp_path: Path, unit: str) -> None:
    start = dt.datetime(2024, 5, 1, 9, 30, tzinfo=dt.UTC)
    times = pa.array([start, start + dt.timedelta(seconds=3)], pa.timestamp(unit, tz="UTC"))
    file = write(tmp_path, pa.table({"key": [1, 2], "at": times}))
    assert read_trace(file, key="key", time="at").times.tolist() == [0.0, 3.0]


@pytest.mark.parametrize(
    ("change", "asked", "message"),
    [
        ({}, {"key": "ticker"}, "no column 'ticker'; it has symbol, side, at, price"),
        ({}, {"time": "side"}, "'side' holds string: expected timestamps"),
        ({"at": [1.0] * 5}, {}, "all 5 rows have the same 'at'"),
        ({"at": [1.0, 2.0, None, 3.0, 4.0]}, {}, "'at' is null in 1 rows"),
        ({"at": [1.0, 2.0, np.inf, 3.0, 4.0]}, {}, "not a finite number"),
        ({"symbol": ["A", None, "B", "C", "D"]}, {}, "the key 'symbol' is null in 1 rows"),
        ({"symbol": [[1], [2], [3], [4], [5]]}, {}, "cannot be a key"),
        ({}, {"speedup": 0.0}, "speedup must be a number above 0"),
    ],
)
def test_what_is_wrong_is_said(
    tmp_path: Path, change: dict[str, Any], asked: dict[str, Any], message: str
) -> None:
    table = pa.table({**TRACE.to_pydict(), **change})
    with pytest.raises(InputError, match=message):
        read_trace(write(tmp_path, table), **{"key": "symbol", "time": "at", **asked})


def test_a_file_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no file"):
        read_trace(tmp_path / "lost.parquet", key="symbol", time="at")
    (tmp_path / "text.parquet").write_text("not columns")
    with pytest.raises(InputError, match="cannot be read as Parquet"):
        read_trace(tmp_path / "text.parquet", key="symbol", time="at")
    with pytest.raises(InputError, match="has no rows"):
        read_trace(write(tmp_path, TRACE.slice(0, 0)), key="symbol", time="at")
