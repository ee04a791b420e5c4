from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator import rates
from simulator.arrivals import PROCESSES, Stream, periodic, poisson, slots
from simulator.costs import Measured, PerBatch, PerKey, PerUnit
from simulator.disorder import in_band
from simulator.model import simulate
from simulator.result import Result
from tests.simulator.plain_model import PlainModel
from upstream.errors import ConfigError, InputError
from upstream.staleness.exact import key_average

POLICIES = ("in-place", "linecutting", "whittle")
every_policy = pytest.mark.parametrize("policy", POLICIES)

gaps = st.sampled_from([0.0, 0.5, 1.0, 1.0, 3.0])
costs = st.sampled_from([0.5, 1.0, 2.5, 4.0])


@st.composite
def streams(draw: st.DrawFn) -> tuple[Stream, list[float], list[float]]:
    """A few updates of a few keys, their costs and weights; ties and silences are common."""
    keys = draw(st.integers(1, 4))
    updates = draw(st.lists(st.tuples(gaps, st.integers(0, keys - 1)), min_size=2, max_size=40))
    times = np.cumsum([gap for gap, _ in updates])
    each = draw(
        st.lists(
            st.tuples(st.sampled_from([0.1, 0.5, 2.0]), costs, st.sampled_from([1.0, 3.0, 10.0])),
            min_size=keys,
            max_size=keys,
        )
    )
    rate, cost, weight = (list(column) for column in zip(*each, strict=True))
    return Stream(times, np.array([key for _, key in updates]), np.array(rate)), cost, weight


@every_policy
@settings(max_examples=60)
@given(drawn=streams())
def test_the_model_does_what_the_plain_model_does(
    policy: str, drawn: tuple[Stream, list[float], list[float]]
) -> None:
    stream, cost, weight = drawn
    start, end = float(stream.times[0]), float(stream.times[-1])
    found = simulate(
        stream,
        policy=policy,
        cost=PerKey(np.array(cost)),
        weights=np.array(weight),
        rates="known",
        options={"selection": "scan"},
    )
    plain = PlainModel(policy, stream.rates.tolist(), cost, weight)
    run = plain.run(stream.times.tolist(), stream.keys.tolist())
    assert found.delivered == sum(map(len, run.deliveries.values()))
    assert found.conflated == run.conflated
    assert found.max_memory_tuples == run.most_waiting
    assert found.max_wait == pytest.approx(run.longest)
    expected = [0.0, 0.0]
    if end > start:
        expected = [run.queue_staleness(start, end), run.application_staleness(start, end)]
    assert [found.queue_staleness, found.application_staleness] == pytest.approx(expected, rel=1e-9)
    if any(run.dequeues.values()):
        assert found.queue_staleness_per_output == pytest.approx(run.per_output())
    else:
        assert np.isnan(found.queue_staleness_per_output)


def test_one_key_has_the_exact_values() -> None:
    """Served every C, it waits for C - 1 and its result is C late."""
    for cost in (2, 5, 15):
        stream = periodic(np.array([1.0]), 100 * cost + 1, seed=1)
        for policy in POLICIES:
            # The first service is without a wait: leave it out, in whole cycles.
            found = simulate(stream, policy=policy, cost=PerUnit(cost), warmup=0.1)
            assert found.queue_staleness == pytest.approx((cost - 1) ** 2 / (2 * cost))
            assert found.application_staleness == pytest.approx(1.5 * cost - 1)
            assert found.queue_staleness_per_output == pytest.approx(cost - 1)
            assert found.load_factor == pytest.approx(cost, rel=0.03)


@every_policy
def test_no_policy_beats_the_bounds(policy: str) -> None:
    shares = rates.two_class(12, 8, 30.0)
    for process in (slots, poisson, periodic):
        found = simulate(
            process(shares, 12_000, 1), policy=policy, cost=PerUnit(5.0), rates="known", warmup=0.1
        )
        assert found.bounds_hold
        assert found.queue_staleness > 0.98 * found.lower_bound
        assert found.application_staleness > 0.98 * found.lower_bound_application


@every_policy
@pytest.mark.parametrize("process", PROCESSES.values(), ids=PROCESSES.keys())
def test_the_same_seed_gives_the_same_digits(policy: str, process: Any) -> None:
    def run(seed: int) -> Result:
        stream = in_band(process(rates.zipf(9, 0.9), 600, seed), 4.0, seed)
        return simulate(stream, policy=policy, cost=PerUnit(3.0))

    assert run(1) == run(1)
    assert run(1) != run(2)


def test_every_update_is_accounted_for() -> None:
    stream = in_band(slots(rates.zipf(20, 0.9), 3000, 1), 30.0)
    for policy in (*POLICIES, "append", "random-drop"):
        found = simulate(stream, policy=policy, cost=PerUnit(4.0))
        gone = found.conflated + found.superseded + found.shed + found.waiting
        in_hand = found.updates - gone - found.delivered
        assert found.updates == 3000
        assert in_hand in (0, 1)


def test_the_baselines_are_as_bad_as_they_are_known_to_be() -> None:
    stream = slots(rates.uniform(10), 6000, 1)
    found = {
        policy: simulate(stream, policy=policy, cost=PerUnit(5.0))
        for policy in ("in-place", "append", "random-drop")
    }
    assert found["append"].max_memory_tuples == pytest.approx(0.8 * 6000, rel=0.01)
    assert found["in-place"].max_memory_tuples == 10
    staleness = {policy: each.application_staleness for policy, each in found.items()}
    assert 1.1 * staleness["in-place"] < staleness["random-drop"] < 0.3 * staleness["append"]


