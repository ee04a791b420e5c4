"""The real queue on disks that die, forget and fill up: afterwards it goes on as it would have."""

from __future__ import annotations

import os
import random
import resource
import shutil
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.upstream.store.failing_disks import Dead, DyingDisk, ForgetfulDisk
from tests.upstream.store.ledger import abandon
from upstream import open_queue
from upstream.config import QueueConfig
from upstream.errors import QueueFull, StoreError
from upstream.queue.update_queue import UpdateQueue
from upstream.store.disk import Disk
from upstream.store.journal import open_journal
from upstream.store.recovery import JournalCutWarning

pytestmark = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnhandledThreadExceptionWarning"  # a disk that dies under a thread
)

LENGTH = 40  # calls
# The state is looked at when all calls are over: a clock may have been read for one that
# was never carried out.
LOOKED_AT = LENGTH + 1.0
OPTIONS: dict[str, Any] = {
    "key": "name",
    "time": "at",
    "merge": {"total": "sum"},
    "delete_column": "gone",
    "forget_deleted_after_seconds": 5.0,
    "compact_after_bytes": "4KiB",
}
Call = Callable[[UpdateQueue], object]


def calls(columns: str) -> list[Call]:
    choose = random.Random(2)
    return [_call(choose, number, columns) for number in range(1, LENGTH + 1)]


def _call(choose: random.Random, number: int, columns: str) -> Call:
    what = choose.random()
    if what < 0.55:
        rows = _rows(choose.randrange(1, 40), number)
        if columns == "flat":
            rows = rows.drop_columns("tags")
        return lambda queue: queue.put_many(rows)
    if what < 0.75:
        limit = choose.choice([1, 5, None])
        return lambda queue: queue.plan(limit)
    name = choose.choice(["delivered", "commit", "give_back"])
    place = choose.random()

    def settle(queue: UpdateQueue) -> None:
        planned = [n for n in queue.planned() if not queue._batches[n].delivered]
        if planned:
            getattr(queue, name)(planned[int(place * len(planned))])

    return settle


def _rows(count: int, number: int) -> pa.RecordBatch:
    choose = np.random.default_rng(number)
    return pa.record_batch(
        {
            "name": [f"key {n}" for n in choose.integers(0, 30, count)],
            "at": number + choose.integers(-3, 1, count),
            "total": choose.integers(0, 100, count),
            "text": ["x" * int(size) for size in choose.choice([0, 10, 40, 20_000], count)],
            "tags": pa.array(
                [list(range(n)) for n in choose.integers(0, 3, count)], pa.list_(pa.int64())
            ),
            "gone": pa.array(choose.random(count) < 0.1),
        }
    )


class Run:
    """A queue whose clock counts its calls."""

    def __init__(self, directory: Path | None, disk: Disk | None = None, **options: Any) -> None:
        self.time = 0.0
        store = f"journal:{directory}" if directory else "memory:"
        config = QueueConfig.from_options(**OPTIONS, **options, store=store)
        self.queue = self._make(config)
        if directory is not None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", JournalCutWarning)
                self.queue = open_journal(directory, config, lambda: self._make(config), disk)

    def _make(self, config: QueueConfig) -> UpdateQueue:
        return UpdateQueue(config, lambda: self.time)

    def do(self, number: int, call: Call) -> None:
        self.time = float(number)
        with suppress(QueueFull):
            call(self.queue)


def visible(queue: UpdateQueue) -> dict[str, Any]:
    """All that a user can see. Looking uses it up."""
    snapshot = queue.snapshot()
    batches = {number: queue.batch(number).to_pylist() for number in queue.planned()}
    waiting = queue.plan().to_pylist()
    return {
        "counts": snapshot[2:9],
        "estimates": [f"{number:.9g}" for number in snapshot[14:18]],
        "batches": batches,
        "waiting": sorted(waiting, key=lambda row: row["name"]),
    }


def course(columns: str, **options: Any) -> list[dict[str, Any]]:
    """What is visible after each number of calls of a queue that never fails."""
    states = []
    for length in range(LENGTH + 1):
        run = Run(None, **options)
        for number, call in enumerate(calls(columns)[:length], 1):
            run.do(number, call)
        run.time = LOOKED_AT
        states.append(visible(run.queue))
    return states


