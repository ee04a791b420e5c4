"""The keys of the workloads, one quote each, to fill a queue before it is measured."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from bench.workloads import START_US, zipf_batches

__all__ = ["population", "requoted"]


def population(keys: int, *, batch_rows: int = 100_000, seed: int = 3) -> list[pa.RecordBatch]:
    """One quote of every key, in shuffled order, from before the first quote of a workload.

    >>> batch, = population(3)
    >>> sorted(batch["symbol"].to_pylist())
    ['K000000', 'K000001', 'K000002']
    """
    order = np.random.default_rng(seed).permutation(keys)
    batches = []
    for start in range(0, keys, batch_rows):
        part = order[start : start + batch_rows]
        (rows,) = zipf_batches(len(part), keys=keys, batch_rows=len(part), seed=seed)
        symbols = pa.array([f"K{number:06d}" for number in part.tolist()])
        times = pa.array(np.full(len(part), START_US - 1), pa.timestamp("us", "UTC"))
        columns = [symbols, times, rows["bid"], rows["ask"], rows["note"]]
        batches.append(pa.RecordBatch.from_arrays(columns, schema=rows.schema))
    return batches


def requoted(rows: pa.RecordBatch, schema: pa.Schema, time_us: int) -> pa.RecordBatch:
    """The same keys and values again, as of another event time."""
    times = pa.array(np.full(len(rows), time_us), pa.timestamp("us", "UTC"))
    columns = [times if name == "ts" else rows[name] for name in schema.names]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
