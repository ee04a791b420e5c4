"""A file of records, each behind its own checksum.

    preamble    64 bytes   what the file is, its number, its salt
    record      64 bytes   salt, sequence number, durable, kind, sizes, checksum
                ...        meta as JSON, then the buffers as they lie in memory
    record      ...
    end mark    64 zeros   the next record overwrites it
    stale       ...        what an earlier life of the file has left

Everything begins at a multiple of 64 bytes. The salt is drawn anew for each file and seeds
every checksum in it, so that no record of another file, nor of an earlier life of this one,
is ever taken for one of its own. Sequence numbers go on from file to file without a gap.

`durable` is the newest sequence number that was on the disk for certain when the record was
written. It is what tells a torn tail from damage: a record that cannot be read was never
acknowledged, unless a later one says that it had reached the disk.
"""

from __future__ import annotations

import json
import mmap
import os
import secrets
import struct
from collections.abc import Iterator, Sequence
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
import xxhash

from upstream.errors import StoreCorrupt, StoreError
from upstream.store.disk import Disk

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["Entry", "FileKind", "Kind", "Preamble", "Record", "Segment", "SegmentReader"]

FORMAT = 1
ALIGN = 64

_MAGIC = b"UPSTREAM"
_PREAMBLE = struct.Struct("<8sIIQQQ16x")  # magic, format, file kind, number, sequence, salt
_HEAD = struct.Struct("<QQQIIQ16x")  # salt, sequence, durable, kind, meta bytes, body bytes
_CHECKSUM = struct.Struct("<Q")
_END_MARK = bytes(ALIGN)
# Below this size, joining the pieces costs less than handing each of them over.
_JOIN_BELOW = 16 * 1024
_READ_CHUNK = 8 * 1024 * 1024


class FileKind(IntEnum):
    """What a file is for."""

    SEGMENT = 1
    SNAPSHOT = 2


class Kind(IntEnum):
    """What a record says. The numbers are on disk: never give one a new meaning."""

    SETUP = 1  # which queue the file belongs to
    SCHEMA = 2  # the columns of the rows that follow
    PUT = 3
    STOPPED = 4  # of the put before it, only so many rows were taken
    PLANNED = 5
    SETTLED = 6
    FREED = 7
    DUMP = 8  # a whole queue
    CLOSED = 9  # nothing new; testifies that all before it is on the disk


class Entry(NamedTuple):
    """A record to be written; each buffer is given in pieces that are not joined."""

    kind: Kind
    meta: Any
    buffers: Sequence[Sequence[Buffer]] = ()


class Record(NamedTuple):
    """A record as it was read."""

    kind: Kind
    sequence: int
    durable: int
    meta: Any
    buffers: list[memoryview]
    offset: int
    end: int


class Preamble(NamedTuple):
    """The first 64 bytes of a file."""

    kind: FileKind
    number: int
    sequence: int  # of the first record
    salt: int

    def encode(self) -> bytes:
        fields = _PREAMBLE.pack(_MAGIC, FORMAT, self.kind, self.number, self.sequence, self.salt)
        return fields + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(fields))

    @classmethod
    def decode(cls, data: bytes, path: Path, expected: FileKind) -> Preamble:
        if not data.startswith(_MAGIC):
            raise StoreCorrupt(
                f"{path} is not a file of Upstream: it begins with {data[:8]!r} instead of "
                f"{_MAGIC!r}. If it lies there by mistake, move it away; if it was a part of "
                f"the store, restore the directory from a backup."
            )
        fields = data[: _PREAMBLE.size]
        if len(data) < ALIGN or data[_PREAMBLE.size :] != _CHECKSUM.pack(
            xxhash.xxh3_64_intdigest(fields)
        ):
            raise StoreCorrupt(
                f"The first {ALIGN} bytes of {path} do not fit their checksum, so nothing in it "
                f"can be trusted. Restore the directory from a backup."
            )
        _, version, kind, number, sequence, salt = _PREAMBLE.unpack(fields)
        if version != FORMAT:
            raise StoreError(
                f"{path} has format {version}; this version of Upstream reads format {FORMAT}. "
                f"Open it with the version that wrote it."
            )
        if kind != expected:
            raise StoreCorrupt(
                f"{path} says that it is a {FileKind(kind).name.lower()}, its name says "
                f"{expected.name.lower()}. Was it renamed?"
            )
        return cls(expected, number, sequence, salt)


