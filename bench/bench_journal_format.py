"""Which file format makes a batch durable fastest?

Each side makes the same batches durable one by one, with one sync per batch: the journal's
records, an Arrow stream without checksums, and LMDB, which stores the newest row per key of
each batch. The encoding of LMDB's rows is done beforehand and costs it nothing. A second part
takes away from the journal, one by one, what makes it fast.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import lmdb
import pyarrow as pa

from bench.compare import Side, compare, heading, options
from bench.workloads import zipf_batches
from upstream.config import QueueConfig
from upstream.store.disk import Disk
from upstream.store.journal import Journal, open_journal

WORK_SECONDS = 200e-6  # about what the queue itself takes for 10,000 rows
SEGMENT_BYTES = 16 << 20


class Nothing:
    """A queue that keeps nothing: what is left is the journal."""

    log: Any = None

    def bind(self, schema: pa.Schema) -> None: ...
    def dump(self) -> tuple[dict[str, Any], list[Any]]:
        return {}, []

    def load(self, meta: dict[str, Any], buffers: list[memoryview]) -> None: ...
    def live_bytes(self) -> int:
        return 0

    def replay_put(self, *_: object) -> None: ...
    def replay_planned(self, *_: object) -> None: ...
    def replay_settled(self, *_: object) -> None: ...
    def replay_freed(self, *_: object) -> None: ...


def main() -> None:
    small = options().small
    heading("A durable batch: the journal against other formats, and against less of itself")
    for batch_rows in (1_000, 10_000, 100_000):
        count = 4 if small else max(20, 2_000_000 // batch_rows) if batch_rows > 1_000 else 200
        batches = zipf_batches(batch_rows * count, batch_rows=batch_rows)
        compare(
            f"{count} batches of {batch_rows:,} rows, each durable before the next",
            [
                lmdb_side(batches),
                arrow_side(batches),
                journal_side("journal", batches),
                journal_side("journal, async", batches, durability="async"),
            ],
        )
    batches = zipf_batches(10_000 * (4 if small else 200))
    compare(
        f"{len(batches)} batches of 10,000 rows, each beside {WORK_SECONDS * 1e6:.0f} us of work",
        [
            journal_side("neither", batches, PlainDisk(), work=True),
            journal_side("head start only", batches, HeadStart(), work=True),
            journal_side("recycling only", batches, Recycling(), work=True),
            journal_side("both: the journal", batches, work=True),
        ],
    )


class HeadStart(Disk):
    """Starts writing early; makes each segment anew."""

    def rename(self, old: Path, new: Path) -> None:
        if new.name == "journal-spare.log":
            self.remove(old)
        else:
            super().rename(old, new)


class Recycling(Disk):
    """Writes over retired segments; starts writing when the sync comes."""

    def start_writing(self, fd: int, offset: int, size: int) -> None:
        pass


class PlainDisk(Recycling, HeadStart):
    """Neither."""


def journal_side(
    name: str,
    batches: list[pa.RecordBatch],
    disk: Disk | None = None,
    *,
    work: bool = False,
    **extra: Any,
) -> Side:
    """With `work`, on a journal that has been in use for a while, beside a busy queue."""

    def setup() -> tuple[Path, Journal]:
        directory = folder()
        config = QueueConfig.from_options(
            key="symbol",
            time="ts",
            store=f"journal:{directory}",
            compact_after_bytes=SEGMENT_BYTES if work else "64MiB",
            **extra,
        )
        journal: Journal = open_journal(directory, config, Nothing, disk).log
        if work:
            for _ in range(3):
                append(journal, batches[: SEGMENT_BYTES // batches[0].nbytes + 1])
        return directory, journal

    def run(state: tuple[Path, Journal]) -> int:
        return append(state[1], batches, WORK_SECONDS if work else 0)

    return Side(name, run, setup, close)


def append(journal: Journal, batches: list[pa.RecordBatch], work_seconds: float = 0) -> int:
    for rows in batches:
        journal.put(rows, None, 1.0)
        until = time.perf_counter() + work_seconds
        while time.perf_counter() < until:
            pass
        journal.sync()
    return sum(rows.num_rows for rows in batches)


def close(state: tuple[Path, Journal]) -> None:
    state[1].close()
    shutil.rmtree(state[0])


def arrow_side(batches: list[pa.RecordBatch]) -> Side:
    def run(directory: Path) -> int:
        with (
            (directory / "rows.arrows").open("wb", buffering=0) as file,
            pa.ipc.new_stream(file, batches[0].schema) as writer,
        ):
            for rows in batches:
                writer.write_batch(rows)
                os.fdatasync(file.fileno())
        return sum(rows.num_rows for rows in batches)

    return Side("Arrow stream", run, folder, shutil.rmtree)


def lmdb_side(batches: list[pa.RecordBatch]) -> Side:
    newest = [list(encoded(rows).items()) for rows in batches]

    def setup() -> tuple[Path, Any]:
        directory = folder()
        return directory, lmdb.open(str(directory), map_size=4 << 30)

    def run(state: tuple[Path, Any]) -> int:
        for rows in newest:
            with state[1].begin(write=True) as transaction, transaction.cursor() as cursor:
                cursor.putmulti(rows)
        return sum(rows.num_rows for rows in batches)

    def teardown(state: tuple[Path, Any]) -> None:
        state[1].close()
        shutil.rmtree(state[0])

    return Side("LMDB", run, setup, teardown)


def encoded(rows: pa.RecordBatch) -> dict[bytes, bytes]:
    """The newest row per key, as bytes."""
    keys, *values = (column.to_pylist() for column in rows.columns)
    return {
        key.encode(): f"{ts.timestamp()},{bid},{ask},{note}".encode()
        for key, ts, bid, ask, note in zip(keys, *values, strict=True)
    }


def folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="upstream-bench-", dir=options().directory))


if __name__ == "__main__":
    main()
