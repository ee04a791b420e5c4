from __future__ import annotations

import pytest

from upstream.race import FRAMES, SIMULATED_SECONDS, Policy, Result, Standing, Trace, race


def last(*, keys: int, load: float, seed: int, watch: Policy = Policy.WHITTLE) -> Standing:
    standings = list(race(Trace(keys=keys, seed=seed), load=load, seed=seed, watch=watch))
    assert len(standings) == FRAMES
    return standings[-1]


@pytest.fixture(scope="module")
def standing() -> Standing:
    """What `upstream demo` ends with by default."""
    return last(keys=200, load=3.0, seed=0)


def by_policy(standing: Standing) -> dict[str, Result]:
    return {result.policy: result for result in standing.results}


def test_the_policies_come_in_as_the_theory_says(standing: Standing) -> None:
    average = {name: result.average_staleness for name, result in by_policy(standing).items()}
    assert average["whittle"] <= average["linecutting"] <= average["in-place"]
    assert 10 * average["in-place"] < average["random-drop"] < average["append"]


def test_every_consumer_does_the_same_work(standing: Standing) -> None:
    results = by_policy(standing)
    most = SIMULATED_SECONDS * Trace(keys=200, seed=0).rate / 3.0
    for name, result in results.items():
        assert result.delivered <= most
        assert result.delivered > (0.9 if name == "random-drop" else 0.99) * most


def test_every_update_is_accounted_for(standing: Standing) -> None:
    for result in standing.results:
        found = result.conflated + result.dropped + result.waiting + result.delivered
        in_hand = len(Trace(keys=200, seed=0).times) - found
        assert in_hand in (0, 1)
    results = by_policy(standing)
    assert results["append"].conflated == results["append"].dropped == 0
    assert results["whittle"].dropped == results["append"].dropped == 0


def test_the_watched_queue_names_its_stalest_keys(standing: Standing) -> None:
    staleness = [seconds for _, seconds in standing.stalest]
    assert staleness == sorted(staleness, reverse=True)
    assert staleness[0] == by_policy(standing)["whittle"].max_staleness
    assert {key for key, _ in standing.stalest} <= Trace(keys=200, seed=0).rates.keys()


def test_a_seed_gives_the_same_digits_each_time() -> None:
    first = last(keys=10, load=2.0, seed=7)
    assert first == last(keys=10, load=2.0, seed=7)
    assert first.results == last(keys=10, load=2.0, seed=7, watch=Policy.APPEND).results
    assert first != last(keys=10, load=2.0, seed=8)


def test_without_overload_there_is_little_to_gain() -> None:
    results = by_policy(last(keys=10, load=0.2, seed=0))
    averages = [result.average_staleness for result in results.values()]
    assert max(averages) < 1.2 * min(averages)
    assert results["append"].waiting <= 10
