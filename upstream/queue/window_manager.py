"""The Window Manager: which updates form a key's current unit.

Each key has one list of its updates, in order of event time. Windows are ranges of that
list, so an update is stored once however many windows it belongs to, and goes when no
window needs it any more.

    lazy     A window that closes becomes the key's unit and takes the place of the one that
             waited. The list holds what the waiting and the started windows need, the batch
             what was taken: at most 2w + s updates per key.
    eager    The window that started last is the key's unit. Taking from it commits to it:
             its further updates follow as they arrive, until it is complete; meanwhile the
             next unit gathers, emptied at each window start. At most w + s updates per key.

Windows close by progress. `lwm`, the low-watermark, is the smallest time that may still
come; it follows the highest time seen, of the whole stream or of the key itself, less the
disorder that is allowed. What comes behind it is late. For windows by count, an update gets
its place in the key's sequence when the low-watermark reaches it.

The axis is what windows are cut from: the event time in ticks of its column, the position in
the stream, or the position in the key's own sequence.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from upstream.queue.arrivals import BLOCK_ROWS, block_at, born, read_block
from upstream.queue.departures import UNIT_BYTES_FROZEN, freeze_text, unit_at
from upstream.queue.key_scheduler import enqueue, insert_waiting, scheduler_at, unlink
from upstream.queue.key_table import (
    KEY_BYTES,
    KNOWN,
    NO_ROOM,
    find,
    hash_bytes,
    insert,
    key_at,
    key_bytes_address,
    migrate,
    remove,
    table_at,
)
from upstream.queue.memory_manager import UNIT_BYTES, allocate, free, pool_at
from upstream.queue.rates import observe
from upstream.queue.raw import (
    clear,
    copy,
    i64,
    inlined,
    kernel,
    load_f64,
    load_i64,
    load_u8,
    load_u32,
    record_at,
    store_f64,
    store_i64,
    store_u8,
    store_u32,
)
from upstream.queue.rows import (
    COLUMN_BYTES,
    INLINE_TEXT_BYTES,
    LARGE_TEXT,
    TEXT,
    column_at,
    free_row,
    load_order,
    put_rows,
    reserve_texts,
)
from upstream.queue.state import queue_at, totals_at
from upstream.staleness.rules import answer, fall, key_area, rise
from upstream.windows import rules

__all__ = [
    "AXIS_KEY",
    "AXIS_STREAM",
    "AXIS_TIME",
    "LANDMARK",
    "NODE",
    "NODE_BYTES",
    "NONE",
    "SLIDE_BY_TUPLE",
    "SLIDING",
    "WINDOW",
    "WINDOWS",
    "WINDOW_BYTES",
]

SLIDING, LANDMARK, SLIDE_BY_TUPLE = 0, 1, 2
AXIS_TIME, AXIS_STREAM, AXIS_KEY = 0, 1, 2

NONE = -(2**62)  # no window, no time
HANDED_OUT = (("handed", "i8"), ("newer_closed", "f8"))

WINDOWS = np.dtype(
    [
        # What the configuration says
        ("kind", "i8"),
        ("axis", "i8"),
        ("size", "i8"),
        ("slide", "i8"),
        ("origin", "i8"),
        ("first_id", "i8"),  # windows below are never units
        ("eager", "i8"),
        ("by_key", "i8"),  # 1: each key has a low-watermark of its own
        ("has_time", "i8"),
        ("disorder", "i8"),  # how far behind the highest time an update may come, in ticks
        ("disorder_count", "i8"),  # or behind how many updates, -1: not bounded so
        ("in_line", "i8"),  # 1: every window that closes waits, in a line of all keys
        ("seed", "i8"),
        ("keep", "i8"),  # of 2**32 windows so many are kept
        # Where things are
        ("windows", "i8"),  # address of one WINDOW per slot
        ("heap", "i8"),  # address of (due, slot) pairs, the smallest due first
        ("heap_count", "i8"),
        ("highest", "i8"),  # address of the disorder_count + 1 highest times, smallest first
        ("highest_count", "i8"),
        ("line", "i8"),  # address of a ring of LINE_PLACES places
        ("line_first", "i8"),  # number of the first place that is taken
        ("line_end", "i8"),
        # How far the stream has come
        ("high", "i8"),
        ("lwm", "i8"),
        ("positions", "i8"),  # updates of the stream so far
        ("rows", "i8"),  # updates held
        ("closed", "i8"),  # windows that closed with something in them
    ]
)
windows_at = record_at(WINDOWS)

WINDOW = np.dtype(
    [
        ("head", "i8"),  # references of the list's ends
        ("tail", "i8"),
        ("rows", "i8"),  # updates in the list
        ("counted", "i8"),  # highest place of an update that closed windows were counted by
        ("cursor", "i8"),  # that update, or the one before it, 0: go on from the head
        ("settled", "i8"),  # updates whose place in the sequence is known
        ("unsettled", "i8"),  # the first whose place is not
        ("high", "i8"),
        ("highest", "i8"),  # reference to the highest times, where disorder is counted by key
        ("highest_count", "i8"),
        ("lwm", "i8"),
        ("next_close", "i8"),  # first window that is not closed
        ("pending", "i8"),  # slide-by-tuple: a window that ends at the low-watermark
        ("newest", "i8"),  # highest place on the axis
        ("ready", "i8"),  # lazy: the unit that waits; eager: the window that started last
        ("committed", "i8"),  # eager: the window that is being handed out
        ("handed", "i8"),  # last window of which something was handed out
        ("unsent", "i8"),  # eager: updates of it that were not
        ("sent_tail", "i8"),  # where to go on with them, 0: from its beginning
        ("gathered", "i8"),  # eager: updates of the window that started last
        ("gathers", "i8"),  # the first of them, 0: none
        ("returned", "i8"),  # eager: parts of windows that came back and wait
        ("in_line", "i8"),  # windows of the key in the line
        ("place", "i8"),  # number of the last place that one of them took
        ("due", "i8"),  # low-watermark at which something happens
        ("last_arrival", "f8"),
        ("remember_at", "i8"),
    ]
    # Windows handed out, and when a newer one than each closed, NaN: not yet
    + [(f"{name}_{i}", kind) for i in range(4) for name, kind in HANDED_OUT]
)
WINDOW_BYTES = WINDOW.itemsize
window_at = record_at(WINDOW)
REMEMBERED = 4
REMEMBERED_AT = WINDOW_BYTES - REMEMBERED * 16

NODE = np.dtype(
    [
        ("next", "u4"),
        ("prev", "u4"),
        ("axis", "i8"),
        ("order", "i8"),
        ("arrived", "f8"),
        ("sent_for", "i8"),  # eager: the window that it was last handed out for
    ]
)
NODE_BYTES = NODE.itemsize
node_at = record_at(NODE)

LINE_PLACES = 1 << 24
PLACE = np.dtype([("slot", "i8"), ("wid", "i8"), ("since", "f8"), ("newer_closed", "f8")])
PLACE_BYTES = PLACE.itemsize
place_at = record_at(PLACE)

_window_start = inlined(rules.window_start)
_window_end = inlined(rules.window_end)
_first_wid = inlined(rules.first_wid)
_last_wid = inlined(rules.last_wid)
_last_closed = inlined(rules.last_closed)
_landmark_end = inlined(rules.landmark_end)
_landmark_first_wid = inlined(rules.landmark_first_wid)
_landmark_last_closed = inlined(rules.landmark_last_closed)
_tuple_start = inlined(rules.tuple_start)
_tuple_end = inlined(rules.tuple_end)
_tuple_last_closed = inlined(rules.tuple_last_closed)


@inlined
def _node(pool: Any, reference: int) -> Any:
    return node_at(pool.base + reference * UNIT_BYTES)


@kernel
def start_of(w: Any, wid: int) -> int:
    """The first value of a window."""
    if w.kind == SLIDING:
        return _window_start(wid, w.origin, w.slide)
    if w.kind == LANDMARK:
        return NONE
    return _tuple_start(wid, w.size)


@kernel
def end_of(w: Any, wid: int) -> int:
    """The first value after a window."""
    if w.kind == SLIDING:
        return _window_end(wid, w.origin, w.size, w.slide)
    if w.kind == LANDMARK:
        return _landmark_end(wid, w.origin, w.slide)
    return _tuple_end(wid)


@kernel
def first_of(w: Any, value: int) -> int:
    """The first window that a value belongs to."""
    if w.kind == SLIDING:
        return _first_wid(value, w.origin, w.size, w.slide)
    return _landmark_first_wid(value, w.origin, w.slide)


@kernel
def last_of(w: Any, value: int, most: int) -> int:
    """The last window that a value belongs to, up to `most`."""
    if w.kind == SLIDING:
        return min(_last_wid(value, w.origin, w.slide), most)
    return most


@kernel
def closed_at(w: Any, bound: int) -> int:
    """The last window that is closed when nothing below `bound` can come."""
    if bound == NONE:
        return NONE
    if w.kind == SLIDING:
        return _last_closed(bound, w.origin, w.size, w.slide)
    return _landmark_last_closed(bound, w.origin, w.slide)


# ---- the list of a key


@kernel
def _link(pool: Any, window: Any, reference: int) -> None:
    """Put an update behind those that are not after it."""
    node = _node(pool, reference)
    after = i64(0)
    before = window.tail
    while before != 0 and _node(pool, before).order > node.order:
        after = before
        before = i64(_node(pool, before).prev)
    node.prev = before
    node.next = after
    if before == 0:
        window.head = reference
    else:
        _node(pool, before).next = reference
    if after == 0:
        window.tail = reference
    else:
        _node(pool, after).prev = reference
    window.rows += 1


@kernel
def _unlink(queue: Any, pool: Any, w: Any, window: Any, reference: int) -> int:
    """Free an update; answers the one behind it."""
    node = _node(pool, reference)
    before, after = i64(node.prev), i64(node.next)
    if before == 0:
        window.head = after
    else:
        _node(pool, before).next = after
    if after == 0:
        window.tail = before
    else:
        _node(pool, after).prev = before
    if window.cursor == reference:
        window.cursor = before
    if window.unsettled == reference:
        window.unsettled = after
    if window.sent_tail == reference:
        window.sent_tail = 0
    if window.gathers == reference:
        window.gathers = after
    if queue.has_text != 0:
        free_row(
            queue.columns,
            queue.column_count,
            pool,
            pool.base + reference * UNIT_BYTES + NODE_BYTES,
        )
    free(pool, reference)
    window.rows -= 1
    w.rows -= 1
    return after


@kernel
def _trim(queue: Any, pool: Any, w: Any, window: Any, waits: bool) -> None:
    """Free what no window needs any more, from the front."""
    if w.kind == LANDMARK:
        return
    if w.kind == SLIDING:
        needed = start_of(w, window.next_close)
    else:
        needed = NONE if window.lwm == NONE else start_of(w, window.lwm)
        if window.pending != NONE:
            needed = min(needed, start_of(w, window.pending))
    if (waits or window.in_line > 0) and window.ready != NONE:
        needed = min(needed, start_of(w, window.ready))
    while window.head != 0 and window.head != window.unsettled:
        if _node(pool, window.head).axis >= needed:
            break
        _unlink(queue, pool, w, window, window.head)


# ---- progress


@inlined
def _remembered(w: Any, slot: int, place: int) -> int:
    """Where it is written that a window was handed out, and when a newer one closed."""
    return w.windows + slot * WINDOW_BYTES + REMEMBERED_AT + place * 16


@kernel
def _remember(w: Any, slot: int, wid: int) -> None:
    """A window is handed out: from now on it matters when a newer one closes."""
    window = window_at(w.windows + slot * WINDOW_BYTES)
    entry = _remembered(w, slot, window.remember_at)
    store_i64(entry, wid)
    store_f64(entry + 8, np.nan)
    window.remember_at = (window.remember_at + 1) % REMEMBERED


@kernel
def _newer_closed(w: Any, slot: int, wid: int) -> float:
    """When the first window after the one handed out has closed, NaN: not yet."""
    earliest = np.nan
    for place in range(REMEMBERED):
        entry = _remembered(w, slot, place)
        if load_i64(entry) >= wid:
            at = load_f64(entry + 8)
            if np.isnan(earliest) or at < earliest:
                earliest = at
        if load_i64(entry) == wid:
            return load_f64(entry + 8)
    return earliest


@kernel
def _closed(
    queue: Any, w: Any, window: Any, record: Any, slot: int, count: int, newest: int, at: float
) -> None:
    """Windows of a key have closed, `newest` the last of `count` that are not empty."""
    totals = totals_at(queue.totals)
    alpha = scheduler_at(queue.scheduler).alpha
    w.closed += count
    if np.isnan(record.stale_since):
        record.stale_since = at
        rise(totals, at, at)
    for place in range(REMEMBERED):
        entry = _remembered(w, slot, place)
        if load_i64(entry) < newest and np.isnan(load_f64(entry + 8)):
            store_f64(entry + 8, at)
    for _ in range(count):
        observe(record, at, alpha)
    if w.eager != 0 or w.in_line != 0:
        return
    queue.accepted += count
    record.updates += count
    window.ready = newest
    if np.isnan(record.since):
        queue.conflated += count - 1
        _begin_to_wait(queue, record, slot, at)
    else:
        queue.conflated += count


@kernel
def _begin_to_wait(queue: Any, record: Any, slot: int, at: float) -> None:
    record.since = at
    rise(totals_at(queue.queue_totals), at, at)
    enqueue(scheduler_at(queue.scheduler), slot, at)


@kernel
def _line_up(queue: Any, w: Any, window: Any, slot: int, first: int, last: int, at: float) -> None:
    """Windows have closed: where every window waits, put them in line, or drop them."""
    if w.in_line == 0:
        return
    record_address = table_at(queue.table).keys + slot * KEY_BYTES
    length = i64(key_at(record_address).key_length)
    key = key_bytes_address(pool_at(queue.pool), record_address)
    # Not the hash of the table, which another process seeds otherwise.
    hashed = hash_bytes(key, length, np.uint64(w.seed))
    for wid in range(first, last + 1):
        queue.accepted += 1
        if window.in_line > 0:
            before = place_at(w.line + (window.place % LINE_PLACES) * PLACE_BYTES)
            if np.isnan(before.newer_closed):
                before.newer_closed = at
        if hash_number(hashed * 1_000_003 + wid) >= w.keep:
            queue.shed += 1
            continue
        window.place = w.line_end
        place = place_at(w.line + (w.line_end % LINE_PLACES) * PLACE_BYTES)
        place.slot = slot
        place.wid = wid
        place.since = at
        place.newer_closed = np.nan
        w.line_end += 1
        if window.in_line == 0:
            window.ready = wid  # the first that is needed
        window.in_line += 1
        rise(totals_at(queue.queue_totals), at, at)


@kernel
def hash_number(number: int) -> int:
    """32 bits that look random."""
    h = np.uint64(number) * np.uint64(0x9E3779B97F4A7C15)
    h = (h ^ (h >> np.uint64(29))) * np.uint64(0xFF51AFD7ED558CCD)
    h = (h ^ (h >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    return i64(h >> np.uint64(32))


@kernel
def _close_sliding(
    queue: Any, pool: Any, w: Any, window: Any, record: Any, slot: int, bound: int, at: float
) -> None:
    """Close sliding or landmark windows up to a bound on the axis."""
    until = closed_at(w, bound)
    if until < window.next_close:
        return
    end = end_of(w, until)
    covered = window.next_close - 1
    count = i64(0)
    if window.counted != NONE:  # windows that hold updates from before
        last = last_of(w, window.counted, until)
        if last > covered:
            count += last - covered
            _line_up(queue, w, window, slot, covered + 1, last, at)
            covered = last
    reference = window.head if window.cursor == 0 else i64(_node(pool, window.cursor).next)
    while reference != 0 and reference != window.unsettled:
        node = _node(pool, reference)
        if node.axis >= end:
            break
        first = max(first_of(w, node.axis), covered + 1)
        last = last_of(w, node.axis, until)
        if last >= first:
            count += last - first + 1
            _line_up(queue, w, window, slot, first, last, at)
            covered = last
        window.cursor = reference
        window.counted = node.axis
        reference = i64(node.next)
    window.next_close = until + 1
    if count > 0:
        _closed(queue, w, window, record, slot, count, covered, at)


@kernel
def _settle(
    queue: Any, pool: Any, w: Any, window: Any, record: Any, slot: int, lwm: int, at: float
) -> None:
    """Give updates that the low-watermark has reached their place in the key's sequence."""
    while window.unsettled != 0:
        reference = window.unsettled
        node = _node(pool, reference)
        if w.has_time != 0 and node.order > lwm:
            break
        window.unsettled = i64(node.next)
        if w.kind == SLIDE_BY_TUPLE:
            node.axis = node.order
            if (window.settled + 1) % w.slide == 0:
                if window.pending != NONE and window.pending < node.order:
                    _line_up(queue, w, window, slot, window.pending, window.pending, at)
                    _closed(queue, w, window, record, slot, 1, window.pending, at)
                window.pending = node.order
        else:
            node.axis = window.settled
        window.newest = node.axis
        window.settled += 1
        if w.eager != 0:
            _gather(queue, pool, w, window, record, node.axis)
            if window.gathers == 0 and node.axis >= start_of(w, window.ready):
                window.gathers = reference


