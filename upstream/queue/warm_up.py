"""Compile the kernels before anybody waits for them.

Numba compiles a kernel at its first call and keeps the machine code on disk. A service
calls `warm_up` when it starts; `python -m upstream.queue.warm_up` does it after an
installation. Importing the package compiles nothing.
"""

from __future__ import annotations

import pyarrow as pa

from upstream.config import QueueConfig
from upstream.queue.update_queue import UpdateQueue
from upstream.queue.window_queue import WindowQueue

__all__ = ["warm_up"]


def warm_up() -> None:
    """Send a few updates all the way through, alone and in windows."""
    for buffer in ("lazy", "eager"):
        config = QueueConfig.from_options(key="key", window={"size": 2, "buffer": buffer})
        with WindowQueue(config) as windows:
            windows.put_many(pa.record_batch({"key": ["a"] * 3, "text": ["a" * 20] * 3}))
            windows.give_back(windows.plan().id)
            windows.commit(windows.plan().id)
    config = QueueConfig.from_options(
        key="key", time="time", delete_column="gone", merge={"sum": "sum"}, memory_limit="64MiB"
    )
    names = [f"key {number}" for number in range(40)]
    rows = pa.record_batch(
        {
            "key": names,
            "time": pa.array(range(40), pa.timestamp("us")),
            "sum": pa.array(range(40), pa.int64()),
            "price": [float(number) for number in range(40)],
            "text": [name * 4 for name in names],
            "gone": [False] * 40,
        }
    )
    with UpdateQueue(config) as queue:
        for limit in (1, 10, 20):
            queue.put_many(rows)
            batch = queue.plan(limit)
            batch.to_arrow()
            if limit == 10:
                queue.give_back(batch.id)
            else:
                queue.commit(batch.id)
        queue.snapshot()


if __name__ == "__main__":
    warm_up()
