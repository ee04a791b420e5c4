"""What every queue in this process does alike: intake, batches, the log, and the lock.

    arrive     put, put_many      -> conform -> log -> take (make room where it lacks)
    schedule   plan               -> choose and freeze -> log
    deliver    delivered, commit  -> staleness falls, the batch is forgotten
               give_back          -> units wait again

A kind of queue says how it takes rows, chooses units and answers for them; the order in
which things are logged, counted and told is here. All calls may come from any thread.
"""

from __future__ import annotations

import operator
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from sortedcontainers import SortedDict

from upstream.config import QueueConfig
from upstream.errors import InputError, QueueClosed, QueueFull, UnknownBatch
from upstream.model import Batch, BatchContent, Receipt, Snapshot, Update
from upstream.queue.intake import conforming, row_of
from upstream.queue.layout import Layout
from upstream.queue.log import FreedKind, Log, NoLog, SettledKind
from upstream.queue.statistics import StatisticsMonitor
from upstream.staleness.view import StalenessView

__all__ = ["BaseQueue", "Planned"]


class Planned:
    """A batch that is not committed yet."""

    __slots__ = ("batch", "delivered")

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.delivered = False


class BaseQueue(ABC):
    """A queue in this process; `log` makes it durable."""

    monitor: StatisticsMonitor

    def __init__(self, config: QueueConfig, clock: Callable[[], float] = time.time) -> None:
        self.config = config
        self.log: Log = NoLog()
        self.layout: Layout | None = None
        self._clock = clock
        self._lock = threading.RLock()
        self._room = threading.Condition(self._lock)
        self._closed = False
        self._closed_because = ""
        self._now = float(clock())
        self._batches: SortedDict = SortedDict()
        self._next_batch = 1
        self._measuring = False
        self._listeners: list[Callable[[], None]] = []

    # ---- what a kind of queue must say

    @abstractmethod
    def _bound(self, layout: Layout) -> None:
        """The columns are known."""

    @abstractmethod
    def _check(self, rows: pa.RecordBatch) -> None:
        """Raise an InputError if a row cannot be taken; changes nothing.

        It comes right before `_take` of the same rows, which may rely on it.
        """

    @abstractmethod
    def _take(self, rows: pa.RecordBatch, arrived: NDArray[np.float64] | None, now: float) -> int:
        """Take rows from the beginning; answers how many found room."""

    @abstractmethod
    def _shed(self, now: float, most: int) -> NDArray[np.uint32]:
        """Lose up to `most` waiting units; answers which, in the queue's own numbers."""

    @abstractmethod
    def _choose(self, limit: int, now: float) -> BatchContent:
        """Take up to `limit` units out of the line and freeze them."""

    @abstractmethod
    def _answer(self, planned: Planned, at: float) -> None:
        """The results of a batch are out."""

    @abstractmethod
    def _forget_batch(self, planned: Planned, now: float) -> None:
        """A delivered batch is committed."""

    @abstractmethod
    def _return(self, planned: Planned, now: float) -> None:
        """The units of a batch wait again; never refused for lack of memory."""

    @abstractmethod
    def _rehand(self, buffers: list[Any], now: float) -> BatchContent:
        """Take the units of a logged batch out of the line again."""

    @abstractmethod
    def _drop(self, kind: FreedKind, slots: NDArray[np.uint32], now: float) -> None:
        """Repeat a logged loss of units."""

    @abstractmethod
    def _view(self, now: float) -> StalenessView[str]:
        """Staleness as of now."""

    @abstractmethod
    def _counts(self) -> list[int]:
        """accepted, handed out, conflated, superseded, shed."""

    @abstractmethod
    def _measured(self) -> list[NDArray[np.void]]:
        """The totals of application and queue staleness."""

    @property
    @abstractmethod
    def waiting(self) -> int:
        """Units that wait."""

    @property
    @abstractmethod
    def memory_bytes(self) -> int:
        """Memory that counts against the limit."""

    def _reclaim(self, now: float) -> bool:
        """Make room without losing anything; whether there is hope that it helped."""
        return False

    def _check_return(self, planned: Planned) -> None:
        """Raise an InputError if a batch cannot be given back now."""
        return

    def _tidy(self, now: float) -> None:
        """Let go of what has become old."""
        return

    # ---- arrive

    @property
    def schema(self) -> pa.Schema | None:
        """The columns of the stream; None before the first batch."""
        return self.layout.schema if self.layout else None

    def bind(self, schema: pa.Schema) -> None:
        """Fix the columns of the stream; the first batch does it otherwise."""
        with self._lock:
            if self.layout is None:
                layout = Layout(schema, self.config)
                self._bound(layout)
                self.layout = layout

    def put(self, update: Mapping[str, Any] | Update) -> Receipt:
        """Take one update."""
        return self.put_many(row_of(update, self.config, self.schema))

    def put_many(
        self, updates: Any, arrived: Sequence[float] | NDArray[np.float64] | None = None
    ) -> Receipt:
        """Take the rows of an Arrow batch or table, in their order."""
        try:
            with self._lock:
                return self._put_all(updates, arrived)
        finally:  # rows that were taken before an error are acknowledged by it
            self.log.sync()

    def _put_all(
        self, updates: Any, arrived: Sequence[float] | NDArray[np.float64] | None
    ) -> Receipt:
        self._check_open()
        if self.layout is None:
            self.bind(conforming(updates, None)[0].schema)
        batches = conforming(updates, self.layout)
        arrivals = None
        if arrived is not None:
            arrivals = _arrivals(arrived, sum(len(rows) for rows in batches))
        if len(batches) > 1:  # all or nothing: look at every batch before the first is taken
            for rows in batches:
                self._check(rows)
        receipt = Receipt(0, 0, 0, 0)
        before = self._counts()[0]
        try:
            for rows in batches:
                done = receipt.accepted
                part = None if arrivals is None else arrivals[done : done + len(rows)]
                for taken in self._put(rows, part, done):
                    receipt = Receipt(*map(operator.add, receipt, taken))
        finally:
            self.monitor.arrived(self._counts()[0] - before)
            self._tell_listeners()
        return receipt

    def _put(
        self, rows: pa.RecordBatch, arrived: NDArray[np.float64] | None, before: int
    ) -> Iterator[Receipt]:
        """Take a batch, in as many steps as there is need to make room."""
        done, patience = 0, None
        while done < len(rows):
            now = self._read_clock()
            rest = rows.slice(done) if done else rows
            part = arrived if arrived is None or not done else arrived[done:]
            if part is not None:
                self._now = now = max(now, float(part[-1]))
            self._check(rest)
            counts = self._counts()
            self.log.put(rest, part, now)
            try:
                self._start_measuring(part, now)
                taken = self._take(rest, part, now)
            except BaseException:
                self._break_off()
                raise
            _, _, conflated, superseded, shed = map(operator.sub, self._counts(), counts)
            yield Receipt(taken, conflated, superseded, shed)
            done += taken
            if done < len(rows):
                self.log.put_stopped(taken)
                self._check_size(rows.slice(done, 1).nbytes, before + done)
                patience, lost = self._make_room(patience if not taken else None, before + done)
                yield Receipt(0, 0, 0, lost)

    def _start_measuring(self, arrived: NDArray[np.float64] | None, now: float) -> None:
        """Averages begin with the first arrival, also when a log is replayed later."""
        if self._measuring:
            return
        self._measuring = True
        at = now if arrived is None else float(arrived[0])
        for totals in self._measured():
            totals["at"] = totals["started"] = at
        self.monitor.start(at)

    def _check_size(self, needed: int, accepted: int) -> None:
        """Refuse a row for which no room can ever be made."""
        if needed > self.config.memory_limit:
            raise QueueFull(
                f"row {accepted} takes {needed:,} bytes, more than memory_limit = "
                f"{self.config.memory_limit:,} altogether; the {accepted:,} rows before it were "
                f"taken. Raise memory_limit",
                accepted,
            )

    def _make_room(self, patience: _Patience | None, accepted: int) -> tuple[_Patience, int]:
        """Follow the overflow rule; answers how many units were lost to it.

        `patience` is what the same row has seen so far.
        """
        patience = patience or _Patience(self.config.block_timeout_seconds)
        now = self._read_clock()
        if patience.may_reclaim() and self._reclaim(now):
            return patience, 0
        rule = self.config.on_full
        if rule == "shed":
            lost = self._shed(now, patience.more_to_shed())
            if len(lost):
                self.log.freed("shed", lost, now)
                return patience, len(lost)
        elif rule == "block":
            self._check_open()
            self._tell_listeners()  # whoever takes the rows that have arrived makes room
            if self._room.wait(patience.seconds_left()):
                self._check_open()
                return patience, 0
        reasons = {
            "shed": "and nothing that waits is left to shed",
            "block": f"and nobody made room for {self.config.block_timeout_seconds} s",
            "error": 'and on_full is "error"',
        }
        raise QueueFull(
            f"row {accepted} does not fit: {self.memory_bytes:,} of memory_limit = "
            f"{self.config.memory_limit:,} bytes are used, {reasons[rule]}; the "
            f"{accepted:,} rows before it were taken. Raise memory_limit, or plan and commit "
            f"faster",
            accepted,
        )

    # ---- schedule

    def plan(self, limit: int | None = None) -> Batch:
        """Hand out up to `limit` units; false if nothing waits."""
        most = self._limit(limit)
        with self._lock:
            self._check_open()
            now = self._read_clock()
            self._tidy(now)
            if not self.waiting:
                return Batch(0, now, _NOTHING)
            try:
                batch = Batch(self._next_batch, now, self._choose(most, now))
                planned = Planned(batch)
                try:
                    self.log.planned(batch)
                except Exception:  # the store refused
                    self._return(planned, now)
                    raise
                self._batches[batch.id] = planned
                self._next_batch += 1
                self.monitor.handed_out(len(batch), now)
            except (KeyboardInterrupt, SystemExit, MemoryError):
                self._break_off()
                raise
            self._room.notify_all()
        self.log.sync()
        return batch

    def _limit(self, limit: int | None) -> int:
        if limit is None:
            limit = self.config.batch_limit
        if limit is None:
            return 2**62
        try:
            number = operator.index(limit)
        except TypeError:
            number = 0
        if number < 1 or isinstance(limit, bool):
            raise InputError(
                f"limit is {limit!r}: expected a whole number of at least 1, or None for all "
                f"that wait"
            )
        return number

    def batch(self, batch_id: int) -> Batch:
        """A planned batch that is not committed, as it was handed out."""
        with self._lock:
            return self._planned(batch_id).batch

    def planned(self) -> list[int]:
        """The ids of the batches that are not committed, oldest first."""
        with self._lock:
            return list(self._batches)

    # ---- deliver

    def delivered(self, batch_id: int, at: float | None = None) -> None:
        """The results of a batch are out, now or since `at`; only the first time counts."""
        self._settle("delivered", batch_id, at)

    def commit(self, batch_id: int) -> None:
        """A batch may be forgotten; it counts as delivered now if nobody said so."""
        self._settle("committed", batch_id, None)

    def give_back(self, batch_id: int) -> None:
        """A batch is not going to be processed: its units wait again, unless newer ones do."""
        self._settle("given back", batch_id, None)

    def _settle(self, kind: SettledKind, batch_id: int, at: float | None) -> None:
        if batch_id == 0:
            return
        with self._lock:
            self._check_open()
            planned = self._planned(batch_id)
            when = self._read_clock() if at is None else _finite(at, "at")
            if kind == "given back" and planned.delivered:
                raise InputError(
                    f"batch {batch_id} cannot be given back: its results were delivered"
                )
            if kind == "given back":
                self._check_return(planned)
            if kind == "delivered" and planned.delivered:
                return
            self.log.settled(kind, batch_id, when)
            try:
                self._apply(kind, planned, when)
            except BaseException:
                self._break_off()
                raise
            self._room.notify_all()
            if kind == "given back":
                self._tell_listeners()
        self.log.sync()

    def _apply(self, kind: SettledKind, planned: Planned, when: float) -> None:
        if kind == "given back":
            self._return(planned, when)
            del self._batches[planned.batch.id]
            return
        if not planned.delivered:
            self._answer(planned, when)
            planned.delivered = True
        if kind == "committed":
            self._forget_batch(planned, when)
            del self._batches[planned.batch.id]

    def _planned(self, batch_id: int) -> Planned:
        try:
            planned: Planned = self._batches[batch_id]
        except (KeyError, TypeError):
            known = ", ".join(map(str, self._batches)) or "none"
            raise UnknownBatch(
                f"batch {batch_id!r} is not planned: expected one of {known}. It was never "
                f"planned, or is committed or given back"
            ) from None
        return planned

    # ---- watch

    def snapshot(self) -> Snapshot:
        """Counts, memory, load and staleness at this instant."""
        with self._lock:
            self._check_open()
            now = self._read_clock()
            view = self._view(now)
            accepted, handed_out, conflated, superseded, shed = self._counts()
            quantiles = view.quantiles
            target = self.config.freshness_target_seconds
            return Snapshot(
                at=now,
                policy=self.config.policy,
                accepted=accepted,
                handed_out=handed_out,
                conflated=conflated,
                superseded=superseded,
                shed=shed,
                waiting=self.waiting,
                keys=len(view),
                planned_batches=len(self._batches),
                memory_bytes=self.memory_bytes,
                memory_limit_bytes=self.config.memory_limit,
                load_factor=self.monitor.load_factor,
                arrival_rate=self.monitor.arrival_rate,
                cost_seconds=self.monitor.cost_seconds,
                staleness_mean=view.stream("mean"),
                staleness_average=view.average,
                queue_staleness_average=view.queue_average,
                staleness_p50=quantiles.p50,
                staleness_p95=quantiles.p95,
                staleness_p99=quantiles.p99,
                staleness_max=quantiles.max,
                within_target=float("nan") if target is None else view.within(target),
            )

    def staleness(self) -> StalenessView[str]:
        """Staleness of every key at this instant."""
        with self._lock:
            self._check_open()
            return self._view(self._read_clock())

    def on_waiting(self, listener: Callable[[], None]) -> None:
        """Call `listener` when updates arrive or come back, and at the end; it must be quick."""
        self._listeners.append(listener)

    def _tell_listeners(self) -> None:
        for listener in self._listeners:
            listener()

    # ---- recover

    def replay_put(
        self, rows: pa.RecordBatch, arrived: NDArray[np.float64] | None, now: float, count: int
    ) -> None:
        """Take logged rows again, whatever the limit is by now."""
        self._now = max(self._now, now)
        part = None if arrived is None else arrived[:count]
        self._start_measuring(arrived, now)
        self._take_unlimited(rows.slice(0, count), part, now)

    @abstractmethod
    def _take_unlimited(
        self, rows: pa.RecordBatch, arrived: NDArray[np.float64] | None, now: float
    ) -> None:
        """Take rows without regard to the memory limit."""

    @abstractmethod
    def dump(self) -> tuple[dict[str, Any], list[Any]]:
        """Everything, to be taken in by `load` of a queue with the same columns."""

    @abstractmethod
    def load(self, meta: dict[str, Any], buffers: list[Any]) -> None:
        """Become the queue that was dumped."""

    @abstractmethod
    def live_bytes(self) -> int:
        """About the size of a dump."""

    def replay_planned(self, meta: dict[str, Any], buffers: list[Any]) -> None:
        """Hand a logged batch out again."""
        content = self._rehand(buffers, meta["planned_at"])
        batch = Batch(meta["id"], meta["planned_at"], content)
        self._batches[batch.id] = Planned(batch)
        self._next_batch = batch.id + 1
        self.monitor.handed_out(len(batch), batch.planned_at)

    def replay_settled(self, kind: SettledKind, batch_id: int, at: float) -> None:
        """Settle a logged batch again."""
        self._apply(kind, self._planned(batch_id), at)

    def replay_freed(self, kind: FreedKind, slots: NDArray[np.uint32], now: float) -> None:
        """Lose or forget again what the log says was."""
        self._drop(kind, slots, now)

    # ---- close

    def close(self) -> None:
        """Let go of everything; a durable queue can be opened again."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._room.notify_all()
            self._tell_listeners()
        self.log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _break_off(self) -> None:
        """A call was interrupted half way: what is in memory is no longer to be trusted.

        What is durable is whole, for a call is logged before it is carried out.
        """
        self._closed_because = " after a call that was interrupted half way"
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise QueueClosed(
                f"the queue is closed{self._closed_because}: open it again with open_queue"
            )

    def _read_clock(self) -> float:
        """The time; it never runs backward."""
        self._now = max(self._now, float(self._clock()))
        return self._now


class _Patience:
    """How far the overflow rule may still go for one row."""

    def __init__(self, block_seconds: float) -> None:
        self._reclaimed = False
        self._until = time.monotonic() + block_seconds
        self._to_shed = 1

    def may_reclaim(self) -> bool:
        first, self._reclaimed = not self._reclaimed, True
        return first

    def seconds_left(self) -> float:
        return max(self._until - time.monotonic(), 0.0)

    def more_to_shed(self) -> int:
        """Ever more: a page comes free only when all on it are gone."""
        count, self._to_shed = self._to_shed, 2 * self._to_shed
        return count


class _Nothing:
    """The content of an empty batch."""

    since = arrived = np.empty(0, np.float64)
    updates = np.empty(0, np.int64)
    arrow = pa.RecordBatch.from_pydict({})
    nbytes = 0

    def __len__(self) -> int:
        return 0

    def pylist(self) -> list[dict[str, Any]]:
        return []

    def to_parts(self) -> tuple[dict[str, Any], list[Any]]:
        return {}, []


_NOTHING = _Nothing()


def _arrivals(
    arrived: Sequence[float] | NDArray[np.float64] | None, rows: int
) -> NDArray[np.float64] | None:
    if arrived is None:
        return None
    times = np.ascontiguousarray(arrived, np.float64)
    if times.shape != (rows,):
        raise InputError(f"arrived has shape {times.shape}: expected one time per row, ({rows},)")
    if not np.isfinite(times).all() or (np.diff(times) < 0).any():
        raise InputError("arrived must be finite and must not decrease from row to row")
    return times


def _finite(seconds: float, name: str) -> float:
    try:
        number = float(seconds)
    except (TypeError, ValueError):
        number = float("nan")
    if not np.isfinite(number):
        raise InputError(f"{name} is {seconds!r}: expected seconds as a finite number")
    return number
