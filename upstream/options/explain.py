"""The reference of all options, made from the models that check them."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from typing import Any, NamedTuple, get_origin

from upstream.options.effective import toml_value
from upstream.options.kinds import allowed, bare_type, format_size, type_name
from upstream.options.report import Section, annotation_of, model_of

__all__ = ["Option", "as_json", "as_markdown", "as_text", "options_of"]


class Option(NamedTuple):
    """One option as the reference shows it."""

    section: str  # table that it stands in: "queue", "queue.rules[]"
    name: str
    type: str
    required: bool
    default: Any  # as written in a file; None when the option is not set by default
    allowed: list[str]  # values and ranges; empty when any value of the type will do
    description: str


def options_of(model: type[Section], section: str = "") -> Iterator[Option]:
    """Every option of a model and of the sections inside it, outer ones first."""
    inner: list[tuple[type[Section], str]] = []
    for name, field in model.model_fields.items():
        annotation = annotation_of(field)
        path = f"{section}.{name}" if section else name
        below = model_of(annotation)
        if below is not None:
            is_list = get_origin(bare_type(annotation)) is list
            inner.append((below, f"{path}[]" if is_list else path))
            if not is_list:
                continue
        default = None if field.is_required() else field.get_default(call_default_factory=True)
        if type_name(annotation) == "size" and isinstance(default, int):
            default = format_size(default)
        yield Option(
            section=section,
            name=name,
            type=type_name(annotation),
            required=field.is_required(),
            default=default,
            allowed=allowed(annotation) if below is None else [],
            description=field.description or "",
        )
    for below, path in inner:
        yield from options_of(below, path)


def _heading(section: str) -> str:
    return f"[[{section[:-2]}]]" if section.endswith("[]") else f"[{section}]"


def _default(option: Option) -> str:
    if option.required:
        return "required"
    return "not set" if option.default is None else toml_value(option.default)


def as_text(model: type[Section], width: int = 88) -> str:
    """The reference for a terminal."""
    lines: list[str] = []
    section = None
    for option in options_of(model):
        if option.section != section:
            section = option.section
            lines += [_heading(section), ""]
        lines.append(f"{option.name}  ({option.type}; {_default_words(option)})")
        paragraphs = [option.description]
        if option.allowed:
            paragraphs.append(f"Allowed: {', '.join(option.allowed)}.")
        for paragraph in paragraphs:
            lines += textwrap.wrap(
                paragraph, width, initial_indent="    ", subsequent_indent="    "
            )
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _default_words(option: Option) -> str:
    default = _default(option)
    return default if option.required or option.default is None else f"default {default}"


def as_markdown(model: type[Section], introduction: str) -> str:
    """The reference as a page, with a heading for every option to link to."""
    lines = [introduction.strip(), ""]
    section = None
    for option in options_of(model):
        if option.section != section:
            section = option.section
            lines += [f"## `{_heading(section)}`", ""]
        lines += [f"### `{option.name}`", "", option.description, ""]
        default = _default(option)
        is_value = not option.required and option.default is not None
        lines.append(f"- Type: {option.type}")
        lines.append(f"- Default: `{default}`" if is_value else f"- Default: {default}")
        if option.allowed:
            lines.append(f"- Allowed: {', '.join(_code(text) for text in option.allowed)}")
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _code(text: str) -> str:
    return f"`{text}`" if text.startswith('"') else text


def as_json(model: type[Section]) -> str:
    """The reference for programs: a list with an object for each option."""
    return json.dumps([option._asdict() for option in options_of(model)], indent=2) + "\n"
