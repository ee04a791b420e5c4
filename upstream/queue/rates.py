"""How often a key updates: an estimate that follows change, and silence.

The estimate is the exponentially weighted mean of the gaps between updates,

    gap <- gap + max(alpha, 1 / count) * (latest gap - gap)

where `count` gaps have been seen: a plain mean at first, a moving one later. Updates that
arrive at one instant, in one batch, are a *group*: m of them after a silence of d seconds
count as m gaps of d / m. A group is folded in when the next one begins, because only then
is its size known; whoever reads the estimate earlier folds it in on the fly.

*Censoring*: when a key has been silent for longer than its estimate, the silence itself
is the latest gap, as far as one can know.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from upstream.queue.key_table import KNOWN_RATE
from upstream.queue.raw import f64, i64, inlined, kernel

__all__ = ["gap_at", "observe"]


MOST_COUNTED = 65535  # what the record's field can hold


@kernel
def _fold(gap: float, count: int, span: float, group: int, alpha: float) -> tuple[float, int]:
    latest = span / group
    while group > 0 and count * alpha < 1.0:
        count = min(count + 1, MOST_COUNTED)
        gap = latest if count == 1 else gap + max(alpha, 1.0 / count) * (latest - gap)
        group -= 1
    if group == 1:
        gap += alpha * (latest - gap)
    elif group > 1:
        gap = latest + (gap - latest) * (1.0 - alpha) ** group
    return gap, count


@inlined
def observe(key: Any, at: float, alpha: float) -> None:
    """An update of the key arrived."""
    if at > key.last:
        if not np.isnan(key.span) and key.flags & KNOWN_RATE == 0:
            key.gap, key.count = _fold(
                key.gap, i64(key.count), f64(key.span), i64(key.group), alpha
            )
        key.span = at - key.last
        key.last = at
        key.group = 1
    elif np.isnan(key.last):
        key.last = at
        key.group = 1
    else:
        key.group += 1


@kernel
def gap_at(key: Any, now: float, alpha: float, prior: float) -> float:
    """The mean time between updates as it looks now; `prior` while the key is too new."""
    gap = key.gap
    if key.flags & KNOWN_RATE != 0:
        return f64(gap)
    if not np.isnan(key.span):
        gap, _ = _fold(gap, i64(key.count), f64(key.span), i64(key.group), alpha)
    else:
        gap = prior
    silence = now - key.last
    if silence > gap:
        gap += alpha * (silence - gap)
    return f64(gap)
