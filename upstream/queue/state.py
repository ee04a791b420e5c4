"""What all kernels of one queue share: the addresses of its layers, and its counts."""

from __future__ import annotations

import numpy as np

from upstream.queue.raw import record_at
from upstream.staleness.rules import TOTALS

__all__ = ["QUEUE", "queue_at", "totals_at"]

QUEUE = np.dtype(
    [
        # Layers
        ("pool", "i8"),
        ("table", "i8"),
        ("scheduler", "i8"),
        ("totals", "i8"),  # application staleness
        ("queue_totals", "i8"),  # queue staleness
        # Layout
        ("columns", "i8"),
        ("column_count", "i8"),
        ("key_columns", "i8"),
        ("key_count", "i8"),
        ("row_bytes", "i8"),
        ("has_text", "i8"),
        ("time_column", "i8"),  # index among the value columns, -1: none
        ("weight_column", "i8"),
        ("delete_column", "i8"),
        ("delete_value", "i8"),  # address of the bytes that mark a delete
        ("delete_length", "i8"),
        ("wants_rows", "i8"),  # 1: tell for each row what became of it
        ("weight", "f8"),  # of a key that no rule speaks of
        # Scratch
        ("key_scratch", "i8"),
        ("block", "i8"),
        ("begun", "i8"),  # slots that began to wait in this call
        ("born", "i8"),  # slots that became known in this call
        ("row_slots", "i8"),  # for each row its slot, 0: superseded
        ("row_begins", "i8"),  # for each row 1 if a unit begins with it
        # What the last call did
        ("begun_count", "i8"),
        ("born_count", "i8"),
        ("stopped", "i8"),  # why it stopped before the end: 0, NO_ROOM or TABLE_FULL
        ("key_scratch_bytes", "i8"),  # what the keys of the batch need
        # Counts since the queue began: accepted = handed out + conflated + superseded + shed
        # + waiting
        ("accepted", "i8"),
        ("handed_out", "i8"),
        ("conflated", "i8"),
        ("superseded", "i8"),
        ("shed", "i8"),
    ]
)

queue_at = record_at(QUEUE)
totals_at = record_at(TOTALS)
