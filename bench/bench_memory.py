"""How many bytes does a key take, does the queue know it, and does it give them back?

A fresh process fills a queue with one quote per key: a text key, a time, two numbers and a
short text. *Accounted* is what counts against the memory limit, *real* is the growth of the
process's resident memory. Then everything is handed out and committed: rows go, what is
known of the keys stays.
"""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from bench.apart import apart
from bench.compare import heading, options
from bench.figures import Figure, median, show
from bench.population import population
from upstream import open_queue

BYTES_PER_KEY = 200.0  # at most
TOLERANCE = 1.1  # accounted against real, either way


class Filled(NamedTuple):
    """Bytes that a queue took: full, and after everything was handed out."""

    accounted: int
    real: int
    accounted_empty: int
    real_empty: int


def main() -> None:
    small = options().small
    heading("Memory of a queue: bytes per key")
    for keys in (20_000,) if small else (100_000, 1_000_000):
        turns = [apart(fill, keys) for _ in range(1 if small else options().repeat)]
        full = Filled(*(int(median(column)) for column in zip(*turns, strict=True)))
        large = keys >= 1_000_000
        off = full.real / full.accounted
        show(
            f"{keys:,} keys, against {BYTES_PER_KEY:.0f} bytes per key",
            [
                Figure(
                    name,
                    f"{total / keys:.1f} bytes/key",
                    total / keys / BYTES_PER_KEY,
                    None if small or name != "accounted" else 1.0,
                    at_most=True,
                )
                for name, total in zip(
                    ("accounted", "real", "accounted, all handed out", "real, all handed out"),
                    full,
                    strict=True,
                )
            ],
            of=f"share of {BYTES_PER_KEY:.0f} bytes",
        )
        show(
            f"{keys:,} keys: accounted against real",
            [
                Figure(
                    "the larger over the smaller",
                    f"{full.real - full.accounted:+,} bytes",
                    max(off, 1 / off),
                    TOLERANCE if large else None,
                    at_most=True,
                ),
                Figure(
                    "given back, real over accounted",
                    f"{full.real - full.real_empty:,} bytes",
                    (full.real - full.real_empty) / max(full.accounted - full.accounted_empty, 1),
                ),
            ],
            of="1 is exact",
        )


def fill(keys: int) -> Filled:
    """Fill a queue and empty it, with an eye on the process."""
    with open_queue("memory:", key="symbol", time="ts", memory_limit="4GiB") as warm:
        warm.put_many(population(1_000)[0])  # loads the kernels
        warm.commit(warm.plan().id)
    workload = population(keys, batch_rows=10_000)
    before = resident()
    with open_queue("memory:", key="symbol", time="ts", memory_limit="4GiB") as queue:
        for rows in workload:
            queue.put_many(rows)
        assert queue.waiting == keys
        accounted, real = queue.memory_bytes, resident() - before
        while batch := queue.plan(10_000):
            queue.commit(batch.id)
        del batch
        assert queue.snapshot().handed_out == keys
        return Filled(accounted, real, queue.memory_bytes, resident() - before)


def resident() -> int:
    """Bytes of the process in memory, as the system sees it."""
    gc.collect()
    pa.default_memory_pool().release_unused()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main()
