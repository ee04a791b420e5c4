"""A queue's store as seen by the simplest queue there is."""

from __future__ import annotations

import json
import os
import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from upstream.config import QueueConfig
from upstream.queue.log import Log, NoLog
from upstream.queue.update_queue import UpdateQueue
from upstream.store.disk import Disk
from upstream.store.journal import open_journal
from upstream.store.recovery import JournalCutWarning
from upstream.store.segment import FileKind, Record, SegmentReader

SMALL = 2048  # bytes after which these tests compact

State = tuple[int, int]  # how many calls, and their hash


class Ledger:
    """Keeps the newest value per key, and a hash of all that ever happened, in order.

    Two ledgers in the same state have gone through the same calls.
    """

    def __init__(self) -> None:
        self.log: Log = NoLog()
        self.forgets_stops = False
        self.calls = 0
        self.hash = 0
        self.values: dict[str, float] = {}
        self.schema: pa.Schema | None = None

    @property
    def state(self) -> State:
        return self.calls, self.hash

    # -- the queue's side: write down, then carry out --------------------------------

    def put(self, keys: Sequence[str], value: float, stop: int | None = None) -> None:
        rows = pa.record_batch({"k": list(keys), "v": [float(value)] * len(keys)})
        arrived = np.full(len(keys), float(value)) if len(keys) % 2 else None
        self.log.put(rows, arrived, value)
        if self.forgets_stops:
            stop = None
        if stop is not None:
            self.log.put_stopped(stop)
        self.replay_put(rows, arrived, value, rows.num_rows if stop is None else stop)
        self.log.sync()

    def plan(self, number: int) -> None:
        batch = ToyBatch(number)
        self.log.planned(batch)  # type: ignore[arg-type]  # a batch is only asked for its parts
        self.replay_planned(*batch.to_parts())
        self.log.sync()

    def settle(self, number: int, at: float) -> None:
        self.log.settled("committed", number, at)
        self.replay_settled("committed", number, at)
        self.log.sync()

    def free(self, slots: Sequence[int], now: float) -> None:
        array = np.array(slots, np.uint32)
        self.log.freed("shed", array, now)
        self.replay_freed("shed", array, now)
        self.log.sync()

    def close(self) -> None:
        self.log.close()

    # -- the store's side ------------------------------------------------------------

    def bind(self, schema: pa.Schema) -> None:
        self.schema = schema

    def replay_put(
        self, rows: pa.RecordBatch, arrived: NDArray[np.float64] | None, now: float, count: int
    ) -> None:
        self.values.update((row["k"], row["v"]) for row in rows.slice(0, count).to_pylist())
        times = None if arrived is None else arrived.tolist()
        self._happened("put", rows.to_pylist(), times, float(now), count)

    def replay_planned(self, meta: dict[str, Any], buffers: Sequence[Any]) -> None:
        self._happened("planned", meta, [bytes(buffer).hex() for buffer in buffers])

    def replay_settled(self, kind: str, batch_id: int, at: float) -> None:
        self._happened("settled", kind, batch_id, float(at))

    def replay_freed(self, kind: str, slots: NDArray[np.uint32], now: float) -> None:
        self._happened("freed", kind, slots.tolist(), float(now))

    def dump(self) -> tuple[dict[str, Any], list[Any]]:
        keys = "\n".join(self.values).encode()
        return {"state": [self.calls, self.hash]}, [keys, np.array(list(self.values.values()))]

    def load(self, meta: dict[str, Any], buffers: Sequence[memoryview]) -> None:
        self.calls, self.hash = meta["state"]
        keys = bytes(buffers[0]).decode().split("\n")
        self.values = dict(zip(keys, np.frombuffer(buffers[1]).tolist(), strict=True))

    def live_bytes(self) -> int:
        return 200 + 20 * len(self.values)

    def _happened(self, *what: object) -> None:
        self.calls += 1
        self.hash = xxhash.xxh3_64_intdigest(json.dumps(what).encode(), seed=self.hash)


class ToyBatch:
    """As much of a batch as a store needs."""

    def __init__(self, number: int) -> None:
        self.number = number

    def to_parts(self) -> tuple[dict[str, Any], list[Any]]:
        return {"id": self.number}, [b"x" * self.number, b"", np.arange(self.number)]


def open_ledger(directory: Path, disk: Disk | None = None, **options: Any) -> Ledger:
    config = QueueConfig.from_options(**({"key": "k", "store": f"journal:{directory}"} | options))
    return open_journal(directory, config, Ledger, disk)


Step = Callable[[Ledger], None]


def steps(seed: int) -> Iterator[Step]:
    """Calls in a seeded order, without end."""
    choose = random.Random(seed)
    number = 0
    while True:
        number += 1
        keys = [f"key {choose.randrange(20)}" for _ in range(choose.randrange(1, 40))]
        what = choose.random()
        if what < 0.6:
            stop = choose.randrange(len(keys)) if choose.random() < 0.2 else None
            yield partial(Ledger.put, keys=keys, value=number, stop=stop)
        elif what < 0.75:
            yield partial(Ledger.plan, number=number)
        elif what < 0.9:
            yield partial(Ledger.settle, number=number, at=number / 2)
        else:
            yield partial(Ledger.free, slots=range(number % 7), now=number)


class Course:
    """The states that a ledger goes through, and those that a crash may leave."""

    def __init__(self, seed: int, length: int) -> None:
        ledger = Ledger()
        self.states = [ledger.state]
        self.left_by_crash = []  # in the call after each state
        for step in islice(steps(seed), length):
            # A crash may come after a put is written and before it is known where it stopped.
            # Nobody was told anything then, and all its rows count.
            whole = Ledger()
            whole.calls, whole.hash = ledger.state
            whole.forgets_stops = True
            step(whole)
            step(ledger)
            self.left_by_crash.append({self.states[-1], whole.state, ledger.state})
            self.states.append(ledger.state)
        self.left_by_crash.append({self.states[-1]})


def take(ledger: Ledger, seed: int, length: int) -> State:
    for step in islice(steps(seed), length):
        step(ledger)
    return ledger.state


def abandon(queue: Ledger | UpdateQueue) -> None:
    """What the operating system does when a process is gone."""
    journal: Any = queue.log
    journal._compaction.wait()
    os.close(journal._segment._fd)
    journal._lock.release()


def open_and_close(directory: Path, **options: Any) -> State:
    ledger = open_ledger(directory, **options)
    ledger.close()
    return ledger.state


def reopened(directory: Path) -> State:
    """The state found by a process that dies right after looking at it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", JournalCutWarning)
        ledger = open_ledger(directory, compact_after_bytes=SMALL)
    abandon(ledger)
    return ledger.state


def segments(directory: Path) -> list[Path]:
    return sorted(directory.glob("journal-0*.log"))


def records(path: Path) -> list[Record]:
    with SegmentReader(path, FileKind.SEGMENT) as reader:
        return list(reader)


def flip(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 0xFF]))
