"""States of reductions and scans: the numbers that describe the elements seen so far.

A *state* is a tuple of one to three numbers; many lie in as many arrays, number by number.  Kernels
of every device call these functions, which stand here by the number of numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from flowvm.meta.arrays import Array, Number

INLINE_ALWAYS = True  # for flowvm.compiler.native: they stand in loops that become vectors
State: TypeAlias = tuple[Number, ...]
Arrays: TypeAlias = tuple[Array, ...]  # of a state's numbers, one for each


def _stored_1(arrays: Arrays, i: int, state: State) -> None:
    arrays[0][i] = state[0]


def _stored_2(arrays: Arrays, i: int, state: State) -> None:
    arrays[0][i] = state[0]
    arrays[1][i] = state[1]


def _stored_3(arrays: Arrays, i: int, state: State) -> None:
    arrays[0][i] = state[0]
    arrays[1][i] = state[1]
    arrays[2][i] = state[2]


def _loaded_1(arrays: Arrays, i: int) -> State:
    return (arrays[0][i],)


def _loaded_2(arrays: Arrays, i: int) -> State:
    return arrays[0][i], arrays[1][i]


def _loaded_3(arrays: Arrays, i: int) -> State:
    return arrays[0][i], arrays[1][i], arrays[2][i]


_STORED = (_stored_1, _stored_2, _stored_3)
_LOADED = (_loaded_1, _loaded_2, _loaded_3)


def stored_of(count: int) -> Callable[[Arrays, int, State], None]:
    """(arrays, i, state): keeps a state of `count` numbers as number i."""
    return _STORED[count - 1]


def loaded_of(count: int) -> Callable[[Arrays, int], State]:
    """(arrays, i) -> the state that is kept there."""
    return _LOADED[count - 1]
