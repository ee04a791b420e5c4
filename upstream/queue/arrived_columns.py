"""Arrived columns: keeping the values that rows only refer to, whatever their type.

The kernel says for each row of a batch which key it went to and whether a unit began with
it. From that, whole columns are worked on at once: per key the last value is kept, or the
first, or all of a unit's values are merged by a function, pairwise: since it is
associative, n values of one key need log2(n) calls, not n.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from upstream.errors import MergeWarning
from upstream.queue.arrived_values import ArrivedValues, read_references, write_references
from upstream.queue.departures import BACK_IN_LINE, UNDER_NEWER
from upstream.queue.frozen import FrozenRows
from upstream.queue.key_table import DELETED, RESET, KeyTable
from upstream.queue.layout import Layout, MergeFunction
from upstream.queue.rows import FIRST

__all__ = ["ArrivedColumns"]

Indices = NDArray[np.int64]
Slots = NDArray[np.uint32]


class _Runs:
    """The rows of one batch, sorted by key: what became of each key's unit."""

    def __init__(self, slots: Slots, begins: NDArray[np.uint8]) -> None:
        rows = np.flatnonzero(slots)
        self.rows: Indices = rows[np.argsort(slots[rows], kind="stable")]
        sorted_slots = slots[self.rows]
        first = np.diff(sorted_slots, prepend=np.uint32(0)) != 0
        ends = np.flatnonzero(np.append(first[1:], True))
        begun = begins[self.rows] != 0
        starts = np.maximum.accumulate(np.where(first | begun, np.arange(len(first)), 0))
        self.slots: Slots = sorted_slots[ends]
        self.ends: Indices = ends
        self.starts: Indices = starts[ends]  # where the unit begins, or goes on
        self.began = begun[self.starts]  # false: values of the unit were held before

    def merged(self, column: pa.Array, function: MergeFunction) -> pa.Array:
        """One value per key: all that came for its unit, in order."""
        sizes = self.ends - self.starts + 1
        within = np.concatenate([np.arange(n) for n in sizes])
        values = column.take(pa.array(self.rows[np.repeat(self.starts, sizes) + within]))
        while sizes.max(initial=1) > 1:
            within = np.concatenate([np.arange(n) for n in sizes])
            left = np.flatnonzero((within % 2 == 0) & (within + 1 < np.repeat(sizes, sizes)))
            pairs = _call(function, values.take(pa.array(left)), values.take(pa.array(left + 1)))
            source = np.arange(len(values))
            source[left] = len(values) + np.arange(len(left))
            values = pa.concat_arrays([values, pairs]).take(pa.array(source[within % 2 == 0]))
            sizes = (sizes + 1) // 2
        return values


