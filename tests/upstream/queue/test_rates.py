"""The rate estimate against a transcription of its rule, and what it is good for."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from upstream.queue.key_table import KEY, KNOWN, KNOWN_RATE, key_at
from upstream.queue.rates import gap_at, observe
from upstream.queue.raw import address_of, kernel, load_f64

PRIOR = 123.0

alphas = st.sampled_from([0.05, 0.1, 0.2, 0.3, 1.0])
# Steps of time; 0 puts an update into the same instant as the one before.
steps = st.lists(st.one_of(st.just(0.0), st.floats(1e-3, 1e4)), min_size=1, max_size=60)


@kernel
def _observe_all(key: int, times: int, count: int, alpha: float) -> None:
    for i in range(count):
        observe(key_at(key), load_f64(times + i * 8), alpha)


@kernel
def _gap_at(key: int, now: float, alpha: float, prior: float) -> float:
    return gap_at(key_at(key), now, alpha, prior)


class Estimate:
    """One key's record, on its own."""

    def __init__(self, alpha: float, known_gap: float | None = None) -> None:
        self.alpha = alpha
        self.key = np.zeros(1, KEY)
        for name in ("last", "gap", "span"):
            self.key[name] = np.nan
        self.key["flags"] = KNOWN
        if known_gap is not None:
            self.key["gap"] = known_gap
            self.key["flags"] |= KNOWN_RATE

    def observe(self, times: Sequence[float]) -> None:
        given = np.array(times, np.float64)
        _observe_all(address_of(self.key), address_of(given), len(given), self.alpha)

    def gap_at(self, now: float) -> float:
        return float(_gap_at(address_of(self.key), now, self.alpha, PRIOR))


def plain_rule(times: Sequence[float], alpha: float, now: float) -> float:
    """The documented rule, one gap after the other."""
    groups = [(at, len(list(members))) for at, members in groupby(times)]
    gap, count = PRIOR, 0
    for (before, _), (at, size) in pairwise(groups):
        for _ in range(size):
            count += 1
            latest = (at - before) / size
            gap = latest if count == 1 else gap + max(alpha, 1 / count) * (latest - gap)
    silence = now - times[-1]
    return gap + alpha * (silence - gap) if silence > gap else gap


def regular(gap: float, count: int, start: float = 0.0) -> list[float]:
    return [start + gap * (i + 1) for i in range(count)]


@given(steps=steps, alpha=alphas, start=st.floats(-100, 1e6), silence=st.floats(0, 1e5))
def test_the_estimate_follows_its_rule(
    steps: list[float], alpha: float, start: float, silence: float
) -> None:
    times = (start + np.cumsum(steps)).tolist()
    estimate = Estimate(alpha)
    estimate.observe(times)
    for now in (times[-1], times[-1] + silence):
        expected = plain_rule(times, alpha, now)
        assert estimate.gap_at(now) == pytest.approx(expected, rel=1e-6, abs=1e-6)


@given(steps=steps, alpha=alphas, cut=st.integers(0, 59))
def test_reading_changes_nothing(steps: list[float], alpha: float, cut: int) -> None:
    times = np.cumsum(steps).tolist()
    read_between, undisturbed = Estimate(alpha), Estimate(alpha)
    undisturbed.observe(times)
    read_between.observe(times[:cut])
    read_between.gap_at(times[-1] + 1.0)
    read_between.observe(times[cut:])
    assert read_between.key.tobytes() == undisturbed.key.tobytes()


def test_a_new_key_has_the_prior() -> None:
    estimate = Estimate(0.1)
    estimate.observe([5.0, 5.0, 5.0])
    assert estimate.gap_at(6.0) == PRIOR
    silence = 10 * PRIOR
    assert estimate.gap_at(5.0 + silence) == pytest.approx(PRIOR + 0.1 * (silence - PRIOR))


