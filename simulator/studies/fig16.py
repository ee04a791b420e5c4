"""UpStream, Fig. 16: portfolios of stocks whose rates differ widely."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulator.arrivals import poisson
from simulator.experiment import Finding, Point, Row, Study
from simulator.rates import lognormal, portfolio
from simulator.studies.overhead import LOAD, OVERHEADS, TIME_UNIT
from simulator.studies.runs import mean, runs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The paper's day of trades is not public. A lognormal distribution is as skewed: a few symbols
# trade all the time, others once or twice a day.
SYMBOLS, SIGMA = 3000, 2.0
SIZES, QUICK_SIZES = (10, 20, 50, 100, 200), (10, 50)  # symbols in the portfolio
POLICIES = ("in-place", "linecutting", "whittle")
RESULTS, QUICK_RESULTS = 100_000, 2_000  # of each run


def points(quick: bool) -> list[Point]:
    return [
        {"size": size, "updates": int(LOAD * (QUICK_RESULTS if quick else RESULTS))}
        for size in (QUICK_SIZES if quick else SIZES)
    ]


def measure(size: int, updates: int) -> Row:
    shares = portfolio(lognormal(SYMBOLS, SIGMA), size)
    row: Row = {"symbols": size}
    for policy in POLICIES:
        cost = OVERHEADS["free" if policy == "in-place" else "classes"]
        found = runs(shares, cost, policy, updates=updates, process=poisson)
        row[policy] = TIME_UNIT * mean(found, "application_staleness")
        row[f"{policy} per output"] = TIME_UNIT * mean(found, "queue_staleness_per_output")
    row["bound"] = TIME_UNIT * mean(found, "lower_bound_application")
    return row


def findings(rows: list[Row]) -> list[Finding]:
    outputs = [100 * (r["in-place per output"] / r["linecutting per output"] - 1) for r in rows]
    over_time = [100 * (r["in-place"] / r["linecutting"] - 1) for r in rows]
    ours = [100 * (r["in-place"] / r["whittle"] - 1) for r in rows]

    def listed(gains: list[float]) -> str:
        sizes = ", ".join(str(row["symbols"]) for row in rows)
        return ", ".join(f"{gain:.0f} %" for gain in gains) + f" for {sizes} symbols"

    return [
        Finding(
            "linecutting improves on in-place for all sizes", min(outputs) > 0, listed(outputs)
        ),
        Finding("by 70 % or more, per output", min(outputs) >= 70, listed(outputs)),
        Finding("by 70 % or more, by Definition 10", min(over_time) >= 70, listed(over_time)),
        Finding(
            "whittle improves at least as much, by Definition 10",
            all(a > b - 1.5 for a, b in zip(ours, over_time, strict=True)),
            listed(ours),
        ),
    ]


def draw(rows: list[Row]) -> Figure:
    from simulator.plots import axes, lines

    figure, places = axes(2)
    for place, average in zip(places, (" per output", ""), strict=True):
        for policy in POLICIES:
            points = [(row["symbols"], row[f"{policy}{average}"]) for row in rows]
            lines(place, points, policy)
        if not average:
            lines(place, [(row["symbols"], row["bound"]) for row in rows], "bound", dashed=True)
        title = "queue, per output" if average else "application, over time (Definition 10)"
        place.set(title=title, xlabel="symbols in the portfolio", ylabel="staleness, seconds")
        place.legend()
    return figure


STUDY = Study(
    title="portfolios of stocks whose rates differ widely",
    question="How stale are the prices of a portfolio that is spread over all symbols?",
    expected="Linecutting is fresher than in-place by 70 % and more, for every size.",
    points=points,
    measure=measure,
    findings=findings,
    draw=draw,
)
