"""The distance to the lower bound, over workloads and loads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulator.experiment import Finding, Point, Row, Study, column, pick
from simulator.studies.runs import mean, runs
from simulator.studies.workloads import WORKLOADS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMES = (
    "uniform 10",
    "20/10 skew 50",
    "20/16 skew 50",
    "Zipf 0.99 x 100",
    "lognormal 2.0 x 1000",
)
QUICK_NAMES = ("uniform 10", "20/16 skew 50")
LOADS, QUICK_LOADS = (2, 3, 5, 10, 20), (2, 5, 20)  # updates per result
POLICIES = ("in-place", "linecutting", "whittle")
RESULTS, QUICK_RESULTS = 60_000, 700  # of each run


def points(quick: bool) -> list[Point]:
    return [
        {"workload": name, "load": load, "updates": load * (QUICK_RESULTS if quick else RESULTS)}
        for name in (QUICK_NAMES if quick else NAMES)
        for load in (QUICK_LOADS if quick else LOADS)
    ]


def measure(workload: str, load: int, updates: int) -> Row:
    row: Row = {"workload": workload, "load": load}
    waits = {}
    for policy in POLICIES:
        found = runs(WORKLOADS[workload](), load, policy, updates=updates)
        waits[policy] = mean(found, "max_wait")
        row[f"{policy} queue"] = mean(found, "queue_staleness") / found[0].lower_bound
        row[policy] = mean(found, "application_staleness") / found[0].lower_bound_application
    row["whittle longest wait"] = waits["whittle"] / max(waits["in-place"], 1.0)
    return row


def findings(rows: list[Row]) -> list[Finding]:
    gain = max(rows, key=lambda row: float(row["in-place"] / row["whittle"]))
    worst = {
        policy: max(row["whittle queue"] / row[f"{policy} queue"] for row in rows)
        for policy in ("in-place", "linecutting")
    }
    even = pick(rows, workload="uniform 10")
    spread = max(
        max(row[policy] for policy in POLICIES) / min(row[policy] for policy in POLICIES)
        for row in even
    )
    least = min(row[policy] for row in rows for policy in POLICIES)
    longest = max(column(rows, "whittle longest wait"))
    return [
        Finding(
            "no policy is below the bound, but for noise",
            least > 0.95,
            f"at least {least:.3f} times",
        ),
        Finding(
            "whittle is nowhere worse than linecutting by 1.5 %, or than in-place by 0.5 %",
            worst["linecutting"] <= 1.015 and worst["in-place"] <= 1.005,
            f"by linecutting at most {worst['linecutting']:.3f}, by in-place "
            f"{worst['in-place']:.3f}",
        ),
        Finding(
            "on equal keys all policies do the same",
            spread < 1.02,
            f"they differ by a factor of {spread:.3f} at most",
        ),
        Finding(
            "whittle gains most at moderate overload",
            gain["load"] <= 5,
            f"in-place is {gain['in-place'] / gain['whittle']:.2f} times as stale at load "
            f"{gain['load']}, {gain['workload']}",
        ),
        Finding(
            "the longest wait of any key is less than twice that of in-place",
            longest < 2.0,
            f"at most {longest:.2f} times",
        ),
    ]


def draw(rows: list[Row]) -> Figure:
    from simulator.plots import axes, lines

    names = list(dict.fromkeys(column(rows, "workload")))
    figure, places = axes(len(names), width=3.6)
    for place, name in zip(places, names, strict=True):
        for policy in POLICIES:
            points = [(row["load"], row[policy]) for row in pick(rows, workload=name)]
            lines(place, points, policy)
        place.axhline(1.0, color="black", linestyle="--")
        place.set(title=name, xlabel="load factor", xscale="log")
    places[0].set_ylabel("application staleness / lower bound")
    places[0].legend()
    return figure


STUDY = Study(
    title="the distance to the lower bound, over workloads and loads",
    question="How much is there still to gain, and where?",
    expected="Whittle stays close to the bound; in-place and linecutting lose most at moderate "
    "overload of unequal keys.",
    points=points,
    measure=measure,
    findings=findings,
    draw=draw,
)
