"""Agreement with theory: how close whittle comes to the lower bound, and how far others stay."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from simulator.experiment import Finding, Point, Row, Study
from simulator.studies.runs import mean, runs
from simulator.studies.workloads import WORKLOADS

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Limit(NamedTuple):
    """What a workload has to show; queue staleness by Definition 10."""

    load: int  # updates per result
    whittle: float  # by the lower bound, at most, with known rates
    in_place: float = 0.0  # by whittle, at least


LIMITS = {
    "uniform 10": [Limit(5, 1.02)],
    "20/10 skew 10": [Limit(5, 1.045)],
    "20/10 skew 25": [Limit(5, 1.045)],
    "20/10 skew 50": [Limit(15, 1.045, 1.13)],
    "20/10 skew 100": [Limit(25, 1.045)],
    "20/14 skew 50": [Limit(5, 1.085)],
    "Zipf 0.99 x 100": [Limit(2, 1.09), Limit(5, 1.02)],
    "Zipf 0.99 x 1000": [Limit(2, 1.045, 1.85), Limit(5, 1.015)],
    "lognormal 2.0 x 1000": [Limit(5, 1.015)],
    "Pareto 1.0 x 3000": [Limit(5, 1.015, 1.29)],
}
ESTIMATED = 0.015  # what estimated rates and rate classes may add
FEW_KEYS, MANY_KEYS = (5, 300_000), (3, 1_000_000)  # seeds, and updates of each run
QUICK = ("uniform 10", "20/10 skew 50", "20/14 skew 50")
QUICK_UPDATES = 12_000


def points(quick: bool) -> list[Point]:
    found = []
    for workload, limits in LIMITS.items():
        seeds, updates = MANY_KEYS if workload.endswith("000") else FEW_KEYS
        if quick:
            seeds, updates = 1, QUICK_UPDATES
        if not quick or workload in QUICK:
            found += [
                {"workload": workload, "load": limit.load, "seeds": seeds, "updates": updates}
                for limit in limits
            ]
    return found


def measure(workload: str, load: int, seeds: int, updates: int) -> Row:
    shares = WORKLOADS[workload]()

    def staleness(policy: str, rates: str) -> float:
        found = runs(shares, load, policy, updates=updates, seeds=seeds, rates=rates)
        return mean(found, "queue_staleness") / found[0].lower_bound

    return {
        "workload": workload,
        "load": load,
        "whittle": staleness("whittle", "known"),
        "whittle, estimated": staleness("whittle", "estimated"),
        "linecutting": staleness("linecutting", "known"),
        "in-place": staleness("in-place", "known"),
    }


def findings(rows: list[Row]) -> list[Finding]:
    found = []
    for row in rows:
        limit = next(each for each in LIMITS[row["workload"]] if each.load == row["load"])
        name = f"{row['workload']}, load {row['load']}"
        whittle, estimated = row["whittle"], row["whittle, estimated"]
        claim = f"{name}: whittle is at most {limit.whittle} times the bound"
        found.append(Finding(claim, whittle <= limit.whittle, f"{whittle:.4f}"))
        claim = f"{name}: with estimated rates at most {ESTIMATED} more"
        found.append(Finding(claim, estimated <= whittle + ESTIMATED, f"{estimated:.4f}"))
        if limit.in_place:
            claim = f"{name}: in-place is at least {limit.in_place} times as stale as whittle"
            ratio = row["in-place"] / whittle
            found.append(Finding(claim, ratio >= limit.in_place, f"{ratio:.4f}"))
    for policy, most in (("linecutting", 1.015), ("in-place", 1.005)):
        worst = max(rows, key=lambda row: float(row["whittle"] / row[policy]))
        ratio = worst["whittle"] / worst[policy]
        seen = f"at most {ratio:.4f} times, {worst['workload']}, load {worst['load']}"
        claim = f"whittle is nowhere more than {100 * (most - 1):.1f} % worse than {policy}"
        found.append(Finding(claim, ratio <= most, seen))
    return found


def draw(rows: list[Row]) -> Figure:
    from simulator.plots import COLOURS, axes

    figure, (place,) = axes(1, width=8.0, height=5.0)
    names = [f"{row['workload']}, load {row['load']}" for row in rows]
    for name, mark in (("in-place", "s"), ("linecutting", "^"), ("whittle", "o")):
        place.plot([row[name] for row in rows], names, mark, color=COLOURS[name], label=name)
    place.plot([row["whittle, estimated"] for row in rows], names, "x", label="whittle, estimated")
    place.axvline(1.0, color="black", linestyle="--", label="lower bound")
    place.set(xlabel="queue staleness / lower bound")
    place.invert_yaxis()
    place.legend()
    return figure


STUDY = Study(
    title="how close whittle comes to the lower bound",
    question="Does the queue do what theory says, with rates told and with rates estimated?",
    expected="Whittle within a few percent of the bound, the closer the more keys there are.",
    points=points,
    measure=measure,
    findings=findings,
    draw=draw,
)
