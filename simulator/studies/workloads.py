"""The workloads that our own studies share, by name."""

from __future__ import annotations

from collections.abc import Callable

from simulator import rates
from simulator.rates import Floats

__all__ = ["WORKLOADS"]

WORKLOADS: dict[str, Callable[[], Floats]] = {
    "uniform 10": lambda: rates.uniform(10),
    "20/10 skew 10": lambda: rates.two_class(20, 10, 10.0),
    "20/10 skew 25": lambda: rates.two_class(20, 10, 25.0),
    "20/10 skew 50": lambda: rates.two_class(20, 10, 50.0),
    "20/10 skew 100": lambda: rates.two_class(20, 10, 100.0),
    "20/14 skew 50": lambda: rates.two_class(20, 14, 50.0),
    "20/16 skew 50": lambda: rates.two_class(20, 16, 50.0),
    "Zipf 0.99 x 100": lambda: rates.zipf(100, 0.99),
    "Zipf 0.99 x 1000": lambda: rates.zipf(1000, 0.99),
    "lognormal 2.0 x 1000": lambda: rates.lognormal(1000, 2.0),
    "Pareto 1.0 x 3000": lambda: rates.pareto(3000, 1.0),
}
