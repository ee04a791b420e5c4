"""What a journal promises, whatever fails: all that was acknowledged, in order, or an error."""

from __future__ import annotations

import errno
import os
import threading
import warnings
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import Any

import pytest

from tests.upstream.store.ledger import (
    Dead,
    DyingDisk,
    FailingDisk,
    ForgetfulDisk,
    Ledger,
    State,
    Step,
    abandon,
    open_ledger,
    steps,
)
from upstream.errors import ConfigError, StoreCorrupt, StoreError, StoreLocked
from upstream.store.disk import Disk
from upstream.store.group_commit import GroupCommit
from upstream.store.recovery import JournalCutWarning, SnapshotSkippedWarning
from upstream.store.segment import FileKind, Kind, Record, SegmentReader

pytestmark = pytest.mark.filterwarnings(
    # A disk that dies takes the compacting thread with it.
    "ignore::pytest.PytestUnhandledThreadExceptionWarning"
)

SMALL = 2048  # bytes after which these tests compact


class Course:
    """The states that a ledger goes through, and those that a crash may leave."""

    def __init__(self, seed: int, length: int) -> None:
        ledger = Ledger()
        self.states = [ledger.state]
        self.left_by_crash = []  # in the call after each state
        for step in islice(steps(seed), length):
            # A crash may come after a put is written and before it is known where it stopped.
            # Nobody was told anything then, and all its rows count.
            whole = Ledger()
            whole.calls, whole.hash = ledger.state
            whole.forgets_stops = True
            step(whole)
            step(ledger)
            self.left_by_crash.append({self.states[-1], whole.state, ledger.state})
            self.states.append(ledger.state)
        self.left_by_crash.append({self.states[-1]})


def take(ledger: Ledger, seed: int, length: int) -> State:
    for step in islice(steps(seed), length):
        step(ledger)
    return ledger.state


def records(path: Path, kind: FileKind = FileKind.SEGMENT) -> list[Record]:
    with SegmentReader(path, kind) as reader:
        return list(reader)


def segments(directory: Path) -> list[Path]:
    return sorted(directory.glob("journal-0*.log"))


def flip(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 0xFF]))


# -- coming back ----------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["sync", "async"])
@pytest.mark.parametrize("compact_after", [SMALL, 1 << 20])
def test_everything_comes_back(tmp_path: Path, durability: str, compact_after: int) -> None:
    options: dict[str, Any] = {"durability": durability, "compact_after_bytes": compact_after}
    ledger = open_ledger(tmp_path, **options)
    expected = take(ledger, seed=1, length=100)
    ledger.close()
    for _ in range(2):
        again = open_ledger(tmp_path, **options)
        assert again.state == expected
        assert again.values == ledger.values
        again.close()


def test_a_process_that_just_ends_loses_nothing(tmp_path: Path) -> None:
    expected = Course(seed=2, length=50).states
    for start in range(0, 50, 10):
        ledger = open_ledger(tmp_path, durability="async")
        assert ledger.state == expected[start]
        for step in islice(steps(2), start, start + 10):
            step(ledger)
        abandon(ledger)
    assert open_and_close(tmp_path) == expected[50]


