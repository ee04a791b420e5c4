"""The baselines: everything in order of arrival, or a random share of it."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from upstream import open_queue
from upstream.errors import InputError, QueueFull
from upstream.model import Batch
from upstream.queue.append_queue import AppendQueue, uniform
from upstream.staleness.exact import Arrival, Delivery, KeyEvents, staleness_at, stream_average

SCHEMA = pa.schema([("k", pa.string()), ("n", pa.int32()), ("t", pa.int64()), ("v", pa.string())])


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def table(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


def some_rows(rng: random.Random, count: int) -> list[dict[str, Any]]:
    return [
        {
            "k": rng.choice("abcde"),
            "n": rng.randrange(2),
            "t": rng.randrange(9),
            "v": rng.choice([None, "", "x" * rng.randrange(60)]),
        }
        for _ in range(count)
    ]


def opened(url: str = "memory:", **options: Any) -> tuple[AppendQueue, Clock]:
    clock = Clock()
    options = {"policy": "append", "key": ["k", "n"], "time": "t", **options}
    queue = open_queue(url, clock=clock, **options)
    assert isinstance(queue, AppendQueue)
    return queue, clock


def content(batch: Batch) -> list[dict[str, Any]]:
    return [{c: row[c] for c in SCHEMA.names} for row in batch.to_pylist()]


@dataclass
class Model:
    """Every update in lists; the queue must agree with it."""

    line: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    batches: dict[int, list[tuple[int, dict[str, Any]]]] = field(default_factory=dict)
    answered: set[int] = field(default_factory=set)
    arrivals: dict[str, list[Arrival]] = field(default_factory=dict)
    deliveries: dict[str, list[Delivery]] = field(default_factory=dict)
    sequence: int = 0
    shed: int = 0

    def put(self, rows: list[dict[str, Any]], times: list[float], kept: list[bool]) -> None:
        for row, at, keep in zip(rows, times, kept, strict=True):
            self.sequence += 1
            self.arrivals.setdefault(name(row), []).append(Arrival(at, self.sequence))
            if keep:
                self.line.append((self.sequence, row))
            else:
                self.shed += 1

    def take(self, batch_id: int, limit: int) -> list[dict[str, Any]]:
        self.batches[batch_id], self.line = self.line[:limit], self.line[limit:]
        return [row for _, row in self.batches[batch_id]]

    def deliver(self, batch_id: int, at: float) -> None:
        if batch_id in self.answered:
            return
        self.answered.add(batch_id)
        for sequence, row in self.batches[batch_id]:
            known = self.deliveries.setdefault(name(row), [])
            newest = max([sequence, *(int(d.sequence) for d in known)])
            known.append(Delivery(at, newest))

    def give_back(self, batch_id: int) -> None:
        self.line = sorted([*self.line, *self.batches.pop(batch_id)], key=lambda item: item[0])

    def events(self) -> dict[Any, KeyEvents]:
        return {
            key: KeyEvents(arrivals, self.deliveries.get(key, []))
            for key, arrivals in self.arrivals.items()
        }


def drawn(model: Model, rows: int, queue: AppendQueue) -> list[bool]:
    """Which of the next rows a queue with a fixed drop probability keeps."""
    drop = queue.config.drop_probability
    if drop == "auto":
        return [True] * rows
    places = np.arange(model.sequence, model.sequence + rows, dtype=np.uint64)
    kept: list[bool] = (uniform(places, queue.config.seed) < 1 - drop).tolist()
    return kept


def name(row: dict[str, Any]) -> str:
    return f"{row['k']}|{row['n']}"


def compare(queue: AppendQueue, model: Model, now: float) -> None:
    queue.check()
    s = queue.snapshot()
    handed_out = sum(len(rows) for rows in model.batches.values())
    assert (s.accepted, s.shed, s.waiting) == (model.sequence, model.shed, len(model.line))
    assert (s.conflated, s.superseded) == (0, 0)
    assert s.accepted == s.handed_out + s.shed + s.waiting
    assert s.handed_out == handed_out
    view = queue.staleness()
    events = model.events()
    expected = {key: staleness_at(event, now) for key, event in events.items()}
    assert dict(zip(view.keys(), view.staleness.tolist(), strict=True)) == pytest.approx(expected)
    first: dict[str, float] = {}
    for sequence, row in model.line:
        arrived = [a.at for a in events[name(row)].arrivals if a.sequence == sequence]
        first.setdefault(name(row), now - arrived[0])
    waiting = dict(zip(view.keys(), view.queue_staleness.tolist(), strict=True))
    assert waiting == pytest.approx({key: first.get(key, 0.0) for key in events})


@pytest.mark.parametrize("policy", ["append", "random-drop"])
@settings(max_examples=25)
@given(seed=st.integers(0, 2**32))
def test_random_histories(policy: str, seed: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Puts, plans, deliveries, returns and restarts in any order, against the model."""
    rng = random.Random(seed)
    options: dict[str, Any] = {"drop_probability": 0.4} if policy == "random-drop" else {}
    folder = tmp_path_factory.mktemp("append") if rng.random() < 0.5 else None
    url = "memory:" if folder is None else f"journal:{folder}"
    options |= {"policy": policy, "compact_after_bytes": 20_000, "seed": seed % 7}
    queue, clock = opened(url, **options)
    model = Model()
    for _ in range(40):
        clock.now += rng.choice([0.0, 0.125, 1.0])
        done = [b for b in model.batches if b in queue.planned()]
        match rng.choice(["put", "put", "one", "plan", "delivered", "commit", "back", "again"]):
            case "put":
                rows = some_rows(rng, rng.choice([1, 3, 40]))
                times = sorted(clock.now + rng.randrange(8) / 8 for _ in rows)
                clock.now = times[-1]
                receipt = queue.put_many(table(rows), arrived=times)
                kept = drawn(model, len(rows), queue)
                model.put(rows, times, kept)
                assert receipt == (len(rows), 0, 0, kept.count(False))
            case "one":
                row = some_rows(rng, 1)[0]
                queue.put_many(table([]))  # tells the types
                queue.put(row)
                model.put([row], [clock.now], drawn(model, 1, queue))
            case "plan":
                limit = rng.choice([1, 2, 7, 100])
                batch = queue.plan(limit)
                if batch:
                    assert content(batch) == model.take(batch.id, limit)
                    assert batch.updates.tolist() == [1] * len(batch)
                else:
                    assert not model.line
            case "delivered" if done:
                batch_id = rng.choice(done)
                queue.delivered(batch_id)
                model.deliver(batch_id, clock.now)
            case "commit" if done:
                batch_id = rng.choice(done)
                queue.commit(batch_id)
                model.deliver(batch_id, clock.now)
            case "back" if done:
                batch_id = rng.choice(done)
                if batch_id in model.answered:
                    with pytest.raises(InputError):
                        queue.give_back(batch_id)
                else:
                    queue.give_back(batch_id)
                    model.give_back(batch_id)
            case "again" if folder is not None:
                queue.close()
                reopened = open_queue(url, clock=clock, key=["k", "n"], time="t", **options)
                assert isinstance(reopened, AppendQueue)
                queue = reopened
        for batch_id in queue.planned():
            assert content(queue.batch(batch_id)) == [row for _, row in model.batches[batch_id]]
        compare(queue, model, clock.now)
    rest = content(queue.plan(10_000))
    assert rest == [row for _, row in model.line]
    if folder is None and model.arrivals:
        events = model.events()
        first = min(key.arrivals[0].at for key in events.values())
        average = stream_average(events, first, clock.now) if clock.now > first else 0.0
        assert queue.snapshot().staleness_average == pytest.approx(average)
    queue.close()