@kernel
def advance_key(queue: Any, w: Any, slot: int, lwm: int, at: float) -> None:
    """A key learns that nothing below `lwm` can come."""
    pool = pool_at(queue.pool)
    window = window_at(w.windows + slot * WINDOW_BYTES)
    record = key_at(table_at(queue.table).keys + slot * KEY_BYTES)
    window.lwm = max(window.lwm, lwm)
    bound = lwm
    if w.axis == AXIS_KEY or w.kind == SLIDE_BY_TUPLE:
        _settle(queue, pool, w, window, record, slot, lwm, at)
        bound = window.settled
    if w.kind == SLIDE_BY_TUPLE:
        if window.pending != NONE and window.pending <= _tuple_last_closed(lwm):
            _line_up(queue, w, window, slot, window.pending, window.pending, at)
            _closed(queue, w, window, record, slot, 1, window.pending, at)
            window.pending = NONE
    else:
        _close_sliding(queue, pool, w, window, record, slot, bound, at)
    if w.eager != 0:
        _wait_if_available(queue, w, window, record, slot, at)
    else:
        _trim(queue, pool, w, window, not np.isnan(record.since))
    if (w.by_key == 0 and w.axis != AXIS_KEY) or (w.by_key == 0 and w.has_time != 0):
        _set_due(pool, w, window, slot)


