from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from simulator.bounds import Bound, application_bound, queue_bound
from upstream.errors import InputError

Floats = NDArray[np.float64]

positive = st.floats(0.01, 100.0)
keys = st.lists(st.tuples(positive, positive, positive), min_size=1, max_size=4)


def columns(each: list[tuple[float, float, float]]) -> tuple[Floats, Floats, Floats]:
    rates, costs, weights = map(np.array, zip(*each, strict=True))
    return rates, costs, weights


def queue_staleness(mu: Floats, rates: Floats, costs: Floats, weights: Floats) -> float:
    """What equal waits of 1/mu - 1/r cost: the sum that the bound minimises, in plain words."""
    total = 0.0
    for m, r, w in zip(mu, rates, weights, strict=True):
        total += w * m * (1 / m - 1 / r) ** 2 / 2
    return total / float(weights.sum())


def application_staleness(mu: Floats, rates: Floats, costs: Floats, weights: Floats) -> float:
    total = 0.0
    for m, r, c, w in zip(mu, rates, costs, weights, strict=True):
        a, tau = 1 / r, 1 / m - 1 / r
        phi = a**2 * (1 - math.exp(-c / a))
        total += w * m * (tau**2 / 2 + c * tau + c * a - phi)
    return total / float(weights.sum())


BOTH = [(queue_bound, queue_staleness), (application_bound, application_staleness)]


@pytest.mark.parametrize(("bound", "staleness"), BOTH)
@given(each=keys, shares=st.lists(st.floats(0.01, 1.0), min_size=4, max_size=4))
def test_no_feasible_sharing_is_below_the_bound(
    bound: Any, staleness: Any, each: list[tuple[float, float, float]], shares: list[float]
) -> None:
    rates, costs, weights = columns(each)
    mu = rates * np.array(shares[: len(rates)])
    mu /= max(float(costs @ mu), 1.0)
    found: Bound = bound(rates, costs, weights)
    tolerance = 1e-7 * (1 + staleness(mu, rates, costs, weights))
    assert found.staleness <= staleness(mu, rates, costs, weights) + tolerance


@pytest.mark.parametrize(("bound", "staleness"), BOTH)
@given(each=keys)
def test_the_bound_is_what_its_sharing_costs(
    bound: Any, staleness: Any, each: list[tuple[float, float, float]]
) -> None:
    rates, costs, weights = columns(each)
    found: Bound = bound(rates, costs, weights)
    assert np.all(found.service_rates <= rates * (1 + 1e-12))
    assert float(costs @ found.service_rates) <= 1 + 1e-9
    expected = staleness(found.service_rates, rates, costs, weights)
    assert found.staleness == pytest.approx(expected, rel=1e-6, abs=1e-9)


@given(each=keys)
def test_one_price_holds_for_all_keys(each: list[tuple[float, float, float]]) -> None:
    """Karush, Kuhn and Tucker: what a key gains by a little more service, per unit of work."""
    rates, costs, weights = columns(each)
    found = queue_bound(rates, costs, weights)
    gain = weights / costs * (1 / found.service_rates**2 - 1 / rates**2) / 2
    assert gain == pytest.approx(np.full_like(gain, found.price), rel=1e-6, abs=1e-9)
    if found.price > 0:
        assert float(costs @ found.service_rates) == pytest.approx(1.0)

    found = application_bound(rates, costs, weights)
    phi = (1 - np.exp(-costs * rates)) / rates**2
    gain = weights / costs * ((1 / found.service_rates**2 - 1 / rates**2) / 2 + phi)
    served = found.service_rates < rates * (1 - 1e-9)
    assert gain[served] == pytest.approx(np.full(served.sum(), found.price), rel=1e-5, abs=1e-9)
    assert np.all(gain[~served] >= found.price * (1 - 1e-5))


def test_a_fine_grid_finds_nothing_better() -> None:
    rates, costs, weights = np.array([2.0, 0.3, 0.05]), np.array([3.0, 1.0, 8.0]), np.ones(3)
    for bound, staleness in BOTH:
        least = math.inf
        for first, second in product(np.linspace(0.002, 1.0, 150), repeat=2):
            mu = np.array([first * rates[0], second * rates[1], 0.0])
            mu[2] = min((1.0 - costs[0] * mu[0] - costs[1] * mu[1]) / costs[2], rates[2])
            if mu[2] > 0:
                least = min(least, staleness(mu, rates, costs, weights))
        found = bound(rates, costs, weights).staleness
        assert found <= least <= 1.005 * found


def test_one_key_has_the_known_values() -> None:
    for cost in (2.0, 5.0, 15.0):
        assert queue_bound([1.0], cost).staleness == pytest.approx((cost - 1) ** 2 / (2 * cost))
        # With periodic updates it is 1.5 C - 1; phi of Poisson arrivals takes off a little.
        phi = 1 - math.exp(-cost)
        expected = 1.5 * cost - 1 + (0.5 - phi) / cost
        assert application_bound([1.0], cost).staleness == pytest.approx(expected)


def test_where_there_is_time_for_all_nobody_waits() -> None:
    found = queue_bound([0.1, 0.2], 2.0)
    assert (found.staleness, found.price, found.service_rates.tolist()) == (0.0, 0.0, [0.1, 0.2])
    assert application_bound([0.1, 0.2], 2.0).staleness > 0.0


def test_equal_keys_share_alike_and_weight_counts_only_among_each_other() -> None:
    found = queue_bound(np.full(10, 0.1), 5.0)
    assert found.service_rates == pytest.approx(np.full(10, 0.02))
    assert queue_bound(np.full(10, 0.1), 5.0, 7.0).staleness == pytest.approx(found.staleness)


@pytest.mark.parametrize(
    ("rates", "costs", "weights"),
    [([], 1.0, 1.0), ([0.0], 1.0, 1.0), ([1.0], -1.0, 1.0), ([1.0, 2.0], [1.0] * 3, 1.0)],
)
def test_what_cannot_be_is_refused(rates: list[float], costs: float, weights: float) -> None:
    with pytest.raises(InputError):
        queue_bound(rates, costs, weights)
