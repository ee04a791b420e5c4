"""From files back to a queue: after power cuts, and with damaged files."""

from __future__ import annotations

import errno
import warnings
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from tests.upstream.store.failing_disks import Dead, ForgetfulDisk
from tests.upstream.store.ledger import (
    SMALL,
    Course,
    abandon,
    flip,
    open_and_close,
    open_ledger,
    records,
    reopened,
    segments,
    steps,
    take,
)
from upstream.errors import StoreCorrupt
from upstream.store.disk import Disk
from upstream.store.recovery import JournalCutWarning, SnapshotSkippedWarning

pytestmark = pytest.mark.filterwarnings(
    # A disk that dies takes the compacting thread with it.
    "ignore::pytest.PytestUnhandledThreadExceptionWarning"
)


@pytest.mark.parametrize("durability", ["sync", "async"])
def test_a_power_cut_takes_only_what_was_not_synced(tmp_path: Path, durability: str) -> None:
    cuts = 0
    for seed in range(40):
        disk = ForgetfulDisk(seed)
        length = 5 + seed % 30
        course = Course(seed, length)
        options: dict[str, Any] = {"durability": durability, "compact_after_bytes": SMALL}
        if durability == "async":
            options["sync_interval_seconds"] = 3600
        ledger = open_ledger(tmp_path / f"{seed}", disk, **options)
        take(ledger, seed, length)
        after = tmp_path / f"{seed} after"
        disk.power_cut(after)
        abandon(ledger)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            survived = open_and_close(after)
        assert all(warning.category is JournalCutWarning for warning in caught)
        cuts += len(caught)
        if durability == "sync":
            assert survived == course.states[-1]
        else:
            assert survived in set().union(*course.left_by_crash)
    assert (cuts > 10) == (durability == "async")


def test_a_power_cut_before_the_sync_leaves_a_call_whole_or_absent(tmp_path: Path) -> None:
    outcomes = set()
    for seed in range(40):
        disk = SyncStops(seed)
        length = 3 + seed % 20
        course = Course(seed, length)
        ledger = open_ledger(tmp_path / f"{seed}", disk, compact_after_bytes=SMALL)
        take(ledger, seed, length - 1)
        disk.stopped = True
        with pytest.raises(Dead):
            next(islice(steps(seed), length - 1, None))(ledger)
        disk.power_cut(tmp_path / f"{seed} after")
        abandon(ledger)
        survived = reopened(tmp_path / f"{seed} after")
        assert survived in course.left_by_crash[length - 1]
        outcomes.add(survived == course.states[-2])
    assert outcomes == {True, False}


def test_what_was_seen_after_a_crash_stays(tmp_path: Path) -> None:
    for seed in range(20):
        disk = SyncStops(seed)
        ledger = open_ledger(tmp_path / f"{seed}", disk)
        take(ledger, seed, 5)
        disk.stopped = True
        with pytest.raises(Dead):
            ledger.settle(1, 1.0)
        abandon(ledger)
        # The process is gone, the machine is not: the next one finds what was not synced.
        disk.stopped = False
        ledger = open_ledger(tmp_path / f"{seed}", disk)
        assert ledger.calls == 6
        disk.power_cut(tmp_path / f"{seed} after")
        abandon(ledger)
        assert reopened(tmp_path / f"{seed} after") == ledger.state


class SyncStops(ForgetfulDisk):
    stopped = False

    def sync(self, fd: int) -> None:
        if self.stopped:
            raise Dead
        super().sync(fd)


# -- damage ----------------------------------------------------------------------------


@pytest.fixture
def closed(tmp_path: Path) -> Path:
    """A directory with one segment, closed in order."""
    ledger = open_ledger(tmp_path)
    take(ledger, seed=5, length=12)
    ledger.close()
    return tmp_path


def test_a_damaged_record_is_an_error_and_nothing_is_changed(closed: Path) -> None:
    (path,) = segments(closed)
    image = path.read_bytes()
    for record in records(path)[:-1]:
        flip(path, record.offset + 70)
        damaged = path.read_bytes()
        with pytest.raises(StoreCorrupt, match=rf"damaged at byte {record.offset} \(record "):
            open_ledger(closed)
        assert path.read_bytes() == damaged
        path.write_bytes(image)
    assert open_and_close(closed) == Course(5, 12).states[-1]