# ---- which keys progress of the stream concerns


@kernel
def _due_of(pool: Any, w: Any, window: Any) -> int:
    """The low-watermark at which something happens to a key; NONE: nothing is left to happen."""
    if w.axis == AXIS_KEY:
        return NONE if window.unsettled == 0 else _node(pool, window.unsettled).order
    if w.kind == SLIDE_BY_TUPLE:
        if window.pending != NONE:
            return window.pending + 1
        return NONE if window.unsettled == 0 else _node(pool, window.unsettled).order
    wid = NONE
    if window.counted != NONE and (
        last_of(w, window.counted, window.next_close) >= window.next_close
    ):
        wid = window.next_close
    reference = window.head if window.cursor == 0 else i64(_node(pool, window.cursor).next)
    if wid == NONE and reference != 0:
        wid = max(window.next_close, first_of(w, _node(pool, reference).axis))
    return NONE if wid == NONE else end_of(w, wid)


@kernel
def _set_due(pool: Any, w: Any, window: Any, slot: int) -> None:
    due = _due_of(pool, w, window)
    if due == window.due:
        return
    window.due = due
    if due == NONE:
        return
    at = w.heap_count
    w.heap_count += 1
    while at > 0:
        parent = (at - 1) // 2
        if load_i64(w.heap + parent * 16) <= due:
            break
        store_i64(w.heap + at * 16, load_i64(w.heap + parent * 16))
        store_i64(w.heap + at * 16 + 8, load_i64(w.heap + parent * 16 + 8))
        at = parent
    store_i64(w.heap + at * 16, due)
    store_i64(w.heap + at * 16 + 8, slot)


