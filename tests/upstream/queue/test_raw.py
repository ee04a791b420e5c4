"""Kernels are compiled anew when one that they call has changed, in whatever file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import upstream

INNER = """
from upstream.queue.raw import kernel

@kernel
def inner():
    return {answer}
"""
OUTER = """
import upstream.queue.raw as raw
from upstream.queue.changed_inner import inner

@raw.kernel
def outer():
    return inner()
"""


def test_a_change_in_another_file_is_seen(tmp_path: Path) -> None:
    source = Path(upstream.__file__).parent
    package = tmp_path / "upstream"
    for name in ("__init__.py", "queue/__init__.py", "queue/raw.py"):
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_bytes((source / name).read_bytes())
    (package / "queue/changed_outer.py").write_text(OUTER)

    def call(answer: int) -> str:
        (package / "queue/changed_inner.py").write_text(INNER.format(answer=answer))
        command = [sys.executable, "-c", "import upstream.queue.changed_outer as m;"]
        command[-1] += "print(m.outer(), sum(m.outer.stats.cache_hits.values()))"
        return subprocess.run(
            command,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()

    assert call(1) == "1 0"
    assert call(1) == "1 1"  # from the cache
    assert call(2) == "2 0"
