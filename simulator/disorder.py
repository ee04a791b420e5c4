"""Updates that arrive in another order than they happened.

The times of arrival stay as they are; what arrives then is another update. Its own time is
kept as its event time, by which the queue tells newer from older.
"""

from __future__ import annotations

import numpy as np

from simulator.arrivals import Stream
from simulator.rates import Floats
from simulator.seeds import random
from upstream.errors import InputError

__all__ = ["in_band", "in_blocks"]


def in_band(stream: Stream, width: float, seed: int = 0) -> Stream:
    """Every update is held up by a random time below `width` time units."""
    delays = random(seed, "disorder").uniform(0.0, _wide(width), len(stream.times))
    return _arriving(stream, stream.times + delays)


def in_blocks(stream: Stream, length: float, seed: int = 0) -> Stream:
    """Within every `length` time units the updates are shuffled; the blocks stay in order."""
    blocks = np.floor((stream.times - stream.times[0]) / _wide(length))
    return _arriving(stream, blocks + random(seed, "disorder").random(len(blocks)))


def _arriving(stream: Stream, rank: Floats) -> Stream:
    order = np.argsort(rank, kind="stable")
    return stream._replace(keys=stream.keys[order], event_times=stream.times[order])


def _wide(width: float) -> float:
    if not width > 0.0:
        raise InputError(f"disorder needs a width above 0, but got {width}")
    return width
