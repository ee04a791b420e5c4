"""From the files of a store back to the queue that wrote them.

The newest snapshot is loaded, and the segments from its number on are replayed, record by
record. Where the last segment stops being readable, one question is left: was that record
ever acknowledged? If a later record that is whole says that it had reached the disk, the
file is damaged, and recovery refuses to guess. Otherwise a crash tore it while it was being
written: it is cut off, and a warning says so.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from upstream.errors import ConfigError, StoreCorrupt, UpstreamError
from upstream.store.disk import Disk
from upstream.store.files import StoreFiles
from upstream.store.rows import RowFormat, decode_schema
from upstream.store.segment import FileKind, Kind, Record, Segment, SegmentReader

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from typing_extensions import Buffer

    from upstream.queue.log import FreedKind, Log, SettledKind

__all__ = ["Core", "JournalCutWarning", "Recovered", "SnapshotSkippedWarning", "recover"]


class Core(Protocol):
    """A queue as its store sees it."""

    log: Log

    def bind(self, schema: pa.Schema) -> None: ...
    def dump(self) -> tuple[dict[str, Any], list[Buffer]]: ...
    def load(self, meta: dict[str, Any], buffers: list[memoryview]) -> None: ...
    def live_bytes(self) -> int: ...
    def replay_put(
        self,
        rows: pa.RecordBatch,
        arrived: NDArray[np.float64] | None,
        now: float,
        count: int,
    ) -> None: ...
    def replay_planned(self, meta: dict[str, Any], buffers: list[memoryview]) -> None: ...
    def replay_settled(self, kind: SettledKind, batch_id: int, at: float) -> None: ...
    def replay_freed(self, kind: FreedKind, slots: NDArray[np.uint32], now: float) -> None: ...


CoreT = TypeVar("CoreT", bound=Core)


class JournalCutWarning(UserWarning):
    """The end of a journal was torn by a crash, and was cut off."""

    def __init__(self, path: Path, offset: int, size: int, records: int, reason: str) -> None:
        others = f", and {records} whole records behind it that depend on it" if records else ""
        super().__init__(
            f"The journal {path} was cut at byte {offset}: {reason}. {size} bytes were cut off"
            f"{others}. Nothing in the journal says that they were ever on the disk: they "
            f"belong to calls that a crash interrupted."
        )
        self.path = path
        self.offset = offset
        self.size = size
        self.reason = reason


class SnapshotSkippedWarning(UserWarning):
    """A snapshot could not be read; an older one with its segments gave the same queue."""


class Recovered(NamedTuple, Generic[CoreT]):
    """A queue, and where its journal goes on."""

    core: CoreT
    segment: Segment
    schema: pa.Schema | None
    first: int  # the number of the oldest segment that is still needed
    size: int  # bytes in the segments since then
    last: Kind  # of the newest record


def recover(
    files: StoreFiles, make_core: Callable[[], CoreT], setup: dict[str, Any], disk: Disk
) -> Recovered[CoreT]:
    """Rebuild a queue. Afterwards all that it holds is on the disk."""
    segments = files.segments()
    first, replay = _load_snapshot(files, segments, make_core, setup)
    expected = range(first, segments[-1] + 1)
    missing = sorted(set(expected) - set(segments))
    if missing:
        raise StoreCorrupt(
            f"The store in {files.directory} lacks {files.segment(missing[0]).name}: the segments "
            f"{first} to {segments[-1]} belong together. Restore the directory from a backup."
        )
    size = 0
    for number in expected:
        path = files.segment(number)
        with SegmentReader(path, FileKind.SEGMENT) as reader:
            _check_place(reader, number, replay.sequence)
            replay.records(reader)
            torn = _check_end(reader, is_last=number == segments[-1])
        size += reader.position
    replay.finish()
    segment = Segment.resume(disk, reader)
    try:
        if torn:
            warnings.warn(torn, stacklevel=4)
            segment.cut()
        segment.sync()
    except BaseException:
        segment.close()
        raise
    return Recovered(replay.core, segment, replay.schema, first, size, replay.last)


def _load_snapshot(
    files: StoreFiles, segments: list[int], make_core: Callable[[], CoreT], setup: dict[str, Any]
) -> tuple[int, _Replay[CoreT]]:
    """The newest snapshot that can be read, and the number of the segment to go on with."""
    problem: StoreCorrupt | None = None
    for number in reversed(files.snapshots()):
        if number not in segments:
            raise StoreCorrupt(
                f"The store in {files.directory} holds {files.snapshot(number).name} but lacks "
                f"{files.segment(number).name}, in which the changes since then are. Restore the "
                f"directory from a backup."
            )
        replay = _Replay(make_core(), setup, files.directory)
        try:
            with SegmentReader(files.snapshot(number), FileKind.SNAPSHOT, mapped=True) as reader:
                _check_place(reader, number, reader.sequence)
                replay.records(reader)
                if not replay.loaded:
                    raise _damaged(reader, reader.flaw or "the queue itself is missing")
        except StoreCorrupt as error:
            problem = problem or error
            continue
        if problem:
            _warn_skipped(problem, files.snapshot(number).name)
        replay.sequence = reader.preamble.sequence
        return number, replay
    if segments[0] != 1:
        raise problem or StoreCorrupt(
            f"The store in {files.directory} begins with {files.segment(segments[0]).name} and "
            f"has no snapshot of what was before. Restore the directory from a backup."
        )
    if problem:
        _warn_skipped(problem, files.segment(1).name)
    return 1, _Replay(make_core(), setup, files.directory)


def _check_place(reader: SegmentReader, number: int, sequence: int) -> None:
    """A file must be the one that its name says, and follow on the one before."""
    preamble = reader.preamble
    if preamble.number != number or preamble.sequence != sequence:
        raise StoreCorrupt(
            f"{reader.path} holds the records from {preamble.sequence} on and says that it is "
            f"number {preamble.number}; here, number {number} must go on with record {sequence}. "
            f"Was a file renamed, or taken from another directory or another time? Restore the "
            f"whole directory from one backup."
        )


def _check_end(reader: SegmentReader, *, is_last: bool) -> JournalCutWarning | None:
    """What to cut off the end of a segment; an error if it was once acknowledged."""
    if not is_last:
        if reader.flaw:
            raise _damaged(reader, reader.flaw)
        return None
    whole = 0
    end = reader.position
    for record in reader.later():
        if record.durable >= reader.sequence:
            raise _damaged(reader, reader.flaw or "zeros are there instead of a record")
        whole += 1
        end = record.end
    if reader.flaw is None and not whole:
        return None
    reason = reader.flaw or "zeros are there instead of a record"
    size = max(end, reader.flaw_end) - reader.position
    return JournalCutWarning(reader.path, reader.position, size, whole, reason)


def _damaged(reader: SegmentReader, reason: str) -> StoreCorrupt:
    return StoreCorrupt(
        f"{reader.path} is damaged at byte {reader.position} (record {reader.sequence}): {reason}. "
        f"What stood there had reached the disk and was acknowledged, so this is not the trace of "
        f"a crash, and nothing was changed. Restore the directory from a backup; to give up "
        f"everything from that byte on, truncate the file there and remove later segments."
    )


def _warn_skipped(problem: StoreCorrupt, instead: str) -> None:
    warnings.warn(
        SnapshotSkippedWarning(f"Recovery went back to {instead} and lost nothing: {problem}"),
        stacklevel=6,
    )


class _Replay(Generic[CoreT]):
    """Hands records to a queue, in order and across files."""

    def __init__(self, core: CoreT, setup: dict[str, Any], directory: Path) -> None:
        self.core = core
        self.schema: pa.Schema | None = None
        self.sequence = 1  # of the next record
        self.loaded = False
        self.last = Kind.SETUP
        self._setup = setup
        self._directory = directory
        self._format: RowFormat | None = None
        self._put: Record | None = None  # held back until it is known how many rows it kept

    def records(self, reader: SegmentReader) -> None:
        """Replay a file up to its end, or to where it stops being readable."""
        for record in reader:
            try:
                self._apply(record)
            except ConfigError:
                raise
            except (UpstreamError, ValueError, KeyError, OSError, pa.ArrowException) as error:
                raise StoreCorrupt(
                    f"{reader.path}: record {record.sequence} ({record.kind.name.lower()}) at byte "
                    f"{record.offset} is whole but cannot be replayed: {error}"
                ) from error
            self.last = record.kind
        self.sequence = reader.sequence

    def finish(self) -> None:
        """There are no more records."""
        if self._put:
            rows = self._rows(self._put)
            self._replay_put(self._put, rows, rows.num_rows)

    def _apply(self, record: Record) -> None:
        if self._put:
            rows = self._rows(self._put)
            stopped = record.kind is Kind.STOPPED
            self._replay_put(self._put, rows, record.meta if stopped else rows.num_rows)
        meta, buffers = record.meta, record.buffers
        match record.kind:
            case Kind.SETUP:
                _check_setup(meta, self._setup, self._directory)
            case Kind.SCHEMA:
                schema = decode_schema(buffers[0])
                if self.schema is None or not schema.equals(self.schema, check_metadata=True):
                    self.core.bind(schema)
                    self.schema = schema
                    self._format = RowFormat(schema)
            case Kind.PUT:
                self._put = record
            case Kind.PLANNED:
                self.core.replay_planned(meta, buffers)
            case Kind.SETTLED:
                self.core.replay_settled(*meta)
            case Kind.FREED:
                kind, now = meta
                self.core.replay_freed(kind, np.frombuffer(buffers[0], np.uint32), now)
            case Kind.DUMP:
                self.core.load(meta, buffers)
                self.loaded = True

    def _rows(self, record: Record) -> pa.RecordBatch:
        if self._format is None:
            raise ValueError("the schema of the rows is missing")
        return self._format.decode(record.buffers[0])

    def _replay_put(self, record: Record, rows: pa.RecordBatch, count: int) -> None:
        self._put = None
        arrived = None
        if len(record.buffers) > 1:
            arrived = np.frombuffer(record.buffers[1], np.float64)
        self.core.replay_put(rows, arrived, record.meta, count)


def _check_setup(found: dict[str, Any], asked: dict[str, Any], directory: Path) -> None:
    """A queue can only be opened as what it was made."""
    differences = [
        f"{name} is {found.get(name)!r} there, {asked.get(name)!r} was asked for"
        for name in sorted(found.keys() | asked.keys())
        if found.get(name) != asked.get(name)
    ]
    if differences:
        raise ConfigError(
            f"The store in {directory} holds another queue: {'; '.join(differences)}. Open it "
            f"with the options it was made with, or give the new queue a directory of its own. "
            f"(Policy, weights, costs and limits may change at any time.)"
        )
