"""A process is killed at random instants; nothing acknowledged is missing afterwards.

`UPSTREAM_CRASH_KILLS=100` makes it a long test.
"""

from __future__ import annotations

import copy
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest

from tests.oracle import OracleQueue
from tests.upstream.store.crash_writer import OPTIONS, fingerprint, rows_of
from upstream import open_queue
from upstream.errors import InputError
from upstream.model import Batch
from upstream.store.recovery import JournalCutWarning

KILLS = int(os.environ.get("UPSTREAM_CRASH_KILLS", "10"))
MOST_CALLS = 60  # of one process, before it is killed
ROOT = Path(__file__).parents[3]


class Writers:
    """Makes processes that work on a directory, and kills them at it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.upstream.store.crash_writer"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdin
        assert self._process.stdout
        self._orders, self._answers = self._process.stdin, self._process.stdout

    def run_and_kill(
        self, after_calls: int, after_seconds: float, **work: Any
    ) -> list[dict[str, Any]]:
        """Let one work, kill it some time after a number of calls, and answer what it said."""
        self._orders.write(json.dumps(work).encode() + b"\n")
        self._orders.flush()
        said: list[dict[str, Any]] = []
        killer: threading.Timer | None = None
        pid = 0
        for line in self._answers:
            answer = json.loads(line)
            if "ended" in answer:
                break
            pid = answer.get("pid", pid)
            after_calls -= "end" in answer
            if pid and after_calls <= 0 and killer is None:
                killer = threading.Timer(after_seconds, os.kill, (pid, signal.SIGKILL))
                killer.start()
            if "pid" not in answer:
                said.append(answer)
        assert answer == {"ended": -signal.SIGKILL}
        return said

    def close(self) -> None:
        self._orders.close()
        self._answers.close()
        self._process.wait()


class Ledger:
    """What must be in the queue, as far as its user was told."""

    def __init__(self) -> None:
        self.oracle = OracleQueue(
            key=["name"], time="at", merge=OPTIONS["merge"], delete_column="gone", delete_value=True
        )
        self.hashes: dict[int, str] = {}
        self.next = 1  # number of the next call
        self.calls = 0

    def hear(self, said: list[dict[str, Any]]) -> dict[str, Any] | None:
        """Take in what was acknowledged; answer the call that was not, if there is one."""
        begun: dict[str, Any] | None = None
        for line in said:
            if "opened" in line:
                assert line["opened"] == self.counts(), "another process found something else"
                assert line["planned"] == sorted(self.oracle.batches)
            elif "begin" in line:
                begun = line
            else:
                assert begun is not None
                self.carry_out(begun | line)
                self.calls += 1
                begun = None
        return begun

    def carry_out(self, call: dict[str, Any]) -> None:
        number = call["begin"]
        self.next = number + 1
        now = float(number)
        match call["call"]:
            case "put":
                rows = rows_of(number).to_pylist()[: call["rows"]]
                self.oracle.put(rows, [now] * len(rows))
            case "plan" if call["id"]:
                self.oracle.hand_out(call["id"], [(key,) for key in call["keys"]], now)
                self.hashes[call["id"]] = call["hash"]
            case "delivered":
                self.oracle.delivered(call["id"], now)
            case "commit":
                self.oracle.commit(call["id"], now)
            case "give_back":
                was_delivered = self.oracle.batches[call["id"]].delivered_at is not None
                assert call.get("refused", was_delivered) == was_delivered
                if not was_delivered:
                    self.oracle.give_back(call["id"])
        self._trim()

    def _trim(self) -> None:
        """Keep of the past only what the future can depend on."""
        for updates in self.oracle.history.values():
            del updates[:-1]
        for answers in self.oracle.deliveries.values():
            answers[:] = [max(answers, key=lambda answer: answer[1])]

    def counts(self) -> list[int]:
        """As in a snapshot: accepted, handed out, conflated, superseded, shed, waiting."""
        counts = self.oracle.counts
        return [
            counts.accepted,
            counts.handed_out,
            counts.conflated,
            counts.superseded,
            0,
            len(self.oracle.waiting),
        ]

    def content(self) -> dict[str, Any]:
        """All that can be seen of the queue."""
        units = {0: list(self.oracle.waiting.values())}
        units |= {number: batch.units for number, batch in self.oracle.batches.items()}
        return {
            "counts": self.counts(),
            "units": {
                number: {
                    unit.newest.values["name"]: (
                        unit.content(OPTIONS["merge"]),
                        len(unit.updates),
                        unit.since,
                    )
                    for unit in those
                }
                for number, those in units.items()
            },
        }


def found(directory: Path) -> tuple[dict[str, Any], dict[int, Batch], set[int]]:
    """The content of a queue, its batches, and which of them were delivered; uses it up."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", JournalCutWarning)
        queue = open_queue(f"journal:{directory}", clock=lambda: 0.0, **OPTIONS)
    with queue:
        counts = list(queue.snapshot()[2:8])
        batches = {number: queue.batch(number) for number in queue.planned()}
        waiting = queue.plan()
        units = {0: waiting, **batches}
        content = {
            "counts": counts,
            "units": {number: units_in(batch) for number, batch in units.items()},
        }
        delivered = set()
        for number in batches:
            try:
                queue.give_back(number)
            except InputError:
                delivered.add(number)
    return content, batches, delivered


