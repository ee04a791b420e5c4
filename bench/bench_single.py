"""What does one update cost, and one hand-out, when nobody batches?

The plain alternative is a dict of the newest row per key and a heap of keys by their first
enqueue, without rate, weights, staleness or batches that survive. Time is that of the
processor, so that neighbours on the machine matter less.
"""

from __future__ import annotations

import asyncio
import gc
import heapq
import time
from collections.abc import Callable, Iterable
from typing import Any

from bench.compare import heading, options
from bench.figures import Figure, duration, median, show
from bench.workloads import zipf_batches
from upstream import AsyncQueue, open_async_queue, open_queue
from upstream.queue.base import BaseQueue

KEYS = 10_000
ROWS = 5_000
SMALL_ROWS = 200


class PlainQueue:
    """A dict and a heap."""

    def __init__(self) -> None:
        self.newest: dict[str, dict[str, Any]] = {}
        self.line: list[tuple[float, str]] = []

    def put(self, update: dict[str, Any]) -> None:
        key = update["symbol"]
        if key not in self.newest:
            heapq.heappush(self.line, (time.time(), key))
        self.newest[key] = update

    def get(self) -> dict[str, Any]:
        return self.newest.pop(heapq.heappop(self.line)[1])


def main() -> None:
    rows = SMALL_ROWS if options().small else ROWS
    (batch,) = zipf_batches(rows, keys=KEYS, batch_rows=rows)
    updates = batch.to_pylist()
    ones = [batch.slice(row, 1) for row in range(rows)]
    distinct = len({update["symbol"] for update in updates})
    heading(f"One at a time: {rows:,} updates of {distinct:,} keys, then all handed out")
    single(updates[:9], 9 - repeats(updates[:9]), False, [], [])  # loads the kernels
    puts: dict[str, list[float]] = {"put": [], "put_many of 1 row": [], "async put": [], "dict": []}
    gets: dict[str, list[float]] = {"plan(1), commit": [], "async get, done": [], "dict": []}
    gets["plan(1), to_pylist, commit"] = []
    for _ in range(1 if options().small else options().repeat):
        plain(updates, distinct, puts["dict"], gets["dict"])
        single(updates, distinct, False, puts["put"], gets["plan(1), commit"])
        single(ones, distinct, True, puts["put_many of 1 row"], gets["plan(1), to_pylist, commit"])
        asyncio.run(asynchronous(updates, distinct, puts["async put"], gets["async get, done"]))
    put = {name: median(seconds) / rows for name, seconds in puts.items()}
    get = {name: median(seconds) / distinct for name, seconds in gets.items()}
    show(
        f"one put against dict and heap ({duration(put['dict'])})",
        [
            Figure(name, duration(seconds), put["dict"] / seconds)
            for name, seconds in put.items()
            if name != "dict"
        ],
        of="times faster than dict and heap",
    )
    show(
        f"one hand-out against dict and heap ({duration(get['dict'])})",
        [
            Figure(name, duration(seconds), get["dict"] / seconds)
            for name, seconds in get.items()
            if name != "dict"
        ],
        of="times faster than dict and heap",
    )
    show(
        "one put against put_many of one row",
        [Figure("put", duration(put["put"]), put["put_many of 1 row"] / put["put"])],
        of="times faster than put_many of one row",
    )


def repeats(updates: list[dict[str, Any]]) -> int:
    return len(updates) - len({update["symbol"] for update in updates})


def plain(
    updates: list[dict[str, Any]], distinct: int, puts: list[float], gets: list[float]
) -> None:
    queue = PlainQueue()
    puts.append(timed(queue.put, updates))
    assert len(queue.line) == distinct
    gets.append(timed(lambda _: queue.get(), range(distinct)))
    assert not queue.newest


def single(
    updates: list[Any], distinct: int, arrow: bool, puts: list[float], gets: list[float]
) -> None:
    with open_queue("memory:", key="symbol", time="ts") as queue:
        put: Callable[[Any], object] = queue.put_many if arrow else queue.put
        put(updates[0])
        puts.append(timed(put, updates))
        assert queue.waiting == distinct
        gets.append(timed(lambda _: take(queue, arrow), range(distinct)))
        assert queue.snapshot().handed_out == distinct
        assert queue.waiting == 0


def take(queue: BaseQueue, read: bool) -> None:
    batch = queue.plan(1)
    if read:
        batch.to_pylist()
    queue.commit(batch.id)


async def asynchronous(
    updates: list[dict[str, Any]], distinct: int, puts: list[float], gets: list[float]
) -> None:
    async with open_async_queue("memory:", key="symbol", time="ts") as queue:
        await queue.put(updates[0])
        gc.collect()
        gc.disable()
        start = time.process_time()
        for update in updates:
            await queue.put(update)
        puts.append(time.process_time() - start)
        start = time.process_time()
        for _ in range(distinct):
            await consume(queue)
        gets.append(time.process_time() - start)
        gc.enable()
        assert queue.snapshot().handed_out == distinct


async def consume(queue: AsyncQueue) -> None:
    async with await queue.get():
        pass


def timed(call: Callable[[Any], object], work: Iterable[Any]) -> float:
    gc.collect()
    gc.disable()
    start = time.process_time()
    for item in work:
        call(item)
    took = time.process_time() - start
    gc.enable()
    return took


if __name__ == "__main__":
    main()
