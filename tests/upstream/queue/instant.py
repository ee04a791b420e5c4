"""The instantaneous system: every window that it would answer, by brute force."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

__all__ = ["Instant", "Row", "Shape"]

NEVER = -(10**9)


class Row(NamedTuple):
    key: str
    time: int
    number: int  # in order of arrival
    punctuation: bool = False


@dataclass(frozen=True)
class Shape:
    kind: str
    by: str
    of: str
    size: int
    slide: int
    progress: str
    disorder: int
    disorder_count: int | None
    timed: bool

    def options(self, **more: Any) -> dict[str, Any]:
        """As the queue is told."""
        window: dict[str, Any] = {"kind": self.kind, "by": self.by, "of": self.of}
        window |= {"slide": self.slide, "progress": self.progress, "punctuation_column": "mark"}
        if self.kind != "landmark":
            window["size"] = self.size
        if self.disorder_count is not None:
            window["disorder_count"] = self.disorder_count
        else:
            window["disorder"] = self.disorder
        if not self.timed:
            del window["punctuation_column"]
        return window | more


@dataclass
class Instant:
    """Takes rows one by one and remembers everything."""

    shape: Shape
    kept: dict[str, list[Row]] = field(default_factory=lambda: defaultdict(list))
    late: list[Row] = field(default_factory=list)
    positions: dict[int, int] = field(default_factory=dict)
    seen: list[Row] = field(default_factory=list)
    punctuated: int = NEVER

    def lwm(self, key: str) -> int:
        """The smallest time that may still come for a key."""
        times = [r.time for r in self.seen if self.shape.progress == "stream" or r.key == key]
        bound = NEVER
        count = self.shape.disorder_count
        if count is None and times:
            bound = max(times) - self.shape.disorder
        elif count is not None and len(times) > count:
            bound = sorted(times, reverse=True)[count]
        return max(bound, self.punctuated)

    def put(self, row: Row) -> None:
        counted = self.shape.by == "count" and self.shape.of == "stream"
        if row.punctuation:
            self.punctuated = max(self.punctuated, row.time)
            return
        if self.shape.timed and not counted and row.time < self.lwm(row.key):
            self.late.append(row)
            return
        self.positions[row.number] = len(self.positions)
        self.kept[row.key].append(row)
        self.seen.append(row)

    def windows(self, key: str) -> dict[int, list[int]]:
        """The closed windows of a key that hold something: the numbers of their rows."""
        shape = self.shape
        rows = self.kept[key]
        lwm = self.lwm(key) if shape.timed else 10**9
        if shape.by == "count" and shape.of == "stream":
            axis = [(self.positions[row.number], row.number) for row in rows]
            bound = len(self.positions)
        elif shape.by == "count":
            ordered = sorted(rows, key=lambda r: (r.time, r.number)) if shape.timed else rows
            settled = [row for row in ordered if not shape.timed or row.time <= lwm]
            axis = [(place, row.number) for place, row in enumerate(settled)]
            bound = len(settled)
        else:
            axis = sorted((row.time, row.number) for row in rows)
            bound = lwm
        found = {}
        for wid, start, end in self._extents(axis, bound):
            held = [number for value, number in axis if start <= value < end]
            if held:
                found[wid] = held
        return found

    def _extents(self, axis: list[tuple[int, int]], bound: int) -> Iterator[tuple[int, int, int]]:
        shape = self.shape
        if shape.kind == "slide-by-tuple":
            for value, _ in axis[shape.slide - 1 :: shape.slide]:
                if value < bound:
                    yield value, value - shape.size + 1, value + 1
            return
        wid = 0
        while True:
            if shape.kind == "landmark":
                start, end = NEVER, (wid + 1) * shape.slide
            else:
                start, end = wid * shape.slide, wid * shape.slide + shape.size
            if end > bound:
                return
            yield wid, start, end
            wid += 1
