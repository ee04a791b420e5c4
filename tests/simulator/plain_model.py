"""The slow, obvious model: one event after the other, on plain dictionaries and lists.

It knows nothing of the queue. Which key is next, what a policy thinks of it, when a key became
stale: all is worked out from lists of everything that happened.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from upstream.queue.statistics import StatisticsMonitor
from upstream.staleness.exact import Arrival, Delivery, KeyEvents, per_output_mean, stream_average


class Waiting(NamedTuple):
    """A key in the queue."""

    since: float
    newest: int  # update


@dataclass
class PlainRun:
    """Everything that happened, and what it comes to."""

    arrivals: dict[int, list[Arrival]] = field(default_factory=dict)
    dequeues: dict[int, list[Delivery]] = field(default_factory=dict)
    deliveries: dict[int, list[Delivery]] = field(default_factory=dict)
    conflated: int = 0
    most_waiting: int = 0
    longest: float = 0.0  # wait

    def queue_events(self) -> dict[int, KeyEvents]:
        return {k: KeyEvents(a, self.dequeues.get(k, ())) for k, a in self.arrivals.items()}

    def application_events(self) -> dict[int, KeyEvents]:
        return {k: KeyEvents(a, self.deliveries.get(k, ())) for k, a in self.arrivals.items()}

    def queue_staleness(self, start: float, end: float) -> float:
        return stream_average(self.queue_events(), start, end)

    def application_staleness(self, start: float, end: float) -> float:
        return stream_average(self.application_events(), start, end)

    def per_output(self) -> float:
        return per_output_mean(self.queue_events())


@dataclass
class PlainModel:
    """An update queue with known rates, and one server that takes one unit at a time."""

    policy: str
    rates: list[float]
    costs: list[float]
    weights: list[float]

    def run(self, times: list[float], keys: list[int]) -> PlainRun:
        """At one instant delivery, arrivals, dequeue; at the last one only arrivals count."""
        run = PlainRun()
        monitor = StatisticsMonitor(np.ones(256), classes=1, given={0: 1.0})
        waiting: dict[int, Waiting] = {}  # in the order of the first enqueue
        at_work: tuple[int, int] | None = None  # key and newest update
        free_at, number = math.inf, 0
        while number < len(times):
            now = min(free_at, times[number])
            last = now == times[-1]
            if now == free_at and not last and at_work is not None:
                run.deliveries.setdefault(at_work[0], []).append(Delivery(now, at_work[1]))
                at_work, free_at = None, math.inf
            while number < len(times) and times[number] == now:
                key = keys[number]
                run.arrivals.setdefault(key, []).append(Arrival(now, number))
                monitor.arrived(1)
                run.conflated += key in waiting
                waiting[key] = Waiting(waiting[key].since if key in waiting else now, number)
                number += 1
            if at_work is None and waiting and not last:
                run.most_waiting = max(run.most_waiting, len(waiting))
                key = self._choose(waiting, now, overloaded=monitor.overloaded)
                since, newest = waiting.pop(key)
                monitor.handed_out(1, now)
                run.dequeues.setdefault(key, []).append(Delivery(now, newest))
                run.longest = max(run.longest, now - since)
                at_work, free_at = (key, newest), now + self.costs[key]
        run.longest = max([run.longest, *(times[-1] - since for since, _ in waiting.values())])
        return run

    def _choose(self, waiting: dict[int, Waiting], now: float, *, overloaded: bool) -> int:
        best, best_score = -1, -math.inf
        for position, (key, (since, _)) in enumerate(waiting.items()):
            waited, cost, rate = now - since, self.costs[key], self.rates[key]
            if self.policy == "in-place" or (self.policy == "whittle" and not overloaded):
                score = -float(position)
            elif self.policy == "linecutting":
                score = waited + max(1 / rate - cost * position, 0.0)
            else:
                v = waited + cost / 2
                score = self.weights[key] / cost * v * (v / 2 + 1 / rate)
            if score > best_score:
                best, best_score = key, score
        return best
