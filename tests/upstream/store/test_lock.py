"""One process at a time."""

from __future__ import annotations

import os
import threading
import warnings
from pathlib import Path

import pytest

from tests.upstream.store.ledger import open_ledger
from upstream.errors import StoreError, StoreLocked


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
