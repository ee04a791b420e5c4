"""Arrived values: the column store for types that do not fit into a row.

Nested values, and values with a merge function of the user's, stay in Arrow arrays. A row
refers to one by (chunk, index). A chunk goes when nothing refers to it any more, and when
more than half of all values are dead, the living ones move into one new chunk.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from upstream.queue.key_table import KEY_BYTES, key_at, table_at
from upstream.queue.memory_manager import UNIT_BYTES, pool_at
from upstream.queue.raw import address_of, i64, kernel, load_u32, load_u64, store_u64
from upstream.queue.state import queue_at

__all__ = ["ArrivedValues", "read_references", "write_references"]

References = NDArray[np.uint64]

_CHUNK = np.uint64(32)
_INDEX = np.uint64(0xFFFFFFFF)


@kernel
def _read(queue_address: int, slots: int, count: int, place: int, out: int) -> None:
    queue = queue_at(queue_address)
    for i in range(count):
        slot = i64(load_u32(slots + i * 4))
        payload = key_at(table_at(queue.table).keys + slot * KEY_BYTES).payload
        cell = pool_at(queue.pool).base + i64(payload) * UNIT_BYTES + place
        store_u64(out + i * 8, load_u64(cell))


@kernel
def _write(queue_address: int, slots: int, count: int, place: int, references: int) -> None:
    queue = queue_at(queue_address)
    for i in range(count):
        slot = i64(load_u32(slots + i * 4))
        payload = key_at(table_at(queue.table).keys + slot * KEY_BYTES).payload
        cell = pool_at(queue.pool).base + i64(payload) * UNIT_BYTES + place
        store_u64(cell, load_u64(references + i * 8))


def read_references(queue_address: int, slots: NDArray[np.uint32], place: int) -> References:
    """The references that the rows of waiting keys hold at `place`; 0: none."""
    references = np.empty(len(slots), np.uint64)
    slots = np.ascontiguousarray(slots)
    _read(queue_address, address_of(slots), len(slots), place, address_of(references))
    return references


def write_references(
    queue_address: int, slots: NDArray[np.uint32], place: int, references: References
) -> None:
    """Let the rows of waiting keys refer to something else."""
    slots, references = np.ascontiguousarray(slots), np.ascontiguousarray(references)
    _write(queue_address, address_of(slots), len(slots), place, address_of(references))


class ArrivedValues:
    """The values of one column.

    >>> values = ArrivedValues(pa.list_(pa.int64()))
    >>> first, second = values.store(pa.array([[1], [2, 3]]))
    >>> values.gather(np.array([second])).to_pylist()
    [[2, 3]]
    >>> values.release(np.array([first, second])); values.nbytes
    0
    """

    def __init__(self, data_type: pa.DataType) -> None:
        self._type = data_type
        self._chunks: dict[int, pa.Array] = {}
        self._alive: dict[int, int] = {}
        self._next = 1
        self._rows = 0
        self.nbytes = 0

    def store(self, values: pa.Array) -> References:
        """Keep values; answers a reference to each."""
        if not len(values):
            return np.empty(0, np.uint64)
        chunk = self._next
        self._next += 1
        self._chunks[chunk] = values
        self._alive[chunk] = len(values)
        self._rows += len(values)
        self.nbytes += values.nbytes
        return (np.uint64(chunk) << _CHUNK) | np.arange(len(values), dtype=np.uint64)

    def release(self, references: References) -> None:
        """Values are no longer referred to; 0 is nobody."""
        chunks, counts = np.unique(references >> _CHUNK, return_counts=True)
        for chunk, count in zip(chunks.tolist(), counts.tolist(), strict=True):
            if chunk == 0:
                continue
            self._alive[chunk] -= count
            if not self._alive[chunk]:
                values = self._chunks.pop(chunk)
                del self._alive[chunk]
                self._rows -= len(values)
                self.nbytes -= values.nbytes

    def gather(self, references: References) -> pa.Array:
        """The values, in the order of the references."""
        if not len(references):
            return pa.array([], self._type)
        chunks = (references >> _CHUNK).astype(np.int64)
        order = np.argsort(chunks, kind="stable")
        starts = np.flatnonzero(np.diff(chunks[order], prepend=-1))
        pieces: list[Any] = []
        for run in np.split(order, starts[1:]):
            indices = (references[run] & _INDEX).astype(np.int64)
            pieces.append(self._chunks[int(chunks[run[0]])].take(pa.array(indices)))
        gathered = pieces[0] if len(pieces) == 1 else pa.concat_arrays(pieces)
        if len(pieces) == 1 and np.array_equal(order, np.arange(len(order))):
            return gathered
        back = np.empty(len(order), np.int64)
        back[order] = np.arange(len(order))
        return gathered.take(pa.array(back))

    @property
    def wasteful(self) -> bool:
        """Whether more than half of what is kept is dead."""
        return self._rows > 2 * sum(self._alive.values()) + 1024
