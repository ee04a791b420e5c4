"""The queue for asyncio programs: `await queue.get()`.

    async with open_async_queue("memory:", key="symbol", time="ts") as queue:
        await queue.put({"symbol": "A", "ts": 1, "price": 10.0})
        async for item in queue:
            await show(item.row)

The queue inside is an ordinary one. Threads may put into it beside the event loop, and
wake those who wait here. Consumers are served in the order in which they asked.

Calls that may take long leave the event loop to threads of the queue's own: all that
write to a journal, puts of large batches, and puts that could have to wait for room
(`on_full = "block"`). Small calls on a queue in memory run at once, because a thread
would cost more than they do. Two puts that nobody orders may therefore be taken in
either order: await the first before the second where it matters.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from upstream.config import Config, QueueConfig
from upstream.errors import InputError, QueueClosed
from upstream.model import Batch, Receipt, Snapshot, Update
from upstream.opening import open_queue
from upstream.queue.base import BaseQueue
from upstream.queue.intake import row_of
from upstream.queue.log import NoLog

__all__ = ["AsyncQueue", "Item", "open_async_queue"]

P = ParamSpec("P")
T = TypeVar("T")

# What the event loop itself puts: about a millisecond's work.
SMALL_ROWS = 10_000
SMALL_BYTES = 2**20
# Below these a put finds room even if all tables of the queue double on its way.
ROOMY_LIMIT_BYTES = 16 * SMALL_BYTES
ROOMY_SHARE = 0.25
PUT_THREADS = 8  # puts into a journal share a write to the disk


def open_async_queue(
    url: str | None = None,
    *,
    config: Config | QueueConfig | None = None,
    clock: Callable[[], float] = time.time,
    **options: Any,
) -> AsyncQueue:
    """Open a queue for asyncio; everything is as in `open_queue`.

    What a journal had handed out when its last user ended, and nobody committed, waits
    again; results that were delivered are committed. To read those batches as they were,
    use `AsyncQueue(open_queue(...))` and their ids from `planned()`.

    >>> async def main() -> None:
    ...     async with open_async_queue("memory:", key="symbol", time="ts") as queue:
    ...         await queue.put({"symbol": "A", "ts": 1, "price": 10.0})
    ...         await queue.put({"symbol": "A", "ts": 2, "price": 10.5})
    ...         async with await queue.get() as item:
    ...             print(item.row, item.updates)
    >>> asyncio.run(main())
    {'symbol': 'A', 'ts': 2, 'price': 10.5} 2
    """
    queue = open_queue(url, config=config, clock=clock, **options)
    for batch_id in queue.planned():
        try:
            queue.give_back(batch_id)
        except InputError:  # it was delivered
            queue.commit(batch_id)
    return AsyncQueue(queue)


class AsyncQueue:
    """Any queue of this process, for the tasks of one event loop."""

    def __init__(self, queue: BaseQueue) -> None:
        self.queue = queue
        self._durable = not isinstance(queue.log, NoLog)
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._turn = asyncio.Lock()  # whoever holds it is the next to be served
        self._arrived = asyncio.Event()
        self._wanted = False  # somebody waits: an arrival must say so
        # Puts may wait for room, which planning and committing make: they need threads apart.
        self._putting = ThreadPoolExecutor(PUT_THREADS, "upstream-put")
        self._serving = ThreadPoolExecutor(1, "upstream-serve")
        queue.on_waiting(self._on_waiting)

    # ---- arrive

    async def put(self, update: Mapping[str, Any] | Update) -> Receipt:
        """Take one update."""
        return await self.put_many(row_of(update, self.queue.config, self.queue.schema))

    async def put_many(
        self, updates: Any, arrived: Sequence[float] | NDArray[np.float64] | None = None
    ) -> Receipt:
        """Take the rows of an Arrow batch or table, in their order.

        Once begun, a put goes on in its thread even if the task that awaits it is cancelled.
        """
        if self._closed or self._quick(updates):
            return self.queue.put_many(updates, arrived)
        return await self._in(self._putting, self.queue.put_many, updates, arrived)

    def _quick(self, updates: Any) -> bool:
        """Whether a put is little work, and certain to find room or not to wait for it."""
        if self._durable or not isinstance(updates, pa.RecordBatch | pa.Table):
            return False
        if updates.num_rows > SMALL_ROWS or updates.nbytes > SMALL_BYTES:
            return False
        config = self.queue.config
        return config.on_full != "block" or (
            config.memory_limit >= ROOMY_LIMIT_BYTES
            and self.queue.memory_bytes <= ROOMY_SHARE * config.memory_limit
        )

    # ---- schedule

    async def get(self) -> Item:
        """The next unit, as soon as there is one; a cancelled call takes nothing."""
        return Item(self, await self.get_batch(1))

    async def get_batch(self, limit: int | None = None) -> Batch:
        """Up to `limit` units, as soon as there is one; settle it by `commit` or `give_back`."""
        self._loop = asyncio.get_running_loop()
        async with self._turn:
            while True:
                self._arrived.clear()
                self._wanted = True  # before looking, so that no arrival goes unnoticed
                batch = await self._plan(limit)
                if batch:
                    self._wanted = False
                    return batch
                await self._arrived.wait()

    async def _plan(self, limit: int | None) -> Batch:
        if not self._durable or self._closed:
            return self.queue.plan(limit)
        loop = asyncio.get_running_loop()
        planning = loop.run_in_executor(self._serving, self.queue.plan, limit)
        try:
            return await asyncio.shield(planning)
        except asyncio.CancelledError:
            planning.add_done_callback(self._nobody_wants)
            raise

    def _nobody_wants(self, planning: asyncio.Future[Batch]) -> None:
        """The task that asked was cancelled while its batch was on the way."""
        if planning.cancelled() or planning.exception() or self._closed:
            return
        self._serving.submit(self._give_back_quietly, planning.result().id)

    def _on_waiting(self) -> None:
        """Called by the queue in the thread of whoever put."""
        if self._wanted and self._loop is not None:
            self._wanted = False
            with contextlib.suppress(RuntimeError):  # the loop has ended, and its tasks with it
                self._loop.call_soon_threadsafe(self._arrived.set)

    def __aiter__(self) -> AsyncIterator[Item]:
        """Unit after unit until the queue is closed.

        Asking for the next item says that the one before is done. An item that is left by
        `break` or an error is given back, unless `done()` was called on it. Where the queue
        is closed under an item, asking for the next raises QueueClosed: it is not committed.
        """
        return self._items()

    async def _items(self) -> AsyncIterator[Item]:
        while True:
            try:
                item = await self.get()
            except QueueClosed:
                return
            async with item:
                yield item

    # ---- deliver

    async def delivered(self, batch_id: int, at: float | None = None) -> None:
        """The results of a batch are out, now or since `at`; only the first time counts."""
        await self._settle(self.queue.delivered, batch_id, at)

    async def commit(self, batch_id: int) -> None:
        """A batch may be forgotten; it counts as delivered now if nobody said so."""
        await self._settle(self.queue.commit, batch_id)

    async def give_back(self, batch_id: int) -> None:
        """A batch is not going to be processed: its units wait again, unless newer ones do."""
        await self._settle(self.queue.give_back, batch_id)

    async def _settle(self, call: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
        if not self._durable or self._closed:
            call(*args, **kwargs)
        else:
            await self._in(self._serving, call, *args, **kwargs)

    def _give_back_quietly(self, batch_id: int) -> None:
        with contextlib.suppress(QueueClosed):  # what a journal handed out waits there
            self.queue.give_back(batch_id)

    # ---- watch and close

    def snapshot(self) -> Snapshot:
        """Counts, memory, load and staleness at this instant."""
        return self.queue.snapshot()

    async def aclose(self) -> None:
        """Close the queue; whoever waits, to get or for room, gets a QueueClosed."""
        if not self._closed:
            closing = asyncio.get_running_loop().run_in_executor(self._serving, self.queue.close)
            self._closed = True
            self._serving.shutdown(wait=False)
            self._putting.shutdown(wait=False)
            await asyncio.shield(closing)
        self._arrived.set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def _in(
        self, threads: Executor, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(threads, lambda: call(*args, **kwargs))


class Item:
    """One unit that was handed out, to be settled by `done` or `give_back`.

    As a context manager it is done at the end of the block, or given back if an error or a
    cancellation ends it; `async with` keeps the writing of a journal off the event loop.
    """

    __slots__ = ("_queue", "_settled", "batch", "row", "updates", "waiting_since")

    def __init__(self, queue: AsyncQueue, batch: Batch) -> None:
        row = batch.to_pylist()[0]
        self.updates: int = row.pop("_updates")
        """How many updates the unit stands for."""
        del row["_waiting_since"]
        self.row: Mapping[str, Any] = row
        """The columns of the stream."""
        self.waiting_since = float(batch.since[0])
        """When the key began to wait, in seconds of the queue's clock."""
        self.batch = batch
        """The batch of one unit that the item is."""
        self._queue = queue
        self._settled = False

    def __repr__(self) -> str:
        return f"<Item {self.row!r}, {self.updates} updates>"

    def done(self) -> None:
        """The result is out, and the unit may be forgotten."""
        if not self._settled:
            self._queue.queue.commit(self.batch.id)
            self._settled = True

    def give_back(self) -> None:
        """The unit was not processed: it waits again, unless a newer one does."""
        if not self._settled:
            self._settled = True
            self._queue._give_back_quietly(self.batch.id)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.done()
        else:
            self.give_back()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._queue._settle(self.__exit__, kind, error, trace)
