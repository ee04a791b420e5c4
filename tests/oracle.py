"""The slow, obvious queue that the real one must agree with.

It keeps every update in lists and computes each answer from the beginning: what a unit
contains by folding the updates it stands for, which key is next by trying all of them,
how stale a key is by walking through its events. Nothing here is clever, on purpose.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from upstream.staleness.exact import Arrival, Delivery, KeyEvents

Key = tuple[Any, ...]
Values = dict[str, Any]
Floats = NDArray[np.float64]
Score = Callable[[Floats, Floats, Floats, Floats, Floats], Floats]


@dataclass(frozen=True)
class OracleUpdate:
    """One accepted row."""

    seq: int
    key: Key
    time: Any
    values: Values
    arrived: float
    is_delete: bool


@dataclass
class OracleUnit:
    """What waits, or was handed out, for one key: all the updates it stands for."""

    updates: list[OracleUpdate]
    since: float
    ticket: int

    @property
    def key(self) -> Key:
        return self.updates[0].key

    @property
    def newest(self) -> OracleUpdate:
        return self.updates[-1]

    def content(self, merge: Mapping[str, str]) -> Values:
        """The row to hand out, folded from the last delete onward."""
        start = max((i for i, u in enumerate(self.updates) if u.is_delete), default=0)
        if self.updates[start].is_delete and start + 1 < len(self.updates):
            start += 1
        live = self.updates[start:]
        return {
            column: _merged(merge.get(column, "last"), [u.values[column] for u in live])
            for column in live[-1].values
        }


def _merged(rule: str, values: list[Any]) -> Any:
    """Fold the values of one column; null never takes part in min, max and sum."""
    known = [value for value in values if value is not None]
    match rule:
        case "last":
            return values[-1]
        case "first":
            return values[0]
        case "count":
            return len(values)
        case "min":
            return min(known, default=None)
        case "max":
            return max(known, default=None)
        case "sum":
            return sum(known[1:], start=known[0]) if known else None
    raise ValueError(rule)


@dataclass
class OracleBatch:
    """Units handed out together."""

    units: list[OracleUnit]
    planned_at: float
    delivered_at: float | None = None


@dataclass
class OracleCounts:
    """The counters of a snapshot."""

    accepted: int = 0
    handed_out: int = 0
    conflated: int = 0
    superseded: int = 0


@dataclass
class Rule:
    """What is known about the keys that a rule names."""

    key: Key | None = None
    prefix: str | None = None
    weight: float | None = None
    rate: float | None = None
    cost: float | None = None

    def fits(self, key: Key) -> bool:
        if self.key is not None:
            return self.key == key
        return isinstance(key[0], str) and key[0].startswith(self.prefix or "")


@dataclass
class OracleQueue:
    """An update queue that remembers everything."""

    key: Sequence[str]
    time: str | None
    policy: str | Score = "whittle"
    merge: Mapping[str, str] = field(default_factory=dict)
    delete_column: str | None = None
    delete_value: Any = None
    weight: float = 1.0
    weight_column: str | None = None
    rules: Sequence[Rule] = ()
    cost: float = 1.0
    rate_alpha: float = 0.1

    history: dict[Key, list[OracleUpdate]] = field(default_factory=dict)
    waiting: dict[Key, OracleUnit] = field(default_factory=dict)
    batches: dict[int, OracleBatch] = field(default_factory=dict)
    counts: OracleCounts = field(default_factory=OracleCounts)
    deliveries: dict[Key, list[tuple[float, int]]] = field(default_factory=dict)
    started: float | None = None  # when the first update arrived
    prior_gap: float = 0.0  # of a key of which no gap is known: the mean of all keys
    sequence: int = 0
    tickets: int = 0

    # -- arrive ---------------------------------------------------------------------

    def put(self, rows: Iterable[Mapping[str, Any]], arrived: Iterable[float]) -> OracleCounts:
        """Take rows in order; the result counts this call alone."""
        before = OracleCounts(**vars(self.counts))
        for row, at in zip(rows, arrived, strict=True):
            self.started = at if self.started is None else self.started
            self._put(dict(row), at)
            if at > self.started:
                self.prior_gap = (at - self.started) * len(self.history) / self.counts.accepted
        now = vars(self.counts)
        return OracleCounts(**{name: now[name] - was for name, was in vars(before).items()})

    def _put(self, values: Values, at: float) -> None:
        key = tuple(values[column] for column in self.key)
        self.sequence += 1
        update = OracleUpdate(
            seq=self.sequence,
            key=key,
            time=self.sequence if self.time is None else values[self.time],
            values=values,
            arrived=at,
            is_delete=self.delete_column is not None
            and values[self.delete_column] == self.delete_value,
        )
        newest = self.newest(key)
        self.counts.accepted += 1
        if newest is not None and update.time < newest.time:
            self.counts.superseded += 1
            return
        self.history.setdefault(key, []).append(update)
        if key in self.waiting:
            self.waiting[key].updates.append(update)
            self.counts.conflated += 1
        else:
            self.waiting[key] = OracleUnit([update], since=at, ticket=self._ticket())

    def _ticket(self) -> int:
        self.tickets += 1
        return self.tickets

    def newest(self, key: Key) -> OracleUpdate | None:
        """The last update of a key that was not superseded."""
        return self.history[key][-1] if key in self.history else None

    # -- schedule -------------------------------------------------------------------

    def scores(self, now: float, *, first_come: bool = False) -> dict[Key, float]:
        """The policy's opinion on every waiting key, in order of first enqueue."""
        line = sorted(self.waiting.values(), key=lambda unit: unit.ticket)
        if not line:
            return {}
        keys = [unit.key for unit in line]
        waited = np.array([now - unit.since for unit in line])
        position = np.arange(len(line), dtype=np.float64)
        if first_come or self.policy == "in-place":
            score: Floats = -position
        else:
            rate = np.array([self.rate_of(key, now) for key in keys])
            weight = np.array([self.weight_of(key) for key in keys])
            cost = np.array([self.cost_of(key) for key in keys])
            score = self._score(waited, rate, weight, cost, position)
        return dict(zip(keys, score.tolist(), strict=True))

    def _score(
        self, waited: Floats, rate: Floats, weight: Floats, cost: Floats, position: Floats
    ) -> Floats:
        match self.policy:
            case "linecutting":
                return np.maximum(1 / rate - cost * position, 0) + waited
            case "whittle":
                v = waited + cost / 2
                return weight / cost * v * (v / 2 + 1 / rate)
            case str():
                raise ValueError(self.policy)
            case score:
                return score(waited, rate, weight, cost, position)

    def plan(self, limit: int | None, now: float, *, first_come: bool = False) -> list[Key]:
        """The keys to hand out next, best first; nothing is taken yet."""
        wanted = len(self.waiting) if limit is None else min(limit, len(self.waiting))
        held = dict(self.waiting)
        chosen = []
        for _ in range(wanted):
            scores = self.scores(now, first_come=first_come)
            best = max(scores, key=scores.__getitem__)  # the first of equals waited longest
            chosen.append(best)
            del self.waiting[best]
        self.waiting = held
        return chosen

    def rule_of(self, key: Key) -> Rule | None:
        exact = [rule for rule in self.rules if rule.key is not None and rule.fits(key)]
        loose = [rule for rule in self.rules if rule.prefix is not None and rule.fits(key)]
        loose.sort(key=lambda rule: -len(rule.prefix or ""))
        return next(iter(exact + loose), None)

    def weight_of(self, key: Key) -> float:
        """The last weight that came with an update, else that of a rule, else the default."""
        if self.weight_column is not None:
            given = [update.values[self.weight_column] for update in self.history[key]]
            known = [float(weight) for weight in given if weight is not None]
            if known:
                return known[-1]
        rule = self.rule_of(key)
        return self.weight if rule is None or rule.weight is None else rule.weight

    def cost_of(self, key: Key) -> float:
        rule = self.rule_of(key)
        return self.cost if rule is None or rule.cost is None else rule.cost

    def rate_of(self, key: Key, now: float) -> float:
        rule = self.rule_of(key)
        if rule is not None and rule.rate is not None:
            return rule.rate
        arrivals = [update.arrived for update in self.history[key]]
        return 1 / max(mean_gap(arrivals, self.rate_alpha, now, self.prior_gap), 1e-300)

    # -- dequeue, deliver -----------------------------------------------------------

    def hand_out(self, batch_id: int, keys: Sequence[Key], now: float) -> OracleBatch:
        """Freeze the waiting units of these keys."""
        batch = OracleBatch([self.waiting.pop(key) for key in keys], planned_at=now)
        self.batches[batch_id] = batch
        self.counts.handed_out += len(keys)
        return batch

    def delivered(self, batch_id: int, at: float) -> None:
        batch = self.batches[batch_id]
        if batch.delivered_at is None:
            batch.delivered_at = at
            for unit in batch.units:
                self.deliveries.setdefault(unit.key, []).append((at, unit.newest.seq))

    def commit(self, batch_id: int, at: float) -> None:
        self.delivered(batch_id, at)
        del self.batches[batch_id]

    def give_back(self, batch_id: int) -> None:
        """Undo a plan: units wait again, below whatever newer arrived meanwhile."""
        batch = self.batches.pop(batch_id)
        for unit in batch.units:
            self.counts.handed_out -= 1
            if self._overtaken(unit):
                self.counts.conflated += 1
            elif unit.key in self.waiting:
                newer = self.waiting[unit.key]
                newer.updates[:0] = unit.updates
                newer.since, newer.ticket = unit.since, unit.ticket
                self.counts.conflated += 1
            else:
                self.waiting[unit.key] = unit

    def _overtaken(self, unit: OracleUnit) -> bool:
        """Whether something newer of the key was handed out; the unit must not follow it."""
        newer = [seq for _, seq in self.deliveries.get(unit.key, [])]
        newer += [
            other.newest.seq
            for batch in self.batches.values()
            for other in batch.units
            if other.key == unit.key
        ]
        return any(seq > unit.newest.seq for seq in newer)

    # -- staleness ------------------------------------------------------------------

    def events(self) -> dict[Hashable, KeyEvents]:
        """What happened to each key; an answer older than the one before changes nothing."""
        return {
            key: KeyEvents(
                [Arrival(update.arrived, update.seq) for update in updates],
                [
                    Delivery(at, max(seq for _, seq in answers[: i + 1]))
                    for answers in [self.deliveries.get(key, [])]
                    for i, (at, _) in enumerate(answers)
                ],
            )
            for key, updates in self.history.items()
        }

    def queue_staleness(self, key: Key, at: float) -> float:
        return at - self.waiting[key].since if key in self.waiting else 0.0


def mean_gap(arrivals: Sequence[float], alpha: float, now: float, prior: float) -> float:
    """The estimated gap between updates of a key; `prior` while no gap was seen.

    m arrivals at one instant, d after the instant before, are m gaps of d / m. The
    estimate is an exponentially weighted mean with weight max(alpha, 1 / count), and a
    silence longer than the estimate is blended in once.
    """
    instants = sorted(set(arrivals))
    gap, count = prior, 0
    for before, instant in pairwise(instants):
        together = sum(1 for arrival in arrivals if arrival == instant)
        for _ in range(together):
            count += 1
            gap += max(alpha, 1 / count) * ((instant - before) / together - gap)
    silence = now - instants[-1]
    return gap + alpha * (silence - gap) if silence > gap else gap
