"""The names in a store's directory."""

from __future__ import annotations

import os
import re
from pathlib import Path

from upstream.errors import StoreError
from upstream.store.disk import Disk, explain

__all__ = ["StoreFiles"]


class StoreFiles:
    """Which files there are.

    Snapshot n holds the queue as it was when segment n began; recovery loads the newest
    snapshot and replays the segments from that number on. Segment 1 needs no snapshot.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.spare = directory / "journal-spare.log"  # a retired segment, to be written over

    def segment(self, number: int) -> Path:
        return self.directory / f"journal-{number:08d}.log"

    def snapshot(self, number: int) -> Path:
        return self.directory / f"snapshot-{number:08d}.bin"

    def segments(self) -> list[int]:
        """The numbers of the segments, ascending."""
        return self._numbers(re.compile(r"journal-(\d+)\.log"))

    def snapshots(self) -> list[int]:
        """The numbers of the snapshots, ascending."""
        return self._numbers(re.compile(r"snapshot-(\d+)\.bin"))

    def unfinished(self) -> list[Path]:
        """What a crash left half made; nobody needs it."""
        return list(self.directory.glob("*.tmp"))

    def prepare(self, disk: Disk) -> None:
        """Make the directory if it is missing, but not the path to it."""
        path = self.directory
        if path.is_dir():
            return
        if path.exists():
            raise StoreError(
                f"The store needs a directory, but {path} is a file. Name a directory that "
                f"belongs to the queue alone."
            )
        try:
            os.mkdir(path)
            disk.sync_directory(path.parent)
        except FileNotFoundError as error:
            raise StoreError(
                f"The store's directory {path} cannot be made, because {path.parent} does not "
                f"exist. Is the path misspelt, or a disk not mounted? Only the last part of it "
                f"is made when missing."
            ) from error
        except OSError as error:
            raise StoreError(
                f"The store's directory {path} cannot be made: {explain(error)}."
            ) from error

    def _numbers(self, pattern: re.Pattern[str]) -> list[int]:
        matches = (pattern.fullmatch(name) for name in os.listdir(self.directory))
        return sorted(int(match[1]) for match in matches if match)
