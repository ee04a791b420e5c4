from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from simulator import rates
from simulator.arrivals import PROCESSES, Stream, bursty, drifting, periodic, slots
from simulator.disorder import in_band, in_blocks
from upstream.errors import InputError

every_process = pytest.mark.parametrize("process", PROCESSES.values(), ids=PROCESSES.keys())


def same(one: Stream, other: Stream) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one[:2], other[:2], strict=True))


@every_process
def test_a_seed_gives_the_same_digits(process: Callable[..., Stream]) -> None:
    shares = rates.zipf(7, 0.9)
    assert same(process(shares, 500, 3), process(shares, 500, 3))
    assert not same(process(shares, 500, 3), process(shares, 500, 4))


@every_process
def test_updates_come_in_order_and_in_number(process: Callable[..., Stream]) -> None:
    stream = process(rates.two_class(6, 3, 20.0), 1000, 0)
    assert len(stream.times) == len(stream.keys) == 1000
    assert np.all(np.diff(stream.times) >= 0)
    assert stream.times[-1] == pytest.approx(1000, rel=0.25)


@pytest.mark.parametrize("name", ["slots", "poisson", "periodic", "bursty"])
def test_keys_update_as_often_as_their_rates_say(name: str) -> None:
    shares = rates.zipf(5, 0.99)
    stream = PROCESSES[name](shares, 200_000, 0)
    found = np.bincount(stream.keys) / stream.times[-1]
    assert found == pytest.approx(shares, rel=0.1 if name == "bursty" else 0.02)


def gaps(stream: Stream, key: int) -> rates.Floats:
    return np.asarray(np.diff(stream.times[stream.keys == key]), np.float64)


def test_the_processes_differ_in_how_regular_they_are() -> None:
    variation = {}
    for name in ("slots", "poisson", "periodic", "bursty"):
        own = gaps(PROCESSES[name](rates.uniform(20), 100_000, 0), 0)
        variation[name] = own.std() / own.mean()
    assert variation["periodic"] < 1e-6
    assert variation["slots"] == pytest.approx(np.sqrt(0.95), rel=0.05)
    assert variation["poisson"] == pytest.approx(1.0, rel=0.05)
    assert variation["bursty"] > 3.0


def test_slots_hold_one_update_per_time_unit() -> None:
    for keys in range(1, 30):  # however the shares are rounded
        assert np.array_equal(slots(rates.zipf(keys, 0.9), 10).times, np.arange(10))


def test_periodic_keys_keep_their_distance() -> None:
    stream = periodic(np.array([0.75, 0.25]), 400, 5)
    assert gaps(stream, 0) == pytest.approx(np.full(len(gaps(stream, 0)), 4 / 3))
    assert gaps(stream, 1) == pytest.approx(np.full(len(gaps(stream, 1)), 4.0))


def test_bursts_are_as_long_and_as_rare_as_asked_for() -> None:
    own = gaps(bursty(np.array([1.0]), 50_000, 0, burst=20.0, duty=0.05), 0)
    silences = own > 1.0  # within a burst the mean gap is 0.05, between bursts 19
    assert 1 / silences.mean() == pytest.approx(20.0, rel=0.1)
    assert own[silences].mean() == pytest.approx(19.0 + 1.0, rel=0.1)


def test_drifting_rates_are_the_same_rates_of_other_keys() -> None:
    shares = rates.two_class(10, 5, 100.0)
    stream = drifting(shares, 4000, 0, every=100)
    counts = [np.bincount(part, minlength=10) for part in np.split(stream.keys, 4)]
    fast = [frozenset(np.flatnonzero(count > 50).tolist()) for count in counts]
    assert all(len(each) == 5 for each in fast)
    assert fast[0] == frozenset(range(5))
    assert len(set(fast)) > 1


def test_a_band_delays_an_update_by_less_than_its_width() -> None:
    stream = in_band(slots(rates.uniform(4), 2000, 0), 30.0, seed=2)
    assert stream.event_times is not None
    late = stream.times - stream.event_times
    assert -30 < late.min() < 0 < late.max() < 30
    assert sorted(stream.event_times.tolist()) == list(range(2000))


def test_blocks_are_shuffled_and_stay_in_order() -> None:
    before = slots(rates.uniform(4), 100, 0)
    stream = in_blocks(before, 25.0, seed=2)
    assert stream.event_times is not None
    for start in range(0, 100, 25):
        block = stream.event_times[start : start + 25].tolist()
        assert sorted(block) == list(range(start, start + 25))
        assert block != sorted(block)
    moved = stream.event_times.astype(int)
    assert np.array_equal(stream.keys, before.keys[moved])


@pytest.mark.parametrize(
    "ask",
    [
        lambda: rates.uniform(0),
        lambda: rates.two_class(5, 6, 2.0),
        lambda: rates.two_class(5, 2, 0.0),
        lambda: rates.zipf(5, -0.1),
        lambda: rates.lognormal(5, 0.0),
        lambda: rates.pareto(5, -1.0),
        lambda: rates.portfolio(rates.uniform(5), 6),
        lambda: slots(rates.uniform(5), 0),
        lambda: bursty(rates.uniform(5), 10, duty=0.0),
        lambda: in_band(slots(rates.uniform(2), 10), 0.0),
    ],
)
def test_what_cannot_be_is_refused(ask: Callable[[], object]) -> None:
    with pytest.raises(InputError):
        ask()


@pytest.mark.parametrize(
    "shares",
    [
        rates.uniform(30),
        rates.two_class(30, 10, 50.0),
        rates.zipf(30, 0.99),
        rates.lognormal(30, 2.0, seed=1),
        rates.pareto(30, 1.0, seed=1),
        rates.portfolio(rates.pareto(300, 1.0), 30),
    ],
)
def test_rates_add_up_to_one(shares: rates.Floats) -> None:
    assert len(shares) == 30
    assert shares.sum() == pytest.approx(1.0)
    assert np.all(np.diff(shares) <= 0)


def test_two_classes_have_the_papers_rates() -> None:
    slow = 1 / (4 + 50.0 * (20 - 4))
    assert rates.two_class(20, 4, 50.0) == pytest.approx([50 * slow] * 16 + [slow] * 4)
