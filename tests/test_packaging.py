"""What a user installs: names that are there, imports that are light, a core that stands alone."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import entry_points, version
from pathlib import Path
from pkgutil import walk_packages

import pytest

import upstream

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("upstream", "simulator", "spark_integration")

# A finder that makes packages look as if they were not installed.
HIDE = """
import sys

class Hidden:
    names = {"matplotlib", "pandas", "pyspark", "redis", "simpy", "simulator", "spark_integration"}

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hidden())
"""


def python(code: str, folder: Path) -> str:
    """What a new interpreter prints when it runs `code` in `folder`."""
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], cwd=folder, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def modules() -> Iterator[str]:
    for name in PACKAGES:
        yield name
        for module in walk_packages(import_module(name).__path__, f"{name}."):
            if not module.name.endswith(".__main__"):
                yield module.name


@pytest.mark.parametrize("name", list(modules()))
def test_exported_names_exist(name: str) -> None:
    module = import_module(name)
    exported = getattr(module, "__all__", [])
    assert len(set(exported)) == len(exported)
    assert [export for export in exported if not hasattr(module, export)] == []


def test_package_exports_what_the_documentation_uses() -> None:
    assert "open_queue" in upstream.__all__


def test_package_knows_its_version() -> None:
    assert upstream.__version__ == version("upstream-queue")


def test_upstream_command_is_installed() -> None:
    (script,) = entry_points(group="console_scripts", name="upstream")
    assert callable(script.load())


@pytest.mark.parametrize("store", ["memory:", "journal:quotes"])
def test_core_works_with_no_extra_installed(store: str, tmp_path: Path) -> None:
    use = f"""
from upstream import open_queue

with open_queue({store!r}, key="symbol", time="ts") as queue:
    queue.put({{"symbol": "EUR", "ts": 1.0, "price": 1.07}})
    queue.put({{"symbol": "EUR", "ts": 2.0, "price": 1.09}})
    for row in queue.plan().to_arrow().to_pylist():
        print(row["symbol"], row["price"], row["_updates"])
"""
    assert python(HIDE + use, tmp_path) == "EUR 1.09 2\n"


def test_hidden_packages_cannot_be_imported(tmp_path: Path) -> None:
    attempt = """
try:
    import simulator
except ModuleNotFoundError:
    print("absent")
"""
    assert python(HIDE + attempt, tmp_path) == "absent\n"


def test_importing_upstream_loads_nothing_heavy(tmp_path: Path) -> None:
    heavy = (
        *("fastapi", "http.server", "matplotlib", "numba", "pandas", "pyspark", "redis"),
        *("rich.live", "simpy", "simulator", "spark_integration", "typer", "uvicorn"),
    )
    loaded = f"import sys, upstream; print(*[name for name in {heavy!r} if name in sys.modules])"
    assert python(loaded, tmp_path).split() == []


def test_wheel_holds_the_packages_with_their_types(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    folders = {name.partition("/")[0] for name in names}
    assert {folder for folder in folders if not folder.endswith(".dist-info")} == set(PACKAGES)
    assert {f"{package}/py.typed" for package in PACKAGES} <= names
