"""All benches, one after the other: `python -m bench [NAME ...] [--small] [--repeat N]`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

BENCHES = sorted(
    path.stem.removeprefix("bench_") for path in Path(__file__).parent.glob("bench_*.py")
)


def main(arguments: list[str]) -> int:
    """Run the benches that are named, or all; each in a process of its own."""
    named = [argument for argument in arguments if argument in BENCHES]
    rest = [argument for argument in arguments if argument not in BENCHES]
    if (help_wanted := {"-h", "--help"} & set(rest)) or (rest and not rest[0].startswith("-")):
        print("usage: ./run bench [NAME ...] [--small] [--repeat N] [--directory D]")
        print(f"names: {', '.join(BENCHES)}")
        return 0 if help_wanted else 2
    failed = [
        name
        for name in named or BENCHES
        if subprocess.run([sys.executable, "-m", f"bench.bench_{name}", *rest]).returncode
    ]
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return len(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
