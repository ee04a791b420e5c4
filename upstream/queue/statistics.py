"""The Statistics Monitor: what processing costs, and how overloaded it is.

The rate of each key is estimated where its updates arrive (`upstream.queue.rates`); here
are the numbers of the whole stream. All of them forget: they are sums in which every
result handed out counts, and fades by and by.

    load factor   = updates that arrived / results handed out
    arrival rate  = updates that arrived / time that passed
    cost          = time between plan and delivery / results delivered

Where rules put keys into cost classes, the cost of each is learned by recursive least
squares: a batch with n_c results of class c that took d seconds says d = sum of n_c * C_c.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["StatisticsMonitor"]

# Results after which what was measured before counts half.
MEMORY_RESULTS = 500.0
COST_WEIGHT = 0.1  # of the latest batch
FORGET = 0.98  # of the least squares, per batch
# Above this load factor the order of service matters.
OVERLOAD = 1.05


class StatisticsMonitor:
    """Load factor, arrival rate and the cost of a result, by cost class.

    `costs` is the array from which the scheduler reads; entries of `given` never change.

    >>> monitor = StatisticsMonitor(np.full(256, 1e-6), classes=1, given={})
    >>> monitor.arrived(30)
    >>> monitor.handed_out(10, now=2.0)
    >>> monitor.load_factor, monitor.arrival_rate
    (3.0, 15.0)
    >>> monitor.processed(planned_at=2.0, delivered_at=4.0, units=10)
    >>> float(monitor.costs[0])
    0.2
    """

    def __init__(
        self,
        costs: NDArray[np.float64],
        *,
        classes: int,
        given: dict[int, float],
        started: float = 0.0,
    ) -> None:
        self.costs = costs
        self._given = given
        for number, seconds in given.items():
            costs[number] = seconds
        self._arrivals_now = 0
        self._arrivals = 0.0
        self._results = 0.0
        self._seconds = 0.0
        self._last_plan = started
        self._last_delivery = -math.inf
        self._batches = 0
        self._cost = math.nan
        self._estimate = np.zeros(classes)
        self._uncertainty = np.eye(classes) * 1e6

    def start(self, at: float) -> None:
        """Time is counted from here."""
        self._last_plan = at

    def arrived(self, updates: int) -> None:
        """Updates came in."""
        self._arrivals_now += updates

    def handed_out(self, results: int, now: float) -> None:
        """A batch of so many units was planned."""
        keep = 0.5 ** (results / MEMORY_RESULTS)
        self._arrivals = self._arrivals * keep + self._arrivals_now
        self._results = self._results * keep + results
        self._seconds = self._seconds * keep + (now - self._last_plan)
        self._arrivals_now = 0
        self._last_plan = now

    @property
    def load_factor(self) -> float:
        """Updates per result; NaN before the first result."""
        return self._arrivals / self._results if self._results else math.nan

    @property
    def overloaded(self) -> bool:
        """Whether updates arrive faster than they are served, as far as measured."""
        return self._results > 0 and self.load_factor > OVERLOAD

    @property
    def arrival_rate(self) -> float:
        """Updates per second; NaN before the first result."""
        return self._arrivals / self._seconds if self._seconds > 0 else math.nan

    @property
    def cost_seconds(self) -> float:
        """Seconds per result over all cost classes; NaN until something is known of it."""
        if math.isnan(self._cost) and self._given:
            return self._given.get(0, math.nan)
        return self._cost

    def processed(
        self,
        planned_at: float,
        delivered_at: float,
        units: int | NDArray[np.uint8],
    ) -> None:
        """A batch was delivered: it was worked on since it was planned, or since the one
        before it was delivered."""
        seconds = delivered_at - max(planned_at, self._last_delivery)
        self._last_delivery = max(self._last_delivery, delivered_at)
        if seconds > 0:
            self.delivered(units, seconds)

    def delivered(self, units: int | NDArray[np.uint8], seconds: float) -> None:
        """The units of a batch took so long together.

        Where there are several cost classes, `units` has the class of each, otherwise it is
        their number.
        """
        self._batches += 1
        weight = max(COST_WEIGHT, 1.0 / self._batches)
        latest = seconds / (units if isinstance(units, int) else len(units))
        first = math.isnan(self._cost)
        self._cost = latest if first else self._cost + weight * (latest - self._cost)
        if isinstance(units, int) or len(self._estimate) == 1:
            self._estimate[0] = self._cost
        else:
            counts = np.bincount(units, minlength=len(self._estimate)).astype(np.float64)
            self._least_squares(counts, seconds)
        for number, cost in enumerate(self._estimate):
            if number not in self._given:
                self.costs[number] = max(cost, 0.01 * self._cost, 1e-9)

    def _least_squares(self, counts: NDArray[np.float64], seconds: float) -> None:
        gain = self._uncertainty @ counts
        gain /= FORGET + counts @ gain
        self._estimate += gain * (seconds - counts @ self._estimate)
        self._uncertainty -= np.outer(gain, counts @ self._uncertainty)
        self._uncertainty /= FORGET
        # What no batch tells apart would otherwise grow without bound.
        np.clip(self._uncertainty, -1e6, 1e6, out=self._uncertainty)

    def dump(self) -> dict[str, Any]:
        """What was learned, to be taken in by `load`."""
        return {
            "stream": [self._arrivals_now, self._arrivals, self._results, self._seconds],
            "last": [self._last_plan, self._last_delivery],
            "cost": [self._batches, self._cost],
            "estimate": self._estimate.tolist(),
            "uncertainty": self._uncertainty.tolist(),
            "costs": self.costs.tolist(),
        }

    def load(self, saved: dict[str, Any]) -> None:
        """Go on from what was learned; costs that are given now stay as given."""
        self._arrivals_now, self._arrivals, self._results, self._seconds = saved["stream"]
        self._last_plan, self._last_delivery = saved["last"]
        self._batches, self._cost = saved["cost"]
        if len(saved["estimate"]) == len(self._estimate):
            self._estimate[:] = saved["estimate"]
            self._uncertainty[:] = saved["uncertainty"]
            learned = [i for i in range(len(self._estimate)) if i not in self._given]
            self.costs[learned] = np.asarray(saved["costs"])[learned]
