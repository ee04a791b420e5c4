"""The Statistics Monitor: load, arrivals, and what results cost."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from upstream.queue.statistics import MEMORY_RESULTS, StatisticsMonitor


def monitor(classes: int = 1, given: dict[int, float] | None = None) -> StatisticsMonitor:
    return StatisticsMonitor(np.full(256, 1e-6), classes=classes, given=given or {})


def batch(*counts: int) -> NDArray[np.uint8]:
    """Units of a batch: so many of class 0, of class 1, ..."""
    return np.repeat(np.arange(len(counts), dtype=np.uint8), counts)


class TestLoad:
    def test_nothing_is_known_at_first(self) -> None:
        m = monitor()
        assert math.isnan(m.load_factor)
        assert math.isnan(m.arrival_rate)
        assert math.isnan(m.cost_seconds)
        assert not m.overloaded

    @given(
        steps=st.lists(
            st.tuples(st.integers(0, 500), st.integers(1, 300), st.floats(0.01, 50)),
            min_size=1,
            max_size=40,
        )
    )
    def test_sums_in_which_the_past_fades_with_every_result(
        self, steps: list[tuple[int, int, float]]
    ) -> None:
        m, now = monitor(), 0.0
        for updates, results, seconds in steps:
            now += seconds
            m.arrived(updates // 2)
            m.arrived(updates - updates // 2)
            m.handed_out(results, now)
        later = np.cumsum([0, *(results for _, results, _ in steps[:0:-1])])[::-1]
        faded = 0.5 ** (later / MEMORY_RESULTS)
        arrivals, results, seconds = np.array(steps).T @ faded
        assert m.load_factor == pytest.approx(arrivals / results)
        assert m.arrival_rate == pytest.approx(arrivals / seconds)
        assert m.overloaded == (m.load_factor > 1.05)

    @pytest.mark.parametrize(("before", "after"), [(10, 1), (1, 10)])
    def test_the_load_factor_follows_change(self, before: int, after: int) -> None:
        m = monitor()
        for i in range(100):
            m.arrived(100 * before)
            m.handed_out(100, float(i))
        assert m.load_factor == pytest.approx(before)
        for i in range(40):
            m.arrived(100 * after)
            m.handed_out(100, 100.0 + i)
        assert m.load_factor == pytest.approx(after, rel=0.05)
        assert m.overloaded == (after > 1)


class TestCost:
    def test_one_class_learns_the_mean_time_per_result(self) -> None:
        m = monitor()
        m.delivered(batch(4), 2.0)
        assert m.cost_seconds == m.costs[0] == 0.5
        rng = np.random.default_rng(2)
        for size in rng.integers(1, 50, 200):
            m.delivered(batch(int(size)), 0.2 * size * rng.uniform(0.9, 1.1))
        assert m.costs[0] == pytest.approx(0.2, rel=0.05)
        assert m.cost_seconds == m.costs[0]

    def test_work_begins_at_the_plan_or_at_the_delivery_before(self) -> None:
        m = monitor()
        m.processed(0.0, 10.0, batch(5))
        assert m.costs[0] == 2.0
        m = monitor()
        m.processed(0.0, 10.0, batch(10))  # two batches planned at once, worked on in turn
        m.processed(0.0, 20.0, batch(10))
        assert m.costs[0] == 1.0
        m.processed(15.0, 15.0, batch(10))  # delivered in retrospect: no time passed
        m.processed(0.0, 12.0, batch(10))
        assert m.costs[0] == 1.0

    @pytest.mark.parametrize("costs", [(0.01, 0.5), (3.0, 0.1), (1.0, 1.0)])
    def test_two_classes_are_told_apart_in_mixed_batches(self, costs: tuple[float, float]) -> None:
        m, rng = monitor(classes=2), np.random.default_rng(3)
        for _ in range(150):
            counts = rng.integers(1, 40, 2)
            m.delivered(batch(*counts.tolist()), float(counts @ costs) * rng.uniform(0.99, 1.01))
        assert m.costs[0] == pytest.approx(costs[0], rel=0.05, abs=0.01)
        assert m.costs[1] == pytest.approx(costs[1], rel=0.05, abs=0.01)

    def test_classes_follow_change(self) -> None:
        m, rng = monitor(classes=2), np.random.default_rng(4)
        for costs in ((0.1, 2.0), (1.0, 0.5)):
            for _ in range(400):
                counts = rng.integers(0, 20, 2)
                if counts.sum():
                    m.delivered(batch(*counts.tolist()), float(counts @ costs))
            assert m.costs[:2] == pytest.approx(costs, rel=0.05)

    def test_what_no_batch_tells_apart_stays_sane(self) -> None:
        m = monitor(classes=3)
        for _ in range(3000):
            m.delivered(batch(10, 10), 3.0)
        assert np.isfinite(m.costs).all()
        assert m.costs[0] + m.costs[1] == pytest.approx(0.3, rel=0.05)
        assert (m.costs[:3] > 0).all()
        for _ in range(20):  # a class that is seen at last
            m.delivered(batch(10, 10, 10), 8.0)
            m.delivered(batch(10), 1.0)
        assert m.costs[:3] == pytest.approx([0.1, 0.2, 0.5], rel=0.05)

    def test_costs_are_never_below_a_hundredth_of_the_mean(self) -> None:
        m, rng = monitor(classes=2), np.random.default_rng(5)
        for _ in range(50):
            counts = rng.integers(1, 9, 2)
            m.delivered(batch(*counts.tolist()), float(counts[0]))
        assert m.costs[1] >= 0.01 * m.cost_seconds > 0

    def test_given_costs_stay(self) -> None:
        m, rng = monitor(classes=3, given={0: 0.7, 2: 0.2}), np.random.default_rng(6)
        for _ in range(200):
            counts = rng.integers(1, 9, 3)
            m.delivered(batch(*counts.tolist()), float(counts @ [1.0, 0.4, 5.0]))
        assert m.costs[0] == 0.7
        assert m.costs[1] == pytest.approx(0.4, rel=0.05)
        assert m.costs[2] == 0.2


@pytest.mark.parametrize("classes", [1, 3])
def test_a_loaded_monitor_goes_on_as_if_nothing_had_happened(classes: int) -> None:
    rng = np.random.default_rng(7)
    costs = np.array([0.1, 0.5, 2.0])[:classes]
    old, new = monitor(classes), monitor(classes)

    def live(*monitors: StatisticsMonitor, start: float) -> None:
        for i in range(30):
            counts = rng.integers(1, 9, classes)
            seconds = float(counts @ costs) * rng.uniform(0.8, 1.2)
            for m in monitors:
                m.arrived(int(3 * counts.sum()))
                m.handed_out(int(counts.sum()), start + i)
                m.processed(start + i, start + i + seconds / 100, batch(*counts.tolist()))

    live(old, start=0.0)
    new.load(json.loads(json.dumps(old.dump())))
    for start in (0.0, 30.0):
        assert new.costs.tolist() == pytest.approx(old.costs.tolist())
        assert new.load_factor == pytest.approx(old.load_factor)
        assert new.arrival_rate == pytest.approx(old.arrival_rate)
        assert new.cost_seconds == pytest.approx(old.cost_seconds)
        live(old, new, start=start + 30.0)
    assert new.costs.tolist() == pytest.approx(old.costs.tolist())


def test_costs_that_are_given_now_go_before_what_was_learned() -> None:
    old, new = monitor(), monitor(given={0: 0.25})
    old.delivered(batch(2), 2.0)
    new.load(old.dump())
    assert new.costs[0] == 0.25
