"""What choosing the next key costs by itself, for the studies that charge it.

Measured with the queue of this project, on two cores at 2.5 GHz, as the median time of
`plan(1)` over that of in-place, with 10 to 10,000 waiting keys.
"""

from __future__ import annotations

from simulator.costs import Cost, PerUnit, Scheduling

__all__ = ["LOAD", "OVERHEADS", "TIME_UNIT"]

TIME_UNIT = 0.001  # seconds: 1000 updates per second come
LOAD = 5.0  # time units per result: 5 ms
RATE_CLASSES = 1e-6  # seconds per choice, with any number of keys
SCAN, SCAN_PER_KEY = 100e-6, 0.05e-6  # seconds per choice, and per waiting key
# The paper walks along the queue. Its loss of 3 % of the throughput at about 60 waiting keys
# comes to so many seconds per waiting key.
WALK_PER_KEY = 2.5e-6

_WORK = PerUnit(LOAD)
OVERHEADS: dict[str, Cost] = {
    "free": _WORK,
    "classes": Scheduling(_WORK, fixed=RATE_CLASSES / TIME_UNIT),
    "scan": Scheduling(_WORK, fixed=SCAN / TIME_UNIT, each=SCAN_PER_KEY / TIME_UNIT),
    "walk": Scheduling(_WORK, each=WALK_PER_KEY / TIME_UNIT),
}
