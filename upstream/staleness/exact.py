"""Definitions 8, 9 and 10 taken word by word, from complete lists of events.

This is the slow and obvious answer: the online measurement is tested against it, and a study may
use it on a short trace. Nothing is estimated and time is not sampled.

An update has an arrival time and a sequence number, its place in its key's order. A result o is
delivered at tau(o); of its lineage only n(o) matters, the sequence number of the last update. Then

    Definition 8    S(o)   = tau(o) - a   a = arrival of the FIRST update with a number above n(o)
                           = 0            if none had arrived by tau(o)

    Definition 9    S_k(t) = t - u        u = arrival of the FIRST update with a number above n(o),
                                              o = the result that was delivered last
                           = 0            if none had arrived by t

    Definition 10   S(t)   = F(S_1(t), ..., S_n(t))   over the keys known at t; its average over
                             [t1, t2] is the integral of S(t) dt divided by t2 - t1

A key is known from its first arrival on, and stale until its first result. The printed
Definition 9 starts its last branch at the update that the *next* result is computed from; read so,
a key looks the fresher the more of its updates are skipped. As in the paper's text and Fig. 2, it
starts here at the first update that the delivered result does not know.

Fig. 2: one key, an update every 2 time units (a, b, c, ...), a result takes 3 (a', b', ...). When
b' is out, c and d have arrived; c is skipped. Staleness S and time t::

    5 |                                       o
    4 |                           o       /   |           o
    3 |               o       /   |   /       |       /   |
    2 |           /   |   /       o           |   /       o
    1 |       /       o                       o
    0 +---o-------------------------------------------------------
          0       2       4       6       8       10      12    t
          a       b       c       d       e       f       g
                      a'          b'          d'          e'

>>> updates = [Arrival(2.0 * n, n) for n in range(7)]
>>> a, b, c, d, e, f, g = range(7)
>>> key = KeyEvents(updates, [Delivery(3, a), Delivery(6, b), Delivery(9, d), Delivery(12, e)])
>>> [staleness_of_result(key, result) for result in key.deliveries]     # Definition 8
[1.0, 2.0, 1.0, 2.0]
>>> [latency_of_result(key, result) for result in key.deliveries]       # something else
[3.0, 4.0, 3.0, 4.0]
>>> [staleness_at(key, t) for t in (2.0, 3.0, 5.0, 6.0, 8.5, 9.0)]      # Definition 9
[2.0, 1.0, 3.0, 2.0, 4.5, 1.0]
>>> key_average(key, 0.0, 12.0)                # (4.5 + 7.5 + 10.5 + 7.5) / 12
2.5
>>> stream_average({"k": key}, 0.0, 12.0, "max")                        # Definition 10
2.5

The same functions give **queue staleness** when dequeues are listed in place of deliveries: the
queue's part of the work is done at the dequeue, and `t - first enqueue since` is what is left.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, TypeVar

import numpy as np

from upstream.errors import InputError
from upstream.staleness.aggregates import F, Floats, aggregate

__all__ = [
    "Arrival",
    "Delivery",
    "KeyEvents",
    "Piece",
    "breakpoints",
    "key_average",
    "latency_of_result",
    "per_output_mean",
    "pieces",
    "staleness_at",
    "staleness_of_result",
    "stream_at",
    "stream_average",
    "waits",
]

K = TypeVar("K")

NOTHING = -math.inf  # below every sequence number: no result was delivered yet
SIMPSON_TOLERANCE = 1e-10  # relative to the size of a piece's integral
SIMPSON_DEPTH = 20  # halvings of a piece before a jump of F is taken as located


class Arrival(NamedTuple):
    """An update entered the queue."""

    at: float
    sequence: int  # its place in the order of the key's updates


class Delivery(NamedTuple):
    """A result came out; from then on it is what the application sees."""

    at: float
    sequence: int  # of the last update in its lineage; below all of them: knows nothing


class Piece(NamedTuple):
    """From `start` to `end` staleness is `t - since`, or 0 where `since` is None."""

    start: float
    end: float
    since: float | None


@dataclass(frozen=True)
class KeyEvents:
    """All that happened to one key, in order of time; the order at one instant is the list's.

    A delivery of something older than what was delivered before is taken at its word: the
    application then sees the older result. `forgotten` is when the key stopped counting.
    """

    arrivals: Sequence[Arrival]
    deliveries: Sequence[Delivery] = ()
    forgotten: float = math.inf

    def __post_init__(self) -> None:
        if not self.arrivals:
            raise InputError("a key is known by its first arrival, but no arrival is listed")
        for one, other in pairwise(self.arrivals):
            if not (one.at <= other.at and one.sequence < other.sequence):
                raise InputError(
                    f"arrivals must be listed in order of time and of sequence, but {other} "
                    f"follows {one}; were the updates of several keys put into one list?"
                )
        for first, second in pairwise(self.deliveries):
            if not first.at <= second.at:
                raise InputError(
                    f"deliveries must be listed in order of time, but {second} follows {first}"
                )
        for delivery in self.deliveries:
            known = [a for a in self.arrivals if a.sequence == delivery.sequence]
            if known and known[0].at > delivery.at:
                raise InputError(
                    f"{delivery} cannot be computed from {known[0]}, which arrived later; "
                    "were arrival and delivery times taken from different clocks?"
                )

    @property
    def born(self) -> float:
        """The first arrival: from here on the key counts."""
        return self.arrivals[0].at


def _first_newer(key: KeyEvents, sequence: float, t: float) -> float | None:
    """Arrival of the first update beyond `sequence`, if it had arrived by `t`."""
    newer = [arrival.at for arrival in key.arrivals if arrival.sequence > sequence]
    return newer[0] if newer and newer[0] <= t else None


def _stale_since(key: KeyEvents, t: float) -> float | None:
    delivered = [d.sequence for d in key.deliveries if d.at <= t]
    return _first_newer(key, delivered[-1] if delivered else NOTHING, t)


def staleness_of_result(key: KeyEvents, result: Delivery) -> float:
    """Definition 8: how long the result was already superseded when it was delivered."""
    since = _first_newer(key, result.sequence, result.at)
    return 0.0 if since is None else result.at - since


def latency_of_result(key: KeyEvents, result: Delivery) -> float:
    """Delivery minus arrival of the last update in the result's lineage."""
    arrived = [arrival.at for arrival in key.arrivals if arrival.sequence == result.sequence]
    if not arrived:
        raise InputError(f"{result} is computed from an update that is not among the arrivals")
    return result.at - arrived[0]


