"""A queue with windows dies at any call to the disk, and comes back as it was before or after.

A window that eager has handed out in part goes on where it was.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.upstream.store.failing_disks import Dead, DyingDisk
from tests.upstream.store.ledger import abandon
from upstream.config import QueueConfig
from upstream.queue.window_queue import WindowQueue
from upstream.store.disk import Disk
from upstream.store.journal import open_journal
from upstream.store.recovery import JournalCutWarning

LENGTH = 30  # calls
LOOKED_AT = LENGTH + 1.0
Call = Callable[[WindowQueue], object]


def calls() -> list[Call]:
    choose = random.Random(7)

    def call(number: int) -> Call:
        name = choose.choice(["put", "put", "put", "plan", "commit", "give back"])
        rows = pa.table(
            {
                "k": [choose.choice("abc") for _ in range(4)],
                "t": [max(4 * number + i - choose.choice([0, 0, 2]), 0) for i in range(4)],
                "x": ["text " * choose.choice([1, 9]) for _ in range(4)],
            }
        )

        def do(queue: WindowQueue) -> None:
            planned = queue.planned()
            if name == "put":
                queue.put_many(rows)
            elif name == "plan":
                queue.plan(1)
            elif planned and name == "commit":
                queue.commit(planned[0])
            elif planned:
                queue.give_back(planned[-1])

        return do

    return [call(number) for number in range(LENGTH)]


def open_at(directory: Path | None, buffer: str, disk: Disk | None = None) -> Any:
    time = [0.0]
    window = {"by": "time", "size": 6, "slide": 4, "disorder": 2, "buffer": buffer}
    config = QueueConfig.from_options(
        key="k", time="t", policy="in-place", window=window, compact_after_bytes=4000
    )

    def make() -> WindowQueue:
        return WindowQueue(config, lambda: time[0])

    if directory is None:
        return make(), time
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", JournalCutWarning)
        return open_journal(directory, config, make, disk), time


def visible(queue: WindowQueue) -> dict[str, Any]:
    """All that a user can see. Looking uses it up."""
    counts = queue.snapshot()[2:9]
    batches = [queue.batch(number).to_pylist() for number in queue.planned()]
    waiting = []
    while batch := queue.plan(1):
        waiting.append(batch.to_pylist())
    return {"counts": counts, "batches": batches, "waiting": waiting}


def course(buffer: str) -> list[dict[str, Any]]:
    states = []
    for length in range(LENGTH + 1):
        queue, time = open_at(None, buffer)
        for number, call in enumerate(calls()[:length], 1):
            time[0] = float(number)
            call(queue)
        time[0] = LOOKED_AT
        states.append(visible(queue))
    return states


@pytest.mark.parametrize("buffer", ["lazy", "eager"])
def test_dying_at_any_call_to_the_disk(tmp_path: Path, buffer: str) -> None:
    expected = course(buffer)
    assert any(state["waiting"] for state in expected)
    at, done = 0, 0
    while done < LENGTH:
        queue, done = None, 0
        with suppress(Dead):
            queue, time = open_at(tmp_path / str(at), buffer, DyingDisk(at, seed=at))
            for number, call in enumerate(calls(), 1):
                time[0] = float(number)
                call(queue)
                done += 1
        if queue is not None:
            abandon(queue)
        again, time = open_at(tmp_path / str(at), buffer)
        again.check()
        time[0] = LOOKED_AT
        assert visible(again) in expected[done : done + 2], f"died at {at}"
        again.close()
        at += 5
    assert at > LENGTH