def test_zeros_instead_of_a_record_are_an_error(closed: Path) -> None:
    (path,) = segments(closed)
    record = records(path)[4]
    with path.open("r+b") as file:
        file.seek(record.offset)
        file.write(bytes(record.end - record.offset))
    with pytest.raises(StoreCorrupt, match="zeros are there instead of a record"):
        open_ledger(closed)


def test_a_torn_end_is_cut_and_reported(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    take(ledger, seed=5, length=12)
    abandon(ledger)
    (path,) = segments(tmp_path)
    last = records(path)[-1]
    flip(path, last.end - 1)
    with pytest.warns(JournalCutWarning) as caught:
        ledger = open_ledger(tmp_path)
    (warning,) = [entry.message for entry in caught]
    assert isinstance(warning, JournalCutWarning)
    assert (warning.path, warning.offset) == (path, last.offset)
    assert warning.size == last.end - last.offset
    assert f"was cut at byte {last.offset}: the checksum of the record" in str(warning)
    assert ledger.state == Course(5, 11).states[-1]
    assert path.stat().st_size == last.offset
    ledger.close()
    assert open_and_close(tmp_path) == Course(5, 11).states[-1]  # and no second warning


def test_a_missing_segment_is_named(tmp_path: Path) -> None:
    later = chain(tmp_path, 3)
    later[1].unlink()
    with pytest.raises(StoreCorrupt, match=rf"lacks {later[1].name}"):
        open_ledger(tmp_path)


def test_a_missing_snapshot_is_named(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path, compact_after_bytes=SMALL)
    take(ledger, seed=1, length=100)
    ledger.close()
    (snapshot,) = tmp_path.glob("snapshot-*")
    content = snapshot.read_bytes()
    snapshot.unlink()
    with pytest.raises(StoreCorrupt, match="has no snapshot of what was before"):
        open_ledger(tmp_path)
    snapshot.write_bytes(content[:-200] + bytes(200))
    with pytest.raises(StoreCorrupt, match=rf"{snapshot.name} is damaged"):
        open_ledger(tmp_path)
    snapshot.write_bytes(content)
    segments(tmp_path)[0].unlink()
    with pytest.raises(StoreCorrupt, match=rf"holds {snapshot.name} but lacks journal"):
        open_ledger(tmp_path)


def test_an_older_segment_in_place_of_a_newer_is_an_error(tmp_path: Path) -> None:
    one, two, three = chain(tmp_path, 3)
    two.write_bytes(one.read_bytes())
    with pytest.raises(StoreCorrupt, match="Was a file renamed"):
        open_ledger(tmp_path)
    two.unlink()
    three.rename(two)
    with pytest.raises(StoreCorrupt, match="Was a file renamed"):
        open_ledger(tmp_path)


def test_a_segment_that_is_too_short_is_an_error(tmp_path: Path) -> None:
    one, _, _ = chain(tmp_path, 3)
    last = records(one)[-1]
    one.write_bytes(one.read_bytes()[: last.offset])
    with pytest.raises(StoreCorrupt, match="must go on with record"):
        open_ledger(tmp_path)


def test_a_broken_snapshot_with_all_segments_costs_only_a_warning(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path, KeepsEverything(), compact_after_bytes=SMALL)
    expected = take(ledger, seed=1, length=60)
    ledger.close()
    newest = max(tmp_path.glob("snapshot-*"))
    flip(newest, newest.stat().st_size - 100)
    with pytest.warns(SnapshotSkippedWarning, match=newest.name):
        assert open_and_close(tmp_path) == expected


class KeepsEverything(Disk):
    """Neither removes nor recycles what is no longer needed."""

    def remove(self, path: Path) -> None:
        raise OSError(errno.EACCES, "Permission denied")

    def rename(self, old: Path, new: Path) -> None:
        if new.name == "journal-spare.log":
            raise OSError(errno.EACCES, "Permission denied")
        super().rename(old, new)


def chain(directory: Path, length: int) -> list[Path]:
    """Segments 1 to `length`, none of them replaced by a snapshot."""

    class NoSnapshots(Disk):
        def rename(self, old: Path, new: Path) -> None:
            if new.suffix == ".bin":
                raise OSError(errno.ENOSPC, "No space left on device")
            super().rename(old, new)

    ledger = open_ledger(directory, NoSnapshots(), compact_after_bytes=SMALL)
    for step in steps(6):
        step(ledger)
        if len(segments(directory)) == length:
            break
    ledger.close()
    return segments(directory)
