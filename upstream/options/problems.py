"""What is wrong with an option, as a sentence that a person can act on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from pydantic import BaseModel

from upstream.options.toml_lines import Path

__all__ = ["Problem", "Wrong", "nearest", "one_of", "quoted"]


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong: the option, as a path from the root, and a sentence."""

    path: Path
    text: str


class Wrong(ValueError):
    """A check failed; the paths of its problems start at the option that was checked."""

    def __init__(self, *problems: str | Problem) -> None:
        self.problems = [p if isinstance(p, Problem) else Problem((), p) for p in problems]
        super().__init__(" ".join(problem.text for problem in self.problems))


def quoted(value: object, limit: int = 80) -> str:
    """A value as it can be shown in one line: text in quotes, nothing unprintable."""
    if isinstance(value, str):
        shown = f'"{value}"' if value.isprintable() and '"' not in value else repr(value)
    elif isinstance(value, bool):
        shown = str(value).lower()
    elif isinstance(value, BaseModel):
        shown = type(value).__name__
    else:
        shown = repr(value)
    return shown if len(shown) <= limit else f"{shown[: limit - 4]} ..."


def one_of(texts: Sequence[str]) -> str:
    return " or ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)


def nearest(name: str, names: Sequence[str]) -> str | None:
    """The name that was probably meant, whatever its capitals and hyphens.

    >>> nearest("batchLimit", ["batch_limit", "merge"]), nearest("In_Place", ["in-place"])
    ('batch_limit', 'in-place')
    """
    plain = {candidate.lower().replace("-", "_"): candidate for candidate in names}
    close = get_close_matches(name.strip().lower().replace("-", "_"), plain, n=1)
    return plain[close[0]] if close else None
