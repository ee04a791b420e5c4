"""How long can a waiting key be overtaken?  A bound for each policy, and its test.

Let n keys share a server that takes b units at a time (`plan(b)`) and spends at most C
seconds on a unit, and let it never idle while a key waits. Key k waits since e_k.

**D = (n - 1 + b) C** is the time in which every other key is served once, after what is
left of the batch that is being processed.

**in-place: D.** Whoever is served before k was enqueued before k. Each of the n - 1
other keys is waiting at most once at e_k, and joins behind k when it comes again.

**linecutting: G + (1 + a) D**, with G the largest mean gap 1/r and a = `rate_alpha` when
rates are learned, 0 when they are given. Key j that joined x seconds after k scores at
most W_j + 1/r_j = W - x + 1/r_j, and k at least W; so j is chosen only if x <= 1/r_j. A
learned gap grows with silence, to at most G + a W_j, which leaves x <= (G + a W) / (1 + a).
Whatever is served in the remaining W - x seconds joined before that, once per key, and so
W - (G + a W) / (1 + a) <= D.

**whittle: D + sqrt(rho B ((1 + 2 a) B + 2 G)) - C_k / 2**, with B = D + C / 2 and rho
the largest w/C of any key over that of k. Key j beats k only if

    rho V_j ((1/2 + a) V_j + G) >= V_k^2 / 2,    V = W + C/2,

so only keys that have waited at least v(W) - C/2 overtake, where v solves it for V_j and
grows with W. Were v(W - D) - C/2 > D, no key could be served twice in the last D
seconds, and D seconds of work cannot be filled otherwise. Hence v(W - D) <= B, which
solves to the bound. When the queue falls back to first-come order, the keys served have
waited longer than k, so the argument stands.

Rate classes change nothing for in-place and linecutting: what is said of k holds for the
head of its class, which has waited longer. For whittle that head may have a weight that
is smaller by a class step, so rho grows by `CLASS_STEP`.

**append: (rows ahead + b) C**: first in, first out, but the rows ahead have no bound in
the number of keys. Under overload they grow for ever, or to the memory limit.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from upstream import open_queue
from upstream.queue.base import BaseQueue

CLASS_STEP = 2**0.25
SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64())])


@dataclass(frozen=True)
class Key:
    """What the queue is told about a key."""

    name: str
    gap: float
    weight: float
    cost: float


@dataclass(frozen=True)
class Setting:
    """Keys, the server's batch, and whether rates are known."""

    keys: Sequence[Key]
    limit: int
    alpha: float | None = None  # None: rates are given

    @property
    def round_seconds(self) -> float:
        """D: everybody else once, and the batch in progress."""
        return (len(self.keys) - 1 + self.limit) * max(key.cost for key in self.keys)


def in_place_bound(setting: Setting, key: Key, gap: float, classes: bool) -> float:
    return setting.round_seconds


def linecutting_bound(setting: Setting, key: Key, gap: float, classes: bool) -> float:
    return gap + (1 + (setting.alpha or 0)) * setting.round_seconds


def whittle_bound(setting: Setting, key: Key, gap: float, classes: bool) -> float:
    b = setting.round_seconds + max(key.cost for key in setting.keys) / 2
    rho = max(key.weight / key.cost for key in setting.keys) / (key.weight / key.cost)
    if classes:
        rho *= CLASS_STEP
    spread = math.sqrt(rho * b * ((1 + 2 * (setting.alpha or 0)) * b + 2 * gap))
    return setting.round_seconds + spread - key.cost / 2


BOUNDS = {
    "in-place": in_place_bound,
    "linecutting": linecutting_bound,
    "whittle": whittle_bound,
}


class Server:
    """One server, a simulated clock and an adversary who decides what arrives when."""

    def __init__(self, setting: Setting, policy: str, selection: str) -> None:
        self.now = 0.0
        self.setting = setting
        self.costs = {key.name: key.cost for key in setting.keys}
        rules: list[dict[str, Any]] = []
        for key in setting.keys:
            rule = {"key": key.name, "weight": key.weight, "cost_class": key.name}
            rules.append(rule if setting.alpha else {**rule, "rate": 1 / key.gap})
        self.queue: BaseQueue = open_queue(
            "memory:",
            key="k",
            policy=policy,
            selection=selection,
            rules=rules,
            rate_alpha=setting.alpha or 0.1,
            cost_seconds=self.costs,
            clock=lambda: self.now,
        )
        self.longest = dict.fromkeys(self.costs, 0.0)
        self.waiting: set[str] = set()
        self.arrivals: dict[str, list[float]] = {name: [] for name in self.costs}

    def arrive(self, names: Sequence[str], at: Sequence[float]) -> None:
        if names:
            batch = pa.RecordBatch.from_pydict(
                {"k": list(names), "v": [0] * len(names)}, schema=SCHEMA
            )
            self.queue.put_many(batch, arrived=np.array(at))
            self.waiting.update(names)
            for name, when in zip(names, at, strict=True):
                self.arrivals[name].append(when)

    def serve(self) -> list[str]:
        """Take a batch and work on it; the clock stands at its end afterwards."""
        batch = self.queue.plan(self.setting.limit)
        names: list[str] = [row["k"] for row in batch.to_pylist()]
        for name, since in zip(names, batch.since.tolist(), strict=True):
            self.longest[name] = max(self.longest[name], self.now - since)
        self.waiting.difference_update(names)
        self.now += sum(self.costs[name] for name in names)
        self.queue.commit(batch.id)
        return names

    def learned_gap(self) -> float:
        """No estimate exceeds the longest gap that was seen."""
        return max(
            later - earlier
            for times in self.arrivals.values()
            for earlier, later in pairwise(times)
        )


