"""Random histories of a queue, compared with the oracle after every step.

The machine opens a queue with a random schema, key, policy and merge rules, then puts,
plans, delivers, commits, gives back, lets time pass and, where there is a journal, closes
and opens again, in any order. What must hold is said by the methods named `check_`.
"""

from __future__ import annotations

import datetime as dt
import random
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.oracle import Key, OracleQueue, Rule
from upstream import open_queue
from upstream.model import Batch
from upstream.queue.base import BaseQueue
from upstream.queue.policies import Policy
from upstream.staleness.exact import staleness_at, stream_average

CLASS_STEP = 2**0.25  # keys of one rate class differ by this at most
EPOCH = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
Rng = random.Random


class Hurried(Policy):
    """A user's policy: weighted waiting, more for slow keys."""

    name = "hurried"

    def score(self, waiting: Any, rate: Any, weight: Any, cost: Any, position: Any) -> Any:
        return weight * (waiting + 1 / rate)


class Fickle(Policy):
    """A user's policy that wants every key scored: best is who has waited two seconds."""

    name = "fickle"
    monotone = False
    uses_position = True

    def score(self, waiting: Any, rate: Any, weight: Any, cost: Any, position: Any) -> Any:
        return position * cost - (waiting - 2.0) ** 2


USER_POLICIES: dict[str, Policy] = {f"{__name__}:{c.__name__}": c() for c in (Hurried, Fickle)}

# Value columns: a type, a way to make values, and the merges that make sense for it.
# Numbers are multiples of 1/4, so that sums are exact in any order.
LONG_TEXTS = ["", "tiny", "twelve bytes", "thirteen byte", "ü" * 40, "x" * 3000]
KINDS: dict[str, tuple[pa.DataType, Callable[[Rng], Any], tuple[str, ...]]] = {
    "float": (pa.float64(), lambda r: r.randrange(-40, 40) / 4, ("min", "max", "sum", "first")),
    "half": (pa.float32(), lambda r: r.randrange(-40, 40) / 4, ("min", "max", "sum")),
    "nan": (pa.float64(), lambda r: r.choice([float("nan"), float("inf"), 1.5]), ("first",)),
    "int": (pa.int64(), lambda r: r.randrange(-99, 99), ("min", "max", "sum", "count", "first")),
    "small": (pa.int16(), lambda r: r.randrange(-9, 9), ("min", "max", "sum", "count")),
    "big": (pa.uint64(), lambda r: r.randrange(2**64 - 9, 2**64), ("min", "max", "first")),
    "text": (pa.string(), lambda r: r.choice(LONG_TEXTS), ("first", "min", "max")),
    "large": (pa.large_string(), lambda r: r.choice(LONG_TEXTS), ("first",)),
    "bytes": (pa.binary(), lambda r: bytes(r.randrange(40)), ("first",)),
    "decimal": (
        pa.decimal128(12, 3),
        lambda r: Decimal(r.randrange(-9999, 9999)).scaleb(-3),
        ("min", "max", "sum", "first"),
    ),
    "bool": (pa.bool_(), lambda r: r.random() < 0.5, ("first",)),
    "when": (
        pa.timestamp("us", "UTC"),
        lambda r: EPOCH + dt.timedelta(microseconds=r.randrange(10**9)),
        ("min", "max", "first"),
    ),
    "day": (pa.date32(), lambda r: dt.date(2024, 1, r.randrange(1, 30)), ("min", "max")),
    "list": (pa.list_(pa.int64()), lambda r: [r.randrange(9)] * r.randrange(4), ("first",)),
    "struct": (
        pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))]),
        lambda r: {"a": r.choice([None, 3]), "b": r.choice([None, [], ["x", None]])},
        ("first",),
    ),
}
TIMES: dict[str, tuple[pa.DataType, Callable[[int], Any]]] = {
    "timestamp": (pa.timestamp("us", "UTC"), lambda n: EPOCH + dt.timedelta(seconds=n)),
    "int": (pa.int64(), int),
    "float": (pa.float64(), lambda n: n / 2 - 3),
}
TEXT_KEYS = ["a", "b", "ab", "twelve bytes", "thirteen byte", "k" * 200, "ä", "A", "zz", " "]


