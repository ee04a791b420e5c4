"""The Key Scheduler against the obvious way: score every waiting key, take the best.

Rates, weights and costs are given. Where decisions must be equal they are powers of two
and times multiples of an eighth, so that scores carry no rounding and ties are real.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from upstream import open_queue
from upstream.queue.key_table import KNOWN
from upstream.queue.policies import Policy, Whittle, load_policy
from upstream.queue.update_queue import UpdateQueue

BUILT_IN = ["in-place", "linecutting", "whittle"]
RATE_STEP = 2**0.25  # keys of one class differ by at most so much in rate,
WEIGHT_STEP = 2**0.25  # and in weight
COSTS = {"default": 0.5, "dear": 2.0, "cheap": 0.125}


class MyWhittle(Whittle):
    """Whittle's formula again, which the scheduler cannot know to be the same."""

    name = "my-whittle"


class Weighty(Policy):
    """A user's policy that is monotone, and asks for positions."""

    name = "weighty"
    uses_position = True

    def score(self, waiting: Any, rate: Any, weight: Any, cost: Any, position: Any) -> Any:
        return weight * (waiting + 1 / rate) - cost * position


class Fickle(Policy):
    """A user's policy that likes best who has waited for one second."""

    name = "fickle"
    monotone = False

    def score(self, waiting: Any, rate: Any, weight: Any, cost: Any, position: Any) -> Any:
        return -abs(waiting - 1.0)


def path_of(policy: type[Policy]) -> str:
    return f"{__name__}:{policy.__name__}"


@dataclass(frozen=True)
class Facts:
    """What is known of a key."""

    rate: float
    weight: float = 1.0
    cost_class: str = "default"


@dataclass
class Line:
    """A queue with known rates, and beside it the waiting keys in a dictionary."""

    policy: str
    facts: Sequence[Facts]
    selection: str = "scan"
    overloaded: bool = True
    now: float = 0.0
    waiting: dict[int, tuple[float, int]] = field(default_factory=dict)  # since, ticket
    tickets: int = 0

    def __post_init__(self) -> None:
        rules = [
            {"key": str(key), "rate": f.rate, "weight": f.weight, "cost_class": f.cost_class}
            for key, f in enumerate(self.facts)
        ]
        used = {f.cost_class for f in self.facts} | {"default"}
        queue = open_queue(
            "memory:",
            key="k",
            policy=self.policy,
            selection=self.selection,
            memory_limit="4MiB",
            rules=rules,
            cost_seconds={name: COSTS[name] for name in used},
            clock=lambda: self.now,
        )
        assert isinstance(queue, UpdateQueue)
        self.queue = queue
        self.judge = load_policy(self.policy)
        if self.overloaded:
            overload(queue)

    def put(self, keys: Sequence[int]) -> None:
        if not keys:
            return
        self.queue.put_many(pa.table({"k": pa.array(keys, pa.int64())}))
        for key in keys:
            if key not in self.waiting:
                self.tickets += 1
                self.waiting[key] = (self.now, self.tickets)

    def plan(self, limit: int) -> tuple[int, list[int]]:
        """Take a batch; the caller looks at `waiting`, which still holds its keys."""
        batch = self.queue.plan(limit)
        keys = batch.to_arrow().column("k").to_pylist() if batch else []
        self.queue.check()
        return batch.id, keys

    def give_back(self, batch_id: int, taken: dict[int, tuple[float, int]]) -> None:
        """Units wait again, where they were."""
        self.queue.give_back(batch_id)
        for key, place in taken.items():
            self.waiting[key] = min(place, self.waiting.get(key, place))
        self.queue.check()

    def scores(self) -> dict[int, float]:
        """The score of every waiting key, the longest waiting first."""
        keys = sorted(self.waiting, key=lambda key: self.waiting[key][1])
        facts = [self.facts[key] for key in keys]
        scored = self.judge.score(
            self.now - np.array([self.waiting[key][0] for key in keys]),
            np.array([f.rate for f in facts]),
            np.array([f.weight for f in facts], np.float32).astype(np.float64),
            np.array([COSTS[f.cost_class] for f in facts]),
            np.arange(len(keys), dtype=np.float64),
        )
        return dict(zip(keys, scored.tolist(), strict=True))

    def best(self) -> int:
        scores = self.scores()
        return max(scores, key=scores.__getitem__)  # the first of equals has the lowest ticket

    def first(self) -> int:
        return min(self.waiting, key=self.waiting.__getitem__)