def staleness_at(key: KeyEvents, t: float) -> float:
    """Definition 9, all that happens at `t` included; 0 before the key is known."""
    since = _stale_since(key, t)
    return 0.0 if since is None else t - since


def breakpoints(key: KeyEvents) -> list[float]:
    """The instants where S_k can bend or jump; between them it is a straight line."""
    instants = {a.at for a in key.arrivals} | {d.at for d in key.deliveries}
    if key.forgotten < math.inf:
        instants.add(key.forgotten)
    return sorted(instants)


def pieces(key: KeyEvents, t1: float, t2: float) -> list[Piece]:
    """The straight lines that S_k consists of between `t1` and `t2`."""
    inside = [t for t in breakpoints(key) if t1 < t < t2]
    return [Piece(a, b, _stale_since(key, a)) for a, b in pairwise([t1, *inside, t2])]


def key_average(key: KeyEvents, t1: float, t2: float) -> float:
    """The time average of S_k over [t1, t2], exact; S_k(t1) when the interval is empty."""
    if t1 == t2:
        return staleness_at(key, t1)
    _check_interval(t1, t2)
    area = 0.0
    for start, end, since in pieces(key, t1, t2):
        if since is not None:
            area += (end - start) * ((start - since) + (end - since)) / 2.0
    return area / (t2 - t1)


def stream_at(
    keys: Mapping[K, KeyEvents],
    t: float,
    function: str | F = "mean",
    weights: Mapping[K, float] | None = None,
) -> float:
    """Definition 10 at one instant; 0 while no key is known. Keys without a weight have 1."""
    age, weight = _known(keys, t, weights)
    return _value(aggregate(function), age, weight, 0.0)


