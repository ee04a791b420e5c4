"""The Key Scheduler: which key next?

Waiting keys are kept in *rate classes*. The rate is quantised to a power of 2^(1/4), the
weight likewise, and keys of one class have the same cost class. Among such keys the one
that waits longest wins under every monotone policy, so a class is a first-in first-out
list, and choosing is comparing the heads of the classes that hold somebody:

    rate 2^1.25   [k17] - k4 - k88          enqueue: O(1), behind the last of its class
    rate 2^0.50   [k3]                      dequeue: O(classes), a few dozen,
    rate 2^-3.0   [k56] - k9                         however many keys wait
                    ^ the heads are scored with their own rate, weight and cost

A key keeps the class that it had when it was enqueued. Two keys of one class differ by at
most a factor of 2^(1/4) in rate and in weight. Under whittle the score of the key that is
taken is therefore at least the highest score divided by 2^(1/4), or by 2^(1/2) if weights
differ; under linecutting it is at most (1 - 2^(-1/4)) / r of the best key below it. (Up to
256 pairs of weight step and cost class are told apart; beyond that the nearest is used.)
`selection = "scan"` looks at every waiting key instead, and so does a policy that is not
monotone.

*Tickets* number the first enqueues. They decide ties, and a Fenwick tree over them gives
a key's position in the queue in O(log n) to the policies that ask for it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from upstream.queue.key_table import KEY_BYTES, key_at, table_at
from upstream.queue.policies import InPlace, Linecutting, Policy, Whittle
from upstream.queue.rates import gap_at
from upstream.queue.raw import (
    Region,
    address_of,
    f64,
    i64,
    kernel,
    load_f64,
    load_i32,
    load_i64,
    load_u16,
    load_u32,
    record_at,
    store_f64,
    store_i32,
    store_i64,
    store_u16,
    store_u32,
)

__all__ = [
    "SCHEDULER",
    "KeyScheduler",
    "append_waiting",
    "enqueue",
    "insert_waiting",
    "scheduler_at",
    "unlink",
]

CLASS_STEPS = 4.0  # classes per factor of two
MOST_GROUPS = 255
CLASSES = 256 * (MOST_GROUPS + 1)

CLASS = np.dtype([("head", "u4"), ("tail", "u4"), ("count", "u4"), ("place", "u4")])
CLASS_BYTES = CLASS.itemsize

# The kernel's codes of the compiled policies; any other is scored by its own Python code.
IN_PLACE, LINECUTTING, WHITTLE, PYTHON = 0, 1, 2, 3

SCHEDULER = np.dtype(
    [
        ("table", "i8"),  # address of the key table
        ("classes", "i8"),
        ("active", "i8"),  # address of the list of classes that hold somebody
        ("scores", "i8"),  # scratch: the score and position of each active class's head
        ("positions", "i8"),
        ("groups", "i8"),  # address of the known (weight step, cost class) pairs
        ("costs", "i8"),  # address of the cost of a result, by cost class
        ("tree", "i8"),  # address of the Fenwick tree, 0: positions are not asked for
        ("tree_first", "i8"),  # ticket of its first leaf
        ("tree_size", "i8"),
        ("actives", "i8"),
        ("group_count", "i8"),
        ("waiting", "i8"),
        ("next_ticket", "i8"),
        ("policy", "i8"),
        ("uses_rate", "i8"),
        ("uses_weight", "i8"),
        ("uses_cost", "i8"),
        ("alpha", "f8"),
        ("prior_gap", "f8"),
    ]
)

WAITING = list(SCHEDULER.names or ()).index("waiting")
scheduler_at = record_at(SCHEDULER)
class_at = record_at(CLASS)

_in_place_score = kernel(InPlace.score)
_linecutting_score = kernel(Linecutting.score)
_whittle_score = kernel(Whittle.score)


@kernel
def _key(scheduler: Any, slot: int) -> Any:
    return key_at(table_at(scheduler.table).keys + slot * KEY_BYTES)


@kernel
def _score(
    policy: int, waiting: float, rate: float, weight: float, cost: float, position: int
) -> float:
    if policy == WHITTLE:
        return f64(_whittle_score(None, waiting, rate, weight, cost, position))
    if policy == LINECUTTING:
        return f64(_linecutting_score(None, waiting, rate, weight, cost, position))
    return f64(_in_place_score(None, waiting, rate, weight, cost, position))


@kernel
def _tree_add(scheduler: Any, ticket: int, change: int) -> None:
    at = ticket - scheduler.tree_first + 1
    while at <= scheduler.tree_size:
        address = scheduler.tree + at * 4
        store_i32(address, load_i32(address) + change)
        at += at & -at


@kernel
def _position(scheduler: Any, ticket: int) -> int:
    """How many waiting keys have a smaller ticket."""
    if scheduler.tree == 0:
        return 0
    count = 0
    at = ticket - scheduler.tree_first
    while at > 0:
        count += load_i32(scheduler.tree + at * 4)
        at -= at & -at
    return count


@kernel
def _group(scheduler: Any, weight: float, cost_class: int) -> int:
    """The number of a (weight step, cost class) pair; the nearest known one if all are used."""
    step = i64(np.rint(CLASS_STEPS * np.log2(weight))) + 128
    step = min(max(step, 0), 255)
    wanted = (step << 8) | cost_class
    nearest, distance = 0, 1 << 20
    for number in range(scheduler.group_count):
        pair = i64(load_u16(scheduler.groups + number * 2))
        if pair == wanted:
            return number
        apart = abs((pair >> 8) - step) + (0 if pair & 255 == cost_class else 1 << 10)
        if apart < distance:
            nearest, distance = number, apart
    if scheduler.group_count > MOST_GROUPS:
        return nearest
    store_u16(scheduler.groups + scheduler.group_count * 2, np.uint16(wanted))
    scheduler.group_count += 1
    return scheduler.group_count - 1


@kernel
def _class_of(scheduler: Any, key: Any, now: float) -> int:
    number = 0
    if scheduler.uses_rate != 0:
        gap = gap_at(key, now, scheduler.alpha, scheduler.prior_gap)
        step = -128.0 if gap <= 0.0 else CLASS_STEPS * np.log2(gap)
        number = i64(min(max(np.rint(step) + 128.0, 0.0), 255.0))
    if scheduler.uses_weight != 0 or scheduler.uses_cost != 0:
        weight = f64(key.weight) if scheduler.uses_weight != 0 else 1.0
        cost_class = i64(key.cost_class) if scheduler.uses_cost != 0 else 0
        number += 256 * _group(scheduler, weight, cost_class)
    return number


@kernel
def _admit(scheduler: Any, key: Any, number: int) -> Any:
    """The class, made active if it was empty; counts the key in."""
    rate_class = class_at(scheduler.classes + number * CLASS_BYTES)
    if rate_class.count == 0:
        rate_class.place = scheduler.actives
        store_u32(scheduler.active + scheduler.actives * 4, number)
        scheduler.actives += 1
        rate_class.head = 0
        rate_class.tail = 0
    rate_class.count += 1
    scheduler.waiting += 1
    key.rate_class = number
    if scheduler.tree != 0:
        _tree_add(scheduler, key.ticket, 1)
    return rate_class


@kernel
def append_waiting(scheduler: Any, slot: int, now: float) -> None:
    """Put a key behind the last of its class; it has its ticket already."""
    key = _key(scheduler, slot)
    rate_class = _admit(scheduler, key, _class_of(scheduler, key, now))
    key.next = 0
    key.prev = rate_class.tail
    if rate_class.tail == 0:
        rate_class.head = slot
    else:
        _key(scheduler, rate_class.tail).next = slot
    rate_class.tail = slot


@kernel
def enqueue(scheduler: Any, slot: int, now: float) -> None:
    """A key begins to wait."""
    _key(scheduler, slot).ticket = scheduler.next_ticket
    scheduler.next_ticket += 1
    append_waiting(scheduler, slot, now)


@kernel
def insert_waiting(scheduler: Any, slot: int, now: float) -> None:
    """Put a key where its ticket belongs; few keys of its class have a smaller one."""
    key = _key(scheduler, slot)
    rate_class = _admit(scheduler, key, _class_of(scheduler, key, now))
    before, after = i64(0), i64(rate_class.head)
    while after != 0 and _key(scheduler, after).ticket < key.ticket:
        before, after = after, i64(_key(scheduler, after).next)
    key.prev = before
    key.next = after
    if before == 0:
        rate_class.head = slot
    else:
        _key(scheduler, before).next = slot
    if after == 0:
        rate_class.tail = slot
    else:
        _key(scheduler, after).prev = slot


@kernel
def unlink(scheduler: Any, slot: int) -> None:
    """A key waits no longer."""
    key = _key(scheduler, slot)
    number = i64(key.rate_class)
    rate_class = class_at(scheduler.classes + number * CLASS_BYTES)
    if key.prev == 0:
        rate_class.head = key.next
    else:
        _key(scheduler, key.prev).next = key.next
    if key.next == 0:
        rate_class.tail = key.prev
    else:
        _key(scheduler, key.next).prev = key.prev
    rate_class.count -= 1
    scheduler.waiting -= 1
    if scheduler.tree != 0:
        _tree_add(scheduler, key.ticket, -1)
    if rate_class.count == 0:
        scheduler.actives -= 1
        last = load_u32(scheduler.active + scheduler.actives * 4)
        place = i64(rate_class.place)
        store_u32(scheduler.active + place * 4, last)
        class_at(scheduler.classes + i64(last) * CLASS_BYTES).place = place
        store_f64(scheduler.scores + place * 8, load_f64(scheduler.scores + scheduler.actives * 8))
        store_i64(
            scheduler.positions + place * 8,
            load_i64(scheduler.positions + scheduler.actives * 8),
        )


@kernel
def _slot_score(scheduler: Any, slot: int, now: float, policy: int, position: int) -> float:
    key = _key(scheduler, slot)
    gap = gap_at(key, now, scheduler.alpha, scheduler.prior_gap)
    cost = load_f64(scheduler.costs + i64(key.cost_class) * 8)
    return _score(policy, now - key.since, 1.0 / gap, f64(key.weight), cost, position)


@kernel
def _score_head(scheduler: Any, place: int, now: float, policy: int) -> None:
    number = i64(load_u32(scheduler.active + place * 4))
    head = i64(class_at(scheduler.classes + number * CLASS_BYTES).head)
    position = _position(scheduler, _key(scheduler, head).ticket)
    store_i64(scheduler.positions + place * 8, position)
    store_f64(scheduler.scores + place * 8, _slot_score(scheduler, head, now, policy, position))


@kernel
def take(scheduler_address: int, limit: int, now: float, policy: int, slots: int) -> int:
    """Take up to `limit` keys, one after the other, by comparing the heads of the classes."""
    scheduler = scheduler_at(scheduler_address)
    for place in range(scheduler.actives):
        _score_head(scheduler, place, now, policy)
    taken = 0
    while taken < limit and scheduler.actives > 0:
        best, best_score, best_ticket = -1, -np.inf, 0
        for place in range(scheduler.actives):
            score = load_f64(scheduler.scores + place * 8)
            if best < 0 or score >= best_score:
                number = i64(load_u32(scheduler.active + place * 4))
                head = i64(class_at(scheduler.classes + number * CLASS_BYTES).head)
                ticket = _key(scheduler, head).ticket
                if best < 0 or score > best_score or ticket < best_ticket:
                    best, best_score, best_ticket = place, score, ticket
        number = i64(load_u32(scheduler.active + best * 4))
        rate_class = class_at(scheduler.classes + number * CLASS_BYTES)
        slot = i64(rate_class.head)
        store_u32(slots + taken * 4, slot)
        taken += 1
        unlink(scheduler, slot)
        if policy == LINECUTTING:  # everybody behind it moved up by one
            for place in range(scheduler.actives):
                _score_head(scheduler, place, now, policy)
        elif rate_class.count > 0:
            _score_head(scheduler, best, now, policy)
    return taken


@kernel
def least_valuable(scheduler_address: int, now: float, policy: int) -> int:
    """The waiting key that would be served last: the lowest score among the last of classes."""
    scheduler = scheduler_at(scheduler_address)
    worst, worst_score, worst_ticket = i64(0), np.inf, 0
    for place in range(scheduler.actives):
        number = i64(load_u32(scheduler.active + place * 4))
        slot = i64(class_at(scheduler.classes + number * CLASS_BYTES).tail)
        ticket = _key(scheduler, slot).ticket
        score = _slot_score(scheduler, slot, now, policy, _position(scheduler, ticket))
        if worst == 0 or score < worst_score or (score == worst_score and ticket > worst_ticket):
            worst, worst_score, worst_ticket = slot, score, ticket
    return worst


@kernel
def _candidates(scheduler_address: int, most: int, slots: int) -> int:
    """The first `most` keys of every class."""
    scheduler = scheduler_at(scheduler_address)
    found = 0
    for place in range(scheduler.actives):
        number = i64(load_u32(scheduler.active + place * 4))
        slot = i64(class_at(scheduler.classes + number * CLASS_BYTES).head)
        rank = 0
        while slot != 0 and rank < most:
            store_u32(slots + found * 4, slot)
            found += 1
            rank += 1
            slot = i64(_key(scheduler, slot).next)
    return found


@kernel
def _describe(scheduler_address: int, slots: int, count: int, now: float, out: int) -> None:
    """For each slot six numbers: waiting, rate, weight, cost, position, ticket."""
    scheduler = scheduler_at(scheduler_address)
    for i in range(count):
        key = _key(scheduler, i64(load_u32(slots + i * 4)))
        row = out + i * 48
        store_f64(row, now - key.since)
        store_f64(row + 8, 1.0 / gap_at(key, now, scheduler.alpha, scheduler.prior_gap))
        store_f64(row + 16, f64(key.weight))
        store_f64(row + 24, load_f64(scheduler.costs + i64(key.cost_class) * 8))
        store_f64(row + 32, f64(_position(scheduler, key.ticket)))
        store_f64(row + 40, f64(key.ticket))


@kernel
def _take_slots(scheduler_address: int, slots: int, count: int) -> None:
    scheduler = scheduler_at(scheduler_address)
    for i in range(count):
        unlink(scheduler, i64(load_u32(slots + i * 4)))


@kernel
def _append_slots(scheduler_address: int, slots: int, count: int, now: float) -> None:
    scheduler = scheduler_at(scheduler_address)
    for i in range(count):
        append_waiting(scheduler, i64(load_u32(slots + i * 4)), now)


@kernel
def _fill_tree(tree: int, size: int) -> None:
    """Turn counts at the leaves into a Fenwick tree."""
    for at in range(1, size + 1):
        parent = at + (at & -at)
        if parent <= size:
            store_i32(tree + parent * 4, load_i32(tree + parent * 4) + load_i32(tree + at * 4))


class KeyScheduler:
    """The waiting keys of a queue, and the order in which they are served."""

    def __init__(
        self, *, table_address: int, policy: Policy, alpha: float, scan: bool = False
    ) -> None:
        self.policy = policy
        codes = {InPlace: IN_PLACE, Linecutting: LINECUTTING, Whittle: WHITTLE}
        self._code = codes.get(type(policy), PYTHON)
        self._scan = scan or not policy.monotone
        self._classes = Region(CLASSES * CLASS.itemsize)
        self._scratch = Region(CLASSES * 20)
        self._groups = np.zeros(MOST_GROUPS + 1, np.uint16)
        self._tree = np.zeros(0, np.int32)
        self.costs = np.full(256, 1e-6)
        self.state = np.zeros(1, SCHEDULER)
        self.state["next_ticket"] = 1
        self.state["alpha"] = alpha
        self.address = address_of(self.state)  # where the kernels find the scheduler
        self._integers = self.state.view(np.int64).data
        self._place(table_address)

    def _place(self, table_address: int) -> None:
        state = self.state
        state["table"] = table_address
        state["classes"] = self._classes.address
        state["scores"] = self._scratch.address
        state["positions"] = self._scratch.address + CLASSES * 8
        state["active"] = self._scratch.address + CLASSES * 16
        state["groups"] = address_of(self._groups)
        state["costs"] = address_of(self.costs)
        state["policy"] = self._code
        state["uses_rate"] = self.policy.uses_rate
        state["uses_weight"] = self.policy.uses_weight
        state["uses_cost"] = self.policy.uses_cost

    def __len__(self) -> int:
        return self._integers[WAITING]

    @property
    def memory_bytes(self) -> int:
        """What the scheduler needs beside the records; it does not depend on their number."""
        return self._tree.nbytes

    def expect(self, enqueues: int, records: NDArray[Any], first: int | None = None) -> None:
        """Make sure that the tree of positions has room for so many further tickets.

        `first` is a ticket that comes back, if one does.
        """
        if not self.policy.uses_position:
            return
        state = self.state[0]
        lowest = state["tree_first"] if first is None else min(first, state["tree_first"])
        end = state["tree_first"] + state["tree_size"]
        if lowest == state["tree_first"] and state["next_ticket"] + enqueues <= end:
            return
        tickets = records["ticket"][~np.isnan(records["since"])]
        start = int(tickets.min()) if len(tickets) else int(state["next_ticket"])
        if first is not None:
            start = min(start, first)
        size = max(2 * (int(state["next_ticket"]) + enqueues - start), 1024)
        self._tree = np.zeros(size + 1, np.int32)
        self._tree[tickets - start + 1] = 1
        _fill_tree(address_of(self._tree), size)
        state["tree"], state["tree_first"], state["tree_size"] = (
            address_of(self._tree),
            start,
            size,
        )

    def take(self, limit: int, now: float, *, first_come: bool = False) -> NDArray[np.uint32]:
        """The slots of the next keys to serve, in that order; they wait no longer."""
        limit = min(limit, len(self))
        slots = np.empty(limit, np.uint32)
        if not limit:
            return slots
        if first_come or (self._code != PYTHON and not self._scan):
            policy = IN_PLACE if first_come else self._code
            take(self.address, limit, now, policy, address_of(slots))
            return slots
        slots = self._best(limit, now)
        self.take_slots(slots)
        return slots

    def take_slots(self, slots: NDArray[np.uint32]) -> None:
        """These keys wait no longer."""
        _take_slots(self.address, address_of(slots), len(slots))

    def _best(self, limit: int, now: float) -> NDArray[np.uint32]:
        """The highest scores, by the policy's own Python code."""
        candidates = np.empty(len(self), np.uint32)
        most = len(self) if self._scan else limit
        found = _candidates(self.address, most, address_of(candidates))
        facts = np.empty((found, 6))
        _describe(self.address, address_of(candidates), found, now, address_of(facts))
        waiting, rate, weight, cost, position, ticket = facts.T
        if not self.policy.uses_position:
            scores = self._scores(waiting, rate, weight, cost, position)
            order = np.lexsort((ticket, -scores))[:limit]
            return candidates[order]
        chosen = np.empty(limit, np.int64)
        position = position.copy()
        open_ = np.ones(found, bool)
        for i in range(limit):
            scores = self._scores(waiting, rate, weight, cost, position)
            scores = np.where(open_, scores, -np.inf)
            ties = np.flatnonzero(scores == scores.max())
            best = ties[np.argmin(ticket[ties])]
            chosen[i] = best
            open_[best] = False
            position[ticket > ticket[best]] -= 1
        return candidates[chosen]

    def _scores(self, *facts: NDArray[np.float64]) -> NDArray[np.float64]:
        scores = np.asarray(self.policy.score(*facts), np.float64)
        return np.broadcast_to(np.where(np.isnan(scores), -np.inf, scores), facts[0].shape)

    def least_valuable(self, now: float) -> int:
        """The slot of the waiting key that would be served last, 0 if none waits.

        A policy of the user's is not asked: the key that waits least has to go.
        """
        policy = self._code if self._code != PYTHON else IN_PLACE
        return int(least_valuable(self.address, now, policy))

    def rebuild(self, records: NDArray[Any], now: float) -> None:
        """Sort all waiting keys into classes anew, from their records."""
        slots = np.flatnonzero(~np.isnan(records["since"])).astype(np.uint32)
        slots = slots[np.argsort(records["ticket"][slots], kind="stable")]
        self._classes = Region(CLASSES * CLASS.itemsize)
        self._place(int(self.state["table"][0]))
        state = self.state
        state["actives"] = state["waiting"] = state["group_count"] = 0
        state["tree"] = state["tree_first"] = state["tree_size"] = 0
        if self.policy.uses_position:
            first = int(records["ticket"][slots[0]]) if len(slots) else int(state["next_ticket"][0])
            size = max(2 * (int(state["next_ticket"][0]) - first), 1024)
            self._tree = np.zeros(size + 1, np.int32)
            state["tree"], state["tree_first"] = address_of(self._tree), first
            state["tree_size"] = size
        _append_slots(self.address, address_of(slots), len(slots), now)

    def check(self, records: NDArray[Any]) -> None:
        """Assert that classes hold exactly the waiting keys, in order; for tests."""
        waiting = np.flatnonzero(~np.isnan(records["since"]))
        classes = self._classes.array(CLASS, CLASSES)
        seen: list[int] = []
        for number in np.unique(records["rate_class"][waiting]):
            slot, before = int(classes[number]["head"]), 0
            while slot:
                assert records[slot]["prev"] == before
                assert not before or records[before]["ticket"] < records[slot]["ticket"]
                seen.append(slot)
                before, slot = slot, int(records[slot]["next"])
            assert classes[number]["tail"] == before
        assert sorted(seen) == waiting.tolist()
        assert len(self) == len(waiting)
