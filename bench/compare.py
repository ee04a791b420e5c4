"""Alternatives side by side: in one process, in turns, on one workload.

A figure means little by itself and much as a ratio: on another machine both sides change.
"""

from __future__ import annotations

import argparse
import gc
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["Row", "Side", "compare", "heading", "options"]


class Side(NamedTuple):
    """One alternative. Only `run` is timed; it answers how much work it did."""

    name: str
    run: Callable[[Any], int]
    setup: Callable[[], Any] = lambda: None
    teardown: Callable[[Any], object] = lambda _: None


class Row(NamedTuple):
    """What one alternative took."""

    name: str
    seconds: float  # the median
    work: int
    ratio: float  # how many times faster than the first alternative


def compare(
    title: str, sides: Sequence[Side], *, unit: str = "rows", repeat: int | None = None
) -> list[Row]:
    """Time each side `repeat` times, in turns, and print the medians.

    The first side is what the others are compared with. All must do the same amount of work.
    """
    repeat = repeat or options().repeat
    seconds: list[list[float]] = [[] for _ in sides]
    work = [0] * len(sides)
    for turn in range(repeat):
        for place in range(len(sides)):
            number = (place + turn) % len(sides)  # nobody always comes first
            work[number], took = _timed(sides[number])
            seconds[number].append(took)
    if len(set(work)) != 1:
        done = ", ".join(f"{side.name}: {count}" for side, count in zip(sides, work, strict=True))
        raise AssertionError(f"{title}: the sides did not do the same work ({done})")
    medians = [statistics.median(times) for times in seconds]
    rows = [
        Row(side.name, median, work[0], medians[0] / median)
        for side, median in zip(sides, medians, strict=True)
    ]
    _print(title, rows, unit)
    return rows


def heading(about: str) -> None:
    """Say what runs, by which command, on which machine."""
    packages = ", ".join(f"{name} {version(name)}" for name in ("numpy", "pyarrow", "numba"))
    print(f"# {about}")
    print(f"# {' '.join(['python', *sys.orig_argv[1:]])}")
    print(f"# {_processor()}, {os.cpu_count()} cores, {platform.system()} {platform.release()}")
    print(f"# Python {platform.python_version()}, {packages}; median of {options().repeat}")
    print()


def options() -> argparse.Namespace:
    """What every bench understands."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--small", action="store_true", help="little work, to see that it runs")
    parser.add_argument("--repeat", type=int, default=5, help="turns to take the median of")
    parser.add_argument("--directory", type=Path, help="where to write; default: the system's")
    return parser.parse_known_args()[0]


def _timed(side: Side) -> tuple[int, float]:
    state = side.setup()
    gc.collect()
    gc.disable()
    try:
        start = time.perf_counter()
        work = side.run(state)
        return work, time.perf_counter() - start
    finally:
        gc.enable()
        side.teardown(state)


def _print(title: str, rows: list[Row], unit: str) -> None:
    width = max(len(row.name) for row in rows)
    print(title)
    print(f"  {'':{width}}  {'median':>12}  {unit + '/s':>14}  {'Ratio':>8}")
    for row in rows:
        rate = row.work / row.seconds
        print(
            f"  {row.name:{width}}  {_duration(row.seconds):>12}  {rate:>14,.0f}  {row.ratio:>8.2f}"
        )
    print()


def _duration(seconds: float) -> str:
    for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= factor:
            return f"{seconds / factor:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
