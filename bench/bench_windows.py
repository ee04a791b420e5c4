"""What does an update cost when windows are the units, and does overlap make it dearer?

The same batches enter a queue of single updates and queues of windows by count, from
tumbling ones to those in which each update belongs to w windows. An update is stored once,
whatever the overlap, so the cost must not grow with w/s. Keys are few, so that windows close
all the time; every tenth batch 10 windows are handed out. Time is that of the processor.
"""

from __future__ import annotations

import gc
import time
from typing import Any

import pyarrow as pa

from bench.compare import heading, options
from bench.figures import Figure, duration, median, show
from bench.workloads import zipf_batches
from upstream import open_queue

KEYS = 100
BATCH_ROWS = 10_000
BATCHES = 30
SIZES = (10, 100, 1_000)
MOST_GROWTH = 2.0  # of the cost, from tumbling windows to a slide of 1


def main() -> None:
    small = options().small
    sizes = (10,) if small else SIZES
    rows = 500 if small else BATCH_ROWS
    batches = zipf_batches(rows * BATCHES, keys=KEYS, batch_rows=rows)
    heading(f"Windows: {len(batches)} batches of {rows:,} rows, {KEYS} keys, Zipf(0.99)")
    for buffer in ("lazy", "eager"):
        for size in sizes:
            compare(buffer, size, batches, small=small)


def compare(buffer: str, size: int, batches: list[pa.RecordBatch], *, small: bool) -> None:
    slides = sorted({1, max(size // 10, 1), size // 2, size}, reverse=True)
    kinds: dict[str, dict[str, Any] | None] = {"single updates": None}
    kinds |= {
        f"slide {slide}": {"size": size, "slide": slide, "buffer": buffer} for slide in slides
    }
    seconds: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(1 if small else options().repeat):
        for name, window in kinds.items():
            seconds[name].append(take(batches, window))
    cost = {name: median(turns) for name, turns in seconds.items()}
    tumbling = cost[f"slide {size}"]
    plain = cost.pop("single updates")
    show(
        f"{buffer} windows of {size:,}: cost per update, of a single one {duration(plain)}",
        [Figure(f"{name}, by single", duration(each), each / plain) for name, each in cost.items()]
        + [
            Figure(
                f"{name}, by slide {size}",
                duration(each),
                each / tumbling,
                None if small else MOST_GROWTH,
                at_most=True,
            )
            for name, each in cost.items()
        ],
        of="cost by that of the other",
    )


def take(batches: list[pa.RecordBatch], window: dict[str, Any] | None) -> float:
    """Seconds per update."""
    more: dict[str, Any] = {} if window is None else {"window": window}
    with open_queue("memory:", key="symbol", **more) as queue:
        queue.put_many(batches[0])  # loads the kernels
        gc.disable()
        spent = 0.0
        for number, rows in enumerate(batches[1:]):
            start = time.process_time()
            queue.put_many(rows)
            spent += time.process_time() - start
            if number % 10 == 0:
                queue.commit(queue.plan(10).id)
        gc.enable()
        assert queue.snapshot().waiting > 0
    return spent / sum(len(rows) for rows in batches[1:])


if __name__ == "__main__":
    main()
