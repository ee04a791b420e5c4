"""The page pool against a dictionary of what was written where."""

from __future__ import annotations

import ctypes
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from upstream.queue.memory_manager import PAGE_BYTES, UNIT_BYTES, MemoryManager

SHARED_AT_MOST = PAGE_BYTES // 2

sizes = st.one_of(
    st.integers(1, 200),
    st.integers(1, SHARED_AT_MOST + 2000),
    st.integers(SHARED_AT_MOST, 5 * PAGE_BYTES),
    st.sampled_from([UNIT_BYTES, SHARED_AT_MOST, PAGE_BYTES, 2 * PAGE_BYTES, 2 * PAGE_BYTES + 1]),
)


class Held:
    """An object that was given out, and the bytes that were written into it."""

    def __init__(self, size: int, mark: int) -> None:
        self.size = size
        self.content = (mark.to_bytes(4, "little") * (size // 4 + 1))[:size]


def write(memory: MemoryManager, reference: int, content: bytes) -> None:
    ctypes.memmove(memory.at(reference), content, len(content))


def read(memory: MemoryManager, reference: int, size: int) -> bytes:
    return ctypes.string_at(memory.at(reference), size)


def filled(memory: MemoryManager, size: int) -> list[int]:
    """Allocate objects of one size until the limit."""
    references = []
    while reference := memory.allocate(size):
        references.append(reference)
    return references


class MemoryMachine(RuleBasedStateMachine):
    """Allocate and free in any order: objects keep their bytes, and the pool its promises."""

    @initialize(pages=st.integers(1, 12))
    def open(self, pages: int) -> None:
        self.limit = pages * PAGE_BYTES + PAGE_BYTES // 2
        self.memory = MemoryManager(limit_bytes=self.limit)
        self.held: dict[int, Held] = {}
        self.mark = 0

    @rule(size=sizes, count=st.sampled_from([1, 1, 2, 30, 100]))
    def allocate(self, size: int, count: int) -> None:
        for _ in range(count):
            reference = self.memory.allocate(size)
            pages = math.ceil(size / PAGE_BYTES)
            if reference == 0:
                # A refusal is due: the pages that it could need do not fit any more.
                assert self.memory.used_bytes + pages * PAGE_BYTES > self.limit
                return
            assert reference not in self.held
            self.mark += 1
            self.held[reference] = Held(size, self.mark)
            write(self.memory, reference, self.held[reference].content)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), count=st.sampled_from([1, 1, 5, 200]))
    def free(self, data: st.DataObject, count: int) -> None:
        at = data.draw(st.integers(0, len(self.held) - 1))
        for reference in list(self.held)[at : at + count]:
            content = self.held.pop(reference).content
            assert read(self.memory, reference, len(content)) == content
            self.memory.free(reference)

    @rule()
    def free_all(self) -> None:
        for reference in list(self.held):
            del self.held[reference]
            self.memory.free(reference)
        assert self.memory.used_bytes == 0

    @rule()
    def trim(self) -> None:
        self.memory.trim()

    @rule()
    def move(self) -> None:
        """Dump, and go on in a pool at another address."""
        dumped = [bytes(buffer) for buffer in self.memory.dump()]
        self.memory = MemoryManager(limit_bytes=self.limit)
        self.memory.load(dumped)

    @invariant()
    def check(self) -> None:
        if not hasattr(self, "held"):
            return
        self.memory.check()
        assert self.memory.used_bytes <= self.limit
        ranges = sorted((r * UNIT_BYTES, r * UNIT_BYTES + h.size) for r, h in self.held.items())
        ends = 0
        for start, stop in ranges:
            assert start >= ends, "two objects overlap"
            ends = stop

    def teardown(self) -> None:
        for reference, held in getattr(self, "held", {}).items():
            assert read(self.memory, reference, held.size) == held.content


MemoryMachine.TestCase.settings = settings(max_examples=30, stateful_step_count=30)
TestMemory = MemoryMachine.TestCase


