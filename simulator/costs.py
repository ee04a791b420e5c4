"""What it costs to process what a queue hands out: models of the server.

PerUnit     the same for every unit (a unit is an update, or with windows a window)
PerKey      each key has a cost of its own
PerTuple    the same for every update in the units, however many units they make
PerBatch    a fixed part for the batch and a part for each unit: Spark's micro-batches
Measured    drawn from costs that were measured
Scheduling  any of these, and what choosing the next key costs by itself
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

from simulator.arrivals import Ints
from simulator.rates import Floats
from simulator.seeds import random
from upstream.errors import InputError

__all__ = ["Cost", "Handed", "Measured", "PerBatch", "PerKey", "PerTuple", "PerUnit", "Scheduling"]


class Handed(NamedTuple):
    """What the server is given to do."""

    keys: Ints  # of the units, as numbers
    tuples: int  # updates in them that have to be looked at
    waiting: int  # units that the queue chose them from


class Cost(Protocol):
    """How long the server works."""

    def seconds(self, handed: Handed) -> float:
        """Seconds that it takes to process what was handed out."""

    def least(self, limit: float) -> Floats:
        """Seconds per unit, of each key or of any, when up to `limit` are handed out at once.

        It is the mean where costs are drawn, and never more than the truth: bounds need it.
        """


@dataclass(frozen=True)
class PerUnit:
    """`cost` seconds per unit."""

    cost: float

    def __post_init__(self) -> None:
        _check(self.cost)

    def seconds(self, handed: Handed) -> float:
        return self.cost * len(handed.keys)

    def least(self, limit: float) -> Floats:
        return np.array([self.cost])


@dataclass(frozen=True)
class PerKey:
    """`costs[k]` seconds per unit of key k."""

    costs: Floats

    def __post_init__(self) -> None:
        _check(*self.costs.tolist())

    def seconds(self, handed: Handed) -> float:
        return float(self.costs[handed.keys].sum())

    def least(self, limit: float) -> Floats:
        return self.costs


@dataclass(frozen=True)
class PerTuple:
    """`cost` seconds per update."""

    cost: float

    def __post_init__(self) -> None:
        _check(self.cost)

    def seconds(self, handed: Handed) -> float:
        return self.cost * handed.tuples

    def least(self, limit: float) -> Floats:
        return np.array([self.cost])


@dataclass(frozen=True)
class PerBatch:
    """`fixed` seconds per batch, and whatever its units cost."""

    fixed: float
    units: Cost

    def __post_init__(self) -> None:
        _check(self.fixed, at_least=0.0)

    def seconds(self, handed: Handed) -> float:
        return self.fixed + self.units.seconds(handed)

    def least(self, limit: float) -> Floats:
        return self.fixed / limit + self.units.least(limit)


@dataclass
class Measured:
    """For each unit one of the `samples`, in seconds, drawn at random."""

    samples: Sequence[float]
    seed: int = 0
    _numbers: np.random.Generator = field(init=False, repr=False)

    def __post_init__(self) -> None:
        _check(*self.samples)
        self._numbers = random(self.seed, "costs")

    def seconds(self, handed: Handed) -> float:
        return float(self._numbers.choice(self.samples, len(handed.keys)).sum())

    def least(self, limit: float) -> Floats:
        return np.array([np.mean(self.samples)])


@dataclass(frozen=True)
class Scheduling:
    """`fixed` seconds to choose, and `each` for every unit that waits and is looked at."""

    work: Cost
    fixed: float = 0.0
    each: float = 0.0

    def __post_init__(self) -> None:
        _check(self.fixed, self.each, at_least=0.0)

    def seconds(self, handed: Handed) -> float:
        return self.fixed + self.each * handed.waiting + self.work.seconds(handed)

    def least(self, limit: float) -> Floats:
        return self.work.least(limit)


def _check(*costs: float, at_least: float = 1e-12) -> None:
    if not costs:
        raise InputError("there must be at least one cost, but none was given")
    for cost in costs:
        if not at_least <= cost < float("inf"):
            above = "0 or more" if at_least == 0.0 else "above 0"
            raise InputError(f"a cost must be a number of seconds {above}, but got {cost}")
