"""From pydantic's errors to one message that lists every problem with its place.

pydantic says where a value is wrong; what was expected is read off the annotation, so a
message never disagrees with the reference.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated, Any, ClassVar, NamedTuple, Self, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic.fields import FieldInfo

from upstream.options.kinds import bare_type, choices, members, type_name, words
from upstream.options.problems import Problem, Wrong, nearest, quoted
from upstream.options.toml_lines import Path

__all__ = ["Section", "annotation_of", "dotted", "in_file", "in_options", "model_of", "problems_in"]


class Section(BaseModel):
    """A table of options: strict about types, closed to unknown names, immutable."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        strict=True, extra="forbid", frozen=True, allow_inf_nan=False
    )

    @classmethod
    def shape(cls, given: Iterable[str]) -> Iterator[str]:
        """What is wrong with this choice of options, whatever their values."""
        yield from ()

    @model_validator(mode="after")
    def _well_shaped(self) -> Self:
        if wrong := list(self.shape(_given(dict(self)))):
            raise Wrong(*wrong)
        return self


def _given(table: Mapping[str, object]) -> list[str]:
    return [name for name, value in table.items() if value is not None]


def annotation_of(field: FieldInfo) -> Any:
    """The annotation as it was written: pydantic takes the outermost `Annotated` apart."""
    return Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation


def model_of(annotation: Any) -> type[Section] | None:
    """The section that an option holds, or holds a list of."""
    for member in map(bare_type, members(annotation)):
        inner = get_args(member)[0] if get_origin(member) is list else member
        if isinstance(inner, type) and issubclass(inner, Section):
            return inner
    return None


class _Place(NamedTuple):
    path: Path
    annotation: Any  # of the value at the path; None for an unknown option
    owner: type[Section]  # the section that the path's last name belongs to
    union: Path | None  # the option with several alternatives that pydantic tried one by one


def _place(model: type[Section], loc: Path) -> _Place:
    """Follow pydantic's location, which names the alternative it tried after each union."""
    path: Path = ()
    annotation: Any = model
    owner = model
    union: Path | None = None
    rest = list(loc)
    while rest:
        options = list(map(bare_type, members(annotation)))
        if len(options) > 1:
            union = path
            rest.pop(0)
            if not rest:
                break
            container = list if isinstance(rest[0], int) else dict
            options = [each for each in options if get_origin(each) is container]
        part = rest.pop(0)
        if part == "[key]":
            return _Place(path, str, owner, union)
        path = (*path, part)
        inner = options[0]
        if isinstance(inner, type) and issubclass(inner, Section):
            owner = inner
            field = inner.model_fields.get(str(part))
            if field is None:
                return _Place(path, None, owner, union)
            annotation = annotation_of(field)
        else:
            annotation = get_args(inner)[-1]
    return _Place(path, annotation, owner, union)


def problems_in(error: ValidationError, model: type[Section], raw: object) -> list[Problem]:
    """Every problem once, in the order of the options."""
    found: list[tuple[Problem, _Place]] = []
    suggested: set[Path] = set()
    missing: set[Path] = set()
    for each in error.errors(include_url=False):
        place = _place(model, each["loc"])
        cause = each.get("ctx", {}).get("error")
        if isinstance(cause, Wrong):
            for problem in cause.problems:
                found.append((Problem((*place.path, *problem.path), problem.text), place))
            continue
        if place.annotation is None:
            text, meant = _unknown(model, place, each["input"])
            suggested.add((*place.path[:-1], meant))
        elif each["type"] == "missing":
            missing.add(place.path)
            text = f"is required: {words(place.annotation)}."
        elif each["loc"][-1] == "[key]":
            text = f"expected a name as text, got {quoted(each['input'])}."
        else:
            text = _unexpected(place, _value_at(raw, place.path, each["input"]))
        found.append((Problem(place.path, text), place))
    deeper = {
        place.union
        for problem, place in found
        if place.union is not None and len(problem.path) > len(place.union)
    }
    kept = [
        problem
        for problem, place in found
        # A list with one wrong element is not also "neither text nor list".
        if not (place.union in deeper and problem.path == place.union)
        # A misspelt option is not also missing.
        and not (problem.path in missing and problem.path in suggested)
    ]
    kept.extend(_shapes(model, raw, ()))
    return list(dict.fromkeys(kept))


