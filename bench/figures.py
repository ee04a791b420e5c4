"""Figures against their targets: what was measured, how many times better, what was hoped for."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Figure", "duration", "median", "show"]


class Figure(NamedTuple):
    """One line of a report."""

    what: str
    measured: str  # with its unit
    ratio: float
    target: float | None = None  # of the ratio
    at_most: bool = False  # whether the ratio should stay below the target

    @property
    def verdict(self) -> str:
        """Whether the target was reached."""
        if self.target is None:
            return ""
        reached = self.ratio <= self.target if self.at_most else self.ratio >= self.target
        return "reached" if reached else "MISSED"


def show(title: str, figures: Sequence[Figure], *, of: str) -> None:
    """Print figures; `of` says what the ratio is a ratio of."""
    wide = max(len(figure.what) for figure in figures)
    measured = max(len("measured"), *(len(figure.measured) for figure in figures))
    print(title)
    print(f"  Ratio: {of}")
    print(f"  {'':{wide}}  {'measured':>{measured}}  {'Ratio':>8}  {'target':>8}")
    for figure in figures:
        target = ""
        if figure.target is not None:
            target = f"{'<=' if figure.at_most else '>='} {figure.target:g}"
        line = (
            f"  {figure.what:{wide}}  {figure.measured:>{measured}}  {figure.ratio:>8.3g}"
            f"  {target:>8}  {figure.verdict}"
        )
        print(line.rstrip())
    print()


def median(numbers: Sequence[float]) -> float:
    """The middle of what several turns took."""
    return statistics.median(numbers)


def duration(seconds: float) -> str:
    """Seconds in a unit that suits them.

    >>> duration(0.00125)
    '1.25 ms'
    """
    for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= factor:
            return f"{seconds / factor:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"
