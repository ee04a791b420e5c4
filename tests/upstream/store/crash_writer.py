"""Processes that use a durable queue until they are killed, and tell what was acknowledged.

For each line on standard input, which says where and what, a process is made. It writes two
lines for each call: one before it begins, one after it has returned.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import sys
from typing import Any

import numpy as np
import pyarrow as pa

from upstream import open_queue
from upstream.errors import InputError

KEYS = 60
NAMES = pa.array([f"key {number}" for number in range(KEYS)])
TEXTS = pa.array(["", "short", "longer " * 20])
OPTIONS: dict[str, Any] = {
    "key": "name",
    "time": "at",
    "merge": {"total": "sum", "largest": "max"},
    "delete_column": "gone",
    "compact_after_bytes": "96KiB",
}


def rows_of(number: int) -> pa.RecordBatch:
    """The rows that call `number` puts."""
    choose = np.random.default_rng(number)
    # One in twenty is large enough to be written in pieces.
    count = 4_000 if choose.random() < 0.05 else choose.choice([1, 3, 30, 100])
    return pa.record_batch(
        {
            "name": NAMES.take(pa.array((KEYS * choose.random(count) ** 2).astype(np.int64))),
            "at": number * 10 + choose.integers(-30, 10, count),  # some come late
            "total": choose.integers(0, 1000, count),
            "largest": choose.random(count),
            "text": TEXTS.take(pa.array(choose.integers(0, 3, count))),
            "gone": pa.array(choose.random(count) < 0.05),
        }
    )


def fingerprint(rows: pa.RecordBatch) -> str:
    """A hash of the whole content of a batch, whose order counts."""
    return hashlib.sha256(rows.serialize()).hexdigest()


def tell(**what: Any) -> None:
    os.write(1, (json.dumps(what) + "\n").encode())


def work(directory: str, durability: str, seed: int, number: int) -> None:
    """Call the queue at random, for ever; `number` is that of the first call."""
    clock = [float(number)]
    queue = open_queue(
        f"journal:{directory}", clock=lambda: clock[0], durability=durability, **OPTIONS
    )
    choose = random.Random(seed)
    tell(opened=list(queue.snapshot()[2:8]), planned=queue.planned())
    while True:
        clock[0] = float(number)
        planned = queue.planned()
        what = choose.random()
        if what < 0.55 or (what > 0.7 and not planned):
            rows = rows_of(number)
            if what < 0.1:
                tell(begin=number, call="put", rows=1)
                queue.put(rows.slice(0, 1).to_pylist()[0])
            else:
                tell(begin=number, call="put", rows=len(rows))
                queue.put_many(rows)
            tell(end=number)
        elif what < 0.7:
            tell(begin=number, call="plan")
            batch = queue.plan(choose.choice([1, 10, None]))
            rows = batch.to_arrow() if batch else None
            keys = rows["name"].to_pylist() if rows else []
            tell(end=number, id=batch.id, keys=keys, hash=fingerprint(rows) if rows else None)
        else:
            call = choose.choice(["delivered", "commit", "commit", "give_back"])
            batch_id = choose.choice(planned)
            tell(begin=number, call=call, id=batch_id)
            try:
                getattr(queue, call)(batch_id)
                tell(end=number, refused=False)
            except InputError:  # it was delivered before
                tell(end=number, refused=True)
        number += 1


def main() -> None:
    with open_queue("memory:", **OPTIONS) as warm:  # so that no child has to load and compile
        warm.put_many(rows_of(1))
        warm.commit(warm.plan().id)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            work(**json.loads(line))
        tell(pid=child)
        _, status = os.waitpid(child, 0)
        tell(ended=os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main()