@dataclass
class Setup:
    """A queue to be: its schema and options, and the oracle that goes with it."""

    schema: pa.Schema
    keys: list[Key]
    make_values: dict[str, Callable[[Rng], Any]]
    make_time: Callable[[int], Any] | None
    options: dict[str, Any]
    oracle: OracleQueue
    known: bool  # rates and costs are given, in numbers that compute without rounding
    exact: bool  # decisions are those of a full scan
    batches_of_many: int
    handed_out: dict[Key, int] = field(default_factory=dict)

    def rows(self, rng: Rng, count: int, now: float) -> list[dict[str, Any]]:
        rows = []
        for _ in range(count):
            row: dict[str, Any] = dict(zip(self.oracle.key, rng.choice(self.keys), strict=True))
            if self.make_time is not None:
                row["t"] = self.make_time(int(now * 2) + rng.choice([0, 0, 0, 1, 2, -1, -3, -20]))
            for name, make in self.make_values.items():
                row[name] = None if rng.random() < 0.15 else make(rng)
            if "gone" in self.schema.names:
                row["gone"] = rng.choice([None, False, False, False, True])
            if "w" in self.schema.names:
                row["w"] = rng.choice([None, 0.5, 1.0, 4.0])
            rows.append(row)
        return rows


def text_of(key: Key) -> str:
    return "|".join(str(part) for part in key)


@st.composite
def setups(draw: st.DrawFn) -> Setup:
    fields: list[pa.Field] = []
    key_names = draw(st.sampled_from([["k"], ["n"], ["k", "n"], ["n", "k"]]))
    many = draw(st.sampled_from([1, 3, 10]))
    texts, numbers = TEXT_KEYS[:many], [0, -1, 7, 2**40, 5, 11, 12, 13, 14, 15][:many]
    parts = {"k": (pa.string(), texts), "n": (pa.int64(), numbers)}
    fields += [pa.field(name, parts[name][0]) for name in key_names]
    keys: list[Key] = list(zip(*(parts[name][1] for name in key_names), strict=True))
    time = draw(st.sampled_from([None, *TIMES]))
    if time is not None:
        fields.append(pa.field("t", TIMES[time][0]))
    kinds = draw(st.lists(st.sampled_from(sorted(KINDS)), max_size=4, unique=True))
    fields += [pa.field(kind, KINDS[kind][0]) for kind in kinds]
    merge = {kind: draw(st.sampled_from(KINDS[kind][2])) for kind in kinds if draw(st.booleans())}
    options: dict[str, Any] = {"key": key_names, "merge": merge}
    if draw(st.booleans()):
        fields.append(pa.field("gone", pa.bool_()))
        options["delete_column"] = "gone"
    if draw(st.booleans()):
        fields.append(pa.field("w", pa.float64()))
        options["weight_column"] = "w"
    fields = draw(st.permutations(fields))

    policy = draw(
        st.sampled_from(["whittle", "linecutting", "whittle", "in-place", *USER_POLICIES])
    )
    selection = draw(st.sampled_from(["scan", "classes"]))
    known = draw(st.sampled_from([True, True, False]))
    exact = selection == "scan" or policy == "in-place" or policy.endswith("Fickle")
    rules: list[dict[str, Any]] = []
    if known:
        rules = [
            {
                "key": text_of(key),
                "rate": 2.0 ** draw(st.integers(-5, 5)),
                "weight": 2.0 ** draw(st.integers(-2, 2)),
            }
            for key in keys
        ]
    cost = 2.0 ** draw(st.integers(-4, 1))
    if time is not None:
        options["time"] = "t"
    options |= {
        "policy": policy,
        "selection": selection,
        "rules": rules,
        "cost_seconds": cost,
        "forget_deleted_after_seconds": 1e9,
        "freshness_target_seconds": 1.0,
    }
    user = USER_POLICIES.get(policy)
    oracle = OracleQueue(
        key=key_names,
        time="t" if time is not None else None,
        policy=policy if user is None else user.score,
        merge=merge,
        delete_column=options.get("delete_column"),
        delete_value=True,
        weight_column=options.get("weight_column"),
        rules=[
            Rule(key=key, rate=rule["rate"], weight=rule["weight"])
            for key, rule in zip(keys, rules, strict=False)
        ],
        cost=cost,
    )
    return Setup(
        schema=pa.schema(fields),
        keys=keys,
        make_values={kind: KINDS[kind][1] for kind in kinds},
        make_time=None if time is None else TIMES[time][1],
        options=options,
        oracle=oracle,
        known=known,
        exact=exact,
        batches_of_many=draw(st.sampled_from([1, 20, 300])),
    )


