"""The nouns of the interface: Update, Receipt, Batch, Snapshot, and the queue itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from upstream.staleness.view import StalenessView

__all__ = ["Batch", "BatchContent", "Queue", "Receipt", "Snapshot", "Update"]


class Update(NamedTuple):
    """One element of a stream.

    `key` is a value, or a tuple of values where the key has several columns; `value` maps
    the remaining columns.
    """

    time: Any
    key: Any
    value: Mapping[str, Any]


class Receipt(NamedTuple):
    """What became of the updates of one call."""

    accepted: int  # taken; the other numbers count some of them
    conflated: int  # merged into, or replaced in, a unit that waits
    superseded: int  # older than what the queue holds or has handed out for their key
    shed: int  # waiting units lost to make room, whoever put them


class BatchContent(Protocol):
    """The units of a batch, as one kind of queue keeps them."""

    def __len__(self) -> int: ...

    @property
    def since(self) -> NDArray[np.float64]: ...

    @property
    def arrived(self) -> NDArray[np.float64]: ...

    @property
    def updates(self) -> NDArray[np.int64]: ...

    @property
    def arrow(self) -> pa.RecordBatch: ...

    @property
    def nbytes(self) -> int: ...

    def pylist(self) -> list[dict[str, Any]]: ...

    def to_parts(self) -> tuple[dict[str, Any], list[Any]]: ...


class Batch:
    """Units that were handed out together: immutable, and the same at every reading.

    An empty batch has the id 0, is false, and need not be delivered or committed.
    """

    def __init__(self, id: int, planned_at: float, content: BatchContent) -> None:
        self.id = id
        self.planned_at = planned_at
        self.content = content

    def __len__(self) -> int:
        return len(self.content)

    def __repr__(self) -> str:
        return f"<Batch {self.id}: {len(self)} units, planned at {self.planned_at}>"

    def to_arrow(self) -> pa.RecordBatch:
        """The units as columns: those of the stream, and two that the queue adds.

        `_updates` is the number of updates that a unit stands for, `_waiting_since` the
        first arrival since its key was last handed out.
        """
        return self.content.arrow

    def to_pylist(self) -> list[dict[str, Any]]:
        """The units as dictionaries."""
        return self.content.pylist()

    @property
    def since(self) -> NDArray[np.float64]:
        """When each unit's key began to wait, in seconds of the queue's clock."""
        return self.content.since

    @property
    def arrived(self) -> NDArray[np.float64]:
        """When the newest update of each unit arrived."""
        return self.content.arrived

    @property
    def updates(self) -> NDArray[np.int64]:
        """How many updates each unit stands for."""
        return self.content.updates

    def to_parts(self) -> tuple[dict[str, Any], list[Any]]:
        """The batch as plain data and buffers, for a store to write down."""
        meta, buffers = self.content.to_parts()
        return {"id": self.id, "planned_at": self.planned_at, **meta}, buffers


class Snapshot(NamedTuple):
    """A queue at one instant. Counts are of updates, since the queue began."""

    at: float  # seconds of the queue's clock
    policy: str
    accepted: int  # = handed_out + conflated + superseded + shed + waiting
    handed_out: int  # units in batches that were not given back
    conflated: int
    superseded: int
    shed: int
    waiting: int  # units, one per key in an update queue
    keys: int  # known, waiting or not
    planned_batches: int  # not yet committed
    memory_bytes: int  # accounted, against the limit
    memory_limit_bytes: int
    load_factor: float  # updates per result of late; NaN before the first result
    arrival_rate: float  # updates per second of late
    cost_seconds: float  # per result of late, or as configured
    staleness_mean: float  # now, over keys, of the delivered results
    staleness_average: float  # the mean over keys, averaged over time: Definition 10
    queue_staleness_average: float  # the same for the time spent waiting in the queue
    staleness_p50: float  # now, over keys
    staleness_p95: float
    staleness_p99: float
    staleness_max: float
    within_target: float  # share of keys within freshness_target_seconds; NaN without one


class Queue(Protocol):
    """What every queue can do, wherever it lives."""

    @property
    def schema(self) -> pa.Schema | None:
        """The columns of the stream; None before the first batch."""

    def put(self, update: Mapping[str, Any] | Update) -> Receipt:
        """Take one update."""

    def put_many(
        self, updates: Any, arrived: Sequence[float] | NDArray[np.float64] | None = None
    ) -> Receipt:
        """Take the rows of an Arrow batch or table, in their order.

        `arrived`, for simulations, gives each row an arrival time of its own, in order.
        """

    def plan(self, limit: int | None = None) -> Batch:
        """Hand out up to `limit` units; false if nothing waits."""

    def batch(self, batch_id: int) -> Batch:
        """A planned batch that is not committed, as it was handed out."""

    def planned(self) -> list[int]:
        """The ids of the batches that are not committed, oldest first."""

    def delivered(self, batch_id: int, at: float | None = None) -> None:
        """The results of a batch are out, now or since `at`."""

    def commit(self, batch_id: int) -> None:
        """A batch may be forgotten; it counts as delivered now if nobody said so."""

    def give_back(self, batch_id: int) -> None:
        """A batch is not going to be processed: its units wait again, unless newer ones do."""

    def snapshot(self) -> Snapshot:
        """Counts, memory, load and staleness at this instant."""

    def staleness(self) -> StalenessView[str]:
        """Staleness of every key at this instant."""

    def close(self) -> None:
        """Let go of everything; a durable queue can be opened again."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...
