"""Kinds of option values: sizes, names that may also be Python paths, numbers in a range.

Each kind both checks a value and says in words what it takes, so that messages and the
reference are made from the same declaration as the check.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BeforeValidator, Field, GetCoreSchemaHandler
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, core_schema

from upstream.options.problems import Wrong, nearest, one_of, quoted

__all__ = [
    "Fraction",
    "InWords",
    "Name",
    "NameOrPath",
    "Positive",
    "Size",
    "Span",
    "allowed",
    "as_list",
    "bare_type",
    "choices",
    "format_size",
    "members",
    "parse_size",
    "parse_span",
    "type_name",
    "words",
]


def as_list(value: object) -> object:
    """Tuples are as good as lists for whoever writes options in Python."""
    return list(value) if isinstance(value, tuple) else value


# Sizes.

_UNITS = {
    f"{prefix}{infix}b": base**power
    for power, prefix in enumerate(["", "k", "m", "g", "t"])
    for infix, base in (("", 1000), ("i", 1024))
    if prefix or not infix
}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)", re.IGNORECASE)


def parse_size(value: object) -> object:
    """Bytes from text such as "512MB" or "2GiB"; anything but text is left to the next check.

    >>> parse_size("2KiB"), parse_size("1.5 kB"), parse_size(7)
    (2048, 1500, 7)
    """
    if not isinstance(value, str):
        return value
    expected = f"expected {_SIZE_WORDS}, got {quoted(value)}."
    match = _SIZE.fullmatch(value.strip())
    if match is None:
        raise Wrong(expected)
    number, unit = match.groups()
    if not unit and "." not in number:
        return int(number)
    if unit.lower() in ("k", "m", "g", "t"):
        big = unit.upper()
        raise Wrong(f'{expected} Did you mean "{number}{big}B" or "{number}{big}iB"?')
    if unit.lower() not in _UNITS:
        raise Wrong(f"{expected} Units are B, kB, MB, GB, TB and KiB, MiB, GiB, TiB.")
    whole, _, decimals = number.partition(".")
    return int(whole + decimals) * _UNITS[unit.lower()] // 10 ** len(decimals)


def format_size(size: int) -> str | int:
    """The shortest text that `parse_size` reads as exactly this size.

    >>> format_size(1 << 30), format_size(5_000_000), format_size(1234)
    ('1GiB', '5MB', 1234)
    """
    for infix, base in (("i", 1024), ("", 1000)):
        for power, prefix in ((4, "T"), (3, "G"), (2, "M"), (1, "K" if infix else "k")):
            if size and size % base**power == 0:
                return f"{size // base**power}{prefix}{infix}B"
    return size


# Spans of time.

_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)")
_SPAN_WORDS = 'a whole number of at least 0, or a span of time such as "500ms", "5s" or "2h"'


def parse_span(span: str) -> float:
    """Seconds from text.

    >>> parse_span("500ms"), parse_span("1.5 h")
    (0.5, 5400.0)
    """
    match = _SPAN.fullmatch(span.strip())
    if match is None or match[2] not in _SECONDS:
        raise Wrong(
            f"expected {_SPAN_WORDS}, got {quoted(span)}. Units are ns, us, ms, s, m, h, d."
        )
    return float(match[1]) * _SECONDS[match[2]]


def _check_span(span: object) -> object:
    if isinstance(span, str):
        parse_span(span)
    return span


_SIZE_WORDS = 'a size above 0: bytes, or text such as "512MB" or "2GiB"'


@dataclass(frozen=True)
class InWords:
    """What a value is and may be, where the annotation alone would not tell."""

    type: str
    allowed: tuple[str, ...]
    words: str


Span = Annotated[
    Annotated[int, Field(ge=0)] | str,
    BeforeValidator(_check_span),
    InWords("count or span", ("a whole number", 'text such as "500ms", "5s" or "2h"'), _SPAN_WORDS),
]
Size = Annotated[
    int,
    BeforeValidator(parse_size),
    Field(gt=0),
    InWords("size", ('bytes, or text such as "512MB" or "2GiB"',), _SIZE_WORDS),
]
Positive = Annotated[float, Field(gt=0)]
Fraction = Annotated[float, Field(gt=0, le=1)]
Name = Annotated[str, Field(min_length=1)]


@dataclass(frozen=True)
class NameOrPath:
    """One of some names, or the path of a Python object: `package.module:target`."""

    names: tuple[str, ...]
    target: str

    @property
    def sample(self) -> str:
        return f"package.module:{self.target}"

    def check(self, value: str) -> str:
        module, colon, target = value.partition(":")
        dotted = all(part.isidentifier() for part in module.split("."))
        if value in self.names:
            return value
        if colon and dotted and target.isidentifier():
            return value
        expected = f"expected {one_of(self.allowed)}, got {quoted(value)}."
        if colon or not value:
            raise Wrong(expected)
        if dotted and "." in module:
            module, _, target = value.rpartition(".")
            raise Wrong(f'{expected} Did you mean "{module}:{target}", with a colon?')
        near = nearest(value, self.names)
        raise Wrong(expected + (f' Did you mean "{near}"?' if near else ""))

    @property
    def allowed(self) -> list[str]:
        return [quoted(name) for name in (*self.names, self.sample)]

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, handler(source))


# Words for annotations.


def members(annotation: Any) -> list[Any]:
    """The alternatives of an annotation; None is left out, being the absence of a value."""
    bare, _ = _parts(annotation)
    if get_origin(bare) in (Union, UnionType):
        return [member for member in get_args(bare) if member is not NoneType]
    return [annotation]


def bare_type(annotation: Any) -> Any:
    return _parts(annotation)[0]


def _parts(annotation: Any) -> tuple[Any, list[Any]]:
    """The bare type and what `Annotated` says about it."""
    if get_origin(annotation) is Annotated:
        bare, *about = get_args(annotation)
        return bare, [
            fact
            for each in about
            for fact in (each.metadata if isinstance(each, FieldInfo) else [each])
        ]
    return annotation, []


_PLAIN = {str: "text", int: "whole number", float: "number", bool: "true or false"}


def type_name(annotation: Any) -> str:
    """The type of a value in a word or two."""
    names = []
    for member in members(annotation):
        bare, about = _parts(member)
        special = [each.type for each in about if isinstance(each, InWords)]
        origin, inner = get_origin(bare), get_args(bare)
        if special:
            names.append(special[0])
        elif origin is Literal:
            names.append(_PLAIN[type(inner[0])])
        elif origin is list:
            names.append(f"list of {_plural(type_name(inner[0]))}")
        elif origin is dict:
            names.append(f"table of {_plural(type_name(inner[1]))}")
        else:
            names.append(_PLAIN.get(bare, "table"))
    return one_of(list(dict.fromkeys(names)))


def _plural(name: str) -> str:
    return name if name in ("text", "true or false") else f"{name}s"


def allowed(annotation: Any) -> list[str]:
    """Which values of the type are allowed, one text for each name or range."""
    texts = (text for member in members(annotation) for text in _allowed(member))
    return list(dict.fromkeys(texts))


def _allowed(member: Any) -> Iterator[str]:
    bare, about = _parts(member)
    for each in about:
        if isinstance(each, InWords):
            yield from each.allowed
            return
        if isinstance(each, NameOrPath):
            yield from each.allowed
    if get_origin(bare) is Literal:
        yield from map(quoted, get_args(bare))
    elif get_origin(bare) in (list, dict):
        yield from allowed(get_args(bare)[-1])
    elif limits := _limits(about):
        yield limits


def _limits(about: Sequence[object]) -> str:
    return " and ".join(
        f"{word} {getattr(each, name)}"
        for each in about
        for name, word in (("gt", "above"), ("ge", "at least"), ("lt", "below"), ("le", "at most"))
        if hasattr(each, name)
    )


def words(annotation: Any) -> str:
    """All that an annotation takes, as it reads behind "expected"."""
    texts = []
    for member in members(annotation):
        bare, about = _parts(member)
        special = [each.words for each in about if isinstance(each, InWords)]
        if special:
            texts.append(special[0])
        elif names := [each for each in about if isinstance(each, NameOrPath)]:
            texts.extend(names[0].allowed)
        elif get_origin(bare) is Literal:
            texts.extend(map(quoted, get_args(bare)))
        else:
            name = type_name(member)
            article = "" if name in ("text", "true or false") else "a "
            if any(hasattr(each, "min_length") for each in about):
                article = "non-empty "
            texts.append(" ".join(filter(None, [article + name, _limits(about)])))
    return one_of(texts)


def choices(annotation: Any) -> list[str]:
    """The words that can be chosen from, for suggesting the nearest."""
    found: list[str] = []
    for member in members(annotation):
        bare, about = _parts(member)
        found.extend(name for each in about if isinstance(each, NameOrPath) for name in each.names)
        if get_origin(bare) is Literal:
            found.extend(value for value in get_args(bare) if isinstance(value, str))
    return found
