"""Drifting rates: how well the estimates follow when keys swap their rates."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from simulator.arrivals import drifting
from simulator.experiment import Finding, Point, Row, Study, column
from simulator.studies.runs import mean, runs
from simulator.studies.workloads import WORKLOADS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WORKLOAD, LOAD = "20/10 skew 50", 5  # load: updates per result
EVERY, QUICK_EVERY = (25, 50, 100, 200, 400, 800), (50, 400)  # updates per key between swaps
ALPHAS = (0.1, 0.2, 0.4)  # option rate_alpha
UPDATES, QUICK_UPDATES = 400_000, 10_000


def points(quick: bool) -> list[Point]:
    return [
        {"every": every, "updates": QUICK_UPDATES if quick else UPDATES}
        for every in (QUICK_EVERY if quick else EVERY)
    ]


def measure(every: int, updates: int) -> Row:
    shares = WORKLOADS[WORKLOAD]()
    process = partial(drifting, every=every)

    def staleness(policy: str, rates: str, **options: float) -> float:
        found = runs(
            shares, LOAD, policy, updates=updates, process=process, rates=rates, options=options
        )
        return mean(found, "queue_staleness") / found[0].lower_bound

    return {
        "every": every,
        "in-place": staleness("in-place", "estimated"),
        "whittle, as told at the start": staleness("whittle", "known"),
        **{
            f"whittle, alpha {alpha}": staleness("whittle", "estimated", rate_alpha=alpha)
            for alpha in ALPHAS
        },
    }


def findings(rows: list[Row]) -> list[Finding]:
    estimates = [f"whittle, alpha {alpha}" for alpha in ALPHAS]
    told = "whittle, as told at the start"
    least = [min(row[name] for name in estimates) for row in rows]
    slowest = rows[-1]
    return [
        Finding(
            "estimated rates are fresher than those of the start, however often keys swap",
            all(row[estimates[0]] < row[told] for row in rows),
            ", ".join(f"{row[estimates[0]]:.3f} against {row[told]:.3f}" for row in rows),
        ),
        Finding(
            "whittle with estimates is fresher than in-place, however often keys swap",
            all(row[estimates[0]] < row["in-place"] for row in rows),
            ", ".join(f"{row[estimates[0]]:.3f} against {row['in-place']:.3f}" for row in rows),
        ),
        Finding(
            "the less often they swap, the less it costs",
            column(rows, estimates[0])[-1] < column(rows, estimates[0])[0],
            ", ".join(f"{row[estimates[0]]:.3f} every {row['every']}" for row in rows),
        ),
        Finding(
            "no other alpha is better than 0.1 by more than 2 %",
            all(row[estimates[0]] < 1.02 * best for row, best in zip(rows, least, strict=True)),
            ", ".join(f"{name[9:]}: {slowest[name]:.3f}" for name in estimates)
            + f" every {slowest['every']}",
        ),
    ]


def draw(rows: list[Row]) -> Figure:
    from simulator.plots import axes, lines

    figure, (place,) = axes(1, width=7.0)
    for name in rows[0]:
        if name != "every":
            colour = "#1f77b4" if name == "in-place" else ""
            lines(place, [(row["every"], row[name]) for row in rows], name, colour=colour or None)
    place.set(
        xlabel="updates per key between two swaps of all rates",
        ylabel="queue staleness / lower bound",
        xscale="log",
    )
    place.legend()
    return figure


STUDY = Study(
    title="drifting rates",
    question="How well do the estimates follow when all keys swap their rates now and then?",
    expected="A few percent lost where they swap every 100 updates per key; far better than "
    "rates that were right at the start.",
    points=points,
    measure=measure,
    findings=findings,
    draw=draw,
)
