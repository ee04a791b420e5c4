"""The verb `upstream simulate`: one stream, one server, and the policies that are asked for."""

from __future__ import annotations

import json as jsonlib
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from simulator import rates as distributions
from simulator.arrivals import PROCESSES, Stream
from simulator.command_line import cost_of, number, on_the_command_line, recorded
from simulator.disorder import in_band, in_blocks
from simulator.model import simulate as run_model
from simulator.rates import Floats
from simulator.result import Result
from upstream.config import QueueConfig

__all__ = ["simulate"]

PIPE_WIDTH = 140  # columns where there is no terminal
DEFAULT_PLOT = Path("simulate.png")


class Arrivals(StrEnum):
    """When updates come; see `simulator.arrivals`."""

    SLOTS = "slots"
    POISSON = "poisson"
    PERIODIC = "periodic"
    BURSTY = "bursty"
    DRIFTING = "drifting"


class Rates(StrEnum):
    """What the queue knows of the rates."""

    KNOWN = "known"
    ESTIMATED = "estimated"


def simulate(
    keys: Annotated[int, typer.Option(min=1, help="Keys of the stream.")] = 20,
    slow: Annotated[int, typer.Option(min=0, help="Keys that update less often.")] = 0,
    skew: Annotated[float, typer.Option(min=0.001, help="How many times less often.")] = 1.0,
    zipf: Annotated[
        float | None, typer.Option(min=0.0, max=99.0, help="Zipf rates with this theta.")
    ] = None,
    lognormal: Annotated[
        float | None, typer.Option(min=0.001, help="Lognormal rates with this sigma.")
    ] = None,
    pareto: Annotated[
        float | None, typer.Option(min=0.001, help="Pareto rates with this alpha.")
    ] = None,
    arrivals: Annotated[Arrivals, typer.Option(help="When updates come.")] = Arrivals.SLOTS,
    updates: Annotated[int, typer.Option(min=1, help="Updates of the stream.")] = 200_000,
    seed: Annotated[int, typer.Option(min=0, help="Start of the random numbers.")] = 0,
    trace: Annotated[
        Path | None, typer.Option(help="Parquet or CSV file to replay instead.")
    ] = None,
    key: Annotated[
        str | None, typer.Option(help="Key column of the trace; several with commas.")
    ] = None,
    time: Annotated[str | None, typer.Option(help="Column with the arrival time.")] = None,
    event_time: Annotated[
        str | None, typer.Option(help="Column with the source's time, if it is another.")
    ] = None,
    speedup: Annotated[float, typer.Option(min=1e-9, help="Replay so many times as fast.")] = 1.0,
    band: Annotated[
        float | None, typer.Option(min=0.0, help="Delay updates by up to this time.")
    ] = None,
    block: Annotated[
        float | None, typer.Option(min=0.0, help="Shuffle updates within blocks of this time.")
    ] = None,
    load: Annotated[
        float, typer.Option(min=0.001, help="Updates that arrive in the time of one result.")
    ] = 5.0,
    cost: Annotated[
        float | None, typer.Option(min=1e-9, help="Time per result, instead of --load.")
    ] = None,
    batch_cost: Annotated[
        float, typer.Option(min=0.0, help="Time per batch, in addition to that of its results.")
    ] = 0.0,
    limit: Annotated[int, typer.Option(min=0, help="Most results in a batch; 0: no limit.")] = 1,
    policy: Annotated[str, typer.Option(help="Which key is next.")] = "whittle",
    compare: Annotated[
        str | None, typer.Option(help="Several policies, with commas between them.")
    ] = None,
    rates: Annotated[
        Rates, typer.Option(help="Whether the queue is told the rates and the cost.")
    ] = Rates.ESTIMATED,
    scan: Annotated[
        bool, typer.Option("--scan", help="Score every waiting key, without rate classes.")
    ] = False,
    warmup: Annotated[
        float, typer.Option(min=0.0, max=0.99, help="Part of the time that averages leave out.")
    ] = 0.0,
    plot: Annotated[
        Path | None, typer.Option(help="Where --compare draws; default: simulate.png.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Tell how stale answers will be: a stream and a server are simulated, the queue is real.

    Synthetic streams have one update per time unit; a trace is in seconds. Staleness and
    costs are in the same unit. The same options give the same digits.
    """
    policies = [name.strip() for name in (compare or policy).split(",")]
    for name in policies:
        QueueConfig.from_options(key="key", policy=name)
    with on_the_command_line():
        if trace is not None:
            stream = recorded(trace, key, time, event_time, speedup)
        else:
            shares = _shares(keys, slow, skew, zipf, lognormal, pareto, seed)
            stream = PROCESSES[arrivals](shares, updates, seed)
        stream = _disordered(stream, band, block, seed)
        service = cost_of(stream, load=load, cost=cost, batch_cost=batch_cost)
    results, complete = _run(
        policies,
        stream,
        cost=service,
        limit=limit or None,
        rates=rates.value,
        warmup=warmup,
        options={"selection": "scan" if scan else "classes"},
    )
    if compare is not None and results and (plot is not None or not json):
        from simulator.plots import draw_comparison

        draw_comparison(results, plot or DEFAULT_PLOT)
    if json:
        settings = {"seed": seed, "rates": rates, "limit": limit or None, "warmup": warmup}
        found = [{**result.as_json(), **settings} for result in results]
        typer.echo(jsonlib.dumps(found[0] if compare is None else {"results": found}, indent=2))
    elif results:
        _print(results, stream)
    if not complete:
        raise typer.Exit(130)


def _run(policies: list[str], stream: Stream, **settings: Any) -> tuple[list[Result], bool]:
    """The results of the policies, and whether they are all; Ctrl-C keeps those that are done."""
    results: list[Result] = []
    with Console(stderr=True).status("") as status:
        for name in policies:
            status.update(f"Simulating {name} ({len(results) + 1} of {len(policies)})")
            try:
                results.append(run_model(stream, policy=name, **settings))
            except KeyboardInterrupt:
                return results, False
    return results, True


def _shares(
    keys: int,
    slow: int,
    skew: float,
    zipf: float | None,
    lognormal: float | None,
    pareto: float | None,
    seed: int,
) -> Floats:
    """The rates that the options describe."""
    given = [slow or None, zipf, lognormal, pareto]
    if sum(each is not None for each in given) > 1:
        raise typer.BadParameter("choose one of --slow, --zipf, --lognormal and --pareto")
    if zipf is not None:
        return distributions.zipf(keys, zipf)
    if lognormal is not None:
        return distributions.lognormal(keys, lognormal, seed)
    if pareto is not None:
        return distributions.pareto(keys, pareto, seed)
    return distributions.two_class(keys, slow, skew)


def _disordered(stream: Stream, band: float | None, block: float | None, seed: int) -> Stream:
    if band is not None:
        stream = in_band(stream, band, seed)
    elif block is not None:
        stream = in_blocks(stream, block, seed)
    return stream


COLUMNS: dict[str, Callable[[Result], str]] = {
    "policy": lambda each: each.policy,
    "queue": lambda each: number(each.queue_staleness),
    # What was dropped does not wait, so the queue's bound says nothing about it.
    "× bound": lambda each: "" if each.shed else _times(each.queue_staleness, each.lower_bound),
    "per output": lambda each: number(each.queue_staleness_per_output),
    "application": lambda each: number(each.application_staleness),
    "× bound ": lambda each: _times(each.application_staleness, each.lower_bound_application),
    "max wait": lambda each: number(each.max_wait),
    "load": lambda each: number(each.load_factor),
    "results": lambda each: f"{each.delivered:,}",
    "conflated": lambda each: f"{each.conflated:,}",
    "dropped": lambda each: f"{each.shed:,}",
    "most held": lambda each: f"{each.max_memory_tuples:,}",
}


def _print(results: list[Result], stream: Stream) -> None:
    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, PIPE_WIDTH)
    table = Table(box=None, pad_edge=False)
    for name in COLUMNS:
        table.add_column(name, justify="left" if name == "policy" else "right", no_wrap=True)
    for result in results:
        table.add_row(*(column(result) for column in COLUMNS.values()))
    console.print(table)
    console.print(Text(_meaning(results[0])))


def _meaning(result: Result) -> str:
    assumed = "" if result.bounds_hold else " if updates came at random (they do not quite)"
    return (
        f"\nStaleness of the queue and of the application: mean over keys, averaged over time "
        f"(Definition 10).\nPer output: mean wait at dequeue of each key, mean over keys. No "
        f"policy can do better than {number(result.lower_bound)} in the queue and "
        f"{number(result.lower_bound_application)} in the application{assumed}."
    )


def _times(value: float, bound: float) -> str:
    return f"{value / bound:.3f}" if bound > 0.0 else ""
