"""What a journal promises, whatever fails: all that was acknowledged, in order, or an error."""

from __future__ import annotations

import errno
import os
import warnings
from itertools import count, islice
from pathlib import Path
from typing import Any

import pytest

from tests.upstream.store.failing_disks import Dead, DyingDisk, FailingDisk
from tests.upstream.store.ledger import (
    SMALL,
    Course,
    Ledger,
    Step,
    abandon,
    open_and_close,
    open_ledger,
    reopened,
    segments,
    steps,
    take,
)
from upstream.errors import ConfigError, StoreCorrupt, StoreError, StoreLocked
from upstream.store.disk import Disk
from upstream.store.recovery import JournalCutWarning

pytestmark = pytest.mark.filterwarnings(
    # A disk that dies takes the compacting thread with it.
    "ignore::pytest.PytestUnhandledThreadExceptionWarning"
)


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
