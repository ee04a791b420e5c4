"""The ledger of an append queue: what arrived of each key, and what became of it.

Staleness counts from the first update that the delivered answer lacks, whether that
update waits, is being processed or was dropped. So the updates of a key are linked in the
order of their arrival, and a delivery looks at the next one:

    EUR   #3 answered -> #7 taken -> #9 dropped -> #12 waiting
                          delivered: stale since the arrival of #9

A dropped update is noted only behind one that may still be delivered, and only the first
of several: nobody will ask for the others.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from upstream.queue.raw import kernel
from upstream.staleness.rules import add_key, answer, fall, key_area, new_totals, rise

__all__ = ["ARRIVAL", "KEY", "AppendLedger"]

KEY = np.dtype(
    [
        ("born", "f8"),  # NaN: not known yet
        ("stale_since", "f8"),  # NaN while the delivered answer is fresh
        ("area", "f8"),  # as `upstream.staleness.rules` has it
        ("waiting_since", "f8"),  # arrival of the first update that waits, NaN: none
        ("first", "i8"),  # its number, 0: none
        ("last", "i8"),  # number of the last update that was noted
        ("answered", "i8"),  # number of the newest update delivered
    ]
)
ARRIVAL = np.dtype(
    [
        ("arrived", "f8"),
        ("next", "i8"),  # number of the key's next update, 0: none
        ("key", "u4"),
        ("fate", "u4"),
    ]
)

# What became of an update
WAITING, TAKEN, ANSWERED, DROPPED = 0, 1, 2, 3


@kernel
def _arrive(
    keys: Any,
    log: Any,
    base: int,
    top: int,
    ids: Any,
    times: Any,
    kept: Any,
    numbers: Any,
    totals: Any,
    queue_totals: Any,
) -> int:
    """Note updates; `numbers` receives those of the kept ones. Answers the next number."""
    stored = 0
    for i in range(len(ids)):
        key = keys[ids[i]]
        at = times[i]
        if np.isnan(key.born):
            key.born = at
            add_key(totals[0], at)
            add_key(queue_totals[0], at)
        totals[0].arrived += 1
        if np.isnan(key.stale_since):
            rise(totals[0], at, at)
            key.area = key_area(key.area, np.nan, at, totals[0].at)
            key.stale_since = at
        followed = key.last >= base and log[key.last - base].fate <= TAKEN
        if not (kept[i] or followed):
            continue
        entry = log[top - base]
        entry.arrived = at
        entry.next = 0
        entry.key = ids[i]
        entry.fate = WAITING if kept[i] else DROPPED
        if key.last >= base:
            log[key.last - base].next = top
        key.last = top
        if kept[i]:
            numbers[stored] = top
            stored += 1
            if key.first == 0:
                key.first = top
                key.waiting_since = at
                rise(queue_totals[0], at, at)
        top += 1
    return top


@kernel
def _leave(
    keys: Any, log: Any, base: int, numbers: Any, fate: int, at: float, queue_totals: Any
) -> None:
    """Updates wait no longer."""
    for number in numbers:
        entry = log[number - base]
        entry.fate = fate
        key = keys[entry.key]
        if key.first != number:
            continue
        following = entry.next
        since = np.nan
        while following != 0 and log[following - base].fate != WAITING:
            following = log[following - base].next
        if following != 0:
            since = log[following - base].arrived
        fall(queue_totals[0], key.waiting_since, since, at)
        key.first = following
        key.waiting_since = since


@kernel
def _come_back(keys: Any, log: Any, base: int, numbers: Any, at: float, queue_totals: Any) -> None:
    """Updates that were taken wait again."""
    for number in numbers:
        entry = log[number - base]
        entry.fate = WAITING
        key = keys[entry.key]
        if key.first == 0 or number < key.first:
            fall(queue_totals[0], key.waiting_since, entry.arrived, at)
            key.first = number
            key.waiting_since = entry.arrived


@kernel
def _answer(keys: Any, log: Any, base: int, numbers: Any, at: float, totals: Any) -> None:
    """The results of updates are out."""
    for number in numbers:
        entry = log[number - base]
        entry.fate = ANSWERED
        answer(totals[0], entry.arrived, at)
        key = keys[entry.key]
        if number < key.answered:
            continue  # a newer answer is out already
        key.answered = number
        newer = np.nan if entry.next == 0 else log[entry.next - base].arrived
        fall(totals[0], key.stale_since, newer, at)
        key.area = key_area(key.area, key.stale_since, newer, totals[0].at)
        key.stale_since = newer


class AppendLedger:
    """Arrivals, departures and staleness of the keys of an append queue.

    Keys are small numbers that the owner gives out, 0, 1, 2, ...

    >>> ledger = AppendLedger(started=0.0)
    >>> ledger.know(1)
    >>> kept = np.array([True, False, True])
    >>> one, three = ledger.arrive(np.zeros(3, np.int64), np.array([1.0, 2.0, 3.0]), kept)
    >>> ledger.leave(np.array([one]), 4.0)
    >>> ledger.answer(np.array([one]), 5.0)
    >>> float(ledger.keys["stale_since"][0])     # the update of 2.0, although it was dropped
    2.0
    """

    def __init__(self, started: float) -> None:
        self.totals = new_totals(started)
        self.queue_totals = new_totals(started)
        self._keys = np.empty(16, KEY)
        self._known = 0
        self._log = np.zeros(64, ARRIVAL)
        self._base = 1  # number of the first entry that is kept
        self._top = 1  # number of the next update

    @property
    def keys(self) -> NDArray[Any]:
        """The records of the keys."""
        return self._keys[: self._known]

    @property
    def nbytes(self) -> int:
        """Memory of what is noted."""
        return self._known * KEY.itemsize + (self._top - self._base) * ARRIVAL.itemsize

    def know(self, keys: int) -> None:
        """There are so many keys now."""
        if keys > len(self._keys):
            grown = np.empty(max(keys, 3 * len(self._keys) // 2), KEY)
            grown[: self._known] = self._keys[: self._known]
            self._keys = grown
        self._keys[self._known : keys] = (np.nan, np.nan, 0.0, np.nan, 0, 0, 0)
        self._known = keys

    def arrive(
        self, ids: NDArray[np.int64], times: NDArray[np.float64], kept: NDArray[np.bool_]
    ) -> NDArray[np.int64]:
        """Updates arrived; the numbers of those that wait from now on."""
        self._reserve(len(ids))
        numbers = np.empty(int(np.count_nonzero(kept)), np.int64)
        self._top = int(
            _arrive(
                self._keys,
                self._log,
                self._base,
                self._top,
                ids,
                times,
                kept,
                numbers,
                self.totals,
                self.queue_totals,
            )
        )
        return numbers

    def leave(self, numbers: NDArray[np.int64], at: float, *, dropped: bool = False) -> None:
        """Waiting updates were handed out, or dropped."""
        fate = DROPPED if dropped else TAKEN
        _leave(self._keys, self._log, self._base, numbers, fate, at, self.queue_totals)

    def come_back(self, numbers: NDArray[np.int64], at: float) -> None:
        """Updates that were handed out wait again."""
        _come_back(self._keys, self._log, self._base, numbers, at, self.queue_totals)

    def answer(self, numbers: NDArray[np.int64], at: float) -> None:
        """The results of updates that were handed out are out."""
        _answer(self._keys, self._log, self._base, numbers, at, self.totals)

    def forget_before(self, number: int | None) -> None:
        """No update below this number can be delivered any more; None: nor any above."""
        number = self._top if number is None else number
        if number - self._base > (self._top - self._base) // 2:
            noted = self._log[number - self._base : self._top - self._base]
            self._log = np.concatenate([noted, np.zeros(64, ARRIVAL)])
            self._base = number

    def _reserve(self, more: int) -> None:
        used = self._top - self._base
        if used + more > len(self._log):
            grown = np.zeros(max(used + more, 3 * len(self._log) // 2), ARRIVAL)
            grown[:used] = self._log[:used]
            self._log = grown

    def dump(self) -> tuple[dict[str, Any], list[Any]]:
        """Everything, to be taken in by `load`."""
        meta = {"base": self._base, "top": self._top}
        log = self._log[: self._top - self._base]
        return meta, [
            self.totals.tobytes(),
            self.queue_totals.tobytes(),
            self.keys.tobytes(),
            log.tobytes(),
        ]

    def load(self, meta: dict[str, Any], buffers: list[Any]) -> None:
        """Become the ledger that was dumped."""
        self.totals[:] = np.frombuffer(buffers[0], self.totals.dtype)
        self.queue_totals[:] = np.frombuffer(buffers[1], self.queue_totals.dtype)
        self._keys = np.frombuffer(buffers[2], KEY).copy()
        self._known = len(self._keys)
        self._log = np.frombuffer(buffers[3], ARRIVAL).copy()
        self._base, self._top = int(meta["base"]), int(meta["top"])
