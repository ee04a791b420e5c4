"""Input that makes no sense gets a sentence, and the queue keeps what it held."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from upstream import open_queue
from upstream.errors import InputError, QueueClosed, QueueFull, SchemaError, UnknownBatch
from upstream.queue.base import BaseQueue

SCHEMA = pa.schema([("k", pa.string()), ("t", pa.timestamp("us", "UTC")), ("v", pa.float64())])
NOON = dt.datetime(2024, 5, 1, 12, tzinfo=dt.UTC)
GOOD: list[dict[str, Any]] = [
    {"k": "a", "t": NOON, "v": 1.0},
    {"k": "b", "t": NOON, "v": 2.0},
]
MB = 1_000_000

Make = Callable[..., BaseQueue]


def rows(*values: dict[str, Any], schema: pa.Schema = SCHEMA) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(values), schema=schema)


@pytest.fixture(params=["memory", "journal"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    """Open queues of either kind, each with two keys waiting."""
    opened = []

    def make_queue(*, filled: bool = True, **options: Any) -> BaseQueue:
        url = "memory:" if request.param == "memory" else f"journal:{tmp_path / 'queue'}"
        queue = open_queue(url, **{"key": "k", "time": "t", **options})
        opened.append(queue)
        if filled:
            queue.put_many(rows(*GOOD))
        return queue

    yield make_queue
    for queue in opened:
        queue.close()


def counts(queue: BaseQueue) -> tuple[int, ...]:
    s = queue.snapshot()
    assert s.accepted == s.handed_out + s.conflated + s.superseded + s.shed + s.waiting
    return (s.accepted, s.handed_out, s.conflated, s.superseded, s.shed, s.waiting, s.keys)


def drained(queue: BaseQueue) -> list[dict[str, Any]]:
    """All that waits, without the columns that the queue adds."""
    units = queue.plan().to_pylist()
    return [{c: v for c, v in unit.items() if not c.startswith("_")} for unit in units]


@contextmanager
def refused(queue: BaseQueue, error: type[Exception], *words: str) -> Iterator[None]:
    """The call fails with a message that has all the words, and changes nothing."""
    before = counts(queue)
    with pytest.raises(error) as caught:
        yield
    for word in words:
        assert word in str(caught.value)
    assert counts(queue) == before


class TestColumns:
    @pytest.mark.parametrize("filled", [False, True])
    @pytest.mark.parametrize("column", ["k", "t"])
    def test_key_or_time_column_is_missing(self, make: Make, column: str, filled: bool) -> None:
        queue = make(filled=filled)
        with refused(queue, SchemaError, repr(column)):
            queue.put_many(rows(*GOOD).drop_columns([column]))
        queue.put_many(rows(*GOOD))
        assert drained(queue) == GOOD

    def test_second_key_column_is_missing(self, make: Make) -> None:
        queue = make(key=["k", "venue"], filled=False)
        with refused(queue, SchemaError, "'venue'"):
            queue.put_many(rows(*GOOD))

    @pytest.mark.parametrize(
        ("changed", "word"),
        [
            (pa.schema([("k", pa.string()), SCHEMA.field("t"), ("v", pa.int64())]), "int64"),
            (pa.schema([("k", pa.string()), SCHEMA.field("t")]), "'v'"),
            (SCHEMA.append(pa.field("extra", pa.int8())), "'extra'"),
            (pa.schema([("k", pa.int64()), SCHEMA.field("t"), SCHEMA.field("v")]), "'k'"),
        ],
        ids=["type", "missing", "added", "key type"],
    )
    def test_schema_changes_between_batches(
        self, make: Make, changed: pa.Schema, word: str
    ) -> None:
        queue = make()
        with refused(queue, SchemaError, word):
            queue.put_many(changed.empty_table())
        row = {name: None if name in "vextra" else GOOD[0][name] for name in changed.names}
        row["k"] = 1 if changed.field("k").type == pa.int64() else "c"
        with refused(queue, SchemaError, word):
            queue.put_many(pa.Table.from_pylist([row], schema=changed))
        assert drained(queue) == GOOD

    def test_columns_in_another_order_are_the_same_columns(self, make: Make) -> None:
        queue = make()
        queue.put_many(rows({"k": "c", "t": NOON, "v": 3.0}).select(["v", "k", "t"]))
        out = queue.plan().to_arrow()
        assert out.column_names[:3] == SCHEMA.names
        assert out.column("v").to_pylist() == [1.0, 2.0, 3.0]

    @pytest.mark.parametrize("name", ["_updates", "_waiting_since"])
    def test_names_that_the_queue_uses_itself(self, make: Make, name: str) -> None:
        queue = make(filled=False)
        batch = rows(*GOOD).append_column(name, pa.array([1, 2]))
        with refused(queue, SchemaError, name):
            queue.put_many(batch)

    def test_a_column_twice(self, make: Make) -> None:
        queue = make(filled=False)
        batch = pa.RecordBatch.from_arrays(
            [*rows(*GOOD).columns, pa.array([1, 2])], names=["k", "t", "v", "v"]
        )
        with refused(queue, SchemaError, "'v'"):
            queue.put_many(batch)


class TestValues:
    @pytest.mark.parametrize("column", ["k", "t"])
    def test_null_key_or_time_takes_nothing_of_the_batch(self, make: Make, column: str) -> None:
        queue = make()
        good = {"k": "c", "t": NOON, "v": 3.0}
        with refused(queue, InputError, repr(column), "row 1"):
            queue.put_many(rows(good, {**good, column: None}, good))
        assert drained(queue) == GOOD

    def test_null_in_the_second_key_column(self, make: Make) -> None:
        schema = SCHEMA.append(pa.field("venue", pa.string()))
        queue = make(key=["k", "venue"], filled=False)
        with refused(queue, InputError, "'venue'", "null"):
            queue.put_many(rows({**GOOD[0], "venue": None}, schema=schema))

    def test_time_that_is_not_a_number(self, make: Make) -> None:
        schema = pa.schema([("k", pa.string()), ("t", pa.float64())])
        queue = make(filled=False)
        queue.put_many(rows({"k": "a", "t": 1.0}, schema=schema))
        with refused(queue, InputError, "'t'", "nan"):
            queue.put_many(rows({"k": "a", "t": float("nan")}, schema=schema))
        assert drained(queue) == [{"k": "a", "t": 1.0}]

    def test_zero_rows(self, make: Make) -> None:
        queue = make()
        assert queue.put_many(SCHEMA.empty_table()) == (0, 0, 0, 0)
        assert queue.put_many(rows(*GOOD).slice(0, 0)) == (0, 0, 0, 0)
        assert drained(queue) == GOOD
        assert not queue.plan()

    def test_zero_rows_first(self, make: Make) -> None:
        queue = make(filled=False)
        assert not queue.plan()
        assert queue.put_many(SCHEMA.empty_table()) == (0, 0, 0, 0)
        assert not queue.plan()
        queue.put_many(rows(*GOOD))
        assert drained(queue) == GOOD

    @pytest.mark.parametrize("thing", [None, "a", 3, GOOD, GOOD[0], {"k": ["a"]}])
    def test_not_arrow(self, make: Make, thing: Any) -> None:
        queue = make()
        with refused(queue, InputError, "RecordBatch", type(thing).__name__):
            queue.put_many(thing)
        assert drained(queue) == GOOD

    @pytest.mark.parametrize(
        "arrived",
        [[1.0], [2.0, 1.0], [1.0, float("nan")], [1.0, float("inf")], [[1.0, 2.0]]],
        ids=["too short", "backward", "nan", "infinite", "two dimensions"],
    )
    def test_arrival_times(self, make: Make, arrived: list[Any]) -> None:
        queue = make()
        with refused(queue, InputError, "arrived"):
            queue.put_many(rows(*GOOD), arrived=np.array(arrived))
        assert drained(queue) == GOOD

    def test_empty_and_enormous_keys(self, make: Make) -> None:
        queue = make()
        new = [{"k": key, "t": NOON, "v": 0.0} for key in ("", "x" * MB, "x" * MB + "y")]
        queue.put_many(rows(*new))
        queue.put_many(rows(*new))
        assert counts(queue)[:3] == (8, 0, 3)
        assert drained(queue) == GOOD + new


class TestOneRow:
    def test_missing_columns(self, make: Make) -> None:
        queue = make()
        with refused(queue, SchemaError, "'v'"):
            queue.put({"k": "c", "t": NOON})
        with refused(queue, SchemaError, "'k'"):
            queue.put({"t": NOON, "v": 1.0})
        assert drained(queue) == GOOD

    def test_extra_columns(self, make: Make) -> None:
        queue = make()
        with refused(queue, SchemaError, "'w'"):
            queue.put({"k": "c", "t": NOON, "v": 1.0, "w": 1})
        assert drained(queue) == GOOD

    @pytest.mark.parametrize(("column", "value"), [("k", None), ("t", None), ("v", "much")])
    def test_values(self, make: Make, column: str, value: Any) -> None:
        queue = make()
        with refused(queue, InputError, repr(column)):
            queue.put({"k": "c", "t": NOON, "v": 1.0, column: value})
        assert drained(queue) == GOOD

    @pytest.mark.parametrize("thing", [None, 7, ["a"], "abc"])
    def test_not_a_mapping(self, make: Make, thing: Any) -> None:
        queue = make()
        with refused(queue, InputError, type(thing).__name__):
            queue.put(thing)


class TestShapes:
    """Arrow in unusual clothes holds the same rows."""

    def test_table_of_many_chunks(self, make: Make) -> None:
        queue = make(filled=False)
        one = [{"k": f"k{i % 7}", "t": NOON, "v": float(i)} for i in range(50)]
        queue.put_many(pa.Table.from_batches([rows(row) for row in one]))
        assert counts(queue) == (50, 0, 43, 0, 0, 7, 7)
        assert [row["v"] for row in drained(queue)] == [49.0, *map(float, range(43, 49))]

    def test_chunks_that_are_cut_differently(self, make: Make) -> None:
        queue = make(filled=False)
        whole = pa.Table.from_batches([rows(*GOOD)])
        uneven = whole.set_column(0, "k", pa.chunked_array([["a"], [], ["b"]], pa.string()))
        queue.put_many(uneven)
        assert drained(queue) == GOOD

    def test_slices(self, make: Make) -> None:
        queue = make(filled=False)
        many = [{"k": f"k{i}", "t": NOON, "v": None if i % 3 == 0 else float(i)} for i in range(40)]
        batch = rows(*many)
        for start in range(0, 40, 7):
            queue.put_many(batch.slice(start, 7))
        assert drained(queue) == many

    @pytest.mark.parametrize("column", ["k", "s"])
    def test_dictionary_encoded_columns(self, make: Make, column: str) -> None:
        schema = SCHEMA.append(pa.field("s", pa.string()))
        plain = [{**row, "s": f"text {row['k']}"} for row in GOOD]
        batch = rows(*plain, schema=schema)
        place = schema.get_field_index(column)
        queue = make(filled=False)
        queue.put_many(batch.set_column(place, column, batch.column(place).dictionary_encode()))
        assert drained(queue) == plain


class TestSize:
    def test_a_row_of_100_mb(self, make: Make) -> None:
        schema = SCHEMA.append(pa.field("blob", pa.binary()))
        blob = bytes(100 * MB)
        queue = make(filled=False, memory_limit="1GiB")
        small = {**GOOD[1], "blob": b"small"}
        queue.put_many(rows(small, {**GOOD[0], "blob": blob}, schema=schema))
        assert queue.snapshot().memory_bytes > 100 * MB
        first, second = drained(queue)
        assert first == small
        assert second["blob"] == blob

    @pytest.mark.parametrize("on_full", ["error", "block", "shed"])
    def test_a_row_that_can_never_fit(self, make: Make, on_full: str) -> None:
        schema = SCHEMA.append(pa.field("blob", pa.binary()))
        small = [{**row, "blob": b"small"} for row in GOOD]
        options = {"on_full": on_full, "block_timeout_seconds": 0.05}
        queue = make(filled=False, memory_limit="64MB", **options)
        queue.put_many(rows(*small, schema=schema))
        big = rows({**GOOD[0], "k": "c", "blob": bytes(100 * MB)}, schema=schema)
        with refused(queue, QueueFull, "memory_limit"):
            queue.put_many(big)
        assert drained(queue) == small


class TestCalls:
    @pytest.mark.parametrize("limit", [0, -1, 1.5, "3", True])
    def test_limits(self, make: Make, limit: Any) -> None:
        queue = make()
        with refused(queue, InputError, "limit", repr(limit)):
            queue.plan(limit)
        assert drained(queue) == GOOD

    def test_after_close(self, make: Make) -> None:
        queue = make()
        batch = queue.plan(1)
        queue.close()
        calls: list[Callable[[], object]] = [
            lambda: queue.put(GOOD[0]),
            lambda: queue.put_many(rows(*GOOD)),
            queue.plan,
            queue.snapshot,
            queue.staleness,
            lambda: queue.delivered(batch.id),
            lambda: queue.commit(batch.id),
            lambda: queue.give_back(batch.id),
        ]
        for call in calls:
            with pytest.raises(QueueClosed):
                call()
        queue.close()
        assert batch.to_pylist()[0]["k"] == "a"

    @pytest.mark.parametrize("call", ["batch", "delivered", "commit", "give_back"])
    def test_unknown_batch(self, make: Make, call: str) -> None:
        queue = make()
        queue.plan(1)
        with refused(queue, UnknownBatch, "17"):
            getattr(queue, call)(17)

    def test_settling_twice(self, make: Make) -> None:
        queue = make()
        first = queue.plan(1)
        queue.delivered(first.id)
        queue.delivered(first.id)
        queue.commit(first.id)
        for call in (queue.batch, queue.delivered, queue.commit, queue.give_back):
            with refused(queue, UnknownBatch, str(first.id)):
                call(first.id)
        second = queue.plan(1)
        queue.give_back(second.id)
        with refused(queue, UnknownBatch, str(second.id)):
            queue.give_back(second.id)
        assert drained(queue) == GOOD[1:]

    @pytest.mark.parametrize("at", [float("nan"), float("inf"), "noon"])
    def test_delivery_times(self, make: Make, at: Any) -> None:
        queue = make()
        batch = queue.plan(1)
        with refused(queue, InputError, "at"):
            queue.delivered(batch.id, at)
        assert queue.planned() == [batch.id]

    def test_the_empty_batch_settles_as_nothing(self, make: Make) -> None:
        queue = make(filled=False)
        empty = queue.plan()
        assert (len(empty), empty.id, bool(empty)) == (0, 0, False)
        queue.delivered(0)
        queue.give_back(0)
        queue.commit(0)
        assert counts(queue) == (0,) * 7
