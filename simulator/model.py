"""The model: sources, the queue, a server and the application, under simulated time.

    source --> queue.put_many --> queue.plan --> server --> queue.commit --> application
                  arrival           dequeue       cost        delivery

Only time is simulated. The queue is the one of `open_queue`, with its policies, estimates
and memory, and it measures staleness itself. What arrives while the server works reaches the
queue in one call when the server is done, each update with the time of its own arrival: so an
event is a service and not an update.

At one instant a delivery comes first, then arrivals, then a dequeue; who waits longest wins a
tie. (Arrivals are put before a delivery of the same instant is reported. For what is measured
that is the same: at that instant they are 0 seconds old.)
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Generator, Mapping
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import simpy

from simulator.arrivals import Ints, Stream
from simulator.costs import Cost, Handed
from simulator.knowledge import knowledge
from simulator.rates import Floats
from simulator.result import Outputs, Result, summary
from upstream.errors import InputError
from upstream.model import Batch
from upstream.opening import open_queue
from upstream.queue.base import BaseQueue
from upstream.staleness.view import StalenessView

__all__ = ["simulate"]

KeysOf = Callable[[Batch], Ints]


def simulate(
    stream: Stream,
    *,
    policy: str,
    cost: Cost,
    limit: int | None = 1,
    weights: Floats | None = None,
    rates: Literal["known", "estimated"] = "estimated",
    warmup: float = 0.0,
    options: Mapping[str, Any] | None = None,
) -> Result:
    """Run one queue on a stream, from the first arrival to the last.

    The server takes up to `limit` units at a time (None: all that wait). With `rates` known
    the queue is told them, and the costs. Averages leave out the first part `warmup` of the
    time. `options` are further ones of `open_queue`.
    """
    if not 0.0 <= warmup < 1.0:
        raise InputError(f"warmup must be a part of the time, from 0 to below 1, but is {warmup}")
    costs = cost.least(limit or len(stream.rates))
    told = knowledge(stream.rates, costs, weights, known=rates == "known")
    run = Run(stream, policy, cost, limit, {**told, **(options or {})})
    start, end = float(stream.times[0]), float(stream.times[-1])
    before = run.until(start + warmup * (end - start))
    after = run.until(end)
    return summary(
        stream,
        run.queue.snapshot(),
        before,
        after,
        run.server.outputs,
        costs=costs,
        weights=weights,
    )


class Source:
    """Puts into the queue what has arrived."""

    def __init__(self, stream: Stream, queue: BaseQueue) -> None:
        columns = {"key": pa.array(stream.keys)}
        if stream.event_times is not None:
            columns["time"] = pa.array(stream.event_times)
        self._rows = pa.record_batch(columns)
        self._times = stream.times
        # A list is quicker to search than an array.
        self._instants: list[float] = [*stream.times.tolist(), float("inf")]
        self._arrived = 0
        self._queue = queue

    def arrive(self, until: float) -> None:
        """All that comes up to an instant, the instant included."""
        start = self._arrived
        end = bisect_right(self._instants, until, start)
        if end > start:
            self._queue.put_many(self._rows.slice(start, end - start), self._times[start:end])
            self._arrived = end

    @property
    def next_arrival(self) -> float:
        """When the next update comes; infinite after the last."""
        return self._instants[self._arrived]


class Server:
    """Takes units from the queue, works on them, and delivers."""

    def __init__(self, source: Source, queue: BaseQueue, cost: Cost, limit: int | None) -> None:
        self.outputs = Outputs()
        self._source = source
        self._queue = queue
        self._cost = cost
        self._limit = limit

    def run(self, env: simpy.Environment, keys_of: KeysOf) -> Generator[simpy.Event, None, None]:
        """One batch after the other, as long as there is anything to do."""
        source, queue, limit = self._source, self._queue, self._limit
        in_hand = 0
        while True:
            now = env.now
            source.arrive(now)
            queue.commit(in_hand)
            waiting = queue.waiting
            batch = queue.plan(limit)
            in_hand = batch.id
            if batch:
                keys = keys_of(batch)
                self.outputs.note(now, keys, batch.since, waiting)
                yield env.timeout(self._cost.seconds(Handed(keys, len(keys), waiting)))
            elif source.next_arrival < float("inf"):
                yield env.timeout(source.next_arrival - now)
            else:
                return


class Run:
    """A queue and all that is around it."""

    def __init__(
        self,
        stream: Stream,
        policy: str,
        cost: Cost,
        limit: int | None,
        options: dict[str, Any],
    ) -> None:
        self.env = env = simpy.Environment(initial_time=float(stream.times[0]))
        if stream.event_times is not None:
            options["time"] = "time"
        self.queue = open_queue(
            "memory:", key="key", policy=policy, clock=lambda: env.now, **options
        )
        self.source = Source(stream, self.queue)
        self.server = Server(self.source, self.queue, cost, limit)
        env.process(self.server.run(env, _keys_of(stream)))

    def until(self, at: float) -> StalenessView[str]:
        """Let time pass, and look."""
        if at > self.env.now:
            self.env.run(until=at)
        self.source.arrive(at)
        return self.queue.staleness()


def _keys_of(stream: Stream) -> KeysOf:
    """How to tell, by number, which keys a batch holds."""
    times, keys = stream.times, stream.keys
    if np.all(np.diff(times) > 0.0):  # the instant says which update it is, and nothing is read
        return lambda batch: keys[np.searchsorted(times, batch.arrived)]
    return lambda batch: (
        np.array([batch.to_pylist()[0]["key"]])
        if len(batch) == 1
        else batch.to_arrow().column("key").to_numpy()
    )
