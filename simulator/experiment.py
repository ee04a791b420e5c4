"""What a study is: a question, points to measure, and claims to check.

A study is a module of `simulator.studies` with an instance of `Study` called STUDY. Its
points are measured one by one, in any process; what was found is a list of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Finding", "Point", "Row", "Study", "as_text", "average", "column", "pick"]

Point: TypeAlias = dict[str, Any]  # the arguments of `measure`
Row: TypeAlias = dict[str, Any]  # what was measured there: numbers and names


class Finding(NamedTuple):
    """A claim, and what was seen of it."""

    claim: str
    holds: bool
    seen: str


@dataclass(frozen=True)
class Study:
    """One experiment."""

    title: str
    question: str
    expected: str  # the shape that theory, or the paper, lets us expect
    points: Callable[[bool], list[Point]]  # to measure, few and small where it has to be quick
    measure: Callable[..., Row]
    findings: Callable[[list[Row]], list[Finding]]
    draw: Callable[[list[Row]], Figure]


def as_text(name: str, study: Study, rows: list[Row], *, quick: bool = False) -> str:
    """A study on a page: what was asked, measured and found."""
    size = ", quick: short runs, figures are rough" if quick else ""
    verdicts = [
        f"{'holds' if holds else 'DOES NOT HOLD'}: {claim} ({seen})"
        for claim, holds, seen in study.findings(rows)
    ]
    parts = [
        f"{name}: {study.title}{size}",
        f"Question: {study.question}\nExpected: {study.expected}",
        table(rows),
        "\n".join(verdicts),
    ]
    return "\n\n".join(parts) + "\n"


def table(rows: Sequence[Row]) -> str:
    """Rows as aligned text, numbers with four digits.

    >>> print(table([{"load": 5, "staleness": 1.23456}, {"load": 15, "staleness": 100.0}]))
    load  staleness
       5      1.235
      15        100
    """
    lines = [list(rows[0])] + [[_cell(value) for value in row.values()] for row in rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _cell(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def pick(rows: Sequence[Row], **wanted: Any) -> list[Row]:
    """The rows in which the columns have these values."""
    return [row for row in rows if all(row[name] == value for name, value in wanted.items())]


def column(rows: Sequence[Row], name: str) -> list[Any]:
    """One column of some rows."""
    return [row[name] for row in rows]


def average(values: Sequence[float]) -> float:
    """The mean."""
    return sum(values) / len(values)
