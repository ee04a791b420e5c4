"""Recorded streams, from Parquet or CSV files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from simulator.arrivals import Stream
from simulator.rates import Floats
from upstream.errors import InputError

__all__ = ["read_trace"]


def read_trace(
    file: str | Path,
    *,
    key: str | Sequence[str],
    time: str,
    event_time: str | None = None,
    speedup: float = 1.0,
) -> Stream:
    """A recorded stream, replayed `speedup` times as fast.

    `key` names the column, or the columns, of the key; `time` the one that tells when an
    update arrives: a timestamp, or a number of seconds. Rows are put in the order of it.
    `event_time`, if given, is the source's own time, which may run backward. Time 0 is the
    first arrival.
    """
    if not 0.0 < speedup < float("inf"):
        raise InputError(f"speedup must be a number above 0, but is {speedup}")
    keys = [key] if isinstance(key, str) else list(key)
    events = [] if event_time is None else [event_time]
    table = _read(Path(file), [*keys, time, *events])
    arrived = _seconds(table, time, file)
    order = np.argsort(arrived, kind="stable")
    numbers, names = _numbered(table, keys, file)
    times = (arrived[order] - arrived[order[0]]) / speedup
    span = float(times[-1]) * len(times) / max(len(times) - 1, 1)  # with the gap to come
    if not span > 0.0:
        raise InputError(f"{file}: all {len(times)} rows have the same {time!r}")
    counts = np.bincount(numbers, minlength=len(names))
    return Stream(
        times,
        numbers[order],
        counts / span,
        memoryless=False,
        event_times=None if event_time is None else _seconds(table, event_time, file)[order],
        names=names,
    )


def _read(file: Path, columns: Sequence[str]) -> pa.Table:
    kind = "CSV" if file.suffix.lower() == ".csv" else "Parquet"
    try:
        table = pa.csv.read_csv(file) if kind == "CSV" else None
        there = pq.read_schema(file).names if table is None else table.schema.names
        for column in columns:
            if column not in there:
                raise InputError(f"{file} has no column {column!r}; it has {', '.join(there)}")
        table = pq.read_table(file, columns=columns) if table is None else table.select(columns)
    except FileNotFoundError:
        raise InputError(f"there is no file {file}") from None
    except (OSError, pa.ArrowInvalid) as error:
        raise InputError(f"{file} cannot be read as {kind}: {error}") from None
    if not len(table):
        raise InputError(f"{file} has no rows")
    return table


def _seconds(table: pa.Table, column: str, file: str | Path) -> Floats:
    values = table.column(column).combine_chunks()
    if values.null_count:
        raise InputError(f"{file}: {column!r} is null in {values.null_count} rows")
    if pa.types.is_timestamp(values.type):
        # Counted from the first value: a float holds no nanoseconds since 1970.
        values = values.cast(pa.int64())
        ticks = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[
            table.schema.field(column).type.unit
        ]
        whole = values.to_numpy()
        return np.asarray((whole - whole[0]) / ticks, np.float64)
    if not (pa.types.is_integer(values.type) or pa.types.is_floating(values.type)):
        raise InputError(
            f"{file}: {column!r} holds {values.type}: expected timestamps, or seconds as numbers"
        )
    seconds = np.asarray(values.to_numpy(zero_copy_only=False), np.float64)
    if not np.all(np.isfinite(seconds)):
        raise InputError(f"{file}: {column!r} is not a finite number in every row")
    return seconds


def _numbered(
    table: pa.Table, keys: Sequence[str], file: str | Path
) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], tuple[str, ...]]:
    """The key of each row as a number, and the names of the keys."""
    texts = []
    for column in keys:
        values = table.column(column).combine_chunks()
        if values.null_count:
            raise InputError(f"{file}: the key {column!r} is null in {values.null_count} rows")
        try:
            texts.append(values.cast(pa.string()))
        except pa.ArrowNotImplementedError:
            raise InputError(f"{file}: {column!r} of type {values.type} cannot be a key") from None
    joined = texts[0] if len(texts) == 1 else pc.binary_join_element_wise(*texts, "|")
    found = joined.dictionary_encode()
    return found.indices.to_numpy().astype(np.int64), tuple(found.dictionary.to_pylist())
