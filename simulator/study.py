"""The verb `upstream study`: published experiments, and our own, run on the queue itself."""

from __future__ import annotations

import json as jsonlib
import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from simulator.campaign import Measured, measured, tasks
from simulator.experiment import Row
from simulator.report import write_page, write_rows, write_study
from simulator.studies import NAMES, load
from upstream.errors import UpstreamError
from upstream.options.problems import nearest

__all__ = ["study"]

MOST_JOBS = 2


def study(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME", help="Studies to run.")
    ] = None,
    run_all: Annotated[bool, typer.Option("--all", help="Run all studies.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Few and short runs.")] = False,
    show_list: Annotated[bool, typer.Option("--list", help="List the studies.")] = False,
    report: Annotated[
        bool, typer.Option("--report", help="Put all that the folder holds into one page.")
    ] = False,
    output: Annotated[Path, typer.Option(help="Folder for plots, tables and texts.")] = Path(
        "studies"
    ),
    jobs: Annotated[
        int, typer.Option(min=1, help="Points that are measured at the same time.")
    ] = min(MOST_JOBS, os.cpu_count() or 1),
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Run studies: what the queue does in published experiments, and in ours.

    Each writes a plot, a table and a text with what was found. Ctrl-C keeps what is done.
    """
    if show_list:
        _print_list(json)
        return
    chosen = list(NAMES) if run_all else list(dict.fromkeys(names or []))
    _check(chosen)
    if not chosen and not report:
        raise typer.BadParameter("name a study, or use --all, --list or --report")
    _make(output)
    if chosen:
        complete = Campaign(output, quick=quick, json=json).run(chosen, jobs)
        if not complete:
            raise typer.Exit(130)
    if report:
        page = write_page(output)
        Console(stderr=True).print(Text(f"All studies: {page}"))


def _check(names: list[str]) -> None:
    for name in names:
        if name not in NAMES:
            near = nearest(name, NAMES)
            hint = f"; did you mean {near!r}?" if near else ""
            raise typer.BadParameter(f"there is no study {name!r}{hint} See --list")


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UpstreamError(f"the folder {folder} cannot be made: {error}") from None


def _print_list(json: bool) -> None:
    if json:
        found = [{"name": name, "title": load(name).title} for name in NAMES]
        typer.echo(jsonlib.dumps(found, indent=2))
        return
    table = Table(box=None, pad_edge=False)
    table.add_column("study", no_wrap=True)
    table.add_column("what it is about")
    for name in NAMES:
        table.add_row(name, Text(load(name).title))
    Console().print(table)


class Campaign:
    """Studies that are being run, and what of them is done."""

    def __init__(self, folder: Path, *, quick: bool, json: bool) -> None:
        self._folder = folder
        self._quick = quick
        self._json = json
        self._rows: dict[str, dict[int, Row]] = {}
        self._missing: dict[str, int] = {}

    def run(self, names: list[str], jobs: int) -> bool:
        """Measure, and write each study as soon as it is whole; false after Ctrl-C."""
        work = tasks(names, quick=self._quick)
        for task in work:
            self._missing[task.study] = self._missing.get(task.study, 0) + 1
        progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        with progress:
            bar = progress.add_task(names[0], total=len(work))
            try:
                for point in measured(work, jobs):
                    progress.update(bar, description=point.study, advance=1)
                    self._take(point)
            except KeyboardInterrupt:
                self._keep_partial()
                return False
        return True

    def _take(self, point: Measured) -> None:
        self._rows.setdefault(point.study, {})[point.number] = point.row
        self._missing[point.study] -= 1
        if not self._missing[point.study]:
            rows = self._in_order(point.study)
            text = write_study(
                self._folder, point.study, load(point.study), rows, quick=self._quick
            )
            if self._json:
                typer.echo(jsonlib.dumps(self._as_json(point.study, rows)))
            else:
                typer.echo(text)

    def _in_order(self, name: str) -> list[Row]:
        return [self._rows[name][number] for number in sorted(self._rows[name])]

    def _as_json(self, name: str, rows: list[Row]) -> dict[str, object]:
        findings = [found._asdict() for found in load(name).findings(rows)]
        return {"study": name, "quick": self._quick, "rows": rows, "findings": findings}

    def _keep_partial(self) -> None:
        for name, missing in self._missing.items():
            if missing and name in self._rows:
                file = self._folder / f"{name}.partial.csv"
                write_rows(file, self._in_order(name))
                Console(stderr=True).print(Text(f"Stopped: what {name} has measured is in {file}"))
