"""What does durability cost, and how long does recovery take?

Throughput: the same batches into a queue in memory, a queue with a journal that syncs each
batch, and LMDB with one transaction per batch (the newest row per key, encoded beforehand).
All keys are known beforehand. `bench_journal_format` compares the bare formats.

Recovery: opening a directory again, after one quote per key and ten more per key by Zipf,
from the log alone and from a snapshot. It is wall-clock time: waiting for the disk counts.
"""

from __future__ import annotations

import gc
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from bench.bench_journal_format import folder, lmdb_side
from bench.compare import Side, compare, heading, options
from bench.figures import Figure, duration, median, show
from bench.population import population
from bench.workloads import zipf_batches
from upstream import open_queue
from upstream.queue.base import BaseQueue

KEYS = 100_000
# Rows per batch: batches, share of memory's speed, times LMDB
SIZES: dict[int, tuple[int, float | None, float | None]] = {
    1_000: (300, None, None),
    10_000: (150, 0.4, 8.0),
    100_000: (20, None, None),
}
UPDATES_PER_KEY = 10
NEVER = "1TiB"  # compacting


def main() -> None:
    small = options().small
    heading("The journal: throughput and recovery")
    throughput(small)
    recovery(small)


def throughput(small: bool) -> None:
    keys = 1_000 if small else KEYS
    filled = population(keys)
    figures = []
    for batch_rows, (count, share_target, times_target) in SIZES.items():
        if small:
            batch_rows, count = min(batch_rows, 2_000), 3
        batches = zipf_batches(batch_rows * count, keys=keys, batch_rows=batch_rows)
        lmdb, journal, memory = compare(
            f"{count} batches of {batch_rows:,} rows",
            [
                lmdb_side(batches),
                queue_side("queue, journal (sync)", batches, filled, journal_queue),
                queue_side("queue, memory", batches, filled, memory_queue),
            ],
            repeat=1 if small else None,
        )
        rows = f"{batch_rows:>7,} rows"
        per_batch = duration(journal.seconds / count)
        figures += [
            Figure(
                f"{rows}, share of memory",
                per_batch,
                memory.seconds / journal.seconds,
                None if small else share_target,
            ),
            Figure(
                f"{rows}, times LMDB",
                per_batch,
                lmdb.seconds / journal.seconds,
                None if small else times_target,
            ),
        ]
    show("A durable batch", figures, of="the journal's speed by that of the other")


def queue_side(
    name: str,
    batches: list[pa.RecordBatch],
    filled: list[pa.RecordBatch],
    make: Callable[[Path], BaseQueue],
) -> Side:
    def setup() -> tuple[Path, BaseQueue]:
        directory = folder()
        queue = make(directory)
        for rows in filled:
            queue.put_many(rows)
        return directory, queue

    def run(state: tuple[Path, BaseQueue]) -> int:
        return sum(state[1].put_many(rows).accepted for rows in batches)

    def teardown(state: tuple[Path, BaseQueue]) -> None:
        state[1].close()
        shutil.rmtree(state[0])

    return Side(name, run, setup, teardown)


def memory_queue(directory: Path) -> BaseQueue:
    return open_queue("memory:", key="symbol", time="ts")


def journal_queue(directory: Path, **extra: Any) -> BaseQueue:
    return open_queue(f"journal:{directory}", key="symbol", time="ts", **extra)


def recovery(small: bool) -> None:
    sizes = (200, 1_000) if small else (1_000, 10_000, 100_000)
    for name, write in (("the log", write_log), ("a snapshot", write_snapshot)):
        directories = {keys: folder() for keys in sizes}
        for keys, directory in directories.items():
            write(directory, keys)
        seconds: dict[int, list[float]] = {keys: [] for keys in sizes}
        for _ in range(1 if small else options().repeat):
            for keys, directory in directories.items():
                seconds[keys].append(reopen(directory, keys))
        for directory in directories.values():
            shutil.rmtree(directory)
        medians = {keys: median(turns) for keys, turns in seconds.items()}
        first = medians[sizes[0]] / sizes[0]
        show(
            f"recovery from {name}",
            [
                Figure(f"{keys:>7,} keys", f"{duration(took)}", took / keys / first)
                for keys, took in medians.items()
            ],
            of=f"seconds per key, by those of {sizes[0]:,} keys ({duration(first)})",
        )


def write_log(directory: Path, keys: int) -> None:
    with journal_queue(directory, compact_after_bytes=NEVER) as queue:
        fill(queue, keys)
    assert not list(directory.glob("snapshot-*.bin")), "the log was compacted"


def write_snapshot(directory: Path, keys: int) -> None:
    write_log(directory, keys)
    (older,) = population(keys)[:1]  # logged and superseded, until the log is worth compacting
    while not list(directory.glob("snapshot-*.bin")):
        with journal_queue(directory, compact_after_bytes=1) as queue:
            queue.put_many(older)
            queue.put_many(older.slice(0, 1))  # compacts before it is logged, if that is due


def fill(queue: BaseQueue, keys: int) -> None:
    for rows in population(keys, batch_rows=10_000):
        queue.put_many(rows)
    for rows in zipf_batches(UPDATES_PER_KEY * keys, keys=keys, batch_rows=10_000):
        queue.put_many(rows)


def reopen(directory: Path, keys: int) -> float:
    gc.collect()
    start = time.perf_counter()
    queue = journal_queue(directory, compact_after_bytes=NEVER)
    took = time.perf_counter() - start
    assert queue.waiting == keys, "all keys are back"
    assert queue.snapshot().accepted >= (1 + UPDATES_PER_KEY) * keys
    queue.close()
    return took


if __name__ == "__main__":
    main()
