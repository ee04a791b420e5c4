"""The policies: their formulas, and what every one of them promises to the scheduler."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from upstream.config import POLICIES as CONFIGURABLE
from upstream.errors import ConfigError
from upstream.queue.policies import POLICIES, InPlace, Linecutting, Policy, Whittle, load_policy

positive = st.floats(1e-3, 1e3)
waits = st.floats(0, 1e4)
positions = st.integers(0, 1000)
every_policy = pytest.mark.parametrize("policy", [load_policy(name) for name in POLICIES])


class Bold(Policy):
    """A policy of a user's."""

    name = "bold"

    def score(self, waiting: Any, rate: Any, weight: Any, cost: Any, position: Any) -> Any:
        return weight * waiting


NOT_A_POLICY = 7


def whittle_by_hand(waiting: float, rate: float, weight: float, cost: float) -> float:
    """The index with its fractions cleared: w (2W + C)(2W r + C r + 4) / (8 C r)."""
    v2 = 2 * waiting + cost
    return weight * v2 * (v2 * rate + 4) / (8 * cost * rate)


class TestFormulas:
    @pytest.mark.parametrize("waiting", [0.0, 3.0, 17.5])
    def test_in_place_is_the_time_waited(self, waiting: float) -> None:
        assert InPlace().score(waiting, 2.0, 5.0, 3.0, 4) == waiting

    @pytest.mark.parametrize(
        ("waiting", "rate", "cost", "position", "expected"),
        [
            (3.0, 0.1, 2.0, 0, 13.0),  # 3 + 10
            (3.0, 0.1, 2.0, 4, 5.0),  # 3 + 10 - 2 * 4
            (3.0, 0.1, 2.0, 5, 3.0),  # 10 - 2 * 5 is 0
            (3.0, 0.1, 2.0, 9, 3.0),  # never below 0
            (0.0, 4.0, 0.125, 1, 0.125),  # 1/4 - 1/8
        ],
    )
    def test_linecutting(
        self, waiting: float, rate: float, cost: float, position: int, expected: float
    ) -> None:
        assert Linecutting().score(waiting, rate, 7.0, cost, position) == pytest.approx(expected)

    @pytest.mark.parametrize(
        ("waiting", "rate", "weight", "cost", "expected"),
        [
            (3.0, 0.5, 1.0, 2.0, 8.0),  # V = 4: 1/2 * 4 * (2 + 2)
            (3.0, 0.5, 6.0, 2.0, 48.0),
            (0.0, 1.0, 1.0, 4.0, 1.0),  # V = 2: 1/4 * 2 * (1 + 1)
            (9.5, 0.25, 2.0, 1.0, 180.0),  # V = 10: 2 * 10 * (5 + 4)
        ],
    )
    def test_whittle(
        self, waiting: float, rate: float, weight: float, cost: float, expected: float
    ) -> None:
        assert Whittle().score(waiting, rate, weight, cost, 3) == pytest.approx(expected)

    @given(waiting=waits, rate=positive, weight=positive, cost=positive)
    def test_whittle_everywhere(
        self, waiting: float, rate: float, weight: float, cost: float
    ) -> None:
        expected = whittle_by_hand(waiting, rate, weight, cost)
        assert Whittle().score(waiting, rate, weight, cost, 0) == pytest.approx(expected, rel=1e-9)


@every_policy
class TestConformance:
    @given(facts=st.lists(st.tuples(waits, positive, positive, positive, positions), max_size=9))
    def test_arrays_numbers_and_compiled_code_agree(
        self, policy: Policy, facts: list[tuple[float, float, float, float, int]]
    ) -> None:
        columns = np.array(facts, np.float64).reshape(-1, 5).T
        compiled = _compiled(policy)
        at_once = np.broadcast_to(policy.score(*columns), len(facts))
        one_by_one = [float(policy.score(*row)) for row in facts]
        by_machine = [compiled(None, *row) for row in facts]
        assert at_once.tolist() == one_by_one
        assert by_machine == pytest.approx(one_by_one, rel=1e-12)

    @given(
        waiting=waits,
        longer=st.floats(1e-6, 1e4),
        rate=positive,
        weight=positive,
        cost=positive,
        ahead=positions,
        behind=positions,
    )
    def test_who_waits_longer_goes_first_among_equals(
        self,
        policy: Policy,
        waiting: float,
        longer: float,
        rate: float,
        weight: float,
        cost: float,
        ahead: int,
        behind: int,
    ) -> None:
        """Who waits longer is ahead in the line: the position only helps."""
        first, second = sorted((ahead, behind))
        earlier = policy.score(waiting + longer, rate, weight, cost, first)
        later = policy.score(waiting, rate, weight, cost, second)
        assert earlier >= later
        if waiting < 1e4 * longer:
            assert earlier > later

    @given(facts=st.tuples(waits, positive, positive, positive, positions), other=positive)
    def test_what_a_policy_says_it_ignores_does_not_matter(
        self, policy: Policy, facts: tuple[float, float, float, float, int], other: float
    ) -> None:
        waiting, rate, weight, cost, position = facts
        usual = policy.score(*facts)
        if not policy.uses_rate:
            assert policy.score(waiting, other, weight, cost, position) == usual
        if not policy.uses_weight:
            assert policy.score(waiting, rate, other, cost, position) == usual
        if not policy.uses_position:
            assert policy.score(waiting, rate, weight, cost, position + 7) == usual

    def test_can_be_configured_by_name(self, policy: Policy) -> None:
        assert policy.name in CONFIGURABLE
        assert type(load_policy(policy.name)) is type(policy)
        assert type(policy).__doc__


class TestLoading:
    def test_a_class_of_the_users(self) -> None:
        policy = load_policy(f"{__name__}:Bold")
        assert type(policy).__name__ == "Bold"
        assert policy.score(3.0, 1.0, 2.0, 1.0, 0) == 6.0

    @pytest.mark.parametrize(
        ("name", "words"),
        [
            ("wittle", ["'wittle'", "whittle", "package.module:Class"]),
            ("no_such_package.module:Policy", ["no_such_package"]),
            (f"{__name__}:Missing", ["Missing"]),
            (f"{__name__}:NOT_A_POLICY", ["not a subclass", "7"]),
            (f"{__name__}:TestLoading", ["not a subclass", "TestLoading"]),
        ],
    )
    def test_a_name_that_leads_nowhere(self, name: str, words: list[str]) -> None:
        with pytest.raises(ConfigError) as caught:
            load_policy(name)
        for word in words:
            assert word in str(caught.value)

    def test_the_base_gives_no_opinion(self) -> None:
        with pytest.raises(NotImplementedError):
            Policy().score(1.0, 1.0, 1.0, 1.0, 0)


_COMPILED: dict[type[Policy], Any] = {}


def _compiled(policy: Policy) -> Any:
    kind = type(policy)
    if kind not in _COMPILED:
        _COMPILED[kind] = numba.njit(error_model="numpy")(kind.score)
    return _COMPILED[kind]
