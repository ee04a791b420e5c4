"""Windows are handed out whole or not at all, and are those of an infinitely fast system."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.upstream.queue.instant import Instant, Row, Shape
from tests.upstream.queue.opened import Clock
from upstream import open_queue
from upstream.errors import ConfigError, InputError, SchemaError
from upstream.model import Batch
from upstream.queue.window_queue import WindowQueue
from upstream.windows import WindowAggregate

NO_SHRINK = (Phase.explicit, Phase.reuse, Phase.generate)
SCHEMA = pa.schema(
    [
        ("k", pa.string()),
        ("t", pa.int64()),
        ("n", pa.int64()),
        ("mark", pa.bool_()),
        ("x", pa.string()),
    ]
)


def text(number: int) -> str:
    return "long text " * 3 if number % 3 == 0 else f"{number}"


def batch_of(rows: list[Row]) -> pa.RecordBatch:
    listed = [
        {
            "k": row.key,
            "t": row.time,
            "n": row.number,
            "mark": row.punctuation,
            "x": text(row.number),
        }
        for row in rows
    ]
    return pa.RecordBatch.from_pylist(listed, schema=SCHEMA)


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    kind = draw(st.sampled_from(["sliding", "sliding", "sliding", "landmark", "slide-by-tuple"]))
    by = "time" if kind == "slide-by-tuple" else draw(st.sampled_from(["count", "time"]))
    of = draw(st.sampled_from(["key", "stream"])) if by == "count" else "key"
    timed = by == "time" or (of == "key" and draw(st.booleans()))
    count = draw(st.none() | st.integers(0, 3)) if timed else None
    return Shape(
        kind=kind,
        by=by,
        of=of,
        size=draw(st.integers(1, 7)),
        slide=draw(st.integers(1, 8)),
        progress=draw(st.sampled_from(["stream", "key"])) if of == "key" and timed else "stream",
        disorder=draw(st.integers(0, 4)) if timed and count is None else 0,
        disorder_count=count,
        timed=timed,
    )


@st.composite
def streams(draw: st.DrawFn, *, timed: bool) -> list[Row]:
    count = draw(st.integers(1, 40))
    now, rows = 0, []
    for number in range(count):
        now += draw(st.sampled_from([0, 1, 1, 1, 2, 9]))
        key = draw(st.sampled_from("abc"))
        late = draw(st.sampled_from([0, 0, 0, 1, 2, 5]))
        mark = timed and draw(st.integers(0, 9)) == 0
        rows.append(Row(key, max(now - late, 0), number, mark))
    return rows


class Ledger:
    """What was handed out, put together again as the aggregate downstream would."""

    def __init__(self) -> None:
        self.open: dict[tuple[str, int], list[int]] = {}
        self.results: dict[str, list[tuple[int, list[int]]]] = defaultdict(list)
        self.aggregate = WindowAggregate(
            keys=["k"], aggregates={"count": ("n", "count"), "last": ("n", "last")}
        )

    def take(self, batch: Batch) -> None:
        found = self.aggregate.update(batch.to_arrow()).to_pylist()
        before = {key: len(windows) for key, windows in self.results.items()}
        self._take(batch)
        answers = {(row["k"], row["window_id"]): (row["count"], row["last"]) for row in found}
        assert answers == {
            (key, wid): (len(numbers), numbers[-1])
            for key, windows in self.results.items()
            for wid, numbers in windows[before.get(key, 0) :]
        }
        assert self.aggregate.open_windows == len(self.open)

    def _take(self, batch: Batch) -> None:
        for row in batch.to_pylist():
            at = row["k"], row["_window_id"]
            assert row["x"] == text(row["n"])
            if row["_first"]:
                assert at not in self.open
                self.open[at] = []
            self.open[at].append(row["n"])
            if row["_last"]:
                self.results[row["k"]].append((row["_window_id"], self.open.pop(at)))


class Course:
    """A queue beside the instantaneous system, and all that can happen to it."""

    def __init__(self, shape: Shape, buffer: str, policy: str, directory: str | None) -> None:
        self.instant = Instant(shape)
        self.shape, self.buffer, self.policy = shape, buffer, policy
        self.clock = Clock()
        self.store = f"journal:{directory}" if directory else "memory:"
        self.options: dict[str, Any] = {
            "key": "k",
            "policy": policy,
            "memory_limit": "64MiB",
            "window": shape.options(buffer=buffer, late="side"),
        }
        if shape.timed:
            self.options["time"] = "t"
        if policy == "window-drop":
            self.options["drop_probability"] = 0.4
        self.queue = self.open()
        self.ledger = Ledger()
        self.late: list[int] = []
        self.pending: list[Batch] = []
        self.most_rows = 0

    def open(self) -> WindowQueue:
        queue = open_queue(self.store, clock=self.clock, **self.options)
        assert isinstance(queue, WindowQueue)
        return queue

    def do(self, action: str, rows: list[Row]) -> None:
        self.clock.now += 1.0
        match action:
            case "put":
                self.queue.put_many(batch_of(rows))
                for row in rows:
                    self.instant.put(row)
                self.late += self.queue.late_rows()["n"].to_pylist()
            case "plan":
                batch = self.queue.plan(2)
                if batch:
                    self.pending.append(batch)
            case "commit" if self.pending:
                batch = self.pending.pop(0)
                self.ledger.take(batch)
                self.queue.commit(batch.id)
            case "give back" if self.pending:
                self.queue.give_back(self.pending.pop().id)
            case "crash":
                self.crash()
        self.queue.check()
        self.check_bounds()

    def crash(self) -> None:
        if self.store == "memory:":
            meta, buffers = self.queue.dump() if self.queue.layout else ({}, [])
            other = self.open()
            if buffers:
                assert self.queue.schema is not None
                other.bind(self.queue.schema)
                other.load(meta, [bytes(buffer) for buffer in buffers])
            self.queue = other
        else:
            self.queue.close()
            self.queue = self.open()
        again = [self.queue.batch(number) for number in self.queue.planned()]
        assert [b.to_pylist() for b in again] == [b.to_pylist() for b in self.pending]
        self.pending = again

    def check_bounds(self) -> None:
        """2w + s and w + s updates per key, where windows have a number of updates."""
        shape = self.shape
        if (
            self.policy in ("append", "window-drop")
            or shape.by != "count"
            or shape.of != "key"
            or shape.kind != "sliding"
            or shape.timed
        ):
            return
        held = self.queue.rows_held() if self.queue.layout else {}
        most = shape.size + shape.slide
        assert all(rows <= most for rows in held.values())

    def drain(self) -> None:
        for _ in range(len(self.pending)):
            self.do("commit", [])
        for _ in range(1000):
            self.do("plan", [])
            if not self.pending:
                break
            self.do("commit", [])
        assert not self.pending

    def check(self) -> None:
        # After a crash, late updates may come once more.
        assert list(dict.fromkeys(self.late)) == [row.number for row in self.instant.late]
        for key in list(self.instant.kept):
            expected = self.instant.windows(key)
            got = self.ledger.results[key]
            ids = [wid for wid, _ in got]
            assert ids == sorted(set(ids)), "older after newer, or twice"
            for wid, numbers in got:
                assert numbers_of(self.shape, numbers) == numbers_of(self.shape, expected[wid])
            if self.policy == "append":
                assert dict(got) == expected
            elif expected and self.buffer == "lazy" and self.policy != "window-drop":
                assert ids[-1] == max(expected), "the newest window is handed out in the end"
        for key, wid in self.ledger.open:
            assert self.buffer == "eager"
            assert wid not in self.instant.windows(key), "a closed window is completed"


def numbers_of(shape: Shape, numbers: list[int]) -> list[int]:
    return numbers if shape.by == "count" else sorted(numbers)


@settings(deadline=None, max_examples=150, phases=NO_SHRINK)
@given(st.data())
def test_results_are_a_subset_of_the_instantaneous(data: st.DataObject) -> None:
    shape = data.draw(shapes())
    buffer = data.draw(st.sampled_from(["lazy", "eager"])) if shape.kind == "sliding" else "lazy"
    policies = ["in-place", "linecutting", "whittle"]
    if buffer == "lazy":
        policies += ["append", "window-drop"]
    policy = data.draw(st.sampled_from(policies))
    rows = data.draw(streams(timed=shape.timed))
    with tempfile.TemporaryDirectory() as directory:
        durable = data.draw(st.integers(0, 4)) == 0
        course = Course(shape, buffer, policy, directory if durable else None)
        while rows:
            action = data.draw(
                st.sampled_from(["put", "put", "put", "plan", "commit", "give back", "crash"])
            )
            count = data.draw(st.integers(1, 5)) if action == "put" else 0
            course.do(action, rows[:count])
            rows = rows[count:]
        course.drain()
        course.check()
        course.queue.close()


@pytest.mark.parametrize("buffer", ["lazy", "eager"])
@pytest.mark.parametrize("size", [1, 3, 5])
def test_without_load_every_window_is_delivered(buffer: str, size: int) -> None:
    slide = size if buffer == "eager" else 2
    shape = Shape("sliding", "count", "key", size, slide, "stream", 0, None, timed=False)
    course = Course(shape, buffer, "whittle", None)
    for number in range(40):
        course.do("put", [Row("ab"[number % 2], 0, number)])
        course.do("plan", [])
        course.do("commit", [])
    course.check()
    for key in "ab":
        assert dict(course.ledger.results[key]) == course.instant.windows(key)


@pytest.mark.parametrize(("buffer", "most"), [("lazy", 5 + 2), ("eager", 5 + 2)])
def test_the_bounds_are_reached_under_load(buffer: str, most: int) -> None:
    """Lazy holds w + s beside the w of the batch; eager w of the window and s of the next."""
    shape = Shape("sliding", "count", "key", 5, 2, "stream", 0, None, timed=False)
    course = Course(shape, buffer, "whittle", None)
    reached = in_batches = 0
    for number in range(60):
        course.do("put", [Row("a", 0, number)])
        if number % 20 == 0:
            course.do("plan", [])
        in_batches = max([in_batches, *(len(batch.to_pylist()) for batch in course.pending)])
        if number % 20 == 19:
            course.do("commit", [])
        reached = max(reached, *course.queue.rows_held().values())
    # The update that completes a window is stored, w + s, before s others go.
    assert reached == most - 1
    assert in_batches == 5 if buffer == "lazy" else in_batches <= 5


class TestPublishedTraces:
    """w = 5, s = 2, one key, updates 1, 2, 3...; S1 and S2 are when the key is served."""

    def served(self, buffer: str, s1: int, s2: int) -> list[list[int]]:
        queue = open_queue("memory:", key="k", window={"size": 5, "slide": 2, "buffer": buffer})
        ledger = Ledger()
        for number in range(1, 16):
            queue.put({"k": "a", "n": number, "x": text(number)})
            if number in (s1, s2):
                batch = queue.plan()
                ledger.take(batch)
                queue.commit(batch.id)
        while batch := queue.plan():
            ledger.take(batch)
            queue.commit(batch.id)
        return [numbers for _, numbers in ledger.results["a"]]

    def test_lazy(self) -> None:
        taken = self.served("lazy", 6, 12)
        assert taken[:2] == [[1, 2, 3, 4, 5], [7, 8, 9, 10, 11]]

    def test_eager(self) -> None:
        queue = open_queue("memory:", key="k", window={"size": 5, "slide": 2, "buffer": "eager"})
        ledger = Ledger()
        for number in range(1, 16):
            queue.put({"k": "a", "n": number, "x": text(number)})
            # S1 while [1, 5] is the newest that has started, then as its updates come; S2 at 12.
            if number in (2, 4, 5, 12, 14, 15):
                batch = queue.plan()
                ledger.take(batch)
                queue.commit(batch.id)
        assert ledger.results["a"] == [(0, [1, 2, 3, 4, 5]), (5, [11, 12, 13, 14, 15])]


class TestStaleness:
    """A key is stale from the moment that a newer window has closed."""

    def open(self, clock: Clock, **window: Any) -> WindowQueue:
        queue = open_queue("memory:", clock=clock, key="k", window=window)
        assert isinstance(queue, WindowQueue)
        return queue

    def stale(self, queue: WindowQueue) -> float:
        return queue.snapshot().staleness_max

    @pytest.mark.parametrize("buffer", ["lazy", "eager"])
    def test_an_open_window_does_not_make_stale(self, buffer: str) -> None:
        clock = Clock()
        queue = self.open(clock, size=3, buffer=buffer)
        for clock.now in (1.0, 2.0):
            queue.put({"k": "a"})
        clock.now = 10.0
        assert self.stale(queue) == 0.0
        queue.put({"k": "a"})
        clock.now = 15.0
        assert self.stale(queue) == 5.0
        batch = queue.plan()
        clock.now = 17.0
        assert self.stale(queue) == 7.0
        queue.commit(batch.id)
        assert self.stale(queue) == 0.0

    def test_lazy_counts_from_the_first_newer_window(self) -> None:
        clock = Clock()
        queue = self.open(clock, size=1)
        queue.put({"k": "a"})
        batch = queue.plan()
        for clock.now in (3.0, 4.0, 5.0):
            queue.put({"k": "a"})
        clock.now = 6.0
        queue.commit(batch.id)
        assert self.stale(queue) == 3.0
        batch = queue.plan()
        assert batch.updates.tolist() == [3]
        queue.commit(batch.id)
        assert self.stale(queue) == 0.0

    def test_eager_falls_with_the_last_part_of_a_window(self) -> None:
        clock = Clock()
        queue = self.open(clock, size=2, buffer="eager")
        clock.now = 1.0
        queue.put({"k": "a"})
        first = queue.plan()
        clock.now = 2.0
        queue.put({"k": "a"})
        clock.now = 3.0
        queue.commit(first.id)
        assert self.stale(queue) == 1.0
        last = queue.plan()
        clock.now = 4.0
        queue.put_many(pa.table({"k": ["a", "a"]}))
        clock.now = 6.0
        queue.commit(last.id)
        assert self.stale(queue) == 2.0


class TestSilence:
    def open(self, clock: Clock, store: str = "memory:", **window: Any) -> WindowQueue:
        window = {"by": "time", "size": "10s", "idle_timeout_seconds": 5.0, **window}
        queue = open_queue(store, clock=clock, key="k", time="t", window=window)
        assert isinstance(queue, WindowQueue)
        return queue

    def put(self, queue: WindowQueue, key: str, second: int) -> None:
        times = pa.array([second * 1000], pa.timestamp("ms"))
        queue.put_many(pa.table({"k": [key], "t": times}))

    def test_a_silent_stream_closes_its_windows(self, tmp_path: Path) -> None:
        clock = Clock()
        queue = self.open(clock, f"journal:{tmp_path}")
        self.put(queue, "a", 3)
        clock.now = 4.9
        assert not queue.plan()
        clock.now = 6.9  # event time is 9.9 s
        assert not queue.plan()
        clock.now = 7.6
        queue.close()
        queue = self.open(clock, f"journal:{tmp_path}")
        (row,) = queue.plan().to_pylist()
        assert row["_last"]
        self.put(queue, "a", 8)  # behind what was promised
        assert queue.snapshot().superseded == 1

    def test_a_silent_key_closes_its_windows(self) -> None:
        clock = Clock()
        queue = self.open(clock, progress="key", disorder="1s")
        self.put(queue, "a", 3)
        for second in range(1, 7):
            clock.now = float(second)
            self.put(queue, "b", 3 + second)
            assert not queue.plan()
        clock.now = 8.7
        assert [row["k"] for row in queue.plan().to_pylist()] == ["a"]


class TestLimits:
    def test_a_limit_in_rows_is_met_by_whole_windows(self) -> None:
        queue = open_queue("memory:", key="k", window={"size": 3, "limit_by": "rows"})
        queue.put_many(pa.table({"k": [key for key in "abcd" for _ in range(3)]}))
        assert [queue.plan(limit).to_arrow().num_rows for limit in (1, 4, 1)] == [3, 6, 3]

    def test_shedding_loses_waiting_windows_and_counts_them(self) -> None:
        queue = open_queue(
            "memory:", key="k", memory_limit="300KiB", on_full="shed", window={"size": 2}
        )
        text = "x" * 1000
        for number in range(300):
            queue.put_many(pa.table({"k": [f"{number}"] * 2, "x": [text] * 2}))
        snapshot = queue.snapshot()
        assert snapshot.shed > 0
        assert snapshot.memory_bytes <= snapshot.memory_limit_bytes
        assert snapshot.accepted == 300 == snapshot.shed + snapshot.waiting


class TestWrongInput:
    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"window": {}}, "expected 'size'"),
            ({"window": {"size": 0}}, "more than 0"),
            ({"window": {"size": "5s"}}, "number of updates"),
            ({"window": {"size": "5 parsecs", "by": "time"}}, "Units are"),
            ({"window": {"size": 5, "by": "time"}}, "need 'time'"),
            ({"window": {"sise": 5}}, "Did you mean 'size'"),
            ({"window": {"kind": "landmark", "slide": 2, "buffer": "eager"}}, "known only at its"),
            ({"window": {"kind": "landmark", "size": 2}}, "has no size"),
            ({"window": {"size": 2, "disorder": 1, "disorder_count": 1}}, "got both"),
            ({"window": {"size": 2}, "merge": {"v": "sum"}}, "nothing to 'merge'"),
            ({"window": {"size": 2}, "delete_column": "d"}, "not supported with windows"),
            ({"window": {"size": 2}, "policy": "random-drop"}, "window-drop"),
            ({"policy": "window-drop"}, "drops windows"),
        ],
    )
    def test_options(self, options: dict[str, Any], said: str) -> None:
        with pytest.raises(ConfigError, match=said):
            open_queue("memory:", key="k", **options)

    def test_columns(self) -> None:
        nested = pa.table({"k": ["a"], "v": [[1]]})
        with pytest.raises(SchemaError, match="'v'"):
            open_queue("memory:", key="k", window={"size": 2}).put_many(nested)
        window = {"by": "time", "size": "5s"}
        with pytest.raises(SchemaError, match="whole number of its ticks"):
            open_queue("memory:", key="k", time="t", window=window).put({"k": "a", "t": 1})
        with pytest.raises(SchemaError, match="timestamp, a date or an integer"):
            open_queue("memory:", key="k", time="t", window=window).put({"k": "a", "t": 1.5})

    def test_parts_of_a_window_come_back_in_their_order(self) -> None:
        queue = open_queue("memory:", key="k", window={"size": 3, "buffer": "eager"})
        queue.put({"k": "a"})
        first = queue.plan()
        queue.put({"k": "a"})
        second = queue.plan()
        with pytest.raises(InputError, match="give that one back first"):
            queue.give_back(first.id)
        queue.give_back(second.id)
        queue.give_back(first.id)
        again = queue.plan().to_pylist()
        assert [row["_first"] for row in again] == [True]


def test_as_many_windows_are_dropped_as_do_not_fit() -> None:
    """A window closes every second and takes three: about two of three go."""
    clock = Clock()
    queue = open_queue("memory:", clock=clock, key="k", policy="window-drop", window={"size": 2})
    batch = None
    for second in range(3000):
        clock.now = float(second)
        queue.put_many(pa.table({"k": [f"{second % 7}"] * 2}))
        if second % 3 == 0:
            if batch:
                queue.commit(batch.id)
            batch = queue.plan(1)
    snapshot = queue.snapshot()
    assert snapshot.accepted == 3000
    assert 0.55 < snapshot.shed / 3000 < 0.75
    assert snapshot.waiting < 300
