"""Windows: what a window is, and how to aggregate the rows of windows that a queue hands out.

- ``Sliding``, ``tumbling``, ``Landmark`` and ``SlideByTuple`` say which values a window holds
  and which windows a value belongs to;
- ``positions`` counts updates per key, for windows by count;
- ``rules`` are the same functions for single numbers and for compiled code;
- ``marks`` name the columns that tell of a row which window it belongs to;
- ``WindowAggregate`` turns marked rows into one result per window.
"""

from __future__ import annotations

from upstream.windows.aggregate import WindowAggregate
from upstream.windows.axis import positions
from upstream.windows.kinds import (
    Assignment,
    Extent,
    Landmark,
    SlideByTuple,
    Sliding,
    Wids,
    tumbling,
)

__all__ = [
    "Assignment",
    "Extent",
    "Landmark",
    "SlideByTuple",
    "Sliding",
    "Wids",
    "WindowAggregate",
    "positions",
    "tumbling",
]