@kernel
def _pop(w: Any) -> None:
    w.heap_count -= 1
    count = w.heap_count
    due, slot = load_i64(w.heap + count * 16), load_i64(w.heap + count * 16 + 8)
    at = i64(0)
    while True:
        child = 2 * at + 1
        if child >= count:
            break
        if child + 1 < count and load_i64(w.heap + (child + 1) * 16) < load_i64(
            w.heap + child * 16
        ):
            child += 1
        if due <= load_i64(w.heap + child * 16):
            break
        store_i64(w.heap + at * 16, load_i64(w.heap + child * 16))
        store_i64(w.heap + at * 16 + 8, load_i64(w.heap + child * 16 + 8))
        at = child
    store_i64(w.heap + at * 16, due)
    store_i64(w.heap + at * 16 + 8, slot)


@kernel
def _advance_stream(queue: Any, w: Any, lwm: int, at: float) -> None:
    """The stream learns that nothing below `lwm` can come."""
    if lwm <= w.lwm:
        return
    w.lwm = lwm
    while w.heap_count > 0 and load_i64(w.heap) <= lwm:
        due, slot = load_i64(w.heap), load_i64(w.heap + 8)
        _pop(w)
        window = window_at(w.windows + slot * WINDOW_BYTES)
        if window.due == due:  # otherwise it was replaced by a later entry
            window.due = NONE
            advance_key(queue, w, slot, lwm, at)


@kernel
def _watermark(w: Any, window: Any, pool: Any, time: int) -> int:
    """The low-watermark after an update with this time."""
    if w.by_key != 0:
        window.high = max(window.high, time)
        if w.disorder_count < 0:
            return window.high - w.disorder
        address = pool.base + window.highest * UNIT_BYTES
        window.highest_count = _keep_highest(address, window.highest_count, w.disorder_count, time)
        return load_i64(address) if window.highest_count > w.disorder_count else NONE
    w.high = max(w.high, time)
    if w.disorder_count < 0:
        return w.high - w.disorder
    w.highest_count = _keep_highest(w.highest, w.highest_count, w.disorder_count, time)
    return load_i64(w.highest) if w.highest_count > w.disorder_count else NONE


@kernel
def _keep_highest(highest: int, count: int, disorder: int, time: int) -> int:
    """Keep the `disorder` + 1 highest times, sorted; answers how many they are.

    The lowest of them bounds what may still come: so many higher ones have come already.
    """
    if count > disorder:
        if time <= load_i64(highest):
            return count
        count -= 1
        for i in range(count):  # the lowest goes
            store_i64(highest + i * 8, load_i64(highest + i * 8 + 8))
    at = count
    while at > 0 and load_i64(highest + (at - 1) * 8) > time:
        store_i64(highest + at * 8, load_i64(highest + (at - 1) * 8))
        at -= 1
    store_i64(highest + at * 8, time)
    return count + 1


# ---- eager


@kernel
def _gather(queue: Any, pool: Any, w: Any, window: Any, record: Any, value: int) -> None:
    """An update has its place on the axis: does a window start, and who needs the update?"""
    started = _last_wid(value, w.origin, w.slide)
    first = _first_wid(value, w.origin, w.size, w.slide)
    if started > window.ready and started >= first and started >= w.first_id:
        count = started - max(max(window.ready, first - 1), w.first_id - 1)
        queue.accepted += count
        queue.conflated += count - 1
        if window.gathered > 0 and window.ready > window.handed:
            queue.conflated += 1
        record.updates += count
        window.ready = started
        window.gathered = 0
        _empty(queue, pool, w, window)
    if window.ready != NONE and start_of(w, window.ready) <= value < end_of(w, window.ready):
        window.gathered += 1
    if window.committed != NONE and (
        start_of(w, window.committed) <= value < end_of(w, window.committed)
    ):
        window.unsent += 1


