"""One overloaded stream, five queues side by side: what `upstream demo` shows.

Every queue gets the same updates and a consumer of the same speed, too slow by the load
factor. They are the queues of `open_queue`, driven by one simulated clock: a seed gives the
same digits each time, however fast the race is run.

    arrivals  keys of rates 1, 1/2^0.99, 1/3^0.99 ... (Zipf), independent (Poisson)
    consumer  plans one unit, works on it for `cost` seconds, delivers, commits, plans again
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from upstream.model import Snapshot
from upstream.opening import open_queue

__all__ = ["Lane", "Policy", "Result", "Standing", "Trace", "race"]


class Policy(StrEnum):
    """The queues of the race."""

    APPEND = "append"
    RANDOM_DROP = "random-drop"
    IN_PLACE = "in-place"
    LINECUTTING = "linecutting"
    WHITTLE = "whittle"


SIMULATED_SECONDS = 120.0
UPDATES_PER_KEY_SECOND = 0.5  # mean over keys
ZIPF = 0.99
FRAMES = 120
STALEST_KEYS = 6  # in a standing


class Trace:
    """The updates that every queue gets, in the order of their arrival."""

    def __init__(self, *, keys: int, seed: int) -> None:
        random = np.random.default_rng(seed)
        self.rate = keys * UPDATES_PER_KEY_SECOND
        """Updates per second of all keys together."""
        share = 1.0 / np.arange(1, keys + 1) ** ZIPF
        share /= share.sum()
        count = random.poisson(self.rate * SIMULATED_SECONDS)
        self.times: NDArray[np.float64] = np.sort(random.uniform(0.0, SIMULATED_SECONDS, count))
        """When each update arrives, in simulated seconds."""
        numbers = random.choice(keys, count, p=share)
        names = [f"key-{number:0{len(str(keys))}}" for number in range(1, keys + 1)]
        self.rates = dict(zip(names, (self.rate * share).tolist(), strict=True))
        """Updates per second of each key."""
        self.rows = pa.record_batch(
            {
                "key": pa.array(names).take(pa.array(numbers)),
                "ts": pa.array((self.times * 1e6).astype("datetime64[us]")),
                "value": pa.array(random.normal(100.0, 1.0, count)),
            }
        )


class Lane:
    """One queue and its consumer."""

    def __init__(self, policy: str, trace: Trace, cost_seconds: float, seed: int) -> None:
        self.policy = policy
        self.delivered = 0
        self._trace = trace
        self._cost = cost_seconds
        self._now = 0.0
        self._arrived = 0  # updates of the trace
        self._free_at = 0.0  # when the consumer asks for work
        self._in_hand = 0  # the batch that it works on
        self.queue = open_queue(
            "memory:", key="key", time="ts", policy=policy, seed=seed, clock=lambda: self._now
        )

    def run_until(self, until: float) -> None:
        """Let simulated time pass."""
        while self._free_at <= until:
            self._arrive(self._free_at)
            if self._in_hand:
                self.queue.delivered(self._in_hand, self._free_at)
                self.queue.commit(self._in_hand)
                self.delivered += 1
            batch = self.queue.plan(1)
            self._in_hand = batch.id
            self._free_at = self._free_at + self._cost if batch else self._next_arrival()
        self._arrive(until)

    def _arrive(self, until: float) -> None:
        times = self._trace.times
        end = int(np.searchsorted(times, until, "right"))
        self._now = until
        if end > self._arrived:
            rows = self._trace.rows.slice(self._arrived, end - self._arrived)
            self.queue.put_many(rows, arrived=times[self._arrived : end])
            self._arrived = end

    def _next_arrival(self) -> float:
        times = self._trace.times
        return float(times[self._arrived]) if self._arrived < len(times) else math.inf


class Result(NamedTuple):
    """What became of one queue; times in seconds."""

    policy: str
    average_staleness: float  # over keys and time: Definition 10
    times_whittle: float | None  # that average, by whittle's; None before there is one
    p99_staleness: float  # over keys, at the end
    max_staleness: float
    delivered: int  # results
    conflated: int  # updates that a newer one of their key replaced
    dropped: int  # updates lost
    waiting: int  # units still in the queue
    memory_bytes: int


class Standing(NamedTuple):
    """The race at one instant."""

    at: float  # simulated seconds
    results: list[Result]
    stalest: list[tuple[str, float]]  # keys of the watched policy, and their staleness

    @property
    def complete(self) -> bool:
        return self.at >= SIMULATED_SECONDS


def race(trace: Trace, *, load: float, seed: int = 0, watch: str = "whittle") -> Iterator[Standing]:
    """Run all queues on one trace; a standing for every frame."""
    lanes = [Lane(policy.value, trace, load / trace.rate, seed) for policy in Policy]
    for frame in range(1, FRAMES + 1):
        at = SIMULATED_SECONDS * frame / FRAMES
        for lane in lanes:
            lane.run_until(at)
        watched = next(lane for lane in lanes if lane.policy == watch)
        stalest = watched.queue.staleness().stalest(STALEST_KEYS)
        yield Standing(at, _results([(lane, lane.queue.snapshot()) for lane in lanes]), stalest)


def _results(lanes: list[tuple[Lane, Snapshot]]) -> list[Result]:
    best = next(snap.staleness_average for lane, snap in lanes if lane.policy == "whittle")
    return [
        Result(
            lane.policy,
            snap.staleness_average,
            snap.staleness_average / best if best > 0 else None,
            snap.staleness_p99,
            snap.staleness_max,
            lane.delivered,
            snap.conflated,
            snap.shed,
            snap.waiting,
            snap.memory_bytes,
        )
        for lane, snap in lanes
    ]
