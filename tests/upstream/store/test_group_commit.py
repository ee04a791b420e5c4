"""When is it on the disk, and who waits for it?"""

from __future__ import annotations

import errno
import threading
from functools import partial
from pathlib import Path

import pytest

from tests.upstream.store.failing_disks import FailingDisk
from tests.upstream.store.ledger import Ledger, open_ledger
from upstream.errors import StoreError
from upstream.store.disk import Disk
from upstream.store.group_commit import GroupCommit


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
