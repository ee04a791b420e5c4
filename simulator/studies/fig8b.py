"""UpStream, Fig. 8b: what linecutting gains as more keys are slow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulator.experiment import Finding, Point, Row, Study, column, pick
from simulator.rates import two_class
from simulator.studies.fig8a import KEYS, LOADS, POLICIES, draw_gains, gains
from simulator.studies.runs import compared

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SKEW = 50.0
SLOW, QUICK_SLOW = (2, 4, 6, 8, 10, 12, 14, 16, 18), (2, 8, 14, 18)
RESULTS, QUICK_RESULTS = 30_000, 500  # of each run


def points(quick: bool) -> list[Point]:
    return [
        {"load": load, "slow": slow, "updates": load * (QUICK_RESULTS if quick else RESULTS)}
        for load in LOADS
        for slow in (QUICK_SLOW if quick else SLOW)
    ]


def measure(load: float, slow: int, updates: int) -> Row:
    found = compared(two_class(KEYS, slow, SKEW), load, POLICIES, updates=updates)
    return {"load": load, "slow": slow, **gains(found)}


def findings(rows: list[Row]) -> list[Finding]:
    ratio = "linecutting, per output"
    peaks = [max(pick(rows, load=load), key=lambda row: float(row[ratio])) for load in LOADS]
    most = max(column(rows, "slow"))
    worst = min(min(row[ratio], row["linecutting"]) for row in rows)
    return [
        Finding(
            "linecutting is never worse than in-place",
            worst > 0.99,
            f"the ratio is at least {worst:.3f}, in both averages",
        ),
        Finding(
            "the gain rises with the number of slow keys and falls again",
            all(peak["slow"] < most for peak in peaks[1:]),
            ", ".join(
                f"load {peak['load']}: most, {peak[ratio]:.2f}, at {peak['slow']} slow keys"
                for peak in peaks
            ),
        ),
        Finding(
            "the higher the load, the earlier it is largest",
            column(peaks, "slow") == sorted(column(peaks, "slow"), reverse=True),
            " >= ".join(str(peak["slow"]) for peak in peaks) + " slow keys",
        ),
        Finding(
            "whittle gains at least as much by Definition 10",
            all(row["whittle"] > 0.985 * row["linecutting"] for row in rows),
            f"whittle by linecutting: at least "
            f"{min(row['whittle'] / row['linecutting'] for row in rows):.3f}",
        ),
    ]


def draw(rows: list[Row]) -> Figure:
    return draw_gains(rows, "slow", f"slow keys of {KEYS}, skew {SKEW:g}")


STUDY = Study(
    title="what linecutting gains as more keys are slow",
    question="In-place by linecutting: how does it change with the number of slow keys?",
    expected="Never below 1; rising, then falling again, with the peak further left at high load.",
    points=points,
    measure=measure,
    findings=findings,
    draw=draw,
)
