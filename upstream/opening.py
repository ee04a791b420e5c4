"""Opening a queue: which kind of queue, in which store."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from upstream.config import BASELINES, Config, QueueConfig
from upstream.errors import ConfigError
from upstream.queue.base import BaseQueue

__all__ = ["open_queue"]


def open_queue(
    url: str | None = None,
    *,
    config: Config | QueueConfig | None = None,
    clock: Callable[[], float] = time.time,
    **options: Any,
) -> BaseQueue:
    """Open a queue: `"memory:"` in this process, `"journal:<directory>"` also on disk.

    Options have the names of the config file (`upstream config --explain`); with `config`
    they replace what it says. `clock` gives the time in seconds.

    >>> import pyarrow as pa
    >>> queue = open_queue("memory:", key="symbol", time="ts")
    >>> receipt = queue.put_many(
    ...     pa.table({"symbol": ["A", "B", "A"], "ts": [1, 1, 2], "price": [10.0, 7.5, 10.5]})
    ... )
    >>> receipt.conflated
    1
    >>> batch = queue.plan()
    >>> [(row["symbol"], row["price"], row["_updates"]) for row in batch.to_pylist()]
    [('A', 10.5, 2), ('B', 7.5, 1)]
    >>> queue.commit(batch.id)
    """
    given = config.queue if isinstance(config, Config) else config
    if url is not None:
        options["store"] = url
    if given is not None:
        settings = given.with_options(**options) if options else given
    else:
        settings = QueueConfig.from_options(**options)
    scheme, _, place = settings.store.partition(":")

    def make() -> BaseQueue:
        if settings.window is not None and settings.policy in BASELINES:
            from upstream.queue.window_line import WindowLine

            return WindowLine(settings, clock)
        if settings.policy in BASELINES:
            from upstream.queue.append_queue import AppendQueue

            return AppendQueue(settings, clock)
        if settings.window is not None:
            from upstream.queue.window_queue import WindowQueue

            return WindowQueue(settings, clock)
        from upstream.queue.update_queue import UpdateQueue

        return UpdateQueue(settings, clock)

    if scheme == "memory":
        return make()
    if scheme == "journal":
        from upstream.store.journal import open_journal

        return open_journal(place, settings, make)
    raise ConfigError(
        f"store {settings.store!r} is not known: expected memory: or journal:<directory>"
    )