@kernel
def _empty(queue: Any, pool: Any, w: Any, window: Any) -> None:
    """Free what came before the window that started last, except what is still to be sent."""
    start = start_of(w, window.ready)
    low, high = i64(0), i64(0)
    if window.committed != NONE:
        low, high = start_of(w, window.committed), end_of(w, window.committed)
    reference = window.gathers if window.gathers != 0 else window.head
    while reference != 0 and reference != window.unsettled:
        node = _node(pool, reference)
        if node.axis >= start:
            break
        if low <= node.axis < high and node.sent_for != window.committed:
            reference = i64(node.next)
        else:
            reference = _unlink(queue, pool, w, window, reference)
    window.gathers = 0 if reference == window.unsettled else reference


@kernel
def _complete(w: Any, window: Any) -> bool:
    """Whether no further update of the window that is committed to can come."""
    return window.committed < window.next_close


@kernel
def available(w: Any, window: Any) -> int:
    """How many updates can be handed out now.

    Of a window by time the last update is held back until the window is closed, so that it
    can bear the mark of the last.
    """
    held_back = 0 if w.axis == AXIS_KEY else 1
    if window.committed != NONE:
        return window.unsent if _complete(w, window) else max(window.unsent - held_back, 0)
    if window.ready == NONE or window.ready <= window.handed:
        return i64(0)
    if window.ready < window.next_close:
        return window.gathered
    return max(window.gathered - held_back, 0)


@kernel
def _wait_if_available(queue: Any, w: Any, window: Any, record: Any, slot: int, at: float) -> None:
    can_be_taken = available(w, window) > 0 or window.returned > 0
    if np.isnan(record.since):
        if can_be_taken:
            _begin_to_wait(queue, record, slot, at)
    elif not can_be_taken:  # a window has started and put an end to the one that waited
        unlink(scheduler_at(queue.scheduler), slot)
        fall(totals_at(queue.queue_totals), record.since, np.nan, at)
        record.since = np.nan


# ---- arrival


@kernel
def new_window(pool: Any, w: Any, slot: int) -> bool:
    """A key becomes known; false where there is no room for what is to be known of it."""
    highest = i64(0)
    if w.by_key != 0 and w.disorder_count >= 0:
        highest = allocate(pool, (w.disorder_count + 1) * 8)
        if highest == 0:
            return False
    address = w.windows + slot * WINDOW_BYTES
    clear(address, WINDOW_BYTES)
    window = window_at(address)
    window.counted = NONE
    window.high = NONE
    window.highest = highest
    window.lwm = w.lwm
    window.pending = NONE
    window.newest = NONE
    window.ready = NONE
    window.committed = NONE
    window.handed = NONE
    window.due = NONE
    window.next_close = w.first_id
    window.last_arrival = np.nan
    for place in range(REMEMBERED):
        store_i64(_remembered(w, slot, place), NONE)
        store_f64(_remembered(w, slot, place) + 8, np.nan)
    return True


@kernel
def is_late(w: Any, slot: int, time: int) -> bool:
    """Whether an update comes behind the low-watermark."""
    if w.has_time == 0 or w.axis == AXIS_STREAM:
        return False
    if w.by_key != 0:
        return time < window_at(w.windows + slot * WINDOW_BYTES).lwm
    return time < w.lwm


@kernel
def is_needed(w: Any, slot: int, time: int) -> bool:
    """Whether an update belongs to a window that can still be handed out."""
    if w.axis == AXIS_KEY or w.kind == SLIDE_BY_TUPLE:
        return True
    window = window_at(w.windows + slot * WINDOW_BYTES)
    value = w.positions if w.axis == AXIS_STREAM else time
    most = i64(2**62)
    last = last_of(w, value, most)
    if last < max(window.next_close, first_of(w, value)):
        return False
    if w.eager == 0:
        return True
    if window.committed != NONE and (
        start_of(w, window.committed) <= value < end_of(w, window.committed)
    ):
        return True
    return window.ready == NONE or value >= start_of(w, window.ready)


@kernel
def arrive(queue: Any, w: Any, slot: int, reference: int, time: int, at: float) -> None:
    """Take an update that is not late into its key's list; 0 for one that no window needs."""
    pool = pool_at(queue.pool)
    window = window_at(w.windows + slot * WINDOW_BYTES)
    record = key_at(table_at(queue.table).keys + slot * KEY_BYTES)
    window.last_arrival = at
    value = w.positions if w.axis == AXIS_STREAM else time
    if reference != 0:
        node = _node(pool, reference)
        node.order = value if w.axis == AXIS_STREAM or w.has_time != 0 else i64(0)
        node.axis = value
        node.arrived = at
        node.sent_for = NONE
        _link(pool, window, reference)
        w.rows += 1
        if w.axis == AXIS_KEY or w.kind == SLIDE_BY_TUPLE:
            if window.unsettled == 0 or i64(node.next) == window.unsettled:
                window.unsettled = reference
        else:
            window.newest = max(window.newest, value)
            if w.eager != 0:
                _arrive_eager(queue, pool, w, window, record, reference)
    w.positions += 1
    if w.axis == AXIS_STREAM:
        lwm = value + 1
    elif w.has_time != 0:
        lwm = _watermark(w, window, pool, time)
    else:
        lwm = i64(0)
    if w.by_key != 0 or (w.axis == AXIS_KEY and w.has_time == 0):
        advance_key(queue, w, slot, max(lwm, window.lwm), at)
    else:
        _advance_stream(queue, w, lwm, at)
        advance_key(queue, w, slot, w.lwm, at)


@kernel
def _arrive_eager(queue: Any, pool: Any, w: Any, window: Any, record: Any, reference: int) -> None:
    node = _node(pool, reference)
    value = node.axis
    _gather(queue, pool, w, window, record, value)
    if value >= start_of(w, window.ready) and window.gathers in (0, i64(node.next)):
        window.gathers = reference
    if window.sent_tail != 0 and value < _node(pool, window.sent_tail).axis:
        window.sent_tail = 0


@kernel
def pass_time(queue_address: int, windows_address: int, lwm: int, at: float) -> None:
    """Punctuation, or a silent source: nothing below `lwm` can come, in the whole stream."""
    queue = queue_at(queue_address)
    w = windows_at(windows_address)
    if w.by_key == 0:
        _advance_stream(queue, w, lwm, at)
        return
    table = table_at(queue.table)
    for slot in range(1, table.top):
        if key_at(table.keys + slot * KEY_BYTES).flags & KNOWN != 0:
            window = window_at(w.windows + slot * WINDOW_BYTES)
            if lwm > window.lwm:
                advance_key(queue, w, slot, lwm, at)
    w.lwm = max(w.lwm, lwm)