def _shapes(model: type[Section], raw: object, path: Path) -> Iterator[Problem]:
    """Shape checks where other problems kept pydantic from running them."""
    if not isinstance(raw, dict):
        return
    # An unknown name may be any of those that seem to be missing.
    if raw.keys() <= model.model_fields.keys():
        yield from (Problem(path, text) for text in model.shape(_given(raw)))
    for name, field in model.model_fields.items():
        annotation = annotation_of(field)
        inner = model_of(annotation)
        if inner is None:
            continue
        value = raw.get(name)
        if get_origin(bare_type(annotation)) is not list:
            yield from _shapes(inner, value, (*path, name))
        elif isinstance(value, list | tuple):
            for index, element in enumerate(value):
                yield from _shapes(inner, element, (*path, name, index))


def _value_at(raw: object, path: Path, fallback: object) -> object:
    """What the user wrote; pydantic may report it as an earlier check has changed it."""
    for part in path:
        try:
            raw = raw[part]  # type: ignore[index]
        except (KeyError, IndexError, TypeError):
            return fallback
    return raw


def _unknown(model: type[Section], place: _Place, value: object) -> tuple[str, str]:
    """The sentence about an unknown option, and the name that was meant (or "")."""
    name = str(place.path[-1])
    known = list(place.owner.model_fields)
    noun = "section" if place.owner is model and isinstance(value, dict | list) else "option"
    if near := nearest(name, known):
        return f"unknown {noun}. Did you mean '{near}'?", near
    for section, field in place.owner.model_fields.items():
        inner = model_of(annotation_of(field))
        near = nearest(name, list(inner.model_fields)) if inner is not None else None
        if near == name:
            return f"unknown {noun} here; it belongs to [{section}].", ""
        if near:
            return f"unknown {noun}. Did you mean '{near}' in [{section}]?", ""
    return f"unknown {noun}; known here: {', '.join(known)}.", ""


def _unexpected(place: _Place, value: object) -> str:
    text = f"expected {words(place.annotation)}, got {quoted(value)}."
    if isinstance(value, dict) and model_of(place.annotation):
        return f"{text} In a file, the header of each table of a list has double brackets."
    if not isinstance(value, str):
        return text
    if near := nearest(value, choices(place.annotation)):
        return f'{text} Did you mean "{near}"?'
    if "number" in type_name(place.annotation):
        if re.fullmatch(r"[-+]?[0-9.]+(e[-+]?\d+)?", value.strip()):
            return f"{text} Write the number without quotes."
        if any(str(part).endswith("_seconds") for part in place.path):
            return f"{text} Give it in seconds, as a number without a unit."
    if type_name(place.annotation) == "true or false" and value.lower() in ("true", "false"):
        return f"{text} Write {value.lower()} without quotes."
    return text


def dotted(path: Path) -> str:
    """A path as people write it: `queue.rules[1].weight`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            plain = re.fullmatch(r"[A-Za-z0-9_-]+", part) is not None
            text += ("." if text else "") + (part if plain else quoted(part))
    return text


def in_file(problems: list[Problem], file: str, lines: Mapping[Path, int]) -> str:
    """The message for a file: each problem with file, line and option."""

    def line(problem: Problem) -> int:
        path = problem.path
        while path and path not in lines:
            path = path[:-1]
        return lines.get(path, 1)

    problems = sorted(problems, key=line)
    return _message(problems, file, lambda each: f"{file}:{line(each)}: {dotted(each.path)}: ")


def in_options(problems: list[Problem]) -> str:
    """The message for options that were given in Python."""
    return _message(problems, "the options", lambda each: f"option '{dotted(each.path)}': ")


def _message(problems: list[Problem], subject: str, place: Callable[[Problem], str]) -> str:
    texts = [place(problem) + problem.text for problem in problems]
    if len(texts) == 1:
        return texts[0]
    return "\n".join([f"{len(texts)} problems in {subject}:", *(f"  {text}" for text in texts)])
