"""How often keys update: shares of a stream of one update per time unit.

Every function gives the update rates of `keys` keys, which add up to 1.

>>> two_class(4, slow=2, skew=9.0).tolist()
[0.45, 0.45, 0.05, 0.05]
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from simulator.seeds import random
from upstream.errors import InputError

__all__ = ["Floats", "lognormal", "pareto", "portfolio", "two_class", "uniform", "zipf"]

Floats = NDArray[np.float64]


def uniform(keys: int) -> Floats:
    """All keys alike."""
    return _shares(np.ones(_count(keys)))


def two_class(keys: int, slow: int, skew: float) -> Floats:
    """`slow` keys that update `skew` times less often than the others, which come first."""
    if not 0 <= slow <= keys:
        raise InputError(f"{slow} of {keys} keys cannot be slow: expected 0 to {keys}")
    fast = np.full(_count(keys) - slow, _positive(skew, "the skew"))
    return _shares(np.concatenate([fast, np.ones(slow)]))


def zipf(keys: int, theta: float) -> Floats:
    """The k-th key updates in proportion to 1 / k^theta."""
    if not 0.0 <= theta < 100.0:
        raise InputError(f"theta of a Zipf distribution must be 0 or more, but is {theta}")
    return _shares(np.arange(1.0, _count(keys) + 1.0) ** -theta)


def lognormal(keys: int, sigma: float, seed: int = 0) -> Floats:
    """Rates drawn from exp(sigma * N(0, 1)), the fastest key first."""
    sigma = _positive(sigma, "sigma of a lognormal distribution")
    return _drawn(keys, seed, lambda normal, _: np.exp(sigma * normal))


def pareto(keys: int, alpha: float, seed: int = 0) -> Floats:
    """Rates drawn from a Pareto distribution, P(rate > x) = x^-alpha; the fastest key first."""
    alpha = _positive(alpha, "alpha of a Pareto distribution")
    return _drawn(keys, seed, lambda _, uniform: (1.0 - uniform) ** (-1.0 / alpha))


def portfolio(rates: Floats, size: int) -> Floats:
    """`size` of the keys, spread evenly over the range from the fastest to the slowest."""
    if not 0 < size <= len(rates):
        raise InputError(f"a portfolio of {size} out of {len(rates)} keys cannot be made")
    places = (np.arange(size) + 0.5) * len(rates) / size  # the middle of each part
    return _shares(np.sort(rates)[::-1][places.astype(np.int64)])


def _drawn(keys: int, seed: int, rate: Callable[[Floats, Floats], Floats]) -> Floats:
    numbers = random(seed, "rates")
    count = _count(keys)
    drawn = rate(numbers.standard_normal(count), numbers.random(count))
    return _shares(np.sort(drawn)[::-1])


def _shares(rates: Floats) -> Floats:
    return np.asarray(rates / rates.sum(), np.float64)


def _count(keys: int) -> int:
    if keys < 1:
        raise InputError(f"a stream needs at least 1 key, but {keys} were asked for")
    return keys


def _positive(value: float, name: str) -> float:
    if not 0.0 < value < float("inf"):
        raise InputError(f"{name} must be a number above 0, but is {value}")
    return value
