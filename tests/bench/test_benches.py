"""Every bench runs, small: its own checks hold, and it ends in ratios.

What it measures does not matter here.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from bench.__main__ import BENCHES
from bench.figures import Figure, show
from bench.python_queue import PythonQueue
from upstream import open_queue


@pytest.mark.parametrize("name", BENCHES)
def test_a_bench_runs_small(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = [name, "--small", "--repeat", "1", "--directory", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", arguments)
    importlib.import_module(f"bench.bench_{name}").main()
    printed = capfd.readouterr().out
    assert "Ratio" in printed
    assert "MISSED" not in printed, "a small run has no targets"
    assert not list(tmp_path.iterdir()), "it clears up"


def test_a_missed_target_shows(capsys: pytest.CaptureFixture[str]) -> None:
    show(
        "speed",
        [Figure("fast", "1 ns", 3.0, 2.0), Figure("large", "9 MB", 3.0, 2.0, at_most=True)],
        of="times",
    )
    _, _, _, fast, large, *_ = capsys.readouterr().out.splitlines()
    assert fast.endswith(">= 2  reached")
    assert large.endswith("<= 2  MISSED")


def test_the_plain_queue_means_the_same() -> None:
    """Same updates, same keys handed out with the same counts, in the same order.

    Keys of which one updates a hundred times as often as another, and few are served: the
    rare ones overtake those that wait longer.
    """
    now = [0.0]
    queue = open_queue("memory:", key="symbol", time="ts", clock=lambda: now[0], cost_seconds=0.5)
    plain = PythonQueue(0.5, started=0.0)
    gaps = {f"K{number}": 2 + number * number for number in range(15)}
    overtaken = 0
    for second in range(1, 1001):
        now[0] = float(second)
        for key, gap in gaps.items():
            if second % gap == 0:
                queue.put({"symbol": key, "ts": second, "bid": float(second)})
                plain.put_many([(key, second, float(second))], now[0])
        if second % 10 == 0:
            batch = queue.plan(2)
            expected = plain.plan(2, now[0])
            if second > 10:  # the first is served in order of arrival
                found = [(row["symbol"], row["ts"], row["_updates"]) for row in batch.to_pylist()]
                assert found == [(row[0], row[1], updates) for row, updates, _ in expected]
                overtaken += bool(batch.since[0] > batch.since[-1])
            queue.commit(batch.id)
    queue.close()
    assert overtaken > 10
