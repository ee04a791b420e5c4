"""Weights and costs: where knowing what matters, and what it costs, pays most."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from simulator.costs import PerKey
from simulator.experiment import Finding, Point, Row, Study, pick
from simulator.rates import two_class
from simulator.studies.runs import mean, runs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KEYS = 20
WEIGHTS, COSTS = (1.0, 10.0), (25.0, 5.0)  # costs in time units, of one update each
SKEWS, QUICK_SKEWS = (1, 10), (10,)  # fast keys, one half, update so many times as often
CASES = {  # which half is heavy, and which is cheap
    "equal": ("none", "none"),
    "weights": ("fast", "none"),
    "costs": ("none", "fast"),
    "heavy fast keys are cheap": ("fast", "fast"),
    "heavy slow keys are cheap": ("slow", "slow"),
    "heavy keys are dear": ("fast", "slow"),
}
POLICIES = ("in-place", "linecutting", "whittle")
UPDATES, QUICK_UPDATES = 400_000, 5_000


def points(quick: bool) -> list[Point]:
    return [
        {"case": case, "skew": skew, "updates": QUICK_UPDATES if quick else UPDATES}
        for case in CASES
        for skew in (QUICK_SKEWS if quick else SKEWS)
    ]


def measure(case: str, skew: float, updates: int) -> Row:
    fast = np.arange(KEYS) < KEYS // 2
    halves = {"fast": fast, "slow": ~fast, "none": np.zeros(KEYS, np.bool_)}
    heavy, cheap = (halves[half] for half in CASES[case])
    weights = np.where(heavy, WEIGHTS[1], WEIGHTS[0])
    costs = np.where(cheap, COSTS[1], COSTS[0])
    row: Row = {"case": case, "skew": skew}
    for policy in POLICIES:
        found = runs(
            two_class(KEYS, KEYS // 2, skew),
            PerKey(costs),
            policy,
            updates=updates,
            weights=weights,
        )
        row[policy] = mean(found, "queue_staleness_weighted") / found[0].lower_bound
    return row


def findings(rows: list[Row]) -> list[Finding]:
    worst = max(rows, key=lambda row: float(row["whittle"]))
    most = max(rows, key=lambda row: float(row["in-place"] / row["whittle"]))
    dear = [row["in-place"] / row["whittle"] for row in pick(rows, case="heavy keys are dear")]
    return [
        Finding(
            "whittle stays within 6 % of the bound, whatever weights and costs are",
            worst["whittle"] < 1.06,
            f"at most {worst['whittle']:.3f}: {worst['case']}, skew {worst['skew']}",
        ),
        Finding(
            "where heavy keys are cheap, the others are more than twice as stale",
            most["in-place"] > 2 * most["whittle"] and most["linecutting"] > 2 * most["whittle"],
            f"{most['case']}, skew {most['skew']}: in-place {most['in-place']:.2f}, linecutting "
            f"{most['linecutting']:.2f}, whittle {most['whittle']:.2f} times the bound",
        ),
        Finding(
            "where heavy keys are dear, there is little to gain",
            max(dear) < 1.05,
            ", ".join(f"{ratio:.3f}" for ratio in dear) + ", in-place by whittle",
        ),
    ]


def draw(rows: list[Row]) -> Figure:
    from simulator.plots import COLOURS, axes

    figure, (place,) = axes(1, width=8.0)
    names = [f"{row['case']}\nskew {row['skew']}" for row in rows]
    for number, policy in enumerate(POLICIES):
        at = np.arange(len(rows)) + 0.27 * (number - 1)
        place.bar(at, [row[policy] for row in rows], 0.25, label=policy, color=COLOURS[policy])
    place.set_xticks(range(len(rows)), names, fontsize="small", rotation=30)
    place.axhline(1.0, color="black", linestyle="--")
    place.set_ylabel("weighted queue staleness / lower bound")
    place.legend()
    return figure


STUDY = Study(
    title="weights and costs",
    question="What is gained by knowing which keys matter, and what their results cost?",
    expected="Much where important keys are cheap: others serve all alike; little where "
    "weight and cost go together.",
    points=points,
    measure=measure,
    findings=findings,
    draw=draw,
)