def adversary(server: Server, rng: random.Random, rounds: int) -> None:
    """Bring back at once what was served, most of the time; update the rest at random."""
    names = list(server.costs)
    if server.setting.alpha:  # rates are learned: let there be a first gap for everybody
        for name in names:
            gap = rng.uniform(0.1, 3.0)
            server.arrive([name], [server.now])
            server.now += gap
            server.arrive([name], [server.now])
        while server.waiting:  # nobody worked meanwhile: that wait is not the policy's
            server.serve()
        server.longest = dict.fromkeys(server.costs, 0.0)
    eager = rng.random()
    for _ in range(rounds):
        start = server.now
        served = server.serve()
        back = [name for name in served if rng.random() < eager]
        others = [name for name in names if rng.random() < 0.3]
        events = sorted(
            [(start, name) for name in back]
            + [(rng.uniform(start, server.now), name) for name in others]
        )
        if not events and not server.waiting:
            events = [(server.now, rng.choice(names))]
        server.arrive([name for _, name in events], [at for at, _ in events])


def settings_of_servers(learned: bool) -> st.SearchStrategy[Setting]:
    key = st.tuples(
        st.sampled_from([0.05, 0.5, 2.0, 7.0, 30.0, 200.0]),
        st.sampled_from([0.3, 1.0, 4.0]),
        st.sampled_from([0.5, 1.0, 3.0]),
    )
    return st.builds(
        lambda shapes, limit, alpha: Setting(
            [Key(f"k{i}", *shape) for i, shape in enumerate(shapes)], limit, alpha
        ),
        st.lists(key, min_size=2, max_size=9),
        st.integers(1, 3),
        st.sampled_from([0.1, 0.4]) if learned else st.none(),
    )


@pytest.mark.parametrize("selection", ["scan", "classes"])
@pytest.mark.parametrize("policy", BOUNDS)
@pytest.mark.parametrize("learned", [False, True], ids=["given", "learned"])
def test_no_key_waits_longer_than_its_bound(policy: str, selection: str, learned: bool) -> None:
    @settings(max_examples=15, deadline=None)
    @given(settings_of_servers(learned), st.integers(0, 2**32))
    def check(setting: Setting, seed: int) -> None:
        server = Server(setting, policy, selection)
        adversary(server, random.Random(seed), rounds=120)
        gap = server.learned_gap() if learned else max(key.gap for key in setting.keys)
        for key in setting.keys:
            bound = BOUNDS[policy](setting, key, gap, selection == "classes")
            assert server.longest[key.name] <= bound + 1e-9
        while server.waiting:  # nobody is left behind when the adversary stops
            server.serve()
        final = server.queue.snapshot()
        assert final.waiting == 0
        assert final.handed_out == final.accepted - final.conflated

    check()


@pytest.mark.parametrize("selection", ["scan", "classes"])
@pytest.mark.parametrize(("policy", "share"), [("linecutting", 0.8), ("whittle", 0.4)])
def test_the_bounds_are_not_idle(policy: str, share: float, selection: str) -> None:
    """Slow keys that come back at once keep a fast one waiting for much of its bound."""
    slow = [Key(f"slow{i}", gap=40.0, weight=4.0, cost=1.0) for i in range(4)]
    victim = Key("victim", gap=0.01, weight=1.0, cost=1.0)
    setting = Setting([victim, *slow], limit=1)
    server = Server(setting, policy, selection)
    server.arrive([key.name for key in setting.keys], [0.0] * 5)
    while not server.longest["victim"]:
        start = server.now
        served = server.serve()
        server.arrive(served, [start] * len(served))
    bound = BOUNDS[policy](setting, victim, 40.0, selection == "classes")
    assert share * bound <= server.longest["victim"] <= bound


def test_in_place_reaches_its_bound() -> None:
    """The last of n that arrive together, just behind a batch, waits D exactly."""
    keys = [Key(f"k{i}", gap=1.0, weight=1.0, cost=2.0) for i in range(6)]
    setting = Setting(keys, limit=1)
    server = Server(setting, "in-place", "classes")
    server.arrive(["k0"], [0.0])
    server.serve()
    server.arrive([key.name for key in keys], [0.0] * 6)
    while server.waiting:
        server.serve()
    assert server.longest["k5"] == in_place_bound(setting, keys[5], 1.0, True)


@pytest.mark.parametrize("selection", ["scan", "classes"])
def test_first_come_when_everything_fits(selection: str) -> None:
    """Without overload the default policy keeps the order of arrival, whatever the rates."""
    keys = [Key(f"k{i}", gap=float(2**i), weight=1.0 + i, cost=1.0) for i in range(8)]
    server = Server(Setting(keys, limit=8), "whittle", selection)
    order = [3, 7, 0, 5, 1]
    server.arrive([f"k{i}" for i in order], [0.1 * i for i in range(5)])
    assert server.serve() == [f"k{i}" for i in order]


def test_append_waits_for_the_rows_ahead() -> None:
    setting = Setting([Key(f"k{i}", gap=1.0, weight=1.0, cost=1.0) for i in range(3)], limit=1)
    server = Server(setting, "append", "classes")
    server.arrive(["k0"] * 50 + ["k1"], [0.0] * 51)
    for _ in range(51):
        server.serve()
    assert server.longest == {"k0": 49.0, "k1": 50.0, "k2": 0.0}
