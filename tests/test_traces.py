"""Real streams through the queue and through the oracle, with equal results.

The traces lie beside the repository and not in it: set UPSTREAM_TRACES to their folder,
or have them in ../shared/data. Without them these tests are skipped.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray

from tests.oracle import Key, OracleQueue
from upstream import open_queue
from upstream.model import Batch
from upstream.queue.base import BaseQueue
from upstream.staleness.exact import staleness_at

ROOT = Path(__file__).resolve().parent.parent
FOLDER = Path(os.environ.get("UPSTREAM_TRACES", ROOT.parent / "shared" / "data"))


def trace(name: str, rows: int) -> pa.Table:
    path = FOLDER / f"{name}.parquet"
    if not path.exists():
        pytest.skip(f"no trace {path.name} in {FOLDER}; set UPSTREAM_TRACES to its folder")
    table = pq.read_table(path).slice(0, rows)
    return table.replace_schema_metadata(None)


def seconds(column: pa.ChunkedArray) -> NDArray[np.float64]:
    return np.asarray(column.cast(pa.int64()).to_numpy() / 1e6, np.float64)


def with_times_of_deletes(outages: pa.Table) -> pa.Table:
    """A delete comes without a time; it gets that of the update it deletes.

    Equal times are decided by arrival, so the delete wins over that update, and the key
    can return with any later time.
    """
    newest: dict[str, int] = {}
    times = []
    keys = outages["key"].to_pylist()
    given = outages["event_time"].cast(pa.int64()).to_pylist()
    arrivals = outages["arrival_time"].cast(pa.int64()).to_pylist()
    for key, time, arrival in zip(keys, given, arrivals, strict=True):
        times.append(newest.get(key, arrival) if time is None else time)
        newest[key] = max(times[-1], newest.get(key, times[-1]))
    column = pa.array(times, pa.int64()).cast(outages.schema.field("event_time").type)
    return outages.set_column(outages.column_names.index("event_time"), "event_time", column)


class Pair:
    """A queue and an oracle that see the same calls."""

    def __init__(self, url: str, policy: str) -> None:
        self.now = 0.0
        self.policy = policy
        self.queue: BaseQueue = open_queue(
            url,
            key="key",
            time="event_time",
            delete_column="op",
            delete_value="D",
            cost_seconds=0.01,
            clock=lambda: self.now,
            policy=policy,
            forget_deleted_after_seconds=1e9,
        )
        self.oracle = OracleQueue(
            ["key"], "event_time", delete_column="op", delete_value="D", cost=0.01
        )
        self.handed_out: dict[Key, Any] = {}

    def put(self, rows: pa.Table, arrived: NDArray[np.float64]) -> None:
        self.now = float(arrived[-1])
        counts = self.oracle.put(rows.to_pylist(), arrived.tolist())
        receipt = self.queue.put_many(rows, arrived=arrived)
        assert receipt == (counts.accepted, counts.conflated, counts.superseded, 0)

    def plan(self, limit: int) -> Batch:
        batch = self.queue.plan(limit)
        rows = batch.to_pylist()
        keys = [(row["key"],) for row in rows]
        if self.policy == "in-place":
            line = sorted(self.oracle.waiting.values(), key=lambda unit: unit.ticket)
            assert keys == [unit.key for unit in line[:limit]]
        units = self.oracle.hand_out(batch.id, keys, self.now).units
        assert batch.since.tolist() == [unit.since for unit in units]
        assert batch.arrived.tolist() == [unit.newest.arrived for unit in units]
        for row, unit in zip(rows, units, strict=True):
            assert row.pop("_updates") == len(unit.updates)
            del row["_waiting_since"]
            assert row == unit.newest.values
            assert row["event_time"] >= self.handed_out.get(unit.key, row["event_time"])
            self.handed_out[unit.key] = row["event_time"]
        return batch

    def commit(self, batch: Batch) -> None:
        self.queue.commit(batch.id)
        if batch:
            self.oracle.commit(batch.id, self.now)

    def compare(self) -> None:
        snapshot = self.queue.snapshot()
        counts = self.oracle.counts
        assert snapshot.accepted == counts.accepted
        assert snapshot.handed_out == counts.handed_out
        assert snapshot.conflated == counts.conflated
        assert snapshot.superseded == counts.superseded
        assert snapshot.waiting == len(self.oracle.waiting)
        stale = [staleness_at(key, self.now) for key in self.oracle.events().values()]
        assert snapshot.staleness_mean == pytest.approx(np.mean(stale))
        assert snapshot.staleness_max == pytest.approx(max(stale))


@pytest.fixture(params=[("memory", "whittle"), ("memory", "in-place"), ("journal", "whittle")])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    store, policy = request.param
    url = "memory:" if store == "memory" else f"journal:{tmp_path}"
    pair = Pair(url, policy)
    yield pair
    pair.queue.close()


def test_us_equity_quotes(pair: Pair) -> None:
    """Few keys, very hot: what waits is nearly always overwritten before its turn."""
    quotes = trace("us_equity_quotes", 60_000)
    arrived = np.maximum.accumulate(seconds(quotes["event_time"]))
    for start in range(0, quotes.num_rows, 500):
        part = slice(start, start + 500)
        pair.put(quotes.slice(start, 500), arrived[part])
        batch = pair.plan(7)
        if start % 1500:
            pair.commit(batch)
    pair.compare()
    for batch_id in pair.queue.planned():
        pair.commit(pair.queue.batch(batch_id))
    pair.commit(pair.plan(100))
    pair.compare()
    assert pair.queue.snapshot().staleness_max == 0


def test_pge_outages(pair: Pair) -> None:
    """Bursts, deletes, keys that return after a delete, event times that run backward."""
    outages = with_times_of_deletes(trace("pge_outages", 40_000))
    arrived = np.maximum.accumulate(seconds(outages["arrival_time"]))
    bursts = np.flatnonzero(np.diff(arrived, prepend=arrived[0] - 1))
    for start, end in zip(bursts, [*bursts[1:], len(arrived)], strict=True):
        pair.put(outages.slice(start, end - start), arrived[start:end])
        pair.commit(pair.plan(60))
    pair.compare()
    assert pair.oracle.counts.superseded > 0
    assert any(u.is_delete for updates in pair.oracle.history.values() for u in updates)
    pair.commit(pair.plan(100_000))
    pair.compare()
