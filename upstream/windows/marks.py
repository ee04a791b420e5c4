"""Marks: the columns that tell of each row handed out which window it belongs to.

The rows of one window of one key come in order, in one batch or spread over several.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from upstream.errors import InputError, SchemaError

__all__ = ["FIRST", "LAST", "WINDOW_END", "WINDOW_ID", "WINDOW_START", "marked"]

WINDOW_ID = "_window_id"  # int64
WINDOW_START = "_window_start"  # of the axis' type; null where a window has no start
WINDOW_END = "_window_end"  # of the axis' type; the first value after the window
FIRST = "_first"  # the first row of its window that is handed out
LAST = "_last"  # with this row its window is complete

BOUNDS = (WINDOW_START, WINDOW_END)
TYPES = {WINDOW_ID: pa.int64(), FIRST: pa.bool_(), LAST: pa.bool_()}


def marked(rows: Any) -> pa.Table:
    """Rows as a table, if they are Arrow's and bear all marks."""
    if not (hasattr(rows, "__arrow_c_stream__") or hasattr(rows, "__arrow_c_array__")):
        raise InputError(
            f"expected a pyarrow RecordBatch or Table, or another library's Arrow table, but "
            f"{type(rows).__name__} came"
        )
    table = pa.table(rows)
    for mark in (*TYPES, *BOUNDS):
        if mark not in table.column_names:
            raise SchemaError(
                f"the rows do not bear the mark {mark}; they have "
                f"{', '.join(table.column_names)}. Do they come from a queue with windows?"
            )
    for mark, type_ in TYPES.items():
        if table[mark].type != type_:
            raise SchemaError(f"the mark {mark} is {table[mark].type}: expected {type_}")
        if table[mark].null_count:
            raise InputError(f"the mark {mark} is null in a row: expected a value in each")
    return table