def test_a_plain_mean_at_first() -> None:
    estimate = Estimate(0.1)
    gaps = [1.0, 5.0, 3.0, 7.0, 2.0]
    estimate.observe([0.0, *np.cumsum(gaps)])
    assert estimate.gap_at(sum(gaps)) == pytest.approx(np.mean(gaps), rel=1e-6)


@pytest.mark.parametrize("size", [2, 50, 1000])
def test_a_batch_of_updates_counts_as_many_gaps(size: int) -> None:
    """However updates are cut into batches, the same number per second is the same rate."""
    estimate = Estimate(0.1)
    estimate.observe([float(at) for at in range(0, 100 * size, size) for _ in range(size)])
    assert estimate.gap_at(99.0 * size) == pytest.approx(1.0, rel=1e-6)


@pytest.mark.parametrize("alpha", [0.05, 0.1, 0.2])
@pytest.mark.parametrize("ratio", [0.01, 0.5, 3.0, 100.0])
def test_it_follows_change(alpha: float, ratio: float) -> None:
    """After n gaps, (1 - alpha)^n of the old estimate is left."""
    estimate = Estimate(alpha)
    estimate.observe(regular(1.0, 500))
    for updates in (1, 5, 20, 60):
        changed = Estimate(alpha)
        changed.key[:] = estimate.key
        times = regular(ratio, updates, start=500.0)
        changed.observe(times)
        left = (1 - alpha) ** updates
        assert changed.gap_at(times[-1]) == pytest.approx(ratio + left * (1 - ratio), rel=1e-4)


def test_it_follows_silence() -> None:
    estimate = Estimate(0.1)
    estimate.observe(regular(1.0, 200))
    assert estimate.gap_at(200.5) == pytest.approx(1.0), "silence is not news before its time"
    seen = [estimate.gap_at(200.0 + silence) for silence in (1.0, 10.0, 100.0, 1000.0)]
    assert seen == pytest.approx([1.0, 1.9, 10.9, 100.9], rel=1e-6)


def test_a_long_silence_does_not_spoil_the_mean_for_ever() -> None:
    estimate = Estimate(0.1)
    estimate.observe(regular(1.0, 200))
    estimate.observe([1200.0])
    assert estimate.gap_at(1200.0) == pytest.approx(100.9, rel=1e-6)
    times = regular(1.0, 100, start=1200.0)
    estimate.observe(times)
    assert estimate.gap_at(times[-1]) == pytest.approx(1.0, rel=0.01)


def test_random_gaps_are_estimated_within_their_spread() -> None:
    """Exponential gaps: a moving mean with weight a has a relative deviation of
    sqrt(a / (2 - a)), 0.23 for a = 0.1."""
    rng = np.random.default_rng(1)
    errors = []
    for _ in range(200):
        estimate = Estimate(0.1)
        times = np.cumsum(rng.exponential(2.0, 300)).tolist()
        estimate.observe(times)
        errors.append(estimate.gap_at(times[-1]) / 2.0 - 1.0)
    assert abs(np.mean(errors)) < 0.06
    assert np.std(errors) == pytest.approx(0.23, abs=0.04)


@given(steps=steps, alpha=alphas, silence=st.floats(0, 1e6))
def test_a_known_rate_stays_as_given(steps: list[float], alpha: float, silence: float) -> None:
    estimate = Estimate(alpha, known_gap=3.5)
    times = np.cumsum(steps).tolist()
    estimate.observe(times)
    assert estimate.gap_at(times[-1] + silence) == 3.5
    assert estimate.key["last"][0] == times[-1]


def test_a_tiny_alpha_keeps_counting() -> None:
    """The count of gaps outlasts 1 / alpha, however many those are."""
    alpha, updates = 1e-5, 70_000
    estimate = Estimate(alpha)
    estimate.observe(regular(1.0, updates))
    estimate.observe([updates + 101.0])
    assert estimate.gap_at(updates + 101.0) == pytest.approx(1.0 + 100.0 / updates, rel=1e-3)