@pytest.mark.parametrize("columns", ["flat", "nested"])
def test_dying_at_any_call_to_the_disk(tmp_path: Path, columns: str) -> None:
    expected = course(columns)
    at, done = 0, 0
    while done < LENGTH:
        run, done = None, 0
        with suppress(Dead):
            run = Run(tmp_path / str(at), DyingDisk(at, seed=at))
            for number, call in enumerate(calls(columns), 1):
                run.do(number, call)
                done += 1
        if run is not None:
            abandon(run.queue)
        assert found(tmp_path / str(at)) in expected[done : done + 2], f"died at {at}"
        at += 7
    assert at > LENGTH


@pytest.mark.parametrize("on_full", ["shed", "error"])
@pytest.mark.parametrize("columns", ["flat", "nested"])
def test_losing_power_after_any_call(tmp_path: Path, columns: str, on_full: str) -> None:
    options = {"memory_limit": "200KiB", "on_full": on_full}
    expected = course(columns, **options)
    for length in range(0, LENGTH + 1, 3):
        disk = ForgetfulDisk(length)
        run = Run(tmp_path / str(length), disk, **options)
        for number, call in enumerate(calls(columns)[:length], 1):
            run.do(number, call)
        disk.power_cut(tmp_path / f"{length} on disk")
        abandon(run.queue)
        assert found(tmp_path / f"{length} on disk", **options) == expected[length]


def found(directory: Path, **options: Any) -> dict[str, Any]:
    """What is visible of the queue in a directory; the directory stays as it is."""
    copy = directory.with_name(f"copy of {directory.name}")
    shutil.copytree(directory, copy)
    run = Run(copy, **options)
    run.time = LOOKED_AT
    run.queue.check()
    state = visible(run.queue)
    run.queue.close()
    return state


def test_a_full_disk_refuses_and_loses_nothing(tmp_path: Path) -> None:
    """The limit on file sizes stands for a disk that is full, in a process of its own."""
    big = pa.record_batch({"k": [f"key {n}" for n in range(50_000)]})
    small = pa.record_batch({"k": ["small"]})
    told_read, told_write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
            queue = open_queue(f"journal:{tmp_path}", key="k")
            queue.put_many(small)
            try:
                queue.put_many(big)
            except StoreError as error:
                os.write(told_write, str(error).encode())
            queue.put_many(small)
            os.write(told_write, f" {queue.snapshot().accepted} accepted".encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    told = os.read(told_read, 10_000).decode()
    os.close(told_read)
    os.close(told_write)
    assert "could not be written: File too large (the file may not grow further" in told
    assert "Nothing of this call was accepted; what was accepted before is safe. 2 acc" in told
    with open_queue(f"journal:{tmp_path}", key="k") as queue:
        assert queue.snapshot()[2:8] == (2, 0, 1, 0, 0, 1)


def test_async_puts_are_there_after_a_clean_end(tmp_path: Path) -> None:
    url = f"journal:{tmp_path}"
    with open_queue(url, key="k", durability="async", sync_interval_seconds=3600) as queue:
        queue.put_many(pa.record_batch({"k": ["a", "b"]}))
        batch = queue.plan(1)
    with open_queue(url, key="k") as queue:
        assert queue.planned() == [batch.id]
        assert queue.batch(batch.id).to_arrow().equals(batch.to_arrow())
        assert queue.snapshot().waiting == 1


def test_a_baseline_comes_back(tmp_path: Path) -> None:
    url = f"journal:{tmp_path}"
    options: dict[str, Any] = {"key": "k", "policy": "append", "compact_after_bytes": "1KiB"}
    with open_queue(url, **options) as queue:
        for number in range(100):
            queue.put_many(pa.record_batch({"k": ["a", "b"], "n": [number, -number]}))
            if number % 10 == 0:
                queue.commit(queue.plan(15).id)
        batch = queue.plan(20)
        before = queue.snapshot()[2:9]
    with open_queue(url, **options) as queue:
        assert queue.snapshot()[2:9] == before
        assert queue.batch(batch.id).to_arrow().equals(batch.to_arrow())
        rest = queue.plan().to_arrow()["n"].to_pylist()
    assert rest == [sign * n for n in range(100) for sign in (1, -1)][-len(rest) :]
