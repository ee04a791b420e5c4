"""Random TOML documents that know on which line each of their keys stands."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import strategies as st

from upstream.options.toml_lines import Path

BARE = st.sampled_from(["a", "b", "key", "rules", "x-1", "2"])
NAMES = BARE | st.sampled_from(['q"=', "a.b", "# no", "[t]", "ü", ""])
SCALARS = ["1", "-2.5", "true", "1979-05-27 07:32:00", "[]", "{}", "inf"]
STRINGS = [
    '"plain"',
    r'"esc \" ] } # \\"',
    "'raw \\ # [ \" '",
    '"""two\n[not.a.table]\n\\""" # no\n"" end"""',
    '"""quotes at the end"""""',
    "'''one\nkey = 'no' '' ]'''",
    "''''x'''",
    '""',
    '""""""',
    "''''''",
]


class Document:
    """Text written piece by piece, and the line of every path written so far."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.text = ""
        self.lines: dict[Path, int] = {}
        self.root()

    def pick(self, *options: str) -> str:
        return self.draw(st.sampled_from(options))

    @property
    def line(self) -> int:
        return self.text.count("\n") + 1

    def padding(self) -> None:
        for _ in range(self.draw(st.integers(0, 2))):
            self.text += self.pick("\n", "  \n", "# comment = [1, '\"\n", "\t# x\n", "\r\n")

    def name(self, name: str) -> str:
        if name.replace("-", "").isalnum() and name.isascii() and self.draw(st.booleans()):
            return name
        escaped = name.replace('"', '\\"')
        return f'"{escaped}"' if '"' in name else self.pick(f'"{name}"', f"'{name}'")

    def names(self, least: int = 1) -> list[str]:
        return self.draw(st.lists(NAMES, min_size=least, max_size=3, unique=True))

    def root(self) -> None:
        self.padding()
        self.pairs((), self.names(0))
        for name in self.names(0):
            self.padding()
            if (name,) in self.lines:
                continue
            if self.draw(st.booleans()):
                self.header((name,), f"[ {self.name(name)} ]")
                self.pairs((name,), self.names(0))
            else:
                self.array_of_tables((name,), self.name(name), nested=True)

    def header(self, path: Path, text: str) -> None:
        self.text += self.pick("", "  ")
        self.lines[path] = self.line
        self.text += text + self.pick("\n", " # comment\n", "\r\n")
        self.padding()

    def array_of_tables(self, path: Path, written: str, *, nested: bool) -> None:
        self.lines[path] = self.line
        for index in range(self.draw(st.integers(1, 3))):
            element = (*path, index)
            self.header(element, f"[[{written}]]")
            self.pairs(element, ["key"])
            if nested and self.draw(st.booleans()):
                # The line of the inner array is that of its first element.
                self.array_of_tables((*element, "sub"), f"{written} . sub", nested=False)
            if nested and self.draw(st.booleans()):
                self.header((*element, "tab"), f"[{written}.tab]")
                self.pairs((*element, "tab"), self.names(0))

    def pairs(self, table: Path, names: list[str]) -> None:
        for name in names:
            dotted = self.draw(st.sampled_from([1, 1, 2, 3]))
            self.pair(table, [name, "in", "ner"][:dotted])
            self.text += self.pick("\n", " # comment\n", "\r\n")
            self.padding()

    def pair(self, table: Path, names: list[str]) -> None:
        self.text += self.pick("", " ")
        path = table
        for name in names:
            path = (*path, name)
            self.lines[path] = self.line
        self.text += self.pick(".", " . ").join(map(self.name, names)) + self.pick("=", " = ")
        self.value(path)

    def value(self, path: Path, depth: int = 0) -> None:
        kind = self.pick("scalar", "string", "list", "table") if depth < 2 else "string"
        if kind == "scalar":
            self.text += self.pick(*SCALARS)
        elif kind == "string":
            self.text += self.pick(*STRINGS)
        elif kind == "list":
            self.text += "["
            for index in range(self.draw(st.integers(0, 3))):
                self.padding()
                self.lines[(*path, index)] = self.line
                self.value((*path, index), depth + 1)
                self.padding()
                self.text += ","
            self.padding()
            self.text += "]"
        else:
            self.text += "{"
            for place, name in enumerate(self.names()):
                self.text += "," if place else ""
                self.lines[(*path, name)] = self.line
                self.text += f" {self.name(name)} = "
                self.value((*path, name), depth + 1)
            self.text += " }"


def paths(value: object, path: Path = ()) -> Iterator[Path]:
    """Every path inside a value that `tomllib` gave."""
    if path:
        yield path
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from paths(inner, (*path, name))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from paths(inner, (*path, index))


documents = st.composite(Document)()
