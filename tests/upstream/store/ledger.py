"""A queue's store seen by the simplest queue there is, and disks that fail on demand."""

from __future__ import annotations

import errno
import json
import os
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
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


class Dead(BaseException):
    """The process ends here."""


class DyingDisk(Disk):
    """Lets the process die at call number `at`, possibly in the midst of a write."""

    def __init__(self, at: int, seed: int = 0) -> None:
        self.left = at
        self.choose = random.Random(seed)

    def _count(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Dead

    def open(self, path: Path, *, create: bool = False) -> int:
        self._count()
        return super().open(path, create=create)

    def write_some(self, fd: int, pieces: Sequence[Any], offset: int) -> int:
        try:
            self._count()
        except Dead:
            if self.left == -1:  # the first to fail; later ones write nothing
                data = b"".join(map(bytes, pieces))
                os.pwrite(fd, data[: self.choose.randrange(len(data) + 1)], offset)
            raise
        return super().write_some(fd, pieces, offset)

    def sync(self, fd: int) -> None:
        self._count()

    def sync_directory(self, path: Path) -> None:
        self._count()

    def truncate(self, fd: int, size: int) -> None:
        self._count()
        super().truncate(fd, size)

    def rename(self, old: Path, new: Path) -> None:
        self._count()
        super().rename(old, new)

    def remove(self, path: Path) -> None:
        self._count()
        super().remove(path)


class FailingDisk(DyingDisk):
    """Fails at call number `at` with an error, `times` times in a row, then works again."""

    def __init__(self, at: int, times: int = 1, code: int = errno.ENOSPC) -> None:
        super().__init__(at)
        self.times = times
        self.code = code

    def _count(self) -> None:
        self.left -= 1
        if -self.times <= self.left < 0:
            raise OSError(self.code, os.strerror(self.code))

    def write_some(self, fd: int, pieces: Sequence[Any], offset: int) -> int:
        try:
            self._count()
        except OSError:
            data = b"".join(map(bytes, pieces))
            os.pwrite(fd, data[: len(data) // 2], offset)  # the disk is full half-way
            raise
        return Disk.write_some(self, fd, pieces, offset)


@dataclass
class _Content:
    durable: bytes = b""
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)  # None: truncate


class ForgetfulDisk(Disk):
    """Remembers what was synced; `power_cut` keeps that, and a random part of the rest."""

    def __init__(self, seed: int) -> None:
        self.choose = random.Random(seed)
        self.names: dict[str, _Content] = {}
        self.durable_names: dict[str, _Content] = {}
        self.pending: list[Callable[[dict[str, _Content]], object]] = []
        self.opened: dict[int, _Content] = {}
        self.lock = threading.RLock()  # the power goes at one instant for all threads

    def open(self, path: Path, *, create: bool = False) -> int:
        with self.lock:
            fd = super().open(path, create=create)
            if create:
                new = _Content()
                self._change(lambda names: names.__setitem__(path.name, new))
            self.opened[fd] = self.names[path.name]
            return fd

    def write_some(self, fd: int, pieces: Sequence[Any], offset: int) -> int:
        with self.lock:
            data = b"".join(map(bytes, pieces))
            self.opened[fd].pending.append((offset, data))
            return super().write_some(fd, [data], offset)

    def truncate(self, fd: int, size: int) -> None:
        with self.lock:
            self.opened[fd].pending.append((size, None))
            super().truncate(fd, size)

    def sync(self, fd: int) -> None:
        with self.lock:
            content = self.opened[fd]
            for change in content.pending:
                content.durable = _changed(content.durable, *change)
            content.pending = []

    def rename(self, old: Path, new: Path) -> None:
        with self.lock:
            self._change(lambda names: names.__setitem__(new.name, names.pop(old.name)))
            super().rename(old, new)

    def remove(self, path: Path) -> None:
        with self.lock:
            self._change(lambda names: names.pop(path.name))
            super().remove(path)

    def sync_directory(self, path: Path) -> None:
        with self.lock:
            for change in self.pending:
                change(self.durable_names)
            self.pending = []

    def power_cut(self, directory: Path) -> None:
        """Put into a new directory what the disk holds when the power comes back."""
        directory.mkdir()
        with self.lock:
            names = dict(self.durable_names)
            for change in self.pending[: self.choose.randrange(len(self.pending) + 1)]:
                change(names)
            for name, content in names.items():
                (directory / name).write_bytes(self._survives(content))

    def _survives(self, content: _Content) -> bytes:
        data = content.durable
        for offset, piece in content.pending:
            if piece is None:
                data = _changed(data, offset, None)
                continue
            # Each sector reaches the disk by itself, in any order.
            for start in range(offset // 512 * 512, offset + len(piece), 512):
                if self.choose.random() < 0.7:
                    low = max(start, offset)
                    data = _changed(data, low, piece[low - offset : start + 512 - offset])
        return data

    def _change(self, change: Callable[[dict[str, _Content]], object]) -> None:
        change(self.names)
        self.pending.append(change)


def _changed(data: bytes, offset: int, piece: bytes | None) -> bytes:
    if piece is None:
        return data[:offset]
    data = data.ljust(offset, b"\0")
    return data[:offset] + piece + data[offset + len(piece) :]


def abandon(queue: Ledger | UpdateQueue) -> None:
    """What the operating system does when a process is gone."""
    journal: Any = queue.log
    journal._compaction.wait()
    os.close(journal._segment._fd)
    journal._lock.release()
