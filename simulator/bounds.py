"""How fresh any policy could keep the answers at best: lower bounds on average staleness.

A key that updates at rate r = 1/a is handed out mu times per second. Between two of its
services it first rests until it updates again, for a seconds on average, and then waits
tau = 1/mu - a. However the waits are arranged, equal ones are best, so that per cycle

    queue staleness adds up to at least   tau^2 / 2
    application staleness to at least     tau^2 / 2 + C * tau + K

where C is the cost of a result, K = C * a - phi and phi = a^2 * (1 - exp(-C / a)): the answer
is C seconds late, and the updates that come meanwhile are stale when it is out. The server's
time is shared among the keys, so with weights w

    bound = min over mu of  sum w_k * mu_k * (cost of a cycle of k) / sum w_k
            subject to      sum C_k * mu_k <= 1,  0 < mu_k <= r_k

The sum is convex. At its minimum one price m of server time holds for all keys,

    1 / mu_k^2 = a_k^2 + max(2 * m * C_k / w_k - 2 * phi_k, 0)        (phi = 0 for the queue)

and m is found by bisection. The bounds hold where the next update of a key does not depend on
when it is handed out (Poisson, Bernoulli slots), and where it comes sooner than on average
(periodic). For application staleness phi is that of Poisson arrivals, for which it is largest.
They are tight for many keys and loose for a few keys at low load.

>>> bound = queue_bound([1.0], costs=4.0)              # one key: (C - 1)^2 / (2 C)
>>> round(bound.staleness, 12), bound.service_rates.tolist()
(1.125, [0.25])
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from upstream.errors import InputError

__all__ = ["Bound", "application_bound", "queue_bound"]

Floats = NDArray[np.float64]
Cycle = Callable[[Floats, Floats, Floats], Floats]


class Bound(NamedTuple):
    """A lower bound, and how the server's time would be shared to reach it."""

    staleness: float  # seconds: the weighted mean over keys, averaged over time
    service_rates: Floats  # results per second of each key
    price: float  # m: staleness saved by a little more server time; 0 if there is enough


def queue_bound(rates: ArrayLike, costs: ArrayLike, weights: ArrayLike = 1.0) -> Bound:
    """The least average queue staleness; `costs` in seconds, `rates` in updates per second."""
    gaps, costs, weights = _keys(rates, costs, weights)
    return _bound(gaps, costs, weights, np.zeros_like(gaps), _queue_cycle)


def application_bound(rates: ArrayLike, costs: ArrayLike, weights: ArrayLike = 1.0) -> Bound:
    """The least average application staleness."""
    gaps, costs, weights = _keys(rates, costs, weights)
    return _bound(gaps, costs, weights, _phi(gaps, costs), _application_cycle)


def _phi(gaps: Floats, costs: Floats) -> Floats:
    return -(gaps**2) * np.expm1(-costs / gaps)


def _queue_cycle(waits: Floats, gaps: Floats, costs: Floats) -> Floats:
    return waits**2 / 2.0


def _application_cycle(waits: Floats, gaps: Floats, costs: Floats) -> Floats:
    share = costs / gaps
    during_service = gaps**2 * (share + np.expm1(-share))  # K
    return waits**2 / 2.0 + costs * waits + during_service


def _bound(gaps: Floats, costs: Floats, weights: Floats, phi: Floats, cycle: Cycle) -> Bound:
    def waits(price: float) -> Floats:
        """tau = sqrt(a^2 + x) - a, written so that a small x keeps its digits."""
        x = np.maximum(2.0 * price * costs / weights - 2.0 * phi, 0.0)
        return x / (np.sqrt(gaps**2 + x) + gaps)

    def used(price: float) -> float:
        return float(np.sum(costs / (gaps + waits(price))))

    price = _price(used)
    tau = waits(price)
    service_rates = 1.0 / (gaps + tau)
    staleness = weights * service_rates * cycle(tau, gaps, costs)
    return Bound(float(staleness.sum() / weights.sum()), service_rates, price)


def _price(used: Callable[[float], float]) -> float:
    """The smallest price at which the server has time for all that is asked of it."""
    if used(0.0) <= 1.0:
        return 0.0
    low, high = 0.0, 1.0
    while used(high) > 1.0:
        low, high = high, 4.0 * high
    while low < (middle := (low + high) / 2.0) < high:
        low, high = (middle, high) if used(middle) > 1.0 else (low, middle)
    return high


def _keys(rates: ArrayLike, costs: ArrayLike, weights: ArrayLike) -> tuple[Floats, Floats, Floats]:
    """Gaps, costs and weights, one of each per key."""
    columns = [np.asarray(each, np.float64) for each in (rates, costs, weights)]
    for name, column in zip(("rates", "costs", "weights"), columns, strict=True):
        if not (column.size and np.all(np.isfinite(column) & (column > 0.0))):
            raise InputError(f"{name} must be finite numbers above 0, but got {column}")
    try:
        rates, costs, weights = np.broadcast_arrays(*np.atleast_1d(*columns))
    except ValueError:
        shapes = ", ".join(str(column.shape) for column in columns)
        raise InputError(
            f"rates, costs and weights must fit each other, but are {shapes}"
        ) from None
    return 1.0 / rates, costs, weights
