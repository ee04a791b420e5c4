"""What is served next is what the policy's formula says, tried on every waiting key.

A full scan decides exactly like brute force. Rate classes are allowed to take the head of
a class for the best key in it; how far that may be off is derived in `promised`.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.oracle import Key, OracleQueue, Rule
from upstream import open_queue

SCHEMA = pa.schema([("k", pa.string())])
STEP = 2**0.25  # rates, and weights, of one class differ by this factor at most


class Pair:
    """A queue and its oracle."""

    def __init__(self, oracle: OracleQueue, **options: Any) -> None:
        self.now = 0.0
        self.oracle = oracle
        self.queue = open_queue("memory:", key="k", clock=lambda: self.now, **options)

    def put(self, names: list[str], arrived: list[float]) -> None:
        rows = [{"k": name} for name in names]
        self.now = max(self.now, arrived[-1])
        self.oracle.put(rows, arrived)
        self.queue.put_many(
            pa.RecordBatch.from_pylist(rows, schema=SCHEMA), arrived=np.array(arrived)
        )

    def plan(self, limit: int) -> list[Key]:
        batch = self.queue.plan(limit)
        self.queue.commit(batch.id)
        return [(row["k"],) for row in batch.to_pylist()]

    def take(self, keys: list[Key]) -> None:
        for key in keys:
            del self.oracle.waiting[key]


def overloaded_pair(
    policy: str, selection: str, rng: random.Random, *, keys: int, exact: bool, costs: bool
) -> Pair:
    """Keys with rates over many orders of magnitude, of which each plan serves a few.

    `exact` chooses numbers in which the formulas compute without rounding.
    """
    rules: list[dict[str, Any]] = []
    for i in range(keys):
        rate = 2.0 ** rng.randint(-9, 9) if exact else 10 ** rng.uniform(-3, 3)
        weight = 2.0 ** rng.randint(-3, 3) if exact else 10 ** rng.uniform(-1, 1)
        cost = rng.choice(["0.125", "0.5", "2.0"]) if costs else "0.5"
        rules.append({"key": f"k{i}", "rate": rate, "weight": weight, "cost_class": cost})
    oracle = OracleQueue(["k"], None, policy)
    oracle.rules = [
        Rule(
            key=(rule["key"],),
            rate=rule["rate"],
            weight=float(np.float32(rule["weight"])),
            cost=float(rule["cost_class"]),
        )
        for rule in rules
    ]
    pair = Pair(
        oracle,
        policy=policy,
        selection=selection,
        rules=rules,
        cost_seconds={rule["cost_class"]: float(rule["cost_class"]) for rule in rules},
    )
    # Many updates for one result: from here on the order of service counts.
    pair.put([f"k{i % keys}" for i in range(4 * keys)], [0.0] * 4 * keys)
    pair.take(pair.plan(1))
    return pair


def trace(pair: Pair, rng: random.Random, keys: int) -> None:
    """Let some updates arrive, at times that are multiples of 1/16."""
    count = rng.randint(1, 3 * keys)
    times = sorted(pair.now + rng.randrange(160) / 16 for _ in range(count))
    pair.put([f"k{rng.randrange(keys)}" for _ in range(count)], times)
    pair.now += rng.randrange(64) / 16


@pytest.mark.parametrize("costs", [False, True], ids=["one cost", "cost classes"])
@pytest.mark.parametrize("policy", ["in-place", "linecutting", "whittle"])
@settings(max_examples=30)
@given(seed=st.integers(0, 2**32), keys=st.integers(2, 40), limit=st.integers(1, 9))
def test_a_scan_is_brute_force(policy: str, costs: bool, seed: int, keys: int, limit: int) -> None:
    rng = random.Random(seed)
    pair = overloaded_pair(policy, "scan", rng, keys=keys, exact=True, costs=costs)
    for _ in range(6):
        trace(pair, rng, keys)
        first_come = policy == "whittle" and limit >= len(pair.oracle.waiting)
        expected = pair.oracle.plan(limit, pair.now, first_come=first_come)
        assert pair.plan(limit) == expected
        pair.take(expected)


def promised(pair: Pair, policy: str, scores: dict[Key, float]) -> float:
    """The least score that may be served in place of the best one.

    The head h of the best key's class has waited at least as long as the best key b, has
    the same cost, a gap and a weight smaller by `STEP` at most.
    whittle: each factor of its index is at least that of b, over STEP: I_h >= I_b / STEP^2.
    linecutting: 1/r_h - C pos_h >= (1/r_b) / STEP - C pos_b, that is less by a share of 1/r_b.
    """
    best = max(scores, key=scores.__getitem__)
    if policy == "linecutting":
        return scores[best] - (1 - 1 / STEP) / pair.oracle.rate_of(best, pair.now)
    return scores[best] / (STEP * STEP)


@pytest.mark.parametrize("policy", ["in-place", "linecutting", "whittle"])
@settings(max_examples=30)
@given(seed=st.integers(0, 2**32), keys=st.integers(2, 60), limit=st.integers(1, 9))
def test_classes_are_as_near_as_documented(policy: str, seed: int, keys: int, limit: int) -> None:
    rng = random.Random(seed)
    costs = policy != "linecutting"
    pair = overloaded_pair(policy, "classes", rng, keys=keys, exact=False, costs=costs)
    for _ in range(6):
        trace(pair, rng, keys)
        first_come = policy == "whittle" and limit >= len(pair.oracle.waiting)
        chosen = pair.plan(limit)
        assert len(chosen) == min(limit, len(pair.oracle.waiting))
        for key in chosen:
            scores = pair.oracle.scores(pair.now, first_come=first_come)
            if first_come or policy == "in-place":
                assert scores[key] == max(scores.values())
            else:
                assert scores[key] >= promised(pair, policy, scores) - 1e-9
            pair.take([key])


def test_learned_rates_follow_the_estimate() -> None:
    """Without given rates, a scan decides by the estimate that the oracle computes slowly."""
    rng = random.Random(5)
    pair = Pair(OracleQueue(["k"], None, "whittle", cost=0.25), selection="scan", cost_seconds=0.25)
    means = [2.0**-i for i in range(-4, 6)]
    times = sorted(
        (at, f"k{i}")
        for i, mean in enumerate(means)
        for at in np.cumsum([rng.expovariate(1 / mean) for _ in range(200)])
        if at < 60
    )
    for start in range(0, len(times), 25):
        part = times[start : start + 25]
        pair.put([name for _, name in part], [float(at) for at, _ in part])
        overloaded = pair.queue.snapshot().load_factor > 1.05
        chosen = pair.plan(2)
        for key in chosen:
            scores = pair.oracle.scores(pair.now, first_come=not overloaded)
            best = max(scores.values())
            assert scores[key] >= best - 1e-6 * abs(best)
            pair.take([key])
    assert pair.queue.snapshot().load_factor > 5
