"""The Memory Manager: where the updates of a queue live.

Memory is a pool of 64 KiB pages in one reserved region. A page serves objects of one
size, counted in units of 16 bytes; a freed object is the next to be given out, a page
without objects goes back to the pool, and a pool with many idle pages returns them to
the operating system. What is larger than half a page gets a run of pages of its own.

    page 1: 3-unit objects        page 2: free      pages 3-6: one large object
    [##|##|..|##|  never used  ]  [          ]      [####################     ]
          ^ free list

An object is named by a *reference*, its distance from the start of the region in units:
it fits into 32 bits, survives a dump and a reload at another address, and 0 is none.

The limit is hard: `allocate` answers 0 instead of passing it, and the caller decides
what happens then. `other_bytes` is what the rest of the queue reports as its own.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from upstream.queue.raw import (
    Region,
    address_of,
    i64,
    kernel,
    load_u16,
    load_u32,
    record_at,
    store_u16,
    store_u32,
)

__all__ = ["PAGE_BYTES", "POOL", "UNIT_BYTES", "MemoryManager", "allocate", "free", "has_room"]

UNIT_BYTES = 16
PAGE_BYTES = 65536
UNITS_PER_PAGE = PAGE_BYTES // UNIT_BYTES
LARGEST_SHARED = UNITS_PER_PAGE // 2
LARGE = 0xFFFF
MOST_PAGES = 2**32 // UNITS_PER_PAGE

POOL = np.dtype(
    [
        ("base", "i8"),  # address of the region
        ("pages", "i8"),  # address of the page table
        ("partial", "i8"),  # address of the heads of the lists of pages with room, by units
        ("reserved", "i8"),  # pages in the region
        ("top", "i8"),  # pages below were used at least once; page 0 never is
        ("used_pages", "i8"),
        ("free_pages", "i8"),  # pages below `top` that hold nothing
        ("idle_pages", "i8"),  # those of them that the operating system still holds
        ("free_head", "i8"),
        ("other_bytes", "i8"),
        ("limit_bytes", "i8"),
    ]
)

USED_PAGES, IDLE_PAGES, OTHER_BYTES = (
    list(POOL.names or ()).index(name) for name in ("used_pages", "idle_pages", "other_bytes")
)

PAGE = np.dtype(
    [
        ("units", "u2"),  # size of its objects; 0: free; LARGE: first page of a run
        ("used", "u2"),  # objects given out
        ("bump", "u2"),  # objects that were given out at least once
        ("free", "u2"),  # 1 + index of the first freed object, 0: none
        ("next", "u4"),  # neighbours in the list of free pages, or of pages with room
        ("prev", "u4"),
        ("run", "u4"),  # pages of a large object
        ("touched", "u4"),  # 1 while the operating system holds memory for it
    ]
)
PAGE_RECORD_BYTES = PAGE.itemsize

pool_at = record_at(POOL)
page_at = record_at(PAGE)


@kernel
def _page(pool: Any, number: int) -> Any:
    return page_at(pool.pages + number * PAGE_RECORD_BYTES)


@kernel
def object_units(size: int) -> int:
    """The units that an object of `size` bytes takes: a quarter of an octave at most is lost."""
    units = max((size + UNIT_BYTES - 1) // UNIT_BYTES, 1)
    if units <= 8:
        return units
    step = 1
    while units > 8 * step:
        step *= 2
    return (units + step - 1) // step * step


@kernel
def has_room(pool: Any, size: int) -> bool:
    """Whether `size` more bytes stay within the limit."""
    used: bool = pool.used_pages * PAGE_BYTES + pool.other_bytes + size <= pool.limit_bytes
    return used


@kernel
def _push(pool: Any, head: int, number: int) -> None:
    page = _page(pool, number)
    page.prev = 0
    page.next = head
    if head != 0:
        _page(pool, head).prev = number


@kernel
def _unlink(pool: Any, number: int) -> int:
    """Take a page out of its list; answers the page that follows it."""
    page = _page(pool, number)
    if page.prev != 0:
        _page(pool, page.prev).next = page.next
    if page.next != 0:
        _page(pool, page.next).prev = page.prev
    return i64(page.next)


@kernel
def _take_pages(pool: Any, count: int) -> int:
    """The first of `count` pages in a row, or 0 at the limit."""
    if not has_room(pool, count * PAGE_BYTES):
        return 0
    first = 0
    if count == 1 and pool.free_head != 0:
        first = pool.free_head
    elif pool.free_pages >= count and count > 1:
        run = 0
        for number in range(1, pool.top):
            run = run + 1 if _page(pool, number).units == 0 else 0
            if run == count:
                first = number - count + 1
                break
    if first != 0:
        for number in range(first, first + count):
            following = _unlink(pool, number)
            if pool.free_head == number:
                pool.free_head = following
            pool.idle_pages -= i64(_page(pool, number).touched)
        pool.free_pages -= count
    else:
        if pool.top + count > pool.reserved:
            return 0
        first = pool.top
        pool.top += count
    pool.used_pages += count
    for number in range(first, first + count):
        _page(pool, number).touched = 1
    return i64(first)


@kernel
def _return_pages(pool: Any, first: int, count: int) -> None:
    for number in range(first, first + count):
        page = _page(pool, number)
        page.units = 0
        page.used = 0
        page.bump = 0
        page.free = 0
        _push(pool, pool.free_head, number)
        pool.free_head = number
    pool.free_pages += count
    pool.idle_pages += count
    pool.used_pages -= count


@kernel
def allocate(pool: Any, size: int) -> int:
    """A reference to `size` bytes, or 0 where the limit forbids it."""
    units = object_units(size)
    if units > LARGEST_SHARED:
        count = (size + PAGE_BYTES - 1) // PAGE_BYTES
        number = _take_pages(pool, count)
        if number == 0:
            return 0
        for inner in range(number, number + count):
            _page(pool, inner).units = LARGE
        _page(pool, number).run = count
        return number * UNITS_PER_PAGE
    partial = pool.partial + units * 4
    number = i64(load_u32(partial))
    if number == 0:
        number = _take_pages(pool, 1)
        if number == 0:
            return 0
        page = _page(pool, number)
        page.units = units
        page.used = 0
        page.bump = 0
        page.free = 0
        _push(pool, 0, number)
        store_u32(partial, number)
    page = _page(pool, number)
    start = number * UNITS_PER_PAGE
    if page.free != 0:
        reference = start + (i64(page.free) - 1) * units
        page.free = load_u16(pool.base + reference * UNIT_BYTES)
    else:
        reference = start + i64(page.bump) * units
        page.bump += 1
    page.used += 1
    if page.used == UNITS_PER_PAGE // units:
        store_u32(partial, _unlink(pool, number))
    return reference


@kernel
def free(pool: Any, reference: int) -> None:
    """Give an object back; its page knows its size."""
    number = reference // UNITS_PER_PAGE
    page = _page(pool, number)
    if page.units == LARGE:
        _return_pages(pool, number, i64(page.run))
        return
    units = i64(page.units)
    partial = pool.partial + units * 4
    if page.used == UNITS_PER_PAGE // units:
        head = i64(load_u32(partial))
        _push(pool, head, number)
        store_u32(partial, number)
    store_u16(pool.base + reference * UNIT_BYTES, page.free)
    page.free = (reference - number * UNITS_PER_PAGE) // units + 1
    page.used -= 1
    if page.used == 0:
        following = _unlink(pool, number)
        if i64(load_u32(partial)) == number:
            store_u32(partial, following)
        _return_pages(pool, number, 1)


class MemoryManager:
    """A page pool with a hard limit.

    >>> memory = MemoryManager(limit_bytes=10 * PAGE_BYTES)
    >>> small, large = memory.allocate(40), memory.allocate(3 * PAGE_BYTES)
    >>> memory.used_bytes // PAGE_BYTES
    4
    >>> memory.allocate(7 * PAGE_BYTES)  # past the limit
    0
    >>> memory.free(large)
    >>> memory.used_bytes // PAGE_BYTES
    1
    """

    def __init__(self, *, limit_bytes: int) -> None:
        # Twice the limit, in address space only: what is given back is never refused.
        self._reserve(min(2 * (limit_bytes // PAGE_BYTES) + 16, MOST_PAGES))
        self._partial = np.zeros(LARGEST_SHARED + 1, np.uint32)
        self.pool = np.zeros(1, POOL)
        self.address = address_of(self.pool)  # where the kernels find the pool
        self._integers = self.pool.view(np.int64).data
        self._place()
        self.pool["top"] = 1
        self.pool["limit_bytes"] = limit_bytes

    def _reserve(self, pages: int) -> None:
        self._region = Region(pages * PAGE_BYTES)
        self._page_region = Region(pages * PAGE.itemsize)
        self._reserved = pages

    def _place(self) -> None:
        self.pool["base"] = self._region.address
        self.pool["pages"] = self._page_region.address
        self.pool["partial"] = address_of(self._partial)
        self.pool["reserved"] = self._reserved

    def allocate(self, size: int) -> int:
        """A reference to `size` bytes, or 0 where the limit forbids it."""
        return int(_allocate(self.address, size))

    def free(self, reference: int) -> None:
        """Give an object back."""
        _free(self.address, reference)

    def at(self, reference: int) -> int:
        """The address of an object."""
        return self._region.address + reference * UNIT_BYTES

    @property
    def used_bytes(self) -> int:
        """Bytes of the pages that hold something."""
        return self._integers[USED_PAGES] * PAGE_BYTES

    @property
    def other_bytes(self) -> int:
        """What the rest of the queue needs; it counts against the limit too."""
        return self._integers[OTHER_BYTES]

    @other_bytes.setter
    def other_bytes(self, size: int) -> None:
        self._integers[OTHER_BYTES] = size

    @property
    def resident_bytes(self) -> int:
        """Bytes that the operating system holds for the pool: idle pages included."""
        touched = int(np.count_nonzero(self._pages()["touched"]))
        return touched * PAGE_BYTES + int(self.pool["top"][0]) * PAGE.itemsize

    def trim(self) -> None:
        """Return idle pages to the operating system when they are more than a quarter."""
        if self._integers[IDLE_PAGES] * 4 <= self._integers[USED_PAGES] + 64:
            return
        pages = self._pages()
        idle = np.flatnonzero((pages["units"] == 0) & (pages["touched"] != 0))
        idle = idle[idle > 0]
        pages["touched"][idle] = 0
        self._integers[IDLE_PAGES] = 0
        breaks = np.flatnonzero(np.diff(idle) != 1) + 1
        for run in np.split(idle, breaks):
            self._region.give_back(int(run[0]) * PAGE_BYTES, len(run) * PAGE_BYTES)

    def _pages(self) -> Any:
        return self._page_region.array(PAGE, int(self.pool["top"][0]))

    @property
    def dump_bytes(self) -> int:
        """The size of a dump."""
        return int(self.pool["top"][0]) * PAGE_BYTES

    def dump(self) -> list[Any]:
        """The pool as buffers, to be taken in by `load`."""
        used = int(self.pool["top"][0]) * PAGE_BYTES
        return [
            self.pool.tobytes(),
            self._partial.tobytes(),
            self._pages().tobytes(),
            self._region.bytes(0, used),
        ]

    def load(self, buffers: list[Any]) -> None:
        """Become the pool that was dumped; the limit stays as it is."""
        limit = int(self.pool["limit_bytes"][0])
        self.pool[:] = np.frombuffer(buffers[0], POOL)
        self._partial[:] = np.frombuffer(buffers[1], np.uint32)
        top = int(self.pool["top"][0])
        if top > self._reserved:
            self._reserve(top)
        self._place()
        self.pool["limit_bytes"] = limit
        self._pages()[:] = np.frombuffer(buffers[2], PAGE)
        self._pages()["touched"] = 1
        self.pool["idle_pages"] = self.pool["free_pages"]
        self._region.bytes(0, top * PAGE_BYTES)[:] = memoryview(buffers[3]).cast("B")

    def check(self) -> None:
        """Assert the pool's invariants; for tests."""
        pool, pages = self.pool[0], self._pages()[1:]
        shared = pages[(pages["units"] != 0) & (pages["units"] != LARGE)]
        assert np.count_nonzero(pages["units"] == 0) == pool["free_pages"]
        idle = np.count_nonzero((pages["units"] == 0) & (pages["touched"] != 0))
        assert idle == pool["idle_pages"]
        assert len(pages) == pool["free_pages"] + pool["used_pages"]
        assert np.all(shared["used"] > 0), "an empty page did not go back to the pool"
        assert np.all(shared["used"] <= shared["bump"])
        assert np.all(shared["bump"] <= UNITS_PER_PAGE // shared["units"])


@kernel
def _allocate(pool_address: int, size: int) -> int:
    return allocate(pool_at(pool_address), size)


@kernel
def _free(pool_address: int, reference: int) -> None:
    free(pool_at(pool_address), reference)
