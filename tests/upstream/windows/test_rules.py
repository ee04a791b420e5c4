"""The rules against their definitions by search, and on every kind of number alike."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba import njit

from upstream.windows import rules

RULES: dict[str, Callable[..., Any]] = {
    name: getattr(rules, name) for name in rules.__all__ if callable(getattr(rules, name))
}

VALUES = st.integers(-60, 60)
SIZES = st.integers(1, 12)
SLIDES = st.integers(1, 12)  # above the size: gaps between windows
ORIGINS = st.integers(-20, 20)
SEARCHED = range(-120, 121)  # ids beyond all that the values above can reach


@given(VALUES, ORIGINS, SIZES, SLIDES)
def test_sliding(t: int, origin: int, size: int, slide: int) -> None:
    start = {w: origin + w * slide for w in SEARCHED}
    assert all(rules.window_start(w, origin, slide) == start[w] for w in SEARCHED)
    assert all(rules.window_end(w, origin, size, slide) == start[w] + size for w in SEARCHED)
    first, last = rules.first_wid(t, origin, size, slide), rules.last_wid(t, origin, slide)
    holding = [w for w in SEARCHED if t in range(start[w], start[w] + size)]
    assert list(range(first, last + 1)) == holding
    closed = [w for w in SEARCHED if start[w] + size <= t]
    assert rules.last_closed(t, origin, size, slide) == max(closed)
    assert rules.last_started(t, origin, slide) == max(w for w in SEARCHED if start[w] <= t)


@given(VALUES, ORIGINS, SLIDES)
def test_landmark(t: int, origin: int, slide: int) -> None:
    end = {w: origin + (w + 1) * slide for w in SEARCHED}
    assert all(rules.landmark_end(w, origin, slide) == end[w] for w in SEARCHED)
    assert rules.landmark_first_wid(t, origin, slide) == min(w for w in SEARCHED if t < end[w])
    closed = rules.landmark_last_closed(t, origin, slide)
    assert closed == max(w for w in SEARCHED if end[w] <= t)
    assert rules.landmark_last_started(t, origin, slide) == closed + 1


@given(VALUES, SIZES)
def test_slide_by_tuple(t: int, size: int) -> None:
    holding = [w for w in SEARCHED if w - size < t <= w]
    assert [w for w in SEARCHED if rules.tuple_start(w, size) <= t < rules.tuple_end(w)] == holding
    assert list(range(t, rules.tuple_last_wid(t, size) + 1)) == holding
    assert rules.tuple_last_closed(t) == max(w for w in SEARCHED if rules.tuple_end(w) <= t)


@given(st.integers(-50, 50), VALUES, ORIGINS, SIZES, SLIDES)
def test_a_window_that_is_closed_gets_no_value_any_more(
    lwm: int, later: int, origin: int, size: int, slide: int
) -> None:
    t = lwm + abs(later)
    assert rules.first_wid(t, origin, size, slide) > rules.last_closed(lwm, origin, size, slide)
    assert rules.landmark_first_wid(t, origin, slide) > rules.landmark_last_closed(
        lwm, origin, slide
    )
    assert t > rules.tuple_last_closed(lwm)


NUMBERS = {"origin": -7, "size": 5, "slide": 3}


@pytest.mark.parametrize("name", RULES)
def test_integers_arrays_and_compiled_code_agree(name: str) -> None:
    rule = RULES[name]
    _, *parameters = inspect.signature(rule).parameters
    arguments = [NUMBERS[parameter] for parameter in parameters]
    values = [*range(-40, 41), -(10**18), 10**18]
    expected = [rule(value, *arguments) for value in values]
    in_array = rule(np.array(values), *arguments)
    assert in_array.dtype == np.int64
    assert in_array.tolist() == expected
    compiled = njit(rule)
    assert [compiled(value, *arguments) for value in values] == expected
    assert compiled(np.array(values), *arguments).tolist() == expected