def units_in(batch: Batch) -> dict[str, Any]:
    if not batch:
        return {}
    units = {}
    for row in batch.to_pylist():
        updates, since = row.pop("_updates"), row.pop("_waiting_since")
        units[row["name"]] = (row, updates, since.timestamp())
    assert len(units) == len(batch)
    return units


@pytest.mark.parametrize("durability", ["sync", "async"])
def test_nothing_acknowledged_is_lost(tmp_path: Path, durability: str) -> None:
    choose = random.Random(f"{durability} {KILLS}")
    ledger = Ledger()
    whole = absent = 0
    writers = Writers()
    kills = KILLS if durability == "sync" else KILLS // 2
    try:
        for kill in range(kills):
            said = writers.run_and_kill(
                # One in five is killed while it opens the queue.
                max(choose.randrange(-MOST_CALLS // 4, MOST_CALLS), 0),
                choose.expovariate(1 / 0.02),
                directory=str(tmp_path / "queue"),
                durability=durability,
                seed=kill,
                number=ledger.next,
            )
            unfinished = ledger.hear(said)
            if not (tmp_path / "queue").exists():
                continue
            shutil.copytree(tmp_path / "queue", tmp_path / f"copy {kill}")
            content, batches, delivered = found(tmp_path / f"copy {kill}")
            if unfinished is not None:
                took_effect = settle_unfinished(ledger, unfinished, content, batches, delivered)
                whole, absent = whole + took_effect, absent + (not took_effect)
            assert content == ledger.content(), f"kill {kill}"
            assert {n: fingerprint(b.to_arrow()) for n, b in batches.items()} == {
                n: ledger.hashes[n] for n in batches
            }
            assert delivered == {
                n for n, b in ledger.oracle.batches.items() if b.delivered_at is not None
            }
            shutil.rmtree(tmp_path / f"copy {kill}")
    finally:
        writers.close()
    print(f"{ledger.calls} calls acknowledged; of those cut short, {whole} whole, {absent} absent")
    assert ledger.calls > 5 * kills


def settle_unfinished(
    ledger: Ledger,
    call: dict[str, Any],
    content: dict[str, Any],
    batches: dict[int, Batch],
    delivered: set[int],
) -> bool:
    """A call that was not acknowledged happened as a whole, or not at all: find out which."""
    with_it = copy.deepcopy(ledger)
    if call["call"] == "plan":
        new = [number for number in batches if number not in ledger.oracle.batches]
        rows = batches[new[0]].to_arrow() if new else None
        keys = rows["name"].to_pylist() if rows else []
        hashed = fingerprint(rows) if rows else None
        call = call | {"id": new[0] if new else 0, "keys": keys, "hash": hashed}
    with_it.carry_out(call)
    took_effect = content == with_it.content() and content != ledger.content()
    if call["call"] == "delivered":
        took_effect = call["id"] in delivered
    ledger.next = with_it.next
    if took_effect:
        ledger.oracle, ledger.hashes = with_it.oracle, with_it.hashes
    return took_effect