def test_order_is_that_of_arrival_whatever_the_times_say() -> None:
    queue, _ = opened()
    rows = [{"k": "a", "n": 0, "t": t, "v": str(t)} for t in (5, 3, 9, 9, 1)]
    queue.put_many(table(rows[:3]))
    queue.put_many(table(rows[3:]))
    assert [row["v"] for row in content(queue.plan(3))] == ["5", "3", "9"]
    assert [row["v"] for row in content(queue.plan())] == ["9", "1"]


def test_a_batch_says_since_when_each_row_waited() -> None:
    queue, _ = opened()
    queue.put_many(table(some_rows(random.Random(1), 3)), arrived=[1.0, 1.5, 4.0])
    batch = queue.plan(2)
    assert batch.since.tolist() == batch.arrived.tolist() == [1.0, 1.5]
    arrow = batch.to_arrow()
    arrow.validate(full=True)
    assert arrow.column("_updates").to_pylist() == [1, 1]
    assert [t.timestamp() for t in arrow.column("_waiting_since").to_pylist()] == [1.0, 1.5]


def test_batches_that_come_back_in_any_order_stand_where_they_stood() -> None:
    queue, _ = opened()
    rows = [{"k": "a", "n": 0, "t": i, "v": str(i)} for i in range(12)]
    queue.put_many(table(rows))
    first, second = queue.plan(3), queue.plan(3)
    queue.give_back(first.id)
    mixed = queue.plan(5)
    assert [row["t"] for row in content(mixed)] == [0, 1, 2, 6, 7]
    queue.give_back(second.id)
    queue.give_back(mixed.id)
    assert content(queue.plan()) == rows


