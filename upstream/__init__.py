"""Upstream: update queues that keep the answers of overloaded streams fresh."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from upstream.aio import AsyncQueue, open_async_queue
    from upstream.config import Config, QueueConfig
    from upstream.model import Batch, Queue, Receipt, Snapshot, Update
    from upstream.opening import open_queue
    from upstream.queue.policies import Policy

__all__ = [
    "AsyncQueue",
    "Batch",
    "Config",
    "Policy",
    "Queue",
    "QueueConfig",
    "Receipt",
    "Snapshot",
    "Update",
    "open_async_queue",
    "open_queue",
]

__version__ = "0.1.0"

_HOMES = {
    "AsyncQueue": "upstream.aio",
    "Batch": "upstream.model",
    "Config": "upstream.config",
    "Policy": "upstream.queue.policies",
    "Queue": "upstream.model",
    "QueueConfig": "upstream.config",
    "Receipt": "upstream.model",
    "Snapshot": "upstream.model",
    "Update": "upstream.model",
    "open_async_queue": "upstream.aio",
    "open_queue": "upstream.opening",
}


def __getattr__(name: str) -> Any:
    """Import what is asked for, when it is: numba and Arrow take a second to load."""
    if name not in _HOMES:
        raise AttributeError(f"module 'upstream' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
