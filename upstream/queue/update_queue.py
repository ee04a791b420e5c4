"""The update queue: per key, at most the newest unit of update waits.

    arrive -> store the row, merge or supersede          upstream.queue.arrivals, rows
           -> put the key in line                        upstream.queue.key_scheduler
    plan   -> which keys next                            upstream.queue.key_scheduler, policies
           -> freeze their units                         upstream.queue.departures, frozen
    deliver, commit, give back                           upstream.queue.departures

Where things live is the business of `memory_manager` and `key_table`; how often keys
update and what results cost, that of `rates` and `statistics`. This file makes them one.
"""

from __future__ import annotations

import ctypes
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from upstream.config import QueueConfig
from upstream.errors import InputError
from upstream.model import Batch
from upstream.queue.arrivals import BLOCK, BLOCK_ROWS, admit, enqueue_begun, prepare
from upstream.queue.arrived_columns import ArrivedColumns
from upstream.queue.base import BaseQueue, Planned
from upstream.queue.departures import (
    UNIT_BYTES_FROZEN,
    answer_all,
    dead,
    drop,
    freeze,
    frozen_bytes,
    in_flight_twice,
    return_all,
)
from upstream.queue.frozen import FrozenRows, key_texts, keys_to_arrow
from upstream.queue.key_rules import KeyRules
from upstream.queue.key_scheduler import KeyScheduler
from upstream.queue.key_table import DELETED, KEY_BYTES, KNOWN, TABLE_FULL, KeyTable
from upstream.queue.layout import Layout
from upstream.queue.log import FreedKind
from upstream.queue.memory_manager import MemoryManager
from upstream.queue.policies import load_policy
from upstream.queue.raw import address_of
from upstream.queue.state import QUEUE
from upstream.queue.statistics import StatisticsMonitor
from upstream.staleness.rules import new_totals
from upstream.staleness.view import StalenessView

__all__ = ["UpdateQueue"]

UNLIMITED_BYTES = 2**62
FIELDS = {name: i for i, name in enumerate(QUEUE.names or ())}
FIRST_COUNT = FIELDS["accepted"]

_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p
_capsule_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]


class _Dead(NamedTuple):
    """Keys whose delete was committed, to be forgotten when it is long enough ago."""

    due: float
    slots: NDArray[np.uint32]
    tickets: NDArray[np.int64]


