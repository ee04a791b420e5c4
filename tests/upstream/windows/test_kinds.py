"""Extents and wids are duals; assigning a column is the same as asking row by row."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from upstream.errors import ConfigError, InputError
from upstream.windows import Assignment, Landmark, SlideByTuple, Sliding, tumbling
from upstream.windows.rules import BEGINNING, ENDLESS

VALUES = st.lists(st.integers(-40, 40), max_size=12)
ORIGINS = st.integers(-20, 20)
SIZES = st.integers(1, 12)
SLIDING = st.builds(Sliding, SIZES, SIZES, ORIGINS)
LANDMARK = st.builds(Landmark, SIZES, ORIGINS)
BY_TUPLE = st.builds(SlideByTuple, SIZES, st.integers(1, 4))
IDS = list(range(-80, 81))  # beyond all that the values above can reach


def pairs(assignment: Assignment) -> list[tuple[int, int]]:
    return list(zip(*(part.tolist() for part in assignment), strict=True))


def held(
    values: list[int], ids: list[int], kind: Sliding | Landmark | SlideByTuple
) -> list[tuple[int, int]]:
    """The pairs of row and id, by asking each window for its extent."""
    start, end = (bound.tolist() for bound in kind.extent(ids))
    return [
        (row, wid)
        for row, value in enumerate(values)
        for wid, begin, stop in zip(ids, start, end, strict=True)
        if begin <= value < stop
    ]


def test_the_drawn_example() -> None:
    """Size 5, slide 2, origin 1.

    t     1   2   3   4   5   6   7   8   9  10  11
    w = 0 [---------------]
    w = 1         [---------------]
    w = 2                 [---------------]
    w = 3                         [---------------]
    """
    windows = Sliding(size=5, slide=2, origin=1)
    start, end = windows.extent(np.arange(4))
    assert list(zip(start, end - 1, strict=True)) == [(1, 5), (3, 7), (5, 9), (7, 11)]
    assert windows.closed([5, 6, 7, 8]).tolist() == [-1, 0, 0, 1]


def test_a_value_in_a_gap_belongs_to_no_window() -> None:
    """Size 2, slide 5.

    t     0   1   2   3   4   5   6   7
    w = 0 [---]
    w = 1                     [---]
    """
    windows = Sliding(size=2, slide=5)
    first, last = windows.wids(range(8))
    assert (first > last).tolist() == [False, False, True, True, True, False, False, True]
    assert pairs(windows.assign(range(8))) == [(0, 0), (1, 0), (5, 1), (6, 1)]


@given(SLIDING, VALUES)
def test_sliding_extent_and_wids_are_duals(kind: Sliding, values: list[int]) -> None:
    first, last = kind.wids(values)
    by_wids = [
        (row, wid) for row in range(len(values)) for wid in IDS if first[row] <= wid <= last[row]
    ]
    assert by_wids == held(values, IDS, kind)


@given(SLIDING, VALUES)
def test_sliding_assigns_like_brute_force(kind: Sliding, values: list[int]) -> None:
    expected = held(values, IDS, kind)
    assert pairs(kind.assign(values, partial=True)) == expected
    assert pairs(kind.assign(values)) == [(row, wid) for row, wid in expected if wid >= 0]


@given(LANDMARK, VALUES, st.none() | st.integers(-10, 10))
def test_landmark_assigns_like_brute_force(
    kind: Landmark, values: list[int], last: int | None
) -> None:
    first = kind.wids(values).first.tolist()
    assert kind.wids(values).last.tolist() == [ENDLESS] * len(values)
    expected = held(values, IDS, kind)
    assert [
        (row, wid) for row, begin in enumerate(first) for wid in IDS if wid >= begin
    ] == expected
    until = max(first, default=0) if last is None else last
    expected = [(row, wid) for row, wid in expected if wid <= until]
    assert pairs(kind.assign(values, last=last, partial=True)) == expected
    assert pairs(kind.assign(values, last=last)) == [pair for pair in expected if pair[1] >= 0]
    assert kind.start(IDS).tolist() == [BEGINNING] * len(IDS)


@given(BY_TUPLE, VALUES, VALUES)
def test_slide_by_tuple_assigns_like_brute_force(
    kind: SlideByTuple, times: list[int], values: list[int]
) -> None:
    ids = kind.ids(times).tolist()
    ranked = sorted(times)
    assert ids == sorted({t for rank, t in enumerate(ranked, 1) if rank % kind.every == 0})
    expected = [
        (row, wid) for row, t in enumerate(values) for wid in ids if t <= wid < t + kind.size
    ]
    assert held(values, ids, kind) == expected
    first, last = kind.wids(values, ids)
    assert [
        (row, ids[place])
        for row in range(len(values))
        for place in range(first[row], last[row] + 1)
    ] == expected
    assert pairs(kind.assign(values, ids)) == expected


@given(st.one_of(SLIDING, LANDMARK, BY_TUPLE), st.integers(-30, 30))
def test_closed_windows_have_ended_and_the_next_has_not(
    kind: Sliding | Landmark | SlideByTuple, at: int
) -> None:
    closed, started = int(kind.closed(at)), int(kind.started(at))
    assert int(kind.end(closed)) <= at < int(kind.end(closed + 1))
    if isinstance(kind, Landmark):
        assert started == closed + 1
    else:
        assert int(kind.start(started)) <= at < int(kind.start(started + 1))


@given(SIZES, ORIGINS, VALUES)
def test_tumbling_windows_share_no_value_and_leave_none_out(
    size: int, origin: int, values: list[int]
) -> None:
    kind = tumbling(size, origin)
    assert kind.assign(values, partial=True).rows.tolist() == list(range(len(values)))
    start, end = kind.extent(IDS)
    assert end[:-1].tolist() == start[1:].tolist()


def test_times_count_in_ticks_of_their_column() -> None:
    seconds = pa.array([59, 60, 61], pa.timestamp("s"))
    assert tumbling(60).assign(seconds).window_ids.tolist() == [0, 1, 1]
    assert tumbling(60_000).assign(seconds.cast(pa.timestamp("ms"))).window_ids.tolist() == [
        0,
        1,
        1,
    ]


def test_numpy_parameters_become_plain_integers() -> None:
    kind = Sliding(size=np.int32(5), slide=np.int64(2))  # type: ignore[arg-type]
    assert kind == Sliding(5, 2)
    assert type(kind.size) is int


def test_a_single_number_is_assigned_like_a_column_of_one() -> None:
    assert pairs(Sliding(5, 2, 1).assign(7)) == [(0, 1), (0, 2), (0, 3)]
    assert pairs(SlideByTuple(4, 1).assign(7, SlideByTuple(4, 1).ids(8))) == [(0, 8)]


BAD_PARAMETERS: dict[str, Callable[[], object]] = {
    r"size is 0: expected a whole number of at least 1": lambda: Sliding(0, 1),
    r"size is -3: .* at least 1": lambda: tumbling(-3),
    r"size is 2\.5: expected a whole number": lambda: Sliding(2.5, 1),  # type: ignore[arg-type]
    r"slide is 0: .* at least 1": lambda: Sliding(1, 0),
    r"slide is True": lambda: Landmark(True),
    r"slide is '5'": lambda: Landmark("5"),  # type: ignore[arg-type]
    r"origin is 1\.0: expected a whole number, in ticks": lambda: Sliding(
        1,
        1,
        1.0,  # type: ignore[arg-type]
    ),
    r"origin is 9223372036854775808: .* 64 bits": lambda: Landmark(1, 2**63),
    r"size is 0": lambda: SlideByTuple(0, 1),
    r"every is 0: .* at least 1": lambda: SlideByTuple(1, 0),
}


@pytest.mark.parametrize("message", BAD_PARAMETERS)
def test_bad_parameters_are_named(message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        BAD_PARAMETERS[message]()


FAR = 2**63 - 5

BAD: dict[str, Callable[[], object]] = {
    r"row 1 is null": lambda: tumbling(5).wids(pa.array([1, None])),
    r"ids must ascend": lambda: SlideByTuple(5, 1).wids([1], [3, 2]),
    r"-9223372036854775803 is too far": lambda: Sliding(20, 10).wids([0, -FAR]),
    r"9223372036854775803 is too far": lambda: Sliding(5, 5, -20).wids([FAR, 0]),
    r"is too far": lambda: Sliding(5, 5).extent(2**62),
    r"9223372036854775803 .* ticks finer": lambda: SlideByTuple(20, 1).started(FAR),
}


@pytest.mark.parametrize("message", BAD)
def test_bad_input_says_what_was_needed_and_what_came(message: str) -> None:
    with pytest.raises(InputError, match=message):
        BAD[message]()
