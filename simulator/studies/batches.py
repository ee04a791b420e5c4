"""Micro-batches: which batch limit is best for a given fixed cost per batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulator.arrivals import poisson
from simulator.costs import PerBatch, PerUnit
from simulator.experiment import Finding, Point, Row, Study, column, pick
from simulator.rates import zipf
from simulator.studies.runs import mean, runs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KEYS, THETA = 100, 0.99
COST = 3.0  # time units per result, of one update each
FIXED, QUICK_FIXED = (0, 1, 5, 20, 100), (0, 5, 100)  # per batch, in costs of one result
LIMITS, QUICK_LIMITS = (1, 2, 5, 10, 20, 50, 100), (1, 10, 100)  # results in a batch
UPDATES, QUICK_UPDATES = 200_000, 6_000


def points(quick: bool) -> list[Point]:
    return [
        {"fixed": fixed, "limit": limit, "updates": QUICK_UPDATES if quick else UPDATES}
        for fixed in (QUICK_FIXED if quick else FIXED)
        for limit in (QUICK_LIMITS if quick else LIMITS)
    ]


def measure(fixed: float, limit: int, updates: int) -> Row:
    found = runs(
        zipf(KEYS, THETA),
        PerBatch(fixed * COST, PerUnit(COST)),
        "whittle",
        updates=updates,
        process=poisson,
        rates="estimated",
        limit=limit,
    )
    return {
        "fixed": fixed,
        "limit": limit,
        "application": mean(found, "application_staleness"),
        "queue": mean(found, "queue_staleness"),
        "load": mean(found, "load_factor"),
    }


def findings(rows: list[Row]) -> list[Finding]:
    best = {
        fixed: min(pick(rows, fixed=fixed), key=lambda row: float(row["application"]))
        for fixed in dict.fromkeys(column(rows, "fixed"))
    }
    limits = [row["limit"] for row in best.values()]
    listed = ", ".join(f"{fixed}: {row['limit']}" for fixed, row in best.items())
    dearest = max(best)
    all_of_them = pick(rows, fixed=dearest, limit=max(column(rows, "limit")))[0]
    return [
        Finding(
            "without a fixed cost, one at a time is best",
            limits[0] == 1,
            f"best limit {limits[0]}, staleness {best[0]['application']:.0f}",
        ),
        Finding(
            "the dearer a batch, the larger it should be",
            limits == sorted(limits) and limits[-1] > 1,
            f"best limit by fixed cost in results: {listed}",
        ),
        Finding(
            "taking all that waits is close to the best where a batch is dear",
            all_of_them["application"] < 1.1 * best[dearest]["application"],
            f"{all_of_them['application'] / best[dearest]['application']:.2f} times the best at "
            f"fixed cost {dearest}",
        ),
    ]


def draw(rows: list[Row]) -> Figure:
    from simulator.plots import axes, lines

    figure, (place,) = axes(1, width=7.0)
    for fixed in dict.fromkeys(column(rows, "fixed")):
        points = [(row["limit"], row["application"]) for row in pick(rows, fixed=fixed)]
        lines(place, points, f"fixed cost of {fixed} results")
    place.set(
        xlabel="batch limit, results",
        ylabel="application staleness, time units",
        xscale="log",
        yscale="log",
    )
    place.legend()
    return figure


STUDY = Study(
    title="micro-batches",
    question="Which batch limit is best for a given fixed cost per batch?",
    expected="One result at a time without a fixed cost, larger batches the dearer a batch is.",
    points=points,
    measure=measure,
    findings=findings,
    draw=draw,
)
