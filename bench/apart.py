"""Measuring in a process of its own: a heap that nothing else has aged."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import ParamSpec, TypeVar

__all__ = ["apart", "here"]

P = ParamSpec("P")
T = TypeVar("T")


def apart(function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Call a module's function in a fresh process and answer what it answered."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as process:
        return process.submit(function, *arguments, **named).result()


def here(function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """The same in this process, for when the figures do not matter."""
    return function(*arguments, **named)
