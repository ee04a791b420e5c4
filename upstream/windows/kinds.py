"""Kinds of windows: what each window holds, and which windows a value belongs to.

Both are pure functions of whole numbers on one axis: the event time in ticks of its column, or the
position of an update in the stream, or in its own key's sequence (see `positions`). They do not
depend on the order of arrival. The arithmetic is in `rules`; here it takes whole columns, Arrow's
or numpy's or lists, or a single number, and answers in numpy arrays of the same shape.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from upstream.errors import ConfigError, InputError
from upstream.windows import rules
from upstream.windows.axis import ticks

__all__ = ["Assignment", "Extent", "Landmark", "SlideByTuple", "Sliding", "Wids", "tumbling"]

WIDEST = 2**63 - 1


class Extent(NamedTuple):
    """What a window holds: the values from `start` up to, not including, `end`."""

    start: NDArray[np.int64]
    end: NDArray[np.int64]


class Wids(NamedTuple):
    """The windows that a value belongs to, both ends included; none where `first` > `last`."""

    first: NDArray[np.int64]
    last: NDArray[np.int64]


class Assignment(NamedTuple):
    """One pair for each row and window that belong together, in order of rows, then windows."""

    rows: NDArray[np.int64]
    window_ids: NDArray[np.int64]


@dataclass(frozen=True)
class Sliding:
    """A window of `size` begins every `slide`, the one with id 0 at `origin`.

    Windows overlap where `slide` < `size`; where it is larger, values between two windows
    belong to none. Ids below 0 are the partial windows at the beginning of the stream. A size
    of 5, a slide of 2 and the origin 1::

        t     1   2   3   4   5   6   7   8   9  10  11
        w = 0 [---------------]
        w = 1         [---------------]
        w = 2                 [---------------]
        w = 3                         [---------------]

    >>> windows = Sliding(size=5, slide=2, origin=1)
    >>> windows.extent([0, 1, 2, 3])                     # ends are the first value after
    Extent(start=array([1, 3, 5, 7]), end=array([ 6,  8, 10, 12]))
    >>> windows.wids([5, 6, 7])
    Wids(first=array([0, 1, 1]), last=array([2, 2, 3]))
    >>> windows.assign([5, 6, 7])
    Assignment(rows=array([0, 0, 0, 1, 1, 2, 2, 2]), window_ids=array([0, 1, 2, 1, 2, 1, 2, 3]))
    >>> int(windows.closed(8)), int(windows.started(8))  # 0 and 1 have ended, 3 has begun
    (1, 3)
    """

    size: int
    slide: int
    origin: int = 0

    def __post_init__(self) -> None:
        _make_whole(self, "size", 1)
        _make_whole(self, "slide", 1)
        _make_whole(self, "origin", -WIDEST)

    def start(self, window_ids: Any) -> NDArray[np.int64]:
        """The first value of each window."""
        return _apply(rules.window_start, window_ids, self.origin, self.slide)

    def end(self, window_ids: Any) -> NDArray[np.int64]:
        """The first value after each window."""
        return _apply(rules.window_end, window_ids, self.origin, self.size, self.slide)

    def extent(self, window_ids: Any) -> Extent:
        """The values that each window holds."""
        return Extent(self.start(window_ids), self.end(window_ids))

    def wids(self, values: Any) -> Wids:
        """The windows that each value belongs to."""
        values = ticks(values)
        first = _apply(rules.first_wid, values, self.origin, self.size, self.slide)
        return Wids(first, _apply(rules.last_wid, values, self.origin, self.slide))

    def closed(self, lwm: Any) -> NDArray[np.int64]:
        """The last window that is closed when no value below `lwm` can come any more."""
        return _apply(rules.last_closed, lwm, self.origin, self.size, self.slide)

    def started(self, values: Any) -> NDArray[np.int64]:
        """The last window that has started when the axis is at a value."""
        return _apply(rules.last_started, values, self.origin, self.slide)

    def assign(self, values: Any, *, partial: bool = False) -> Assignment:
        """Every row with every window that it belongs to; `partial`: with ids below 0 too."""
        first, last = self.wids(values)
        return _explode(first if partial else np.maximum(first, 0), last)


def tumbling(size: int, origin: int = 0) -> Sliding:
    """Windows of `size` side by side: each value belongs to exactly one.

    ::

        t     0   1   2   3   4   5   6   7   8
        w = 0 [-------]
        w = 1             [-------]
        w = 2                         [-------]

    >>> tumbling(3).extent([0, 1, 2])
    Extent(start=array([0, 3, 6]), end=array([3, 6, 9]))
    >>> tumbling(3).assign([2, 3, 8]).window_ids
    array([0, 1, 2])
    """
    return Sliding(size=size, slide=size, origin=origin)


@dataclass(frozen=True)
class Landmark:
    """Every `slide`, counted from `origin`, a window ends that holds everything before.

    A slide of 3::

        t         0   1   2   3   4   5   6   7   8
        w = 0 ... --------]
        w = 1 ... --------------------]
        w = 2 ... --------------------------------]

    A value belongs to the window that ends next after it and to all later ones. A landmark
    window counts as started when the one before it has ended.

    >>> windows = Landmark(slide=3)
    >>> windows.end([0, 1, 2])
    array([3, 6, 9])
    >>> windows.wids([2, 4]).first
    array([0, 1])
    >>> windows.assign([2, 4], last=2)                   # windows that nobody asks for yet: none
    Assignment(rows=array([0, 0, 0, 1, 1]), window_ids=array([0, 1, 2, 1, 2]))
    >>> int(windows.closed(6)), int(windows.started(6))
    (1, 2)
    """

    slide: int
    origin: int = 0

    def __post_init__(self) -> None:
        _make_whole(self, "slide", 1)
        _make_whole(self, "origin", -WIDEST)

    def start(self, window_ids: Any) -> NDArray[np.int64]:
        """`BEGINNING`: a landmark window has no first value."""
        return np.full_like(ticks(window_ids), rules.BEGINNING)

    def end(self, window_ids: Any) -> NDArray[np.int64]:
        """The first value after each window."""
        return _apply(rules.landmark_end, window_ids, self.origin, self.slide)

    def extent(self, window_ids: Any) -> Extent:
        """The values that each window holds."""
        return Extent(self.start(window_ids), self.end(window_ids))

    def wids(self, values: Any) -> Wids:
        """The windows that each value belongs to; the last is `ENDLESS`."""
        first = _apply(rules.landmark_first_wid, values, self.origin, self.slide)
        return Wids(first, np.full_like(first, rules.ENDLESS))

    def closed(self, lwm: Any) -> NDArray[np.int64]:
        """The last window that is closed when no value below `lwm` can come any more."""
        return _apply(rules.landmark_last_closed, lwm, self.origin, self.slide)

    def started(self, values: Any) -> NDArray[np.int64]:
        """The window that ends next when the axis is at a value."""
        return _apply(rules.landmark_last_started, values, self.origin, self.slide)

    def assign(self, values: Any, *, last: int | None = None, partial: bool = False) -> Assignment:
        """Every row with every window that it belongs to, up to the id `last`.

        Without `last`, up to the last window that any of the values starts. `partial`: with
        ids below 0 too.
        """
        first = self.wids(values).first
        if last is None:
            last = int(first.max(initial=rules.BEGINNING))
        return _explode(first if partial else np.maximum(first, 0), np.full_like(first, last))


@dataclass(frozen=True)
class SlideByTuple:
    """With every `every`-th update a window ends that reaches back by `size`.

    The id of a window is the time of that update, so windows exist only where updates are: which
    ones a value belongs to is known when later updates are. A size of 4, a window with every
    second update (x, in order of time)::

        t       1   2   3   4   5   6   7   8   9
        updates x   x           x   x           x
        w = 2 ------]
        w = 6           [-----------]

    >>> windows = SlideByTuple(size=4, every=2)
    >>> times = [1, 2, 5, 6, 9]
    >>> ids = windows.ids(times)
    >>> ids
    array([2, 6])
    >>> windows.extent(ids)
    Extent(start=array([-1,  3]), end=array([3, 7]))
    >>> windows.assign(times, ids)
    Assignment(rows=array([0, 1, 2, 3]), window_ids=array([2, 2, 6, 6]))
    """

    size: int
    every: int

    def __post_init__(self) -> None:
        _make_whole(self, "size", 1)
        _make_whole(self, "every", 1)

    def ids(self, times: Any) -> NDArray[np.int64]:
        """The ids that the times of one key make, ascending; equal times make one."""
        return np.unique(np.sort(ticks(times), axis=None)[self.every - 1 :: self.every])

    def start(self, window_ids: Any) -> NDArray[np.int64]:
        """The first value of each window."""
        return _apply(rules.tuple_start, window_ids, self.size)

    def end(self, window_ids: Any) -> NDArray[np.int64]:
        """The first value after each window."""
        return _apply(rules.tuple_end, window_ids)

    def extent(self, window_ids: Any) -> Extent:
        """The values that each window holds."""
        return Extent(self.start(window_ids), self.end(window_ids))

    def wids(self, values: Any, ids: Any) -> Wids:
        """The windows that each value belongs to, as places in `ids`, which ascend."""
        values, ids = ticks(values), ticks(ids).ravel()
        if not (ids[1:] > ids[:-1]).all():
            raise InputError("ids must ascend; were they not made by SlideByTuple.ids?")
        last = _apply(rules.tuple_last_wid, values, self.size)
        return Wids(np.searchsorted(ids, values), np.searchsorted(ids, last, side="right") - 1)

    def closed(self, lwm: Any) -> NDArray[np.int64]:
        """The last id that is closed, if it exists, when no value below `lwm` can come any more."""
        return _apply(rules.tuple_last_closed, lwm)

    def started(self, values: Any) -> NDArray[np.int64]:
        """The last id, if it exists, that has started when the axis is at a value."""
        return _apply(rules.tuple_last_wid, values, self.size)

    def assign(self, values: Any, ids: Any) -> Assignment:
        """Every row with every window of `ids` that it belongs to."""
        ids = ticks(ids).ravel()
        rows, places = _explode(*self.wids(values, ids))
        return Assignment(rows, ids[places])


def _make_whole(kind: object, name: str, smallest: int) -> None:
    """Keep a parameter as an integer that fits the axis."""
    given = getattr(kind, name)
    try:
        number = operator.index(given)
    except TypeError:
        number = smallest - 1
    if isinstance(given, bool) or not smallest <= number <= WIDEST:
        least = f" of at least {smallest}" if smallest > -WIDEST else ""
        raise ConfigError(
            f"{name} is {given!r}: expected a whole number{least}, in ticks of the axis, that fits "
            f"into 64 bits"
        )
    object.__setattr__(kind, name, number)


def _apply(rule: Callable[..., Any], values: Any, *parameters: int) -> NDArray[np.int64]:
    """Apply a rule to whole columns, unless a result does not fit into 64 bits.

    Rules are monotone: if the lowest and the highest value give what Python's integers give,
    nothing in between has wrapped around.
    """
    values = ticks(values)
    flat = values.ravel()
    result: NDArray[np.int64] = rule(flat, *parameters)
    for at in (flat.argmin(), flat.argmax()) if flat.size else ():
        if rule(int(flat[at]), *parameters) != result[at]:
            raise InputError(
                f"{flat[at]} is too far from the origin for 64 bits; are its ticks finer than the "
                f"windows need?"
            )
    return result.reshape(values.shape)


def _explode(first: NDArray[np.int64], last: NDArray[np.int64]) -> Assignment:
    """Turn one range of ids per row into one pair per row and id."""
    first = first.ravel()
    counts = np.maximum(last.ravel() - first + 1, 0)
    ends = np.cumsum(counts)
    rows = np.repeat(np.arange(len(counts)), counts)
    steps = np.arange(len(rows)) - np.repeat(ends - counts, counts)
    return Assignment(rows, np.repeat(first, counts) + steps)