def overload(queue: UpdateQueue) -> None:
    """Let the queue believe that far more arrives than is served."""
    queue.monitor.arrived(10**9)
    queue.monitor.handed_out(1, 0.0)


Step = tuple[float, list[int], int]  # seconds pass, keys arrive, a batch of at most so many


def steps(keys: int, quantum: float = 0.125) -> st.SearchStrategy[list[Step]]:
    return st.lists(
        st.tuples(
            st.integers(0, 40).map(lambda n: n * quantum),
            st.lists(st.integers(0, keys - 1), max_size=keys),
            st.integers(0, 5),
        ),
        min_size=1,
        max_size=12,
    )


def drive(line: Line, trace: Sequence[Step], judge: Callable[[Line, int], None]) -> None:
    """Run a trace; `judge` sees each key that is taken while it still counts as waiting.

    Every third batch is given back after the next arrivals.
    """
    back: tuple[int, dict[int, tuple[float, int]]] | None = None
    for number, (seconds, keys, limit) in enumerate(trace):
        line.now += seconds
        line.put(keys)
        if back is not None:
            line.give_back(*back)
            back = None
        if not limit or not line.waiting:
            continue
        all_of_them = limit >= len(line.waiting)
        batch_id, taken = line.plan(limit)
        assert len(taken) == min(limit, len(line.waiting))
        places = {key: line.waiting[key] for key in taken}
        for key in taken:
            if all_of_them and line.judge.first_come_when_idle:
                assert key == line.first()
            else:
                judge(line, key)
            del line.waiting[key]
        if number % 3 == 0:
            back = (batch_id, places)


def exactly_the_best(line: Line, key: int) -> None:
    assert key == line.best()


def facts_of(
    rates: st.SearchStrategy[float],
    weights: st.SearchStrategy[float],
    cost_classes: st.SearchStrategy[str],
) -> st.SearchStrategy[list[Facts]]:
    return st.lists(st.builds(Facts, rates, weights, cost_classes), min_size=12, max_size=12)


dyadic = st.integers(-3, 3).map(lambda n: 2.0**n)
one_cost = facts_of(dyadic, dyadic, st.just("default"))
many_costs = facts_of(dyadic, dyadic, st.sampled_from(list(COSTS)))
real_rates = facts_of(st.floats(0.01, 100), st.just(1.0), st.just("default"))
real_weights = facts_of(st.floats(0.01, 100), st.floats(0.01, 100), st.sampled_from(list(COSTS)))


