"""The axis of windows: whole numbers, from a column of times or from an update's position.

Times count in ticks of their column's unit: a `timestamp[us]` in microseconds, a `date32` in days.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from upstream.errors import InputError

__all__ = ["positions", "ticks"]


def ticks(values: Any) -> NDArray[np.int64]:
    """Values as int64, in the shape they came in: integers, or an Arrow column of times.

    >>> ticks(pa.array([0, 1500], pa.timestamp("ms")))
    array([   0, 1500])
    """
    shape: tuple[int, ...] = (-1,)
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    elif not isinstance(values, pa.Array):
        array = _integers(values)
        shape = array.shape
        values = pa.array(array.ravel())
    if values.null_count:
        row = int(np.flatnonzero(pc.is_null(values).to_numpy(zero_copy_only=False))[0])
        raise InputError(f"row {row} is null: every row needs a value on the axis of windows")
    return _as_int64(values).reshape(shape)


def _integers(values: Any) -> NDArray[Any]:
    array = np.asarray(values)
    if array.size and array.dtype.kind not in "iu":
        raise InputError(
            f"the axis of windows takes whole numbers or an Arrow column of times, but "
            f"{array.dtype} came"
        )
    return array if array.size else array.astype(np.int64)


def _as_int64(values: pa.Array) -> NDArray[np.int64]:
    if pa.types.is_temporal(values.type) and not pa.types.is_interval(values.type):
        values = values.view(pa.int32() if values.type.bit_width == 32 else pa.int64())
    elif not pa.types.is_integer(values.type):
        raise InputError(
            f"the axis of windows takes whole numbers, timestamps, dates or durations, but "
            f"{values.type} came"
        )
    try:
        return values.cast(pa.int64()).to_numpy()  # type: ignore[no-any-return]  # untyped library
    except pa.ArrowInvalid as error:
        raise InputError(f"the axis of windows is 64 bits wide: {error}") from error


def positions(keys: pa.Array | pa.ChunkedArray | Sequence[pa.Array]) -> NDArray[np.int64]:
    """The place of each row among the rows of its own key, from 0; null is a key like others.

    A key of several columns is a list of them.

    >>> positions(pa.array(["a", "b", "a", "a", "b"]))
    array([0, 0, 1, 2, 1])
    >>> positions([pa.array(["a", "a", "a"]), pa.array([1, 2, 1])])
    array([0, 0, 1])
    """
    columns = [keys] if isinstance(keys, pa.Array | pa.ChunkedArray) else list(keys)
    lengths = [len(column) for column in columns]
    if len(set(lengths)) != 1:
        raise InputError(f"a key has one or more columns of one length, but {lengths} came")
    names = [str(number) for number in range(len(columns))]
    rows = np.arange(lengths[0])
    table = pa.table([*columns, rows], [*names, "row"]).unify_dictionaries()
    grouped = table.group_by(names, use_threads=False).aggregate([("row", "list")])
    lists = grouped["row_list"].combine_chunks()
    begins, counts = lists.offsets.to_numpy()[:-1], lists.value_lengths().to_numpy()
    result = np.empty_like(rows)
    result[lists.flatten().to_numpy()] = rows - np.repeat(begins, counts)
    return result
