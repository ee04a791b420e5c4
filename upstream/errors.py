"""Every error that Upstream raises on purpose.

A message says what was expected, what came and the likely slip; whoever catches
`UpstreamError` catches them all.
"""

from __future__ import annotations

__all__ = [
    "ConfigError",
    "InputError",
    "MergeWarning",
    "QueueClosed",
    "QueueFull",
    "SchemaError",
    "StoreCorrupt",
    "StoreError",
    "StoreLocked",
    "UnknownBatch",
    "UpstreamError",
]


class UpstreamError(Exception):
    """The base of all errors raised by Upstream."""


class ConfigError(UpstreamError, ValueError):
    """An option is unknown, or has a value that it cannot have."""


class SchemaError(UpstreamError, ValueError):
    """The columns of a batch are not the columns of the queue."""


class InputError(UpstreamError, ValueError):
    """A value that was handed in cannot be used; nothing of the call took effect."""


class QueueFull(UpstreamError):
    """The memory limit is reached, and the overflow rule does not make room.

    `accepted` rows of the call, counted from its beginning, were taken before that.
    """

    def __init__(self, message: str, accepted: int = 0) -> None:
        super().__init__(message)
        self.accepted = accepted


class MergeWarning(UserWarning):
    """A merge function of the user's failed; the newer values were kept."""


class QueueClosed(UpstreamError):
    """The queue was closed before the call."""


class StoreError(UpstreamError):
    """A store could not do what it promises; nothing of the call was acknowledged."""


class StoreLocked(StoreError):
    """Another process has the store open."""


class StoreCorrupt(StoreError):
    """What is stored does not fit its checksums or its order."""


class UnknownBatch(UpstreamError, KeyError):
    """No planned batch has this id: it was never planned, or is committed or given back."""

    def __str__(self) -> str:
        # KeyError shows the repr of its argument; a sentence should read as one.
        return str(self.args[0])
