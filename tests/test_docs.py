"""README.md and docs/ keep their word: examples run and print what they say, links lead somewhere.

An example is a block fenced as `python`; the blocks of one page run in order, as one
program. A line that starts with `#>` is what the example prints there:

    print(1 + 1)
    #> 2
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]

BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SAID = re.compile(r"^\s*#> (.*)$", re.MULTILINE)
LINK = re.compile(r"\]\((?!\w+:)([^)#\s]+)[^)]*\)")

every_page = pytest.mark.parametrize("page", PAGES, ids=[str(p.relative_to(ROOT)) for p in PAGES])


@every_page
def test_examples_print_what_they_say(
    page: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    text = page.read_text()
    names = {"__name__": "__main__"}
    for block in BLOCK.finditer(text):
        lines_above = text.count("\n", 0, block.start(1))
        exec(compile("\n" * lines_above + block[1], str(page), "exec"), names)
        assert capsys.readouterr().out.splitlines() == SAID.findall(block[1])


@every_page
def test_links_lead_somewhere(page: Path) -> None:
    targets = LINK.findall(page.read_text())
    assert [target for target in targets if not (page.parent / target).exists()] == []
