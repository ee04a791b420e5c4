"""What came of a run."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from simulator.arrivals import Ints, Stream
from simulator.bounds import application_bound, queue_bound
from simulator.rates import Floats
from upstream.model import Snapshot
from upstream.staleness.view import StalenessView

__all__ = ["KeyResults", "Outputs", "Result", "summary"]


@dataclass(frozen=True)
class KeyResults:
    """The keys one by one, in the order of their numbers; NaN where a key never came."""

    outputs: Ints  # results
    mean_wait: Floats  # at dequeue, seconds
    queue_staleness: Floats  # averaged over time; meaningless for append and random-drop
    application_staleness: Floats  # likewise, since the key's first update


@dataclass(frozen=True)
class Result:
    """Staleness in the time unit of the stream, and counts of the whole run."""

    policy: str
    updates: int
    keys: int
    queue_staleness: float  # Definition 10: mean over keys, averaged over time
    application_staleness: float
    queue_staleness_per_output: float  # mean wait at dequeue of each key, mean over keys
    queue_staleness_weighted: float  # as queue_staleness, each key with its weight
    application_staleness_weighted: float
    lower_bound: float  # of queue_staleness_weighted, for any policy
    lower_bound_application: float
    bounds_hold: bool  # whether arrivals are of a kind for which they are proven
    load_factor: float  # updates per result
    delivered: int  # results
    conflated: int  # updates that a newer one of their key replaced
    superseded: int  # updates that arrived after a newer one of their key
    shed: int  # updates dropped
    waiting: int  # units left in the queue
    max_wait: float  # the longest wait of any unit
    mean_latency: float  # from the arrival of an update to its result
    mean_waiting: float  # units that the server could choose from
    max_memory_tuples: int  # most updates that the queue held
    by_key: KeyResults = field(repr=False, compare=False)

    def as_json(self) -> dict[str, Any]:
        """All but the single keys; what is not a number is None."""
        found = asdict(self)
        del found["by_key"]
        return {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in found.items()
        }


class Outputs:
    """Every dequeue: when, which keys, since when they had waited, and how many others did."""

    def __init__(self) -> None:
        self.waiting: list[int] = []
        self._at: list[float] = []
        self._keys: list[Ints] = []
        self._since: list[Floats] = []

    def note(self, at: float, keys: Ints, since: Floats, waiting: int) -> None:
        """A batch was handed out, chosen from `waiting` units."""
        self.waiting.append(waiting)
        self._at.append(at)
        self._keys.append(keys)
        self._since.append(since)

    def after(self, start: float) -> tuple[Ints, Floats]:
        """Key and wait of each unit that was handed out at `start` or later."""
        if not self._at:
            return np.empty(0, np.int64), np.empty(0)
        at = np.repeat(self._at, [len(keys) for keys in self._keys])
        later = at >= start
        waits = at - np.concatenate(self._since)
        return np.concatenate(self._keys)[later], waits[later]


def summary(
    stream: Stream,
    snapshot: Snapshot,
    before: StalenessView[str],
    after: StalenessView[str],
    outputs: Outputs,
    *,
    costs: Floats,
    weights: Floats | None,
) -> Result:
    """What was measured from `before` to `after`; counts are of all the time."""
    alike = np.ones(len(stream.rates))
    weight = alike if weights is None else weights
    by_key = _by_key(stream, before, after, outputs)
    queue_staleness = _between(before, after, lambda view: view.queue_average)
    application_staleness = _between(before, after, lambda view: view.average)
    _, waits = outputs.after(-math.inf)
    still = after.queue_staleness
    return Result(
        policy=snapshot.policy,
        updates=snapshot.accepted,
        keys=snapshot.keys,
        queue_staleness=queue_staleness,
        application_staleness=application_staleness,
        queue_staleness_per_output=_mean(by_key.mean_wait, alike),
        queue_staleness_weighted=queue_staleness
        if weights is None
        else _mean(by_key.queue_staleness, weights),
        application_staleness_weighted=application_staleness
        if weights is None
        else _mean(by_key.application_staleness, weights),
        lower_bound=queue_bound(stream.rates, costs, weight).staleness,
        lower_bound_application=application_bound(stream.rates, costs, weight).staleness,
        bounds_hold=stream.memoryless,
        load_factor=after.load_factor,
        delivered=int(after.totals["delivered"]),
        conflated=snapshot.conflated,
        superseded=snapshot.superseded,
        shed=snapshot.shed,
        waiting=snapshot.waiting,
        max_wait=float(max(waits.max(initial=0.0), still.max(initial=0.0))),
        mean_latency=after.latency_mean,
        mean_waiting=float(np.mean(outputs.waiting or [0])),
        max_memory_tuples=max(outputs.waiting, default=0),
        by_key=by_key,
    )


def _between(
    before: StalenessView[str],
    after: StalenessView[str],
    average: Callable[[StalenessView[str]], float],
) -> float:
    """An average from one view to the other; each view has that since the beginning."""
    earlier, later = _elapsed(before), _elapsed(after)
    if earlier <= 0.0 or later <= earlier:
        return average(after)
    return (average(after) * later - average(before) * earlier) / (later - earlier)


def _elapsed(view: StalenessView[str]) -> float:
    return view.at - float(view.totals["started"])


def _by_key(
    stream: Stream, before: StalenessView[str], after: StalenessView[str], outputs: Outputs
) -> KeyResults:
    keys, waits = outputs.after(before.at)
    count = np.bincount(keys, minlength=len(stream.rates))
    with np.errstate(invalid="ignore"):
        mean_wait = np.bincount(keys, waits, len(count)) / count
    born = _first_arrivals(stream)
    lived = after.at - np.maximum(born, before.at)
    lived[lived <= 0.0] = np.nan
    # A key that was handed out after a wait of W has added W^2 / 2, one that still waits adds
    # the same by now, less what it had when the measurement began.
    squares = (
        np.bincount(keys, waits**2, len(count))
        + _numbered(after, after.queue_staleness, len(count)) ** 2
        - _numbered(before, before.queue_staleness, len(count)) ** 2
    )
    stale = _numbered(after, after.averages, len(count)) * (after.at - born)
    stale -= _numbered(before, before.averages, len(count)) * np.maximum(before.at - born, 0.0)
    return KeyResults(count, mean_wait, squares / 2.0 / lived, stale / lived)


def _first_arrivals(stream: Stream) -> Floats:
    born = np.full(len(stream.rates), np.nan)
    keys, first = np.unique(stream.keys, return_index=True)
    born[keys] = stream.times[first]
    return born


def _numbered(view: StalenessView[str], column: Floats, keys: int) -> Floats:
    """A column of a view in the order of the keys' numbers; 0 for a key it does not know."""
    ordered = np.zeros(keys)
    ordered[[*map(int, view.keys())]] = column
    return ordered


def _mean(values: Floats, weights: Floats) -> float:
    there = np.isfinite(values)
    return float(np.average(values[there], weights=weights[there])) if there.any() else math.nan
