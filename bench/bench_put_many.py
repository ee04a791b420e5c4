"""How fast does a batch enter the queue?

Three sides take the same batches, 100,000 text keys drawn by Zipf(0.99), each side in a
fresh process for every turn, garbage collection off, all keys known beforehand:

    dict loop   d[key] = (ts, payload), on Python objects freshly decoded from the batch
    put_many    the whole enqueue: newest row, first enqueue, rate estimate, line, staleness
    scatter     two float columns and the time into known slots with numpy: the floor

Taking the batches is timed, in groups of at least 10,000 rows; decoding them is not, nor is
the first fifth. Time is that of the processor, so that neighbours on the machine matter less.
"""

from __future__ import annotations

import gc
import time

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bench.apart import apart, here
from bench.compare import heading, options
from bench.figures import Figure, duration, median, show
from bench.population import population
from bench.workloads import zipf_batches, zipf_keys
from upstream import open_queue

KEYS = 100_000
# Rows per batch: batches in a turn, times the dict loop, share of the scatter
SIZES: dict[int, tuple[int, float, float]] = {
    100: (3_000, 2.0, 0.1),
    1_000: (600, 5.0, 0.13),
    10_000: (100, 7.0, 0.07),
    100_000: (15, 10.0, 0.08),
}
WARM = 5  # one of so many groups of batches is not counted
GROUP_ROWS = 10_000
SIDES = ("dict loop", "put_many", "scatter")


def main() -> None:
    small = options().small
    keys = 1_000 if small else KEYS
    run = here if small else apart
    heading(f"put_many: {keys:,} text keys, Zipf(0.99), two numbers and a short text")
    for batch_rows, (batches, dict_target, scatter_target) in SIZES.items():
        if small:
            batch_rows, batches = min(batch_rows, 2_000), 10
        seconds: dict[str, list[float]] = {side: [] for side in SIDES}
        for turn in range(1 if small else options().repeat):
            for place in range(len(SIDES)):
                side = SIDES[(place + turn) % len(SIDES)]
                seconds[side].append(run(measure, side, batch_rows, batches, keys))
        row = {side: median(turns) for side, turns in seconds.items()}
        mine = row["put_many"]
        show(
            f"put_many of {batch_rows:,} rows: {duration(mine)} per row",
            [
                Figure(
                    "against the dict loop",
                    duration(row["dict loop"]),
                    row["dict loop"] / mine,
                    None if small else dict_target,
                ),
                Figure(
                    "against the bare scatter",
                    duration(row["scatter"]),
                    row["scatter"] / mine,
                    None if small else scatter_target,
                ),
            ],
            of="put_many's speed by that of the other, which takes per row what is measured",
        )


def measure(side: str, batch_rows: int, batches: int, keys: int) -> float:
    """Seconds per row of one side, in a process that does nothing else."""
    workload = zipf_batches(batch_rows * batches, keys=keys, batch_rows=batch_rows)
    at_once = max(1, min(GROUP_ROWS // batch_rows, batches // WARM))
    groups = [workload[start : start + at_once] for start in range(0, batches, at_once)]
    gc.disable()
    if side == "dict loop":
        seconds = dict_loop(groups, keys)
    elif side == "put_many":
        seconds = put_many(groups, keys)
    else:
        seconds = scatter(groups, zipf_keys(batch_rows * batches, keys=keys), keys)
    gc.enable()
    first = len(groups) // WARM
    return sum(seconds[first:]) / sum(len(rows) for group in groups[first:] for rows in group)


def dict_loop(groups: list[list[pa.RecordBatch]], keys: int) -> list[float]:
    newest: dict[str, tuple[int, tuple[float, float, str]]] = {}

    def take(group: list[pa.RecordBatch]) -> float:
        decoded = [(ids(rows), times(rows).to_pylist(), payloads(rows)) for rows in group]
        start = time.process_time()
        for columns in decoded:
            for key, ts, payload in zip(*columns, strict=False):
                newest[key] = (ts, payload)
        return time.process_time() - start

    take(population(keys))
    seconds = [take(group) for group in groups]
    assert len(newest) == keys, "every key was known beforehand"
    last = groups[-1][-1]
    assert newest[ids(last)[-1]][0] == times(last)[-1].as_py(), "the newest row is there"
    return seconds


def put_many(groups: list[list[pa.RecordBatch]], keys: int) -> list[float]:
    def take(group: list[pa.RecordBatch]) -> float:
        start = time.process_time()
        for rows in group:
            queue.put_many(rows)
        return time.process_time() - start

    with open_queue("memory:", key="symbol", time="ts") as queue:
        take(population(keys))
        seconds = [take(group) for group in groups]
        counts = queue.snapshot()
        assert counts.accepted == keys + sum(len(rows) for group in groups for rows in group)
        assert counts.waiting == keys
        assert counts.conflated == counts.accepted - keys
    return seconds


def scatter(
    groups: list[list[pa.RecordBatch]], numbers: NDArray[np.int64], keys: int
) -> list[float]:
    held = np.zeros(keys, np.int64), np.zeros(keys), np.zeros(keys)
    seconds = []
    done = 0
    for group in groups:
        arrived = []
        for rows in group:
            values = (column.to_numpy() for column in (times(rows), rows["bid"], rows["ask"]))
            arrived.append((numbers[done : done + len(rows)], *values))
            done += len(rows)
        start = time.process_time()
        for slots, ts, bid, ask in arrived:
            held[0][slots] = ts
            held[1][slots] = bid
            held[2][slots] = ask
        seconds.append(time.process_time() - start)
    last = groups[-1][-1]
    assert int(ids(last)[-1][1:]) == numbers[-1], "the slots are the keys"
    assert held[0][numbers[-1]] == times(last)[-1].as_py(), "the newest row is there"
    return seconds


def ids(rows: pa.RecordBatch) -> list[str]:
    keys: list[str] = rows["symbol"].to_pylist()
    return keys


def times(rows: pa.RecordBatch) -> pa.Array:
    return rows["ts"].cast(pa.int64())


def payloads(rows: pa.RecordBatch) -> list[tuple[float, float, str]]:
    return list(zip(*(rows[name].to_pylist() for name in ("bid", "ask", "note")), strict=True))


if __name__ == "__main__":
    main()
