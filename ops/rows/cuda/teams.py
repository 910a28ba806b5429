"""Threads that reduce together: how the lanes of a team join their states.

A *team* is `lanes` threads of a block that reduce one result; a block has `blockDim.x // lanes`
teams, its columns.  Lanes are neighbours where the elements of a result are (`side` False): they
join by warp shuffles, and by shared memory beyond a warp.  Where neighbouring elements belong to
neighbouring results, columns are neighbours (`side` True), and lanes join through shared memory.

A *state* is a tuple of one to three numbers, of the dtypes `kinds`.  States are joined in the order
of the lanes, so a result depends on the sizes alone, and every lane of the team gets it.

Invariants: lanes and block are powers of two, the block at least a warp and at most MOST; all
threads of a block call `together` alike.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from numba import cuda

from flowvm.ops.rows.parts.states import Arrays, State, loaded_of, stored_of

WARP = 32
MOST = 256  # threads of a block
EVERY_LANE = 0xFFFFFFFF


# --- warps ----------------------------------------------------------------------------------------


def shuffle_xor(value: object, offset: int) -> Any:
    """The value of the lane whose number differs by the bit `offset`."""
    return cuda.shfl_xor_sync(EVERY_LANE, value, offset)


# --- states of one, two and three numbers ---------------------------------------------------------


def _moved_1(state: State, offset: int) -> State:
    return (shuffle_xor(state[0], offset),)


def _moved_2(state: State, offset: int) -> State:
    return shuffle_xor(state[0], offset), shuffle_xor(state[1], offset)


def _moved_3(state: State, offset: int) -> State:
    return (
        shuffle_xor(state[0], offset),
        shuffle_xor(state[1], offset),
        shuffle_xor(state[2], offset),
    )


def _shared_1(a: object) -> Callable[[], object]:
    def allocate() -> tuple[object]:
        return (cuda.shared.array(MOST, a),)

    return allocate


def _shared_2(a: object, b: object) -> Callable[[], object]:
    def allocate() -> tuple[object, object]:
        first = cuda.shared.array(MOST, a)
        second = cuda.shared.array(MOST, b)
        return first, second

    return allocate


def _shared_3(a: object, b: object, c: object) -> Callable[[], object]:
    def allocate() -> tuple[object, object, object]:
        first = cuda.shared.array(MOST, a)
        second = cuda.shared.array(MOST, b)
        third = cuda.shared.array(MOST, c)
        return first, second, third

    return allocate


_MOVED = (_moved_1, _moved_2, _moved_3)
_SHARED: tuple[Callable[..., Callable[[], object]], ...] = (_shared_1, _shared_2, _shared_3)


# --- teams ----------------------------------------------------------------------------------------


def place_of(lanes: int, segments: int, side: bool) -> tuple[int, int, int]:
    """This thread's lane, the result that its team is for, and which of the `segments` of that
    result's elements.
    """
    thread, tile, segment = cuda.threadIdx.x, cuda.blockIdx.x, 0
    columns = cuda.blockDim.x >> cuda.popc(lanes - 1)
    if segments > 1:  # a division costs as much as some elements
        tile = cuda.blockIdx.x // segments
        segment = cuda.blockIdx.x - tile * segments
    if side:
        lane, column = thread >> cuda.popc(columns - 1), thread & (columns - 1)
    else:
        lane, column = thread & (lanes - 1), thread >> cuda.popc(lanes - 1)
    return lane, tile * columns + column, segment


class Team(NamedTuple):
    """The functions by which a kernel reduces in teams.

    shared    () -> the arrays that `together` uses; once a kernel
    together  (state, arrays, lane, lanes) -> the state of all lanes joined
    stored    (arrays, i, state); loaded: (arrays, i) -> state
    """

    shared: Callable[[], Any]
    together: Callable[..., Any]
    stored: Callable[..., None]
    loaded: Callable[..., Any]


@functools.cache
def team(join: Callable[[State, State], State], kinds: tuple[object, ...], side: bool) -> Team:
    """A team whose states, of NumPy's types `kinds`, are joined by `join`, the lower lane's first;
    it has to give the same however the states are grouped, but for rounding.
    """
    count = len(kinds)
    moved, stored, loaded = _MOVED[count - 1], stored_of(count), loaded_of(count)

    def in_warp(state: State, lane: int, lanes: int) -> State:
        offset = 1
        while offset < lanes:
            other = moved(state, offset)
            if lane & offset:
                state = join(other, state)
            else:
                state = join(state, other)
            offset *= 2
        return state

    def neighbours(state: State, arrays: Arrays, lane: int, lanes: int) -> State:
        state = in_warp(state, lane, min(lanes, WARP))
        if lanes > WARP:
            warps = lanes // WARP
            first = (cuda.threadIdx.x - lane) // WARP
            cuda.syncthreads()  # the arrays may still be read
            if lane % WARP == 0:
                stored(arrays, first + lane // WARP, state)
            cuda.syncthreads()
            place = lane & (warps - 1)
            state = in_warp(loaded(arrays, first + place), place, warps)
        return state

    def side_by_side(state: State, arrays: Arrays, lane: int, lanes: int) -> State:
        thread, near = cuda.threadIdx.x, 1
        columns = cuda.blockDim.x >> cuda.popc(lanes - 1)
        cuda.syncthreads()
        stored(arrays, thread, state)
        cuda.syncthreads()
        while near < lanes:
            if lane & (2 * near - 1) == 0:
                state = join(state, loaded(arrays, thread + near * columns))
                stored(arrays, thread, state)
            cuda.syncthreads()
            near *= 2
        return loaded(arrays, thread & (columns - 1))

    together = side_by_side if side else neighbours
    return Team(_SHARED[count - 1](*kinds), together, stored, loaded)