# ---- rows of a batch

# What became of a row
TAKEN, LATE, PUNCTUATION = 1, 2, 3


@kernel
def name_keys(queue_address: int, windows_address: int, start: int, stop: int, now: float) -> int:
    """Find or make the slot of each row's key; answers the first row that found no place."""
    queue = queue_at(queue_address)
    w = windows_at(windows_address)
    pool = pool_at(queue.pool)
    table = table_at(queue.table)
    block = block_at(queue.block)
    queue.born_count = 0
    queue.stopped = 0
    migrate(table, 64 + 8 * (stop - start))
    row = start
    while row < stop:
        count = min(BLOCK_ROWS, stop - row)
        read_block(queue, table, block, row, count)
        for i in range(count):
            if load_u8(queue.row_begins + row + i) == PUNCTUATION:
                continue
            hashed, key = load_i64(block.hashes + i * 8), load_i64(block.keys + i * 8)
            length = load_i64(block.lengths + i * 8)
            slot = find(table, pool, hashed, key, length)
            if slot == 0:
                slot = insert(table, pool, hashed, key, length)
                if slot < 0:
                    queue.stopped = slot
                    return row + i
                if not new_window(pool, w, slot):
                    remove(table, pool, slot)
                    queue.stopped = NO_ROOM
                    return row + i
                born(queue, key_at(table.keys + slot * KEY_BYTES), slot, now)
                pool.other_bytes += WINDOW_BYTES
            store_u32(queue.row_slots + (row + i) * 4, np.uint32(slot))
        row += count
    return row


@kernel
def admit_windows(
    queue_address: int, windows_address: int, start: int, stop: int, now: float, arrived: int
) -> int:
    """Take rows whose keys have slots; answers the first row for which there is no room."""
    queue = queue_at(queue_address)
    w = windows_at(windows_address)
    pool = pool_at(queue.pool)
    block = block_at(queue.block)
    for row in range(start, stop):
        at = now if arrived == 0 else load_f64(arrived + row * 8)
        time = i64(0)
        if queue.time_column >= 0:
            time = load_order(column_at(queue.columns + queue.time_column * COLUMN_BYTES), row)
        if load_u8(queue.row_begins + row) == PUNCTUATION:
            pass_time(queue_address, windows_address, time, at)
            continue
        slot = i64(load_u32(queue.row_slots + row * 4))
        if is_late(w, slot, time):
            queue.accepted += 1
            queue.superseded += 1
            store_u8(queue.row_begins + row, np.uint8(LATE))
            continue
        reference = i64(0)
        if is_needed(w, slot, time):
            reference = allocate(pool, NODE_BYTES + queue.row_bytes)
            if reference == 0:
                queue.stopped = NO_ROOM
                return row
            if queue.has_text != 0 and not reserve_texts(
                queue.columns, queue.column_count, pool, row, True, block.pending
            ):
                free(pool, reference)
                queue.stopped = NO_ROOM
                return row
            cells = pool.base + reference * UNIT_BYTES + NODE_BYTES
            clear(cells, queue.row_bytes)
            store_i64(block.cells, cells)
            store_u8(block.begins, np.uint8(1))
            put_rows(
                queue.columns,
                queue.column_count,
                pool,
                row,
                1,
                block.cells,
                block.begins,
                block.pending,
            )
        arrive(queue, w, slot, reference, time, at)
        store_u8(queue.row_begins + row, np.uint8(TAKEN))
    return stop


# ---- departure

# Flags of a unit of a batch: it has the first row of its window, and the last
HAS_FIRST, HAS_LAST = 1, 2


@kernel
def _text_bytes(queue: Any, cells: int) -> int:
    total = i64(0)
    for j in range(queue.column_count):
        column = column_at(queue.columns + j * COLUMN_BYTES)
        if column.kind == TEXT or column.kind == LARGE_TEXT:
            length = i64(load_u32(cells + i64(column.place)))
            if length > INLINE_TEXT_BYTES:
                total += length
    return total


@kernel
def _first_to_take(pool: Any, w: Any, window: Any, wid: int) -> int:
    """The first update of a window that may be handed out."""
    reference = window.head
    if window.sent_tail != 0:
        reference = i64(_node(pool, window.sent_tail).next)
    start = start_of(w, wid)
    while reference != 0 and _node(pool, reference).axis < start:
        reference = i64(_node(pool, reference).next)
    return reference


@kernel
def measure_windows(
    queue_address: int, windows_address: int, slots: int, count: int, rows: int
) -> int:
    """Bytes of heap that the units of keys need; `rows` receives how many rows each has."""
    queue = queue_at(queue_address)
    w = windows_at(windows_address)
    pool = pool_at(queue.pool)
    table = table_at(queue.table)
    total = i64(0)
    for i in range(count):
        slot = i64(load_u32(slots + i * 4))
        window = window_at(w.windows + slot * WINDOW_BYTES)
        total += i64(key_at(table.keys + slot * KEY_BYTES).key_length)
        wid = window.ready
        most = i64(2**62)
        if w.eager != 0:
            most = available(w, window)
            wid = window.ready if window.committed == NONE else window.committed
        reference = _first_to_take(pool, w, window, wid)
        end = end_of(w, wid)
        found = i64(0)
        while reference != 0 and reference != window.unsettled and found < most:
            node = _node(pool, reference)
            if node.axis >= end:
                break
            if w.eager == 0 or node.sent_for != wid:
                found += 1
                if queue.has_text != 0:
                    total += _text_bytes(queue, pool.base + reference * UNIT_BYTES + NODE_BYTES)
            reference = i64(node.next)
        store_i64(rows + i * 8, found)
    return total


