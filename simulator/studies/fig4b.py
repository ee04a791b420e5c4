"""UpStream, Fig. 4b: application staleness against queue staleness."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from simulator.experiment import Finding, Point, Row, Study, column, pick
from simulator.rates import uniform
from simulator.studies.runs import mean, runs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KEYS = (1, 10)
LOADS = (2, 3, 4, 5, 6, 7, 8, 9, 10)  # updates per result
QUICK_LOADS = (2, 5, 10)
RESULTS, QUICK_RESULTS = 30_000, 600  # of each run


def points(quick: bool) -> list[Point]:
    return [
        {"keys": keys, "load": load, "updates": load * (QUICK_RESULTS if quick else RESULTS)}
        for keys in KEYS
        for load in (QUICK_LOADS if quick else LOADS)
    ]


def measure(keys: int, load: float, updates: int) -> Row:
    found = runs(uniform(keys), load, "in-place", updates=updates)
    queue, application = mean(found, "queue_staleness"), mean(found, "application_staleness")
    return {
        "keys": keys,
        "load": load,
        "queue": queue,
        "application": application,
        "difference": application - queue,
    }


def findings(rows: list[Row]) -> list[Finding]:
    found = []
    for keys in KEYS:
        own = pick(rows, keys=keys)
        slope, offset = np.polyfit(column(own, "load"), column(own, "difference"), 1)
        bend = max(abs(row["difference"] - slope * row["load"] - offset) for row in own)
        seen = f"{slope:.2f} * load {offset:+.2f}, off by at most {bend:.2f}"
        claim = f"the difference is a linear function of the load, {keys} key(s)"
        found.append(Finding(claim, bend < 0.2 and abs(slope - 1.0) < 0.1, seen))
    one, ten = (column(pick(rows, keys=keys), "difference") for keys in KEYS)
    apart = max(abs(a - b) for a, b in zip(one, ten, strict=True))
    return [
        *found,
        Finding(
            "it does not depend on the number of keys by more than the gap between two updates",
            apart <= 1.0,
            f"10 keys and 1 key differ by up to {apart:.2f} time units: it is C - x with x "
            "between 1/(2C) for one key and 1 for many, because the updates that come during "
            "a service belong to one key or to many",
        ),
        Finding(
            "ten keys wait for about ten times as long",
            all(
                8.0 < ten_row["queue"] / one_row["queue"] < 32.0
                for one_row, ten_row in zip(pick(rows, keys=1), pick(rows, keys=10), strict=True)
            ),
            ", ".join(
                f"{ten_row['queue'] / one_row['queue']:.1f} times at load {one_row['load']}"
                for one_row, ten_row in zip(pick(rows, keys=1), pick(rows, keys=10), strict=True)
            ),
        ),
    ]


def draw(rows: list[Row]) -> Figure:
    from simulator.plots import axes, lines

    figure, places = axes(2)
    for place, keys in zip(places, KEYS, strict=True):
        for name in ("application", "queue", "difference"):
            points = [(row["load"], row[name]) for row in pick(rows, keys=keys)]
            lines(place, points, name, dashed=name == "difference")
        place.set(title=f"{keys} key(s)", xlabel="load factor", ylabel="staleness, time units")
        place.legend()
    return figure


STUDY = Study(
    title="application staleness against queue staleness",
    question="How far is what the application sees from what the queue can control?",
    expected="The difference grows linearly with the load factor, whatever the number of keys.",
    points=points,
    measure=measure,
    findings=findings,
    draw=draw,
)
