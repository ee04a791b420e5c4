"""The journal: every change of a queue, on disk before it is acknowledged.

Each call of the log becomes one record at the end of the current segment. `sync` makes them
durable: at once, many threads together, or in the background, as configured. When the
segments outgrow the queue itself, the queue is written down as a snapshot and the segments
before it go: the size of the directory follows the number of keys, not of updates.

Three things make an append cheap. The rows go to the operating system as they lie in memory,
by one call. The disk is told to start on them at once, so that it writes while the queue
works, and the sync at the end has little left to wait for. And a retired segment is written
over by the next one, which spares the file system from allocating blocks.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from upstream.config import BASELINES
from upstream.errors import StoreError
from upstream.store.compaction import Compaction
from upstream.store.disk import Disk, explain
from upstream.store.files import StoreFiles
from upstream.store.group_commit import GroupCommit
from upstream.store.lock import DirectoryLock
from upstream.store.recovery import Core, CoreT, Recovered, recover
from upstream.store.rows import RowFormat, encode_schema
from upstream.store.segment import Entry, FileKind, Kind, Segment

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from upstream.config import QueueConfig
    from upstream.model import Batch
    from upstream.queue.log import FreedKind, SettledKind

__all__ = ["Journal", "open_journal"]

# Smaller records share their disk page with the next one: starting on them early would write
# that page more often than group commit does.
_START_WRITING_FROM = 32 * 1024


class Journal:
    """The log of a queue that lives in a directory."""

    def __init__(
        self,
        files: StoreFiles,
        lock: DirectoryLock,
        disk: Disk,
        config: QueueConfig,
        setup: dict[str, Any],
        found: Recovered[Any],
    ) -> None:
        self._files = files
        self._lock = lock
        self._disk = disk
        self._setup = setup
        self._core: Core = found.core
        self._segment = found.segment
        self._format = RowFormat(found.schema) if found.schema is not None else None
        self._last = found.last
        self._commit = GroupCommit(lambda: self._segment.sync(), found.segment.sequence - 1)
        self._compaction = Compaction(disk, files, config.compact_after_bytes, found)
        self._is_sync = config.durability == "sync"
        self._closing = threading.Event()
        self._unsynced = threading.Event()
        self._syncer: threading.Thread | None = None
        if not self._is_sync:
            self._syncer = threading.Thread(
                target=self._sync_in_background,
                args=(config.sync_interval_seconds,),
                name="upstream-journal-sync",
                daemon=True,
            )
            self._syncer.start()

    # -- what happened ----------------------------------------------------------------

    def put(self, rows: pa.RecordBatch, arrived: NDArray[np.float64] | None, now: float) -> None:
        self._compact_if_due()
        entries = []
        form = self._format
        if form is None or not rows.schema.equals(form.schema):
            form = RowFormat(rows.schema)
            entries.append(Entry(Kind.SCHEMA, None, [[encode_schema(rows.schema)]]))
        buffers = [form.encode(rows)]
        if arrived is not None:
            buffers.append([np.ascontiguousarray(arrived, np.float64).data])
        entries.append(Entry(Kind.PUT, float(now), buffers))
        self._append(*entries)
        self._format = form

    def put_stopped(self, rows: int) -> None:
        with self._done_already():
            self._append(Entry(Kind.STOPPED, int(rows)))

    def planned(self, batch: Batch) -> None:
        meta, buffers = batch.to_parts()
        self._append(Entry(Kind.PLANNED, meta, [[buffer] for buffer in buffers]))

    def settled(self, kind: SettledKind, batch_id: int, at: float) -> None:
        self._compact_if_due()
        self._append(Entry(Kind.SETTLED, [kind, int(batch_id), float(at)]))

    def freed(self, kind: FreedKind, slots: NDArray[np.uint32], now: float) -> None:
        numbers = np.ascontiguousarray(slots, np.uint32).data
        with self._done_already():
            self._append(Entry(Kind.FREED, [kind, float(now)], [[numbers]]))

    @contextlib.contextmanager
    def _done_already(self) -> Iterator[None]:
        """The queue cannot take back what this record says: without it, nothing may follow."""
        try:
            yield
        except BaseException as error:
            self._commit.fail(f"{error} The queue takes no more; open it again.")
            raise

    # -- when it is durable -----------------------------------------------------------

    def sync(self) -> None:
        if self._is_sync:
            self._commit.reach(self._commit.written)
        else:
            self._commit.check()

    def close(self) -> None:
        """Sync, testify that all is on the disk, and let others open the directory."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._unsynced.set()
        if self._syncer:
            self._syncer.join()
        self._compaction.wait()
        try:
            if self._lock.is_mine:
                self._commit.reach(self._commit.written)
                if self._last not in (Kind.SETUP, Kind.CLOSED):
                    self._append(Entry(Kind.CLOSED, None))
                    self._commit.reach(self._commit.written)
        finally:
            self._segment.close()
            self._lock.release()

    def _sync_in_background(self, interval_seconds: float) -> None:
        while not self._closing.is_set():
            self._unsynced.wait()
            self._closing.wait(interval_seconds)
            self._unsynced.clear()
            # Whoever calls next gets the error that is kept there.
            with contextlib.suppress(StoreError):
                self._commit.reach(self._commit.written)

    # -- how it gets to the disk ------------------------------------------------------

    def _append(self, *entries: Entry) -> None:
        """Write records, all or none of them."""
        self._commit.check()
        if not self._lock.is_mine:
            raise StoreError(
                f"The queue in {self._files.directory} was opened by the process that this one "
                f"was forked from, and belongs to it. Open a queue after the fork."
            )
        segment = self._segment
        try:
            size = segment.append(entries, self._commit.durable)
        except BaseException as error:
            self._undo(segment, error)
            if isinstance(error, OSError):
                raise StoreError(
                    f"The journal {segment.path} could not be written: {explain(error)}. Nothing "
                    f"of this call was accepted; what was accepted before is safe."
                ) from error
            raise
        self._commit.written = segment.sequence - 1
        self._last = entries[-1].kind
        if not self._is_sync:
            self._unsynced.set()
        elif size >= _START_WRITING_FROM:
            with contextlib.suppress(OSError):
                segment.start_writing(size)

    def _undo(self, segment: Segment, cause: BaseException) -> None:
        """Take back what a failed write has left."""
        try:
            segment.cut()
        except OSError as error:
            self._commit.fail(
                f"The journal {segment.path} could not be written ({cause}), nor could the "
                f"unfinished record be removed: {explain(error)}. The queue takes no more; open "
                f"it again when the disk is in order. What was accepted before is safe."
            )

    def _compact_if_due(self) -> None:
        """Write a snapshot and begin the next segment, if the segments have become too long.

        A snapshot must hold exactly what the records before it say. That is so when a call
        is about to be logged that the queue has not begun to carry out.
        """
        if not self._compaction.is_due(self._segment, self._core):
            return
        entries = [Entry(Kind.SETUP, self._setup)]
        if self._format is not None:
            entries.append(Entry(Kind.SCHEMA, None, [[encode_schema(self._format.schema)]]))
        meta, buffers = self._core.dump()
        entries.append(Entry(Kind.DUMP, meta, [[buffer] for buffer in buffers]))
        old = self._segment
        try:
            snapshot = self._compaction.write(entries, old.number + 1, old.sequence)
            self._begin_next_segment()
        except OSError as error:
            self._compaction.failed(old, error)
        else:
            old.close()
            self._compaction.finish(snapshot, old)

    def _begin_next_segment(self) -> None:
        old = self._segment
        with self._commit.alone():
            # All of a segment is on the disk before the next one exists.
            self._commit.sync()
            self._segment = begin_segment(
                self._disk, self._files, self._setup, number=old.number + 1, sequence=old.sequence
            )
            self._commit.written = self._segment.sequence - 1
            self._last = Kind.SETUP
            try:
                self._disk.sync_directory(self._files.directory)
            except OSError as error:
                self._commit.fail(
                    f"The name of the new segment {self._segment.path} could not be synced: "
                    f"{explain(error)}. The queue takes no more; open it again when the disk is "
                    f"in order. What was accepted before is safe."
                )
            self._commit.check()
            self._commit.durable = self._commit.written