class UpdateQueue(BaseQueue):
    """Keeps the newest unit of update per key, and decides which key is served next."""

    def __init__(
        self,
        config: QueueConfig,
        clock: Callable[[], float] = time.time,
        policy: str | None = None,
    ) -> None:
        super().__init__(config, clock)
        limit = config.memory_limit
        self.memory = MemoryManager(limit_bytes=limit)
        self.keys = KeyTable(most_keys=2 * (limit // KEY_BYTES) + 1024)
        self.scheduler = KeyScheduler(
            table_address=self.keys.address,
            policy=load_policy(policy or config.policy),
            alpha=config.rate_alpha,
            scan=config.selection == "scan",
        )
        self.rules = KeyRules(config)
        self.monitor = StatisticsMonitor(
            self.scheduler.costs,
            classes=len(self.rules.cost_classes),
            given=self.rules.given_costs,
            started=self._now,
        )
        self.arrived = ArrivedColumns()
        self._totals = new_totals(self._now)
        self._queue_totals = new_totals(self._now)
        self._batch_bytes = 0
        self._dead: deque[_Dead] = deque()
        self._state = np.zeros(1, QUEUE)
        self._integers = self._state.view(np.int64).data
        self._reserve_rows(1024)
        self._place()
        self.scheduler.expect(1024, self.keys.records())
        self._account()

    def _place(self) -> None:
        state = self._state
        state["pool"] = self.memory.address
        state["table"] = self.keys.address
        state["scheduler"] = self.scheduler.address
        state["totals"] = address_of(self._totals)
        state["queue_totals"] = address_of(self._queue_totals)
        # With both a column and rules, NaN asks the rules for what the column left open.
        asks = self.config.weight_column is not None and bool(self.rules)
        state["weight"] = np.nan if asks else self.config.weight
        self._address = address_of(state)

    def _bound(self, layout: Layout) -> None:
        for name, value in layout.addresses().items():
            self._state[name] = value
        # Scratch for one block of rows: a row of int64 per field of BLOCK.
        width = BLOCK_ROWS * max(len(layout.value_names), 1)
        self._block_scratch = np.zeros((len(BLOCK.names or ()), width), np.int64)
        self._block = np.zeros(1, BLOCK)
        for i, name in enumerate(BLOCK.names or ()):
            self._block[name] = address_of(self._block_scratch[i])
        self._state["block"] = address_of(self._block)
        self.arrived.bind(layout, self._address, self.keys)

    def _reserve_rows(self, rows: int) -> None:
        """Scratch space for the slots that one call touches."""
        self._rows = rows
        self._begun = np.empty(rows, np.uint32)
        self._born = np.empty(rows, np.uint32)
        self._row_slots = np.empty(rows, np.uint32)
        self._row_begins = np.empty(rows, np.uint8)
        self._state["begun"] = address_of(self._begun)
        self._state["born"] = address_of(self._born)
        self._state["row_slots"] = address_of(self._row_slots)
        self._state["row_begins"] = address_of(self._row_begins)

    # ---- arrive

    def _check(self, rows: pa.RecordBatch) -> None:
        # The capsules own the exported buffers' descriptions; `_take` follows at once.
        self._schema_capsule, self._array_capsule = rows.__arrow_c_array__()
        problem = prepare(self._address, _capsule_pointer(self._array_capsule, b"arrow_array"))
        if problem:
            assert self.layout is not None
            raise self.layout.describe_row(rows, problem // 8, problem % 8)

    def _take(self, rows: pa.RecordBatch, arrived: NDArray[np.float64] | None, now: float) -> int:
        count = len(rows)
        if count > self._rows:
            self._reserve_rows(2 * count)
        scratch = self._last("key_scratch_bytes")
        if scratch:
            self._key_scratch = np.empty(scratch, np.uint8)
            self._state["key_scratch"] = address_of(self._key_scratch)
        if self.scheduler.policy.uses_position:
            self.scheduler.expect(count, self.keys.records())
        times = 0 if arrived is None else address_of(arrived)
        in_line = not self.rules
        done = 0
        while done < count:
            start = done
            done = admit(self._address, start, count, now, times, in_line)
            if not in_line:
                self.rules.apply(self._born[: self._last("born_count")], self)
                enqueue_begun(self._address, now, times, done - 1)
            if self.arrived:
                self.arrived.keep(rows, self._row_slots, self._row_begins, start, done)
                self._account()
            if done < count:
                if self._last("stopped") != TABLE_FULL:
                    break
                self.keys.grow()
                self._account()
        if self.keys.moving:
            self.keys.settle()
            self._account()
        return done

    def _take_unlimited(
        self, rows: pa.RecordBatch, arrived: NDArray[np.float64] | None, now: float
    ) -> None:
        self._check(rows)
        before = self._counts()[0]
        with self._unlimited():
            taken = self._take(rows, arrived, now)
        self.monitor.arrived(self._counts()[0] - before)
        assert taken == len(rows), "the address space of the queue is used up"

    def _last(self, name: str) -> int:
        return self._integers[FIELDS[name]]

    # ---- memory

    def _account(self) -> None:
        """Tell the pool what the rest of the queue needs."""
        self.memory.other_bytes = (
            self.keys.record_bytes
            + self.keys.table_bytes
            + self.scheduler.memory_bytes
            + self.arrived.nbytes
            + self._batch_bytes
        )

    def _unlimited(self) -> _Unlimited:
        return _Unlimited(self.memory)

    @property
    def memory_bytes(self) -> int:
        """Memory that counts against the limit."""
        return self.memory.used_bytes + self.memory.other_bytes

    def _shed(self, now: float, most: int) -> NDArray[np.uint32]:
        lost: list[int] = []
        while len(lost) < most:
            slot = self.scheduler.least_valuable(now)
            if not slot:
                break
            lost.append(slot)
            self._drop("shed", np.array([slot], np.uint32), now)
        return np.array(lost, np.uint32)

    def _drop(self, kind: FreedKind, slots: NDArray[np.uint32], now: float) -> None:
        slots = np.ascontiguousarray(slots)
        waiting = slots[~np.isnan(self.keys.records()["since"][slots])]
        self.arrived.release(waiting)
        forget = 2 if kind == "forgot" else 1
        drop(self._address, address_of(slots), len(slots), now, forget)

    def _reclaim(self, now: float) -> bool:
        return self._forget_dead(now, all_of_them=True)

    def _tidy(self, now: float) -> None:
        self._forget_dead(now)

    def _forget_dead(self, now: float, *, all_of_them: bool = False) -> bool:
        """Forget the keys that were deleted long ago, or all deleted ones."""
        forgot = False
        while self._dead and (all_of_them or self._dead[0].due <= now):
            _, slots, tickets = self._dead.popleft()
            gone = np.empty(len(slots), np.uint8)
            dead(
                self._address,
                address_of(slots),
                address_of(tickets),
                len(slots),
                address_of(gone),
            )
            slots = slots[gone != 0]
            if len(slots):
                self.log.freed("forgot", slots, now)
                self._drop("forgot", slots, now)
                forgot = True
        return forgot

    # ---- schedule

    @property
    def waiting(self) -> int:
        """Keys that wait."""
        return len(self.scheduler)

    def _choose(self, limit: int, now: float) -> FrozenRows:
        idle = limit >= self.waiting or not self.monitor.overloaded
        first_come = self.scheduler.policy.first_come_when_idle and idle
        return self._freeze(self.scheduler.take(limit, now, first_come=first_come), now)

    def _freeze(self, slots: NDArray[np.uint32], now: float) -> FrozenRows:
        assert self.layout is not None
        where, count = address_of(slots), len(slots)
        values = self.arrived.take(slots)
        heap = pa.allocate_buffer(frozen_bytes(self._address, where, count))
        rows = pa.allocate_buffer(count * (UNIT_BYTES_FROZEN + self.layout.row_bytes))
        freeze(self._address, where, count, now, rows.address, heap.address)
        frozen = FrozenRows(self.layout, rows, heap, values)
        self._batch_bytes += frozen.nbytes
        self._account()
        self.memory.trim()
        return frozen

    def _rehand(self, buffers: list[Any], now: float) -> FrozenRows:
        assert self.layout is not None
        logged = FrozenRows.from_parts(self.layout, buffers)
        slots = np.ascontiguousarray(logged.units["slot"])
        self.scheduler.take_slots(slots)
        again = self._freeze(slots, now)
        self._batch_bytes += logged.nbytes - again.nbytes
        return logged

    # ---- deliver

    def _answer(self, planned: Planned, at: float) -> None:
        frozen = _frozen(planned)
        rows, stride, count = frozen.rows.address, frozen.stride, len(frozen)
        others = 0
        if in_flight_twice(self._address, rows, stride, count):
            since, _ = self._in_flight_elsewhere(planned)
            others = address_of(since)
        answer_all(self._address, rows, stride, count, at, others)
        several = len(self.rules.cost_classes) > 1
        units = frozen.units["cost_class"] if several else count
        self.monitor.processed(planned.batch.planned_at, at, units)

    def _in_flight_elsewhere(
        self, planned: Planned
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Per unit, of the newer units of its key that are in flight in other batches: the
        earliest first enqueue (NaN: none), and the newest ticket (0: none)."""
        units = _frozen(planned).units
        since = np.full(len(units), np.nan)
        newest = np.zeros(len(units), np.int64)
        several = self.keys.records()["in_flight"][units["slot"]] > 1
        if several.any():
            place = {int(units["slot"][i]): i for i in np.flatnonzero(several)}
            for other in self._batches.values():
                if other is planned or other.delivered:
                    continue
                found = _frozen(other).units
                for unit in found[np.isin(found["slot"], list(place))]:
                    i = place[int(unit["slot"])]
                    if unit["ticket"] > units["ticket"][i]:
                        since[i] = np.fmin(since[i], unit["since"])
                        newest[i] = max(newest[i], unit["ticket"])
        return since, newest

    def _forget_batch(self, planned: Planned, now: float) -> None:
        frozen = _frozen(planned)
        if self.config.delete_column is not None:
            self._expect_dead(frozen.units[frozen.units["flags"] & DELETED != 0], now)
        self._batch_bytes -= frozen.nbytes
        self._account()

    def _expect_dead(self, units: NDArray[Any], now: float) -> None:
        if len(units):
            due = now + self.config.forget_deleted_after_seconds
            slots = np.ascontiguousarray(units["slot"])
            self._dead.append(_Dead(due, slots, np.ascontiguousarray(units["ticket"])))

    def _return(self, planned: Planned, now: float) -> None:
        frozen = _frozen(planned)
        _, newest = self._in_flight_elsewhere(planned)
        fates = np.empty(len(frozen), np.uint8)
        flags = self.keys.records()["flags"][frozen.units["slot"]]
        first = int(frozen.units["ticket"].min())
        self.scheduler.expect(0, self.keys.records(), first)
        with self._unlimited():
            return_all(
                self._address,
                frozen.rows.address,
                frozen.stride,
                len(frozen),
                frozen.heap.address,
                now,
                address_of(newest),
                address_of(fates),
            )
        self.arrived.put_back(frozen, fates, flags)
        self._batch_bytes -= frozen.nbytes
        self._account()

    # ---- watch

    def _counts(self) -> list[int]:
        return self._integers[FIRST_COUNT:].tolist()

    def _view(self, now: float) -> StalenessView[str]:
        records = self.keys.records()
        slots = np.flatnonzero(records["flags"] & KNOWN)
        return StalenessView(
            at=now,
            names=self.key_names,
            ids=slots,
            stale_since=records["stale_since"][slots],
            area=records["area"][slots],
            born=records["born"][slots],
            weights=records["weight"][slots].astype(np.float64),
            totals=self._watched_totals(),
            waiting_since=records["since"][slots],
            queue_totals=self._queue_totals[0],
            freshness_target=self.config.freshness_target_seconds,
        )

    def _measured(self) -> list[NDArray[np.void]]:
        return [self._totals, self._queue_totals]

    def _watched_totals(self) -> np.void:
        totals = self._totals.copy()
        totals["arrived"] = self._counts()[0]
        return totals[0]

    def key_columns(self, slots: NDArray[Any]) -> list[pa.Array]:
        """The key columns of known keys."""
        assert self.layout is not None
        keys, starts, lengths = self.keys.read(self.memory, slots)
        return keys_to_arrow(self.layout, keys, starts, lengths)

    def key_names(self, slots: NDArray[Any]) -> list[str]:
        """Known keys as text."""
        if not len(slots):
            return []
        return key_texts(self.key_columns(slots)).to_pylist()

    # ---- recover

    def dump(self) -> tuple[dict[str, Any], list[Any]]:
        """Everything, to be taken in by `load` of a queue with the same columns."""
        batches = [
            (planned.batch.to_parts(), planned.delivered) for planned in self._batches.values()
        ]
        meta = {
            "now": self._now,
            "next_batch": self._next_batch,
            "next_ticket": int(self.scheduler.state["next_ticket"][0]),
            "counts": self._counts(),
            "prior_gap": float(self.scheduler.state["prior_gap"][0]),
            "cost_classes": self.rules.cost_classes,
            "statistics": self.monitor.dump(),
            "batches": [
                {"meta": parts[0], "buffers": len(parts[1]), "delivered": delivered}
                for parts, delivered in batches
            ],
            "dead": [d.due for d in self._dead],
            "arrived": self.arrived.names,
        }
        buffers: list[Any] = [self._totals.tobytes(), self._queue_totals.tobytes()]
        buffers += self.memory.dump() + self.keys.dump() + self.arrived.dump()
        for parts, _ in batches:
            buffers += parts[1]
        for d in self._dead:
            buffers += [d.slots, d.tickets]
        return meta, buffers

    def load(self, meta: dict[str, Any], buffers: list[Any]) -> None:
        """Become the queue that was dumped."""
        assert self.layout is not None
        rest = deque(buffers)
        self._totals[:] = np.frombuffer(rest.popleft(), self._totals.dtype)
        self._queue_totals[:] = np.frombuffer(rest.popleft(), self._queue_totals.dtype)
        self.memory.load([rest.popleft() for _ in range(4)])
        self.keys.load([rest.popleft() for _ in range(3)])
        self.arrived.load([rest.popleft() for _ in meta["arrived"]])
        for batch in meta["batches"]:
            parts = [rest.popleft() for _ in range(batch["buffers"])]
            self._load_batch(batch, parts)
        for due in meta["dead"]:
            slots = np.frombuffer(rest.popleft(), np.uint32).copy()
            self._dead.append(_Dead(due, slots, np.frombuffer(rest.popleft(), np.int64).copy()))
        self._now = max(self._now, meta["now"])
        self._measuring = meta["counts"][0] > 0
        self._next_batch = meta["next_batch"]
        self._state.view(np.int64)[FIRST_COUNT:] = meta["counts"]
        self.layout.columns["held_nulls"] = 1
        self.scheduler.state["prior_gap"] = meta["prior_gap"]
        self.scheduler.state["next_ticket"] = meta["next_ticket"]
        self.monitor.load(meta["statistics"])
        self._place()
        self._account()
        self.rules.reapply(self)
        self.scheduler.rebuild(self.keys.records(), self._now)

    def _load_batch(self, saved: dict[str, Any], parts: list[Any]) -> None:
        assert self.layout is not None
        content = FrozenRows.from_parts(self.layout, parts)
        batch = Batch(saved["meta"]["id"], saved["meta"]["planned_at"], content)
        planned = self._batches[batch.id] = Planned(batch)
        planned.delivered = saved["delivered"]
        self._batch_bytes += content.nbytes

    def live_bytes(self) -> int:
        """About the size of a dump."""
        return self.memory.dump_bytes + self.keys.record_bytes + self.keys.table_bytes

    def check(self) -> None:
        """Assert the invariants that hold between calls; for tests."""
        self.memory.check()
        records = self.keys.records()[1:]
        known = records[records["flags"] & KNOWN != 0]
        waiting = known[~np.isnan(known["since"])]
        assert len(known) == len(self.keys)
        assert len(waiting) == self.waiting == np.count_nonzero(known["payload"])
        assert np.all(waiting["updates"] > 0)
        assert len(np.unique(waiting["ticket"])) == len(waiting)
        accepted, *others = self._counts()
        assert accepted == sum(others) + self.waiting
        self.scheduler.check(self.keys.records())


class _Unlimited:
    """While it lasts, the memory limit does not bind."""

    def __init__(self, memory: MemoryManager) -> None:
        self._memory = memory

    def __enter__(self) -> None:
        self._limit = int(self._memory.pool["limit_bytes"][0])
        self._memory.pool["limit_bytes"] = UNLIMITED_BYTES

    def __exit__(self, *_: object) -> None:
        self._memory.pool["limit_bytes"] = self._limit


def _frozen(planned: Planned) -> FrozenRows:
    content = planned.batch.content
    if not isinstance(content, FrozenRows):
        raise InputError("the batch belongs to another kind of queue")
    return content
