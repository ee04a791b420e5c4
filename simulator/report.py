"""What studies leave behind: plots, tables, texts, and one page with all of it."""

from __future__ import annotations

import base64
import csv
import html
from pathlib import Path

from simulator.experiment import Row, Study, as_text
from simulator.studies import NAMES
from upstream.errors import UpstreamError

__all__ = ["write_page", "write_rows", "write_study"]

PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Upstream: studies</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; }}
img {{ max-width: 100%; }}
pre {{ overflow-x: auto; background: #f6f6f4; padding: 1rem; font-size: 13px; }}
table {{ border-collapse: collapse; }}
td, th {{ padding: .2rem 1rem .2rem 0; text-align: left; }}
.no {{ color: #a40000; }}
</style>
<h1>Upstream: studies</h1>
<p>Staleness is in time units of one update unless it says seconds. A claim that does not hold is
one that was made, by the paper or by us, and that these runs do not bear out.</p>
<table>
<tr><th>study<th>claims that hold<th>that do not
{overview}
</table>
{sections}
</html>
"""


def write_study(folder: Path, name: str, study: Study, rows: list[Row], *, quick: bool) -> str:
    """Plot (PNG and SVG), CSV and text of a study; answers the text."""
    from simulator.plots import save

    text = as_text(name, study, rows, quick=quick)
    write_rows(folder / f"{name}.csv", rows)
    (folder / f"{name}.txt").write_text(text)
    save(study.draw(rows), folder / f"{name}.png", folder / f"{name}.svg")
    return text


def write_rows(file: Path, rows: list[Row]) -> None:
    """Rows with all their digits."""
    with file.open("w", newline="") as out:
        writer = csv.DictWriter(out, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def write_page(folder: Path) -> Path:
    """One HTML page with the plots and texts of all studies in a folder."""
    there = [name for name in NAMES if (folder / f"{name}.txt").exists()]
    if not there:
        raise UpstreamError(
            f"there are no studies in {folder}: run some first, such as with "
            f"`upstream study --all --output {folder}`"
        )
    page = folder / "index.html"
    page.write_text(
        PAGE.format(
            overview="\n".join(_line(folder, name) for name in there),
            sections="\n".join(_section(folder, name) for name in there),
        )
    )
    return page


def _line(folder: Path, name: str) -> str:
    lines = (folder / f"{name}.txt").read_text().splitlines()
    holds = sum(line.startswith("holds: ") for line in lines)
    fails = sum(line.startswith("DOES NOT HOLD: ") for line in lines)
    title = html.escape(lines[0])
    return f'<tr><td><a href="#{name}">{title}</a><td>{holds}<td class="no">{fails or ""}'


def _section(folder: Path, name: str) -> str:
    text = html.escape((folder / f"{name}.txt").read_text())
    title, _, rest = text.partition("\n")
    picture = base64.b64encode((folder / f"{name}.png").read_bytes()).decode()
    return (
        f'<h2 id="{name}">{title}</h2>\n'
        f'<img alt="plot of {name}" src="data:image/png;base64,{picture}">\n'
        f"<pre>{rest.strip()}</pre>"
    )
