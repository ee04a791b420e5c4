"""When updates come, and of which key: seeded streams from the rates of keys.

    slots      one update per time unit, its key drawn by probability
    poisson    every key at random times, independently
    periodic   every key at equal distances, from a random start
    bursty     every key is silent most of the time, and then updates fast for a while
    drifting   slots in which the keys swap their rates every now and then

The rates are per time unit, and those of all keys should add up to 1. Slots fall on whole
numbers: with a whole cost, an update and the end of a service can meet at one instant, which
rounding must not tear apart.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.rates import Floats
from simulator.seeds import random
from upstream.errors import InputError

__all__ = ["PROCESSES", "Stream", "bursty", "drifting", "periodic", "poisson", "slots"]

Ints = NDArray[np.int64]


class Stream(NamedTuple):
    """Updates in the order of their arrival."""

    times: Floats  # when each arrives; never decreases
    keys: Ints  # whose update it is: the keys are numbered from 0
    rates: Floats  # updates per time unit of each key
    memoryless: bool = True  # whether the lower bounds hold: see simulator.bounds
    event_times: Floats | None = None  # the source's time where updates arrive out of order
    names: tuple[str, ...] = ()  # of the keys, where they have any

    @property
    def rate(self) -> float:
        """Updates per time unit of all keys together."""
        return float(self.rates.sum())


def slots(rates: Floats, updates: int, seed: int = 0) -> Stream:
    """One update per time unit; whose it is, is drawn in proportion to the rates."""
    shares = rates / rates.sum()
    keys = random(seed, "arrivals").choice(len(rates), _count(updates), p=shares)
    return Stream(np.arange(updates, dtype=np.float64), keys, shares)


def poisson(rates: Floats, updates: int, seed: int = 0) -> Stream:
    """Exponential gaps between the updates of the stream, and so between those of each key."""
    numbers = random(seed, "arrivals")
    rate = float(rates.sum())
    times = np.cumsum(numbers.exponential(1.0 / rate, _count(updates)))
    keys = numbers.choice(len(rates), updates, p=rates / rate)
    return Stream(times, keys, rates)


def periodic(rates: Floats, updates: int, seed: int = 0) -> Stream:
    """Each key updates every 1/r, the first time somewhere in the first 1/r."""
    # Few digits, so that they are not rounded away when time goes on.
    phases = np.floor(random(seed, "arrivals").random(len(rates)) * 2**20) / 2**20
    # Enough to be cut: a key falls short of its share by less than one update.
    until = (_count(updates) + len(rates)) / float(rates.sum())
    each = [
        (np.arange(np.ceil(until * rate - phase)) + phase) / rate
        for rate, phase in zip(rates, phases, strict=True)
    ]
    return _merged(each, rates, updates)


def bursty(
    rates: Floats, updates: int, seed: int = 0, *, burst: float = 10.0, duty: float = 0.1
) -> Stream:
    """Each key is on for a share `duty` of the time, with about `burst` updates each time.

    While on, it updates as a Poisson process of rate r / duty; on and off times are
    exponential.
    """
    if not (burst > 0.0 and 0.0 < duty <= 1.0):
        raise InputError(
            f"bursts need more than 0 updates and a duty of 0 to 1, but got {burst} and {duty}"
        )
    until = (_count(updates) + 10.0) / float(rates.sum())
    while True:
        numbers = random(seed, "arrivals")
        each = [_bursts(rate, until, burst, duty, numbers) for rate in rates.tolist()]
        if sum(map(len, each)) >= updates:
            return _merged(each, rates, updates)._replace(memoryless=False)
        until *= 1.3


def _bursts(
    rate: float, until: float, burst: float, duty: float, numbers: np.random.Generator
) -> Floats:
    on, off = burst * duty / rate, burst * (1.0 - duty) / rate
    count = int(2.0 * until / (on + off)) + 20
    ons, offs = numbers.exponential(on, count), numbers.exponential(off, count)
    if numbers.random() < duty:  # it begins in the middle of a burst
        offs[0] = 0.0
    worked = np.cumsum(ons)  # time spent being on, at the end of each burst
    made = numbers.poisson(worked[-1] * rate / duty)
    at = np.sort(numbers.uniform(0.0, worked[-1], made))
    times = at + np.cumsum(offs)[np.searchsorted(worked, at)]
    return np.asarray(times[times <= until], np.float64)


def drifting(rates: Floats, updates: int, seed: int = 0, *, every: float = 100.0) -> Stream:
    """Slots in which all keys swap rates after every `every` updates per key."""
    stream = slots(rates, updates, seed)
    span = max(int(every * len(rates)), 1)
    numbers = random(seed, "drift")
    keys = stream.keys.copy()
    for start in range(span, updates, span):
        keys[start : start + span] = numbers.permutation(len(rates))[keys[start : start + span]]
    return stream._replace(keys=keys)


def _merged(each: list[Floats], rates: Floats, updates: int) -> Stream:
    times = np.concatenate(each)
    keys = np.repeat(np.arange(len(each)), [len(own) for own in each])
    order = np.argsort(times, kind="stable")[:updates]
    return Stream(times[order], keys[order], rates)


def _count(updates: int) -> int:
    if updates < 1:
        raise InputError(f"a stream needs at least 1 update, but {updates} were asked for")
    return updates


PROCESSES: dict[str, Callable[[Floats, int, int], Stream]] = {
    "slots": slots,
    "poisson": poisson,
    "periodic": periodic,
    "bursty": bursty,
    "drifting": drifting,
}
