"""Baselines for windows: every window waits its turn, or random ones are dropped whole.

`append` hands out all windows in the order in which they closed. `window-drop` keeps each
window with a probability: that of the configuration, or as many as keep the load at 95 % of
the measured capacity. A dropped window counts as shed.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from upstream.config import QueueConfig
from upstream.model import Receipt
from upstream.queue.append_queue import TARGET_LOAD
from upstream.queue.base import Planned
from upstream.queue.departures import UNIT
from upstream.queue.log import FreedKind
from upstream.queue.raw import Region, address_of
from upstream.queue.window_manager import (
    LINE_PLACES,
    PLACE,
    PLACE_BYTES,
    freeze_line,
    measure_line,
    settle_line,
)
from upstream.queue.window_queue import WindowQueue, content_of
from upstream.queue.window_rows import Segment, WindowRows

__all__ = ["WindowLine"]

ALL = 1 << 32


class WindowLine(WindowQueue):
    """A line of windows."""

    def __init__(self, config: QueueConfig, clock: Callable[[], float] = time.time) -> None:
        # The line has an order of its own; the scheduler has nothing to choose from.
        super().__init__(config, clock, policy="in-place")
        self._line = Region(LINE_PLACES * PLACE_BYTES)
        self._front: deque[Segment] = deque()  # windows that came back
        self._windows["in_line"] = 1
        self._windows["seed"] = config.seed
        self._windows["keep"] = ALL
        self._windows["line"] = self._line.address

    # ---- arrive

    def _put(
        self, rows: pa.RecordBatch, arrived: NDArray[np.float64] | None, before: int
    ) -> Iterator[Receipt]:
        keep = self._keep_probability()
        # Steps of 1/256, so that the log hears of few changes.
        share = np.array([max(round(keep * 256), 1)], np.uint32)
        if int(share[0]) << 24 != int(self._windows["keep"][0]):
            self.log.freed("keep", share, self._now)
            self._drop("keep", share, self._now)
        return super()._put(rows, arrived, before)

    def _keep_probability(self) -> float:
        if self.config.policy != "window-drop":
            return 1.0
        if self.config.drop_probability != "auto":
            return 1.0 - self.config.drop_probability
        load = self.monitor.arrival_rate * self.monitor.cost_seconds
        return TARGET_LOAD / load if load > TARGET_LOAD else 1.0

    def _drop(self, kind: FreedKind, slots: NDArray[np.uint32], now: float) -> None:
        if kind == "keep":
            self._windows["keep"] = int(slots[0]) << 24
        else:
            super()._drop(kind, slots, now)

    def _shed(self, now: float, most: int) -> NDArray[np.uint32]:
        return np.empty(0, np.uint32)

    # ---- schedule

    @property
    def _in_line(self) -> int:
        return int(self._windows["line_end"][0] - self._windows["line_first"][0])

    @property
    def waiting(self) -> int:
        """Windows that wait."""
        return self._in_line + len(self._front)

    def _account(self) -> None:
        super()._account()
        self.memory.other_bytes += self._in_line * PLACE_BYTES

    def _choose(self, limit: int, now: float) -> WindowRows:  # type: ignore[override]
        by_rows = self.window.limit_by == "rows"
        segments: list[Segment] = []
        windows = rows = 0
        while self.waiting and (rows if by_rows else windows) < limit:
            if self._front:
                segment = self._front.popleft()
                units = segment.units
                settle_line(self._address, address_of(units), len(units), 1, now)
            else:
                segment = self._freeze_first(1 if by_rows else limit - windows, now)
            segments.append(segment)
            windows += len(segment.units)
            rows += int(segment.units["spare2"].sum())
        content = WindowRows(self._layout(), self.shape, segments)
        self._batch_bytes += content.nbytes
        self._account()
        self.memory.trim()
        return content

    def _freeze_first(self, most: int, now: float) -> Segment:
        count = min(most, self._in_line)
        counts = np.zeros(count, np.int64)
        both = self._address, self._windows_address
        heap = pa.allocate_buffer(measure_line(*both, count, address_of(counts)))
        rows = pa.allocate_buffer(int(counts.sum()) * self._layout().row_bytes)
        units = np.zeros(count, UNIT)
        freeze_line(*both, count, now, address_of(units), rows.address, heap.address)
        return Segment(units, rows, heap)

    def _rehand(self, buffers: list[Any], now: float) -> WindowRows:  # type: ignore[override]
        logged = WindowRows.from_parts(self._layout(), self.shape, buffers)
        limit = logged.row_count if self.window.limit_by == "rows" else len(logged)
        again = self._choose(limit, now)
        self._batch_bytes += logged.nbytes - again.nbytes
        return logged

    def _return(self, planned: Planned, now: float) -> None:
        content = content_of(planned)
        for segment in reversed(content.segments):
            units = segment.units
            settle_line(self._address, address_of(units), len(units), -1, now)
            for number in range(len(units) - 1, -1, -1):
                self._front.appendleft(segment.unit(number, self._layout().row_bytes))
        self._batch_bytes -= content.nbytes
        self._account()

    # ---- recover

    def dump(self) -> tuple[dict[str, Any], list[Any]]:
        """Everything, to be taken in by `load` of a queue with the same columns."""
        meta, buffers = super().dump()
        first, end = (int(self._windows[name][0]) for name in ("line_first", "line_end"))
        places = self._line.array(PLACE, LINE_PLACES)
        meta["line"] = {"buffers": len(buffers)}
        buffers.append(places[np.arange(first, end) % LINE_PLACES].tobytes())
        for units, rows, heap in self._front:
            buffers += [units.tobytes(), rows, heap]
        return meta, buffers

    def load(self, meta: dict[str, Any], buffers: list[Any]) -> None:
        """Become the queue that was dumped."""
        mine = meta["line"]["buffers"]
        super().load(meta, buffers[:mine])
        places = np.frombuffer(buffers[mine], PLACE)
        first = int(self._windows["line_first"][0])
        where = np.arange(first, first + len(places)) % LINE_PLACES
        self._line.array(PLACE, LINE_PLACES)[where] = places
        self._windows["line"] = self._line.address
        rest = buffers[mine + 1 :]
        self._front.extend(WindowRows.from_parts(self._layout(), self.shape, rest).segments)
        self._account()

    def check(self) -> None:
        """Assert the invariants that hold between calls; for tests."""
        self.memory.check()
        accepted, *others = self._counts()
        assert accepted == sum(others) + self.waiting
