"""UpStream, Figs. 13c and 13d: in-place updates against random drops, over the input rate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulator.experiment import Finding, Point, Row, Study, column
from simulator.studies.fig13ab import COST, draw_both, lower_in_place, measured

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KEYS = 25
LOADS, QUICK_LOADS = (1, 2, 3, 4, 5, 6, 7, 8, 9), (1, 3, 9)  # updates per result
RESULTS, QUICK_RESULTS = 30_000, 1_000  # of each run


def points(quick: bool) -> list[Point]:
    return [
        {"load": load, "updates": load * (QUICK_RESULTS if quick else RESULTS)}
        for load in (QUICK_LOADS if quick else LOADS)
    ]


def measure(load: float, updates: int) -> Row:
    rate = load / COST  # updates per second
    return {"rate": rate, "load": load, **measured(KEYS, load, rate, updates)}


def findings(rows: list[Row]) -> list[Finding]:
    overloaded = [row for row in rows if row["load"] > 1]
    memory = column(rows, "in-place memory")
    return [
        lower_in_place(overloaded),
        Finding(
            "under overload in-place needs at most one place per key, however high the rate",
            max(memory) <= KEYS and memory[-1] > 0.8 * KEYS,
            ", ".join(map(str, memory)) + " updates",
        ),
        Finding(
            "drops need less memory than in-place",
            all(row["random-drop memory"] < row["in-place memory"] for row in overloaded),
            "with drops " + ", ".join(map(str, column(rows, "random-drop memory"))),
        ),
    ]


def draw(rows: list[Row]) -> Figure:
    return draw_both(rows, "rate", "input rate, updates per second")


STUDY = Study(
    title="in-place updates against random drops, over the input rate",
    question="How stale are answers, and how much memory is needed, as updates come faster?",
    expected="In-place is fresher with memory for one update per key; drops need less memory.",
    points=points,
    measure=measure,
    findings=findings,
    draw=draw,
)
