"""What can be asked at one instant, and the functions F."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from upstream.errors import InputError
from upstream.staleness import (
    FRESH,
    Floats,
    StalenessTracker,
    StalenessView,
    aggregate,
    new_totals,
    quantile,
)


def test_empty_tracker() -> None:
    view = StalenessTracker[str](5.0).view(9.0)
    assert (len(view), view.keys(), view.stalest(3)) == (0, [], [])
    assert (view.stream(), view.stream("p95"), view.average, view.average_over_keys()) == (0,) * 4
    assert (view.queue_stream("max"), view.queue_average, view.quantiles.p99) == (0, 0, 0)
    assert view.within(1.0) == 1.0
    assert math.isnan(view.load_factor)
    assert math.isnan(view.latency_mean)
    assert math.isnan(view.latency_max)


def test_load_factor_is_infinite_while_nothing_is_delivered() -> None:
    tracker = StalenessTracker[str]()
    tracker.arrived("k", 1.0)
    assert tracker.view().load_factor == math.inf


def test_many_keys_quantiles_target_and_stalest() -> None:
    tracker = StalenessTracker[int](freshness_target=20.0)
    for n in range(101):
        tracker.arrived(n, float(n))
    view = tracker.view(100.0)
    assert view.quantiles == (50.0, 95.0, 99.0, 100.0)
    assert view.within() == 21 / 101
    assert view.within(100.0) == 1.0
    assert view.stalest(3) == [(0, 100.0), (1, 99.0), (2, 98.0)]
    assert view.stream("p10") == view.stream(quantile(0.1)) == 10.0


def test_ties_among_the_stalest_keep_the_order_of_keys() -> None:
    tracker = StalenessTracker[int]()
    for n in range(1000):
        tracker.arrived(n, 0.0)
    for n in range(0, 1000, 2):
        tracker.dequeued(n, 1.0)
        tracker.delivered(n, 1.0)
    stalest = [key for key, _ in tracker.view(5.0).stalest(1000)]
    assert stalest == [*range(1, 1000, 2), *range(0, 1000, 2)]


def view_of_a_queue(**extra: Floats) -> StalenessView[str]:
    """What a queue with holes in its table would build: ids are its own slots."""
    totals = new_totals(0.0)[0]
    table = {7: "seven", 9: "nine"}
    return StalenessView(
        at=4.0,
        names=lambda ids: [table[int(i)] for i in ids],
        ids=np.array([7, 9]),
        stale_since=np.array([FRESH, 1.0]),
        area=np.zeros(2),
        born=np.zeros(2),
        weights=np.ones(2),
        totals=totals,
        **extra,  # type: ignore[arg-type]
    )


def test_a_view_translates_ids_and_leaves_the_totals_it_was_given() -> None:
    view = view_of_a_queue(waiting_since=np.array([3.0, FRESH]))
    assert view.stalest(1) == [("nine", 3.0)]
    assert view.keys() == ["seven", "nine"]
    assert view.queue_staleness.tolist() == [1.0, 0.0]
    assert view.totals["at"] == 4.0


BAD: dict[str, Callable[[], object]] = {
    r"allowed are 'mean', 'max'.*'p95'": lambda: view_of_a_queue().stream("average"),
    r"with 'p101'": lambda: aggregate("p101"),
    r"with None": lambda: aggregate(None),  # type: ignore[arg-type]
    r"between 0 and 1, but 95": lambda: quantile(95),
    r"needs a target": lambda: view_of_a_queue().within(),
    r"stalest\(-1\)": lambda: view_of_a_queue().stalest(-1),
    r"no waiting_since": lambda: view_of_a_queue().queue_stream(),
    r"no queue_totals": lambda: view_of_a_queue().queue_average,
}


@pytest.mark.parametrize("message", BAD)
def test_bad_input_says_what_was_needed_and_what_came(message: str) -> None:
    with pytest.raises(InputError, match=message):
        BAD[message]()