class Segment:
    """A file to which records are appended.

    The caller decides when to sync, and what to do when a write fails: `cut` takes the file
    back to the end of its last whole record.
    """

    def __init__(
        self, disk: Disk, path: Path, fd: int, preamble: Preamble, position: int, sequence: int
    ) -> None:
        self.path = path
        self.number = preamble.number
        self.position = position  # where the next record begins
        self.sequence = sequence  # of the next record
        self._disk = disk
        self._fd = fd
        self._salt = preamble.salt

    @classmethod
    def create(
        cls,
        disk: Disk,
        path: Path,
        kind: FileKind,
        number: int,
        sequence: int,
        *,
        reuse: bool = False,
    ) -> Self:
        """Begin a file; with `reuse`, over the bytes of one that is there."""
        preamble = Preamble(kind, number, sequence, secrets.randbits(63) + 1)
        fd = disk.open(path, create=not reuse)
        try:
            disk.write(fd, [preamble.encode(), _END_MARK], 0)
        except BaseException:
            disk.close(fd)
            raise
        return cls(disk, path, fd, preamble, ALIGN, sequence)

    @classmethod
    def resume(cls, disk: Disk, reader: SegmentReader) -> Self:
        """Go on behind the last whole record that a reader found."""
        fd = disk.open(reader.path)
        return cls(disk, reader.path, fd, reader.preamble, reader.position, reader.sequence)

    def append(self, entries: Sequence[Entry], durable: int) -> int:
        """Write records by one call; return their size in bytes."""
        pieces: list[Buffer] = []
        size = 0
        for number, entry in enumerate(entries, self.sequence):
            size += _frame(pieces, entry, self._salt, number, durable)
        pieces.append(_END_MARK)
        self._disk.write(self._fd, pieces, self.position)
        self.position += size
        self.sequence += len(entries)
        return size

    def start_writing(self, size: int) -> None:
        """Let the disk begin with the last `size` bytes."""
        self._disk.start_writing(self._fd, self.position - size, size)

    def sync(self) -> None:
        self._disk.sync(self._fd)

    def cut(self) -> None:
        """Forget what lies behind the last whole record."""
        self._disk.truncate(self._fd, self.position)

    def close(self) -> None:
        self._disk.close(self._fd)


def _frame(pieces: list[Buffer], entry: Entry, salt: int, sequence: int, durable: int) -> int:
    """Append the pieces of one record; return its size."""
    sizes = [sum(memoryview(piece).nbytes for piece in buffer) for buffer in entry.buffers]
    text = json.dumps([entry.meta, sizes], separators=(",", ":")).encode()
    body: list[Buffer] = [text, bytes(-len(text) % ALIGN)]
    for buffer, size in zip(entry.buffers, sizes, strict=True):
        body.extend(buffer)
        body.append(bytes(-size % ALIGN))
    size = _padded(len(text)) + sum(map(_padded, sizes))
    if size < _JOIN_BELOW:
        body = [b"".join(body)]
    head = _HEAD.pack(salt, sequence, durable, entry.kind, len(text), size)
    digest = xxhash.xxh3_64(head, seed=salt)
    for piece in body:
        digest.update(piece)
    pieces.append(head + _CHECKSUM.pack(digest.intdigest()))
    pieces.extend(body)
    return ALIGN + size


