"""Rows of an append queue: columns as they arrived, in line and in a batch."""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from upstream.queue.layout import Layout

__all__ = ["CHUNK_BYTES", "AppendRows", "Chunk", "joined", "own_memory"]

CHUNK_BYTES = 1000  # the objects around the columns of a chunk


class Chunk(NamedTuple):
    """Updates that stand in line one behind the other."""

    rows: pa.RecordBatch
    arrived: NDArray[np.float64]
    numbers: NDArray[np.int64]  # the ledger's

    @property
    def nbytes(self) -> int:
        return int(self.rows.nbytes) + CHUNK_BYTES

    def slice(self, start: int, stop: int) -> Chunk:
        part = slice(start, stop)
        return Chunk(self.rows.slice(start, stop - start), self.arrived[part], self.numbers[part])


def joined(chunks: list[Chunk]) -> Chunk:
    """One chunk from several, in their order."""
    if len(chunks) == 1:
        return chunks[0]
    return Chunk(
        pa.concat_batches([chunk.rows for chunk in chunks]),
        np.concatenate([chunk.arrived for chunk in chunks]),
        np.concatenate([chunk.numbers for chunk in chunks]),
    )


def own_memory(rows: pa.RecordBatch, kept: NDArray[np.bool_]) -> pa.RecordBatch:
    """The kept rows, without holding on to memory of others."""
    if not kept.all():
        return rows.filter(pa.array(kept))
    if rows.get_total_buffer_size() > 2 * rows.nbytes + 4096:
        return rows.take(pa.array(np.arange(len(rows))))
    return rows


class AppendRows:
    """The content of a batch: every unit is one update."""

    def __init__(self, layout: Layout, chunk: Chunk) -> None:
        self._layout = layout
        self.chunk = chunk
        self.nbytes = chunk.nbytes

    def __len__(self) -> int:
        return len(self.chunk.numbers)

    @property
    def since(self) -> NDArray[np.float64]:
        return self.chunk.arrived

    @property
    def arrived(self) -> NDArray[np.float64]:
        return self.chunk.arrived

    @cached_property
    def updates(self) -> NDArray[np.int64]:
        return np.ones(len(self), np.int64)

    @cached_property
    def arrow(self) -> pa.RecordBatch:
        """The updates as columns: the stream's own, then the bookkeeping."""
        schema = self._layout.output_schema
        since = np.rint(self.since * 1e6).astype(np.int64)
        columns = [*self.chunk.rows.columns, pa.array(self.updates)]
        columns.append(pa.array(since).cast(schema.field(-1).type))
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def pylist(self) -> list[dict[str, Any]]:
        """The updates as dictionaries."""
        return self.arrow.to_pylist()  # type: ignore[no-any-return]  # untyped library

    def to_parts(self) -> tuple[dict[str, Any], list[Any]]:
        """The number of rows says it all: they are the first in line."""
        return {}, [np.array([len(self)], np.int64).tobytes()]
