"""Results do not depend on how rows were handed out, and are those of plain Python."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from upstream.errors import ConfigError, InputError, SchemaError
from upstream.windows import WindowAggregate

ROW = pa.schema(
    {
        "symbol": pa.string(),
        "venue": pa.int32(),
        "price": pa.float64(),
        "size": pa.int32(),
        "note": pa.string(),
        "_window_id": pa.int64(),
        "_window_start": pa.timestamp("us", "UTC"),
        "_window_end": pa.timestamp("us", "UTC"),
        "_first": pa.bool_(),
        "_last": pa.bool_(),
    }
)

KEYS = ["symbol", "venue"]

MERGED: dict[str, Any] = {
    "rows": ("_window_id", "count"),
    "prices": ("price", "count"),
    "total": ("size", "sum"),
    "low": ("price", "min"),
    "high": ("price", "max"),
    "least": ("note", "min"),
    "mean": ("price", "mean"),
    "mean_size": ("size", "mean"),
    "open": ("price", "first"),
    "close": ("note", "last"),
}


def joined(values: pa.Array) -> str:
    return "|".join("-" if value is None else value for value in values.to_pylist())


LISTED: dict[str, Any] = {
    "var": ("price", "var"),
    "sample_var": ("price", "var", 1),
    "stddev": ("size", "stddev", 1),
    "median": ("price", "quantile", 0.5),
    "p90": ("size", "quantile", 0.9),
    "notes": ("note", joined, pa.string()),
    "spread": ("price", lambda prices: pc.subtract(pc.max(prices), pc.min(prices))),
}

AGGREGATES = MERGED | LISTED


@dataclass(frozen=True)
class Window:
    """A window as it should be aggregated."""

    symbol: str | None
    venue: int
    wid: int
    rows: list[tuple[float | None, int | None, str | None]]

    @property
    def key(self) -> tuple[str | None, int]:
        return self.symbol, self.venue

    def marked(self) -> list[dict[str, Any]]:
        last = len(self.rows) - 1
        return [
            {
                "symbol": self.symbol,
                "venue": self.venue,
                "price": price,
                "size": size,
                "note": note,
                "_window_id": self.wid,
                "_window_start": None if self.venue else self.wid * 10,
                "_window_end": self.wid * 10 + 25,
                "_first": number == 0,
                "_last": number == last,
            }
            for number, (price, size, note) in enumerate(self.rows)
        ]

    def result(self) -> dict[str, Any]:
        """All aggregates, with nothing but Python and numpy."""
        prices, sizes, notes = (
            [value for value in column if value is not None]
            for column in zip(*self.rows, strict=True)
        )
        return {
            "symbol": self.symbol,
            "venue": self.venue,
            "window_id": self.wid,
            "rows": len(self.rows),
            "prices": len(prices),
            "total": sum(sizes) if sizes else None,
            "low": min(prices, default=None),
            "high": max(prices, default=None),
            "least": min(notes, default=None),
            "mean": statistics.fmean(prices) if prices else None,
            "mean_size": statistics.fmean(sizes) if sizes else None,
            "open": prices[0] if prices else None,
            "close": notes[-1] if notes else None,
            "var": statistics.pvariance(prices) if prices else None,
            "sample_var": statistics.variance(prices) if len(prices) > 1 else None,
            "stddev": statistics.stdev(sizes) if len(sizes) > 1 else None,
            "median": statistics.median(prices) if prices else None,
            "p90": float(np.quantile(sizes, 0.9)) if sizes else None,
            "notes": "|".join("-" if note is None else note for _, _, note in self.rows),
            "spread": max(prices) - min(prices) if prices else None,
        }


VALUES = st.tuples(
    st.none() | st.floats(-100, 100),
    st.none() | st.integers(-1000, 1000),
    st.none() | st.text("abc", max_size=3),
)


@st.composite
def windows(draw: st.DrawFn) -> list[Window]:
    """A few windows of a few keys, each key's with ascending ids."""
    drawn = draw(
        st.lists(
            st.tuples(
                st.sampled_from(["EUR", "GBP", None]),
                st.integers(0, 1),
                st.lists(VALUES, min_size=1, max_size=6),
            ),
            max_size=8,
        )
    )
    return [Window(symbol, venue, wid, rows) for wid, (symbol, venue, rows) in enumerate(drawn, -2)]


