"""Runs that several studies need: one workload, several seeds, an average."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from simulator.arrivals import Stream, slots
from simulator.costs import Cost, PerUnit
from simulator.experiment import Row, average
from simulator.model import simulate
from simulator.rates import Floats
from simulator.result import Result

__all__ = ["compared", "mean", "runs"]

WARMUP = 0.1  # part of the time that averages leave out


def runs(
    shares: Floats,
    cost: float | Cost,
    policy: str,
    *,
    updates: int,
    seeds: int = 1,
    process: Callable[[Floats, int, int], Stream] = slots,
    **settings: Any,
) -> list[Result]:
    """One update per time unit, and so many time units per result; seeds 1, 2, ...

    In slots the cost should be a whole number: with another, updates and results meet in a
    different rhythm, and that alone makes 3 %.
    """
    service = PerUnit(cost) if isinstance(cost, int | float) else cost
    settings = {"rates": "known", "warmup": WARMUP, **settings}
    return [
        simulate(process(shares, updates, seed), policy=policy, cost=service, **settings)
        for seed in range(1, seeds + 1)
    ]


def mean(results: list[Result], name: str) -> float:
    """A number of the results, averaged over the seeds."""
    return average([float(getattr(result, name)) for result in results])


def compared(shares: Floats, load: float, policies: tuple[str, ...], *, updates: int) -> Row:
    """Per policy, the queue staleness by Definition 10 and, behind it, per output."""
    row: Row = {}
    for policy in policies:
        found = runs(shares, load, policy, updates=updates)
        row[policy] = mean(found, "queue_staleness")
        row[f"{policy} per output"] = mean(found, "queue_staleness_per_output")
    return row
