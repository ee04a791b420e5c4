"""Which file format makes a batch durable fastest?

Each side makes the same batches durable one by one, with one sync per batch: the journal's
records, an Arrow stream without checksums, and LMDB, which stores the newest row per key of
each batch. The encoding of LMDB's rows is done beforehand and costs it nothing.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import lmdb
import pyarrow as pa

from bench.compare import Side, compare, heading, options
from bench.workloads import zipf_batches
from upstream.config import QueueConfig
from upstream.store.journal import Journal, open_journal


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
    heading("A durable batch: the journal against other formats")
    for batch_rows in (1_000, 10_000, 100_000):
        batches = zipf_batches(batch_rows * (4 if small else 200), batch_rows=batch_rows)
        batches = batches[: 4 if small else max(20, 2_000_000 // batch_rows)]
        compare(
            f"{len(batches)} batches of {batch_rows:,} rows, each durable before the next",
            [lmdb_side(batches), arrow_side(batches), *journal_sides(batches)],
        )


def journal_sides(batches: list[pa.RecordBatch]) -> list[Side]:
    return [
        Side("journal", lambda state: append(state[1], batches), open_fresh, close),
        Side("journal, async", lambda state: append(state[1], batches), open_async, close),
    ]


def open_fresh(**extra: Any) -> tuple[Path, Journal]:
    directory = folder()
    config = QueueConfig.from_options(key="symbol", time="ts", store=f"journal:{directory}", **extra)
    return directory, open_journal(directory, config, Nothing).log


def open_async() -> tuple[Path, Journal]:
    return open_fresh(durability="async")


def append(journal: Journal, batches: list[pa.RecordBatch]) -> int:
    for rows in batches:
        journal.put(rows, None, 1.0)
        journal.sync()
    return sum(rows.num_rows for rows in batches)


def close(state: tuple[Path, Journal]) -> None:
    state[1].close()
    shutil.rmtree(state[0])


def arrow_side(batches: list[pa.RecordBatch]) -> Side:
    def run(directory: Path) -> int:
        with (directory / "rows.arrows").open("wb", buffering=0) as file:
            with pa.ipc.new_stream(file, batches[0].schema) as writer:
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
