"""The append queue: every update waits, first in, first out. The baseline.

`append` hands out all updates in the order in which they arrived. Nothing is conflated,
and nothing superseded: event times are kept but not looked at, so an update that arrives
late is handed out late. Under overload the queue grows until the memory limit.

`random-drop` is an append queue that drops arrivals at random, so that the rest fits what
the consumer can do: `drop_probability`, or with "auto" as many as keep the load at 95 %
of the measured capacity. A dropped update counts as shed, and its key is stale from its
arrival until something newer is delivered.

With `on_full = "shed"` the updates that find no room are dropped: the newest ones, where
an update queue would lose the least valuable key.

A batch that is given back returns to its place in the line. If a later batch was handed
out meanwhile, its updates come after newer ones of their keys: whoever needs the order
has one batch in flight at a time. Keys are remembered until the queue is closed.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from upstream.config import QueueConfig
from upstream.errors import InputError
from upstream.model import Batch, Receipt
from upstream.queue.append_keys import AppendKeys, Identified
from upstream.queue.append_ledger import ARRIVAL, AppendLedger
from upstream.queue.append_rows import CHUNK_BYTES, AppendRows, Chunk, joined, own_memory
from upstream.queue.base import BaseQueue, Planned
from upstream.queue.layout import BAD_TIME, BAD_WEIGHT, NULL_KEY, Layout
from upstream.queue.log import FreedKind
from upstream.queue.statistics import StatisticsMonitor
from upstream.staleness.view import StalenessView

__all__ = ["AppendQueue", "uniform"]

# The share of the measured capacity that "auto" fills.
TARGET_LOAD = 0.95
# Neighbours in the line with fewer rows than this together are joined.
SMALL_CHUNK_ROWS = 4096
PLACE_BYTES = 16  # beside its columns, a waiting row has an arrival time and a number


class AppendQueue(BaseQueue):
    """Keeps every update, or a random share of them, in the order of arrival."""

    def __init__(self, config: QueueConfig, clock: Callable[[], float] = time.time) -> None:
        super().__init__(config, clock)
        cost = config.cost_seconds
        if isinstance(cost, dict):
            cost = cost.get("default")
        self.monitor = StatisticsMonitor(
            np.full(256, 1e-6),
            classes=1,
            given={} if cost is None else {0: cost},
            started=self._now,
        )
        self.ledger = AppendLedger(self._now)
        self.keys = AppendKeys(config)
        self._line: deque[Chunk] = deque()
        self._waiting = 0
        self._line_bytes = 0
        self._batch_bytes = 0
        self._accepted = self._handed_out = self._lost = 0
        self._dropped = np.empty(0, np.uint32)  # rows of the latest `_take`
        self._replayed = 0  # rows of the latest `_take_unlimited`

    def _bound(self, layout: Layout) -> None:
        self.keys.bind(layout)

    # ---- arrive

    def _check(self, rows: pa.RecordBatch) -> None:
        assert self.layout is not None
        bad = [(_first_null(rows.column(name)), NULL_KEY) for name in self.layout.key_names]
        if self.config.time is not None:
            bad.append((_first_null(rows.column(self.config.time)), BAD_TIME))
        if self.config.weight_column is not None:
            weights = pc.cast(rows.column(self.config.weight_column), pa.float64())
            wrong = pc.invert(pc.and_(pc.greater(weights, 0.0), pc.is_finite(weights)))
            bad.append((pc.index(wrong, True).as_py(), BAD_WEIGHT))
        found = min((place for place in bad if place[0] >= 0), default=None)
        if found is not None:
            raise self.layout.describe_row(rows, *found)

    def _put(
        self, rows: pa.RecordBatch, arrived: NDArray[np.float64] | None, before: int
    ) -> Iterator[Receipt]:
        yield from super()._put(rows, arrived, before)
        self._log_dropped()

    def _make_room(self, patience: Any, accepted: int) -> Any:
        self._log_dropped()
        return super()._make_room(patience, accepted)

    def _log_dropped(self) -> None:
        """Write down which rows of the latest put were dropped, before anything follows it."""
        dropped, self._dropped = self._dropped, np.empty(0, np.uint32)
        if len(dropped):
            self.log.freed("shed", dropped, self._now)

    def _take(self, rows: pa.RecordBatch, arrived: NDArray[np.float64] | None, now: float) -> int:
        kept = self._drawn(len(rows))
        found = self.keys.identify(rows)
        fitting = self._fitting(rows, kept, found)
        known = self.keys.add(found, rows.slice(0, fitting))
        if fitting < len(rows) and self.config.on_full == "shed":
            kept[fitting:] = False  # keys that were never heard of stay unknown
            fitting = len(rows)
        times = np.full(fitting, now) if arrived is None else arrived[:fitting]
        self._admit(rows.slice(0, fitting), found.ids[:fitting], known, times, kept[:fitting])
        self._dropped = np.flatnonzero(~kept[:fitting]).astype(np.uint32)
        return fitting

    def _take_unlimited(
        self, rows: pa.RecordBatch, arrived: NDArray[np.float64] | None, now: float
    ) -> None:
        times = np.full(len(rows), now) if arrived is None else arrived
        found = self.keys.identify(rows)
        known = self.keys.add(found, rows)
        self._admit(rows, found.ids, known, times, np.ones(len(rows), np.bool_))
        self._replayed = len(rows)
        self.monitor.arrived(len(rows))

    def _admit(
        self,
        rows: pa.RecordBatch,
        ids: NDArray[np.int64],
        known: int,
        times: NDArray[np.float64],
        kept: NDArray[np.bool_],
    ) -> None:
        self.ledger.know(known)
        noted = ids < known
        numbers = self.ledger.arrive(ids[noted], times[noted], kept[noted])
        self._accepted += len(rows)
        self._lost += len(rows) - len(numbers)
        if len(numbers):
            chunk = Chunk(own_memory(rows, kept), times[kept], numbers)
            self._waiting += len(numbers)
            self._line_bytes += chunk.nbytes
            self._append(chunk)

    def _append(self, chunk: Chunk) -> None:
        """Put a chunk at the end of the line, joined with small ones before it."""
        line, small = self._line, [chunk]
        rows = len(chunk.numbers)
        while line and len(line[-1].numbers) <= rows and 2 * rows <= SMALL_CHUNK_ROWS:
            small.append(line.pop())
            rows += len(small[-1].numbers)
        line.append(joined(small[::-1]))
        self._line_bytes += line[-1].nbytes - sum(part.nbytes for part in small)

    def _drawn(self, rows: int) -> NDArray[np.bool_]:
        """Which of the next rows are kept: a fixed draw for each place in the stream."""
        keep = self._keep_probability()
        if keep >= 1.0:
            return np.ones(rows, np.bool_)
        places = np.arange(self._accepted, self._accepted + rows, dtype=np.uint64)
        return uniform(places, self.config.seed) < keep

    def _keep_probability(self) -> float:
        if self.config.policy != "random-drop":
            return 1.0
        if self.config.drop_probability != "auto":
            return 1.0 - self.config.drop_probability
        load = self.monitor.arrival_rate * self.monitor.cost_seconds
        return TARGET_LOAD / load if load > TARGET_LOAD else 1.0

    # ---- memory

    @property
    def memory_bytes(self) -> int:
        """Memory that counts against the limit."""
        return (
            self._line_bytes
            + self._batch_bytes
            + self.ledger.nbytes
            + self.keys.nbytes
            + self._waiting * PLACE_BYTES
        )

    def _fitting(self, rows: pa.RecordBatch, kept: NDArray[np.bool_], found: Identified) -> int:
        """How many rows, from the beginning, have room; only the kept ones need much."""
        places = np.flatnonzero(kept)
        stored = rows if len(places) == len(rows) else rows.filter(pa.array(kept))
        ends: list[int] = np.append(places, len(rows)).tolist()  # before the next kept row
        # Behind the last update of each key, a dropped one may have to be noted.
        room = self.config.memory_limit - self.memory_bytes - len(self.keys) * ARRIVAL.itemsize

        def needed(count: int) -> int:
            size = int(stored.slice(0, count).nbytes) + CHUNK_BYTES
            new = found.new_in(ends[count])
            entries = ends[count] + new
            return size + count * PLACE_BYTES + entries * ARRIVAL.itemsize + found.new_bytes(new)

        if needed(len(places)) <= room:
            return len(rows)
        fit = bisect_right(range(len(places)), room, key=needed)
        return ends[fit - 1] if fit else 0

    def _shed(self, now: float, most: int) -> NDArray[np.uint32]:
        return np.empty(0, np.uint32)  # what finds no room is dropped as it arrives

    def _drop(self, kind: FreedKind, slots: NDArray[np.uint32], now: float) -> None:
        """Of the put that was replayed last, the rows `slots` were dropped."""
        tail: list[Chunk] = []
        while sum(len(chunk.numbers) for chunk in tail) < self._replayed:
            tail.append(self._line.pop())
            self._line_bytes -= tail[-1].nbytes
        line = joined(tail[::-1])
        kept = np.ones(len(line.numbers), np.bool_)
        kept[len(kept) - self._replayed + slots.astype(np.int64)] = False
        self.ledger.leave(line.numbers[~kept], now, dropped=True)
        self._waiting -= len(slots)
        self._lost += len(slots)
        if kept.any():
            rows = own_memory(line.rows, kept)
            self._line.append(Chunk(rows, line.arrived[kept], line.numbers[kept]))
            self._line_bytes += self._line[-1].nbytes

    # ---- schedule

    @property
    def waiting(self) -> int:
        """Updates that wait."""
        return self._waiting

    def _choose(self, limit: int, now: float) -> AppendRows:
        limit = min(limit, self._waiting)
        assert self.layout is not None
        taken, wanted = [], limit
        while wanted:
            chunk = self._line.popleft()
            self._line_bytes -= chunk.nbytes
            rows = len(chunk.numbers)
            if rows > wanted:
                rest = chunk.slice(wanted, rows)
                self._line.appendleft(rest)
                self._line_bytes += rest.nbytes
                chunk = chunk.slice(0, wanted)
            taken.append(chunk)
            wanted -= len(chunk.numbers)
        content = AppendRows(self.layout, joined(taken))
        self.ledger.leave(content.chunk.numbers, now)
        self._waiting -= limit
        self._handed_out += limit
        self._batch_bytes += content.nbytes
        return content

    def _rehand(self, buffers: list[Any], now: float) -> AppendRows:
        return self._choose(int(np.frombuffer(buffers[0], np.int64)[0]), now)

    # ---- deliver

    def _answer(self, planned: Planned, at: float) -> None:
        content = _content(planned)
        self.ledger.answer(content.chunk.numbers, at)
        self.monitor.processed(planned.batch.planned_at, at, len(content))

    def _forget_batch(self, planned: Planned, now: float) -> None:
        self._batch_bytes -= _content(planned).nbytes
        live = [
            _content(other).chunk.numbers[0]
            for other in self._batches.values()
            if not other.delivered
        ]
        live += [chunk.numbers[0] for chunk in list(self._line)[:1]]
        self.ledger.forget_before(min(map(int, live), default=None))

    def _return(self, planned: Planned, now: float) -> None:
        content = _content(planned)
        self.ledger.come_back(content.chunk.numbers, now)
        self._batch_bytes -= content.nbytes
        self._handed_out -= len(content)
        self._waiting += len(content)
        together = [content.chunk]
        while self._line and self._line[0].numbers[0] < content.chunk.numbers[-1]:
            together.append(self._line.popleft())
            self._line_bytes -= together[-1].nbytes
        chunk = joined(together)
        if len(together) > 1:  # batches came back in another order than they went
            order = np.argsort(chunk.numbers)
            rows = chunk.rows.take(pa.array(order))
            chunk = Chunk(rows, chunk.arrived[order], chunk.numbers[order])
        self._line.appendleft(chunk)
        self._line_bytes += chunk.nbytes

    # ---- watch

    def _measured(self) -> list[NDArray[np.void]]:
        return [self.ledger.totals, self.ledger.queue_totals]

    def _counts(self) -> list[int]:
        return [self._accepted, self._handed_out, 0, 0, self._lost]

    def _view(self, now: float) -> StalenessView[str]:
        keys = self.ledger.keys
        return StalenessView(
            at=now,
            names=self.keys.names,
            stale_since=keys["stale_since"].copy(),
            area=keys["area"].copy(),
            born=keys["born"].copy(),
            weights=self.keys.weights(),
            totals=self.ledger.totals[0],
            waiting_since=keys["waiting_since"].copy(),
            queue_totals=self.ledger.queue_totals[0],
            freshness_target=self.config.freshness_target_seconds,
        )

    # ---- recover

    def dump(self) -> tuple[dict[str, Any], list[Any]]:
        """Everything, to be taken in by `load` of a queue with the same columns."""
        ledger, buffers = self.ledger.dump()
        keys = self.keys.dump()
        chunks = list(self._line)
        chunks += [_content(planned).chunk for planned in self._batches.values()]
        meta = {
            "now": self._now,
            "next_batch": self._next_batch,
            "counts": [self._accepted, self._handed_out, self._lost],
            "statistics": self.monitor.dump(),
            "ledger": ledger,
            "keys": len(keys),
            "waiting": len(self._line),
            "batches": [
                [planned.batch.id, planned.batch.planned_at, planned.delivered]
                for planned in self._batches.values()
            ],
        }
        buffers += keys
        for chunk in chunks:
            buffers += [chunk.rows.serialize(), chunk.arrived, chunk.numbers]
        return meta, buffers

    def load(self, meta: dict[str, Any], buffers: list[Any]) -> None:
        """Become the queue that was dumped."""
        assert self.layout is not None
        rest = deque(buffers)
        self.ledger.load(meta["ledger"], [rest.popleft() for _ in range(4)])
        self.keys.load([rest.popleft() for _ in range(meta["keys"])])
        chunks: deque[Chunk] = deque()
        while rest:
            held = pa.py_buffer(bytes(rest.popleft()))
            rows = pa.ipc.read_record_batch(held, self.layout.schema)
            arrived = np.frombuffer(rest.popleft(), np.float64).copy()
            chunks.append(Chunk(rows, arrived, np.frombuffer(rest.popleft(), np.int64).copy()))
        self._line = deque(chunks.popleft() for _ in range(meta["waiting"]))
        self._line_bytes = sum(chunk.nbytes for chunk in self._line)
        self._waiting = sum(len(chunk.numbers) for chunk in self._line)
        for batch_id, planned_at, delivered in meta["batches"]:
            content = AppendRows(self.layout, chunks.popleft())
            self._batch_bytes += content.nbytes
            self._batches[batch_id] = Planned(Batch(batch_id, planned_at, content))
            self._batches[batch_id].delivered = delivered
        self._now = max(self._now, meta["now"])
        self._measuring = meta["counts"][0] > 0
        self._next_batch = meta["next_batch"]
        self._accepted, self._handed_out, self._lost = meta["counts"]
        self.monitor.load(meta["statistics"])

    def live_bytes(self) -> int:
        """About the size of a dump."""
        return self.memory_bytes

    def check(self) -> None:
        """Assert the invariants that hold between calls; for tests."""
        numbers = [chunk.numbers for chunk in self._line]
        line = np.concatenate([*numbers, np.empty(0, np.int64)])
        assert np.all(np.diff(line) > 0)
        assert len(line) == self._waiting == self._accepted - self._handed_out - self._lost
        assert self._line_bytes == sum(chunk.nbytes for chunk in self._line)
        assert self._batch_bytes == sum(_content(p).nbytes for p in self._batches.values())
        assert len(self.keys) == len(self.ledger.keys)


def _content(planned: Planned) -> AppendRows:
    content = planned.batch.content
    if not isinstance(content, AppendRows):
        raise InputError("the batch belongs to another kind of queue")
    return content


def _first_null(column: pa.Array) -> int:
    """The first row that is null, or NaN; -1: none."""
    missing = column.is_null(nan_is_null=pa.types.is_floating(column.type))
    return int(pc.index(missing, True).as_py())


def uniform(places: NDArray[np.uint64], seed: int) -> NDArray[np.float64]:
    """Numbers from 0 to 1, one for each place, that look random (SplitMix64).

    >>> uniform(np.arange(3, dtype=np.uint64), seed=0).round(3).tolist()
    [0.883, 0.432, 0.026]
    """
    mixed = (places + np.uint64(seed % 2**32) * np.uint64(0x100000001)) * np.uint64(
        0x9E3779B97F4A7C15
    ) + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53
