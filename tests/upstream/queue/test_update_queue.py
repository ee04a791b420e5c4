"""The update queue as a whole: deletes, threads, recovery."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.upstream.queue.opened import Clock, counts_add_up, moved, open_update_queue, values
from upstream import open_queue
from upstream.errors import QueueClosed, QueueFull
from upstream.model import Receipt
from upstream.queue.update_queue import UpdateQueue


class TestDeletes:
    def open(self, clock: Clock, **options: Any) -> UpdateQueue:
        return open_update_queue(
            clock, time="t", delete_column="op", forget_deleted_after_seconds=100.0, **options
        )

    def put(self, queue: UpdateQueue, key: str, time: int, op: str = "U") -> Receipt:
        return queue.put({"k": key, "t": time, "op": op})

    def served(self, queue: UpdateQueue) -> list[tuple[str, int, str]]:
        batch = queue.plan()
        queue.commit(batch.id)
        return [(row["k"], row["t"], row["op"]) for row in batch.to_pylist()]

    def test_a_delete_travels_like_any_update(self) -> None:
        queue = self.open(Clock())
        self.put(queue, "a", 1)
        self.put(queue, "a", 2, "D")
        assert self.served(queue) == [("a", 2, "D")]

    def test_a_deleted_key_is_remembered_and_then_forgotten(self) -> None:
        clock = Clock()
        queue = self.open(clock)
        self.put(queue, "a", 10, "D")
        self.put(queue, "b", 10)
        assert len(self.served(queue)) == 2
        clock.now = 99.0
        assert self.put(queue, "a", 5).superseded == 1
        self.put(queue, "b", 11)
        assert self.served(queue) == [("b", 11, "U")]
        assert queue.snapshot().keys == 2
        clock.now = 101.0
        self.put(queue, "b", 12)
        assert self.served(queue) == [("b", 12, "U")]
        assert queue.snapshot().keys == 1
        assert self.put(queue, "a", 5).superseded == 0
        assert self.served(queue) == [("a", 5, "U")]
        queue.check()
        counts_add_up(queue)

    def test_a_deleted_key_is_forgotten_while_nothing_waits(self) -> None:
        clock = Clock()
        queue = self.open(clock)
        self.put(queue, "a", 10, "D")
        self.served(queue)
        clock.now = 101.0
        assert not queue.plan()
        assert queue.snapshot().keys == 0

    @pytest.mark.parametrize("planned", [False, True])
    def test_a_key_that_came_back_is_not_forgotten(self, planned: bool) -> None:
        clock = Clock()
        queue = self.open(clock)
        self.put(queue, "a", 10, "D")
        self.served(queue)
        self.put(queue, "a", 11)
        if planned:
            assert self.served(queue) == [("a", 11, "U")]
        clock.now = 200.0
        self.put(queue, "b", 1)
        self.served(queue)
        assert queue.snapshot().keys == 2
        assert self.put(queue, "a", 10).superseded == 1

    def test_a_delete_that_is_not_committed_is_not_forgotten(self) -> None:
        clock = Clock()
        queue = self.open(clock)
        self.put(queue, "a", 10, "D")
        batch = queue.plan()
        clock.now = 200.0
        self.put(queue, "b", 1)
        self.served(queue)
        assert self.put(queue, "a", 5).superseded == 1
        queue.commit(batch.id)
        clock.now = 299.0
        self.put(queue, "b", 2)
        self.served(queue)
        assert queue.snapshot().keys == 2, "the time counts from the commit"

    def test_forgetting_survives_a_dump(self) -> None:
        clock = Clock()
        queue = self.open(clock)
        self.put(queue, "a", 10, "D")
        self.served(queue)
        queue = moved(queue)
        clock.now = 50.0
        assert self.put(queue, "a", 5).superseded == 1
        clock.now = 150.0
        self.put(queue, "b", 1)
        self.served(queue)
        assert queue.snapshot().keys == 1

    def test_deleted_keys_make_room_before_anything_is_refused(self) -> None:
        queue = self.open(Clock(), memory_limit="1MiB", on_full="error")
        for time in range(4):
            names = [f"key {time} {n}" for n in range(20_000)]
            gone = pa.table({"k": names, "t": [time] * 20_000, "op": ["D"] * 20_000})
            with pytest.raises(QueueFull):
                queue.put_many(gone)
            held = queue.snapshot().waiting
            assert held > 1000
            assert len(self.served(queue)) == held
        counts_add_up(queue)

    @pytest.mark.parametrize(
        ("kind", "option", "mark", "other"),
        [
            (pa.bool_(), None, True, False),
            (pa.bool_(), False, False, True),
            (pa.int8(), -1, -1, 1),
            (pa.uint64(), 7, 7, 2**63),
            (pa.large_string(), "gone for ever and ever", "gone for ever and ever", "gone"),
            (pa.binary(), "D", b"D", b"DD"),
        ],
        ids=str,
    )
    def test_marks_of_any_type(self, kind: Any, option: Any, mark: Any, other: Any) -> None:
        queue = open_update_queue(delete_column="op", delete_value=option, merge={"n": "sum"})
        marks = pa.array([other, mark, None, other, other], kind)
        queue.put_many(pa.table({"k": [1] * 5, "op": marks, "n": [1, 10, 100, 1000, 10_000]}))
        assert values(queue.plan(), "n") == {1: 11_100}


def test_several_threads_put_and_plan() -> None:
    """Counts add up, and of each key nothing older follows something newer."""
    queue = open_update_queue(policy="whittle", time="t")
    ticks, running = itertools.count(), threading.Event()
    handed: list[tuple[int, int, int, int]] = []
    lock = threading.Lock()

    def produce(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(60):
            keys = rng.integers(0, 40, 50)
            times = [next(ticks) for _ in keys]
            queue.put_many(pa.table({"k": keys, "t": times}))

    def consume(seed: int) -> None:
        rng = np.random.default_rng(seed)
        while running.is_set() or queue.waiting:
            batch = queue.plan(int(rng.integers(1, 20)))
            if rng.random() < 0.2:
                queue.give_back(batch.id)
                continue
            rows = batch.to_pylist()
            with lock:
                handed.extend((batch.id, row["k"], row["t"], row["_updates"]) for row in rows)
            queue.snapshot()
            queue.commit(batch.id)

    running.set()
    producers = [threading.Thread(target=produce, args=(seed,)) for seed in range(3)]
    consumers = [threading.Thread(target=consume, args=(seed,)) for seed in range(10, 12)]
    for thread in producers + consumers:
        thread.start()
    for thread in producers:
        thread.join()
    running.clear()
    for thread in consumers:
        thread.join()
    queue.check()
    s = queue.snapshot()
    counts_add_up(queue)
    assert s.accepted == 3 * 60 * 50
    assert s.waiting == 0
    assert s.handed_out == len(handed)
    latest: dict[int, int] = {}
    for _, key, time, _ in sorted(handed):
        assert time >= latest.get(key, -1)
        latest[key] = time


Action = tuple[str, int]
actions = st.lists(
    st.tuples(
        st.sampled_from(["put", "put", "put", "plan", "plan", "deliver", "commit", "back", "wait"]),
        st.integers(0, 2**20),
    ),
    min_size=5,
    max_size=30,
)


class Life:
    """Plays actions on queues, the same on each, and notes what they answer."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.event_time = 0

    def play(self, queues: list[UpdateQueue], action: Action) -> None:
        verb, number = action
        rng = np.random.default_rng(number)
        planned = queues[0].planned()
        if verb == "wait":
            self.clock.now += int(rng.integers(1, 40)) / 8
        elif verb == "put":
            keys = rng.integers(0, 15, 6)
            self.event_time += 1
            rows = pa.table(
                {
                    "k": [f"key number {key}" for key in keys],
                    "t": self.event_time + rng.integers(-3, 3, 6),
                    "v": pa.array([None, 1, 2, None, 3, 4], pa.int64()),
                    "l": pa.array([[1], None, [2], [], [3], [4, 5]], pa.list_(pa.int64())),
                    "op": rng.choice(["U", "U", "D"], 6).tolist(),
                }
            )
            answers = [queue.put_many(rows) for queue in queues]
            assert answers[1:] == answers[:-1]
        elif verb == "plan":
            limit = int(rng.integers(1, 6))
            batches = [queue.plan(limit) for queue in queues]
            for batch in batches[1:]:
                assert batch.id == batches[0].id
                assert batch.to_pylist() == batches[0].to_pylist()
        elif planned:
            batch_id = planned[number % len(planned)]
            for queue in queues:
                assert queue.planned() == planned
                if verb == "deliver":
                    queue.delivered(batch_id)
                elif verb == "commit" or queue._batches[batch_id].delivered:
                    queue.commit(batch_id)
                else:
                    queue.give_back(batch_id)


