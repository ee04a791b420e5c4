"""What is kept of an open window: parts, one value per window each.

Parts live in a table with a row per window: a sum so far, or the list of all values where nothing
less will do. Rows that are to be merged are put below each other and grouped; a part says what to
ask of the grouping and what to make of its answer. Merging what was merged before gives the same
as merging everything at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from upstream.errors import SchemaError

__all__ = ["Listed", "Part", "Picked", "Reduced", "fits", "groups"]


class Part(Protocol):
    """What is kept of a window for an aggregate."""

    @property
    def name(self) -> str:
        """How the kept column is called."""

    @property
    def column(self) -> str:
        """The column that it is made from."""

    def begin(self, values: pa.ChunkedArray) -> pa.ChunkedArray:
        """What is kept of single rows."""

    def question(self, held: pa.ChunkedArray, numbers: pa.Array) -> tuple[Any, str]:
        """A column to group, and the function to aggregate it with; `numbers` are of rows."""

    def answer(self, held: pa.ChunkedArray, grouped: pa.ChunkedArray) -> pa.ChunkedArray:
        """What is kept of whole groups, given the grouped column."""


@dataclass(frozen=True)
class Reduced:
    """A number that merges with others into one of its kind."""

    column: str
    function: str  # "count", "sum", "total" (a sum of floats), "min" or "max"

    @property
    def name(self) -> str:
        return f"{self.function}:{self.column}"

    def begin(self, values: pa.ChunkedArray) -> pa.ChunkedArray:
        if self.function == "count":
            return pc.is_valid(values).cast(pa.int64())
        return _floats(values) if self.function == "total" else values

    def question(self, held: pa.ChunkedArray, numbers: pa.Array) -> tuple[Any, str]:
        return held, "sum" if self.function in ("count", "total") else self.function

    def answer(self, held: pa.ChunkedArray, grouped: pa.ChunkedArray) -> pa.ChunkedArray:
        return grouped


@dataclass(frozen=True)
class Picked:
    """The first or last value that is not null."""

    column: str
    function: str  # "first" or "last"

    @property
    def name(self) -> str:
        return f"{self.function}:{self.column}"

    def begin(self, values: pa.ChunkedArray) -> pa.ChunkedArray:
        return values

    def question(self, held: pa.ChunkedArray, numbers: pa.Array) -> tuple[Any, str]:
        valid = pc.if_else(pc.is_valid(held), numbers, pa.scalar(None, numbers.type))
        return valid, "min" if self.function == "first" else "max"

    def answer(self, held: pa.ChunkedArray, grouped: pa.ChunkedArray) -> pa.ChunkedArray:
        return held.take(grouped)


@dataclass(frozen=True)
class Listed:
    """All values, in order."""

    column: str
    as_floats: bool

    @property
    def name(self) -> str:
        return f"{'floats' if self.as_floats else 'values'}:{self.column}"

    def begin(self, values: pa.ChunkedArray) -> pa.ChunkedArray:
        one_each = pa.array(np.arange(len(values) + 1, dtype=np.int32))
        values = _floats(values) if self.as_floats else values
        return pa.chunked_array([pa.ListArray.from_arrays(one_each, values.combine_chunks())])

    def question(self, held: pa.ChunkedArray, numbers: pa.Array) -> tuple[Any, str]:
        return numbers, "list"

    def answer(self, held: pa.ChunkedArray, grouped: pa.ChunkedArray) -> pa.ChunkedArray:
        rows = grouped.combine_chunks()
        lists = held.take(rows.flatten()).combine_chunks()
        joined = pa.ListArray.from_arrays(lists.offsets.take(rows.offsets), lists.flatten())
        return pa.chunked_array([joined])


def groups(type_: pa.DataType) -> bool:
    """Whether rows can be grouped by a column of this type, tried on no rows."""
    return _can_group(pa.array([], type_), pa.array([], pa.int64()), "list")


def fits(part: Part, type_: pa.DataType) -> bool:
    """Whether a part can be made of a column of this type, tried on no rows."""
    numbers = pa.array([], pa.int64())
    try:
        held = part.begin(pa.chunked_array([], type_))
    except SchemaError:
        return False
    return _can_group(numbers, *part.question(held, numbers))


def _can_group(keys: pa.Array, values: Any, function: str) -> bool:
    table = pa.table([keys, values], ["key", "value"])
    try:
        table.group_by("key", use_threads=False).aggregate([("value", function)])
    except pa.ArrowNotImplementedError:
        return False
    return True


def _floats(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Numbers as floats; digits that a float cannot hold are rounded."""
    if not _is_number(values.type):
        raise SchemaError(f"expected numbers, but {values.type} came")
    return values.cast(pa.float64(), safe=False)


def _is_number(type_: pa.DataType) -> bool:
    tests = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_boolean)
    return any(test(type_) for test in tests)
