"""What a queue tells its store, in the order in which it happens.

The queue calls these under its own lock, except `sync` and `close`. A durable store
writes each call down and, after a crash, plays it back; the memory store does nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from upstream.model import Batch

__all__ = ["FreedKind", "Log", "NoLog", "SettledKind"]

SettledKind = Literal["delivered", "committed", "given back"]
FreedKind = Literal["shed", "forgot", "silence", "keep"]


class Log(Protocol):
    """The store's side of a queue."""

    def put(self, rows: pa.RecordBatch, arrived: NDArray[np.float64] | None, now: float) -> None:
        """Rows are about to be taken; an error here leaves the queue as it was."""

    def put_stopped(self, rows: int) -> None:
        """Only the first `rows` rows of the last `put` were taken."""

    def planned(self, batch: Batch) -> None:
        """A batch is frozen and about to be handed out."""

    def settled(self, kind: SettledKind, batch_id: int, at: float) -> None:
        """A batch was delivered, committed or given back."""

    def freed(self, kind: FreedKind, slots: NDArray[np.uint32], now: float) -> None:
        """Keys lost their waiting unit or were forgotten, time passed without arrivals, or
        another share of windows is kept from now on."""

    def sync(self) -> None:
        """Return when everything logged before the call is as durable as configured."""

    def close(self) -> None:
        """Make everything durable and let go of the store."""


class NoLog:
    """The log of a queue that lives in memory only."""

    def put(self, rows: pa.RecordBatch, arrived: NDArray[np.float64] | None, now: float) -> None:
        pass

    def put_stopped(self, rows: int) -> None:
        pass

    def planned(self, batch: Batch) -> None:
        pass

    def settled(self, kind: SettledKind, batch_id: int, at: float) -> None:
        pass

    def freed(self, kind: FreedKind, slots: NDArray[np.uint32], now: float) -> None:
        pass

    def sync(self) -> None:
        pass

    def close(self) -> None:
        pass
