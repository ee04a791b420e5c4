"""Running studies: their points one by one, over several processes."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from simulator.experiment import Point, Row
from simulator.studies import load

__all__ = ["Measured", "Task", "measured", "tasks"]


class Task(NamedTuple):
    """One point of a study."""

    study: str
    number: int  # among the points of the study
    point: Point


class Measured(NamedTuple):
    """What was measured there."""

    study: str
    number: int
    row: Row


def tasks(names: Sequence[str], *, quick: bool) -> list[Task]:
    """All points of some studies, one study after the other."""
    return [
        Task(name, number, point)
        for name in names
        for number, point in enumerate(load(name).points(quick))
    ]


def measured(work: Sequence[Task], jobs: int) -> Iterator[Measured]:
    """Measure all points, in the order in which they are done; `jobs` at a time."""
    if jobs == 1:
        yield from map(_measure, work)
        return
    with multiprocessing.get_context("spawn").Pool(jobs, _leave_interrupts_to_parent) as pool:
        yield from pool.imap_unordered(_measure, work)


def _measure(task: Task) -> Measured:
    return Measured(task.study, task.number, load(task.study).measure(**task.point))


def _leave_interrupts_to_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