@pytest.mark.parametrize("url", ["memory:", "journal:{}"])
def test_auto_drop_makes_the_load_fit(url: str, tmp_path: Path) -> None:
    """10 updates per second, 2 results: about 95 % of 2 in 10 are kept."""
    queue, clock = opened(url.format(tmp_path), policy="random-drop")
    rng = random.Random(3)
    for second in range(400):
        clock.now = float(second)
        queue.put_many(table(some_rows(rng, 10)))
        batch = queue.plan(2)
        clock.now += 0.5 * len(batch)
        queue.commit(batch.id)
    before = queue.snapshot()
    assert before.cost_seconds == pytest.approx(0.5)
    assert before.arrival_rate == pytest.approx(10, rel=0.05)
    for second in range(400, 800):
        clock.now = float(second)
        queue.put_many(table(some_rows(rng, 10)))
        batch = queue.plan(2)
        clock.now += 0.5 * len(batch)
        queue.commit(batch.id)
    after = queue.snapshot()
    assert (after.shed - before.shed) / 4000 == pytest.approx(1 - 0.95 * 2 / 10, abs=0.02)
    queue.close()


def test_seeds_differ_and_repeat() -> None:
    def shed(seed: int) -> list[Any]:
        queue, _ = opened(policy="random-drop", drop_probability=0.5, seed=seed)
        queue.put_many(table(some_rows(random.Random(0), 100)))
        assert 30 < queue.snapshot().shed < 70
        return content(queue.plan())

    assert shed(1) == shed(1)
    assert shed(1) != shed(2)


def long_rows(count: int) -> list[dict[str, Any]]:
    return [{"k": "k", "n": i % 3, "t": i, "v": f"{i:1000}"} for i in range(count)]


class TestFull:
    """With a limit of 300 kB there is room for fewer than 300 rows of 1 kB."""

    def test_error_says_how_many_rows_were_taken(self) -> None:
        queue, _ = opened(memory_limit="300kB", on_full="error")
        with pytest.raises(QueueFull, match="memory_limit") as caught:
            queue.put_many(table(long_rows(400)))
        taken = caught.value.accepted
        assert 200 < taken < 300
        queue.check()
        assert queue.snapshot().memory_bytes <= 300_000
        assert content(queue.plan()) == long_rows(400)[:taken]

    def test_shed_loses_the_newest(self) -> None:
        queue, clock = opened(memory_limit="300kB", on_full="shed")
        receipt = queue.put_many(table(long_rows(400)))
        kept = 400 - receipt.shed
        assert 200 < kept < 300
        clock.now = 5.0
        assert queue.put_many(table(long_rows(400))).shed >= 399
        assert queue.snapshot().memory_bytes <= 300_000
        batch = queue.plan()
        assert content(batch) == long_rows(400)[: len(batch)]
        queue.commit(batch.id)  # what was dropped at 0.0 is missing still
        assert queue.snapshot().staleness_mean == 5.0
        queue.put_many(table(long_rows(3)))
        queue.commit(queue.plan().id)
        assert queue.snapshot().staleness_mean == 0.0

    def test_what_is_shed_takes_no_memory(self) -> None:
        """Arrivals that are dropped for hours must not fill the memory themselves."""
        queue, _ = opened(memory_limit="300kB", on_full="shed")
        queue.put_many(table(long_rows(400)))
        full = queue.memory_bytes
        for _ in range(20):
            queue.put_many(table(long_rows(400)))
        assert queue.memory_bytes <= full + 2_000

    def test_block_waits_for_a_commit(self) -> None:
        queue, _ = opened(memory_limit="300kB", block_timeout_seconds=0.05)
        with pytest.raises(QueueFull, match=r"0\.05 s"):
            queue.put_many(table(long_rows(400)))
        batch = queue.plan()
        queue.commit(batch.id)
        queue.put_many(table(long_rows(100)))
        assert queue.snapshot().waiting == 100

    def test_restart_knows_what_was_shed(self, tmp_path: Path) -> None:
        options = {"memory_limit": "300kB", "on_full": "shed"}
        queue, _ = opened(f"journal:{tmp_path}", **options)
        queue.put_many(table(long_rows(400)))
        before = queue.snapshot()
        queue.close()
        queue, _ = opened(f"journal:{tmp_path}", **options)
        after = queue.snapshot()
        assert (after.shed, after.waiting) == (before.shed, before.waiting)
        assert content(queue.plan()) == long_rows(before.waiting)
        queue.close()


def test_weights_of_rules_and_columns() -> None:
    rules = [{"prefix": "a", "weight": 2.0}, {"key": "a|1", "weight": 3.0}]
    queue, clock = opened(rules=rules)
    rows = [{"k": k, "n": n, "t": 0, "v": ""} for k, n in (("a", 0), ("a", 1), ("b", 0))]
    queue.put_many(table(rows))
    clock.now = 1.0
    view = queue.staleness()
    assert dict(zip(view.keys(), view.weights, strict=True)) == {"a|0": 2, "a|1": 3, "b|0": 1}


@pytest.mark.parametrize(("column", "value"), [("k", None), ("n", None), ("t", None)])
def test_bad_rows_take_nothing(column: str, value: Any) -> None:
    queue, _ = opened()
    good = {"k": "a", "n": 0, "t": 0, "v": ""}
    with pytest.raises(InputError, match=f"row 1.*{column!r}"):
        queue.put_many(table([good, {**good, column: value}]))
    assert queue.snapshot().accepted == 0