class QueueMachine(RuleBasedStateMachine):
    """One queue and its oracle, with the same calls."""

    store: ClassVar[str]
    setup_: Setup
    queue: BaseQueue

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.folder = tempfile.mkdtemp(prefix="upstream-stateful-")
        self.content: dict[int, pa.RecordBatch] = {}

    def open(self) -> BaseQueue:
        return open_queue(
            "memory:" if self.store == "memory" else f"journal:{self.folder}/queue",
            clock=lambda: self.now,
            **self.setup_.options,
        )

    @initialize(setup=setups())
    def begin(self, setup: Setup) -> None:
        self.setup_ = setup
        self.oracle = setup.oracle
        self.queue = self.open()
        self.put_many(seed=0, count=1, shape="batch", spread=False)  # measuring begins here

    # -- what can happen --------------------------------------------------------------

    @rule(step=st.sampled_from([0.0, 0.0, 0.125, 0.5, 1.0, 3.0, 50.0]))
    def time_passes(self, step: float) -> None:
        self.now += step

    @rule(
        seed=st.integers(0, 2**32),
        count=st.sampled_from([0, 1, 2, 5, 20, 300]),
        shape=st.sampled_from(["batch", "table", "slice"]),
        spread=st.booleans(),
    )
    def put_many(self, seed: int, count: int, shape: str, spread: bool) -> None:
        rng = Rng(seed)
        count = min(count, self.setup_.batches_of_many)
        rows = self.setup_.rows(rng, count, self.now)
        batch = pa.RecordBatch.from_pylist(rows, schema=self.setup_.schema)
        arrow: pa.RecordBatch | pa.Table = batch
        if shape == "table":
            cut = rng.randrange(count + 1)
            arrow = pa.Table.from_batches([batch.slice(0, cut), batch.slice(cut)])
        elif shape == "slice":
            padding = pa.RecordBatch.from_pylist(rows[:1] * 3, schema=self.setup_.schema)
            joined = pa.Table.from_batches([padding, batch, padding]).combine_chunks()
            arrow = joined.to_batches()[0].slice(padding.num_rows, count) if count else batch
        arrived = np.full(count, self.now)
        if spread and count:
            arrived += np.sort([rng.randrange(count) / 16 for _ in range(count)])
            self.now = float(arrived[-1])
        expected = self.oracle.put(batch.to_pylist(), arrived.tolist())
        receipt = self.queue.put_many(arrow, arrived=arrived if spread else None)
        assert receipt == (expected.accepted, expected.conflated, expected.superseded, 0)

    @rule(seed=st.integers(0, 2**32))
    def put(self, seed: int) -> None:
        rows = self.setup_.rows(Rng(seed), 1, self.now)
        batch = pa.RecordBatch.from_pylist(rows, schema=self.setup_.schema)
        self.oracle.put(batch.to_pylist(), [self.now])
        self.queue.put(rows[0])

    @rule(limit=st.sampled_from([None, 1, 2, 3, 7, 1000]))
    def plan(self, limit: int | None) -> None:
        first_come = self.check_first_come(limit)
        batch = self.queue.plan(limit)
        if not self.oracle.waiting:
            assert not batch
            assert batch.id == 0
            return
        rows = batch.to_pylist()
        keys = [tuple(row[name] for name in self.oracle.key) for row in rows]
        self.check_decisions(keys, limit, first_come)
        self.check_order(keys)
        self.oracle.hand_out(batch.id, keys, self.now)
        self.check_content(batch)
        self.content[batch.id] = batch.to_arrow()

    @precondition(lambda self: self.content)
    @rule(data=st.data(), late=st.booleans())
    def delivered(self, data: st.DataObject, late: bool) -> None:
        batch_id = data.draw(st.sampled_from(sorted(self.content)))
        if late:
            self.now += 0.25
        self.queue.delivered(batch_id, self.now if late else None)
        self.oracle.delivered(batch_id, self.now)

    @precondition(lambda self: self.content)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        batch_id = data.draw(st.sampled_from(sorted(self.content)))
        self.queue.commit(batch_id)
        self.oracle.commit(batch_id, self.now)
        del self.content[batch_id]

    @precondition(lambda self: self.undelivered())
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        batch_id = data.draw(st.sampled_from(self.undelivered()))
        self.queue.give_back(batch_id)
        self.oracle.give_back(batch_id)
        del self.content[batch_id]

    @precondition(lambda self: self.store == "journal")
    @rule()
    def reopen(self) -> None:
        """Nothing changes, neither what waits nor what was measured."""
        before = self.queue.snapshot()._asdict()
        self.queue.close()
        self.queue = self.open()
        after = self.queue.snapshot()._asdict()
        for name in set(before) - {"policy", "memory_bytes"}:
            assert after[name] == pytest.approx(before[name], nan_ok=True), name

    def undelivered(self) -> list[int]:
        return [
            batch_id
            for batch_id, batch in sorted(self.oracle.batches.items())
            if batch.delivered_at is None
        ]

    # -- what must hold ---------------------------------------------------------------

    def check_first_come(self, limit: int | None) -> bool:
        """Whether this plan serves in order of arrival because there is no overload."""
        fits = limit is None or limit >= len(self.oracle.waiting)
        overloaded = self.queue.snapshot().load_factor > 1.05  # NaN before the first plan
        return self.setup_.options["policy"] == "whittle" and (fits or not overloaded)

    def check_decisions(self, keys: list[Key], limit: int | None, first_come: bool) -> None:
        """The keys are those of brute force, or as near as the selection promises."""
        setup, oracle = self.setup_, self.oracle
        if (setup.exact and setup.known) or first_come:
            assert keys == oracle.plan(limit, self.now, first_come=first_come)
            return
        wanted = len(oracle.waiting) if limit is None else min(limit, len(oracle.waiting))
        assert len(keys) == wanted
        held = dict(oracle.waiting)
        for key in keys:
            scores = oracle.scores(self.now)
            best = max(scores, key=scores.__getitem__)
            if setup.exact:  # estimates of rates keep seven digits
                assert scores[key] >= scores[best] - 1e-6 * abs(scores[best]) - 1e-9
            elif setup.known:
                assert scores[key] >= self.promised(scores[best], best)
            del oracle.waiting[key]
        oracle.waiting = held

    def promised(self, score: float, best: Key) -> float:
        """The least score that may be taken in place of the best one."""
        if self.setup_.options["policy"] == "linecutting":
            return score - (1 - 1 / CLASS_STEP) / self.oracle.rate_of(best, self.now) - 1e-9
        return score / CLASS_STEP**2 - 1e-9

    def check_order(self, keys: list[Key]) -> None:
        """nSCS: of a key, nothing is handed out after something newer."""
        assert len(set(keys)) == len(keys)
        for key in keys:
            seen = [seq for _, seq in self.oracle.deliveries.get(key, [])]
            seen += [
                unit.newest.seq
                for batch in self.oracle.batches.values()
                for unit in batch.units
                if unit.key == key
            ]
            assert self.oracle.waiting[key].newest.seq > max(seen, default=0)

    def check_content(self, batch: Batch) -> None:
        """Every unit is the newest, merged as it should be, in all its columns."""
        units = self.oracle.batches[batch.id].units
        assert batch.planned_at == self.oracle.batches[batch.id].planned_at
        assert batch.since.tolist() == [unit.since for unit in units]
        assert batch.arrived.tolist() == [unit.newest.arrived for unit in units]
        assert batch.updates.tolist() == [len(unit.updates) for unit in units]
        arrow = batch.to_arrow()
        arrow.validate(full=True)
        assert arrow.column_names == [*self.setup_.schema.names, "_updates", "_waiting_since"]
        assert arrow.column("_updates").to_pylist() == batch.updates.tolist()
        rows = arrow.select(self.setup_.schema.names).to_pylist()
        for row, unit in zip(rows, units, strict=True):
            assert repr(row) == repr(unit.content(self.oracle.merge))

    @invariant()
    def check_batches(self) -> None:
        """A planned batch stays as it was, read as often as one likes."""
        assert self.queue.planned() == sorted(self.content)
        for batch_id, content in self.content.items():
            again = self.queue.batch(batch_id)
            assert again.id == batch_id
            assert repr(again.to_arrow().to_pylist()) == repr(content.to_pylist())
            assert again.to_arrow().schema == content.schema

    @invariant()
    def check_counts(self) -> None:
        """Accepted is handed out, conflated, superseded, shed or waiting."""
        s, counts = self.queue.snapshot(), self.oracle.counts
        assert s.accepted == s.handed_out + s.conflated + s.superseded + s.shed + s.waiting
        assert (s.accepted, s.handed_out) == (counts.accepted, counts.handed_out)
        assert (s.conflated, s.superseded, s.shed) == (counts.conflated, counts.superseded, 0)
        assert s.waiting == len(self.oracle.waiting)
        assert s.keys == len(self.oracle.history)
        assert s.planned_batches == len(self.oracle.batches)
        assert s.memory_bytes <= s.memory_limit_bytes

    @invariant()
    def check_staleness(self) -> None:
        """Every key is exactly as stale as its events say."""
        expected = {
            text_of(key): staleness_at(self.oracle.events()[key], self.now)
            for key in self.oracle.history
        }
        waiting = {
            text_of(key): self.oracle.queue_staleness(key, self.now) for key in self.oracle.history
        }
        view = self.queue.staleness()
        names = list(map(str, view.keys()))
        assert dict(zip(names, view.staleness.tolist(), strict=True)) == pytest.approx(expected)
        assert dict(zip(names, view.queue_staleness.tolist(), strict=True)) == waiting
        s = self.queue.snapshot()
        stale = np.array(list(expected.values()) or [0.0])
        assert s.staleness_mean == pytest.approx(stale.mean())
        assert s.staleness_max == pytest.approx(stale.max())
        assert s.staleness_p95 == pytest.approx(np.quantile(stale, 0.95))
        if expected:
            assert s.within_target == pytest.approx(np.mean(stale <= 1.0))

    def teardown(self) -> None:
        """Every accepted key is handed out in the end, and the averages were right."""
        try:
            if hasattr(self, "queue") and sys.exc_info()[0] is None:
                for _ in range(1000):
                    if not self.oracle.waiting:
                        break
                    self.plan(3)
                    self.now += 0.5
                assert not self.queue.plan()
                for batch_id in list(self.content):
                    self.queue.commit(batch_id)
                    self.oracle.commit(batch_id, self.now)
                    del self.content[batch_id]
                self.now += 1.0
                self.check_counts()
                self.check_staleness()
                first = self.oracle.started
                average = 0.0
                if first is not None:
                    average = stream_average(self.oracle.events(), first, self.now)
                assert self.queue.snapshot().staleness_average == pytest.approx(average)
                self.queue.close()
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)


class MemoryMachine(QueueMachine):
    store = "memory"


class JournalMachine(QueueMachine):
    store = "journal"


TestMemoryQueue = MemoryMachine.TestCase
TestMemoryQueue.settings = settings(max_examples=60, stateful_step_count=30)
TestJournalQueue = JournalMachine.TestCase
TestJournalQueue.settings = settings(max_examples=30, stateful_step_count=30)
