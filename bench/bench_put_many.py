"""How fast does a batch enter the queue?

Three sides take the same batches, 100,000 text keys drawn by Zipf(0.99), each side in a
fresh process for every turn, garbage collection off, all keys known beforehand:

    dict loop   d[key] = (ts, payload), on Python objects freshly decoded from the batch
    put_many    the whole enqueue: newest row, first enqueue, rate estimate, line, staleness
    scatter     two float columns and the time into known slots with numpy: the floor

What a batch takes is timed batch by batch; decoding is not, nor is the first fifth.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from bench.apart import apart
from bench.compare import heading, options
from bench.figures import Figure, duration, median, show
from bench.population import population
from bench.workloads import zipf_batches, zipf_keys
from upstream import open_queue

KEYS = 100_000
# Rows per batch: batches in a turn, times the dict loop, share of the scatter
SIZES: dict[int, tuple[int, float, float]] = {
    100: (6_000, 2.0, 0.1),
    1_000: (1_500, 5.0, 0.13),
    10_000: (250, 7.0, 0.07),
    100_000: (40, 10.0, 0.08),
}
WARM = 5  # one of so many batches is not counted
SIDES = ("dict loop", "put_many", "scatter")


def main() -> None:
    small = options().small
    keys = 1_000 if small else KEYS
    heading(f"put_many: {keys:,} text keys, Zipf(0.99), two numbers and a short text")
    against_dict, against_scatter = [], []
    for batch_rows, (batches, dict_target, scatter_target) in SIZES.items():
        if small:
            batch_rows, batches = min(batch_rows, 2_000), 10
        seconds: dict[str, list[float]] = {side: [] for side in SIDES}
        for turn in range(1 if small else options().repeat):
            for place in range(len(SIDES)):
                side = SIDES[(place + turn) % len(SIDES)]
                seconds[side].append(apart(measure, side, batch_rows, batches, keys))
        row = {side: median(times) / batch_rows for side, times in seconds.items()}
        what = f"{batch_rows:>7,} rows"
        mine = duration(row["put_many"])
        against_dict.append(
            Figure(
                f"{what} (dict {duration(row['dict loop'])})",
                mine,
                row["dict loop"] / row["put_many"],
                None if small else dict_target,
            )
        )
        against_scatter.append(
            Figure(
                f"{what} (scatter {duration(row['scatter'])})",
                mine,
                row["scatter"] / row["put_many"],
                None if small else scatter_target,
            )
        )
    show("put_many against the dict loop, per row", against_dict, of="times faster")
    show("put_many against the bare scatter, per row", against_scatter, of="share of its speed")


def measure(side: str, batch_rows: int, batches: int, keys: int) -> float:
    """Seconds per batch of one side, in a process that does nothing else."""
    workload = zipf_batches(batch_rows * batches, keys=keys, batch_rows=batch_rows)
    gc.disable()
    if side == "dict loop":
        seconds = dict_loop(workload, keys)
    elif side == "put_many":
        seconds = put_many(workload, keys)
    else:
        seconds = scatter(workload, zipf_keys(batch_rows * batches, keys=keys), keys)
    counted = seconds[len(seconds) // WARM :]
    return sum(counted) / len(counted)


def dict_loop(workload: list[pa.RecordBatch], keys: int) -> list[float]:
    newest: dict[str, tuple[int, tuple[float, float, str]]] = {}

    def take(rows: pa.RecordBatch) -> float:
        symbols = rows["symbol"].to_pylist()
        times = rows["ts"].cast(pa.int64()).to_pylist()
        values = (rows[name].to_pylist() for name in ("bid", "ask", "note"))
        payloads = list(zip(*values, strict=True))
        start = time.perf_counter()
        for key, ts, payload in zip(symbols, times, payloads, strict=False):
            newest[key] = (ts, payload)
        return time.perf_counter() - start

    for rows in population(keys):
        take(rows)
    seconds = [take(rows) for rows in workload]
    assert len(newest) == keys, "every key was known beforehand"
    last = workload[-1]
    symbol, ts = last["symbol"][-1].as_py(), last["ts"].cast(pa.int64())[-1].as_py()
    assert newest[symbol][0] == ts, "the newest row is there"
    return seconds


def put_many(workload: list[pa.RecordBatch], keys: int) -> list[float]:
    with open_queue("memory:", key="symbol", time="ts") as queue:
        for rows in population(keys):
            queue.put_many(rows)
        seconds = [timed(queue.put_many, rows) for rows in workload]
        counts = queue.snapshot()
        assert counts.accepted == keys + sum(len(rows) for rows in workload)
        assert counts.waiting == keys
        assert counts.conflated == counts.accepted - keys
    return seconds


def scatter(workload: list[pa.RecordBatch], numbers: np.ndarray, keys: int) -> list[float]:
    held = np.zeros(keys, np.int64), np.zeros(keys), np.zeros(keys)
    seconds = []
    done = 0
    for rows in workload:
        slots = numbers[done : done + len(rows)]
        done += len(rows)
        arrived = rows["ts"].cast(pa.int64()).to_numpy(), *map(np.asarray, (rows["bid"], rows["ask"]))
        start = time.perf_counter()
        for column, values in zip(held, arrived, strict=False):
            column[slots] = values
        seconds.append(time.perf_counter() - start)
    last = workload[-1]
    assert int(last["symbol"][-1].as_py()[1:]) == numbers[-1], "the slots are the keys"
    assert held[0][numbers[-1]] == last["ts"].cast(pa.int64())[-1].as_py()
    return seconds


def timed(call: Callable[[pa.RecordBatch], object], rows: pa.RecordBatch) -> float:
    start = time.perf_counter()
    call(rows)
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
