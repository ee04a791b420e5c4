"""One sync for everyone who waits."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from upstream.errors import StoreError
from upstream.store.disk import explain

__all__ = ["GroupCommit"]


class GroupCommit:
    """Knows which records are on the disk, and lets threads wait for theirs.

    A thread whose records are not there yet syncs, unless another one is at it. Then it waits
    for that one and looks again: all who came in the meantime are served by the next sync
    together. A sync that fails leaves unknown what is on the disk, so nothing is believed
    afterwards: everybody gets an error from then on.
    """

    def __init__(self, sync: Callable[[], None], durable: int) -> None:
        self.written = durable  # the newest record handed to the operating system
        self.durable = durable  # the newest one on the disk
        self._sync = sync
        self._failure: str | None = None
        self._busy = False
        self._turn = threading.Condition()

    def reach(self, sequence: int) -> None:
        """Return when the record with this number is on the disk."""
        with self._turn:
            while self._busy and self.durable < sequence:
                self._turn.wait()
            self.check()
            if self.durable >= sequence:
                return
            self._busy = True
        try:
            self.sync()
        finally:
            self._leave()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep all others from syncing."""
        with self._turn:
            while self._busy:
                self._turn.wait()
            self.check()
            self._busy = True
        try:
            yield
        finally:
            self._leave()

    def sync(self) -> None:
        """Sync now; only for whoever keeps the others from it."""
        reached = self.written
        try:
            self._sync()
        except OSError as error:
            self.fail(
                f"Syncing the journal failed: {explain(error)}. Which of the latest changes are "
                f"on the disk is unknown, so the queue takes no more. Open it again to see what "
                f"has survived."
            )
            raise StoreError(self._failure) from error
        self.durable = reached

    def fail(self, reason: str) -> None:
        """Believe nothing from now on."""
        self._failure = self._failure or reason

    def check(self) -> None:
        """Raise an error if anything failed before."""
        if self._failure is not None:
            raise StoreError(self._failure)

    def _leave(self) -> None:
        with self._turn:
            self._busy = False
            self._turn.notify_all()
