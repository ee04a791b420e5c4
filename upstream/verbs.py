"""The verbs of the `upstream` command, found through entry points and imported when used.

A package adds a verb by an entry point in the group `upstream.verbs`, whose value is a
function or a `typer.Typer`. Names and summaries are read without importing anything, so
that `upstream --help` stays quick whatever the verbs themselves need.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from upstream.errors import UpstreamError

__all__ = ["GROUP", "Verb", "VerbError", "find_verbs"]

GROUP = "upstream.verbs"


class VerbError(UpstreamError):
    """A verb of another package cannot be used."""


@dataclass(frozen=True)
class Verb:
    """One word after `upstream`, and the Python object that does what it says."""

    entry: EntryPoint

    @property
    def name(self) -> str:
        return self.entry.name

    @property
    def origin(self) -> str:
        package = self.entry.dist.name if self.entry.dist else "upstream"
        return f"verb '{self.name}' of {package} ({self.entry.value})"

    def summary(self) -> str:
        """The first line of the verb's docstring, read from its source and not imported.

        The docstring of the function, or the help of the Typer, or else that of the module.
        """
        spec = _spec(self.entry.module)
        if spec is None:
            raise VerbError(f"{self.origin}: there is no module '{self.entry.module}'")
        if not spec.has_location or not str(spec.origin).endswith(".py"):
            return ""
        try:
            module = ast.parse(Path(str(spec.origin)).read_bytes())
        except (OSError, SyntaxError, ValueError) as error:
            raise VerbError(f"{self.origin}: cannot be read: {error}") from None
        text = _documented(module, self.entry.attr) or ast.get_docstring(module) or ""
        return text.strip().partition("\n")[0]

    def load(self) -> TyperCommand | TyperGroup:
        """Import the verb; whatever goes wrong there is told with the verb's name."""
        try:
            command = self._command(self.entry.load())
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            extras = ",".join(self.entry.extras)
            hint = f"; it needs the extra [{extras}]" if extras else ""
            raise VerbError(f"{self.origin} cannot be loaded: {reason}{hint}") from error
        # Only the command as a whole installs shell completion.
        command.params = [
            param
            for param in command.params
            if param.name not in ("install_completion", "show_completion")
        ]
        return command

    def _command(self, target: object) -> TyperCommand | TyperGroup:
        if isinstance(target, typer.Typer):
            app = target
        elif callable(target):
            app = typer.Typer()
            app.command(self.name)(target)
        else:
            raise TypeError(f"expected a function or a typer.Typer, got {target!r}")
        command = get_command(app)
        assert isinstance(command, TyperCommand | TyperGroup)
        return command


def find_verbs(own: Iterable[EntryPoint]) -> tuple[dict[str, Verb], list[str]]:
    """Upstream's own verbs and those of other packages by name, and warnings."""
    verbs: dict[str, Verb] = {}
    warnings = []
    for entry in (*own, *entry_points(group=GROUP)):
        verb = Verb(entry)
        held = verbs.setdefault(verb.name, verb)
        if held.entry.value != entry.value:
            warnings.append(f"{verb.origin} is ignored: {held.origin} has the name already")
    return verbs, warnings


def _spec(module: str) -> ModuleSpec | None:
    """Where a module is, found as an import would find it but running no package."""
    spec: ModuleSpec | None = None
    path = None
    name = ""
    for part in module.split("."):
        name = f"{name}.{part}" if name else part
        found = (finder.find_spec(name, path) for finder in sys.meta_path)
        spec = next(filter(None, found), None)
        if spec is None:
            return None
        path = spec.submodule_search_locations
    return spec


def _documented(module: ast.Module, name: str) -> str | None:
    for node in module.body:
        match node:
            case ast.FunctionDef(name=found) if found == name:
                return ast.get_docstring(node)
            case ast.Assign(targets=[ast.Name(id=found)], value=ast.Call(keywords=keywords)) if (
                found == name
            ):
                for keyword in keywords:
                    match keyword:
                        case ast.keyword(arg="help", value=ast.Constant(value=str(text))):
                            return text
    return None
