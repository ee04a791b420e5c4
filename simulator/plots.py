"""Pictures of results; the only place that needs matplotlib."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from simulator.result import Result
from upstream.errors import UpstreamError

__all__ = ["COLOURS", "axes", "draw_comparison", "lines", "save"]

COLOURS = {
    "append": "#7f7f7f",
    "random-drop": "#c49c6b",
    "in-place": "#1f77b4",
    "linecutting": "#ff7f0e",
    "whittle": "#2ca02c",
    "bound": "#000000",
}


def axes(count: int = 1, *, width: float = 5.5, height: float = 4.0) -> tuple[Figure, list[Axes]]:
    """A figure with some pictures side by side."""
    figure = Figure(figsize=(width * count, height), layout="constrained")
    return figure, list(figure.subplots(1, count, squeeze=False)[0])


def lines(
    place: Axes,
    points: Iterable[tuple[float, float]],
    label: str,
    *,
    colour: str | None = None,
    dashed: bool = False,
) -> None:
    """One line through points (x, y), in the colour of the policy that the label names."""
    x, y = zip(*sorted(points), strict=True)
    colour = colour or next((c for name, c in COLOURS.items() if label.startswith(name)), None)
    place.plot(x, y, "--o" if dashed else "-o", label=label, color=colour, markersize=3.5)


def save(figure: Figure, *files: Path) -> None:
    """Write a figure, the same bytes every time."""
    for file in files:
        metadata = {"Date": None} if file.suffix == ".svg" else {"Software": None}
        try:
            with rc_context({"svg.hashsalt": "upstream"}):
                figure.savefig(file, dpi=110, metadata=metadata)
        except (OSError, ValueError) as error:
            raise UpstreamError(f"the plot cannot be written to {file}: {error}") from None


def draw_comparison(results: Sequence[Result], file: Path) -> None:
    """Bars of application and queue staleness by policy, and the lower bounds."""
    figure, places = axes(2)
    for place, title, heights, bound in (
        (
            places[0],
            "application staleness",
            [each.application_staleness for each in results],
            results[0].lower_bound_application,
        ),
        (
            places[1],
            "queue staleness",
            [each.queue_staleness for each in results],
            results[0].lower_bound,
        ),
    ):
        names = [each.policy for each in results]
        place.bar(names, heights, color=[COLOURS.get(name, "#9467bd") for name in names])
        place.axhline(bound, color=COLOURS["bound"], linestyle="--", label="lower bound")
        if max(heights) > 20 * min(heights) > 0.0:
            place.set_yscale("log")
        place.set_title(title)
        place.set_ylabel("mean over keys and time")
        place.tick_params("x", rotation=20)
        place.legend()
    save(figure, file)
