"""The scheduling policies: which waiting key is served next.

A policy only gives an opinion on a key; the Key Scheduler owns tables, classes and ties.
`score` takes numbers or arrays of numbers alike, and the highest score is served first.
The built-in policies are compiled into the scheduler's kernel from these very methods.
"""

from __future__ import annotations

import importlib
from typing import Any, ClassVar

import numpy as np

from upstream.errors import ConfigError

__all__ = ["POLICIES", "InPlace", "Linecutting", "Policy", "Whittle", "load_policy"]


class Policy:
    """The base of all policies, built-in and your own.

    `score(waiting, rate, weight, cost, position)` gets, for one key or for arrays of keys:

    - waiting: seconds since the first update that waits,
    - rate: updates per second, estimated or given,
    - weight: its importance, 1 by default,
    - cost: seconds that one result takes,
    - position: its zero-based place in the order of first enqueues.
    """

    name: ClassVar[str]
    # What the scheduler may rely on, and what it must provide.
    uses_rate: ClassVar[bool] = True  # keys of different rates may score differently
    uses_weight: ClassVar[bool] = True  # likewise weights
    uses_cost: ClassVar[bool] = True  # likewise costs
    uses_position: ClassVar[bool] = False
    # Among keys of equal rate, weight and cost the longest waiting always wins. Otherwise
    # every waiting key has to be looked at.
    monotone: ClassVar[bool] = True
    first_come_when_idle: ClassVar[bool] = False  # order by arrival while there is no overload

    def score(self, waiting: Any, rate: Any, weight: Any, cost: Any, position: Any) -> Any:
        """How urgent it is to serve the key; the highest goes first."""
        raise NotImplementedError


class InPlace(Policy):
    """Serve the key that has waited longest: best when all keys update alike."""

    name = "in-place"
    uses_rate = False
    uses_weight = False
    uses_cost = False

    def score(self, waiting: Any, rate: Any, weight: Any, cost: Any, position: Any) -> Any:
        return waiting


class Linecutting(Policy):
    """Let slow keys cut the line: a result of theirs stays fresh for longer.

    W + max(1 / r - C * pos, 0),  pos the place in the queue by first enqueue
    """

    name = "linecutting"
    uses_weight = False
    uses_position = True

    def score(self, waiting: Any, rate: Any, weight: Any, cost: Any, position: Any) -> Any:
        return waiting + np.maximum(1 / rate - cost * position, 0.0)


class Whittle(Policy):
    """Serve the key whose waiting costs most per unit of work (the default).

    I = (w / C) * V * (V / 2 + 1 / r),  V = W + C / 2

    The Whittle index of the problem: serving a key whenever its staleness reaches tau
    costs tau^2/2 per cycle of length 1/r + tau, and tau^2/2 + tau/r is the price at which
    serving and waiting are equally good. Half a service time is added because decisions
    fall at the ends of services.
    """

    name = "whittle"
    first_come_when_idle = True

    def score(self, waiting: Any, rate: Any, weight: Any, cost: Any, position: Any) -> Any:
        v = waiting + cost / 2
        return weight / cost * v * (v / 2 + 1 / rate)


POLICIES: dict[str, type[Policy]] = {
    policy.name: policy for policy in (InPlace, Linecutting, Whittle)
}


def load_policy(name: str) -> Policy:
    """The policy of a name, or of your own class by "package.module:Class".

    >>> load_policy("in-place").score(3.0, 1.0, 1.0, 1.0, 0)
    3.0
    """
    if name in POLICIES:
        return POLICIES[name]()
    module_name, separator, class_name = name.partition(":")
    if not separator:
        known = ", ".join(POLICIES)
        raise ConfigError(
            f"policy {name!r} is not known: expected one of {known}, "
            f'or "package.module:Class" for a policy of your own'
        )
    try:
        policy_class = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"policy {name!r} cannot be loaded: {error}") from error
    if not (isinstance(policy_class, type) and issubclass(policy_class, Policy)):
        raise ConfigError(
            f"policy {name!r} is not a subclass of upstream.queue.policies.Policy, "
            f"but {policy_class!r}"
        )
    return policy_class()
