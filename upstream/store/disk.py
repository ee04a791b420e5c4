"""The calls to the operating system that the store makes, in one place.

A test replaces a `Disk` to let each call fail in turn, or to forget what was not synced.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["Disk", "explain"]

# How many pieces one call of writev takes; Linux and macOS both stop at 1024.
_PIECES_PER_CALL = 1024

_sync_data = getattr(os, "fdatasync", os.fsync)


class Disk:
    """Files, written by position and synced on request."""

    def open(self, path: Path, *, create: bool = False) -> int:
        flags = os.O_RDWR | (os.O_CREAT | os.O_TRUNC if create else 0)
        return os.open(path, flags, 0o644)

    def write(self, fd: int, pieces: Sequence[Buffer], offset: int) -> int:
        """Write all pieces from `offset` on, without joining them; return their size."""
        start = offset
        for first in range(0, len(pieces), _PIECES_PER_CALL):
            group = pieces[first : first + _PIECES_PER_CALL]
            size = sum(memoryview(piece).nbytes for piece in group)
            written = self.write_some(fd, group, offset)
            while written < size:
                # A full disk or a signal ends a write early. The next call goes on
                # where it stopped; on a full disk it says so.
                more = self.write_some(fd, _after(group, written), offset + written)
                if more == 0:
                    raise OSError(errno.EIO, "the file system took none of the bytes")
                written += more
            offset += size
        return offset - start

    def write_some(self, fd: int, pieces: Sequence[Buffer], offset: int) -> int:
        return os.pwritev(fd, pieces, offset)

    def start_writing(self, fd: int, offset: int, size: int) -> None:
        """Send these bytes on their way to the disk, and do not wait for them.

        Linux does so when it is told that they will not be read soon. The sync that follows
        finds them written, or nearly so; it is needed all the same.
        """
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(fd, offset, size, os.POSIX_FADV_DONTNEED)

    def sync(self, fd: int) -> None:
        """Return when the bytes of a file, and its size, are on the disk."""
        _sync_data(fd)

    def sync_directory(self, path: Path) -> None:
        """Return when the names in a directory are on the disk."""
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def truncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def close(self, fd: int) -> None:
        os.close(fd)

    def rename(self, old: Path, new: Path) -> None:
        os.rename(old, new)

    def remove(self, path: Path) -> None:
        os.unlink(path)


def explain(error: OSError) -> str:
    """What an error of the operating system means for a store, as the end of a sentence."""
    hints = {
        errno.ENOSPC: "the disk is full; make room, then go on",
        errno.EDQUOT: "the disk quota is used up; make room, then go on",
        errno.EFBIG: "the file may not grow further; raise the limit (ulimit -f), then go on",
        errno.EROFS: "the file system is mounted read-only",
        errno.EACCES: "this user may not write there; check the owner and the permissions",
        errno.EPERM: "this user may not write there; check the owner and the permissions",
        errno.EIO: "the disk reports a hardware error",
        errno.ENOENT: "the file is gone; was the directory removed or moved?",
        errno.EMFILE: "this process has too many open files; raise the limit (ulimit -n)",
    }
    said = error.strerror or str(error)
    hint = hints.get(error.errno or 0)
    return f"{said} ({hint})" if hint else said


def _after(pieces: Sequence[Buffer], skip: int) -> list[memoryview]:
    """What is left of the pieces behind their first `skip` bytes."""
    rest = []
    for piece in pieces:
        view = memoryview(piece)
        if skip >= view.nbytes:
            skip -= view.nbytes
            continue
        rest.append(view.cast("B")[skip:])
        skip = 0
    return rest