def open_journal(
    directory: str | Path,
    config: QueueConfig,
    make_core: Callable[[], CoreT],
    disk: Disk | None = None,
) -> CoreT:
    """Open the queue that lives in a directory, or begin one there."""
    disk = disk or Disk()
    files = StoreFiles(Path(directory))
    files.prepare(disk)
    lock = DirectoryLock(files.directory)
    try:
        setup = _setup(config)
        for path in files.unfinished():
            disk.remove(path)
        if files.segments() or files.snapshots():
            found = recover(files, make_core, setup, disk)
        else:
            segment = begin_segment(disk, files, setup, number=1, sequence=1)
            disk.sync_directory(files.directory)
            found = Recovered(make_core(), segment, None, 1, segment.position, Kind.SETUP)
        journal = Journal(files, lock, disk, config, setup, found)
    except OSError as error:
        lock.release()
        raise StoreError(
            f"The store in {files.directory} cannot be opened: {explain(error)}."
        ) from error
    except BaseException:
        lock.release()
        raise
    found.core.log = journal
    return found.core


def begin_segment(
    disk: Disk, files: StoreFiles, setup: dict[str, Any], *, number: int, sequence: int
) -> Segment:
    """Make a segment. It gets its name only when its beginning is on the disk.

    The spare one is used up, if there is one.
    """
    path = files.segment(number)
    reuse = files.spare.exists()
    unnamed = files.spare if reuse else path.with_suffix(".tmp")
    segment = Segment.create(disk, unnamed, FileKind.SEGMENT, number, sequence, reuse=reuse)
    try:
        segment.append([Entry(Kind.SETUP, setup)], durable=sequence - 1)
        segment.sync()
        disk.rename(unnamed, path)
    except BaseException:
        segment.close()
        raise
    segment.path = path
    return segment


def _setup(config: QueueConfig) -> dict[str, Any]:
    """What a queue must have in common with the files it is opened from."""
    return {
        "queue": "append" if config.policy in BASELINES else "update",
        "key": list(config.key_columns),
        "time": config.time,
        "merge": dict(config.merge),
        "delete_column": config.delete_column,
        "delete_value": config.delete_value,
        "window": config.window and config.window.model_dump(),
    }