class SegmentReader:
    """The records of a file, up to the first that is not whole.

    Afterwards `position` and `sequence` say where the next record would begin, and `flaw`
    what is wrong with the bytes there, if anything is. With `mapped`, buffers are views of
    the file instead of copies: for files that nobody writes to any more.
    """

    def __init__(self, path: Path, kind: FileKind, *, mapped: bool = False) -> None:
        self.path = path
        self._file = path.open("rb", buffering=1024 * 1024)
        try:
            self.size = os.fstat(self._file.fileno()).st_size
            self.preamble = Preamble.decode(self._file.read(ALIGN), path, kind)
        except BaseException:
            self._file.close()
            raise
        self.position = ALIGN
        self.sequence = self.preamble.sequence
        self.flaw: str | None = None
        self.flaw_end = 0  # where the bytes end that the flaw concerns
        self._map: memoryview | None = None
        if mapped:
            self._map = memoryview(mmap.mmap(self._file.fileno(), 0, prot=mmap.PROT_READ))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __iter__(self) -> Iterator[Record]:
        while True:
            self._file.seek(self.position)
            head = self._file.read(ALIGN)
            if not head or head == _END_MARK:
                return
            self.flaw = self._flaw_in(head, self.position, self.sequence)
            record = None if self.flaw else self._read(head, self.position)
            if record is None:
                self.flaw = self.flaw or "the checksum of the record does not fit its content"
                self.flaw_end = self._claimed_end(head)
                return
            self.position = record.end
            self.sequence += 1
            yield record

    def later(self) -> Iterator[Record]:
        """Whole records of this file that lie beyond the place where reading stopped."""
        start = self.position
        for chunk in range(start, self.size, _READ_CHUNK):
            self._file.seek(chunk)
            data = self._file.read(_READ_CHUNK)
            words = np.frombuffer(data, "<u8", len(data) // ALIGN * (ALIGN // 8))
            for hit in np.flatnonzero(words[:: ALIGN // 8] == self.preamble.salt):
                offset = chunk + int(hit) * ALIGN
                self._file.seek(offset)
                head = self._file.read(ALIGN)
                if offset > start and self._flaw_in(head, offset, None) is None:
                    record = self._read(head, offset)
                    if record is not None:
                        yield record

    def _claimed_end(self, head: bytes) -> int:
        """Where a record ends that cannot be read, as far as its header can be believed."""
        if len(head) == ALIGN:
            salt, *_, body = _HEAD.unpack_from(head)
            if salt == self.preamble.salt:
                end: int = self.position + ALIGN + body
                return min(end, self.size)
        return self.size

    def _flaw_in(self, head: bytes, offset: int, sequence: int | None) -> str | None:
        if len(head) < ALIGN:
            return f"the file ends within the first {ALIGN} bytes of a record"
        salt, found, _, _, meta, body = _HEAD.unpack_from(head)
        if salt != self.preamble.salt:
            return "no record of this file begins there"
        if sequence is not None and found != sequence:
            return f"the record there has number {found}, its turn is {sequence}"
        if meta > body or offset + ALIGN + body > self.size:
            return f"the file ends within a record of {ALIGN + body} bytes"
        return None

    def _read(self, head: bytes, offset: int) -> Record | None:
        """The record behind a header, or None if its checksum does not fit."""
        salt, sequence, durable, kind, meta, body = _HEAD.unpack_from(head)
        digest = xxhash.xxh3_64(head[: _HEAD.size], seed=salt)
        if self._map is None:
            data = self._file.read(body)
            digest.update(data)
            view = memoryview(data)
        else:
            # Read once before mapping: a failing disk then raises an error instead of a signal.
            for left in range(body, 0, -_READ_CHUNK):
                digest.update(self._file.read(min(left, _READ_CHUNK)))
            view = self._map[offset + ALIGN : offset + ALIGN + body]
        if head[_HEAD.size :] != _CHECKSUM.pack(digest.intdigest()):
            return None
        content, sizes = json.loads(bytes(view[:meta]))
        buffers = []
        at = _padded(meta)
        for size in sizes:
            buffers.append(view[at : at + size])
            at += _padded(size)
        end = offset + ALIGN + body
        return Record(Kind(kind), sequence, durable, content, buffers, offset, end)


def _padded(size: int) -> int:
    return size + -size % ALIGN