def test_weighted_averages_are_the_plain_ones_where_weights_are_equal() -> None:
    stream = slots(rates.two_class(8, 4, 10.0), 8000, 1)
    plain, weighted = (
        simulate(stream, policy="whittle", cost=PerUnit(4.0), weights=weights, warmup=0.2)
        for weights in (None, np.full(8, 2.0))
    )
    assert weighted.queue_staleness_weighted == pytest.approx(plain.queue_staleness)
    assert weighted.application_staleness_weighted == pytest.approx(plain.application_staleness)


def test_a_weight_makes_its_key_fresher() -> None:
    stream = slots(rates.uniform(8), 8000, 1)
    weights = np.array([10.0] * 2 + [1.0] * 6)
    found = simulate(stream, policy="whittle", cost=PerUnit(4.0), weights=weights)
    own = found.by_key.application_staleness
    assert own[:2].max() < 0.7 * own[2:].min()
    assert found.queue_staleness_weighted < found.queue_staleness
    assert found.queue_staleness_weighted > 0.98 * found.lower_bound


def test_the_average_after_the_warm_up_is_that_of_the_rest() -> None:
    stream = slots(rates.two_class(4, 2, 5.0), 120, 3)
    plain = PlainModel("in-place", stream.rates.tolist(), [3.0] * 4, [1.0] * 4)
    run = plain.run(stream.times.tolist(), stream.keys.tolist())
    found = simulate(stream, policy="in-place", cost=PerUnit(3.0), warmup=0.5)
    start, end = 119 / 2, 119.0
    assert found.queue_staleness == pytest.approx(run.queue_staleness(start, end))
    assert found.application_staleness == pytest.approx(run.application_staleness(start, end))
    events = run.queue_events()
    each = [key_average(events[key], start, end) for key in range(4)]
    assert found.by_key.queue_staleness == pytest.approx(each)
    events = run.application_events()
    each = [key_average(events[key], start, end) for key in range(4)]
    assert found.by_key.application_staleness == pytest.approx(each)


def test_updates_out_of_order_are_superseded() -> None:
    ordered = slots(rates.uniform(3), 2000, 1)
    found = simulate(in_band(ordered, 20.0), policy="in-place", cost=PerUnit(2.0))
    assert simulate(ordered, policy="in-place", cost=PerUnit(2.0)).superseded == 0
    assert 500 < found.superseded < 2000


def test_a_batch_costs_its_fixed_part_once() -> None:
    stream = slots(rates.uniform(50), 3000, 1)
    cost = PerBatch(fixed=20.0, units=PerUnit(1.0))
    by_limit = {
        limit: simulate(stream, policy="in-place", cost=cost, limit=limit)
        for limit in (1, 10, None)
    }
    assert by_limit[1].load_factor == pytest.approx(21.0, rel=0.02)
    assert by_limit[10].load_factor == pytest.approx(3.0, rel=0.05)
    assert by_limit[10].application_staleness < by_limit[1].application_staleness
    assert by_limit[None].max_memory_tuples <= 50


def test_measured_costs_are_drawn_from_the_samples() -> None:
    stream = slots(rates.uniform(10), 20_000, 1)
    found = simulate(stream, policy="in-place", cost=Measured([1.0, 9.0], seed=4))
    assert found.load_factor == pytest.approx(5.0, rel=0.03)
    assert found == simulate(stream, policy="in-place", cost=Measured([1.0, 9.0], seed=4))


def test_updates_at_one_instant_are_told_apart() -> None:
    """With equal times, keys are read from the batch: the averages have to be the same."""
    apart = slots(rates.zipf(6, 0.9), 900, 1)
    together = apart._replace(times=np.floor(apart.times / 3) * 3)
    plain = PlainModel("in-place", apart.rates.tolist(), [4.0] * 6, [1.0] * 6)
    for stream in (apart, together):
        run = plain.run(stream.times.tolist(), stream.keys.tolist())
        found = simulate(stream, policy="in-place", cost=PerUnit(4.0))
        assert found.queue_staleness_per_output == pytest.approx(run.per_output())
        assert found.by_key.outputs.tolist() == [len(run.dequeues[key]) for key in range(6)]


def test_silence_lets_the_server_rest() -> None:
    stream = Stream(np.array([0.0, 10.0, 11.0, 30.0]), np.zeros(4, np.int64), np.array([0.1]))
    found = simulate(stream, policy="whittle", cost=PerUnit(3.0))
    # handed out at 0, 10 and 13 (the update of 11), delivered at 3, 13 and 16
    assert (found.delivered, found.max_wait) == (3, 2.0)
    assert found.application_staleness == pytest.approx((3 * 3 + 3 * 3 + 5 * 5 - 2 * 2) / 2 / 30)


def test_wrong_settings_are_refused() -> None:
    stream = slots(rates.uniform(2), 10)
    with pytest.raises(ConfigError, match="in-place"):
        simulate(stream, policy="inplace", cost=PerUnit(1.0))
    with pytest.raises(InputError, match="warmup"):
        simulate(stream, policy="in-place", cost=PerUnit(1.0), warmup=1.0)
    for cost in (0.0, -1.0, float("nan")):
        with pytest.raises(InputError, match="cost"):
            PerUnit(cost)