class TestDecisions:
    @pytest.mark.parametrize("policy", [*BUILT_IN, path_of(MyWhittle), path_of(Weighty)])
    @given(facts=many_costs, trace=steps(12))
    @settings(max_examples=25)
    def test_a_scan_takes_the_best(
        self, policy: str, facts: list[Facts], trace: list[Step]
    ) -> None:
        drive(Line(policy, facts), trace, exactly_the_best)

    @pytest.mark.parametrize("policy", [*BUILT_IN, path_of(MyWhittle), path_of(Weighty)])
    @given(facts=one_cost, trace=steps(12))
    @settings(max_examples=25)
    def test_classes_take_the_best_where_keys_of_a_class_are_alike(
        self, policy: str, facts: list[Facts], trace: list[Step]
    ) -> None:
        """Positions included: they are counted, not guessed."""
        drive(Line(policy, facts, "classes"), trace, exactly_the_best)

    @pytest.mark.parametrize("policy", BUILT_IN)
    @given(facts=many_costs, trace=steps(12))
    @settings(max_examples=25)
    def test_classes_tell_costs_apart(
        self, policy: str, facts: list[Facts], trace: list[Step]
    ) -> None:
        drive(Line(policy, facts, "classes"), trace, exactly_the_best)

    @given(facts=real_rates, trace=steps(12))
    def test_whittle_with_classes_is_within_the_documented_error(
        self, facts: list[Facts], trace: list[Step]
    ) -> None:
        def nearly_the_best(line: Line, key: int) -> None:
            scores = line.scores()
            assert scores[key] * RATE_STEP * (1 + 1e-9) >= max(scores.values())

        drive(Line("whittle", facts, "classes"), trace, nearly_the_best)

    @given(facts=real_weights, trace=steps(12))
    def test_whittle_with_weights_is_within_the_documented_error(
        self, facts: list[Facts], trace: list[Step]
    ) -> None:
        def nearly_the_best(line: Line, key: int) -> None:
            scores = line.scores()
            assert scores[key] * RATE_STEP * WEIGHT_STEP * (1 + 1e-6) >= max(scores.values())

        drive(Line("whittle", facts, "classes"), trace, nearly_the_best)

    @given(facts=real_rates, trace=steps(12))
    def test_linecutting_with_classes_errs_by_a_step_of_the_slowness(
        self, facts: list[Facts], trace: list[Step]
    ) -> None:
        """The slowness 1/r - C pos is a difference: what is lost is a share of 1/r."""

        def nearly_the_best(line: Line, key: int) -> None:
            scores, best = line.scores(), line.best()
            lost = (1 - 1 / RATE_STEP) / line.facts[best].rate
            assert scores[key] + lost * (1 + 1e-9) + 1e-9 >= scores[best]

        drive(Line("linecutting", facts, "classes"), trace, nearly_the_best)

    @given(facts=real_weights, trace=steps(12))
    def test_in_place_is_exact_whatever_the_rates(
        self, facts: list[Facts], trace: list[Step]
    ) -> None:
        drive(Line("in-place", facts, "classes"), trace, exactly_the_best)

    @given(facts=real_weights, trace=steps(12))
    @settings(max_examples=25)
    def test_a_policy_of_the_users_decides_as_the_compiled_one(
        self, facts: list[Facts], trace: list[Step]
    ) -> None:
        compiled = Line("whittle", facts, "classes")
        python = Line(path_of(MyWhittle), facts, "classes")
        for seconds, keys, limit in trace:
            for line in (compiled, python):
                line.now += seconds
                line.put(keys)
            if limit:
                assert python.plan(limit)[1] == compiled.plan(limit)[1]

    @given(facts=real_weights, trace=steps(12))
    @settings(max_examples=25)
    def test_a_policy_that_is_not_monotone_gets_a_full_scan(
        self, facts: list[Facts], trace: list[Step]
    ) -> None:
        drive(Line(path_of(Fickle), facts, "classes"), trace, exactly_the_best)

    @pytest.mark.parametrize("selection", ["classes", "scan"])
    @pytest.mark.parametrize("policy", BUILT_IN)
    def test_many_keys_in_a_long_run(self, policy: str, selection: str) -> None:
        """Tickets go on, the tree of positions is made anew again and again."""
        rng = np.random.default_rng(5)
        facts = [Facts(rate=2.0 ** rng.integers(-3, 4)) for _ in range(60)]
        line = Line(policy, facts, selection)
        for _ in range(120):
            line.now += 0.125 * int(rng.integers(0, 9))
            line.put(rng.integers(0, 60, 40).tolist())
            batch_id, taken = line.plan(20)
            for key in taken:
                if len(line.waiting) > 20 or policy != "whittle":
                    exactly_the_best(line, key)
                del line.waiting[key]
            line.queue.commit(batch_id)
        assert line.tickets > 2000


