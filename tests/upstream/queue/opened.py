"""Queues to test with: small, on a clock that stands still, and copies of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from upstream import open_queue
from upstream.model import Batch
from upstream.queue.base import BaseQueue
from upstream.queue.update_queue import UpdateQueue

__all__ = ["Clock", "counts_add_up", "moved", "open_update_queue", "values"]


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def open_update_queue(clock: Callable[[], float] | None = None, **options: Any) -> UpdateQueue:
    given = {"key": "k", "policy": "in-place", "memory_limit": "16MiB", **options}
    queue = open_queue("memory:", clock=clock or Clock(), **given)
    assert isinstance(queue, UpdateQueue)
    return queue


def moved(queue: UpdateQueue) -> UpdateQueue:
    """The queue as it comes back from a dump."""
    meta, buffers = queue.dump()
    other = UpdateQueue(queue.config, queue._clock)
    assert queue.schema is not None
    other.bind(queue.schema)
    other.load(meta, [bytes(buffer) for buffer in buffers])
    other.check()
    return other


def counts_add_up(queue: BaseQueue) -> None:
    s = queue.snapshot()
    assert s.accepted == s.handed_out + s.conflated + s.superseded + s.shed + s.waiting


def values(batch: Batch, column: str = "v") -> dict[Any, Any]:
    return {row["k"]: row[column] for row in batch.to_pylist()}
