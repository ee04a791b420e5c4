"""How staleness changes: the few rules that every online measurement follows.

Between two events the staleness of a stale key grows by one second per second and that of a
fresh key stays 0. So nothing has to be touched while time passes; it is enough to know, for each
key, since when it is stale, and for the stream, how many keys are stale.

For the stream, a record of type ``TOTALS`` holds at the instant ``at``, with K keys of which N are
stale, and T = sum over keys of S_k(at)::

    keys = K    stale_keys = N    total = T
    area      = integral of T dt      from `started` to `at`
    mean_area = integral of T/K dt    from `started` to `at`; the integrand is 0 while K = 0

and moving on by d seconds without an event gives, exactly::

    area      += d * (T + N * d / 2)
    mean_area += d * (T + N * d / 2) / K
    total     += N * d

Every rule first moves the record to the instant of its event, so K and N are constant in between.
``mean_area / (at - started)`` is then Definition 10 with the mean as F, without sampling.

For each key the owner stores three numbers: `born` (the instant it became known), `since` (u, the
arrival of the first update newer than the delivered answer, or ``FRESH``) and `area`. They obey,
at every instant t from the last change of the key on::

    integral of S_k from born to t = area                   while the key is fresh
                                   = area + (t - u)^2 / 2   while it is stale since u

so reading a key's average divides this by t - born, and a key that nothing happens to costs
nothing. A delivery at time t moves u to v, the arrival of the first update newer than the new
answer. The integral itself does not jump, which fixes the new `area`::

    area' + (t - v)^2 / 2 = area + (t - u)^2 / 2

When the key becomes fresh, the term with v is absent. When it stays stale (v < t), the triangle
that v will claim later, (t - v)^2 / 2, is taken off in advance; `area` alone is therefore not an
integral, and may even be negative after a give-back has moved v before u.

The functions are compiled by numba and are called alike from Python and from other compiled
code. A record is passed by reference: ``totals = new_totals(0.0)[0]`` is a view of the array. Time
never runs backward: an event earlier than ``totals["at"]`` counts as happening at ``totals["at"]``.

>>> totals = new_totals(0.0)[0]
>>> add_key(totals, 0.0)
>>> rise(totals, 1.0, 1.0)            # stale since 1: an update arrived
>>> fall(totals, 1.0, 3.0, 4.0)       # an answer at 4; another update had arrived at 3
>>> float(totals["total"])            # so the key is stale by 4 - 3
1.0
>>> area = key_area(0.0, 1.0, 3.0, 4.0)
>>> area + (4.0 - 3.0) ** 2 / 2       # the integral so far: (4 - 1)^2 / 2
4.5
>>> float(totals["area"])
4.5
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

__all__ = [
    "FRESH",
    "TOTALS",
    "add_key",
    "advance",
    "answer",
    "drop_key",
    "fall",
    "key_area",
    "new_totals",
    "rise",
]

TOTALS = np.dtype(
    [
        ("at", "f8"),  # the instant that the record describes, seconds
        ("started", "f8"),  # where the integrals begin, seconds
        ("keys", "i8"),  # keys known
        ("stale_keys", "i8"),  # of these, stale
        ("total", "f8"),  # sum of the keys' staleness at `at`, seconds
        ("area", "f8"),  # integral of `total`, seconds squared
        ("mean_area", "f8"),  # integral of `total / keys`, seconds squared
        ("latency_sum", "f8"),  # over delivered units, seconds
        ("latency_max", "f8"),  # over delivered units, seconds
        ("delivered", "i8"),  # units delivered
        ("arrived", "i8"),  # updates arrived
    ]
)

FRESH = float("nan")
"""The `since` of a key whose delivered answer reflects everything that arrived."""


def new_totals(started: float) -> NDArray[np.void]:
    """An array of one ``TOTALS`` record without keys, whose integrals begin at `started`."""
    totals = np.zeros(1, TOTALS)
    totals["at"] = totals["started"] = started
    return totals


@njit(cache=True, nogil=True)
def advance(totals: np.void, at: float) -> None:
    """Move the record to the instant `at`; does nothing when it is there or beyond."""
    elapsed = at - totals["at"]
    if not elapsed > 0.0:
        return
    grown = elapsed * (totals["total"] + totals["stale_keys"] * elapsed / 2.0)
    totals["area"] += grown
    if totals["keys"] > 0:
        totals["mean_area"] += grown / totals["keys"]
    totals["total"] += totals["stale_keys"] * elapsed
    totals["at"] = at


@njit(cache=True, nogil=True)
def add_key(totals: np.void, at: float) -> None:
    """A key becomes known, fresh."""
    advance(totals, at)
    totals["keys"] += 1


@njit(cache=True, nogil=True)
def drop_key(totals: np.void, since: float, at: float) -> None:
    """A key is forgotten; `since` is its own, ``FRESH`` or the instant it is stale since."""
    fall(totals, since, FRESH, at)
    totals["keys"] -= 1


@njit(cache=True, nogil=True)
def rise(totals: np.void, since: float, at: float) -> None:
    """A fresh key becomes stale since `since`, not later than `at`.

    The two are equal when an update arrives. A given-back unit is older than its return; the
    past that was measured without it stays as it was measured.
    """
    advance(totals, at)
    totals["stale_keys"] += 1
    totals["total"] += totals["at"] - since


@njit(cache=True, nogil=True)
def fall(totals: np.void, since: float, next_since: float, at: float) -> None:
    """A key that was stale since `since` is, from `at` on, stale since `next_since`.

    ``FRESH`` for `next_since` is a delivery that leaves nothing newer; for `since` it makes the
    rule the same as ``rise``.
    """
    advance(totals, at)
    if not math.isnan(since):
        totals["stale_keys"] -= 1
        totals["total"] -= totals["at"] - since
    if not math.isnan(next_since):
        totals["stale_keys"] += 1
        totals["total"] += totals["at"] - next_since
    if totals["stale_keys"] == 0:
        totals["total"] = 0.0  # ends what rounding may have left


@njit(cache=True, nogil=True)
def answer(totals: np.void, arrived: float, at: float) -> None:
    """Count a delivered unit whose newest update arrived at `arrived`."""
    latency = max(at - arrived, 0.0)
    totals["delivered"] += 1
    totals["latency_sum"] += latency
    totals["latency_max"] = max(totals["latency_max"], latency)


@njit(cache=True, nogil=True)
def key_area(area: float, since: float, next_since: float, at: float) -> float:
    """The key's stored `area` after its `since` became `next_since` at `at`.

    `at` is ``totals["at"]`` after the change of the totals, so that both agree on the instant.
    """
    if math.isnan(since):
        if math.isnan(next_since):
            return area
        return area - (at - next_since) ** 2 / 2.0
    if math.isnan(next_since):
        return area + (at - since) ** 2 / 2.0
    # a^2 - b^2 as (a - b)(a + b): two long triangles cancel without losing digits
    return area + (next_since - since) * ((at - since) + (at - next_since)) / 2.0
