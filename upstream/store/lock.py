"""The right to use a directory, held by one process at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import weakref
from pathlib import Path

from upstream.errors import StoreError, StoreLocked
from upstream.store.disk import explain

__all__ = ["DirectoryLock"]


class DirectoryLock:
    """A lock on a directory that the operating system takes back when its holder dies.

    The file `LOCK` stays where it is; what counts is the lock on it, not that it exists.
    It names the holder for whoever is refused.
    """

    def __init__(self, directory: Path) -> None:
        path = directory / "LOCK"
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise StoreError(
                f"The store in {directory} needs to write its lock {path}: {explain(error)}."
            ) from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(fd, 200, 0).decode(errors="replace").strip() or "unknown"
            os.close(fd)
            mine = holder.startswith(f"pid {os.getpid()} ")
            raise StoreLocked(
                f"The store in {directory} is in use by {holder}"
                f"{', which is this process' if mine else ''}. One process at a time may open "
                f"it: close the queue there, or give this one a directory of its own."
            ) from error
        except OSError as error:
            os.close(fd)
            raise StoreError(
                f"The store in {directory} cannot be locked: {explain(error)}. Some network "
                f"file systems have no locks; use a local directory."
            ) from error
        with contextlib.suppress(OSError):  # a full disk is no reason not to read the store
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"pid {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        self._fd = fd
        self._pid = os.getpid()
        _held.add(self)

    @property
    def is_mine(self) -> bool:
        """False in a process that was forked off the holder."""
        return self._pid == os.getpid()

    def release(self) -> None:
        # Closing is enough, and unlike unlocking it does no harm in a forked process.
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            _held.discard(self)


_held: weakref.WeakSet[DirectoryLock] = weakref.WeakSet()


def _release_in_child() -> None:
    # A forked process shares the lock. If it kept its share, the directory would stay locked
    # for as long as it runs, even after the holder is gone.
    for lock in list(_held):
        lock.release()


os.register_at_fork(after_in_child=_release_in_child)
