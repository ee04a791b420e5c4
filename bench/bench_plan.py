"""What does it cost to choose and hand out, and does it grow with the number of keys?

A steady state under overload: each round hands out 1,000 keys by the whittle index, then
outside the timing commits them, lets them update again, and the waiting ones too. Time is
that of the processor.
"""

from __future__ import annotations

import gc
import heapq
import time
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from bench.compare import heading, options
from bench.figures import Figure, duration, median, show
from bench.population import population, requoted
from bench.python_queue import PythonQueue
from bench.workloads import START_US, zipf_batches
from upstream import open_queue
from upstream.queue.base import BaseQueue

LIMIT = 1_000
COST_SECONDS = 1e-4  # of one result
CYCLES = 10  # of rows in and keys out, in a turn
UPDATES_PER_KEY = 3  # before the first round, so that rates are known


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Line:
    """A queue in which a given number of keys wait, round after round."""

    def __init__(self, keys: int, limit: int) -> None:
        self.keys = keys
        self.limit = limit
        self.clock = Clock()
        self.queue: BaseQueue = open_queue(
            "memory:", key="symbol", time="ts", clock=self.clock, cost_seconds=COST_SECONDS
        )
        for rows in population(keys):
            self.queue.put_many(rows)
        batch_rows = max(keys // 50, 20)
        updates = zipf_batches(UPDATES_PER_KEY * keys, keys=keys, batch_rows=batch_rows)
        for number, batch in enumerate(updates):
            self.clock.now = 0.1 * (number + 1)
            self.queue.put_many(batch)
        # Enough for all rounds, in turns: updates of keys of which most wait.
        self.updates = zipf_batches(20 * limit, keys=keys, batch_rows=limit, seed=5)
        self.time_us = START_US + 10**9
        self.rounds = 0
        self.round()  # the first is served in order of arrival: nobody knows of an overload yet

    def round(self) -> Round:
        """Hand out once; only that is timed."""
        self.clock.now += self.limit * COST_SECONDS
        start = time.process_time()
        batch = self.queue.plan(self.limit)
        planned = time.process_time()
        rows = batch.to_arrow()
        done = time.process_time()
        assert len(rows) == min(self.limit, self.keys)
        self.queue.commit(batch.id)
        assert self.queue.schema is not None
        self.time_us += 1
        self.queue.put_many(requoted(rows, self.queue.schema, self.time_us))
        self.time_us += 1
        update = self.updates[self.rounds % len(self.updates)]
        self.queue.put_many(requoted(update, self.queue.schema, self.time_us))
        assert self.queue.waiting == self.keys
        self.rounds += 1
        return Round(planned - start, done - start)

    def turn(self, rounds: int) -> Round:
        """The medians of several rounds."""
        gc.collect()
        gc.disable()
        took = [self.round() for _ in range(rounds)]
        gc.enable()
        if self.keys > self.limit:
            assert self.queue.snapshot().load_factor > 1.05, "there is no overload"
        return Round(median([r.plan for r in took]), median([r.with_arrow for r in took]))


class Round(NamedTuple):
    """Seconds that one hand-out took."""

    plan: float
    with_arrow: float


def main() -> None:
    small = options().small
    limit = 50 if small else LIMIT
    sizes = (50, 500, 2_000) if small else (1_000, 10_000, 100_000, 1_000_000)
    turns, rounds = (1, 5) if small else (options().repeat, 31)
    heading(f"plan({limit:,}) of keys that wait, policy whittle with rate classes")
    growth(sizes, limit, turns, rounds, None if small else 3.0)
    scored = 2_000 if small else 100_000
    nlargest(scored, limit, turns, None if small else 100.0)
    cycle(2_000 if small else 100_000, limit, turns, None if small else 12.0)


def growth(
    sizes: tuple[int, ...], limit: int, turns: int, rounds: int, target: float | None
) -> None:
    lines = [Line(keys, limit) for keys in sizes]
    took: list[list[Round]] = [[] for _ in lines]
    for turn in range(turns):
        for place in range(len(lines)):
            number = (place + turn) % len(lines)
            took[number].append(lines[number].turn(rounds))
    for line in lines:
        line.queue.close()
    for field, name in enumerate(("plan", "plan and to_arrow")):
        medians = [median([one[field] for one in turns_taken]) for turns_taken in took]
        figures = [
            Figure(
                f"{keys:>9,} waiting",
                duration(seconds),
                seconds / medians[0],
                target if keys == sizes[-1] else None,
                at_most=True,
            )
            for keys, seconds in zip(sizes, medians, strict=True)
        ]
        show(f"{name}({limit:,}): growth with the number of keys", figures, of="times the first")


def nlargest(keys: int, limit: int, turns: int, target: float | None) -> None:
    """The same choice with heapq, from the same scores."""
    line = Line(keys, limit)
    mine: list[Round] = []
    computing, given = [], []
    random = np.random.default_rng(9)
    gaps: list[float] = random.lognormal(0.0, 2.0, keys).tolist()
    since: list[float] = random.uniform(0.0, 5.0, keys).tolist()
    names = [f"K{number:06d}" for number in range(keys)]
    waiting = dict(zip(names, zip(since, gaps, strict=True), strict=True))
    now = 5.0

    def score(name: str) -> float:
        first, gap = waiting[name]
        v = now - first + COST_SECONDS / 2
        return v * (v / 2 + gap) / COST_SECONDS

    scores = {name: score(name) for name in waiting}
    best = set(sorted(waiting, key=score, reverse=True)[:limit])
    for _ in range(turns):
        mine.append(line.turn(11))
        start = time.process_time()
        chosen = heapq.nlargest(limit, waiting, key=score)
        computing.append(time.process_time() - start)
        assert set(chosen) == best
        start = time.process_time()
        chosen = heapq.nlargest(limit, scores, key=scores.__getitem__)
        given.append(time.process_time() - start)
        assert set(chosen) == best
    line.queue.close()
    plan = median([one.plan for one in mine])
    with_arrow = median([one.with_arrow for one in mine])
    computed, looked_up = median(computing), median(given)
    show(
        f"plan({limit:,}) of {keys:,} against heapq.nlargest, which takes {duration(computed)}, "
        f"with scores given {duration(looked_up)}",
        [
            Figure("plan, scores computed", duration(plan), computed / plan, target),
            Figure(
                "plan and to_arrow, scores computed", duration(with_arrow), computed / with_arrow
            ),
            Figure("plan, scores given", duration(plan), looked_up / plan),
        ],
        of="times faster than heapq",
    )


def cycle(keys: int, limit: int, turns: int, target: float | None) -> None:
    """Rows in, keys out, again and again, against the queue in plain Python.

    The sides take turns after every cycle, so that each finds the caches full of the other's
    data, and after ten, so that it finds its own.
    """
    figures = []
    for at_once, name in ((CYCLES, "ten cycles at a time"), (1, "one cycle at a time")):
        mine, plain, same = cycles(keys, limit, turns, at_once)
        what = f"{name} (Python {duration(plain)}, {same:.1%} of the choices are the same)"
        figures.append(Figure(what, duration(mine), plain / mine, target))
    show(
        f"mixed cycle of {keys:,} keys, {10 * limit:,} in and {limit:,} out: put_many, plan, "
        f"to_arrow, commit",
        figures,
        of="times faster than plain Python",
    )


def cycles(keys: int, limit: int, turns: int, at_once: int) -> tuple[float, float, float]:
    """Seconds per cycle of the queue and of plain Python, and the share of equal choices."""
    in_rows = 10 * limit
    clock = Clock()
    queue = open_queue("memory:", key="symbol", time="ts", clock=clock, cost_seconds=COST_SECONDS)
    python = PythonQueue(COST_SECONDS, started=0.0)
    for rows in population(keys):
        queue.put_many(rows)
        python.put_many(decoded(rows), 0.0)
    workload = zipf_batches((turns + 1) * CYCLES * in_rows, keys=keys, batch_rows=in_rows)
    mine: list[float] = []
    plain: list[float] = []
    chosen: list[list[str]] = []
    expected: list[list[str]] = []

    def run_mine(start: int) -> None:
        for number, rows in enumerate(workload[start : start + at_once], start):
            clock.now = (number + 1) * limit * COST_SECONDS
            began = time.process_time()
            queue.put_many(rows)
            batch = queue.plan(limit)
            result = batch.to_arrow()
            queue.commit(batch.id)
            mine.append(time.process_time() - began)
            chosen.append(result["symbol"].to_pylist())

    def run_plain(start: int) -> None:
        for number, rows in enumerate(workload[start : start + at_once], start):
            now = (number + 1) * limit * COST_SECONDS
            tuples = decoded(rows)
            began = time.process_time()
            python.put_many(tuples, now)
            taken = python.plan(limit, now)
            plain.append(time.process_time() - began)
            expected.append([row[0] for row, _, _ in taken])

    for turn, start in enumerate(range(0, len(workload), at_once)):
        gc.collect()
        gc.disable()
        for run in (run_mine, run_plain) if turn % 2 else (run_plain, run_mine):
            run(start)
        gc.enable()
    counts = queue.snapshot()
    queue.close()
    assert counts.accepted == python.accepted == keys + len(workload) * in_rows
    assert counts.handed_out == python.handed_out == len(workload) * limit
    for side in (counts, python):
        assert side.accepted == side.handed_out + side.conflated + side.waiting
    # The first ten, in which both fill up, do not count.
    starts = range(CYCLES, len(workload), CYCLES)
    equal = sum(
        len(set(one) & set(other))
        for one, other in zip(chosen[CYCLES:], expected[CYCLES:], strict=True)
    )
    return (
        median([sum(mine[at : at + CYCLES]) / CYCLES for at in starts]),
        median([sum(plain[at : at + CYCLES]) / CYCLES for at in starts]),
        equal / (limit * (len(workload) - CYCLES)),
    )


def decoded(rows: pa.RecordBatch) -> list[tuple[str, int, Any]]:
    times = rows["ts"].cast(pa.int64()).to_pylist()
    values = zip(*(rows[name].to_pylist() for name in ("bid", "ask", "note")), strict=True)
    return list(zip(rows["symbol"].to_pylist(), times, values, strict=True))


if __name__ == "__main__":
    main()
