"""The `upstream` command.

Its verbs come from entry points (`upstream.verbs`); this module adds Upstream's own. Heavy
imports stay inside the verbs that need them.
"""

from __future__ import annotations

import json as jsonlib
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text
from typer.core import TyperCommand, TyperGroup

from upstream import __version__
from upstream.errors import ConfigError, UpstreamError
from upstream.verbs import GROUP, VerbError, find_verbs

__all__ = ["EXIT_CODES", "app", "main"]

EXIT_CODES = {
    0: "done",
    1: "it failed while running",
    2: "the command line or the configuration is wrong",
    130: "stopped by Ctrl-C",
}

OWN_VERBS = [
    EntryPoint("config", "upstream.cli:config", GROUP),
    EntryPoint("demo", "upstream.demo:demo", GROUP),
    EntryPoint("policies", "upstream.cli:policies", GROUP),
]


def _say(label: str, message: str, style: str) -> None:
    """A line on standard error in which nothing of the message acts on the terminal."""
    clean = "".join(
        char if char.isprintable() or char == "\n" else ascii(char)[1:-1] for char in message
    )
    Console(stderr=True, soft_wrap=True).print(Text.assemble((f"{label}: ", style), clean))


def _warn(message: str) -> None:
    _say("Warning", message, "bold yellow")


class VerbGroup(TyperGroup):
    """The verbs by name; each is imported when it is called, not when it is listed."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.verbs, self.warnings = find_verbs(OWN_VERBS)
        for name in sorted(self.verbs):
            self.add_command(TyperCommand(name), name)

    def list_commands(self, ctx: Any) -> list[str]:
        for name, verb in self.verbs.items():
            try:
                self.commands[name].help = escape(verb.summary())
            except VerbError as error:
                self.commands[name].help = "(cannot be used)"
                self.warnings.append(str(error))
        return super().list_commands(ctx)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        super().format_help(ctx, formatter)
        for warning in self.warnings:
            _warn(warning)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        return name, self.verbs[name].load() if name in self.verbs else command, rest

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except UpstreamError as error:
            _say("Error", str(error), "bold red")
            raise typer.Exit(2 if isinstance(error, ConfigError) else 1) from error


app = typer.Typer(
    cls=VerbGroup,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: " + "; ".join(f"{code} {text}" for code, text in EXIT_CODES.items()) + ".",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"upstream {__version__}")
        raise typer.Exit


@app.callback()
def upstream_command(
    show_version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Show the version and stop."
        ),
    ] = False,
) -> None:
    """Update queues for overloaded streams: the freshest answer per key."""


def config(
    file: Annotated[
        Path | None, typer.Argument(help="TOML file to check.", show_default=False)
    ] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Describe every option.")] = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Describe the options as a Markdown page.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check a configuration file and show what it comes to, or explain every option.

    Whatever is wrong is listed with its line and the nearest right spelling.
    """
    from upstream import config as options

    if explain == (file is not None):
        raise typer.BadParameter("expected either a FILE to check or --explain")
    if markdown and (json or not explain):
        raise typer.BadParameter("--markdown goes with --explain, and not with --json")
    if explain:
        typer.echo(
            options.explain("markdown" if markdown else "json" if json else "text"), nl=False
        )
        return
    assert file is not None
    loaded = options.Config.load(file)
    notes = [f"queue.{note}" for note in loaded.queue.without_effect()]
    if json:
        found = {"file": str(file), "config": loaded.model_dump(), "notes": notes}
        typer.echo(jsonlib.dumps(found, indent=2))
    else:
        typer.echo(loaded.to_toml(), nl=False)
        for note in notes:
            _say("Note", note, "bold")


def policies(
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the scheduling policies that come with Upstream."""
    from upstream.config import BASELINES, QueueConfig
    from upstream.queue.policies import POLICIES

    summaries = {name: (kind.__doc__ or "").partition("\n")[0] for name, kind in POLICIES.items()}
    default = QueueConfig.model_fields["policy"].default
    found = [
        {"name": name, "summary": summary, "default": name == default}
        for name, summary in (summaries | BASELINES).items()
    ]
    if json:
        typer.echo(jsonlib.dumps(found, indent=2))
        return
    table = Table(box=None, pad_edge=False)
    table.add_column("policy", no_wrap=True)
    table.add_column("what it does")
    for each in found:
        table.add_row(Text(each["name"]), Text(each["summary"]))
    Console().print(table)


def main() -> None:
    """The entry point of the `upstream` command."""
    app(prog_name="upstream")


if __name__ == "__main__":
    main()
