"""F of Definition 10: from the staleness of every key to the staleness of the stream.

A function F takes two float arrays, the staleness of each key and the weight of each key, and
returns a float. ``aggregate`` finds one by name or takes any function of that shape. F is never
called without keys: a stream without keys has staleness 0.

>>> staleness, weights = np.array([0.0, 1.0, 5.0]), np.array([1.0, 1.0, 2.0])
>>> mean(staleness, weights), maximum(staleness, weights), weighted_mean(staleness, weights)
(2.0, 5.0, 2.75)
>>> aggregate("p50")(staleness, weights)
1.0
>>> aggregate(lambda s, w: float((s > 0.5).sum()))(staleness, weights)
2.0
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from upstream.errors import InputError

__all__ = ["F", "Floats", "aggregate", "maximum", "mean", "quantile", "weighted_mean"]

Floats: TypeAlias = NDArray[np.float64]
F: TypeAlias = Callable[[Floats, Floats], float]

PERCENTILE = re.compile(r"p(\d+(?:\.\d+)?)")


def mean(staleness: Floats, weights: Floats) -> float:
    """Every key counts the same: (1/n) * sum over k of S_k."""
    return float(staleness.mean())


def maximum(staleness: Floats, weights: Floats) -> float:
    """The stalest key."""
    return float(staleness.max())


def weighted_mean(staleness: Floats, weights: Floats) -> float:
    """Important keys count more: sum of w_k * S_k / sum of w_k; 0 when all weights are 0."""
    whole = float(weights.sum())
    return float(weights @ staleness) / whole if whole > 0.0 else 0.0


def quantile(q: float) -> F:
    """The staleness that a share `q` of the keys does not exceed, interpolated linearly."""
    if not 0.0 <= q <= 1.0:
        raise InputError(
            f"a quantile lies between 0 and 1, but {q!r} was asked for; "
            "for a percentage use a name such as 'p95'"
        )

    def of(staleness: Floats, weights: Floats) -> float:
        return float(np.quantile(staleness, q))

    of.__name__ = f"quantile({q})"
    return of


NAMED: dict[str, F] = {"mean": mean, "max": maximum, "weighted_mean": weighted_mean}


def aggregate(function: str | F) -> F:
    """F by its name, ``mean``, ``max``, ``weighted_mean`` or ``p0`` to ``p100``; or F itself."""
    if callable(function):
        return function
    name = str(function)
    if name in NAMED:
        return NAMED[name]
    percentile = PERCENTILE.fullmatch(name)
    if percentile is not None and float(percentile[1]) <= 100.0:
        return quantile(float(percentile[1]) / 100.0)
    raise InputError(
        f"staleness of a stream cannot be taken with {function!r}; allowed are 'mean', 'max', "
        "'weighted_mean', a percentile from 'p0' to 'p100' such as 'p95' or 'p99.9', or a "
        "function of two float arrays, staleness and weight of every key, that returns a float"
    )