@kernel
def freeze_windows(
    queue_address: int,
    windows_address: int,
    slots: int,
    count: int,
    now: float,
    units: int,
    rows: int,
    heap: int,
) -> None:
    """Copy the units of keys that were taken out of the line."""
    queue = queue_at(queue_address)
    w = windows_at(windows_address)
    pool = pool_at(queue.pool)
    table = table_at(queue.table)
    used = i64(0)
    row = rows
    for i in range(count):
        slot = i64(load_u32(slots + i * 4))
        window = window_at(w.windows + slot * WINDOW_BYTES)
        record_address = table.keys + slot * KEY_BYTES
        record = key_at(record_address)
        unit = unit_at(units + i * UNIT_BYTES_FROZEN)
        unit.since = record.since
        unit.arrived = np.nan
        unit.ticket = record.ticket
        unit.key_start = used
        unit.key_length = record.key_length
        unit.slot = slot
        unit.updates = record.updates
        unit.weight = record.weight
        unit.cost_class = record.cost_class
        length = i64(record.key_length)
        copy(heap + used, key_bytes_address(pool, record_address), length)
        used += length
        unit.flags = _commit(queue, w, window, record, slot)
        wid = window.handed
        unit.time = wid
        most = available(w, window) if w.eager != 0 else i64(2**62)
        reference = _first_to_take(pool, w, window, wid)
        end = end_of(w, wid)
        taken = i64(0)
        while reference != 0 and reference != window.unsettled and taken < most:
            node = _node(pool, reference)
            if node.axis >= end:
                break
            following = i64(node.next)
            if w.eager == 0 or node.sent_for != wid:
                copy(row, pool.base + reference * UNIT_BYTES + NODE_BYTES, queue.row_bytes)
                if queue.has_text != 0:
                    used = freeze_text(queue, pool, row, heap, used)
                row += queue.row_bytes
                taken += 1
                if not unit.arrived >= node.arrived:
                    unit.arrived = node.arrived
                if w.eager != 0:
                    _sent(queue, pool, w, window, reference)
            reference = following
        unit.spare2 = taken
        if w.eager == 0 or (wid < window.next_close and window.unsent == 0):
            unit.flags |= HAS_LAST
            window.committed = NONE
            window.sent_tail = 0
        fall(totals_at(queue.queue_totals), record.since, np.nan, now)
        record.since = np.nan
        record.in_flight += 1
        if w.eager == 0:
            window.ready = NONE
            _trim(queue, pool, w, window, False)
        else:
            _wait_if_available(queue, w, window, record, slot, now)


@kernel
def _commit(queue: Any, w: Any, window: Any, record: Any, slot: int) -> int:
    """Decide on the window to hand out; the flags of its unit."""
    if w.eager != 0 and window.committed != NONE:
        return 0
    window.handed = window.ready
    _remember(w, slot, window.ready)
    queue.handed_out += 1
    record.updates = 0
    if w.eager != 0:
        window.committed = window.ready
        window.unsent = window.gathered
        window.sent_tail = 0
    return HAS_FIRST


@kernel
def _sent(queue: Any, pool: Any, w: Any, window: Any, reference: int) -> None:
    """An update was handed out for the window that is committed to."""
    node = _node(pool, reference)
    node.sent_for = window.committed
    window.unsent -= 1
    if window.ready > window.committed and node.axis >= start_of(w, window.ready):
        window.sent_tail = reference
    else:
        _unlink(queue, pool, w, window, reference)


@kernel
def answer_windows(
    queue_address: int, windows_address: int, units: int, count: int, at: float
) -> None:
    """The results of a batch are out: of each window whose last row it has."""
    queue = queue_at(queue_address)
    w = windows_at(windows_address)
    table = table_at(queue.table)
    totals = totals_at(queue.totals)
    for i in range(count):
        unit = unit_at(units + i * UNIT_BYTES_FROZEN)
        slot = i64(unit.slot)
        record = key_at(table.keys + slot * KEY_BYTES)
        record.in_flight -= 1
        if unit.flags & HAS_LAST == 0:
            continue
        answer(totals, unit.arrived, at)
        if unit.ticket <= record.answered:
            continue
        record.answered = unit.ticket
        newer = _newer_closed(w, slot, unit.time)
        fall(totals, record.stale_since, newer, at)
        record.area = key_area(record.area, record.stale_since, newer, totals["at"])
        record.stale_since = newer


@kernel
def return_window(
    queue_address: int, windows_address: int, unit_address: int, newest: int, now: float
) -> bool:
    """A unit comes back; whether it waits again, and not a newer one in its place."""
    queue = queue_at(queue_address)
    w = windows_at(windows_address)
    scheduler = scheduler_at(queue.scheduler)
    unit = unit_at(unit_address)
    slot = i64(unit.slot)
    window = window_at(w.windows + slot * WINDOW_BYTES)
    record = key_at(table_at(queue.table).keys + slot * KEY_BYTES)
    record.in_flight -= 1
    if unit.flags & HAS_FIRST != 0:
        queue.handed_out -= 1
    if unit.ticket < max(record.answered, newest) or window.handed > unit.time:
        if unit.flags & HAS_FIRST != 0:
            queue.conflated += 1
        return False
    waits = not np.isnan(record.since)
    if waits:
        unlink(scheduler, slot)
    fall(totals_at(queue.queue_totals), record.since, unit.since, now)
    record.since = unit.since
    record.ticket = unit.ticket
    record.updates += unit.updates
    insert_waiting(scheduler, slot, now)
    if waits and w.eager == 0:
        queue.conflated += 1
        return False
    if w.eager == 0:
        window.ready = unit.time
    else:
        window.returned += 1
    return True


@kernel
def retake_window(queue_address: int, windows_address: int, unit_address: int, now: float) -> None:
    """A unit that had come back is handed out again, as it was."""
    queue = queue_at(queue_address)
    w = windows_at(windows_address)
    unit = unit_at(unit_address)
    slot = i64(unit.slot)
    window = window_at(w.windows + slot * WINDOW_BYTES)
    record = key_at(table_at(queue.table).keys + slot * KEY_BYTES)
    unit.since = record.since
    unit.ticket = record.ticket
    unit.updates = record.updates
    if unit.flags & HAS_FIRST != 0:
        queue.handed_out += 1
        record.updates = 0
    fall(totals_at(queue.queue_totals), record.since, np.nan, now)
    record.since = np.nan
    record.in_flight += 1
    if w.eager == 0:
        window.ready = NONE
        _trim(queue, pool_at(queue.pool), w, window, False)
    else:
        window.returned -= 1
        _wait_if_available(queue, w, window, record, slot, now)