class ArrivedColumns:
    """All columns of a queue whose values stay in Arrow arrays."""

    def __init__(self) -> None:
        self._values: dict[str, ArrivedValues] = {}

    def bind(self, layout: Layout, queue_address: int, keys: KeyTable) -> None:
        """The columns are known."""
        self._keys = keys
        self._layout = layout
        self._queue = queue_address
        self._values = {
            name: ArrivedValues(layout.schema.field(name).type) for name in layout.arrived_names
        }
        self._first = {
            name
            for name in layout.arrived_names
            if layout.columns[layout.value_names.index(name)]["merge"] == FIRST
        }

    def __bool__(self) -> bool:
        return bool(self._values)

    @property
    def names(self) -> list[str]:
        return list(self._values)

    @property
    def nbytes(self) -> int:
        return sum(values.nbytes for values in self._values.values())

    def keep(
        self,
        rows: pa.RecordBatch,
        slots: Slots,
        begins: NDArray[np.uint8],
        start: int,
        stop: int,
    ) -> None:
        """Keep the values of the rows that were taken."""
        if not slots[start:stop].any():  # all of them superseded
            return
        runs = _Runs(slots[start:stop], begins[start:stop])
        for name in self._values:
            column = rows.column(name).slice(start, stop - start)
            self._keep(name, column, runs)

    def _keep(self, name: str, column: pa.Array, runs: _Runs) -> None:
        store, place = self._values[name], self._layout.arrived_places[name]
        function = self._layout.merge_functions.get(name)
        touched = np.ones(len(runs.slots), bool)
        held = read_references(self._queue, runs.slots, place)
        if function is not None:
            values = runs.merged(column, function)
            goes_on = np.flatnonzero(~runs.began)
            if len(goes_on):
                older = store.gather(held[goes_on])
                both = _call(function, older, values.take(pa.array(goes_on)))
                source = np.arange(len(values))
                source[goes_on] = len(values) + np.arange(len(goes_on))
                values = pa.concat_arrays([values, both]).take(pa.array(source))
        elif name in self._first:
            touched = runs.began
            values = column.take(pa.array(runs.rows[runs.starts[touched]]))
        else:
            values = column.take(pa.array(runs.rows[runs.ends]))
        store.release(held[touched])
        write_references(self._queue, runs.slots[touched], place, store.store(values))
        if store.wasteful:
            self._compact(name)

    def _compact(self, name: str) -> None:
        store, place = self._values[name], self._layout.arrived_places[name]
        slots = self._waiting()
        held = read_references(self._queue, slots, place)
        alive = held != 0
        fresh = ArrivedValues(self._layout.schema.field(name).type)
        references = fresh.store(store.gather(held[alive]))
        write_references(self._queue, slots[alive], place, references)
        self._values[name] = fresh

    def _waiting(self) -> Slots:
        return np.flatnonzero(~np.isnan(self._keys.records()["since"])).astype(np.uint32)

    def take(self, slots: Slots) -> dict[str, pa.Array]:
        """The values of keys that are about to be frozen; they are let go of."""
        taken = {}
        for name, store in self._values.items():
            held = read_references(self._queue, slots, self._layout.arrived_places[name])
            taken[name] = store.gather(held)
            store.release(held)
        return taken

    def release(self, slots: Slots) -> None:
        """Waiting keys are about to lose their units."""
        for name, store in self._values.items():
            store.release(read_references(self._queue, slots, self._layout.arrived_places[name]))

    def put_back(
        self, frozen: FrozenRows, fates: NDArray[np.uint8], flags: NDArray[np.uint8]
    ) -> None:
        """The units of a batch wait again, or went under newer ones.

        `flags` are those that the keys had before.
        """
        units = frozen.units
        back = np.flatnonzero(fates == BACK_IN_LINE)
        under = fates == UNDER_NEWER
        under &= units["flags"] & DELETED == 0
        newer_whole = flags & RESET == 0
        for name, store in self._values.items():
            place = self._layout.arrived_places[name]
            older = frozen.arrived_values[name]
            references = store.store(older.take(pa.array(back)))
            write_references(self._queue, units["slot"][back], place, references)
            function = self._layout.merge_functions.get(name)
            if function is None and name not in self._first:
                continue
            merges = np.flatnonzero(under & newer_whole)
            if not len(merges):
                continue
            slots = units["slot"][merges]
            held = read_references(self._queue, slots, place)
            values = older.take(pa.array(merges))
            if function is not None:
                values = _call(function, values, store.gather(held))
            store.release(held)
            write_references(self._queue, slots, place, store.store(values))

    def dump(self) -> list[Any]:
        """Each column as an Arrow stream of the values of all waiting keys."""
        slots = self._waiting()
        buffers = []
        for name in self._values:
            self._compact(name)
            place = self._layout.arrived_places[name]
            held = read_references(self._queue, slots, place)
            values = self._values[name].gather(held)
            with pa.BufferOutputStream() as sink:
                batch = pa.RecordBatch.from_arrays([values, pa.array(slots)], ["value", "slot"])
                with pa.ipc.new_stream(sink, batch.schema) as writer:
                    writer.write_batch(batch)
                buffers.append(sink.getvalue())
        return buffers

    def load(self, buffers: list[Any]) -> None:
        """Keep the dumped values; the rows are there already."""
        for (name, store), buffer in zip(self._values.items(), buffers, strict=True):
            table = pa.ipc.open_stream(pa.py_buffer(bytes(buffer))).read_all()
            slots = table.column("slot").combine_chunks().to_numpy()
            references = store.store(table.column("value").combine_chunks())
            write_references(self._queue, slots, self._layout.arrived_places[name], references)


def _call(function: MergeFunction, held: pa.Array, arrived: pa.Array) -> pa.Array:
    """What the function makes of pairs of values; where it fails, the newer values stand."""
    try:
        merged = function(held, arrived)
        if isinstance(merged, pa.ChunkedArray):
            merged = merged.combine_chunks()
        merged = merged if merged.type == held.type else merged.cast(held.type)
        if len(merged) != len(held):
            raise ValueError(f"{len(merged)} values came back for {len(held)} pairs")
    except Exception as error:  # the updates are accepted already: nothing may be lost
        warnings.warn(
            f"a merge function failed ({type(error).__name__}: {error}): of the {len(held):,} "
            f"pairs that it was asked to merge, the newer value was kept",
            MergeWarning,
            stacklevel=2,
        )
        return arrived
    return merged
