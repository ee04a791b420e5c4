"""From marked rows to one result per window, batch by batch.

Two windows of one key over five rows; a queue that commits to windows when they start hands them
out over two batches. A result comes with the row that completes its window::

    price   10   20   30 | 40   50          |: where the second batch begins
    w = 0   [---------]  |                  mean 20, with the first batch
    w = 1        [-------|-]                mean 30, with the second

>>> def marked(rows):
...     names = ["price", "_window_id", "_window_start", "_window_end", "_first", "_last"]
...     return pa.table([list(column) for column in zip(*rows)], names)
>>> mean = WindowAggregate(keys=[], aggregates={"mean": ("price", "mean")})
>>> first = [(10, 0, 0, 3, True, False), (20, 0, 0, 3, False, False), (30, 0, 0, 3, False, True),
...          (20, 1, 1, 4, True, False), (30, 1, 1, 4, False, False)]
>>> mean.update(marked(first)).to_pylist()
[{'window_id': 0, 'window_start': 0, 'window_end': 3, 'mean': 20.0}]
>>> mean.open_windows
1
>>> mean.update(marked([(40, 1, 1, 4, False, True)])).to_pylist()
[{'window_id': 1, 'window_start': 1, 'window_end': 4, 'mean': 30.0}]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from upstream.errors import ConfigError, InputError, SchemaError
from upstream.windows.functions import parsed
from upstream.windows.marks import FIRST, LAST, WINDOW_END, WINDOW_ID, WINDOW_START, marked
from upstream.windows.parts import Part, fits, groups

__all__ = ["WindowAggregate"]

BOUNDS = {"window_id": WINDOW_ID, "window_start": WINDOW_START, "window_end": WINDOW_END}


class WindowAggregate:
    """Aggregates of each window of each key, given out when the window is complete.

    `aggregates` maps the name of a result to (column, function) or (column, function, option):

    - count, sum, min, max, mean, first, last;
    - var, stddev: the option is `ddof`, 0 for the population or 1 for a sample;
    - quantile: the option is a number from 0 to 1;
    - a function that takes a pyarrow array: the option is the type that it returns, if not
      float64.

    Nulls are left out, except from what a function of yours gets. An aggregate of no values is
    null, a count 0. `("_window_id", "count")` counts rows.
    """

    def __init__(self, *, keys: str | Sequence[str], aggregates: Mapping[str, Any]) -> None:
        self._keys = [keys] if isinstance(keys, str) else list(keys)
        self._aggregates = {name: parsed(name, spec) for name, spec in aggregates.items()}
        self._names = [*self._keys, *BOUNDS, *self._aggregates]
        twice = sorted({name for name in self._names if self._names.count(name) > 1})
        if twice:
            raise ConfigError(f"two columns of the result would be called {', '.join(twice)}")
        parts = [part for one in self._aggregates.values() for part in one.parts]
        self._parts: dict[str, Part] = {part.name: part for part in parts}
        # Prefixes keep the names of a stream's columns apart from each other's parts.
        self._by = {f"key:{name}": name for name in self._keys} | BOUNDS
        self._schema = pa.schema([])  # of the rows that were checked last
        self._state: pa.Table | None = None  # a row per open window, in the order they came

    @property
    def open_windows(self) -> int:
        """How many windows have begun and are not complete."""
        return 0 if self._state is None else int(self._state.num_rows)

    def update(self, rows: Any) -> pa.Table:
        """Take marked rows; the results of the windows that are complete with them.

        If it raises, the rows were not taken.
        """
        table = marked(rows)
        if not table.schema.equals(self._schema):
            self._check(table.schema)
            self._schema = table.schema
        windows = self._merged(self._begun(table))
        if self._state is not None and self._state.num_rows:
            windows = self._merged(self._joined(self._state, windows))
        self._check_beginnings(windows)
        complete = windows["last"]
        results = self._results(windows.filter(complete).combine_chunks())
        self._state = windows.filter(pc.invert(complete))
        return results

    def dump(self) -> pa.Table:
        """The open windows as a table, for `load` after a restart."""
        return pa.table({}) if self._state is None else self._state

    def load(self, state: pa.Table) -> None:
        """Take over the open windows that another `WindowAggregate` of the same kind dumped."""
        expected = [*self._by, "first", "last", *self._parts]
        if state.num_columns and state.column_names != expected:
            raise InputError(
                f"a state with columns {', '.join(state.column_names)} came, expected "
                f"{', '.join(expected)}; was it dumped with other keys or aggregates?"
            )
        self._state = state if state.num_columns else None

    def _begun(self, table: pa.Table) -> pa.Table:
        """A row of parts for each marked row."""
        columns = {name: _plain(table[column]) for name, column in self._by.items()}
        columns |= {"first": table[FIRST], "last": table[LAST]}
        for name, part in self._parts.items():
            columns[name] = part.begin(_plain(table[part.column]))
        return pa.table(columns)

    def _merged(self, table: pa.Table) -> pa.Table:
        """A row of parts for each window."""
        numbers = pa.array(np.arange(table.num_rows))
        questions = {
            name: part.question(table[name], numbers) for name, part in self._parts.items()
        }
        questions |= {"first": (table["first"], "sum"), "last": (table["last"], "any")}
        asked = {name: column for name, (column, _) in questions.items()}
        functions = [(name, function) for name, (_, function) in questions.items()]
        grouped = (
            pa.table({name: table[name] for name in self._by} | asked)
            .group_by(list(self._by), use_threads=False)
            .aggregate(functions)
        )
        columns = {name: grouped[name] for name in self._by}
        columns |= {"first": grouped["first_sum"], "last": grouped["last_any"]}
        for name, part in self._parts.items():
            columns[name] = part.answer(table[name], grouped[f"{name}_{questions[name][1]}"])
        return pa.table(columns)

    def _joined(self, state: pa.Table, windows: pa.Table) -> pa.Table:
        """Open windows and new rows of them below each other."""
        for held, came in zip(state.schema, windows.schema, strict=True):
            if held.type != came.type:
                raise SchemaError(
                    f"{came.name} of the rows is {came.type}, but {held.type} in the windows "
                    f"before them; a stream keeps the types of its columns"
                )
        return pa.concat_tables([state, windows])

    def _results(self, windows: pa.Table) -> pa.Table:
        columns = [windows[name] for name in self._by]
        for one in self._aggregates.values():
            columns.append(one.finish(*(windows[part.name] for part in one.parts)))
        return pa.table(columns, self._names)

    def _check(self, schema: pa.Schema) -> None:
        """See that the columns are there and can be used."""
        for name in self._keys:
            type_ = _type(schema, name, "is a key")
            if not groups(type_):
                raise SchemaError(f"key {name!r} is {type_}, by which rows cannot be grouped")
        for name, one in self._aggregates.items():
            for part in one.parts:
                type_ = _type(schema, part.column, f"aggregate {name!r} needs")
                if not fits(part, type_):
                    raise SchemaError(
                        f"aggregate {name!r} cannot be taken of column {part.column!r}, which is "
                        f"{type_}"
                    )

    def _check_beginnings(self, windows: pa.Table) -> None:
        """See that each window came from its first row on, and once."""
        wrong = windows.filter(pc.not_equal(windows["first"], 1)).select([*self._by, "first"])
        for row in wrong.slice(0, 1).to_pylist():
            key = ", ".join(repr(row[f"key:{name}"]) for name in self._keys)
            of_key = f" of key {key}" if key else ""
            if row["first"]:
                raise InputError(
                    f"window {row['window_id']}{of_key} began {row['first']} times; was a batch "
                    f"taken twice?"
                )
            raise InputError(
                f"window {row['window_id']}{of_key} goes on without its first row; after a "
                f"restart, load what was dumped before the batch"
            )


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return column.cast(_plain_type(column.type))


def _plain_type(type_: pa.DataType) -> pa.DataType:
    """The type of the values that a dictionary stands for; other types are plain already."""
    return type_.value_type if pa.types.is_dictionary(type_) else type_


def _type(schema: pa.Schema, column: str, reason: str) -> pa.DataType:
    if column not in schema.names:
        raise SchemaError(
            f"the rows have no column {column!r}, which {reason}; they have "
            f"{', '.join(schema.names)}"
        )
    return _plain_type(schema.field(column).type)
