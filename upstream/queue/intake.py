"""Intake: from what callers hand in to record batches with the columns of the queue."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import pyarrow as pa

from upstream.config import QueueConfig
from upstream.errors import InputError, SchemaError
from upstream.model import Update
from upstream.queue.layout import Layout

__all__ = ["conforming", "row_of"]

# Chunks of a table smaller than this are joined before they are taken.
SMALL_CHUNK_ROWS = 1000

_MISFITS = (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, TypeError)


def conforming(updates: Any, layout: Layout | None) -> list[pa.RecordBatch]:
    """Batches with exactly the columns of the layout, if there is one yet."""
    if layout is not None and isinstance(updates, pa.RecordBatch):
        if updates.schema.equals(layout.schema):
            return [updates]
        return [layout.conform(updates)]
    batches = _batches(updates)
    return batches if layout is None else [layout.conform(rows) for rows in batches]


def _batches(updates: Any) -> list[pa.RecordBatch]:
    if isinstance(updates, pa.RecordBatch):
        return [updates]
    if not isinstance(updates, pa.Table):
        if not (hasattr(updates, "__arrow_c_stream__") or hasattr(updates, "__arrow_c_array__")):
            hint = "; for a single update there is put" if isinstance(updates, Mapping) else ""
            raise InputError(
                f"put_many takes a pyarrow RecordBatch or Table, or another library's Arrow "
                f"table, but {type(updates).__name__} came{hint}"
            )
        updates = pa.table(updates)
    chunks = max((column.num_chunks for column in updates.columns), default=0)
    if chunks > 1 and len(updates) < chunks * SMALL_CHUNK_ROWS:
        updates = updates.combine_chunks()
    batches: list[pa.RecordBatch] = updates.to_batches()
    return batches or [pa.RecordBatch.from_pylist([], schema=updates.schema)]


def row_of(
    update: Mapping[str, Any] | Update, config: QueueConfig, schema: pa.Schema | None
) -> pa.RecordBatch:
    """A batch of one row."""
    if isinstance(update, Update):
        update = _as_mapping(update, config)
    if not isinstance(update, Mapping):
        raise InputError(
            f"put takes a mapping of columns to values, or an Update, but "
            f"{type(update).__name__} came; for Arrow there is put_many"
        )
    if schema is None:
        return pa.RecordBatch.from_pylist([dict(update)])
    if update.keys() != set(schema.names):
        missing = [name for name in schema.names if name not in update]
        extra = [name for name in update if name not in schema.names]
        what = f"lacks column {missing[0]!r}" if missing else f"has no column {extra[0]!r} to go to"
        raise SchemaError(
            f"the update {what}: the queue has {', '.join(map(repr, schema.names))}, the update "
            f"{', '.join(map(repr, update)) or 'nothing'}"
        )
    try:
        # One call for all columns takes half the time of one call for each.
        return pa.RecordBatch.from_struct_array(pa.array([dict(update)], _struct(schema)))
    except _MISFITS as misfit:
        for field in schema:
            try:
                pa.array([update[field.name]], field.type)
            except _MISFITS as error:
                raise InputError(
                    f"column {field.name!r} takes {field.type}, but "
                    f"{update[field.name]!r:.80} came: {error}"
                ) from error
        raise InputError(f"the update does not fit the columns of the queue: {misfit}") from misfit


@lru_cache
def _struct(schema: pa.Schema) -> pa.DataType:
    return pa.struct(schema)


def _as_mapping(update: Update, config: QueueConfig) -> dict[str, Any]:
    names = config.key_columns
    parts = (update.key,) if len(names) == 1 else update.key
    if not isinstance(parts, tuple) or len(parts) != len(names):
        raise InputError(
            f"the key of the update is {update.key!r}: expected {len(names)} values, for "
            f"{', '.join(map(repr, names))}"
        )
    row = dict(zip(names, parts, strict=True))
    if config.time is not None:
        row[config.time] = update.time
    return row | dict(update.value)
