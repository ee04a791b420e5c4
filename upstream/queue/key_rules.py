"""Key rules: weights, known rates and cost classes of keys that the user singles out.

Rules are looked at once per key, when it becomes known. Prefixes apply from the shortest
to the longest, then exact keys, so that the most special rule has the last word.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from upstream.config import KeyRule, QueueConfig
from upstream.errors import ConfigError
from upstream.queue.frozen import key_texts
from upstream.queue.key_table import KNOWN, KNOWN_RATE, KeyTable

__all__ = ["KeyRules"]

MOST_COST_CLASSES = 255


class _Keyed(Protocol):
    keys: KeyTable

    def key_columns(self, slots: NDArray[Any]) -> list[pa.Array]: ...


class KeyRules:
    """What the configuration says of single keys and of keys that start alike."""

    def __init__(self, config: QueueConfig) -> None:
        self._weight = config.weight
        self._keeps_weight = config.weight_column is not None
        prefixes = [rule for rule in config.rules if rule.prefix is not None]
        self._prefixes = sorted(prefixes, key=lambda rule: len(rule.prefix or ""))
        self._exact = [rule for rule in config.rules if rule.key is not None]
        self._exact_keys = pa.array([rule.key for rule in self._exact], pa.string())
        named = dict.fromkeys(rule.cost_class for rule in config.rules if rule.cost_class)
        self.cost_classes = ["default", *(name for name in named if name != "default")]
        if len(self.cost_classes) > MOST_COST_CLASSES:
            raise ConfigError(
                f"rules name {len(self.cost_classes)} cost classes: expected at most "
                f"{MOST_COST_CLASSES}"
            )
        self.given_costs = self._given(config.cost_seconds)

    def _given(self, cost: float | dict[str, float] | None) -> dict[int, float]:
        if cost is None:
            return {}
        if not isinstance(cost, dict):
            return dict.fromkeys(range(len(self.cost_classes)), cost)
        return {
            number: cost.get(name, cost.get("default", 0.0))
            for number, name in enumerate(self.cost_classes)
            if name in cost or "default" in cost
        }

    def __bool__(self) -> bool:
        return bool(self._prefixes or self._exact)

    def apply(self, slots: NDArray[np.uint32], queue: _Keyed) -> None:
        """Let the rules speak on keys that have just become known."""
        if not len(slots) or not self:
            return
        texts = key_texts(queue.key_columns(slots))
        records = queue.keys.records()
        by_column = records["weight"][slots]
        for rule in self._prefixes:
            matched = pc.starts_with(texts, pattern=rule.prefix)
            self._set(records, slots[matched.to_numpy(zero_copy_only=False)], rule)
        if self._exact:
            found = pc.index_in(texts, value_set=self._exact_keys).fill_null(-1)
            for i in np.flatnonzero(found.to_numpy() >= 0):
                self._set(records, slots[i : i + 1], self._exact[found[int(i)].as_py()])
        if self._keeps_weight:
            spoken = ~np.isnan(by_column)
            records["weight"][slots[spoken]] = by_column[spoken]
            silent = slots[np.isnan(records["weight"][slots])]
            records["weight"][silent] = self._weight

    def _set(self, records: NDArray[Any], slots: NDArray[np.uint32], rule: KeyRule) -> None:
        if rule.weight is not None:
            records["weight"][slots] = rule.weight
        if rule.rate is not None:
            records["gap"][slots] = 1.0 / rule.rate
            records["flags"][slots] |= KNOWN_RATE
        if rule.cost_class is not None:
            records["cost_class"][slots] = self.cost_classes.index(rule.cost_class)

    def reapply(self, queue: _Keyed) -> None:
        """Let the rules of today speak on all keys of a recovered queue."""
        records = queue.keys.records()
        slots = np.flatnonzero(records["flags"] & KNOWN).astype(np.uint32)
        known = slots[records["flags"][slots] & KNOWN_RATE != 0]
        records["gap"][known] = np.nan
        records["count"][known] = 0
        records["flags"][known] &= 255 - KNOWN_RATE
        records["cost_class"][slots] = 0
        if not self._keeps_weight:
            records["weight"][slots] = self._weight
        self.apply(slots, queue)
