"""The store grows with its keys, not with its updates."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from tests.upstream.store.ledger import (
    SMALL,
    Ledger,
    State,
    abandon,
    open_and_close,
    open_ledger,
    records,
    reopened,
    segments,
    take,
)
from upstream.store.disk import Disk
from upstream.store.segment import Kind, Record


def test_size_follows_keys_not_updates(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path, NoWaiting(), compact_after_bytes=SMALL)
    sizes = []
    journal: Any = ledger.log
    for number in range(1000):
        ledger.put([f"key {number % 10}"] * 8, number)
        journal._compaction.wait()
        sizes.append(size_of(tmp_path))
    written = 1000 * min(record.end - record.offset for record in puts_in(tmp_path))
    ledger.close()
    # A snapshot, the segment before and after it, and the spare one.
    assert max(sizes) < 4 * (SMALL + 2048)
    assert written > 20 * max(sizes)
    # And it is not compacted more often than it grows.
    assert len(list(tmp_path.glob("snapshot-*"))) == 1
    assert int(segments(tmp_path)[-1].stem[-8:]) <= written / SMALL + 1
    again = open_ledger(tmp_path)
    assert again.values == ledger.values
    again.close()


class NoWaiting(Disk):
    """For tests that write much and lose nothing."""

    def sync(self, fd: int) -> None:
        pass


def puts_in(directory: Path) -> list[Record]:
    return [record for record in records(segments(directory)[0]) if record.kind is Kind.PUT]


def size_of(directory: Path) -> int:
    total = 0
    for entry in os.scandir(directory):
        try:
            total += entry.stat().st_size
        except FileNotFoundError:
            continue  # compaction has just removed it
    return total


def test_a_queue_that_is_large_is_not_compacted_all_the_time(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path, compact_after_bytes=SMALL)
    ledger.put([f"key {number}" for number in range(10_000)], 0)
    ledger.put(["key 1"], 1)
    ledger.close()
    assert [path.name for path in segments(tmp_path)] == ["journal-00000001.log"]


def test_a_retired_segment_is_written_over(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path, NoWaiting(), compact_after_bytes=SMALL)
    inodes: set[int] = set()
    journal: Any = ledger.log
    for number in range(300):
        ledger.put(["key"] * 8, number)
        journal._compaction.wait()
        inodes.update(path.stat().st_ino for path in tmp_path.glob("journal-*"))
    ledger.close()
    assert segments(tmp_path)[-1].name > "journal-00000010.log"
    assert len(inodes) == 2


def test_compaction_that_fails_is_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = NoRoomForSnapshots()
    ledger = open_ledger(tmp_path, disk, compact_after_bytes=SMALL)
    expected = take(ledger, seed=7, length=60)
    assert "could not be compacted: No space left on device (the disk is full" in caplog.text
    assert list(tmp_path.glob("*.bin")) == []
    assert reopened_copy(ledger, tmp_path) == expected
    disk.full = False
    ledger = open_ledger(tmp_path, disk, compact_after_bytes=SMALL)
    expected = take(ledger, seed=8, length=60)
    ledger.close()
    assert len(list(tmp_path.glob("*.bin"))) == 1
    assert open_and_close(tmp_path) == expected


def reopened_copy(ledger: Ledger, directory: Path) -> State:
    abandon(ledger)
    return reopened(directory)


class NoRoomForSnapshots(Disk):
    full = True

    def open(self, path: Path, *, create: bool = False) -> int:
        if self.full and path.name.startswith("snapshot"):
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().open(path, create=create)
