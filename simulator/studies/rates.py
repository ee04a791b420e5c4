"""Known against estimated rates: what it costs that nobody tells the queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulator.experiment import Finding, Point, Row, Study, column, pick
from simulator.studies.runs import mean, runs
from simulator.studies.workloads import WORKLOADS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMES = ("20/10 skew 50", "Zipf 0.99 x 100", "lognormal 2.0 x 1000")
QUICK_NAMES = ("20/10 skew 50",)
LOAD = 5  # updates per result
LENGTHS, QUICK_LENGTHS = (20, 100, 1000), (20, 500)  # updates per key
SEEDS = 3


def points(quick: bool) -> list[Point]:
    return [
        {"workload": name, "length": length, "seeds": 1 if quick else SEEDS}
        for name in (QUICK_NAMES if quick else NAMES)
        for length in (QUICK_LENGTHS if quick else LENGTHS)
    ]


def measure(workload: str, length: int, seeds: int) -> Row:
    shares = WORKLOADS[workload]()

    def staleness(rates: str, selection: str) -> float:
        found = runs(
            shares,
            LOAD,
            "whittle",
            updates=length * len(shares),
            seeds=seeds,
            rates=rates,
            warmup=0.0,
            options={"selection": selection},
        )
        return mean(found, "queue_staleness")

    exact = staleness("known", "scan")
    return {
        "workload": workload,
        "updates per key": length,
        "known, classes": staleness("known", "classes") / exact,
        "estimated, scan": staleness("estimated", "scan") / exact,
        "estimated, classes": staleness("estimated", "classes") / exact,
    }


def findings(rows: list[Row]) -> list[Finding]:
    short, long = min(column(rows, "updates per key")), max(column(rows, "updates per key"))

    def listed(length: int, name: str) -> str:
        own = pick(rows, **{"updates per key": length})
        return ", ".join(f"{100 * (row[name] - 1):.2f} % {row['workload']}" for row in own)

    def at_most(length: int, name: str, most: float) -> bool:
        return all(row[name] <= most for row in pick(rows, **{"updates per key": length}))

    both = "estimated, classes"
    return [
        Finding(
            "rate classes alone cost 0.5 % at most",
            at_most(long, "known, classes", 1.005),
            listed(long, "known, classes"),
        ),
        Finding(
            f"after {long} updates per key, estimates and classes cost 1.5 % at most",
            at_most(long, both, 1.015),
            listed(long, both),
        ),
        Finding(
            f"over the first {short} updates per key, 5 % at most",
            at_most(short, both, 1.05),
            listed(short, both),
        ),
    ]


def draw(rows: list[Row]) -> Figure:
    from simulator.plots import axes, lines

    names = list(dict.fromkeys(column(rows, "workload")))
    figure, places = axes(len(names), width=4.5)
    for place, name in zip(places, names, strict=True):
        for kind in ("known, classes", "estimated, scan", "estimated, classes"):
            own = pick(rows, workload=name)
            lines(place, [(row["updates per key"], row[kind]) for row in own], kind)
        place.axhline(1.0, color="black", linestyle="--")
        place.set(title=name, xlabel="updates per key", xscale="log")
    places[0].set_ylabel("queue staleness / that with known rates, exact")
    places[0].legend()
    return figure


STUDY = Study(
    title="known against estimated rates",
    question="What does it cost that rates are estimated, and that they are put into classes?",
    expected="Below 1.5 % in the long run, a few percent at the start.",
    points=points,
    measure=measure,
    findings=findings,
    draw=draw,
)
