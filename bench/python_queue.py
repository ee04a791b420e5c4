"""The update queue in plain Python: what one would write without compiling anything.

Newest row, first enqueue, number of updates and rate estimate per key, rate classes as
deques, whose heads are compared; the rate follows the rules of `upstream.queue.rates`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from typing import Any

__all__ = ["PythonQueue"]

ALPHA = 0.1
CLASS_STEPS = 4.0


class Key:
    """What is known of a key."""

    __slots__ = ("count", "gap", "group", "last", "row", "since", "span", "time", "updates")

    def __init__(self, time: int) -> None:
        self.time = time
        self.row: Any = None
        self.since = math.nan
        self.updates = 0
        self.last = math.nan
        self.gap = math.nan
        self.span = math.nan
        self.group = 0
        self.count = 0


class PythonQueue:
    """Keeps the newest row per key and serves by the whittle index."""

    def __init__(self, cost_seconds: float, started: float) -> None:
        self.keys: dict[str, Key] = {}
        self.classes: dict[int, deque[Key]] = {}
        self.cost_seconds = cost_seconds
        self.started = started
        self.accepted = self.conflated = self.superseded = self.handed_out = self.waiting = 0

    def put_many(self, rows: Iterable[tuple[str, int, Any]], now: float) -> None:
        """Take rows of key, event time and values."""
        begun = []
        for name, time, values in rows:
            self.accepted += 1
            key = self.keys.get(name)
            if key is None:
                key = self.keys[name] = Key(time)
            elif time < key.time:
                self.superseded += 1
                continue
            key.time = time
            if now > key.last:
                if key.span == key.span:  # it is NaN before the second arrival
                    key.gap, key.count = fold(key)
                key.span = now - key.last
                key.last = now
                key.group = 1
            elif key.last != key.last:
                key.last = now
                key.group = 1
            else:
                key.group += 1
            if key.row is None:
                key.since = now
                key.updates = 1
                begun.append(key)
            else:
                key.updates += 1
                self.conflated += 1
            key.row = (name, time, values)
        prior = (now - self.started) * len(self.keys) / max(self.accepted, 1)
        for key in begun:
            gap = self.gap_at(key, now, prior)
            step = round(CLASS_STEPS * math.log2(gap)) if gap > 0 else -128
            line = self.classes.get(step)
            if line is None:
                line = self.classes[step] = deque()
            line.append(key)
        self.waiting += len(begun)

    def plan(self, limit: int, now: float) -> list[tuple[Any, int, float]]:
        """Hand out rows, with the updates that each stands for and since when it waited."""
        prior = (now - self.started) * len(self.keys) / max(self.accepted, 1)
        heads = {step: self.score(line[0], now, prior) for step, line in self.classes.items()}
        taken: list[tuple[Any, int, float]] = []
        while heads and len(taken) < limit:
            step = max(heads, key=heads.__getitem__)
            line = self.classes[step]
            key = line.popleft()
            taken.append((key.row, key.updates, key.since))
            key.row = None
            if line:
                heads[step] = self.score(line[0], now, prior)
            else:
                del heads[step], self.classes[step]
        self.handed_out += len(taken)
        self.waiting -= len(taken)
        return taken

    def score(self, key: Key, now: float, prior: float) -> float:
        """The whittle index, weight 1."""
        cost = self.cost_seconds
        v = now - key.since + cost / 2
        return v * (v / 2 + self.gap_at(key, now, prior)) / cost

    def gap_at(self, key: Key, now: float, prior: float) -> float:
        """The mean time between updates as it looks now."""
        gap = fold(key)[0] if key.span == key.span else prior
        silence = now - key.last
        if silence > gap:
            gap += ALPHA * (silence - gap)
        return gap


def fold(key: Key) -> tuple[float, int]:
    """The estimate with the latest group of arrivals."""
    gap, count, group = key.gap, key.count, key.group
    latest = key.span / group
    while group > 0 and count * ALPHA < 1.0:
        count += 1
        gap = latest if count == 1 else gap + max(ALPHA, 1.0 / count) * (latest - gap)
        group -= 1
    if group > 0:
        gap = latest + (gap - latest) * (1.0 - ALPHA) ** group
    return gap, count
