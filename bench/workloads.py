"""Workloads, seeded and frozen: the same numbers in every run of every bench."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

__all__ = ["zipf_batches", "zipf_keys"]

START_US = 1_700_000_000_000_000  # the first event time: 2023-11-14 22:13:20 UTC
NOTES = 5_000  # distinct texts


def zipf_keys(
    rows: int, *, keys: int = 100_000, theta: float = 0.99, seed: int = 1
) -> NDArray[np.int64]:
    """Key numbers, the n-th most frequent with a share proportional to `n ** -theta`.

    Which number is how frequent is shuffled, so that hot keys do not lie side by side.
    """
    random = np.random.default_rng(seed)
    shares = np.arange(1, keys + 1, dtype=np.float64) ** -theta
    bounds = np.cumsum(shares)
    ranks = np.searchsorted(bounds, random.random(rows) * bounds[-1])
    shuffled: NDArray[np.int64] = random.permutation(keys)[ranks]
    return shuffled


def zipf_batches(
    rows: int,
    *,
    keys: int = 100_000,
    theta: float = 0.99,
    batch_rows: int = 10_000,
    seed: int = 1,
) -> list[pa.RecordBatch]:
    """Quotes: a text key, an event time, two numbers and a short text.

    >>> batch, = zipf_batches(3, batch_rows=3)
    >>> batch.schema.names
    ['symbol', 'ts', 'bid', 'ask', 'note']
    >>> batch["symbol"].to_pylist()
    ['K089415', 'K048638', 'K009593']
    """
    random = np.random.default_rng([seed, 2])
    numbers = zipf_keys(rows, keys=keys, theta=theta, seed=seed)
    texts = _texts(random)
    batches = []
    for start in range(0, rows, batch_rows):
        part = numbers[start : start + batch_rows]
        bid = np.round(random.uniform(1, 500, len(part)), 2)
        batches.append(
            pa.record_batch(
                {
                    "symbol": _symbols(part),
                    "ts": pa.array(
                        START_US + 100 * np.arange(start, start + len(part)),
                        pa.timestamp("us", "UTC"),
                    ),
                    "bid": bid,
                    "ask": bid + 0.01,
                    "note": texts.take(pa.array(random.integers(0, NOTES, len(part)))),
                }
            )
        )
    return batches


def _symbols(numbers: NDArray[np.int64]) -> pa.Array:
    """K000000, K000001 ...; put together as bytes, because there are millions."""
    width = 7
    text = np.empty((len(numbers), width), np.uint8)
    text[:, 0] = ord("K")
    for place in range(1, width):
        text[:, place] = ord("0") + numbers // 10 ** (width - 1 - place) % 10
    offsets = np.arange(0, width * (len(numbers) + 1), width, dtype=np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(text)]
    return pa.Array.from_buffers(pa.string(), len(numbers), buffers)


def _texts(random: np.random.Generator) -> pa.Array:
    """Texts of 4 to 12 letters, 8 on average."""
    letters = random.integers(ord("a"), ord("z") + 1, (NOTES, 12), dtype=np.uint8)
    lengths = random.integers(4, 13, NOTES)
    return pa.array(
        [row[:length].tobytes().decode() for row, length in zip(letters, lengths, strict=True)]
    )
