"""Disks that die, fail, or forget what was not synced."""

from __future__ import annotations

import errno
import os
import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from upstream.store.disk import Disk


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