@kernel
def drop_windows(
    queue_address: int, windows_address: int, slots: int, count: int, now: float
) -> None:
    """Lose the waiting windows of keys; of a window that is committed to nothing is lost."""
    queue = queue_at(queue_address)
    w = windows_at(windows_address)
    pool = pool_at(queue.pool)
    scheduler = scheduler_at(queue.scheduler)
    for i in range(count):
        slot = i64(load_u32(slots + i * 4))
        window = window_at(w.windows + slot * WINDOW_BYTES)
        record = key_at(table_at(queue.table).keys + slot * KEY_BYTES)
        unlink(scheduler, slot)
        fall(totals_at(queue.queue_totals), record.since, np.nan, now)
        record.since = np.nan
        record.updates = 0
        queue.shed += 1
        if w.eager != 0:
            window.handed = window.ready
            window.gathered = 0
            while window.gathers != 0 and window.gathers != window.unsettled:
                _unlink(queue, pool, w, window, window.gathers)
        else:
            window.ready = NONE
            _trim(queue, pool, w, window, False)


@kernel
def pass_silence(
    queue_address: int,
    windows_address: int,
    now: float,
    timeout: float,
    ticks_per_second: float,
) -> None:
    """Keys that have been silent for long: time passes for them all the same."""
    queue = queue_at(queue_address)
    w = windows_at(windows_address)
    table = table_at(queue.table)
    for slot in range(1, table.top):
        if key_at(table.keys + slot * KEY_BYTES).flags & KNOWN == 0:
            continue
        window = window_at(w.windows + slot * WINDOW_BYTES)
        silence = now - window.last_arrival
        if silence >= timeout:
            lwm = window.high + i64(silence * ticks_per_second) - w.disorder
            if lwm > window.lwm:
                advance_key(queue, w, slot, lwm, now)


# ---- the line of a baseline


@kernel
def measure_line(queue_address: int, windows_address: int, count: int, rows: int) -> int:
    """Bytes of heap that the first windows in line need; `rows` receives their rows."""
    queue = queue_at(queue_address)
    w = windows_at(windows_address)
    pool = pool_at(queue.pool)
    table = table_at(queue.table)
    total = i64(0)
    for i in range(count):
        place = place_at(w.line + ((w.line_first + i) % LINE_PLACES) * PLACE_BYTES)
        window = window_at(w.windows + place.slot * WINDOW_BYTES)
        total += i64(key_at(table.keys + place.slot * KEY_BYTES).key_length)
        reference = _first_to_take(pool, w, window, place.wid)
        end = end_of(w, place.wid)
        found = i64(0)
        while reference != 0 and reference != window.unsettled:
            node = _node(pool, reference)
            if node.axis >= end:
                break
            found += 1
            if queue.has_text != 0:
                total += _text_bytes(queue, pool.base + reference * UNIT_BYTES + NODE_BYTES)
            reference = i64(node.next)
        store_i64(rows + i * 8, found)
    return total


@kernel
def freeze_line(
    queue_address: int,
    windows_address: int,
    count: int,
    now: float,
    units: int,
    rows: int,
    heap: int,
) -> None:
    """Copy the first windows in line, and let them go."""
    queue = queue_at(queue_address)
    w = windows_at(windows_address)
    pool = pool_at(queue.pool)
    table = table_at(queue.table)
    used = i64(0)
    row = rows
    for i in range(count):
        place = place_at(w.line + (w.line_first % LINE_PLACES) * PLACE_BYTES)
        slot, wid = place.slot, place.wid
        window = window_at(w.windows + slot * WINDOW_BYTES)
        record_address = table.keys + slot * KEY_BYTES
        record = key_at(record_address)
        unit = unit_at(units + i * UNIT_BYTES_FROZEN)
        unit.since = place.since
        unit.arrived = np.nan
        unit.ticket = w.line_first + 1
        unit.time = wid
        unit.key_start = used
        unit.key_length = record.key_length
        unit.slot = slot
        unit.updates = 1
        unit.weight = record.weight
        unit.cost_class = record.cost_class
        unit.flags = HAS_FIRST | HAS_LAST
        length = i64(record.key_length)
        copy(heap + used, key_bytes_address(pool, record_address), length)
        used += length
        reference = _first_to_take(pool, w, window, wid)
        end = end_of(w, wid)
        taken = i64(0)
        while reference != 0 and reference != window.unsettled:
            node = _node(pool, reference)
            if node.axis >= end:
                break
            copy(row, pool.base + reference * UNIT_BYTES + NODE_BYTES, queue.row_bytes)
            if queue.has_text != 0:
                used = freeze_text(queue, pool, row, heap, used)
            row += queue.row_bytes
            taken += 1
            if not unit.arrived >= node.arrived:
                unit.arrived = node.arrived
            reference = i64(node.next)
        unit.spare2 = taken
        _remember(w, slot, wid)
        last = (window.remember_at + REMEMBERED - 1) % REMEMBERED
        store_f64(_remembered(w, slot, last) + 8, place.newer_closed)
        w.line_first += 1
        window.in_line -= 1
        window.ready = wid + 1
        window.handed = wid
        record.in_flight += 1
        queue.handed_out += 1
        fall(totals_at(queue.queue_totals), place.since, np.nan, now)
        _trim(queue, pool, w, window, False)


@kernel
def settle_line(queue_address: int, units: int, count: int, change: int, now: float) -> None:
    """Windows come back to the front of the line (-1), or leave it once more (+1)."""
    queue = queue_at(queue_address)
    table = table_at(queue.table)
    for i in range(count):
        unit = unit_at(units + i * UNIT_BYTES_FROZEN)
        key_at(table.keys + i64(unit.slot) * KEY_BYTES).in_flight += change
        queue.handed_out += change
        if change < 0:
            fall(totals_at(queue.queue_totals), np.nan, unit.since, now)
        else:
            fall(totals_at(queue.queue_totals), unit.since, np.nan, now)
