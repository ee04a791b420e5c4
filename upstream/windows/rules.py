"""Window arithmetic: which ids a value belongs to, and where a window begins and ends.

With origin o, size r and slide s, all whole numbers on one axis (ticks of time, or positions),
windows are half-open intervals::

    sliding          extent(w) = [o + w*s, o + w*s + r)
                     wids(t)   = floor((t - o - r) / s) + 1 .. floor((t - o) / s)

    landmark         extent(w) = everything before o + (w + 1)*s
                     wids(t)   = floor((t - o) / s) and all after it

    slide-by-tuple   extent(w) = (w - r, w] = [w - r + 1, w + 1)
                     wids(t)   = those numbers of t .. t + r - 1 that are the id of a window

Extent and wids are duals: t lies in extent(w) exactly when w lies in wids(t). Where s > r there are
gaps between sliding windows; a value in a gap has a first id above its last.

A window is closed when no value below its end can come any more: its end is at most the
low-watermark, the smallest value that may still appear.

Each rule is plain integer arithmetic that Python's integers, numpy's int64 arrays and numba's
compiled code round alike, so none calls another: numba compiles them one by one.

>>> [window_start(w, 1, 2) for w in range(4)], [window_end(w, 1, 5, 2) for w in range(4)]
([1, 3, 5, 7], [6, 8, 10, 12])
>>> first_wid(7, 1, 5, 2), last_wid(7, 1, 2)        # 7 lies in [3, 8), [5, 10) and [7, 12)
(1, 3)
>>> last_closed(10, 1, 5, 2)                        # nothing below 10 can come: [5, 10) is closed
2
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "BEGINNING",
    "ENDLESS",
    "first_wid",
    "landmark_end",
    "landmark_first_wid",
    "landmark_last_closed",
    "landmark_last_started",
    "last_closed",
    "last_started",
    "last_wid",
    "tuple_end",
    "tuple_last_closed",
    "tuple_last_wid",
    "tuple_start",
    "window_end",
    "window_start",
]

Whole = TypeVar("Whole", int, NDArray[np.int64])

BEGINNING = -(2**63)
"""The start of a window that has none: below every other value."""

ENDLESS = 2**63 - 1
"""The last id of a value that belongs to every later window."""


def window_start(wid: Whole, origin: int, slide: int) -> Whole:
    """The first value of a sliding window."""
    return origin + wid * slide


def window_end(wid: Whole, origin: int, size: int, slide: int) -> Whole:
    """The first value after a sliding window."""
    return origin + wid * slide + size


def first_wid(t: Whole, origin: int, size: int, slide: int) -> Whole:
    """The first sliding window that ends after `t`."""
    return (t - origin - size) // slide + 1


def last_wid(t: Whole, origin: int, slide: int) -> Whole:
    """The last sliding window that starts at or before `t`."""
    return (t - origin) // slide


def last_closed(lwm: Whole, origin: int, size: int, slide: int) -> Whole:
    """The last sliding window that ends at or before the low-watermark."""
    return (lwm - origin - size) // slide


last_started = last_wid  # the last window that a value can belong to is the last that started


def landmark_end(wid: Whole, origin: int, slide: int) -> Whole:
    """The first value after a landmark window."""
    return origin + (wid + 1) * slide


def landmark_first_wid(t: Whole, origin: int, slide: int) -> Whole:
    """The first landmark window that ends after `t`."""
    return (t - origin) // slide


def landmark_last_closed(lwm: Whole, origin: int, slide: int) -> Whole:
    """The last landmark window that ends at or before the low-watermark."""
    return (lwm - origin) // slide - 1


landmark_last_started = landmark_first_wid  # a landmark window starts when the one before it ends


def tuple_start(wid: Whole, size: int) -> Whole:
    """The first value of a slide-by-tuple window."""
    return wid - size + 1


def tuple_end(wid: Whole) -> Whole:
    """The first value after a slide-by-tuple window."""
    return wid + 1


def tuple_last_wid(t: Whole, size: int) -> Whole:
    """The last number that can be the id of a slide-by-tuple window with `t` in it."""
    return t + size - 1


def tuple_last_closed(lwm: Whole) -> Whole:
    """The last number whose slide-by-tuple window ends at or before the low-watermark."""
    return lwm - 1
