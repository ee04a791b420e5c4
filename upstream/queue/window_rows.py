"""Window rows: a batch of windows, each a run of rows, and how it becomes Arrow.

A segment has one UNIT per window (`time` holds its id, `spare2` the number of its rows), the
rows one after the other, and a heap with keys and long texts. A batch has one segment, and
one more for each window that had come back.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from upstream.queue.departures import UNIT, UNIT_BYTES_FROZEN
from upstream.queue.frozen import keys_to_arrow, values_to_arrow
from upstream.queue.layout import BOOKKEEPING, Layout
from upstream.queue.window_manager import HAS_FIRST, HAS_LAST
from upstream.windows.kinds import Landmark, SlideByTuple, Sliding
from upstream.windows.marks import FIRST, LAST, WINDOW_END, WINDOW_ID, WINDOW_START

__all__ = ["Segment", "WindowRows", "WindowShape"]


class WindowShape(NamedTuple):
    """What the rows of a batch are marked with."""

    kind: Sliding | Landmark | SlideByTuple
    axis_type: pa.DataType

    def schema(self, layout: Layout) -> pa.Schema:
        """The columns of a batch."""
        return pa.schema(
            [
                *layout.schema,
                *BOOKKEEPING,
                pa.field(WINDOW_ID, pa.int64()),
                pa.field(WINDOW_START, self.axis_type),
                pa.field(WINDOW_END, self.axis_type),
                pa.field(FIRST, pa.bool_()),
                pa.field(LAST, pa.bool_()),
            ]
        )

    def bounds(self, ids: NDArray[np.int64]) -> list[pa.Array]:
        """Start and end of windows; a landmark window has no start."""
        start, end = self.kind.extent(ids)
        bounds = [pa.nulls(len(ids), self.axis_type)]
        if not isinstance(self.kind, Landmark):
            bounds = [pa.array(start).cast(self.axis_type)]
        return [*bounds, pa.array(end).cast(self.axis_type)]


class Segment(NamedTuple):
    """Windows that were frozen together."""

    units: NDArray[Any]  # of UNIT
    rows: pa.Buffer
    heap: pa.Buffer

    def unit(self, number: int, row_bytes: int) -> Segment:
        """One window by itself."""
        counts = self.units["spare2"].astype(np.int64)
        start = int(counts[:number].sum()) * row_bytes
        size = int(counts[number]) * row_bytes
        return Segment(
            self.units[number : number + 1].copy(), self.rows.slice(start, size), self.heap
        )

    @property
    def nbytes(self) -> int:
        return int(self.units.nbytes + self.rows.size + self.heap.size)

    def arrow(self, layout: Layout, shape: WindowShape) -> pa.RecordBatch:
        units = self.units
        counts = units["spare2"].astype(np.int64)
        unit = np.repeat(np.arange(len(units)), counts)
        keys = keys_to_arrow(layout, self.heap, units["key_start"][unit], units["key_length"][unit])
        values = values_to_arrow(layout, self.rows.address, layout.row_bytes, len(unit), self.heap)
        columns = dict(zip(layout.key_names, keys, strict=True))
        columns.update(zip(layout.value_names, values, strict=True))
        ends = np.cumsum(counts)
        first, last = np.zeros(len(unit), bool), np.zeros(len(unit), bool)
        first[(ends - counts)[units["flags"] & HAS_FIRST != 0]] = True
        last[ends[units["flags"] & HAS_LAST != 0] - 1] = True
        ids = units["time"][unit].astype(np.int64)
        since = np.rint(units["since"][unit] * 1e6).astype(np.int64)
        arrays = [columns[name] for name in layout.schema.names]
        arrays.append(pa.array(units["updates"][unit].astype(np.int64)))
        arrays.append(pa.array(since).cast(BOOKKEEPING[1].type))
        arrays += [pa.array(ids), *shape.bounds(ids), pa.array(first), pa.array(last)]
        return pa.RecordBatch.from_arrays(arrays, schema=shape.schema(layout))


class WindowRows:
    """The content of a batch: whole windows, or parts of windows that are committed to."""

    def __init__(self, layout: Layout, shape: WindowShape, segments: list[Segment]) -> None:
        self._layout = layout
        self._shape = shape
        self.segments = segments

    def __len__(self) -> int:
        return sum(len(segment.units) for segment in self.segments)

    @cached_property
    def units(self) -> NDArray[Any]:
        """The UNIT records."""
        return np.concatenate([segment.units for segment in self.segments])

    @property
    def row_count(self) -> int:
        """Rows of all windows."""
        return int(self.units["spare2"].sum())

    @property
    def nbytes(self) -> int:
        """The memory that the batch holds."""
        return sum(segment.nbytes for segment in self.segments)

    @property
    def since(self) -> NDArray[np.float64]:
        return np.asarray(self.units["since"], np.float64)

    @property
    def arrived(self) -> NDArray[np.float64]:
        return np.asarray(self.units["arrived"], np.float64)

    @property
    def updates(self) -> NDArray[np.int64]:
        return self.units["updates"].astype(np.int64)

    @cached_property
    def arrow(self) -> pa.RecordBatch:
        """The rows as columns: the stream's own, the bookkeeping, and the marks."""
        return pa.concat_batches(
            [segment.arrow(self._layout, self._shape) for segment in self.segments]
        )

    def pylist(self) -> list[dict[str, Any]]:
        """The rows as dictionaries."""
        return self.arrow.to_pylist()  # type: ignore[no-any-return]  # untyped library

    def to_parts(self) -> tuple[dict[str, Any], list[Any]]:
        """The batch as buffers, to be taken in by `from_parts`."""
        buffers: list[Any] = []
        for units, rows, heap in self.segments:
            buffers += [units.tobytes(), rows, heap]
        return {}, buffers

    @classmethod
    def from_parts(cls, layout: Layout, shape: WindowShape, buffers: list[Any]) -> WindowRows:
        segments = [
            Segment(
                np.frombuffer(bytes(buffers[i]), UNIT).copy(),
                pa.py_buffer(bytes(buffers[i + 1])),
                pa.py_buffer(bytes(buffers[i + 2])),
            )
            for i in range(0, len(buffers), 3)
        ]
        assert all(s.units.nbytes == len(s.units) * UNIT_BYTES_FROZEN for s in segments)
        return cls(layout, shape, segments)
