"""What the queue is told: weights, and where a study wants it so, true rates and costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from simulator.rates import Floats

__all__ = ["knowledge"]


def knowledge(
    rates: Floats, costs: Floats, weights: Floats | None = None, *, known: bool
) -> dict[str, Any]:
    """Options of `open_queue`: a rule for every key of which there is something to say.

    `costs` has those of every key, or one for all. Where they differ, keys of equal cost make
    a cost class. The queue is told whose cost is whose in any case, and how much it is, like
    the rates, only where they are `known`.

    >>> knowledge(np.array([0.5, 0.25]), np.array([3.0]), known=True)["rules"]
    [{'key': '0', 'rate': 0.5}, {'key': '1', 'rate': 0.25}]
    """
    about: dict[str, Sequence[Any]] = {}
    told: dict[str, Any] = {}
    if weights is not None:
        about["weight"] = weights.tolist()
    if known:
        about["rate"] = rates.tolist()
    distinct, classes = np.unique(costs, return_inverse=True)
    if len(distinct) > 1:
        about["cost_class"] = [f"cost-{number}" for number in classes]
    if known:
        table = {f"cost-{number}": cost for number, cost in enumerate(distinct.tolist())}
        told["cost_seconds"] = table if len(table) > 1 else table["cost-0"]
    if about:
        told["rules"] = [
            {"key": str(key), **{name: column[key] for name, column in about.items()}}
            for key in range(len(rates))
        ]
    return told
