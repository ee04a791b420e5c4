"""The keys of an append queue: from key columns to small numbers, and back to names.

Arrow finds the distinct keys of a batch; only these are looked up one by one. Keys that
are new to the queue get the next numbers in the order of their first row, so that taking
only the first rows of a batch takes exactly the first of its new keys.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from upstream.config import QueueConfig
from upstream.queue.append_ledger import KEY
from upstream.queue.frozen import key_texts
from upstream.queue.layout import Layout

__all__ = ["AppendKeys", "Identified"]

# A key's entry in the dictionary and its number, beside its value there and in Arrow.
ENTRY_BYTES = 200


class Identified(NamedTuple):
    """The keys of a batch."""

    ids: NDArray[np.int64]  # of each row
    first_rows: NDArray[np.int64]  # where each new key comes first, ascending
    names: list[Any]  # of the new keys
    columns: pa.RecordBatch  # of the new keys

    def new_in(self, rows: int) -> int:
        """How many of the new keys come in the first `rows` rows."""
        return int(np.searchsorted(self.first_rows, rows))

    def new_bytes(self, keys: int) -> int:
        """Memory that the first `keys` of the new keys need, the ledger's included."""
        return keys * (ENTRY_BYTES + KEY.itemsize) + 2 * int(self.columns.slice(0, keys).nbytes)


class AppendKeys:
    """The keys that have arrived so far, with their weights."""

    def __init__(self, config: QueueConfig) -> None:
        self._config = config
        self._ids: dict[Any, int] = {}
        self._columns: list[pa.RecordBatch] = []
        self._given = np.full(16, np.nan)  # the last weight in the weight column
        self._key_names: list[str] = []
        self.nbytes = 0

    def bind(self, layout: Layout) -> None:
        """The columns are known."""
        self._key_names = layout.key_names

    def __len__(self) -> int:
        return len(self._ids)

    def identify(self, rows: pa.RecordBatch) -> Identified:
        """The keys of a batch; those that are new stay unknown until `add`."""
        codes, places = _distinct([rows.column(name) for name in self._key_names])
        keys = rows.select(self._key_names)
        names = _names(keys.take(pa.array(places)))
        ids = np.array([self._ids.get(name, -1) for name in names], np.int64)
        new = np.flatnonzero(ids < 0)
        ids[new] = np.arange(len(self), len(self) + len(new))
        return Identified(
            ids=ids[codes],
            first_rows=places[new],
            names=[names[i] for i in new.tolist()],
            columns=keys.take(pa.array(places[new])),
        )

    def add(self, found: Identified, rows: pa.RecordBatch) -> int:
        """The keys of `rows`, with which the batch began, are known; how many are in all."""
        new = found.new_in(len(rows))
        self.nbytes += found.new_bytes(new) - new * KEY.itemsize
        if new:
            start = len(self)
            self._ids.update(zip(found.names[:new], range(start, start + new), strict=True))
            self._columns.append(found.columns.slice(0, new))
        if self._config.weight_column is not None:
            self._weigh(found.ids[: len(rows)], rows.column(self._config.weight_column))
        return len(self)

    def _weigh(self, ids: NDArray[np.int64], weights: pa.Array) -> None:
        while len(self._given) < len(self):
            self._given = np.concatenate([self._given, np.full(len(self._given), np.nan)])
        given = pc.cast(weights, pa.float64()).to_numpy(zero_copy_only=False)
        told = ~np.isnan(given)
        self._given[ids[told]] = given[told]  # of several in a batch the last one stays

    def weights(self) -> NDArray[np.float64]:
        """The weight of every key: of its column, of the most special rule, or the default."""
        weights = np.full(len(self), self._config.weight)
        rules = [rule for rule in self._config.rules if rule.weight is not None]
        if rules and len(self):
            texts = key_texts(self.columns().columns)
            rules.sort(key=lambda rule: (rule.key is not None, len(rule.prefix or "")))
            for rule in rules:
                fits = (
                    pc.equal(texts, rule.key)
                    if rule.key is not None
                    else pc.starts_with(texts, rule.prefix)
                )
                weights[fits.to_numpy(zero_copy_only=False)] = rule.weight
        if self._config.weight_column is not None:
            given = self._given[: len(self)]
            np.copyto(weights, given, where=~np.isnan(given))
        return weights

    def columns(self) -> pa.RecordBatch:
        """The key columns of all keys."""
        if len(self._columns) > 1:
            self._columns = [pa.concat_batches(self._columns)]
        return self._columns[0]

    def names(self, ids: NDArray[Any]) -> list[str]:
        """Keys as text."""
        if not len(ids):
            return []
        chosen = self.columns().take(pa.array(ids))
        return key_texts(chosen.columns).to_pylist()  # type: ignore[no-any-return]

    def dump(self) -> list[Any]:
        """Everything, to be taken in by `load`; empty while no key is known."""
        if not len(self):
            return []
        given = np.full(len(self), np.nan)
        given[: len(self._given)] = self._given[: len(self)]
        columns = self.columns()
        return [columns.schema.serialize(), columns.serialize(), given.tobytes()]

    def load(self, buffers: list[Any]) -> None:
        """Know the keys that were dumped."""
        if not buffers:
            return
        schema = pa.ipc.read_schema(pa.py_buffer(buffers[0]))
        columns = pa.ipc.read_record_batch(pa.py_buffer(bytes(buffers[1])), schema)
        self._columns = [columns]
        self._ids = {name: number for number, name in enumerate(_names(columns))}
        self._given = np.frombuffer(buffers[2], np.float64).copy()
        self.nbytes = len(columns) * ENTRY_BYTES + 2 * int(columns.nbytes)


def _names(columns: pa.RecordBatch) -> list[Any]:
    """Keys as Python values: a tuple of them where the key has several columns."""
    values = [column.to_pylist() for column in columns.columns]
    return values[0] if len(values) == 1 else list(zip(*values, strict=True))


def _distinct(columns: list[pa.Array]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Per row a code of its key, and per code the first row, codes in order of these."""
    codes = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        encoded = column.dictionary_encode()
        codes = codes * len(encoded.dictionary) + encoded.indices.to_numpy().astype(np.int64)
        _, codes = np.unique(codes, return_inverse=True)
    _, places, codes = np.unique(codes, return_index=True, return_inverse=True)
    order = np.argsort(places)
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return rank[codes], places[order].astype(np.int64)
