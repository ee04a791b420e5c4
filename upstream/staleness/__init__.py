"""Staleness: how old the answers are, exactly.

    S_k(t) = 0          while the delivered answer for k reflects its latest update
           = t - u_k    otherwise; u_k = arrival of the earliest update newer than that answer

A stale answer ages until a fresher one is delivered; a fresh one stays fresh until the next update
arrives. Staleness of a stream is a function F over its keys, by default the mean, and its average
over time is an integral, never a mean of samples. Queue staleness, `t - e_k` with e_k the first
enqueue of k since its last dequeue, is the part of it that a queue can control.

- ``exact`` computes all of this from lists of events: slow, obvious, the reference;
- ``rules`` say how the numbers change at an event, compiled, for a queue's own tables;
- ``StalenessTracker`` applies the rules to any keys, fed by arrived / dequeued / delivered;
- ``StalenessView`` is what both a tracker and a queue answer with;
- ``aggregates`` are the functions F.
"""

from __future__ import annotations

from upstream.staleness.aggregates import (
    F,
    Floats,
    aggregate,
    maximum,
    mean,
    quantile,
    weighted_mean,
)
from upstream.staleness.exact import (
    Arrival,
    Delivery,
    KeyEvents,
    Piece,
    breakpoints,
    key_average,
    latency_of_result,
    per_output_mean,
    pieces,
    staleness_at,
    staleness_of_result,
    stream_at,
    stream_average,
    waits,
)
from upstream.staleness.rules import (
    FRESH,
    TOTALS,
    add_key,
    advance,
    answer,
    drop_key,
    fall,
    key_area,
    new_totals,
    rise,
)
from upstream.staleness.tracker import KeyStaleness, StalenessTracker
from upstream.staleness.view import Quantiles, StalenessView

__all__ = [
    "FRESH",
    "TOTALS",
    "Arrival",
    "Delivery",
    "F",
    "Floats",
    "KeyEvents",
    "KeyStaleness",
    "Piece",
    "Quantiles",
    "StalenessTracker",
    "StalenessView",
    "add_key",
    "advance",
    "aggregate",
    "answer",
    "breakpoints",
    "drop_key",
    "fall",
    "key_area",
    "key_average",
    "latency_of_result",
    "maximum",
    "mean",
    "new_totals",
    "per_output_mean",
    "pieces",
    "quantile",
    "rise",
    "staleness_at",
    "staleness_of_result",
    "stream_at",
    "stream_average",
    "waits",
    "weighted_mean",
]
