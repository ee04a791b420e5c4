"""Aggregate functions: which parts of an open window each needs, and what it makes of them.

::

    count, sum, min, max, first, last    one part of that name
    mean                                 a sum of floats and a count
    var, stddev, quantile                all values, as floats
    a function of the user's             all values

Nulls are left out, except from what a function of the user's gets. An aggregate of no values is
null, a count 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from upstream.errors import ConfigError, InputError
from upstream.windows.parts import Listed, Part, Picked, Reduced

__all__ = ["Aggregate", "parsed"]


@dataclass(frozen=True)
class Aggregate:
    """One column of the result."""

    parts: tuple[Part, ...]
    finish: Callable[..., pa.ChunkedArray]  # from the parts of complete windows to the result


SIMPLE: dict[str, type[Reduced] | type[Picked]] = {
    "count": Reduced,
    "sum": Reduced,
    "min": Reduced,
    "max": Reduced,
    "first": Picked,
    "last": Picked,
}
NAMES = [*SIMPLE, "mean", "var", "stddev", "quantile"]


def parsed(name: str, spec: Any) -> Aggregate:
    """The aggregate that a user writes as (column, function) or (column, function, option)."""
    if not (isinstance(spec, tuple | list) and len(spec) in (2, 3) and isinstance(spec[0], str)):
        raise ConfigError(
            f"aggregate {name!r} is {spec!r}: expected a column and a function, such as "
            f"('price', 'mean'), or these and an option, such as ('price', 'quantile', 0.95)"
        )
    column, function, *options = spec
    if callable(function):
        return _of_user(name, column, function, *options)
    if function in ("var", "stddev"):
        return _spread(name, column, function, *options)
    if function == "quantile":
        return _quantile(name, column, *options)
    if function not in NAMES:
        raise ConfigError(
            f"aggregate {name!r} has the function {function!r}: expected one of "
            f"{', '.join(NAMES)}, or a function that takes a pyarrow array"
        )
    if options:
        raise ConfigError(f"aggregate {name!r} is {spec!r}: {function} takes no option")
    if function == "mean":
        return Aggregate((Reduced(column, "total"), Reduced(column, "count")), pc.divide)
    return Aggregate((SIMPLE[function](column, function),), _unchanged)


def _unchanged(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return column


def _spread(name: str, column: str, function: str, ddof: Any = 0) -> Aggregate:
    if not isinstance(ddof, int) or isinstance(ddof, bool) or ddof < 0:
        raise ConfigError(
            f"aggregate {name!r} has ddof {ddof!r}: expected 0 for the population, 1 for a sample, "
            f"or another whole number that is subtracted from the count"
        )
    kernel = "variance" if function == "var" else function
    return Aggregate((Listed(column, True),), partial(_spread_of, kernel=kernel, ddof=ddof))


def _spread_of(lists: pa.ChunkedArray, *, kernel: str, ddof: int) -> pa.ChunkedArray:
    table = pa.table([pc.list_parent_indices(lists), pc.list_flatten(lists)], ["window", "value"])
    grouped = table.group_by("window", use_threads=False)
    options = pc.VarianceOptions(ddof=ddof)
    return grouped.aggregate([("value", kernel, options)])[f"value_{kernel}"]


def _quantile(name: str, column: str, q: Any = None) -> Aggregate:
    if not isinstance(q, float | int) or isinstance(q, bool) or not 0 <= q <= 1:
        raise ConfigError(
            f"aggregate {name!r} has the quantile {q!r}: expected a number from 0 to 1, such as "
            f"({column!r}, 'quantile', 0.95)"
        )
    return Aggregate((Listed(column, True),), partial(_quantiles_of, q=q))


def _quantiles_of(lists: pa.ChunkedArray, *, q: float) -> pa.ChunkedArray:
    quantiles = [pc.quantile(one.values, q)[0].as_py() for one in lists]
    return pa.chunked_array([pa.array(quantiles, pa.float64())])


def _of_user(
    name: str, column: str, function: Callable[[pa.Array], Any], type_: Any = None
) -> Aggregate:
    if type_ is None:
        type_ = pa.float64()
    if not isinstance(type_, pa.DataType):
        raise ConfigError(
            f"aggregate {name!r} has the type {type_!r}: expected the pyarrow type that the "
            f"function returns, such as pa.string()"
        )
    finish = partial(_applied, name=name, function=function, type_=type_)
    return Aggregate((Listed(column, False),), finish)


def _applied(
    lists: pa.ChunkedArray, *, name: str, function: Callable[[pa.Array], Any], type_: pa.DataType
) -> pa.ChunkedArray:
    results = [function(one.values) for one in lists]
    plain = [value.as_py() if isinstance(value, pa.Scalar) else value for value in results]
    try:
        return pa.chunked_array([pa.array(plain, type_)])
    except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError, OverflowError) as error:
        raise InputError(
            f"aggregate {name!r} must return {type_}: {error}; another type is named behind the "
            f"function, such as (column, function, pa.string())"
        ) from error