def stream_average(
    keys: Mapping[K, KeyEvents],
    t1: float,
    t2: float,
    function: str | F = "mean",
    weights: Mapping[K, float] | None = None,
) -> float:
    """Definition 10 averaged over [t1, t2].

    Between two breakpoints of any key every S_k is a line, rising by 1 or resting at 0, so the
    order of the keys does not change there, and mean, weighted mean, maximum and quantiles are
    lines as well. Simpson's rule on each piece is exact for lines and up to cubic polynomials,
    which covers these four and, for instance, a variance. A piece of any other F is halved until
    its integral stops changing: smooth functions come out to about 10 digits. An F that jumps
    within a piece, such as the share of keys above a threshold, is right to the piece's length
    divided by 2^20 if the first five points of the piece show the jump; one that hides between
    them can be missed.
    """
    if t1 == t2:
        return stream_at(keys, t1, function, weights)
    _check_interval(t1, t2)
    chosen = aggregate(function)
    inside = {t for key in keys.values() for t in breakpoints(key) if t1 < t < t2}
    area = 0.0
    for start, end in pairwise([t1, *sorted(inside), t2]):
        age, weight = _known(keys, start, weights)
        area += _integral(chosen, age, weight, end - start)
    return area / (t2 - t1)


def waits(key: KeyEvents) -> list[float]:
    """How long the key had waited at each dequeue; `key.deliveries` lists the dequeues.

    An entry that goes back to an older sequence number is a give-back and no output.
    """
    found: list[float] = []
    held = NOTHING
    for taken in key.deliveries:
        since = _first_newer(key, held, taken.at)
        if taken.sequence > held and since is not None:
            found.append(taken.at - since)
        held = taken.sequence
    return found


def per_output_mean(keys: Mapping[K, KeyEvents]) -> float:
    """The other average: mean wait at dequeue of each key, averaged over keys with an output.

    It counts what leaves, not how time was spent, and so it is not Definition 10; the paper's
    Figs. 8 and 9 show it. 0 when nothing was dequeued.

    >>> quick = KeyEvents([Arrival(0, 0), Arrival(1, 1)], [Delivery(1, 0), Delivery(2, 1)])
    >>> slow = KeyEvents([Arrival(0, 0)], [Delivery(9, 0)])
    >>> per_output_mean({"quick": quick, "slow": slow})    # (mean of 1, 1) and 9
    5.0
    """
    means = [sum(found) / len(found) for found in map(waits, keys.values()) if found]
    return sum(means) / len(means) if means else 0.0


def _check_interval(t1: float, t2: float) -> None:
    if not t1 < t2:
        raise InputError(f"an interval must end after it starts, but [{t1}, {t2}] was given")


def _known(
    keys: Mapping[K, KeyEvents], t: float, weights: Mapping[K, float] | None
) -> tuple[Floats, Floats]:
    """Staleness (NaN: fresh) and weight of each key that counts at `t`."""
    known = [name for name, key in keys.items() if key.born <= t < key.forgotten]
    since = [_stale_since(keys[name], t) for name in known]
    weight = [1.0 if weights is None else weights.get(name, 1.0) for name in known]
    return np.array([math.nan if u is None else t - u for u in since]), np.array(weight)


def _value(function: F, age: Floats, weight: Floats, later: float) -> float:
    """F, `later` seconds after the instant of `age`, when no event lies between."""
    if not len(age):
        return 0.0
    return function(np.where(np.isnan(age), 0.0, age + later), weight)


def _integral(function: F, age: Floats, weight: Floats, length: float) -> float:
    """Adaptive Simpson over one piece; time counts from its start, to keep all digits."""

    def value(t: float) -> float:
        return _value(function, age, weight, t)

    def simpson(a: float, fa: float, fm: float, b: float, fb: float) -> float:
        return (b - a) / 6.0 * (fa + 4.0 * fm + fb)

    def halve(a: float, fa: float, fm: float, b: float, fb: float, depth: int) -> float:
        m = (a + b) / 2.0
        fl, fr = value((a + m) / 2.0), value((m + b) / 2.0)
        whole = simpson(a, fa, fm, b, fb)
        left, right = simpson(a, fa, fl, m, fm), simpson(m, fm, fr, b, fb)
        size = (b - a) * max(abs(fa), abs(fl), abs(fm), abs(fr), abs(fb))
        if depth == 0 or abs(left + right - whole) <= SIMPSON_TOLERANCE * size:
            return left + right
        return halve(a, fa, fl, m, fm, depth - 1) + halve(m, fm, fr, b, fb, depth - 1)

    return halve(0.0, value(0.0), value(length / 2.0), length, value(length), SIMPSON_DEPTH)
