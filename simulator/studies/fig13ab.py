"""UpStream, Figs. 13a and 13b: in-place updates against random drops, over the number of keys."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from simulator.experiment import Finding, Point, Row, Study, column, pick
from simulator.rates import uniform
from simulator.studies.runs import mean, runs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RATE = 40.0  # updates per second
COST = 0.1  # seconds per result
LOAD = RATE * COST
KEYS, QUICK_KEYS = (1, 10, 25, 50, 75, 100), (1, 25, 100)
POLICIES = ("in-place", "random-drop")
RESULTS, QUICK_RESULTS = 30_000, 1_500  # of each run


def points(quick: bool) -> list[Point]:
    return [
        {"keys": keys, "updates": int(LOAD * (QUICK_RESULTS if quick else RESULTS))}
        for keys in (QUICK_KEYS if quick else KEYS)
    ]


def measure(keys: int, updates: int) -> Row:
    return {"keys": keys, **measured(keys, LOAD, RATE, updates)}


def measured(keys: int, load: float, rate: float, updates: int) -> Row:
    """Staleness in seconds and memory in updates, for both queues."""
    row: Row = {}
    for policy in POLICIES:
        found = runs(uniform(keys), load, policy, updates=updates, rates="estimated")
        row[f"{policy} staleness"] = mean(found, "application_staleness") / rate
        row[f"{policy} memory"] = round(mean(found, "max_memory_tuples"))
    return row


def findings(rows: list[Row]) -> list[Finding]:
    many = pick(rows, keys=100)[0]
    return [
        Finding(
            "staleness grows with the number of keys under both",
            all(
                later[f"{policy} staleness"] > earlier[f"{policy} staleness"]
                for policy in POLICIES
                for earlier, later in pairwise(rows)
            ),
            f"at 100 keys {many['in-place staleness']:.2f} s in place, "
            f"{many['random-drop staleness']:.2f} s with drops",
        ),
        lower_in_place(rows),
        Finding(
            "in-place needs one place per key, drops need memory that does not depend on keys",
            all(0.6 * row["keys"] <= row["in-place memory"] <= row["keys"] for row in rows),
            "in place "
            + ", ".join(map(str, column(rows, "in-place memory")))
            + "; with drops "
            + ", ".join(map(str, column(rows, "random-drop memory"))),
        ),
    ]


def lower_in_place(rows: list[Row]) -> Finding:
    """Whether updating in place is fresher than dropping at every point."""
    ratios = [row["random-drop staleness"] / row["in-place staleness"] for row in rows]
    return Finding(
        "in-place is fresher than random drops at every point",
        min(ratios) > 1.0,
        f"random drops are {min(ratios):.2f} to {max(ratios):.2f} times as stale",
    )


def draw(rows: list[Row]) -> Figure:
    return draw_both(rows, "keys", "keys")


def draw_both(rows: list[Row], x: str, label: str) -> Figure:
    """Staleness and memory over a parameter."""
    from simulator.plots import axes, lines

    figure, places = axes(2)
    for place, name, unit in zip(
        places, ("staleness", "memory"), ("seconds", "updates held, at most"), strict=True
    ):
        for policy in POLICIES:
            lines(place, [(row[x], row[f"{policy} {name}"]) for row in rows], policy)
        place.set(title=name, xlabel=label, ylabel=unit)
        place.legend()
    return figure


STUDY = Study(
    title="in-place updates against random drops, over the number of keys",
    question="How stale are answers, and how much memory is needed, as the keys grow more?",
    expected="In-place is always fresher; its memory grows with the keys, that of drops does not.",
    points=points,
    measure=measure,
    findings=findings,
    draw=draw,
)
