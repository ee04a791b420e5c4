"""What the verbs of the simulator have in common."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from simulator.arrivals import Stream
from simulator.costs import Cost, PerBatch, PerUnit
from simulator.traces import read_trace
from upstream.errors import InputError

__all__ = ["cost_of", "duration", "number", "on_the_command_line", "recorded"]

UNITS = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0, "": 1.0}
DURATION = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*([a-z]*)")


@contextmanager
def on_the_command_line() -> Iterator[None]:
    """What cannot be used was written on the command line: exit code 2."""
    try:
        yield
    except InputError as error:
        raise typer.BadParameter(str(error)) from None


def recorded(
    trace: Path, key: str | None, time: str | None, event_time: str | None, speedup: float
) -> Stream:
    """The stream of a file, whose columns the options name."""
    if key is None or time is None:
        raise typer.BadParameter("--trace needs --key and --time, the names of two columns")
    columns = [column.strip() for column in key.split(",")]
    return read_trace(trace, key=columns, time=time, event_time=event_time, speedup=speedup)


def cost_of(stream: Stream, *, load: float, cost: float | None, batch_cost: float) -> Cost:
    """The server: `cost` per result, or as much as makes the load factor `load`."""
    each = PerUnit(load / stream.rate if cost is None else cost)
    return PerBatch(batch_cost, each) if batch_cost > 0.0 else each


def duration(text: str) -> float:
    """Seconds, from a number or from text such as "500ms", "2s" or "1.5min".

    >>> duration("2s"), duration("250 ms"), duration("3")
    (2.0, 0.25, 3.0)
    """
    match = DURATION.fullmatch(text.strip().lower())
    if match is None or match[2] not in UNITS or not float(match[1]) * UNITS[match[2]] > 0.0:
        raise typer.BadParameter(
            f"expected a time above 0 such as '2s' or '500ms', got {text!r}; units are "
            f"{', '.join(filter(None, UNITS))}"
        )
    return float(match[1]) * UNITS[match[2]]


def number(value: float) -> str:
    """A number with four digits, more where it is large.

    >>> number(0.123456), number(12.3456), number(123456.7), number(float("nan"))
    ('0.1235', '12.35', '123,457', '')
    """
    if math.isnan(value):
        return ""
    if abs(value) >= 1000.0 or value == 0.0:
        return f"{value:,.0f}"
    return f"{value:.4g}"
