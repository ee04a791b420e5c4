"""What can be read from a measurement of staleness at one instant."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from upstream.errors import InputError
from upstream.staleness.aggregates import F, Floats, aggregate
from upstream.staleness.rules import advance

__all__ = ["Quantiles", "StalenessView"]

K = TypeVar("K")


class Quantiles(NamedTuple):
    """Staleness over keys, seconds."""

    p50: float  # half of the keys are at most this stale
    p95: float
    p99: float
    max: float  # the stalest key


class StalenessView(Generic[K]):
    """Staleness of every key and of the stream at the instant `at`.

    The view is built from columns, one entry per key, that follow ``upstream.staleness.rules``,
    and keeps them: hand it copies when the originals change. `totals` is copied and moved to
    `at`. Names are asked for only where keys are shown: `names` receives an array of `ids`, the
    owner's numbers of the keys (by default their positions in the columns). A queue adds
    `waiting_since` (the first enqueue since the last dequeue, NaN for keys that do not wait) and
    `queue_totals`, the totals of queue staleness.

    Without keys every staleness is 0 and all keys, that is none, are within any target.
    """

    def __init__(
        self,
        *,
        at: float,
        names: Callable[[NDArray[np.int64]], list[K]],
        stale_since: Floats,
        area: Floats,
        born: Floats,
        weights: Floats,
        totals: np.void,
        ids: NDArray[np.int64] | None = None,
        waiting_since: Floats | None = None,
        queue_totals: np.void | None = None,
        freshness_target: float | None = None,
    ) -> None:
        self.at = at
        """The instant, in seconds, that everything here describes."""
        self.totals = _moved(totals, at)
        """The stream's record at that instant, see ``upstream.staleness.rules.TOTALS``."""
        self.stale_since = stale_since
        """Per key: arrival of the first update that the delivered answer lacks; NaN if fresh."""
        self.weights = weights
        """Per key: its weight."""
        self.freshness_target = freshness_target
        self._names = names
        self._ids = np.arange(len(stale_since)) if ids is None else ids
        self._area = area
        self._born = born
        self._waiting_since = waiting_since
        self._queue_totals = None if queue_totals is None else _moved(queue_totals, at)

    def __len__(self) -> int:
        """The number of keys."""
        return len(self.stale_since)

    def keys(self) -> list[K]:
        """The names of all keys, in the order of the arrays."""
        return self._names(self._ids)

    @cached_property
    def staleness(self) -> Floats:
        """Definition 9: S_k(at) of every key."""
        return _age(self.stale_since, self.at)

    @cached_property
    def averages(self) -> Floats:
        """The time average of S_k from the key's first arrival to `at`, of every key.

        (area + S_k^2 / 2) / (at - born), by the rule in ``upstream.staleness.rules``; a key that
        was born this instant has 0.
        """
        age = self.at - self._born
        area = self._area + self.staleness**2 / 2.0
        return np.divide(area, age, out=np.zeros_like(area), where=age > 0.0)

    def stream(self, function: str | F = "mean") -> float:
        """Definition 10 at this instant: F over the keys' staleness."""
        return self._apply(function, self.staleness)

    @property
    def average(self) -> float:
        """Definition 10 with the mean as F, averaged over time since the measurement started.

        The exact integral of the mean over the keys known at each moment. Where keys appear over
        time this differs from the mean of the keys' own averages, which see only their own lives.
        """
        return _time_average(self.totals)

    def average_over_keys(self, function: str | F = "weighted_mean") -> float:
        """F over the keys' own averages.

        With (weighted) mean as F, and all keys known from the start, this is the time average of
        the stream's (weighted) mean.
        """
        return self._apply(function, self.averages)

    @cached_property
    def quantiles(self) -> Quantiles:
        """p50, p95, p99 and the maximum of the current staleness over keys."""
        if not len(self):
            return Quantiles(0.0, 0.0, 0.0, 0.0)
        return Quantiles(*map(float, np.quantile(self.staleness, [0.5, 0.95, 0.99, 1.0])))

    def stalest(self, k: int) -> list[tuple[K, float]]:
        """The `k` stalest keys (all of them when there are fewer), the stalest first."""
        if k < 0:
            raise InputError(f"a number of keys cannot be negative, but stalest({k}) was asked for")
        k = min(k, len(self))
        if k == 0:
            return []
        order = -self.staleness
        top = np.sort(np.argpartition(order, k - 1)[:k])
        top = top[np.argsort(order[top], kind="stable")]
        return list(zip(self._names(self._ids[top]), self.staleness[top].tolist(), strict=True))

    def within(self, target: float | None = None) -> float:
        """The share of keys that are at most `target` seconds stale."""
        if target is None:
            target = self.freshness_target
        if target is None:
            raise InputError(
                "the share of keys within a freshness target needs a target in seconds: "
                "give one to within(), or a freshness target to the queue or tracker"
            )
        return float(np.mean(self.staleness <= target)) if len(self) else 1.0

    @property
    def latency_mean(self) -> float:
        """Delivery minus arrival of the same update, mean over deliveries; NaN before one."""
        delivered = int(self.totals["delivered"])
        return float(self.totals["latency_sum"]) / delivered if delivered else math.nan

    @property
    def latency_max(self) -> float:
        """The longest latency of a delivered update; NaN before the first delivery."""
        return float(self.totals["latency_max"]) if self.totals["delivered"] else math.nan

    @property
    def load_factor(self) -> float:
        """Arrivals per result: 10 means that of 10 possible results one is delivered.

        Infinite while updates arrived and nothing was delivered, NaN before the first arrival.
        """
        arrived, delivered = int(self.totals["arrived"]), int(self.totals["delivered"])
        if delivered:
            return arrived / delivered
        return math.inf if arrived else math.nan

    @cached_property
    def queue_staleness(self) -> Floats:
        """How long every key has been waiting in the queue; 0 for keys that do not wait."""
        if self._waiting_since is None:
            raise InputError("queue staleness was not measured: the view has no waiting_since")
        return _age(self._waiting_since, self.at)

    def queue_stream(self, function: str | F = "mean") -> float:
        """F over the keys' queue staleness."""
        return self._apply(function, self.queue_staleness)

    @property
    def queue_average(self) -> float:
        """The mean queue staleness over keys, averaged over time as in ``average``."""
        if self._queue_totals is None:
            raise InputError("queue staleness was not measured: the view has no queue_totals")
        return _time_average(self._queue_totals)

    def _apply(self, function: str | F, values: Floats) -> float:
        chosen = aggregate(function)
        return chosen(values, self.weights) if len(values) else 0.0


def _age(since: Floats, at: float) -> Floats:
    return np.where(np.isnan(since), 0.0, at - since)


def _moved(totals: np.void, at: float) -> np.void:
    moved = totals.copy()
    advance(moved, at)
    return moved


def _time_average(totals: np.void) -> float:
    elapsed = float(totals["at"] - totals["started"])
    return float(totals["mean_area"]) / elapsed if elapsed > 0.0 else 0.0
