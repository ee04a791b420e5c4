"""The verb `upstream demo`: a race of queues, to watch in a terminal.

The race itself is in `upstream.race`; here is the command, and what it shows on the way and
at the end. On a terminal two simulated minutes are shown in twenty seconds; elsewhere the
race runs as fast as it can and prints a line now and then.
"""

from __future__ import annotations

import json as jsonlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.bar import Bar
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from upstream.race import (
    SIMULATED_SECONDS,
    STALEST_KEYS,
    Lane,
    Policy,
    Result,
    Standing,
    Trace,
    race,
)

__all__ = ["demo"]

BAR_WIDTH = 40
PROGRESS_WIDTH = 44
PIPE_WIDTH = 100  # columns where there is no terminal

# Why the stalest keys are the ones they are.
WHO_WAITS = {
    Policy.APPEND: "the whole backlog is before them",
    Policy.RANDOM_DROP: "dropped updates, and no later one yet",
    Policy.IN_PLACE: "the longest wait is served first",
    Policy.LINECUTTING: "slow keys are let ahead",
    Policy.WHITTLE: "those that soon change again may wait",
}


def demo(
    seconds: Annotated[
        float, typer.Option(min=0.0, help="How long to show it; 0: as fast as it goes.")
    ] = 20.0,
    keys: Annotated[int, typer.Option(min=2, max=5000, help="Keys of the stream.")] = 200,
    load: Annotated[
        float, typer.Option(min=0.1, max=100.0, help="Updates per result that can be computed.")
    ] = 3.0,
    seed: Annotated[int, typer.Option(min=0, help="Start of the random numbers.")] = 0,
    policy: Annotated[
        Policy, typer.Option(help="The queue whose stalest keys are shown.")
    ] = Policy.WHITTLE,
    json: Annotated[bool, typer.Option("--json", help="Print only the results, as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print only the summary.")] = False,
) -> None:
    """Watch an append queue and the policies side by side on one overloaded stream.

    The stream and the consumer are simulated, the queues are real. The same options give
    the same digits. Ctrl-C ends it with the summary so far.
    """
    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, PIPE_WIDTH)
    _warm_up(console if console.is_terminal and not json else Console(stderr=True, quiet=True))
    trace = Trace(keys=keys, seed=seed)
    screen: Screen = Silent() if json or quiet else Lines(console)
    if console.is_terminal and not (json or quiet):
        screen = Pictures(console, trace, load, policy, seconds)
    last = None
    with _interruptible() as interrupted, screen:
        for standing in race(trace, load=load, seed=seed, watch=policy):
            last = standing
            screen.show(standing, interrupted)
            if interrupted():
                break
    assert last is not None
    if json:
        typer.echo(jsonlib.dumps(_as_json(last, keys=keys, load=load, seed=seed), indent=2))
    else:
        console.print(_summary(last, trace, load))
    if interrupted():
        raise typer.Exit(130)


def _warm_up(console: Console) -> None:
    """Have the queue's kernels compiled before anybody watches."""
    with console.status("Compiling the queue (the first time only, about half a minute)"):
        trace = Trace(keys=2, seed=0)
        for policy in Policy:
            Lane(policy.value, trace, 1.0, 0).run_until(SIMULATED_SECONDS / 10)


@contextmanager
def _interruptible() -> Iterator[Callable[[], bool]]:
    """Ctrl-C lets the current frame end; a second one does not."""
    pressed = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield pressed.is_set
        return

    def press(number: int, frame: Any) -> None:
        pressed.set()
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, press)
    try:
        yield pressed.is_set
    finally:
        signal.signal(signal.SIGINT, before)


# ---- what is shown on the way


class Screen:
    """Where standings are shown."""

    def show(self, standing: Standing, interrupted: Callable[[], bool]) -> None:
        """A frame is over."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        pass


class Silent(Screen):
    """Nothing is shown."""


class Lines(Screen):
    """A line now and then, for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._next = 0.0

    def show(self, standing: Standing, interrupted: Callable[[], bool]) -> None:
        if standing.at >= self._next:
            self._next = standing.at + SIMULATED_SECONDS / 10
            averages = ", ".join(
                f"{result.policy} {_seconds(result.average_staleness)}"
                for result in standing.results
            )
            self._console.print(
                f"at {standing.at:3.0f} s, average staleness: {averages}",
                highlight=False,
                soft_wrap=True,
            )