class TestFirstCome:
    FACTS = (Facts(100.0), Facts(0.01), Facts(1.0, weight=50.0), Facts(10.0), Facts(0.1))
    ARRIVALS = (3, 0, 4, 2, 1)

    def line(self, policy: str, *, overloaded: bool) -> Line:
        line = Line(policy, self.FACTS, "classes", overloaded=overloaded)
        for key in self.ARRIVALS:
            line.now += 1.0
            line.put([key])
        return line

    def test_without_overload(self) -> None:
        line = self.line("whittle", overloaded=False)
        assert line.plan(3)[1] == [3, 0, 4]
        assert line.plan(1)[1] == [2]

    def test_when_all_that_waits_fits_the_batch(self) -> None:
        assert self.line("whittle", overloaded=True).plan(5)[1] == list(self.ARRIVALS)

    def test_not_under_overload(self) -> None:
        assert self.line("whittle", overloaded=True).plan(2)[1] == [2, 4]

    def test_only_where_the_policy_wants_it(self) -> None:
        assert self.line("linecutting", overloaded=False).plan(5)[1][0] == 1

    def test_overload_is_measured(self) -> None:
        """Ten updates per result: after the first batch the queue knows."""
        line = Line("whittle", [Facts(2.0**-i) for i in range(10)], "classes", overloaded=False)
        line.now = 1.0
        line.put(list(range(10)) * 10)
        assert line.plan(1)[1] == [0]
        assert line.plan(1)[1] == [9]

    def test_one_instant_is_decided_by_the_order_of_rows(self) -> None:
        line = Line("in-place", [Facts(1.0)] * 50, "classes")
        order = np.random.default_rng(1).permutation(50).tolist()
        line.put(order)
        line.now = 3.0
        assert line.plan(20)[1] + line.plan(30)[1] == order


def weights_of(queue: UpdateQueue) -> dict[str, float]:
    records = queue.keys.records()
    slots = np.flatnonzero(records["flags"] & KNOWN)
    weights = records["weight"][slots].tolist()
    return dict(zip(queue.key_names(slots), weights, strict=True))