@given(size=sizes)
@settings(max_examples=50)
def test_as_many_objects_fit_as_the_limit_allows(size: int) -> None:
    pages = 1 if size < 1000 else 20
    memory = MemoryManager(limit_bytes=pages * PAGE_BYTES)
    references = filled(memory, size)
    if size <= SHARED_AT_MOST:
        # A quarter at most is lost to rounding of the size, and what does not fill a page.
        assert len(references) * max(size, UNIT_BYTES) > pages * PAGE_BYTES / 2
    else:
        assert len(references) == pages // math.ceil(size / PAGE_BYTES)
    for reference in references:
        memory.free(reference)
    memory.check()
    assert memory.used_bytes == 0
    assert len(filled(memory, size)) == len(references), "some room did not come back"


def test_other_bytes_count_against_the_limit() -> None:
    memory = MemoryManager(limit_bytes=10 * PAGE_BYTES)
    memory.pool["other_bytes"] = 4 * PAGE_BYTES
    assert len(filled(memory, PAGE_BYTES)) == 6


def test_an_empty_page_serves_objects_of_another_size() -> None:
    memory = MemoryManager(limit_bytes=PAGE_BYTES)
    small = filled(memory, 64)
    assert memory.allocate(1000) == 0
    for reference in small[:-1]:
        memory.free(reference)
    assert memory.allocate(1000) == 0, "one object is still there"
    memory.free(small[-1])
    assert memory.allocate(1000) != 0


def test_a_run_is_found_between_other_pages() -> None:
    memory = MemoryManager(limit_bytes=12 * PAGE_BYTES)
    pages = filled(memory, PAGE_BYTES)
    assert len(pages) == 12
    for gap in (0, 2, 4, 5, 6, 9):
        memory.free(pages[gap])
    runs = memory.allocate(3 * PAGE_BYTES)
    assert runs == pages[4]
    memory.check()
    memory.free(runs)
    assert memory.allocate(2 * PAGE_BYTES) == pages[4]


def test_idle_memory_goes_back_to_the_operating_system() -> None:
    memory = MemoryManager(limit_bytes=400 * PAGE_BYTES)
    references = filled(memory, 9000)
    for reference in references:
        write(memory, reference, b"\xff" * 9000)
    full = memory.resident_bytes
    assert full >= 400 * PAGE_BYTES
    kept = references[:50]
    for reference in references[50:]:
        memory.free(reference)
    assert memory.resident_bytes == full, "idle pages are kept for a while"
    memory.trim()
    assert memory.resident_bytes < full / 20
    for reference in kept:
        assert read(memory, reference, 9000) == b"\xff" * 9000
    again = filled(memory, 9000)
    assert len(again) == len(references) - 50
    assert memory.resident_bytes == full
    memory.check()


def test_a_loaded_pool_keeps_its_own_limit() -> None:
    memory = MemoryManager(limit_bytes=30 * PAGE_BYTES)
    references = filled(memory, 5000)
    for number, reference in enumerate(references):
        write(memory, reference, number.to_bytes(4, "little") * 1250)
    smaller = MemoryManager(limit_bytes=2 * PAGE_BYTES)
    smaller.load([bytes(buffer) for buffer in memory.dump()])
    smaller.check()
    assert smaller.used_bytes == memory.used_bytes
    assert smaller.allocate(100) == 0
    for number, reference in enumerate(references):
        assert read(smaller, reference, 5000) == number.to_bytes(4, "little") * 1250
        smaller.free(reference)
    assert smaller.used_bytes == 0
    assert smaller.allocate(100) != 0


@pytest.mark.parametrize("size", [100, 129, 1000, 20_000, SHARED_AT_MOST])
def test_freed_objects_are_given_out_again_first(size: int) -> None:
    memory = MemoryManager(limit_bytes=4 * PAGE_BYTES)
    references = filled(memory, size)
    chosen = references[:: max(len(references) // 7, 1)]
    for reference in chosen:
        memory.free(reference)
    assert sorted(filled(memory, size)) == sorted(chosen)
    assert len(np.unique(references)) == len(references)
