"""Memory by address: what the compiled kernels of the queue stand on.

A kernel gets addresses, not arrays: an array argument costs reference counting on each
call, and a structure that grows in place could not be passed once and kept. So one
`Region` reserves address space up front, the operating system supplies pages when they
are first touched, and records and bytes in it never move.

    load_u8(address) ... load_f64(address)      unaligned loads
    store_u8(address, value) ...                unaligned stores
    copy(to, source, size), same(a, b, size)    bytes
    record_at(dtype)                            a function: address -> record, by reference

All addresses and sizes are int64; mixing in uint64 would make numba compute in floats.
"""

from __future__ import annotations

import ctypes
import hashlib
import mmap
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pyarrow as pa
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

__all__ = [
    "Region",
    "address_of",
    "clear",
    "copy",
    "copy_short",
    "f64",
    "i64",
    "inlined",
    "kernel",
    "load_f32",
    "load_f64",
    "load_i8",
    "load_i16",
    "load_i32",
    "load_i64",
    "load_u8",
    "load_u16",
    "load_u32",
    "load_u64",
    "prefetch",
    "record_at",
    "same",
    "store_f32",
    "store_f64",
    "store_i8",
    "store_i16",
    "store_i32",
    "store_i64",
    "store_u8",
    "store_u16",
    "store_u32",
    "store_u64",
]

# Conversions within kernels; to a type checker a kernel's numbers are of any type.
i64: Any = np.int64
f64: Any = np.float64

KERNEL_FOLDERS = ("queue", "staleness", "windows")


def kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile; kernels release the interpreter lock, for they touch no Python object."""
    return _cached(njit(cache=True, nogil=True, error_model="numpy")(function))


def inlined(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile for use in other kernels, once per row, where a call costs as much as the work."""
    return _cached(njit(cache=True, nogil=True, error_model="numpy", forceinline=True)(function))


@cache
def _sources_stamp() -> str:
    """A hash of every file that may hold a kernel."""
    package, found = Path(__file__).parent.parent, hashlib.blake2b()
    for folder in KERNEL_FOLDERS:
        for path in sorted((package / folder).glob("*.py")):
            source = path.read_bytes()
            if b"numba" in source or b"upstream.queue.raw" in source:
                found.update(source)
    return found.hexdigest()


def _cached(dispatcher: Any) -> Callable[..., Any]:
    """Compile anew when any kernel changes: numba looks at a kernel's own file only, but a
    compiled kernel contains those that it calls."""
    dispatcher._cache._cache_file._source_stamp = _sources_stamp()
    return dispatcher


_MAP_NORESERVE = 0x4000 if hasattr(mmap, "MAP_ANONYMOUS") else 0


class Region:
    """A range of zeroed address space whose pages cost nothing until they are touched."""

    def __init__(self, size: int) -> None:
        self.size = max(-(-size // mmap.PAGESIZE), 1) * mmap.PAGESIZE
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        self._map = mmap.mmap(-1, self.size, flags=flags)
        # With small pages, finding the page costs as much as the memory behind it.
        if hasattr(mmap, "MADV_HUGEPAGE"):
            self._map.madvise(mmap.MADV_HUGEPAGE)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))

    def array(self, dtype: np.dtype[Any], count: int) -> NDArray[Any]:
        """The first `count` elements as an array that shares the memory."""
        return np.frombuffer(self._map, dtype=dtype, count=count)

    def bytes(self, start: int, stop: int) -> memoryview:
        """A window onto the memory."""
        return memoryview(self._map)[start:stop]

    def give_back(self, start: int, size: int) -> None:
        """Return whole pages to the operating system; they read as zeros afterwards."""
        self._map.madvise(mmap.MADV_DONTNEED, start, size)


def address_of(array: NDArray[Any]) -> int:
    """Where an array's data begin."""
    return pa.py_buffer(array).address  # the cheapest way to it


