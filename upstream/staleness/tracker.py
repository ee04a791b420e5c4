"""Staleness measured while it happens, for any system that can report three moments."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from upstream.errors import InputError
from upstream.staleness.rules import (
    FRESH,
    add_key,
    answer,
    drop_key,
    fall,
    key_area,
    new_totals,
    rise,
)
from upstream.staleness.view import StalenessView

__all__ = ["KeyStaleness", "StalenessTracker"]

K = TypeVar("K", bound=Hashable)

COLUMNS = np.dtype(
    [
        ("stale_since", "f8"),
        ("area", "f8"),
        ("born", "f8"),
        ("weight", "f8"),
        ("waiting_since", "f8"),  # first arrival of the open generation
        ("waiting_last", "f8"),  # its newest arrival; stays when it leaves and can come back
    ]
)


class Generation(NamedTuple):
    """Updates of one key that left the queue together and will share one answer."""

    first: float  # arrival of the first of them
    last: float  # arrival of the newest, which the answer reflects


class KeyStaleness(NamedTuple):
    """One key at one instant."""

    staleness: float  # seconds since the first update that the delivered answer lacks
    average: float  # of the staleness, over time since the key's first arrival
    queue_staleness: float  # seconds it has been waiting in the queue


class StalenessTracker(Generic[K]):
    """Feed it what happens to each key, ask it how stale the answers are.

    Updates of a key that arrive after its last dequeue form the open generation. ``dequeued``
    closes it and puts it in flight; ``delivered`` answers the generation that is longest in
    flight, and the key's staleness then counts from the first arrival of the next one::

        arrived a   dequeued   arrived b   arrived c   delivered a'
        |           |          |           |           |
        stale since a ........................................
                               then since b, because a' knows neither b nor c

    >>> tracker = StalenessTracker[str]()
    >>> tracker.arrived("EUR", 1.0)
    >>> tracker.dequeued("EUR", 2.0)
    >>> tracker.arrived("EUR", 3.0)             # during service
    >>> tracker.arrived("EUR", 4.0)
    >>> tracker.delivered("EUR", 5.0)           # stale by 4 before, by 5 - 3 now
    >>> tracker.of("EUR")
    KeyStaleness(staleness=2.0, average=2.0, queue_staleness=2.0)
    >>> view = tracker.view(7.0)
    >>> view.stalest(1), view.average, view.load_factor, view.latency_mean
    ([('EUR', 4.0)], 2.0, 3.0, 4.0)

    Times are seconds from any clock. They may repeat, and never run backward: an event or a
    question with an earlier time counts as happening at the last event. `started` is where the
    time average begins. `weights` gives each key's weight, 1 for keys it does not hold;
    `freshness_target` in seconds is what ``view().within()`` compares with.

    One thread at a time may use a tracker.
    """

    def __init__(
        self,
        started: float = 0.0,
        weights: Mapping[K, float] | Callable[[K], float] | None = None,
        freshness_target: float | None = None,
    ) -> None:
        self._last = _finite(started, "started")  # the instant of the last event
        self._totals = new_totals(self._last)[0]
        self._queue_totals = new_totals(self._last)[0]
        self._weights = weights
        self._freshness_target = freshness_target
        self._rows = np.zeros(16, COLUMNS)
        self._row_of: dict[K, int] = {}
        self._free: list[int] = []
        self._in_flight: list[deque[Generation]] = []

    def __len__(self) -> int:
        """The number of keys known."""
        return len(self._row_of)

    def __contains__(self, key: object) -> bool:
        return key in self._row_of

    def arrived(self, key: K, at: float) -> None:
        """An update of `key` entered the queue; the first one makes the key known."""
        at = self._now(at)
        row = self._row_of.get(key)
        if row is None:
            row = self._add(key, at)
        self._totals["arrived"] += 1
        if math.isnan(self._rows["waiting_since"][row]):
            self._wait_since(row, at, at)
        self._rows["waiting_last"][row] = at
        if math.isnan(self._rows["stale_since"][row]):
            self._stale_since(row, at, at)
        self._last = at

    def dequeued(self, key: K, at: float) -> None:
        """The waiting updates of `key` left the queue as one unit and are being processed."""
        at, row = self._now(at), self._known(key, "dequeue", at)
        first = float(self._rows["waiting_since"][row])
        if math.isnan(first):
            raise InputError(
                f"dequeue of {key!r} at {at}: the key must be waiting, but nothing arrived since "
                "its last dequeue; was the same dequeue reported twice?"
            )
        self._in_flight[row].append(Generation(first, float(self._rows["waiting_last"][row])))
        self._wait_since(row, FRESH, at)
        self._last = at

    def delivered(self, key: K, at: float) -> None:
        """The answer to the unit of `key` that is longest in flight is out."""
        at, row = self._now(at), self._known(key, "delivery", at)
        answered = self._taken(row, key, "delivery", at).popleft()
        following = self._in_flight[row]
        waiting_since = float(self._rows["waiting_since"][row])
        self._stale_since(row, following[0].first if following else waiting_since, at)
        answer(self._totals, answered.last, at)
        self._last = at

    def gave_back(self, key: K, at: float) -> None:
        """The unit of `key` that left the queue last returned to it unprocessed.

        The answers are as stale as before; the key waits again, since its first arrival in that
        unit. Where newer updates wait already, the unit and they become one.
        """
        at, row = self._now(at), self._known(key, "give-back", at)
        returned = self._taken(row, key, "give-back", at).pop()
        self._wait_since(row, returned.first, at)
        self._last = at

    def forget(self, key: K, at: float) -> None:
        """The key stops counting, for instance because it was deleted.

        Its past stays in the stream's time average. When it arrives again it is a new key.
        """
        at, row = self._now(at), self._known(key, "forgetting", at)
        drop_key(self._totals, float(self._rows["stale_since"][row]), at)
        drop_key(self._queue_totals, float(self._rows["waiting_since"][row]), at)
        del self._row_of[key]
        self._in_flight[row].clear()
        self._free.append(row)
        self._last = at

    def of(self, key: K, at: float | None = None) -> KeyStaleness:
        """One key at the instant `at`, by default that of the last event."""
        at = self._now(at)
        key_row = self._rows[self._known(key, "question", at)]
        since, waiting_since = float(key_row["stale_since"]), float(key_row["waiting_since"])
        staleness = 0.0 if math.isnan(since) else at - since
        age = at - float(key_row["born"])
        return KeyStaleness(
            staleness=staleness,
            average=(float(key_row["area"]) + staleness**2 / 2.0) / age if age > 0.0 else 0.0,
            queue_staleness=0.0 if math.isnan(waiting_since) else at - waiting_since,
        )

    def view(self, at: float | None = None) -> StalenessView[K]:
        """All keys at the instant `at`, by default that of the last event."""
        names = list(self._row_of)
        columns = self._rows[list(self._row_of.values())]
        return StalenessView(
            at=self._now(at),
            names=lambda ids: [names[i] for i in ids],
            stale_since=columns["stale_since"],
            area=columns["area"],
            born=columns["born"],
            weights=columns["weight"],
            totals=self._totals,
            waiting_since=columns["waiting_since"],
            queue_totals=self._queue_totals,
            freshness_target=self._freshness_target,
        )

    def _now(self, at: float | None) -> float:
        return self._last if at is None else max(_finite(at, "at"), self._last)

    def _known(self, key: K, event: str, at: float) -> int:
        row = self._row_of.get(key)
        if row is None:
            raise InputError(
                f"{event} of {key!r} at {at}: the key must have arrived before, but it is not "
                "known; was it forgotten, or is its arrival not reported?"
            )
        return row

    def _taken(self, row: int, key: K, event: str, at: float) -> deque[Generation]:
        if not self._in_flight[row]:
            raise InputError(
                f"{event} of {key!r} at {at}: a unit of the key must be in flight, but every "
                "dequeue was answered or given back already; is a dequeue not reported?"
            )
        return self._in_flight[row]

    def _add(self, key: K, at: float) -> int:
        weight = self._weight(key)
        if self._free:
            row = self._free.pop()
        else:
            row = len(self._in_flight)
            self._in_flight.append(deque())
            if row == len(self._rows):
                self._rows = np.concatenate([self._rows, np.zeros(row, COLUMNS)])
        self._row_of[key] = row
        self._rows[row] = (FRESH, 0.0, at, weight, FRESH, FRESH)
        add_key(self._totals, at)
        add_key(self._queue_totals, at)
        return row

    def _weight(self, key: K) -> float:
        if self._weights is None:
            return 1.0
        given = self._weights(key) if callable(self._weights) else self._weights.get(key, 1.0)
        if not (math.isfinite(given) and given >= 0.0):
            raise InputError(f"the weight of {key!r} must be 0 or more, but it is {given!r}")
        return float(given)

    def _stale_since(self, row: int, next_since: float, at: float) -> None:
        """The first update of the key that the delivered answer lacks is another one."""
        since = float(self._rows["stale_since"][row])
        _change(self._totals, since, next_since, at)
        self._rows["area"][row] = key_area(float(self._rows["area"][row]), since, next_since, at)
        self._rows["stale_since"][row] = next_since

    def _wait_since(self, row: int, next_since: float, at: float) -> None:
        """The first update of the key that waits in the queue is another one."""
        _change(self._queue_totals, float(self._rows["waiting_since"][row]), next_since, at)
        self._rows["waiting_since"][row] = next_since


def _change(totals: np.void, since: float, next_since: float, at: float) -> None:
    if math.isnan(since):
        rise(totals, next_since, at)
    else:
        fall(totals, since, next_since, at)


def _finite(seconds: float, what: str) -> float:
    if not math.isfinite(seconds):
        raise InputError(f"{what} must be a time in seconds, but {seconds!r} was given")
    return float(seconds)