def test_closing_twice_is_closing(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    ledger.close()
    size = segments(tmp_path)[0].stat().st_size
    ledger.close()
    assert open_and_close(tmp_path) == (0, 0)
    assert segments(tmp_path)[0].stat().st_size == size


def open_and_close(directory: Path, **options: Any) -> State:
    ledger = open_ledger(directory, **options)
    ledger.close()
    return ledger.state


# -- dying and failing at every call to the operating system -----------------------------


@pytest.mark.parametrize("seed", [1, 2])
def test_dying_at_every_call_loses_nothing(tmp_path: Path, seed: int) -> None:
    length = 20
    course = Course(seed, length + 5)
    compactions = 0
    for at in count():
        directory = tmp_path / str(at)
        ledger, done = None, 0
        try:
            ledger = open_ledger(directory, DyingDisk(at, seed), compact_after_bytes=SMALL)
            for step in islice(steps(seed), length):
                step(ledger)
                done += 1
        except Dead:
            pass
        if ledger is not None:
            abandon(ledger)
        survived = reopened(directory)
        assert survived in course.left_by_crash[done], f"died at call {at} of step {done}"
        if survived in course.states:  # it goes on from there as if nothing had happened
            start = course.states.index(survived)
            ledger = open_ledger(directory, compact_after_bytes=SMALL)
            for step in islice(steps(seed), start, start + 5):
                step(ledger)
            ledger.close()
            assert open_and_close(directory) == course.states[start + 5]
        compactions = max(compactions, len(list(directory.glob("snapshot-*"))))
        if done == length:
            break
    assert at > 2 * length
    assert compactions == 1


def reopened(directory: Path) -> State:
    """The state found by a process that dies right after looking at it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", JournalCutWarning)
        ledger = open_ledger(directory, compact_after_bytes=SMALL)
    abandon(ledger)
    return ledger.state


@pytest.mark.parametrize(("code", "times"), [(errno.ENOSPC, 1), (errno.ENOSPC, 6), (errno.EIO, 2)])
def test_failing_at_every_call_loses_nothing(tmp_path: Path, code: int, times: int) -> None:
    seed, length = 4, 20
    course = Course(seed, length)
    for at in count():
        disk = FailingDisk(at, times, code)
        ledger = opened_at_last(tmp_path / str(at), disk)
        for number, step in enumerate(islice(steps(seed), length)):
            ledger = insist(ledger, step, tmp_path / str(at), disk)
            if ledger.state != course.states[number + 1]:
                # The call that failed has left all of its rows: the end of this course.
                assert ledger.state in course.left_by_crash[number]
                break
        expected = ledger.state
        abandon(ledger)
        assert reopened(tmp_path / str(at)) == expected, f"failed at call {at}"
        if disk.left > 0:
            break
    assert at > 2 * length


def insist(ledger: Ledger, step: Step, directory: Path, disk: Disk) -> Ledger:
    """Repeat a call until it has taken effect; open the store again where it gave up."""
    before = ledger.state
    while True:
        try:
            step(ledger)
        except StoreError as error:
            if "takes no more" not in str(error):
                assert ledger.state == before
                continue  # nothing was accepted
            abandon(ledger)
            ledger = opened_at_last(directory, disk)
            if ledger.state == before:
                continue
        return ledger


def opened_at_last(directory: Path, disk: Disk) -> Ledger:
    for _ in range(10):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", JournalCutWarning)
                return open_ledger(directory, disk, compact_after_bytes=SMALL)
        except (StoreCorrupt, StoreLocked):
            raise
        except StoreError:
            continue
    raise AssertionError("the store does not open")


# -- losing power ----------------------------------------------------------------------


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


# -- compaction -------------------------------------------------------------------------


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


# -- syncing ----------------------------------------------------------------------------


class CountedSyncs(Disk):
    """Counts syncs, and lets none of them through while `gate` is closed."""

    def __init__(self) -> None:
        self.syncs = 0
        self.gate = threading.Event()
        self.gate.set()

    def sync(self, fd: int) -> None:
        self.gate.wait()
        self.syncs += 1
        super().sync(fd)


def test_threads_that_wait_share_a_sync(tmp_path: Path) -> None:
    disk = CountedSyncs()
    ledger = open_ledger(tmp_path, disk)
    lock = threading.Lock()
    written = threading.Barrier(21)

    def put(number: int) -> None:
        with lock:
            log.settled("committed", number, 0.0)
        written.wait()
        log.sync()

    log = ledger.log
    disk.gate.clear()
    before = disk.syncs
    threads = [threading.Thread(target=put, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    written.wait()
    disk.gate.set()
    for thread in threads:
        thread.join()
    assert 1 <= disk.syncs - before <= 2
    ledger.close()


def test_what_is_written_during_a_sync_needs_the_next(tmp_path: Path) -> None:
    synced = []

    def sync() -> None:
        synced.append(commit.written)
        commit.written += 1  # somebody writes while the disk is at work

    commit = GroupCommit(sync, durable=0)
    commit.written = 1
    commit.reach(1)
    assert commit.durable == 1
    commit.reach(2)
    assert synced == [1, 2]


def test_sync_returns_only_when_the_disk_has_it(tmp_path: Path) -> None:
    disk = CountedSyncs()
    ledger = open_ledger(tmp_path, disk)
    disk.gate.clear()
    returned = threading.Event()

    def put() -> None:
        ledger.put(["a"], 1)
        returned.set()

    thread = threading.Thread(target=put)
    thread.start()
    assert not returned.wait(0.05)
    disk.gate.set()
    thread.join()
    assert returned.is_set()
    ledger.close()


def test_async_returns_before_the_disk_has_it(tmp_path: Path) -> None:
    disk = CountedSyncs()
    ledger = open_ledger(tmp_path, disk, durability="async", sync_interval_seconds=0.001)
    disk.gate.clear()
    before = disk.syncs
    for number in range(10):
        ledger.put(["a"], number)
    assert disk.syncs == before
    disk.gate.set()
    while disk.syncs == before:  # the background thread comes to it
        pass
    ledger.close()


def test_a_failed_sync_is_never_forgotten(tmp_path: Path) -> None:
    disk = FailingDisk(1 << 30, times=1, code=errno.EIO)
    ledger = open_ledger(tmp_path, disk)
    ledger.put(["a"], 1)
    disk.left = 1  # the write still works, the sync does not
    with pytest.raises(StoreError, match="Syncing the journal failed: Input/output error"):
        ledger.put(["b"], 2)
    for step in (partial(Ledger.put, keys=["c"], value=3), partial(Ledger.settle, number=1, at=1)):
        with pytest.raises(StoreError, match="the queue takes no more"):
            step(ledger)
    with pytest.raises(StoreError, match="the queue takes no more"):
        ledger.log.sync()
    with pytest.raises(StoreError, match="the queue takes no more"):
        ledger.close()
    again = open_ledger(tmp_path)  # the lock is free
    assert again.values == {"a": 1, "b": 2}
    again.close()


def test_a_failed_background_sync_reaches_the_next_caller(tmp_path: Path) -> None:
    disk = FailingDisk(1 << 30, times=1 << 20, code=errno.EIO)
    ledger = open_ledger(tmp_path, disk, durability="async", sync_interval_seconds=0.001)
    disk.left = 1
    ledger.put(["a"], 1)
    with pytest.raises(StoreError, match="Syncing the journal failed"):
        sync_forever(ledger)
    with pytest.raises(StoreError, match="Syncing the journal failed"):
        ledger.close()


def sync_forever(ledger: Ledger) -> None:
    while True:
        ledger.log.sync()


def test_a_failed_write_that_cannot_be_taken_back_ends_it(tmp_path: Path) -> None:
    disk = FailingDisk(1 << 30, times=2)
    ledger = open_ledger(tmp_path, disk)
    ledger.put(["a"], 1)
    disk.left = 0
    with pytest.raises(StoreError, match="Nothing of this call was accepted"):
        ledger.put(["b"], 2)
    with pytest.raises(StoreError, match="nor could the unfinished record be removed"):
        ledger.put(["c"], 3)
    abandon(ledger)
    with pytest.warns(JournalCutWarning):
        again = open_ledger(tmp_path)
    assert again.values == {"a": 1}
    again.close()


# -- opening ------------------------------------------------------------------------------


def test_one_at_a_time(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    with pytest.raises(StoreLocked) as caught:
        open_ledger(tmp_path)
    assert f"{tmp_path} is in use by pid {os.getpid()} on " in str(caught.value)
    assert "which is this process" in str(caught.value)
    ledger.close()
    open_ledger(tmp_path).close()


def test_a_forked_process_neither_writes_nor_keeps_the_lock(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    ledger.put(["a"], 1)
    done_read, done_write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # other threads may be running
        child = os.fork()
    if child == 0:
        outcome = b"took it"
        try:
            ledger.put(["b"], 2)
        except StoreError as error:
            outcome = b"refused" if "forked from" in str(error) else repr(error).encode()
        try:
            open_ledger(tmp_path)
        except StoreLocked as error:
            outcome += f", locked by {str(error).partition(' in use by ')[2][:20]}".encode()
        os.write(done_write, outcome)
        threading.Event().wait()  # lives on, until killed
    try:
        told = os.read(done_read, 1000).decode()
        assert told.startswith(f"refused, locked by pid {os.getpid()} on ")
        with pytest.raises(StoreLocked):
            open_ledger(tmp_path)
        ledger.close()
        open_ledger(tmp_path).close()
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
        os.close(done_read)
        os.close(done_write)


@pytest.mark.parametrize(
    ("options", "difference"),
    [
        ({"key": "v"}, r"key is \['k'\] there, \['v'\] was asked for"),
        ({"key": ["k", "v"]}, r"key is \['k'\] there, \['k', 'v'\] was asked for"),
        ({"time": "v"}, "time is None there, 'v' was asked for"),
        ({"merge": {"v": "sum"}}, "merge is {} there, {'v': 'sum'} was asked for"),
        ({"delete_column": "v"}, "delete_column is None there, 'v' was asked for"),
        ({"policy": "append"}, "queue is 'update' there, 'append' was asked for"),
    ],
)
@pytest.mark.parametrize("compacted", [False, True])
def test_another_queue_is_refused(
    tmp_path: Path, options: dict[str, Any], difference: str, compacted: bool
) -> None:
    ledger = open_ledger(tmp_path, compact_after_bytes=SMALL if compacted else 1 << 20)
    expected = take(ledger, seed=1, length=40)
    ledger.close()
    with pytest.raises(ConfigError, match=difference) as caught:
        open_ledger(tmp_path, **options)
    assert str(tmp_path) in str(caught.value)
    assert open_and_close(tmp_path, policy="in-place", memory_limit="1MiB") == expected


def test_the_directory_is_made_but_not_the_path_to_it(tmp_path: Path) -> None:
    open_ledger(tmp_path / "new").close()
    with pytest.raises(StoreError, match=r"because .*missing does not exist. Is the path misspelt"):
        open_ledger(tmp_path / "missing" / "new")


def test_a_file_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=r"needs a directory, but .*file is a file"):
        open_ledger(tmp_path / "file")


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (errno.EROFS, "mounted read-only"),
        (errno.EACCES, "this user may not write there"),
        (errno.ENOSPC, "the disk is full"),
    ],
)
def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path, code: int, said: str) -> None:
    with pytest.raises(StoreError, match=rf"{tmp_path} cannot be opened: .*{said}"):
        open_ledger(tmp_path, FailingDisk(0, code=code))
    open_and_close(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_without_permission_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(StoreError, match="this user may not write there"):
        open_ledger(tmp_path)


def test_a_foreign_file_with_a_segments_name_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "journal-00000001.log"
    path.write_text("dear diary")
    with pytest.raises(StoreCorrupt, match="not a file of Upstream: it begins with b'dear dia'"):
        open_ledger(tmp_path)
    assert path.read_text() == "dear diary"
