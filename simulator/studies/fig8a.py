"""UpStream, Fig. 8a: what linecutting gains over in-place as keys grow more unequal."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from simulator.experiment import Finding, Point, Row, Study, column, pick
from simulator.rates import two_class
from simulator.studies.runs import compared

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KEYS, SLOW = 20, 10
SKEWS, QUICK_SKEWS = (1, 2, 5, 10, 25, 50, 75, 100), (1, 10, 50)
LOADS = (5, 15, 25)  # updates per result
RESULTS, QUICK_RESULTS = 30_000, 600  # of each run
POLICIES = ("in-place", "linecutting", "whittle")


def points(quick: bool) -> list[Point]:
    return [
        {"load": load, "skew": skew, "updates": load * (QUICK_RESULTS if quick else RESULTS)}
        for load in LOADS
        for skew in (QUICK_SKEWS if quick else SKEWS)
    ]


def measure(load: float, skew: float, updates: int) -> Row:
    found = compared(two_class(KEYS, SLOW, skew), load, POLICIES, updates=updates)
    return {"load": load, "skew": skew, **gains(found)}


def gains(found: Row) -> Row:
    """In-place by each of the others, per output as the paper has it, and by Definition 10."""
    return {
        "linecutting, per output": found["in-place per output"] / found["linecutting per output"],
        "linecutting": found["in-place"] / found["linecutting"],
        "whittle, per output": found["in-place per output"] / found["whittle per output"],
        "whittle": found["in-place"] / found["whittle"],
    }


def findings(rows: list[Row]) -> list[Finding]:
    ratio = "linecutting, per output"
    found = []
    for load in LOADS:
        own = column(pick(rows, load=load), ratio)
        rising = all(later > 0.97 * earlier for earlier, later in pairwise(own))
        seen = f"from {own[0]:.2f} to {own[-1]:.2f}"
        found.append(Finding(f"the gain grows with skew at load {load}", rising, seen))
    at_50 = column(pick(rows, skew=50), ratio)
    plain = column(pick(rows, skew=50), "linecutting")
    even = column(pick(rows, skew=1), ratio)
    return [
        *found,
        Finding(
            "the gain shrinks with load at skew 50",
            at_50 == sorted(at_50, reverse=True),
            " > ".join(f"{value:.2f}" for value in at_50),
        ),
        Finding(
            "without skew there is no difference",
            all(abs(value - 1.0) < 0.02 for value in even),
            ", ".join(f"{value:.3f}" for value in even),
        ),
        Finding(
            "by Definition 10 the gain is as large",
            all(one > 0.9 * other for one, other in zip(plain, at_50, strict=True)),
            ", ".join(f"{value:.2f}" for value in plain) + " at skew 50: the paper's average "
            "counts outputs, and slow keys, which linecutting favours, have few",
        ),
        Finding(
            "whittle gains at least as much by Definition 10",
            all(row["whittle"] > 0.985 * row["linecutting"] for row in rows),
            f"whittle by linecutting: at least "
            f"{min(row['whittle'] / row['linecutting'] for row in rows):.3f}",
        ),
    ]


def draw(rows: list[Row]) -> Figure:
    return draw_gains(rows, "skew", "skew: how much more often fast keys update")


def draw_gains(rows: list[Row], x: str, label: str) -> Figure:
    """The ratios of both averages, over a parameter, one line per load and policy."""
    from simulator.plots import axes, lines

    figure, places = axes(2)
    for place, average in zip(places, (", per output", ""), strict=True):
        for policy, shades in SHADES.items():
            for load, shade in zip(LOADS, shades, strict=True):
                points = [(row[x], row[f"{policy}{average}"]) for row in pick(rows, load=load)]
                lines(place, points, f"{policy}, load {load}", colour=shade)
        place.axhline(1.0, color="black", linewidth=0.8)
        title = "per output, as in the paper" if average else "averaged over time (Definition 10)"
        place.set(title=title, xlabel=label, ylabel="queue staleness, in-place / policy")
        place.legend(fontsize="small")
    return figure


SHADES = {
    "linecutting": ("#ffbb78", "#ff7f0e", "#b35806"),
    "whittle": ("#98df8a", "#2ca02c", "#1b6d1b"),
}

STUDY = Study(
    title="what linecutting gains as keys grow more unequal",
    question="In-place by linecutting: how does it change with the skew of two classes of keys?",
    expected="Above 1 and rising with skew, less so at high load; 1 without skew.",
    points=points,
    measure=measure,
    findings=findings,
    draw=draw,
)
