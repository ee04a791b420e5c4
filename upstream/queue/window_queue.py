"""The window queue: per key, at most the newest window waits.

It is an update queue whose units are windows. The Window Manager decides which updates form
a key's unit; keys, order of service, memory and staleness are those of the update queue.
A key is stale from the moment that a newer window has closed.

The counts of a snapshot are of windows that closed (eager: that started), and of late
updates under `superseded`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from upstream.config import QueueConfig, WindowConfig
from upstream.errors import InputError, SchemaError
from upstream.model import Batch
from upstream.options.kinds import parse_span
from upstream.queue.base import Planned
from upstream.queue.departures import UNIT, UNIT_BYTES_FROZEN
from upstream.queue.key_table import KNOWN, TABLE_FULL
from upstream.queue.layout import Layout
from upstream.queue.log import FreedKind
from upstream.queue.raw import Region, address_of
from upstream.queue.update_queue import UpdateQueue
from upstream.queue.window_manager import (
    AXIS_KEY,
    AXIS_STREAM,
    AXIS_TIME,
    LANDMARK,
    LATE,
    NONE,
    PUNCTUATION,
    SLIDE_BY_TUPLE,
    SLIDING,
    WINDOW,
    WINDOW_BYTES,
    WINDOWS,
    admit_windows,
    answer_windows,
    drop_windows,
    freeze_windows,
    measure_windows,
    name_keys,
    pass_silence,
    pass_time,
    retake_window,
    return_window,
)
from upstream.queue.window_rows import Segment, WindowRows, WindowShape
from upstream.windows.kinds import Landmark, SlideByTuple, Sliding

__all__ = ["WindowQueue", "content_of"]

HEAP_ENTRY_BYTES = 16
MOST_ENTRIES = 1 << 28
KINDS = {"sliding": SLIDING, "landmark": LANDMARK, "slide-by-tuple": SLIDE_BY_TUPLE}
TICKS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


class WindowQueue(UpdateQueue):
    """Keeps the newest window per key, whole, and decides which key is served next."""

    def __init__(
        self,
        config: QueueConfig,
        clock: Callable[[], float] = time.time,
        policy: str | None = None,
    ) -> None:
        assert config.window is not None
        self.window: WindowConfig = config.window
        self._windows = np.zeros(1, WINDOWS)
        self._windows_address = address_of(self._windows)
        self._returned: dict[int, deque[Segment]] = {}
        self._late: list[pa.RecordBatch] = []
        self._last_arrival = np.nan
        self._silence_seen = -np.inf
        super().__init__(config, clock, policy)
        self._heap = Region(MOST_ENTRIES * HEAP_ENTRY_BYTES)
        count = self.window.disorder_count
        self._highest = np.zeros((count or 0) + 1, np.int64)
        self._table = Region(self.keys.most_slots * WINDOW_BYTES)
        self._place_windows()

    def _place_windows(self) -> None:
        self._windows["windows"] = self._table.address
        self._windows["heap"] = self._heap.address
        self._windows["highest"] = address_of(self._highest)

    # ---- what the columns say

    def _bound(self, layout: Layout) -> None:
        if layout.arrived_names:
            name = layout.arrived_names[0]
            raise SchemaError(
                f"column {name!r} has type {layout.schema.field(name).type}: a queue with windows "
                f"keeps numbers, times, booleans, text and binary"
            )
        window, state = self.window, self._windows
        ticks = self._ticks_per_second(layout)
        size = _ticks(window.size, ticks, "size")
        slide = _ticks(window.slide, ticks, "slide") or size
        self._ticks = ticks
        state["kind"] = KINDS[window.kind]
        state["axis"] = {"time": AXIS_TIME}.get(
            window.by, AXIS_STREAM if window.of == "stream" else AXIS_KEY
        )
        state["size"], state["slide"], state["origin"] = size, slide, window.origin
        lowest = NONE // max(slide, 1) // 4
        state["first_id"] = lowest if window.partial or window.kind == "slide-by-tuple" else 0
        state["eager"] = window.buffer == "eager"
        state["has_time"] = self.config.time is not None
        state["by_key"] = window.progress == "key"
        state["disorder"] = _ticks(window.disorder, ticks, "disorder")
        count = window.disorder_count
        state["disorder_count"] = -1 if count is None else count
        state["high"] = state["lwm"] = NONE
        if window.kind == "sliding":
            kind: Sliding | Landmark | SlideByTuple = Sliding(size, slide, window.origin)
        elif window.kind == "landmark":
            kind = Landmark(slide, window.origin)
        else:
            kind = SlideByTuple(size, slide)
        axis_type = pa.int64()
        if window.by == "time":
            axis_type = layout.schema.field(str(self.config.time)).type
        self.shape = WindowShape(kind, axis_type)
        self._punctuation(layout)
        super()._bound(layout)

    def _ticks_per_second(self, layout: Layout) -> int | None:
        """Ticks of the time column in a second; None where it does not say."""
        if self.config.time is None:
            return None
        name = self.config.time
        data_type = layout.schema.field(name).type
        if pa.types.is_timestamp(data_type):
            return TICKS[data_type.unit]
        by_time = self.window.by == "time" or bool(self.window.disorder)
        if by_time and not pa.types.is_integer(data_type) and not pa.types.is_date(data_type):
            raise SchemaError(
                f"time column {name!r} has type {data_type}: windows by time need a timestamp, a "
                f"date or an integer"
            )
        if self.window.idle_timeout_seconds is not None:
            raise SchemaError(
                f"time column {name!r} has type {data_type}: idle_timeout_seconds needs a "
                f"timestamp, which says how long a second is"
            )
        return None

    def _punctuation(self, layout: Layout) -> None:
        name = self.window.punctuation_column
        self._marks: tuple[int, pa.Scalar] | None = None
        if name is None:
            return
        if name not in layout.schema.names or self.config.time is None:
            raise SchemaError(
                f"punctuation_column {name!r} needs a column of that name and a time column"
            )
        value = self.window.punctuation_value
        data_type = layout.schema.field(name).type
        try:
            mark = pa.scalar(True if value is None else value, data_type)
        except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError) as error:
            raise SchemaError(
                f"punctuation_value {value!r} does not fit punctuation_column {name!r} of type "
                f"{data_type}: {error}"
            ) from error
        self._marks = layout.schema.get_field_index(name), mark

    # ---- arrive

    def _take(self, rows: pa.RecordBatch, arrived: NDArray[np.float64] | None, now: float) -> int:
        count = len(rows)
        if count > self._rows:
            self._reserve_rows(2 * count)
        scratch = self._last("key_scratch_bytes")
        if scratch:
            self._key_scratch = np.empty(scratch, np.uint8)
            self._state["key_scratch"] = address_of(self._key_scratch)
        if self.scheduler.policy.uses_position:
            self.scheduler.expect(2 * count + 2 * len(self.keys), self.keys.records())
        fates = self._row_begins[:count]
        fates[:] = 0
        if self._marks is not None:
            column, mark = self._marks
            marked = pc.fill_null(pc.equal(rows.column(column), mark), False)
            fates[marked.to_numpy(zero_copy_only=False)] = PUNCTUATION
        if int(self._windows["heap_count"][0]) + count > MOST_ENTRIES:
            self._rebuild_heap()
        times = 0 if arrived is None else address_of(arrived)
        done = 0
        while done < count:
            start = done
            named = name_keys(self._address, self._windows_address, start, count, now)
            if self.rules:
                self.rules.apply(self._born[: self._last("born_count")], self)
            stopped = self._last("stopped")
            done = admit_windows(self._address, self._windows_address, start, named, now, times)
            self._account()
            if done < named:
                break
            if done < count:
                if stopped != TABLE_FULL:
                    break
                self.keys.grow()
                self._account()
        if self.keys.moving:
            self.keys.settle()
            self._account()
        if done:
            self._last_arrival = now if arrived is None else float(arrived[done - 1])
        if self.window.late == "side":
            self._keep_late(rows, fates[:done] == LATE)
        return done

    def _keep_late(self, rows: pa.RecordBatch, late: NDArray[np.bool_]) -> None:
        if late.any():
            self._late.append(rows.slice(0, len(late)).filter(pa.array(late)))
            self._account()

    def late_rows(self) -> pa.Table:
        """The late updates since the last call; after a crash they may come once more."""
        with self._lock:
            self._check_open()
            if self.layout is None:
                raise InputError("no update has arrived yet, so there are no columns")
            taken, self._late = self._late, []
            self._account()
            return pa.Table.from_batches(taken, schema=self.layout.schema)

    def _rebuild_heap(self) -> None:
        """Leave out the entries that later ones have replaced."""
        windows = self._table.array(WINDOW, self.keys.top)
        known = self.keys.records()["flags"] & KNOWN != 0
        slots = np.flatnonzero(known & (windows["due"] != NONE))
        slots = slots[np.argsort(windows["due"][slots], kind="stable")]
        entries = self._heap.array(np.dtype([("due", "i8"), ("slot", "i8")]), len(slots))
        entries["due"], entries["slot"] = windows["due"][slots], slots
        self._windows["heap_count"] = len(slots)

    # ---- time that passes in silence

    def _tidy(self, now: float) -> None:
        timeout = self.window.idle_timeout_seconds
        if timeout is None or self._ticks is None or now < self._silence_seen + timeout / 8:
            return
        if self.window.progress == "stream" and not now - self._last_arrival >= timeout:
            return
        self.log.freed("silence", np.empty(0, np.uint32), now)
        self._pass_silence(now)

    def _pass_silence(self, now: float) -> None:
        timeout = self.window.idle_timeout_seconds
        assert timeout is not None
        assert self._ticks is not None
        self._silence_seen = now
        if self.scheduler.policy.uses_position:
            self.scheduler.expect(2 * len(self.keys), self.keys.records())
        if self.window.progress == "key":
            pass_silence(self._address, self._windows_address, now, timeout, float(self._ticks))
            return
        state = self._windows[0]
        if state["high"] != NONE:
            silence = int((now - self._last_arrival) * self._ticks)
            lwm = int(state["high"]) + silence - int(state["disorder"])
            pass_time(self._address, self._windows_address, lwm, now)

    # ---- memory

    def _account(self) -> None:
        super()._account()
        if hasattr(self, "_table"):
            self.memory.other_bytes += (
                self.keys.top * WINDOW_BYTES
                + int(self._windows["heap_count"][0]) * HEAP_ENTRY_BYTES
                + sum(rows.nbytes for rows in self._late)
            )

    def _shed(self, now: float, most: int) -> NDArray[np.uint32]:
        if self.window.buffer == "eager":
            waiting = self._table.array(WINDOW, self.keys.top)
            committed = waiting["committed"] != NONE
        lost: list[int] = []
        while len(lost) < most:
            slot = self.scheduler.least_valuable(now)
            if not slot or (self.window.buffer == "eager" and committed[slot]):
                break
            lost.append(slot)
            self._drop("shed", np.array([slot], np.uint32), now)
        return np.array(lost, np.uint32)

    def _drop(self, kind: FreedKind, slots: NDArray[np.uint32], now: float) -> None:
        if kind == "silence":
            self._pass_silence(now)
            return
        slots = np.ascontiguousarray(slots)
        for slot in slots.tolist():
            self._returned.pop(slot, None)
        drop_windows(self._address, self._windows_address, address_of(slots), len(slots), now)

    # ---- schedule

    def _choose(self, limit: int, now: float) -> WindowRows:  # type: ignore[override]
        if self.window.limit_by == "windows":
            return super()._choose(limit, now)  # type: ignore[return-value]
        segments: list[Segment] = []
        rows = 0
        while self.waiting and (not segments or rows < limit):
            content: WindowRows = super()._choose(1, now)  # type: ignore[assignment]
            segments += content.segments
            rows += content.row_count
        return WindowRows(self._layout(), self.shape, segments)

    def _layout(self) -> Layout:
        assert self.layout is not None
        return self.layout

    def _freeze(self, slots: NDArray[np.uint32], now: float) -> WindowRows:  # type: ignore[override]
        windows = self._table.array(WINDOW, self.keys.top)
        segments, fresh = [], []
        for slot in slots.tolist() if self._returned else ():
            came_back = self._came_back(slot, int(windows["ready"][slot]))
            if came_back is None:
                fresh.append(slot)
                continue
            retake_window(self._address, self._windows_address, address_of(came_back.units), now)
            segments.append(came_back)
        if self._returned or segments:
            slots = np.array(fresh, np.uint32)
        if len(slots):
            segments.insert(0, self._freeze_fresh(slots, now))
        content = WindowRows(self._layout(), self.shape, segments)
        self._batch_bytes += content.nbytes
        self._account()
        self.memory.trim()
        return content

    def _came_back(self, slot: int, ready: int) -> Segment | None:
        """The window of a key that had come back and waits; newer ones have replaced it else."""
        waiting = self._returned.get(slot)
        if waiting is None:
            return None
        segment = waiting.popleft()
        if not waiting:
            del self._returned[slot]
        if self.window.buffer == "lazy" and segment.units["time"][0] != ready:
            return None
        return segment

    def _freeze_fresh(self, slots: NDArray[np.uint32], now: float) -> Segment:
        where, count = address_of(slots), len(slots)
        counts = np.zeros(count, np.int64)
        both = self._address, self._windows_address
        heap = pa.allocate_buffer(measure_windows(*both, where, count, address_of(counts)))
        rows = pa.allocate_buffer(int(counts.sum()) * self._layout().row_bytes)
        units = np.zeros(count, UNIT)
        freeze_windows(*both, where, count, now, address_of(units), rows.address, heap.address)
        assert np.array_equal(units["spare2"], counts)
        return Segment(units, rows, heap)

    def _rehand(self, buffers: list[Any], now: float) -> WindowRows:  # type: ignore[override]
        logged = WindowRows.from_parts(self._layout(), self.shape, buffers)
        by_rows = self.window.limit_by == "rows"
        slots = np.ascontiguousarray(logged.units["slot"])
        for part in slots.reshape(-1, 1) if by_rows else [slots]:
            self.scheduler.take_slots(np.ascontiguousarray(part))
            again = self._freeze(np.ascontiguousarray(part), now)
            self._batch_bytes -= again.nbytes
        self._batch_bytes += logged.nbytes
        return logged

    # ---- deliver

    def _answer(self, planned: Planned, at: float) -> None:
        content = content_of(planned)
        for segment in content.segments:
            answer_windows(
                self._address,
                self._windows_address,
                address_of(segment.units),
                len(segment.units),
                at,
            )
        several = len(self.rules.cost_classes) > 1
        units = content.units["cost_class"] if several else len(content)
        self.monitor.processed(planned.batch.planned_at, at, units)

    def _forget_batch(self, planned: Planned, now: float) -> None:
        self._batch_bytes -= content_of(planned).nbytes
        self._account()

    def _newest_elsewhere(self, planned: Planned) -> dict[int, int]:
        """Of each key, the newest ticket that is in flight in other batches."""
        newest: dict[int, int] = {}
        for other in self._batches.values():
            if other is not planned and not other.delivered:
                for unit in content_of(other).units:
                    slot = int(unit["slot"])
                    newest[slot] = max(newest.get(slot, 0), int(unit["ticket"]))
        return newest

    def _return(self, planned: Planned, now: float) -> None:
        content = content_of(planned)
        newest = self._newest_elsewhere(planned)
        self.scheduler.expect(0, self.keys.records(), int(content.units["ticket"].min()))
        for segment in reversed(content.segments):
            for number in range(len(segment.units) - 1, -1, -1):
                slot = int(segment.units["slot"][number])
                address = address_of(segment.units) + number * UNIT_BYTES_FROZEN
                if return_window(
                    self._address, self._windows_address, address, newest.get(slot, 0), now
                ):
                    part = segment.unit(number, self._layout().row_bytes)
                    self._returned.setdefault(slot, deque()).appendleft(part)
        self._batch_bytes -= content.nbytes
        self._account()

    def _check_return(self, planned: Planned) -> None:
        """The parts of a window must come back from the last to the first."""
        if self.window.buffer != "eager":
            return
        newest = self._newest_elsewhere(planned)
        windows = self._table.array(WINDOW, self.keys.top)
        for unit in content_of(planned).units:
            slot = int(unit["slot"])
            later = newest.get(slot, 0) > unit["ticket"]
            if later and windows["handed"][slot] == unit["time"]:
                raise InputError(
                    f"a later part of window {unit['time']} of key "
                    f"{self.key_names(np.array([slot]))[0]!r} is in another batch: give that one "
                    f"back first"
                )

    # ---- recover

    def dump(self) -> tuple[dict[str, Any], list[Any]]:
        """Everything, to be taken in by `load` of a queue with the same columns."""
        meta, buffers = super().dump()
        top = self.keys.top
        returned = [(slot, list(parts)) for slot, parts in self._returned.items()]
        late = pa.Table.from_batches(self._late, schema=self._layout().schema)
        meta["windows"] = {
            "buffers": len(buffers),
            "last_arrival": self._last_arrival,
            "silence_seen": self._silence_seen,
            "returned": [(slot, len(parts)) for slot, parts in returned],
        }
        buffers += [
            self._windows.tobytes(),
            self._highest.tobytes(),
            self._table.array(WINDOW, top).tobytes(),
            _to_stream(late),
        ]
        for _, parts in returned:
            for units, rows, heap in parts:
                buffers += [units.tobytes(), rows, heap]
        return meta, buffers

    def load(self, meta: dict[str, Any], buffers: list[Any]) -> None:
        """Become the queue that was dumped."""
        saved = meta["windows"]
        super().load(meta, buffers[: saved["buffers"]])
        state, highest, table, late, *returned = buffers[saved["buffers"] :]
        self._windows[:] = np.frombuffer(state, WINDOWS)
        self._highest[:] = np.frombuffer(highest, np.int64)
        self._table.array(WINDOW, self.keys.top)[:] = np.frombuffer(table, WINDOW)
        self._place_windows()
        self._last_arrival, self._silence_seen = saved["last_arrival"], saved["silence_seen"]
        self._late = pa.ipc.open_stream(pa.py_buffer(bytes(late))).read_all().to_batches()
        parts = deque(WindowRows.from_parts(self._layout(), self.shape, returned).segments)
        for slot, count in saved["returned"]:
            self._returned[slot] = deque(parts.popleft() for _ in range(count))
        self._rebuild_heap()
        self._account()

    def _load_batch(self, saved: dict[str, Any], parts: list[Any]) -> None:
        content = WindowRows.from_parts(self._layout(), self.shape, parts)
        batch = Batch(saved["meta"]["id"], saved["meta"]["planned_at"], content)
        planned = self._batches[batch.id] = Planned(batch)
        planned.delivered = saved["delivered"]
        self._batch_bytes += content.nbytes

    # ---- for tests

    def rows_held(self) -> dict[str, int]:
        """Updates that the lists hold, by key."""
        slots = np.flatnonzero(self.keys.records()["flags"] & KNOWN)
        windows = self._table.array(WINDOW, self.keys.top)
        names = self.key_names(slots)
        return dict(zip(names, windows["rows"][slots].tolist(), strict=True))

    def check(self) -> None:
        """Assert the invariants that hold between calls; for tests."""
        self.memory.check()
        records = self.keys.records()
        known = np.flatnonzero(records["flags"] & KNOWN)
        windows = self._table.array(WINDOW, self.keys.top)
        waiting = known[~np.isnan(records["since"][known])]
        assert len(waiting) == self.waiting
        assert int(windows["rows"][known].sum()) == int(self._windows["rows"][0])
        if self.window.buffer == "lazy":
            accepted, *others = self._counts()
            assert accepted == sum(others) + self.waiting
        self.scheduler.check(records)


def content_of(planned: Planned) -> WindowRows:
    """The windows of a batch."""
    content = planned.batch.content
    assert isinstance(content, WindowRows)
    return content


def _ticks(span: int | str | None, ticks_per_second: int | None, option: str) -> int:
    if span is None:
        return 0
    if isinstance(span, int):
        return span
    if ticks_per_second is None:
        raise SchemaError(
            f"window.{option} = {span!r} is a span of time, but the time column is not a "
            f"timestamp: give a whole number of its ticks"
        )
    ticks = round(parse_span(span) * ticks_per_second)
    if ticks == 0 and parse_span(span) > 0:
        raise SchemaError(f"window.{option} = {span!r} is less than a tick of the time column")
    return ticks


def _to_stream(table: pa.Table) -> Any:
    with pa.BufferOutputStream() as sink:
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        return sink.getvalue()
