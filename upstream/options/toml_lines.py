"""On which line of a TOML file each option stands.

`tomllib` gives values without positions, so the values come from `tomllib` and this scanner
adds the lines. It reads text that `tomllib` has
accepted, hence it only tells keys, tables, strings and brackets apart and checks nothing.
"""

from __future__ import annotations

import re
import tomllib
from bisect import bisect_right

__all__ = ["Path", "lines_of"]

Path = tuple[str | int, ...]

_BLANK = re.compile(r"(?:[ \t\n]|#[^\n]*)*")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_STRING = re.compile(
    r'"""(?:[^\\]|\\.)*?"""(?:"(?!"")){0,2}'
    r"|'''.*?'''(?:'(?!'')){0,2}"
    r'|"(?:[^"\\\n]|\\.)*"'
    r"|'[^'\n]*'",
    re.DOTALL,
)
_SCALAR = re.compile(r"[^,\]}#\n]*")


def lines_of(text: str) -> dict[Path, int]:
    """The line, counted from 1, of every table, key and list element.

    >>> lines_of('[queue]\\nkey = "symbol"\\n[[queue.rules]]\\nprefix = "A"')[("queue", "key")]
    2
    """
    scanner = _Scanner(text.replace("\r\n", "\n"))
    scanner.document()
    return scanner.lines


class _Scanner:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.lines: dict[Path, int] = {}
        self._starts = [0, *(match.end() for match in re.finditer("\n", text))]
        self._lengths: dict[Path, int] = {}  # elements so far of each array of tables

    def document(self) -> None:
        table: Path = ()
        while self._skip_blank():
            if self._take("[["):
                table = self._header(opens_element=True)
                self.at += 2
            elif self._take("["):
                table = self._header(opens_element=False)
                self.at += 1
            else:
                self._key_and_value(table)

    def _header(self, *, opens_element: bool) -> Path:
        line = self._line()
        names = self._key()
        path: Path = ()
        for depth, name in enumerate(names):
            path = (*path, name)
            last = depth == len(names) - 1
            if last and opens_element:
                self._lengths[path] = self._lengths.get(path, 0) + 1
            if not last or opens_element:
                self.lines.setdefault(path, line)
            if path in self._lengths:
                path = (*path, self._lengths[path] - 1)
        self.lines[path] = line
        return path

    def _key_and_value(self, table: Path) -> None:
        line = self._line()
        path = table
        for name in self._key():
            path = (*path, name)
            self.lines.setdefault(path, line)
        self.at += 1  # the equals sign
        self._value(path)

    def _key(self) -> list[str]:
        """A dotted key, up to whatever follows it."""
        names: list[str] = []
        while True:
            self._skip_blank()
            if bare := _BARE_KEY.match(self.text, self.at):
                names.append(bare.group())
                self.at = bare.end()
            else:
                names.append(tomllib.loads("key = " + self._match(_STRING))["key"])
            self._skip_blank()
            if not self._take("."):
                return names

    def _value(self, path: Path) -> None:
        self._skip_blank()
        if self._take("["):
            index = 0
            while self._skip_blank() and not self._take("]"):
                self.lines[(*path, index)] = self._line()
                self._value((*path, index))
                index += 1
        elif self._take("{"):
            while self._skip_blank() and not self._take("}"):
                self._key_and_value(path)
        elif self.text[self.at] in "\"'":
            self._match(_STRING)
        else:
            self._match(_SCALAR)
        self._skip_blank()
        self._take(",")

    def _skip_blank(self) -> bool:
        """Pass white space and comments; whether any text is left."""
        self._match(_BLANK)
        return self.at < len(self.text)

    def _take(self, mark: str) -> bool:
        found = self.text.startswith(mark, self.at)
        if found:
            self.at += len(mark)
        return found

    def _match(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self.text, self.at)
        assert match is not None, f"tomllib accepts no such text at {self.at}"
        self.at = match.end()
        return match.group()

    def _line(self) -> int:
        return bisect_right(self._starts, self.at)
