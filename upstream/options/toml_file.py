"""A TOML file as text and values, or the reason why it cannot be read."""

from __future__ import annotations

import re
import tomllib
from typing import Any

from upstream.errors import ConfigError

__all__ = ["read_toml"]


def read_toml(file: str) -> tuple[str, dict[str, Any]]:
    """The text and the values of a file."""
    text = _text_of(file)
    try:
        return text, tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(_syntax_message(file, text, error)) from None
    except RecursionError:
        raise ConfigError(f"{file}: lists or tables are nested too deeply.") from None


def _text_of(file: str) -> str:
    try:
        with open(file, "rb") as opened:
            content = opened.read()
    except FileNotFoundError:
        raise ConfigError(f"{file}: there is no such file.") from None
    except IsADirectoryError:
        raise ConfigError(f"{file}: expected a TOML file, got a directory.") from None
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}.") from None
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        utf16 = content.startswith((b"\xff\xfe", b"\xfe\xff"))
        hint = " It looks like UTF-16; save it as UTF-8." if utf16 else ""
        raise ConfigError(f"{file}:{line}: expected text in UTF-8.{hint}") from None


def _syntax_message(file: str, text: str, error: tomllib.TOMLDecodeError) -> str:
    """`tomllib` tells the place in words at the end of its message."""
    message = str(error)
    place = re.search(r" \(at (?:line (\d+), column (\d+)|end of document)\)$", message)
    if place is None:
        return f"{file}: not valid TOML: {message}."
    line, column = place.groups()
    if line is None:
        line, column = text.rstrip().count("\n") + 1, "end"
    return f"{file}:{line}: not valid TOML: {message[: place.start()]} (column {column})."
