"""UpStream, Fig. 9: which keys the staleness comes from, the slow or the fast ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from simulator.experiment import Finding, Point, Row, Study, pick
from simulator.rates import Floats, two_class
from simulator.studies.runs import runs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KEYS, SKEW, LOAD = 20, 50.0, 15  # load: updates per result
SLOW, QUICK_SLOW = (2, 4, 6, 8, 10, 12, 14, 16, 18), (4, 10, 16)
POLICIES = ("linecutting", "in-place", "whittle")
RESULTS, QUICK_RESULTS = 30_000, 1_000  # of each run


def points(quick: bool) -> list[Point]:
    return [
        {"policy": policy, "slow": slow, "updates": LOAD * (QUICK_RESULTS if quick else RESULTS)}
        for policy in POLICIES
        for slow in (QUICK_SLOW if quick else SLOW)
    ]


def measure(policy: str, slow: int, updates: int) -> Row:
    (found,) = runs(two_class(KEYS, slow, SKEW), LOAD, policy, updates=updates)
    each = found.by_key
    return {
        "policy": policy,
        "slow": slow,
        **_contributions(each.mean_wait, slow, " per output"),
        **_contributions(each.queue_staleness, slow, ""),
    }


def _contributions(staleness: Floats, slow: int, average: str) -> Row:
    """What each class adds to the mean over all keys; the fast keys come first."""
    parts = {"slow keys": staleness[KEYS - slow :], "fast keys": staleness[: KEYS - slow]}
    return {f"{name}{average}": float(np.nansum(part)) / KEYS for name, part in parts.items()}


def findings(rows: list[Row]) -> list[Finding]:
    in_place = pick(rows, policy="in-place")
    half = next(row for row in in_place if row["slow"] == KEYS // 2)
    other = next(row for row in pick(rows, policy="linecutting") if row["slow"] == KEYS // 2)
    ratio = half["slow keys per output"] / half["fast keys per output"]
    over_time = half["slow keys"] / half["fast keys"]
    ordered = all(
        (row["slow keys per output"] - row["fast keys per output"]) * (row["slow"] - KEYS / 2) > 0
        for row in in_place
        if row["slow"] != KEYS // 2
    )
    return [
        Finding(
            "under in-place, slow and fast keys contribute alike when they are as many",
            0.9 < ratio < 1.1 and ordered,
            f"slow by fast at 10 slow keys: {ratio:.2f} per output, but {over_time:.2f} by "
            "Definition 10, where a slow key is fresh most of the time",
        ),
        Finding(
            "linecutting lets the fast keys pay",
            other["slow keys per output"] < 0.6 * half["slow keys per output"]
            and other["fast keys per output"] < 1.3 * half["fast keys per output"],
            f"at 10 slow keys: slow {half['slow keys per output']:.1f} to "
            f"{other['slow keys per output']:.1f}, fast {half['fast keys per output']:.1f} to "
            f"{other['fast keys per output']:.1f}, per output",
        ),
    ]


def draw(rows: list[Row]) -> Figure:
    from simulator.plots import axes, lines

    figure, places = axes(3, width=4.5)
    for place, policy in zip(places, POLICIES, strict=True):
        own = pick(rows, policy=policy)
        for average, dashed in ((" per output", False), ("", True)):
            for name, colour in (("slow keys", "#d62728"), ("fast keys", "#1f77b4")):
                points = [(row["slow"], row[f"{name}{average}"]) for row in own]
                label = f"{name}{average or ', Definition 10'}"
                lines(place, points, label, colour=colour, dashed=dashed)
        place.set(title=policy, xlabel=f"slow keys of {KEYS}", ylabel="contribution, time units")
        place.legend(fontsize="small")
    return figure


STUDY = Study(
    title="which keys the staleness comes from",
    question="What do slow and fast keys add to the average, and how does linecutting shift it?",
    expected="Under in-place the two lines cross at 10 slow keys of 20, per output; under "
    "linecutting slow keys add little until they compete with each other.",
    points=points,
    measure=measure,
    findings=findings,
    draw=draw,
)