@st.composite
def batches(draw: st.DrawFn, whole: list[Window]) -> list[list[dict[str, Any]]]:
    """The marked rows, each key's in order, keys mixed, cut anywhere."""
    lines: dict[Any, list[dict[str, Any]]] = {}
    for window in whole:
        lines.setdefault(window.key, []).extend(window.marked())
    turns = draw(st.permutations([key for key, line in lines.items() for _ in line]))
    rows = [lines[key].pop(0) for key in turns]
    cuts = sorted(draw(st.lists(st.integers(0, len(rows)), max_size=4)))
    return [rows[start:end] for start, end in pairwise([0, *cuts, len(rows)])]


def table(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=ROW)


def by_window(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(results, key=lambda row: row["window_id"])


def saved_and_loaded(aggregate: WindowAggregate, aggregates: dict[str, Any]) -> WindowAggregate:
    """The same, as after a restart."""
    sink = pa.BufferOutputStream()
    state = aggregate.dump()
    with pa.ipc.new_stream(sink, state.schema) as writer:
        writer.write_table(state)
    restarted = WindowAggregate(keys=KEYS, aggregates=aggregates)
    restarted.load(pa.ipc.open_stream(sink.getvalue()).read_all())
    return restarted


def expect(results: list[dict[str, Any]], whole: list[Window], aggregates: dict[str, Any]) -> None:
    assert len(results) == len(whole)
    for row, window in zip(by_window(results), whole, strict=True):
        expected = window.result()
        for name in ["symbol", "venue", "window_id", *aggregates]:
            if isinstance(expected[name], float):
                assert row[name] == pytest.approx(expected[name], rel=1e-9, abs=1e-6), name
            else:
                assert row[name] == expected[name], name
        marks = table(window.marked()).to_pylist()[0]
        assert row["window_start"] == marks["_window_start"]
        assert row["window_end"] == marks["_window_end"]


@given(windows())
def test_windows_handed_out_whole(whole: list[Window]) -> None:
    aggregate = WindowAggregate(keys=KEYS, aggregates=AGGREGATES)
    results = aggregate.update(table([row for window in whole for row in window.marked()]))
    assert results.column_names == [
        *KEYS,
        "window_id",
        "window_start",
        "window_end",
        *AGGREGATES,
    ]
    assert aggregate.open_windows == 0
    assert results["window_id"].to_pylist() == [window.wid for window in whole]
    expect(results.to_pylist(), whole, AGGREGATES)


@given(windows(), st.data())
@pytest.mark.parametrize("aggregates", [MERGED, AGGREGATES], ids=["merged", "all"])
def test_windows_spread_over_batches(
    aggregates: dict[str, Any], whole: list[Window], data: st.DataObject
) -> None:
    aggregate = WindowAggregate(keys=KEYS, aggregates=aggregates)
    schema = aggregate.update(table([])).schema
    results: list[dict[str, Any]] = []
    open_windows: set[Any] = set()
    for came in data.draw(batches(whole)):
        batch = table(came)
        if data.draw(st.booleans()):
            batch = pa.concat_tables([batch.slice(0, 2), batch.slice(2)])
        answer = aggregate.update(batch)
        assert answer.schema == schema
        results += answer.to_pylist()
        open_windows |= {row["_window_id"] for row in came}
        open_windows -= {row["_window_id"] for row in came if row["_last"]}
        assert aggregate.open_windows == len(open_windows)
        if data.draw(st.booleans()):
            aggregate = saved_and_loaded(aggregate, aggregates)
    expect(results, whole, aggregates)


def one_window(column: pa.Array, **marks: Any) -> pa.Table:
    """All values in one window, from its first row to its last."""
    length = len(column)
    columns: dict[str, Any] = {
        "value": column,
        "_window_id": pa.array([7] * length, pa.int64()),
        "_window_start": pa.array([70] * length, pa.int64()),
        "_window_end": pa.array([80] * length, pa.int64()),
        "_first": pa.array([number == 0 for number in range(length)]),
        "_last": pa.array([number == length - 1 for number in range(length)]),
    }
    return pa.table(columns | marks)


def of_one_window(column: pa.Array, *spec: Any) -> Any:
    """An aggregate of values that come one by one."""
    aggregate = WindowAggregate(keys=[], aggregates={"result": ("value", *spec)})
    rows = one_window(column)
    for number in range(len(column)):
        answer = aggregate.update(rows.slice(number, 1).to_batches()[0])
    return answer["result"][0].as_py()


PRICES = pa.array([Decimal("1.25"), None, Decimal("2.50")])
NESTED = pa.array([{"bid": 1, "ask": 2}, None, {"bid": 3, "ask": 4}])


@pytest.mark.parametrize(
    ("column", "spec", "expected"),
    [
        (PRICES, ["sum"], Decimal("3.75")),
        (PRICES, ["mean"], 1.875),
        (PRICES, ["first"], Decimal("1.25")),
        (PRICES, ["quantile", 0.5], 1.875),
        (NESTED, ["last"], {"bid": 3, "ask": 4}),
        (NESTED, ["count"], 2),
        (NESTED, [lambda quotes: len(quotes), pa.int64()], 3),
        (pa.array([True, False, None, True]), ["mean"], pytest.approx(2 / 3)),
        (pa.array([True, False, None, True]), ["sum"], 2),
        (pa.array(["b", "a", "b"]).dictionary_encode(), ["min"], "a"),
        (pa.array(["b", "a", "b"]).dictionary_encode(), ["last"], "b"),
        (pa.array([2**62, 2**62]), ["mean"], 2.0**62),
        (pa.array([None, None], pa.int32()), ["sum"], None),
        (pa.array([None, None], pa.int32()), ["var"], None),
        (pa.array([None, None], pa.int32()), ["first"], None),
        (pa.array([5]), ["var", 1], None),
        (pa.array([5, 7]), [lambda values: values[-1]], 7.0),
        (pa.array([5, 7]), [lambda values: None], None),
    ],
)
def test_values_of_many_types(column: pa.Array, spec: list[Any], expected: Any) -> None:
    assert of_one_window(column, *spec) == expected


def test_keys_in_dictionaries_come_out_plain() -> None:
    aggregate = WindowAggregate(keys="key", aggregates={"sum": ("value", "sum")})
    rows = one_window(pa.array([1, 2, 3]))
    for number, dictionary in enumerate((["x", "b"], ["b"], ["c", "b"])):
        indices = pa.array([dictionary.index("b")], pa.int32())
        key = pa.DictionaryArray.from_arrays(indices, pa.array(dictionary))
        answer = aggregate.update(rows.slice(number, 1).append_column("key", key))
    assert answer.select(["key", "sum"]).to_pylist() == [{"key": "b", "sum": 6}]


def test_a_function_that_fails_leaves_the_state_as_it_was() -> None:
    failing = True

    def fickle(values: pa.Array) -> float:
        if failing:
            raise RuntimeError("slipped")
        return float(len(values))

    aggregate = WindowAggregate(keys=[], aggregates={"result": ("value", fickle)})
    rows = one_window(pa.array([1, 2, 3]))
    aggregate.update(rows.slice(0, 2))
    with pytest.raises(RuntimeError, match="slipped"):
        aggregate.update(rows.slice(2))
    failing = False
    assert aggregate.update(rows.slice(2))["result"].to_pylist() == [3.0]


def test_a_state_of_nothing_can_be_loaded() -> None:
    aggregate = WindowAggregate(keys=KEYS, aggregates=AGGREGATES)
    aggregate.load(WindowAggregate(keys=KEYS, aggregates=AGGREGATES).dump())
    assert aggregate.open_windows == 0


def built(**aggregates: Any) -> Callable[[], object]:
    return lambda: WindowAggregate(keys=KEYS, aggregates=aggregates)


BAD_AGGREGATES: dict[str, Callable[[], object]] = {
    r"aggregate 'x' is 'price': expected a column and a function": built(x="price"),
    r"aggregate 'x' is \('price',\)": built(x=("price",)),
    r"aggregate 'x' is \(1, 'sum'\)": built(x=(1, "sum")),
    r"function 'average': expected one of count, .*, mean, ": built(x=("price", "average")),
    r"'sum', 1\): sum takes no option": built(x=("price", "sum", 1)),
    r"ddof -1: expected 0 for the population": built(x=("price", "var", -1)),
    r"ddof 0\.5": built(x=("price", "stddev", 0.5)),
    r"quantile 95: expected a number from 0 to 1": built(x=("price", "quantile", 95)),
    r"quantile None": built(x=("price", "quantile")),
    r"type 'text': expected the pyarrow type": built(x=("price", joined, "text")),
    r"would be called symbol": built(symbol=("price", "sum")),
    r"would be called window_id": built(window_id=("price", "sum")),
}


@pytest.mark.parametrize("message", BAD_AGGREGATES)
def test_bad_aggregates_are_named(message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        BAD_AGGREGATES[message]()


def updated(rows: Any, *spec: Any, keys: Any = ()) -> Callable[[], object]:
    spec = spec or ("sum",)
    return lambda: WindowAggregate(keys=keys, aggregates={"x": ("value", *spec)}).update(rows)


ROWS = one_window(pa.array([1, 2]))
TEXTS = one_window(pa.array(["a", "b"]))


def begun() -> WindowAggregate:
    aggregate = WindowAggregate(keys=[], aggregates={"x": ("value", "min")})
    aggregate.update(ROWS.slice(0, 1))
    return aggregate


BAD_COLUMNS: dict[str, Callable[[], object]] = {
    r"no column 'value', which aggregate 'x' needs; they have _window_id,": updated(
        ROWS.drop_columns("value")
    ),
    r"no column 'symbol', which is a key; they have value,": updated(ROWS, keys="symbol"),
    r"do not bear the mark _last; they have value,": updated(ROWS.drop_columns("_last")),
    r"mark _window_id is string: expected int64": updated(
        one_window(pa.array([1]), _window_id=pa.array(["7"]))
    ),
    r"mark _first is int64: expected bool": updated(
        one_window(pa.array([1]), _first=pa.array([1]))
    ),
    r"'x' cannot be taken of column 'value', which is string": updated(TEXTS),
    r"column 'value', which is string$": updated(TEXTS, "mean"),
    r"'value', which is string": updated(TEXTS, "quantile", 0.5),
    r"which is list": updated(one_window(pa.array([[1], [2]])), "max"),
    r"key 'value' is list.* cannot be grouped": updated(
        one_window(pa.array([[1], [2]])), "count", keys="value"
    ),
    r"min:value of the rows is string, but int64 in the windows before": lambda: begun().update(
        TEXTS.slice(1)
    ),
}


@pytest.mark.parametrize("message", BAD_COLUMNS)
def test_bad_columns_are_named(message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        BAD_COLUMNS[message]()


BAD: dict[str, Callable[[], object]] = {
    r"RecordBatch or Table, .* but list came": updated([{"value": 1}]),
    r"mark _last is null in a row": updated(
        one_window(pa.array([1]), _last=pa.array([None], pa.bool_()))
    ),
    r"window 7 goes on without its first row; after a restart": updated(ROWS.slice(1)),
    r"window 7 of key 2 goes on without": updated(ROWS, keys="value"),
    r"window 7 began 2 times; was a batch taken twice": lambda: begun().update(ROWS.slice(0, 1)),
    r"'x' must return double: .*; another type is named": updated(ROWS, lambda values: "text"),
    r"a state with columns .*min:value came, expected .*sum:value;": lambda: WindowAggregate(
        keys=[], aggregates={"x": ("value", "sum")}
    ).load(begun().dump()),
}


@pytest.mark.parametrize("message", BAD)
def test_bad_input_says_what_was_needed_and_what_came(message: str) -> None:
    with pytest.raises(InputError, match=message):
        BAD[message]()
