"""The rules alone: what they conserve, and that they reach the record they are given."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba import njit
from numpy.typing import NDArray

from upstream.staleness import (
    FRESH,
    TOTALS,
    add_key,
    advance,
    drop_key,
    fall,
    key_area,
    new_totals,
    rise,
)

TIMES = st.floats(0.0, 100.0)


@njit(nogil=True)
def two_events_in_compiled_code(totals: NDArray[np.void]) -> None:
    rise(totals[0], 1.0, 1.0)
    record = totals[0]
    fall(record, 1.0, FRESH, 3.0)


def test_rules_write_through_a_record_from_python_and_from_compiled_code() -> None:
    totals = new_totals(0.0)
    assert totals.dtype == TOTALS
    add_key(totals[0], 0.0)
    two_events_in_compiled_code(totals)
    assert totals["area"][0] == 2.0
    advance(totals[0], 4.0)
    assert totals["at"][0] == 4.0
    assert totals["total"][0] == 0.0


@given(st.lists(st.floats(0.0, 100.0), min_size=1, max_size=20), st.integers(0, 3))
def test_advancing_in_steps_is_advancing_at_once_and_never_back(
    instants: list[float], stale: int
) -> None:
    stepwise, at_once = new_totals(0.0)[0], new_totals(0.0)[0]
    for totals in (stepwise, at_once):
        for _ in range(3):
            add_key(totals, 0.0)
        for _ in range(stale):
            rise(totals, 0.0, 0.0)
    for at in instants:
        before = stepwise.copy()
        advance(stepwise, at)
        assert all(stepwise[name] >= before[name] for name in TOTALS.names or ())
    advance(at_once, max(instants))
    assert stepwise.item() == pytest.approx(at_once.item(), rel=1e-12)
    assert at_once["area"] == pytest.approx(stale * max(instants) ** 2 / 2, rel=1e-12)
    assert at_once["mean_area"] == pytest.approx(at_once["area"] / 3, rel=1e-12)


@given(st.lists(TIMES, min_size=3, max_size=3).map(sorted), TIMES, st.booleans(), st.booleans())
def test_a_change_keeps_the_integral_of_the_past(
    times: list[float], area: float, was_fresh: bool, gets_fresh: bool
) -> None:
    def integral(area: float, since: float, t: float) -> float:
        return area if math.isnan(since) else area + (t - since) ** 2 / 2

    since = FRESH if was_fresh else times[0]
    next_since = FRESH if gets_fresh else times[1]
    at = times[2]
    changed = key_area(area, since, next_since, at)
    assert integral(changed, next_since, at) == pytest.approx(
        integral(area, since, at), rel=1e-9, abs=1e-9
    )


def test_long_staleness_at_epoch_times_loses_no_digits() -> None:
    start = 1.7e9
    totals = new_totals(start)[0]
    area, since = 0.0, FRESH
    add_key(totals, start)
    for n in range(10_000):  # every second an update, each answered 1000.5 s late
        at = start + n
        if n == 0:
            rise(totals, at, at)
            since = at
        elif n > 1000:
            next_since = at - 999.5
            fall(totals, since, next_since, at + 0.5)
            area = key_area(area, since, next_since, at + 0.5)
            since = next_since
    at = start + 9999.5
    assert totals["total"] == at - since
    assert area + (at - since) ** 2 / 2 == pytest.approx(totals["area"], rel=1e-13)


def test_rounding_ends_when_all_keys_are_fresh() -> None:
    totals = new_totals(0.0)[0]
    for n in range(10):
        add_key(totals, 0.0)
        rise(totals, n * 0.1, n * 0.1)
    for n in range(10):
        fall(totals, n * 0.1, FRESH, 1.0 + n * 0.7)
    assert totals["total"] == 0.0


def test_time_without_keys_counts_as_fresh_in_the_mean() -> None:
    totals = new_totals(0.0)[0]
    advance(totals, 10.0)
    add_key(totals, 10.0)
    rise(totals, 10.0, 10.0)
    drop_key(totals, 10.0, 14.0)
    advance(totals, 20.0)
    assert totals.item()[:7] == (20.0, 0.0, 0, 0, 0.0, 8.0, 8.0)
