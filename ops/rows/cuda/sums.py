"""Reductions that are sums of one number or of two, in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from flowvm.meta.arrays import Array
from flowvm.ops.rows.cuda.fold_kernels import Reduction
from flowvm.ops.rows.parts.states import State

if TYPE_CHECKING:
    from flowvm.meta.arrays import Number


def element(x: Array, y: Array, z: Array, at: int, m: int, e: int) -> Number:
    """Return the element that a reduction of one input fetches."""
    return x[at]


def unchanged(state: State, count: int) -> State:
    """The `close` of a reduction that runs in its state."""
    return state


# --- one ------------------------------------------------------------------------------------------


def _begin(v: object, e: int) -> State:
    return (0.0,)


def _take(state: State, v: Number, e: int) -> State:
    return (state[0] + np.float64(v),)


def _take_4(state: State, a: Number, b: Number, c: Number, d: Number, e: int, step: int) -> State:
    return (state[0] + np.float64((a + b) + (c + d)),)


def _join(a: State, b: State) -> State:
    return (a[0] + b[0],)


def sum_of(fetch: Callable[..., object], stored: Any) -> Reduction:
    """The sum of the numbers that `fetch` finds, stored in NumPy's type `stored`."""

    def put(out: Array, second: Array, m: int, state: State, extra: float) -> None:
        out[m] = stored(state[0])

    return Reduction((np.float64,), fetch, _begin, _take, _take_4, unchanged, _join, put)


# --- two ------------------------------------------------------------------------------------------


def _begin_pair(v: object, e: int) -> State:
    return 0.0, 0.0


def _take_pair(state: State, v: Number, e: int) -> State:
    return state[0] + np.float64(v[0]), state[1] + np.float64(v[1])


def _take_pairs(
    state: State, a: Number, b: Number, c: Number, d: Number, e: int, step: int
) -> State:
    first = (a[0] + b[0]) + (c[0] + d[0])
    second = (a[1] + b[1]) + (c[1] + d[1])
    return state[0] + np.float64(first), state[1] + np.float64(second)


def join_pair(a: State, b: State) -> State:
    """Two pairs of sums as one."""
    return a[0] + b[0], a[1] + b[1]


def pair_of(fetch: Callable[..., object], stored: Any) -> Reduction:
    """The two sums of the pairs that `fetch` finds."""

    def put(first: Array, second: Array, m: int, state: State, extra: float) -> None:
        first[m] = stored(state[0])
        second[m] = stored(state[1])

    kinds = np.float64, np.float64
    return Reduction(kinds, fetch, _begin_pair, _take_pair, _take_pairs, unchanged, join_pair, put)
