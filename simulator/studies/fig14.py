"""UpStream, Fig. 14: what linecutting gains in a system, over skew and number of keys."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from simulator.arrivals import poisson
from simulator.experiment import Finding, Point, Row, Study, column, pick
from simulator.rates import two_class
from simulator.studies.overhead import LOAD, OVERHEADS
from simulator.studies.runs import mean, runs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KEYS, QUICK_KEYS = (10, 20, 50, 100), (10, 50)  # half of them slow
SKEWS, QUICK_SKEWS = (1, 10, 50, 100), (1, 10, 100)
RESULTS, QUICK_RESULTS = 50_000, 1_200  # of each run


def points(quick: bool) -> list[Point]:
    return [
        {"keys": keys, "skew": skew, "updates": int(LOAD * (QUICK_RESULTS if quick else RESULTS))}
        for keys in (QUICK_KEYS if quick else KEYS)
        for skew in (QUICK_SKEWS if quick else SKEWS)
    ]


def measure(keys: int, skew: float, updates: int) -> Row:
    shares = two_class(keys, keys // 2, skew)
    in_place = runs(shares, LOAD, "in-place", updates=updates, process=poisson)
    row: Row = {"keys": keys, "skew": skew}
    for overhead in ("walk", "classes"):
        found = runs(shares, OVERHEADS[overhead], "linecutting", updates=updates, process=poisson)
        for name, average in (
            ("queue_staleness_per_output", ", per output"),
            ("queue_staleness", ""),
        ):
            gain = mean(in_place, name) / mean(found, name) - 1.0
            row[f"gain % ({overhead}{average})"] = 100.0 * gain
    return row


def findings(rows: list[Row]) -> list[Finding]:
    walk, classes = "gain % (walk, per output)", "gain % (classes, per output)"
    keys = sorted(set(column(rows, "keys")))
    even, most = pick(rows, skew=1), max(column(rows, "skew"))
    top = column(pick(rows, skew=most), classes)
    return [
        Finding(
            "the gain grows with skew, for any number of keys",
            all(
                later[walk] > earlier[walk]
                for count in keys
                for earlier, later in pairwise(pick(rows, keys=count))
            ),
            ", ".join(
                f"{count} keys: {' < '.join(f'{row[walk]:.0f}' for row in pick(rows, keys=count))}"
                for count in keys
            ),
        ),
        Finding(
            f"at skew {most} the gain grows with the number of keys",
            top == sorted(top),
            ", ".join(f"{value:.0f} %" for value in top) + f" for {', '.join(map(str, keys))} keys",
        ),
        Finding(
            "without skew, walking along the queue costs a little, and more with more keys",
            even[-1][walk] < even[0][walk] < 0.01,
            ", ".join(f"{row[walk]:.2f} %" for row in even),
        ),
        Finding(
            "with rate classes there is no such loss",
            all(row[classes] > -0.5 for row in even),
            ", ".join(f"{row[classes]:.2f} %" for row in even),
        ),
    ]


def draw(rows: list[Row]) -> Figure:
    from simulator.plots import axes, lines

    figure, places = axes(2)
    for place, name in zip(places, ("classes, per output", "classes"), strict=True):
        for keys in sorted(set(column(rows, "keys"))):
            points = [(row["skew"], row[f"gain % ({name})"]) for row in pick(rows, keys=keys)]
            lines(place, points, f"{keys} keys")
        title = "per output, as in the paper" if "per" in name else "over time (Definition 10)"
        place.axhline(0.0, color="black", linewidth=0.8)
        place.set(title=title, xlabel="skew", ylabel="gain of linecutting over in-place, %")
        place.legend()
    return figure


STUDY = Study(
    title="what linecutting gains, over skew and number of keys",
    question="How much fresher than in-place is linecutting when choosing costs time, too?",
    expected="More with skew, and at high skew more with more keys; a small loss without skew.",
    points=points,
    measure=measure,
    findings=findings,
    draw=draw,
)