def _loader(numba_type: types.Type) -> Any:
    @intrinsic
    def load(typing_context: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            llvm_type = context.get_value_type(numba_type)
            pointer = builder.inttoptr(arguments[0], llvm_type.as_pointer())
            loaded = builder.load(pointer)
            loaded.align = 1
            return loaded

        return numba_type(types.int64), generate

    return load


def _storer(numba_type: types.Type) -> Any:
    @intrinsic
    def store(typing_context: Any, address: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            llvm_type = context.get_value_type(numba_type)
            pointer = builder.inttoptr(arguments[0], llvm_type.as_pointer())
            builder.store(arguments[1], pointer).align = 1
            return context.get_dummy_value()

        return types.void(types.int64, numba_type), generate

    return store


load_i8, store_i8 = _loader(types.int8), _storer(types.int8)
load_i16, store_i16 = _loader(types.int16), _storer(types.int16)
load_i32, store_i32 = _loader(types.int32), _storer(types.int32)
load_i64, store_i64 = _loader(types.int64), _storer(types.int64)
load_u8, store_u8 = _loader(types.uint8), _storer(types.uint8)
load_u16, store_u16 = _loader(types.uint16), _storer(types.uint16)
load_u32, store_u32 = _loader(types.uint32), _storer(types.uint32)
load_u64, store_u64 = _loader(types.uint64), _storer(types.uint64)
load_f32, store_f32 = _loader(types.float32), _storer(types.float32)
load_f64, store_f64 = _loader(types.float64), _storer(types.float64)


def _copy(typing_context: Any, to: Any, source: Any, size: Any) -> Any:
    """Copy `size` bytes between ranges that do not overlap."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        to_pointer = builder.inttoptr(arguments[0], cgutils.voidptr_t)
        source_pointer = builder.inttoptr(arguments[1], cgutils.voidptr_t)
        cgutils.raw_memcpy(builder, to_pointer, source_pointer, arguments[2], 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


copy: Any = intrinsic(_copy)


def _clear(typing_context: Any, address: Any, size: Any) -> Any:
    """Set `size` bytes to zero."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], cgutils.voidptr_t)
        cgutils.memset(builder, pointer, arguments[1], 0)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


clear: Any = intrinsic(_clear)


def _prefetch(typing_context: Any, address: Any) -> Any:
    """Ask the processor to bring the cache line of an address near."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], cgutils.voidptr_t)
        i32 = ir.IntType(32)
        function_type = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, i32, i32, i32])
        function = cgutils.get_or_insert_function(builder.module, function_type, "llvm.prefetch.p0")
        builder.call(function, [pointer, i32(0), i32(3), i32(1)])
        return context.get_dummy_value()

    return types.void(types.int64), generate


prefetch: Any = intrinsic(_prefetch)


@inlined
def same(a: int, b: int, size: int) -> bool:
    """Whether two ranges of `size` bytes hold the same."""
    if size >= 8:
        at = 0
        while at + 8 < size:
            if load_u64(a + at) != load_u64(b + at):
                return False
            at += 8
        return load_u64(a + size - 8) == load_u64(b + size - 8)
    if size >= 4:
        return load_u32(a) == load_u32(b) and load_u32(a + size - 4) == load_u32(b + size - 4)
    for at in range(size):
        if load_u8(a + at) != load_u8(b + at):
            return False
    return True


@inlined
def copy_short(to: int, source: int, size: int) -> None:
    """Copy a few bytes, at most 16, without a call."""
    if size >= 8:
        head, tail = load_u64(source), load_u64(source + size - 8)
        store_u64(to, head)
        store_u64(to + size - 8, tail)
    elif size >= 4:
        first, last = load_u32(source), load_u32(source + size - 4)
        store_u32(to, first)
        store_u32(to + size - 4, last)
    else:
        for at in range(size):
            store_u8(to + at, load_u8(source + at))


def record_at(dtype: np.dtype[Any]) -> Any:
    """A kernel function that turns an address into a record of `dtype`, by reference."""
    record_type = numba.from_dtype(dtype)

    @intrinsic
    def at(typing_context: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], context.get_value_type(record_type))

        return record_type(types.int64), generate

    return at
