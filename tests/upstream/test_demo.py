from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from upstream import demo, race
from upstream.cli import app

ROOT = Path(__file__).parents[2]
SMALL = ("--keys", "10", "--load", "2")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ("demo", *SMALL, *arguments), prog_name="upstream")


def test_json_is_all_that_scripts_get() -> None:
    result = run("--json", "--seed", "3")
    found = json.loads(result.stdout)
    assert (result.exit_code, found["complete"], found["seed"]) == (0, True, 3)
    assert [each["policy"] for each in found["results"]] == list(race.Policy)
    assert found["results"][-1]["times_whittle"] == 1.0


def test_without_a_terminal_there_are_plain_lines() -> None:
    result = run()
    assert result.exit_code == 0
    assert "\x1b" not in result.stdout
    assert len([line for line in result.stdout.splitlines() if line.startswith("at ")]) == 10
    assert run("--quiet").stdout == result.stdout[result.stdout.index("10 keys send") :]


def test_a_terminal_shows_keys_and_averages_and_the_same_digits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written = io.StringIO()
    monkeypatch.setattr(
        demo,
        "Console",
        lambda **options: Console(file=written, force_terminal=True, width=80, height=24),
    )
    demo.demo(seconds=0.0, keys=10, load=2.0)
    shown = written.getvalue()
    assert "The stalest keys now, whittle" in shown
    assert "120 of 120 simulated seconds" in shown
    assert "…" not in shown  # nothing is cut off
    averages = [each["average_staleness"] for each in json.loads(run("--json").stdout)["results"]]
    summary = shown[shown.rindex("not computed") :]
    for average in averages:
        assert demo._seconds(average, unit="") in summary


@pytest.mark.parametrize("arguments", [("--keys", "1"), ("--load", "0"), ("--policy", "fifo")])
def test_a_wrong_option_is_named(arguments: tuple[str, str]) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert arguments[0] in result.stderr


def test_ctrl_c_ends_with_the_summary_so_far() -> None:
    command = [sys.executable, "-m", "upstream.cli", "demo", "--keys", "500", "--load", "2"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("at ")
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate()
    assert process.returncode == 130
    assert "Stopped after" in rest
    assert "With whittle" in rest
    assert errors == ""


def test_the_package_does_not_load_the_demo() -> None:
    script = "import upstream, sys; upstream.open_queue; assert 'upstream.demo' not in sys.modules"
    script += "; assert 'rich' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT)
