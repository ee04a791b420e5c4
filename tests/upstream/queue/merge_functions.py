"""Merge functions as a user would write them: whole arrays, associative, order kept."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["NOT_A_FUNCTION", "chain", "failing", "joined", "longest", "picky", "short"]

NOT_A_FUNCTION = 3


def joined(held: pa.Array, arrived: pa.Array) -> pa.Array:
    """Texts one after the other; null is no text."""
    return pc.binary_join_element_wise(
        held, arrived, "", null_handling="replace", null_replacement=""
    )


def chain(held: pa.Array, arrived: pa.Array) -> pa.Array:
    """Lists one after the other; null is the empty list."""
    pairs = zip(held.to_pylist(), arrived.to_pylist(), strict=True)
    return pa.array([(a or []) + (b or []) for a, b in pairs], held.type)


def longest(held: pa.Array, arrived: pa.Array) -> pa.ChunkedArray:
    """The longer text, the earlier of equals; answers in chunks, as Arrow may."""
    longer = pc.greater(pc.utf8_length(arrived), pc.utf8_length(held))
    return pa.chunked_array([pc.if_else(longer, arrived, held)])


def picky(held: pa.Array, arrived: pa.Array) -> pa.Array:
    """The sum, of small numbers only."""
    if len(arrived) and pc.max(arrived).as_py() > 100:
        raise ValueError("too large for me")
    return pc.add(held, arrived)


def short(held: pa.Array, arrived: pa.Array) -> pa.Array:
    """Forgets about the last pair."""
    return arrived[:-1]


def failing(held: pa.Array, arrived: pa.Array) -> pa.Array:
    """A function with a slip in it."""
    raise RuntimeError("slipped")