@pytest.mark.parametrize("policy", ["in-place", "linecutting", "whittle"])
@given(before=actions, after=actions)
@settings(max_examples=30)
def test_a_loaded_queue_decides_like_the_one_that_was_dumped(
    policy: str, before: list[Action], after: list[Action]
) -> None:
    clock = Clock()
    queue = open_update_queue(
        clock,
        policy=policy,
        selection="scan",
        time="t",
        merge={"v": "sum"},
        delete_column="op",
        forget_deleted_after_seconds=5.0,
    )
    life = Life(clock)
    for action in [("put", 1), *before]:
        life.play([queue], action)
    other = moved(queue)
    for planned in queue.planned():
        assert other.batch(planned).to_pylist() == queue.batch(planned).to_pylist()
    for action in [*after, ("wait", 3), ("plan", 5), ("plan", 6)]:
        life.play([queue, other], action)
    other.check()
    ours, theirs = queue.snapshot()._asdict(), other.snapshot()._asdict()
    for name in ("memory_bytes",):  # pages may be filled otherwise
        del ours[name], theirs[name]
    assert theirs == pytest.approx(ours, nan_ok=True)


def test_nulls_are_remembered_through_a_dump() -> None:
    """A value that replaces a null after recovery is a value."""
    queue = open_update_queue()
    schema = pa.schema([("k", pa.string()), ("i", pa.int64()), ("s", pa.string())])

    def put(number: int | None, text: str | None) -> None:
        row = {"k": "a", "i": number, "s": text}
        queue.put_many(pa.RecordBatch.from_pylist([row], schema=schema))

    put(None, None)
    queue = moved(queue)
    put(5, "five")
    assert [(r["i"], r["s"]) for r in queue.plan().to_pylist()] == [(5, "five")]