class TestWeights:
    RULES = (
        {"prefix": "E", "weight": 2.0, "cost_class": "dear"},
        {"prefix": "EUR", "weight": 4.0},
        {"key": "EUR/USD", "weight": 8.0, "rate": 0.5},
        {"key": "ZAR", "weight": 0.5},
    )

    def open(self, **options: Any) -> UpdateQueue:
        queue = open_queue("memory:", key="k", rules=list(self.RULES), **options)
        assert isinstance(queue, UpdateQueue)
        return queue

    def test_the_most_special_rule_has_the_last_word(self) -> None:
        queue = self.open(weight=3.0)
        queue.put_many(pa.table({"k": ["EUR/USD", "EUR/CHF", "ESP", "ZAR", "ZARX", "eur"]}))
        expected = {"EUR/USD": 8.0, "EUR/CHF": 4.0, "ESP": 2.0, "ZAR": 0.5, "ZARX": 3.0, "eur": 3.0}
        assert weights_of(queue) == expected

    def test_each_setting_by_itself(self) -> None:
        queue = self.open(cost_seconds={"default": 1.0, "dear": 7.0})
        queue.put_many(pa.table({"k": ["EUR/USD", "ZAR"]}))
        records = queue.keys.records()
        slots = {
            name: int(i) for i, name in zip([1, 2], queue.key_names(np.array([1, 2])), strict=True)
        }
        costs = queue.scheduler.costs[records["cost_class"]]
        assert costs[slots["EUR/USD"]] == 7.0
        assert costs[slots["ZAR"]] == 1.0
        assert records["gap"][slots["EUR/USD"]] == 2.0

    def test_a_key_that_becomes_known_later(self) -> None:
        queue = self.open()
        for key in ("a", "EUR/CHF", "b", "ZAR"):
            queue.put({"k": key})
        assert weights_of(queue) == {"a": 1.0, "EUR/CHF": 4.0, "b": 1.0, "ZAR": 0.5}

    def test_a_weight_column_goes_before_rules_and_null_leaves_it(self) -> None:
        queue = self.open(weight_column="w", weight=3.0)
        schema = pa.schema([("k", pa.string()), ("w", pa.float64())])

        def put(**weights: float | None) -> None:
            rows = [{"k": key, "w": weight} for key, weight in weights.items()]
            queue.put_many(pa.RecordBatch.from_pylist(rows, schema=schema))

        put(EUR=16.0, ZAR=None, other=None)
        assert weights_of(queue) == {"EUR": 16.0, "ZAR": 0.5, "other": 3.0}
        put(EUR=None, ZAR=5.0, other=6.0)
        assert weights_of(queue) == {"EUR": 16.0, "ZAR": 5.0, "other": 6.0}

    @pytest.mark.parametrize("kind", [pa.int8(), pa.uint64(), pa.float32(), pa.float64()])
    def test_a_weight_column_of_any_number(self, kind: pa.DataType) -> None:
        queue = open_queue("memory:", key="k", weight_column="w")
        assert isinstance(queue, UpdateQueue)
        queue.put_many(pa.table({"k": ["a", "b"], "w": pa.array([7, None], kind)}))
        assert weights_of(queue) == {"a": 7.0, "b": 1.0}

    def test_keys_of_several_columns_are_joined(self) -> None:
        queue = open_queue("memory:", key=["a", "b"], rules=[{"key": "x|7", "weight": 5.0}])
        assert isinstance(queue, UpdateQueue)
        queue.put_many(pa.table({"a": ["x", "x"], "b": [7, 70]}))
        assert weights_of(queue) == {"x|7": 5.0, "x|70": 1.0}

    @pytest.mark.parametrize("selection", ["classes", "scan"])
    def test_a_thousand_different_weights(self, selection: str) -> None:
        """There are at most 256 groups of weights; keys of near weights share one."""
        now, count = 0.0, 1000
        queue = open_queue(
            "memory:",
            key="k",
            weight_column="w",
            selection=selection,
            cost_seconds=1.0,
            clock=lambda: now,
        )
        assert isinstance(queue, UpdateQueue)
        overload(queue)
        weights = np.exp(np.random.default_rng(3).uniform(-12, 12, count)).astype(np.float32)
        queue.put_many(pa.table({"k": np.arange(count), "w": weights}))
        now = 2.0
        taken = queue.plan(count - 1).to_arrow().column("w").to_numpy()
        queue.check()
        if selection == "scan":
            assert (np.diff(taken) <= 0).all()
        # Nothing that is taken later weighs more by over a step.
        later = np.maximum.accumulate(taken[::-1])[::-1]
        assert (taken * WEIGHT_STEP * (1 + 1e-6) >= later).all()

    def test_more_groups_than_there_are_numbers_for(self) -> None:
        """Weights in 200 steps, in each of three cost classes: nobody is lost."""
        now = 0.0
        names = [f"{cost}{i}" for cost in COSTS for i in range(200)]
        queue = open_queue(
            "memory:",
            key="k",
            weight_column="w",
            rules=[{"prefix": name, "cost_class": name} for name in COSTS if name != "default"],
            cost_seconds=COSTS,
            clock=lambda: now,
        )
        assert isinstance(queue, UpdateQueue)
        overload(queue)
        weights = [math.exp2((i % 200 - 100) / 4) for i in range(600)]
        queue.put_many(pa.table({"k": names, "w": weights}))
        queue.check()
        now = 1.0
        seen = []
        for _ in range(60):
            seen += queue.plan(10).to_arrow().column("k").to_pylist()
            queue.check()
        assert sorted(seen) == sorted(names)
