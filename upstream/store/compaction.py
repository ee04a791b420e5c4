"""Replacing segments by a snapshot, so that the store grows with its keys, not its updates.

The queue is written down while it stands still, which takes one write; what takes time, the
sync, happens in a thread of its own. Until the snapshot is on the disk under its name, the
segments before it stay, so that a crash at any point leaves a directory that can be read.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from upstream.store.disk import Disk, explain
from upstream.store.files import StoreFiles
from upstream.store.recovery import Core, Recovered
from upstream.store.segment import Entry, FileKind, Segment

__all__ = ["Compaction"]

_log = logging.getLogger(__name__)


class Compaction:
    """Decides when, writes the snapshot, and clears away what it replaces."""

    def __init__(
        self, disk: Disk, files: StoreFiles, compact_after_bytes: int, found: Recovered[Any]
    ) -> None:
        self._disk = disk
        self._files = files
        self._after_bytes = compact_after_bytes
        self._earlier_bytes = found.size - found.segment.position  # in segments before the current
        self._not_before_bytes = 0
        self._thread: threading.Thread | None = None
        self._clear(before=found.first)

    def is_due(self, segment: Segment, core: Core) -> bool:
        """Whether the segments are larger than configured, and than twice the queue itself."""
        size = self._earlier_bytes + segment.position
        if size < max(self._after_bytes, self._not_before_bytes):
            return False
        if self._thread is not None and self._thread.is_alive():
            return False
        return size >= 2 * core.live_bytes()

    def write(self, entries: Sequence[Entry], number: int, sequence: int) -> Segment:
        """Write a snapshot, not yet synced and not yet under its name."""
        path = self._files.snapshot(number).with_suffix(".tmp")
        snapshot = Segment.create(self._disk, path, FileKind.SNAPSHOT, number, sequence)
        try:
            snapshot.append(entries, durable=0)
        except BaseException:
            snapshot.close()
            raise
        return snapshot

    def finish(self, snapshot: Segment, old: Segment) -> None:
        """Make the snapshot durable in the background, then clear away what came before it."""
        self._earlier_bytes += old.position
        self._thread = threading.Thread(
            target=self._finish, args=(snapshot, old), name="upstream-compaction", daemon=True
        )
        self._thread.start()

    def failed(self, segment: Segment, error: OSError) -> None:
        """Nothing is lost: the segments before are all there. Try again after some growth."""
        size = self._earlier_bytes + segment.position
        self._not_before_bytes = size + self._after_bytes // 4
        number = segment.number + 1
        for path in (self._files.snapshot(number), self._files.segment(number)):
            with contextlib.suppress(OSError):
                self._disk.remove(path.with_suffix(".tmp"))
        _log.warning(
            "The journal in %s could not be compacted: %s. Nothing is lost; it grows on, and "
            "the next attempt comes at %d bytes.",
            self._files.directory,
            explain(error),
            self._not_before_bytes,
        )

    def wait(self) -> None:
        """Return when no compaction is under way."""
        if self._thread is not None:
            self._thread.join()

    def _finish(self, snapshot: Segment, old: Segment) -> None:
        path = self._files.snapshot(snapshot.number)
        try:
            try:
                snapshot.sync()
            finally:
                snapshot.close()
            self._disk.rename(snapshot.path, path)
            self._disk.sync_directory(self._files.directory)
        except OSError as error:
            self.failed(old, error)
            return
        self._earlier_bytes = 0
        self._not_before_bytes = 0
        self._clear(before=snapshot.number)

    def _clear(self, before: int) -> None:
        """Remove what nobody needs any more; keep one segment to be written over."""
        unneeded = [self._files.snapshot(n) for n in self._files.snapshots() if n < before]
        segments = [self._files.segment(n) for n in self._files.segments() if n < before]
        try:
            if segments and not self._files.spare.exists():
                self._keep_as_spare(segments.pop())
            for path in unneeded + segments:
                self._disk.remove(path)
        except OSError as error:
            _log.warning(
                "Files that are no longer needed in %s could not be removed: %s. The next "
                "compaction tries again.",
                self._files.directory,
                explain(error),
            )

    def _keep_as_spare(self, path: Path) -> None:
        if path.stat().st_size > 2 * self._after_bytes:
            fd = self._disk.open(path)
            try:
                self._disk.truncate(fd, 2 * self._after_bytes)
            finally:
                self._disk.close(fd)
        self._disk.rename(path, self._files.spare)
