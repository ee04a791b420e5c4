"""The definitions against closed forms, pictures, and plain sampling."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from upstream.errors import InputError
from upstream.staleness import (
    Arrival,
    Delivery,
    F,
    KeyEvents,
    Piece,
    key_average,
    latency_of_result,
    per_output_mean,
    pieces,
    staleness_at,
    staleness_of_result,
    stream_at,
    stream_average,
    waits,
)


def test_figure_2() -> None:
    """One key, an update every 2 time units, cost 3; c is skipped.

    5 |                                       o
    4 |                           o       /   |           o
    3 |               o       /   |   /       |       /   |
    2 |           /   |   /       o           |   /       o
    1 |       /       o                       o
    0 +---o-------------------------------------------------------
          0       2       4       6       8       10      12    t
          a       b       c       d       e       f       g
                      a'          b'          d'          e'
    """
    key = KeyEvents(
        [Arrival(2.0 * n, n) for n in range(7)],
        [Delivery(3.0, 0), Delivery(6.0, 1), Delivery(9.0, 3), Delivery(12.0, 4)],
    )
    lines = {(p.start, p.end): p.since for p in pieces(key, 0.0, 12.0)}
    assert {since for (a, b), since in lines.items() if a >= 3 and b <= 6} == {2.0}
    assert {since for (a, b), since in lines.items() if a >= 6 and b <= 9} == {4.0}
    assert staleness_of_result(key, key.deliveries[2]) == 1.0  # since e, not since c or d
    assert [staleness_at(key, t) for t in (0.0, 2.999, 3.0, 6.0, 9.0)] == pytest.approx(
        [0.0, 2.999, 1.0, 2.0, 1.0]
    )


def test_fresh_until_the_next_update() -> None:
    key = KeyEvents([Arrival(1.0, 0), Arrival(6.0, 1)], [Delivery(3.0, 0)])
    assert pieces(key, 0.0, 8.0) == [
        Piece(0.0, 1.0, None),
        Piece(1.0, 3.0, 1.0),
        Piece(3.0, 6.0, None),
        Piece(6.0, 8.0, 6.0),
    ]
    assert key_average(key, 0.0, 8.0) == (2.0 + 2.0) / 8.0
    assert staleness_of_result(key, key.deliveries[0]) == 0.0


def test_functions_over_two_keys_integrate_exactly() -> None:
    """S_a rises from 0 over [0, 4]; S_b joins at 1, is answered at 3 and stays fresh."""
    keys = {
        "a": KeyEvents([Arrival(0.0, 0)]),
        "b": KeyEvents([Arrival(1.0, 0)], [Delivery(3.0, 0)]),
    }

    def average(function: str | F, weights: dict[str, float] | None = None) -> float:
        return stream_average(keys, 0.0, 4.0, function, weights)

    # integrals over [0, 1], [1, 3] and [3, 4]: of S_a 0.5, 4 and 3.5; of S_b (not known), 2 and 0
    assert average("max") == pytest.approx((0.5 + 4.0 + 3.5) / 4)
    assert average("mean") == pytest.approx((0.5 + (4.0 + 2.0) / 2 + 3.5 / 2) / 4)
    assert average("p0") == pytest.approx((0.5 + 2.0 + 0.0) / 4)
    assert average("weighted_mean", {"a": 3.0}) == pytest.approx(
        (0.5 + (3 * 4.0 + 2.0) / 4 + 3 * 3.5 / 4) / 4
    )
    # a jump inside a piece is found: S_a passes 2.5 at t = 2.5
    assert average(lambda s, w: float(s.max() > 2.5)) == pytest.approx(1.5 / 4, abs=1e-5)
    # between events the two differ by 1, then by S_a: variance 1/4, then S_a^2 / 4
    assert average(lambda s, w: float(s.var())) == pytest.approx(
        (2 * 0.25 + (4**3 - 3**3) / 12) / 4
    )


INSTANTS = st.integers(0, 40).map(lambda n: n / 4)
LISTS = st.lists(INSTANTS, max_size=6)


@st.composite
def key_events(draw: st.DrawFn) -> KeyEvents:
    arrivals = [Arrival(at, n) for n, at in enumerate(sorted(draw(LISTS.filter(bool))))]
    deliveries = [
        Delivery(at, draw(st.sampled_from([-1, *(a.sequence for a in arrivals if a.at <= at)])))
        for at in sorted(draw(LISTS))
    ]
    return KeyEvents(arrivals, deliveries, draw(INSTANTS) + arrivals[-1].at)


@given(st.lists(key_events(), max_size=4), INSTANTS, INSTANTS)
@settings(max_examples=100, deadline=None)
def test_average_over_an_interval_equals_the_mean_of_midpoints(
    events: list[KeyEvents], t1: float, length: float
) -> None:
    """All events lie on quarters, so between them the midpoint of a line is its mean."""
    keys = dict(enumerate(events))
    t2 = t1 + length + 0.25
    middle = np.arange(t1, t2, 0.25) + 0.125
    weights = {0: 5.0, 2: 0.0}
    for function in ("mean", "max", "p50", "p90", "weighted_mean"):
        sampled = np.mean([stream_at(keys, t, function, weights) for t in middle])
        assert stream_average(keys, t1, t2, function, weights) == pytest.approx(sampled)
    for key in events:
        assert key_average(key, t1, t2) == pytest.approx(
            np.mean([staleness_at(key, t) for t in middle])
        )


def test_waits_count_each_output_once_and_no_give_back() -> None:
    key = KeyEvents(
        [Arrival(0.0, 0), Arrival(2.5, 1)],
        [Delivery(2.0, 0), Delivery(3.0, -1), Delivery(5.0, 1)],
    )
    assert waits(key) == [2.0, 5.0]
    assert per_output_mean({}) == 0.0
    assert per_output_mean({"k": key, "unserved": KeyEvents([Arrival(0.0, 0)])}) == 3.5


BAD: dict[str, Callable[[], object]] = {
    r"no arrival is listed": lambda: KeyEvents([]),
    r"order of time and of sequence": lambda: KeyEvents([Arrival(1, 0), Arrival(1, 0)]),
    r"deliveries must be listed": lambda: KeyEvents(
        [Arrival(0, 0)], [Delivery(2, 0), Delivery(1, 0)]
    ),
    r"which arrived later": lambda: KeyEvents([Arrival(5, 0)], [Delivery(2, 0)]),
    r"not among the arrivals": lambda: latency_of_result(
        KeyEvents([Arrival(0, 0)]), Delivery(1, 4)
    ),
    r"must end after it starts": lambda: key_average(KeyEvents([Arrival(0, 0)]), 3.0, 2.0),
}


@pytest.mark.parametrize("message", BAD)
def test_bad_input_says_what_was_needed_and_what_came(message: str) -> None:
    with pytest.raises(InputError, match=message):
        BAD[message]()