class TestInterruptedCalls:
    """A call that is cut short between the log and the queue ends the queue, loudly."""

    def open(self, tmp_path: Path) -> UpdateQueue:
        queue = open_queue(f"journal:{tmp_path}", key="k", policy="in-place")
        assert isinstance(queue, UpdateQueue)
        return queue

    def interrupt(self, queue: UpdateQueue, method: str, patch: pytest.MonkeyPatch) -> None:
        def interrupted(*_: object) -> None:
            raise KeyboardInterrupt

        patch.setattr(queue, method, interrupted)

    def test_put(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        queue = self.open(tmp_path)
        queue.put({"k": "a", "v": 1})
        self.interrupt(queue, "_take", monkeypatch)
        with pytest.raises(KeyboardInterrupt):
            queue.put({"k": "b", "v": 2})
        with pytest.raises(QueueClosed, match="interrupted"):
            queue.plan()
        with self.open(tmp_path) as again:
            assert values(again.plan()) == {"a": 1, "b": 2}

    def test_plan(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        queue = self.open(tmp_path)
        queue.put({"k": "a", "v": 1})
        self.interrupt(queue, "_freeze", monkeypatch)
        with pytest.raises(KeyboardInterrupt):
            queue.plan()
        with pytest.raises(QueueClosed, match="interrupted"):
            queue.plan()
        with self.open(tmp_path) as again:
            assert values(again.plan()) == {"a": 1}

    def test_commit(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        queue = self.open(tmp_path)
        queue.put({"k": "a", "v": 1})
        batch = queue.plan()
        self.interrupt(queue, "_answer", monkeypatch)
        with pytest.raises(KeyboardInterrupt):
            queue.commit(batch.id)
        with pytest.raises(QueueClosed, match="interrupted"):
            queue.plan()
        with self.open(tmp_path) as again:
            assert again.planned() == []
            assert not again.plan()