class Pictures(Screen):
    """Tables that move, at the pace at which somebody can follow."""

    def __init__(
        self, console: Console, trace: Trace, load: float, watch: Policy, seconds: float
    ) -> None:
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._trace = trace
        self._load = load
        self._watch = watch
        self._seconds = seconds

    def __enter__(self) -> None:
        self._started = time.monotonic()
        self._live.start()

    def __exit__(self, *error: object) -> None:
        self._live.stop()

    def show(self, standing: Standing, interrupted: Callable[[], bool]) -> None:
        self._live.update(self._picture(standing), refresh=True)
        due = self._started + self._seconds * standing.at / SIMULATED_SECONDS
        while not interrupted() and (left := due - time.monotonic()) > 0:
            time.sleep(min(left, 0.05))

    def _picture(self, standing: Standing) -> Group:
        progress = Table.grid(padding=(0, 2))
        progress.add_row(
            ProgressBar(SIMULATED_SECONDS, standing.at, width=PROGRESS_WIDTH),
            f"{standing.at:.0f} of {SIMULATED_SECONDS:.0f} simulated seconds",
        )
        return Group(
            _story(self._trace, self._load),
            "",
            self._averages(standing),
            "",
            self._stalest(standing),
            "",
            progress,
        )

    def _averages(self, standing: Standing) -> Table:
        table = _table("Average staleness: how far the answers are behind, over keys and time")
        table.add_column("queue", width=12)
        table.add_column("seconds", justify="right", width=8)
        table.add_column("× whittle", justify="right", width=9)
        table.add_column("")
        longest = max(result.average_staleness for result in standing.results)
        for result in standing.results:
            table.add_row(
                result.policy,
                _seconds(result.average_staleness, unit=""),
                _times(result.times_whittle),
                Bar(longest, 0.0, result.average_staleness, width=BAR_WIDTH),
                style="bold" if result.policy == "whittle" else "",
            )
        return table

    def _stalest(self, standing: Standing) -> Table:
        table = _table(f"The stalest keys now, {self._watch}: {WHO_WAITS[self._watch]}")
        table.add_column("key", width=12)
        table.add_column("seconds", justify="right", width=8)
        table.add_column("updates/s", justify="right", width=9)
        table.add_column("")
        longest = max((staleness for _, staleness in standing.stalest), default=0.0)
        for place in range(STALEST_KEYS):  # always as many lines, so that nothing jumps
            stale = standing.stalest[place : place + 1]
            if stale and stale[0][1] > 0:
                key, staleness = stale[0]
                bar = Bar(longest, 0.0, staleness, width=BAR_WIDTH)
                rate = f"{self._trace.rates[key]:.2f}"
                table.add_row(key, _seconds(staleness, unit=""), rate, bar)
            else:
                table.add_row("", "", "", "")
        return table


# ---- what is shown at the end


def _summary(standing: Standing, trace: Trace, load: float) -> Group:
    table = _table("Staleness in seconds: average over keys and time; p99 and max at the end")
    for name in (
        "queue",
        "average",
        "× whittle",
        "p99",
        "max",
        "results",
        "not computed",
        "memory",
    ):
        table.add_column(name, justify="left" if name == "queue" else "right", no_wrap=True)
    for result in standing.results:
        table.add_row(
            result.policy,
            _seconds(result.average_staleness, unit=""),
            _times(result.times_whittle),
            _seconds(result.p99_staleness, unit=""),
            _seconds(result.max_staleness, unit=""),
            f"{result.delivered:,}",
            _not_computed(result),
            f"{result.memory_bytes / 1024:,.0f} KiB",
            style="bold" if result.policy == "whittle" else "",
        )
    stopped = [] if standing.complete else [f"Stopped after {standing.at:.0f} simulated seconds."]
    return Group(_story(trace, load), "", table, "", *stopped, _meaning(standing.results))


def _story(trace: Trace, load: float) -> Text:
    keys, rate = len(trace.rates), trace.rate
    return Text(
        f"{keys:,} keys send {rate:,.0f} updates/s; the consumer manages {rate / load:,.1f} "
        f"results/s: load factor {load:g}.\nFive queues get the same updates, each with such a "
        f"consumer of its own."
    )


def _not_computed(result: Result) -> str:
    """The largest part of what did not become a result."""
    parts = {
        "conflated": result.conflated,
        "dropped": result.dropped,
        "waiting": result.waiting,
    }
    name = max(parts, key=lambda part: parts[part])
    return f"{parts[name]:,} {name}"


def _meaning(results: list[Result]) -> Text:
    average = {result.policy: result.average_staleness for result in results}
    append = next(result for result in results if result.policy == "append")
    growing = " and rising" if append.waiting > append.delivered / 10 else ""
    text = (
        f"With whittle, the default, an answer is {_seconds(average['whittle'])} behind on "
        f"average, with an append queue {_seconds(average['append'])}{growing}, on the same "
        f"updates and the same consumer."
    )
    if average["whittle"] < average["in-place"] < average["append"]:
        saved = 1.0 - average["whittle"] / average["in-place"]
        text += (
            f" Keeping only the newest update of each key makes most of the difference; choosing "
            f"the next key well takes another {saved:.0%} off (whittle against in-place)."
        )
    return Text(text)


def _as_json(standing: Standing, **options: Any) -> dict[str, Any]:
    return {
        **options,
        "simulated_seconds": standing.at,
        "complete": standing.complete,
        "results": [result._asdict() for result in standing.results],
    }


def _table(title: str) -> Table:
    return Table(
        title=title, title_justify="left", title_style="", box=None, pad_edge=False, padding=(0, 1)
    )


def _seconds(value: float, *, unit: str = " s") -> str:
    digits = 3 if value < 1 else 2 if value < 10 else 1
    return f"{value:.{digits}f}{unit}"


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}" if ratio < 10 else f"{ratio:.0f}"
