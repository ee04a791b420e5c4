from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pytest

from upstream import AsyncQueue, open_async_queue, open_queue
from upstream.aio import Item
from upstream.errors import InputError, QueueClosed, UnknownBatch

T = TypeVar("T")


def update(key: str, ts: int) -> dict[str, Any]:
    return {"key": key, "ts": ts}


def table(keys: list[str], *, first: int = 0) -> pa.Table:
    return pa.table({"key": keys, "ts": range(first, first + len(keys))})


def run(test: Callable[[], Awaitable[T]]) -> T:
    """A test that hangs is a test that fails."""

    async def limited() -> T:
        async with asyncio.timeout(600):
            return await test()

    return asyncio.run(limited())


async def settle() -> None:
    """Let every task go as far as it gets by itself."""
    for _ in range(20):
        await asyncio.sleep(0)


async def until_full(queue: AsyncQueue, *, producers: int) -> None:
    """Let so many threads come to wait for room."""
    while len(queue.queue._room._waiters) < producers:  # type: ignore[attr-defined]
        await asyncio.sleep(0)


@pytest.fixture(params=["memory", "journal"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory:" if request.param == "memory" else f"journal:{tmp_path / 'queue'}"


def opened(url: str, **options: Any) -> AsyncQueue:
    return open_async_queue(url, key="key", time="ts", **options)


def test_an_item_tells_what_it_stands_for(url: str) -> None:
    async def test() -> None:
        now = 5.0
        async with opened(url, clock=lambda: now) as queue:
            await queue.put(update("a", 1))
            now = 7.0
            receipt = await queue.put(update("a", 2))
            item = await queue.get()
            assert receipt.conflated == 1
            assert item.row == update("a", 2)
            assert (item.updates, item.waiting_since) == (2, 5.0)
            item.done()
            assert queue.snapshot().staleness_mean == 0.0
            assert queue.queue.planned() == []

    run(test)


def test_waiting_consumers_are_served_in_the_order_in_which_they_asked(url: str) -> None:
    async def test() -> None:
        async with opened(url, policy="in-place") as queue:
            served: list[tuple[int, str]] = []

            async def consume(number: int) -> None:
                async with await queue.get() as item:
                    served.append((number, item.row["key"]))

            tasks = [asyncio.create_task(consume(number)) for number in range(4)]
            await settle()
            for ts, key in enumerate("abcd"):
                await queue.put(update(key, ts))
            await asyncio.gather(*tasks)
            assert served == list(enumerate("abcd"))

    run(test)


def test_who_asks_later_does_not_overtake_who_waits() -> None:
    async def test() -> None:
        async with opened("memory:") as queue:
            first = asyncio.create_task(queue.get())
            await settle()
            queue.queue.put(update("a", 1))
            late = asyncio.create_task(queue.get())
            await settle()
            assert first.done()
            assert not late.done()
            await queue.put(update("b", 1))
            assert [(await task).row["key"] for task in (first, late)] == ["a", "b"]

    run(test)


def test_a_cancelled_get_takes_nothing(url: str) -> None:
    async def test() -> None:
        async with opened(url) as queue:
            for round_ in range(20):
                waiting = [asyncio.create_task(queue.get()) for _ in range(3)]
                for _ in range(round_ % 5):
                    await asyncio.sleep(0)
                putting = asyncio.create_task(queue.put(update("a", round_)))
                for _ in range(round_ % 7):
                    await asyncio.sleep(0)
                for task in waiting:
                    task.cancel()
                results = await asyncio.gather(*waiting, return_exceptions=True)
                await putting
                for result in results:
                    if isinstance(result, Item):  # it was faster
                        result.give_back()
                item = await queue.get()
                assert item.row == update("a", round_)
                item.done()
            assert queue.snapshot().waiting == 0
            assert queue.queue.planned() == []

    run(test)


def test_cancelling_the_first_in_line_leaves_the_next_in_line() -> None:
    async def test() -> None:
        async with opened("memory:") as queue:
            first, second = (asyncio.create_task(queue.get()) for _ in range(2))
            await settle()
            queue.queue.put(update("a", 1))  # the first is about to be woken
            first.cancel()
            assert (await second).row == update("a", 1)
            assert first.cancelled()

    run(test)


def test_producers_in_threads_wake_consumers(url: str) -> None:
    keys = [f"k{number}" for number in range(40)]

    async def test() -> None:
        async with opened(url) as queue:

            def produce(mine: list[str]) -> None:
                for ts, key in enumerate(mine):
                    queue.queue.put(update(key, ts))

            got: list[str] = []

            async def consume() -> None:
                async for item in queue:
                    got.append(item.row["key"])
                    if len(got) == len(keys):
                        asyncio.get_running_loop().call_soon(finished.set)

            finished = asyncio.Event()
            consumers = [asyncio.create_task(consume()) for _ in range(3)]
            await settle()
            threads = [threading.Thread(target=produce, args=(keys[i::4],)) for i in range(4)]
            for thread in threads:
                thread.start()
            await finished.wait()
            for task in consumers:
                task.cancel()
            await asyncio.wait(consumers)
            for thread in threads:
                thread.join()
            assert sorted(got) == sorted(keys)

    run(test)


def test_asking_for_the_next_item_settles_the_one_before(url: str) -> None:
    async def test() -> None:
        async with opened(url, policy="in-place") as queue:
            await queue.put_many(table(["a", "b", "c"]))
            seen = []
            async for item in queue:
                assert queue.queue.planned() == [item.batch.id]
                seen.append(item.row["key"])
                if len(seen) == 3:
                    break
            assert seen == ["a", "b", "c"]
            async with await queue.get() as again:  # left by break: given back
                assert again.row["key"] == "c"
            assert queue.snapshot().waiting == 0

    run(test)


def test_an_item_that_is_done_is_not_given_back_by_break() -> None:
    async def test() -> None:
        async with opened("memory:") as queue:
            await queue.put(update("a", 1))
            async for item in queue:
                item.done()
                break
            await settle()
            assert queue.snapshot().waiting == 0
            assert queue.queue.planned() == []

    run(test)


@pytest.mark.parametrize("asynchronous", [True, False])
def test_an_error_gives_the_item_back(url: str, asynchronous: bool) -> None:
    async def test() -> None:
        async with opened(url) as queue:
            await queue.put(update("a", 1))
            item = await queue.get()
            with contextlib.suppress(LookupError):
                if asynchronous:
                    async with item:
                        raise LookupError
                with item:
                    raise LookupError
            assert queue.queue.planned() == []
            assert queue.snapshot().waiting == 1

    run(test)


def test_a_cancelled_worker_gives_its_item_back(url: str) -> None:
    async def test() -> None:
        async with opened(url) as queue:
            await queue.put(update("a", 1))
            begun = asyncio.Event()

            async def work() -> None:
                async for _ in queue:
                    begun.set()
                    await asyncio.Event().wait()

            worker = asyncio.create_task(work())
            await begun.wait()
            worker.cancel()
            await asyncio.wait([worker])
            async with await queue.get() as item:
                assert item.row == update("a", 1)

    run(test)


def test_an_item_is_settled_once(url: str) -> None:
    async def test() -> None:
        async with opened(url) as queue:
            await queue.put(update("a", 1))
            async with await queue.get() as item:
                item.give_back()
            item.done()
            assert queue.snapshot().waiting == 1

    run(test)


def test_closing_wakes_who_waits(url: str) -> None:
    async def test() -> list[BaseException | Item]:
        queue = opened(url)
        waiting = [asyncio.create_task(queue.get()) for _ in range(3)]
        await settle()
        await queue.aclose()
        await queue.aclose()
        for call in (queue.get(), queue.put(update("a", 1)), queue.commit(1)):
            with pytest.raises(QueueClosed):
                await call
        assert [item async for item in queue] == []
        return await asyncio.gather(*waiting, return_exceptions=True)

    assert [type(result) for result in run(test)] == [QueueClosed] * 3


def test_a_put_that_waits_for_room_lets_consumers_go_on(url: str) -> None:
    """A dozen producers of new keys, more than there are threads, into a small queue."""

    async def test() -> None:
        async with opened(url, memory_limit="1MiB", on_full="block") as queue:
            body = "x" * 60_000

            async def produce(number: int) -> None:
                for ts in range(5):
                    await queue.put({"key": f"{number}-{ts}", "ts": ts, "body": body})

            producers = [asyncio.create_task(produce(number)) for number in range(12)]
            await until_full(queue, producers=8)
            got = 0
            while got < 60:
                batch = await queue.get_batch(5)
                got += len(batch)
                await queue.commit(batch.id)
            await asyncio.gather(*producers)
            assert queue.snapshot().accepted == 60

    run(test)


def test_closing_releases_a_put_that_waits_for_room() -> None:
    async def test() -> None:
        queue = opened("memory:", memory_limit="1MiB", on_full="block")
        body = ["x" * 60_000] * 40
        rows = table([f"k{number}" for number in range(40)]).append_column("body", [body])
        putting = asyncio.create_task(queue.put_many(rows))
        await until_full(queue, producers=1)
        async with await queue.get():
            await queue.aclose()
            with pytest.raises(QueueClosed):
                await putting

    with pytest.raises(QueueClosed):  # the item that was in hand could not be committed
        run(test)


def test_a_put_that_waits_for_room_wakes_who_waits_for_its_first_rows(url: str) -> None:
    async def test() -> int:
        async with opened(url, memory_limit="1MiB", on_full="block") as queue:
            body = ["x" * 60_000] * 40
            rows = table([f"k{number}" for number in range(40)]).append_column("body", [body])
            got = 0

            async def consume() -> None:
                nonlocal got
                while got < 40:
                    async with await queue.get():
                        got += 1

            consumer = asyncio.create_task(consume())
            await settle()
            await queue.put_many(rows)
            await consumer
            return got

    assert run(test) == 40


def test_closing_the_queue_inside_wakes_who_waits() -> None:
    async def test() -> None:
        queue = opened("memory:")
        waiting = [asyncio.create_task(queue.get()) for _ in range(3)]
        await settle()
        await asyncio.to_thread(queue.queue.close)
        for task in waiting:
            with pytest.raises(QueueClosed):
                await task
        await queue.aclose()

    run(test)


def test_large_batches_leave_the_loop_free() -> None:
    async def test() -> None:
        async with opened("memory:") as queue:
            small, large = table(["a"]), table(["a"] * 100_000)
            where: list[threading.Thread] = []
            queue.queue.on_waiting(lambda: where.append(threading.current_thread()))
            await queue.put_many(small)
            await queue.put_many(large)
            assert [thread is threading.main_thread() for thread in where] == [True, False]
            batch = await queue.get_batch()
            assert batch.updates.tolist() == [100_001]
            await queue.delivered(batch.id)
            await queue.commit(batch.id)
            with pytest.raises(UnknownBatch):
                await queue.give_back(batch.id)
            with pytest.raises(InputError):
                await queue.get_batch(0)

    run(test)


def test_what_was_in_hand_at_the_end_waits_again(tmp_path: Path) -> None:
    url = f"journal:{tmp_path / 'queue'}"

    async def leave() -> None:
        async with opened(url, policy="in-place") as queue:
            await queue.put_many(table(["a", "b"]))
            await queue.get()
            delivered = await queue.get_batch(1)
            await queue.delivered(delivered.id)

    async def come_back() -> list[str]:
        async with opened(url, policy="in-place") as queue:
            assert queue.queue.planned() == []
            return [(await queue.get()).row["key"] for _ in range(queue.snapshot().waiting)]

    run(leave)
    assert run(come_back) == ["a"]


def test_threads_may_go_on_when_the_loop_has_ended() -> None:
    inner = open_queue("memory:", key="key", time="ts")

    async def test() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(AsyncQueue(inner).get(), 0)
        task = asyncio.create_task(AsyncQueue(inner).get())
        await settle()
        assert not task.done()

    asyncio.run(test())
    assert inner.put(update("a", 1)).accepted == 1
