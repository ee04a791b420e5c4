"""UpStream, Fig. 15: linecutting under Zipf rates, with the time that choosing takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulator.arrivals import poisson
from simulator.experiment import Finding, Point, Row, Study, column, pick
from simulator.rates import zipf
from simulator.studies.overhead import LOAD, OVERHEADS
from simulator.studies.runs import mean, runs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

THETAS, QUICK_THETAS = (0.0, 0.33, 0.66, 0.9, 0.99), (0.0, 0.66, 0.99)
KEYS, QUICK_KEYS = (10, 25, 50, 100), (10, 50)
RESULTS, QUICK_RESULTS = 50_000, 1_000  # of each run


def points(quick: bool) -> list[Point]:
    return [
        {"theta": theta, "keys": keys, "updates": int(LOAD * (QUICK_RESULTS if quick else RESULTS))}
        for theta in (QUICK_THETAS if quick else THETAS)
        for keys in (QUICK_KEYS if quick else KEYS)
    ]


def measure(theta: float, keys: int, updates: int) -> Row:
    shares = zipf(keys, theta)
    in_place = runs(shares, LOAD, "in-place", updates=updates, process=poisson)
    row: Row = {"theta": theta, "keys": keys}
    for overhead in ("walk", "scan", "classes"):
        found = runs(shares, OVERHEADS[overhead], "linecutting", updates=updates, process=poisson)
        gain = mean(in_place, "queue_staleness_per_output") / mean(
            found, "queue_staleness_per_output"
        )
        row[f"gain % ({overhead})"] = 100.0 * (gain - 1.0)
        loss = 1.0 - mean(found, "delivered") / mean(in_place, "delivered")
        row[f"lost results % ({overhead})"] = 100.0 * loss
        row["queue length"] = mean(found, "mean_waiting")
    gain = mean(in_place, "queue_staleness") / mean(found, "queue_staleness")
    row["gain % (classes, Definition 10)"] = 100.0 * (gain - 1.0)
    return row


def findings(rows: list[Row]) -> list[Finding]:
    even, steep = pick(rows, theta=0.0), pick(rows, theta=max(column(rows, "theta")))
    loss = column(even, "lost results % (walk)")
    worst = min(column(rows, "gain % (classes)"))
    return [
        Finding(
            "at high skew linecutting is fresher, and more so with more keys",
            0 < steep[0]["gain % (walk)"] < steep[-1]["gain % (walk)"],
            ", ".join(f"{row['gain % (walk)']:.0f} % at {row['keys']} keys" for row in steep),
        ),
        Finding(
            "at low skew walking along the queue makes it worse, the more keys there are",
            even[-1]["gain % (walk)"] < even[0]["gain % (walk)"] <= 0.01,
            ", ".join(f"{row['gain % (walk)']:.2f} % at {row['keys']} keys" for row in even),
        ),
        Finding(
            "the loss of results grows with the queue",
            loss == sorted(loss),
            ", ".join(
                f"{row['lost results % (walk)']:.1f} % at {row['queue length']:.0f} waiting"
                for row in even
            ),
        ),
        Finding(
            "with rate classes nothing is lost at low skew",
            worst > -0.5,
            f"the gain is at least {worst:.2f} %, and at most "
            f"{max(column(rows, 'lost results % (classes)')):.2f} % of the results are lost",
        ),
    ]


def draw(rows: list[Row]) -> Figure:
    from simulator.plots import axes, lines

    figure, places = axes(3, width=4.5)
    names = ("gain % (walk)", "gain % (classes)", "lost results % (walk)")
    for place, name in zip(places, names, strict=True):
        for theta in sorted(set(column(rows, "theta"))):
            points = [(row["keys"], row[name]) for row in pick(rows, theta=theta)]
            lines(place, points, f"theta {theta:g}")
        place.axhline(0.0, color="black", linewidth=0.8)
        place.set(title=f"linecutting: {name}", xlabel="keys", ylabel="% of in-place")
        place.legend(fontsize="small")
    return figure


STUDY = Study(
    title="linecutting under Zipf rates, with the time that choosing takes",
    question="Does linecutting pay when the time to choose is taken from the server?",
    expected="Only at high skew if the queue is walked along; always with rate classes.",
    points=points,
    measure=measure,
    findings=findings,
    draw=draw,
)
