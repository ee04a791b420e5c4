"""Merges: what a unit holds of the updates that it stands for."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.upstream.queue import merge_functions
from tests.upstream.queue.opened import moved, open_update_queue, values
from upstream.errors import ConfigError, MergeWarning, SchemaError

MERGES = merge_functions.__name__


def text_table(rows: list[tuple[str, str | None]]) -> pa.RecordBatch:
    keys = pa.array([key for key, _ in rows], pa.string())
    texts = pa.array([text for _, text in rows], pa.string())
    return pa.RecordBatch.from_arrays([keys, texts], ["k", "v"])


class TestMerges:
    @given(
        batches=st.lists(
            st.lists(st.tuples(st.sampled_from("abc"), st.text("xyz", max_size=3)), max_size=12),
            min_size=1,
            max_size=5,
        ),
        back=st.integers(0, 4),
        moves=st.booleans(),
    )
    def test_a_function_of_the_users_sees_all_in_order(
        self, batches: list[list[tuple[str, str]]], back: int, moves: bool
    ) -> None:
        """Joining texts shows every update that was lost, doubled or out of order."""
        queue = open_update_queue(merge={"v": f"{MERGES}:joined"})
        expected: dict[str, str] = {}
        given_back = None
        for number, rows in enumerate(batches):
            queue.put_many(text_table(list(rows)))
            for key, text in rows:
                expected[key] = expected.get(key, "") + text
            if number == back:
                given_back = queue.plan(2)
        if given_back:
            queue.give_back(given_back.id)
        if moves:
            queue = moved(queue)
        queue.check()
        assert values(queue.plan()) == expected

    def test_lists_chained_by_a_function(self) -> None:
        queue = open_update_queue(merge={"v": f"{MERGES}:chain"})
        schema = pa.schema([("k", pa.string()), ("v", pa.list_(pa.int64()))])
        for rows in ([("a", [1]), ("b", None), ("a", [2, 3])], [("b", [9]), ("a", None)]):
            listed = [{"k": key, "v": value} for key, value in rows]
            queue.put_many(pa.RecordBatch.from_pylist(listed, schema=schema))
        assert values(queue.plan()) == {"a": [1, 2, 3], "b": [9]}

    def test_a_function_may_answer_in_chunks(self) -> None:
        queue = open_update_queue(merge={"v": f"{MERGES}:longest"})
        queue.put_many(text_table([("a", "xx"), ("a", "y"), ("b", "p"), ("a", "zz"), ("b", "qq")]))
        assert values(queue.plan()) == {"a": "xx", "b": "qq"}

    @pytest.mark.parametrize(
        ("name", "error"),
        [("missing", ConfigError), ("NOT_A_FUNCTION", ConfigError), ("failing", SchemaError)],
    )
    def test_a_function_that_cannot_be_used(self, name: str, error: type[Exception]) -> None:
        queue = open_update_queue(merge={"v": f"{MERGES}:{name}"})
        with pytest.raises(error, match=name):
            queue.put_many(text_table([("a", "x")]))

    @pytest.mark.parametrize("name", ["picky", "short"])
    def test_where_a_function_fails_the_newer_value_stands(self, name: str) -> None:
        queue = open_update_queue(merge={"v": f"{MERGES}:{name}"})
        queue.put_many(pa.table({"k": ["a", "b"], "v": [1, 2]}))
        with pytest.warns(MergeWarning, match="newer value was kept"):
            queue.put_many(pa.table({"k": ["a", "b"], "v": [500, 3]}))
        assert values(queue.plan()) == {"a": 500, "b": 3}
        queue.check()

    @pytest.mark.parametrize(
        "kind",
        [pa.int64(), pa.uint16(), pa.float32(), pa.decimal128(10, 2), pa.duration("us")],
        ids=str,
    )
    @pytest.mark.parametrize(
        ("merge", "expected"), [("sum", 12), ("min", 2), ("max", 7), ("first", None), ("last", 3)]
    )
    @pytest.mark.parametrize("split", range(7))
    def test_null_takes_no_part(
        self, kind: pa.DataType, merge: str, expected: int | None, split: int
    ) -> None:
        """In one batch, in two, or with the first part given back."""
        given = [None, 7, None, 2, None, 3]
        queue = open_update_queue(merge={"v": merge})

        def put(part: list[int | None]) -> None:
            if part:
                queue.put_many(pa.table({"k": [1] * len(part), "v": pa.array(part, kind)}))

        put(given[:split])
        batch = queue.plan() if split % 2 else None
        put(given[split:])
        if batch:
            queue.give_back(batch.id)
        out = queue.plan().to_arrow()
        assert out.column("v").equals(pa.array([expected], kind))
        assert out.column("_updates").to_pylist() == [6]

    def test_counts(self) -> None:
        queue = open_update_queue(merge={"n": "count"})
        for keys in (["a", "b", "a"], ["a"]):
            queue.put_many(pa.table({"k": keys, "n": pa.array([None] * len(keys), pa.int32())}))
        batch = queue.plan()
        assert values(batch, "n") == {"a": 3, "b": 1}
        queue.put({"k": "a", "n": 77})
        queue.give_back(batch.id)
        assert values(queue.plan(), "n") == {"a": 4, "b": 1}

    def test_a_delete_in_an_older_unit_cuts_what_was_before_it_only(self) -> None:
        """gone, 1 | 2 with the first unit given back: 1 and 2 belong together."""
        merge = {"n": "sum", "v": f"{MERGES}:joined", "f": "first"}
        queue = open_update_queue(merge=merge, delete_column="op")
        schema = pa.schema(
            [
                ("k", pa.string()),
                ("op", pa.string()),
                ("n", pa.int64()),
                ("v", pa.string()),
                ("f", pa.list_(pa.int64())),
            ]
        )

        def put(op: str, n: int) -> None:
            row = {"k": "a", "op": op, "n": n, "v": str(n), "f": [n]}
            queue.put_many(pa.RecordBatch.from_pylist([row], schema=schema))

        put("U", 50)
        put("D", 60)
        put("U", 1)
        batch = queue.plan()
        [unit] = batch.to_pylist()
        assert (unit["n"], unit["v"], unit["f"]) == (1, "1", [1])
        put("U", 2)
        queue.give_back(batch.id)
        [unit] = queue.plan().to_pylist()
        assert (unit["n"], unit["v"], unit["f"]) == (3, "12", [1])


def test_a_large_batch_is_given_back_without_a_walk_through_the_line() -> None:
    """Work in proportion to the batch, not to its square: this would take minutes."""
    queue = open_update_queue(memory_limit="256MiB")
    keys = np.arange(100_000)
    queue.put_many(pa.table({"k": keys}))
    queue.give_back(queue.plan().id)
    assert queue.plan().to_arrow().column("k").to_numpy().tolist() == keys.tolist()
