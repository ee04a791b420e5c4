from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from upstream.cli import EXIT_CODES, app
from upstream.config import BASELINES, POLICIES, explain

ROOT = Path(__file__).parents[2]


def run(*arguments: str) -> Result:
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, arguments, prog_name="upstream")


def upstream(*arguments: str, flags: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """The command as a process of its own."""
    return subprocess.run(
        [sys.executable, "-W", "error", *flags, "-m", "upstream.cli", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "200", "PYTHONPATH": str(ROOT)},
    )


@pytest.fixture
def plug_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed package whose verbs are good, bad and ugly."""
    package = tmp_path / "stubborn"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported too early')\n")
    modules = {
        "plain_verb": '''
            """Verbs for tests."""
            import typer
            from upstream.errors import StoreError

            def hello(name: str) -> None:
                """Greet [somebody].

                Nothing more.
                """
                typer.echo(f"hello {name}")

            def fail() -> None:
                raise StoreError("the [bold]disk[/bold] \\x1b[31m is full")

            def interrupted() -> None:
                raise KeyboardInterrupt

            tools = typer.Typer(help="Several tools.")

            @tools.command()
            def one() -> None:
                """The first."""
                typer.echo("one")

            @tools.command()
            def two() -> None:
                """The second."""
                typer.echo("two")

            number = 5
        ''',
        "lacking": "import there_is_no_such_module\ndef verb() -> None:\n    pass\n",
        "misspelt": "def verb(:\n",
    }
    for name, text in modules.items():
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))
    installed = tmp_path / "upstream_tests-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: upstream-tests\nVersion: 1.0\n"
    )
    (installed / "entry_points.txt").write_text(
        "[upstream.verbs]\n"
        "hello = plain_verb:hello\n"
        "fail = plain_verb:fail\n"
        "interrupted = plain_verb:interrupted\n"
        "tools = plain_verb:tools\n"
        "number = plain_verb:number\n"
        "lacking = lacking:verb [spark]\n"
        "misspelt = misspelt:verb\n"
        "gone = gone_away.cli:verb\n"
        "stubborn = stubborn:verb\n"
        "config = plain_verb:hello\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_help_lists_verbs_of_other_packages_and_names_broken_ones(plug_in: Path) -> None:
    result = run("--help")
    assert result.exit_code == 0
    assert re.search(r"hello +Greet \[somebody\]\.", result.stdout)
    assert re.search(r"tools +Several tools\.", result.stdout)
    assert re.search(r"fail +Verbs for tests\.", result.stdout)
    assert re.search(r"config +Check a configuration file", result.stdout)
    warnings = [line for line in result.stderr.splitlines() if "upstream-tests" in line]
    assert [line[: line.index("(")] for line in warnings] == [
        "Warning: verb 'config' of upstream-tests ",
        "Warning: verb 'misspelt' of upstream-tests ",
        "Warning: verb 'gone' of upstream-tests ",
    ]
    assert "there is no module 'gone_away.cli'" in result.stderr
    assert "is ignored: verb 'config' of upstream (upstream.cli:config)" in result.stderr


def test_verbs_of_other_packages_run(plug_in: Path) -> None:
    assert run("hello", "you").stdout == "hello you\n"
    assert run("tools", "two").stdout == "two\n"
    assert "install-completion" not in run("tools", "--help").stdout
    assert run("config", "--explain").stdout == explain()


@pytest.mark.parametrize(
    ("verb", "told"),
    [
        ("lacking", "ModuleNotFoundError: No module named 'there_is_no_such_module'; it needs"),
        ("misspelt", "cannot be loaded: SyntaxError"),
        ("gone", "cannot be loaded: ModuleNotFoundError: No module named 'gone_away'"),
        ("number", "cannot be loaded: TypeError: expected a function or a typer.Typer, got 5"),
        ("stubborn", "cannot be loaded: RuntimeError: imported too early"),
    ],
)
def test_a_broken_verb_says_which_package_it_is_from(plug_in: Path, verb: str, told: str) -> None:
    result = run(verb)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"Error: verb '{verb}' of upstream-tests (")
    assert told in result.stderr


def test_errors_are_messages_and_act_on_no_terminal(plug_in: Path) -> None:
    result = run("fail")
    assert result.exit_code == 1
    assert result.stderr == "Error: the [bold]disk[/bold] \\x1b[31m is full\n"
    assert run("interrupted").exit_code == 130


def test_a_mistyped_verb_is_recognised() -> None:
    result = run("confg")
    assert result.exit_code == 2
    assert "Did you mean 'config'?" in result.stderr


def test_exit_codes_are_documented() -> None:
    told = run("--help").stdout
    page = (ROOT / "docs" / "cli.md").read_text()
    for code, meaning in EXIT_CODES.items():
        assert f"{code} {meaning}" in told
        assert f"| {code} | {meaning} |" in page


# config


def test_config_shows_what_a_file_comes_to(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text('[queue]\nkey = "symbol"\nseed = 4\n')
    result = run("config", str(file))
    assert result.exit_code == 0
    assert 'key = "symbol"\n' in result.stdout
    assert 'policy = "whittle"  # default\n' in result.stdout
    assert "# time is not set\n" in result.stdout
    assert result.stderr.startswith("Note: queue.seed has no effect")
    told = json.loads(run("config", str(file), "--json").stdout)
    assert told["config"]["queue"]["memory_limit"] == 1 << 30
    assert told["notes"] == [result.stderr.removeprefix("Note: ").strip()]


def test_config_lists_problems_without_a_traceback(tmp_path: Path) -> None:
    file = tmp_path / "[red]a.toml"
    file.write_text('[queue]\nkey = "symbol"\nsede = 4\n"[bold]\\u001b" = 1\n')
    ran = upstream("config", str(file))
    assert ran.returncode == 2
    assert ran.stdout == ""
    assert f"{file}:3: queue.sede: unknown option. Did you mean 'seed'?" in ran.stderr
    assert f"{file}:4: queue.'[bold]\\x1b': unknown option" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_config_explains_in_three_forms() -> None:
    assert run("config", "--explain", "--markdown").stdout == explain("markdown")
    assert run("config", "--explain", "--json").stdout == explain("json")
    assert upstream("config", "--explain").stdout == explain()


@pytest.mark.parametrize(
    "arguments",
    [[], ["a.toml", "--explain"], ["a.toml", "--markdown"], ["--explain", "--markdown", "--json"]],
)
def test_config_refuses_options_that_do_not_go_together(arguments: list[str]) -> None:
    result = run("config", *arguments)
    assert result.exit_code == 2
    assert "explain" in result.stderr


# policies


def test_policies_are_listed_with_what_they_do() -> None:
    told = json.loads(run("policies", "--json").stdout)
    assert [each["name"] for each in told] == [*POLICIES, *BASELINES]
    assert [each["name"] for each in told if each["default"]] == ["whittle"]
    listing = run("policies").stdout
    for each in told:
        assert each["summary"].endswith(".")
        assert re.search(rf"^{each['name']} +{re.escape(each['summary'])}", listing, re.MULTILINE)


# The process as a whole.


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["config", "--explain"]])
def test_what_needs_no_queue_loads_none(arguments: list[str]) -> None:
    ran = upstream(*arguments, flags=("-X", "importtime"))
    assert ran.returncode == 0
    assert ran.stdout
    loaded = {line.rpartition("|")[2].strip() for line in ran.stderr.splitlines()}
    assert "typer" in loaded
    assert loaded & {"numba", "numpy", "pyarrow", "upstream.queue", "upstream.demo"} == set()


def test_version_is_that_of_the_package() -> None:
    assert re.fullmatch(r"upstream \d+\.\d+\.\S+\n", run("--version").stdout)


def test_python_runs_the_package_too() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "upstream", "config", "--explain"],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert ran.stdout == explain()


def test_shell_completion_knows_the_verbs_and_their_options() -> None:
    def complete(words: str) -> str:
        request = {
            "_UPSTREAM_COMPLETE": "complete_bash",
            "COMP_WORDS": words,
            "COMP_CWORD": str(words.count(" ")),
        }
        return CliRunner(env=request).invoke(app, [], prog_name="upstream").stdout

    assert {"config", "policies"} <= set(complete("upstream ").split())
    assert "--explain" in complete("upstream config --")


def test_control_c_ends_the_process_quietly(plug_in: Path) -> None:
    code = """
import time

def wait() -> None:
    print("waiting", flush=True)
    time.sleep(60)
"""
    (plug_in / "plain_wait.py").write_text(code)
    points = plug_in / "upstream_tests-1.0.dist-info" / "entry_points.txt"
    points.write_text("[upstream.verbs]\nwait = plain_wait:wait\n")
    # What a shell starts in the background ignores Ctrl-C, and so would this process.
    heed = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    with subprocess.Popen(
        [sys.executable, "-c", f"{heed}; from upstream.cli import main; main()", "wait"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{plug_in}"},
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in errors
