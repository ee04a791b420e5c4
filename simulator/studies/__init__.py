"""One study per file: a published experiment, or a question of our own.

Every file states the question, the constants with their units and the expected shape, and
checks it. `upstream study --list` shows them all.
"""

from __future__ import annotations

from importlib import import_module

from simulator.experiment import Study

__all__ = ["NAMES", "load"]

NAMES = (
    "fig4b",
    "fig8a",
    "fig8b",
    "fig9",
    "fig13ab",
    "fig13cd",
    "fig14",
    "fig15",
    "fig16",
    "agreement",
    "bound",
    "rates",
    "drift",
    "weights",
    "batches",
)


def load(name: str) -> Study:
    """The study of a name."""
    study: Study = import_module(f"simulator.studies.{name}").STUDY
    return study
