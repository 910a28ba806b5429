"""States (`parts.states`) in the memory of kernel bodies: arrays of their numbers, and parts of
several arrays at once.

A slice that begins at 0 is what loops become vectors of, so bodies take the parts they work on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flowvm.meta.arrays import Array
from flowvm.ops.rows.parts.states import Arrays

INLINE_ALWAYS = True  # for flowvm.compiler.native: they stand in loops that become vectors


def _cut_1(arrays: Arrays, at: int, size: int) -> Arrays:
    return (arrays[0][at : at + size],)


def _cut_2(arrays: Arrays, at: int, size: int) -> Arrays:
    return arrays[0][at : at + size], arrays[1][at : at + size]


def _cut_3(arrays: Arrays, at: int, size: int) -> Arrays:
    a, b, c = arrays
    return a[at : at + size], b[at : at + size], c[at : at + size]


_CUT = (_cut_1, _cut_2, _cut_3)


def cut_of(count: int) -> Callable[[Arrays, int, int], Arrays]:
    """(arrays, at, size) -> that part of each of `count` arrays."""
    return _CUT[count - 1]


def memory_of(kinds: tuple[Any, ...]) -> Callable[[Array, int], Arrays]:
    """Return (bytes, size) -> arrays of `size` states of types `kinds`, one behind the other."""
    a, b, c = (*kinds, *kinds[:1] * (3 - len(kinds)))

    def one(memory: Array, size: int) -> Arrays:
        return (memory[: 8 * size].view(a)[:size],)

    def two(memory: Array, size: int) -> Arrays:
        return memory[: 8 * size].view(a)[:size], memory[8 * size : 16 * size].view(b)[:size]

    def three(memory: Array, size: int) -> Arrays:
        return (
            memory[: 8 * size].view(a)[:size],
            memory[8 * size : 16 * size].view(b)[:size],
            memory[16 * size : 24 * size].view(c)[:size],
        )

    return (one, two, three)[len(kinds) - 1]
