"""A configuration with all its defaults, written as the TOML file that would give it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from upstream.options.kinds import format_size, type_name
from upstream.options.report import Section, annotation_of

__all__ = ["as_toml", "toml_value"]


def toml_value(value: object) -> str:
    """A value in TOML, tables inline.

    >>> toml_value({"price": "max", "a b": [1, 2.5, True]})
    '{ price = "max", "a b" = [1, 2.5, true] }'
    """
    if isinstance(value, Mapping):
        pairs = [f"{_key(name)} = {toml_value(each)}" for name, each in value.items()]
        return f"{{ {', '.join(pairs)} }}" if pairs else "{}"
    if isinstance(value, list):
        return f"[{', '.join(map(toml_value, value))}]"
    if isinstance(value, str):
        # JSON escapes what TOML wants escaped, except the delete character.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return json.dumps(value)


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else toml_value(name)


def as_toml(section: Section, name: str) -> str:
    """A section with every option; what was not given is marked as the default."""
    lines = [f"[{name}]"]
    for option, field in type(section).model_fields.items():
        value = section.model_dump(include={option}, exclude_none=True).get(option)
        if value is None:
            lines.append(f"# {option} is not set")
            continue
        if type_name(annotation_of(field)) == "size":
            value = format_size(value)
        mark = "" if option in section.model_fields_set else "  # default"
        lines.append(f"{_key(option)} = {toml_value(value)}{mark}")
    return "\n".join(lines) + "\n"
