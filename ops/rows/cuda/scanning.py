"""Running sums, products and extremes, and logcumsumexp along a dimension (`running`).

Float sums and products are kept in float64, so a result is rounded once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from flowvm.cuda.launch import CudaLaunch
from flowvm.dtype import DType, bool_
from flowvm.launch import Launch
from flowvm.meta import TensorMeta
from flowvm.ops.rows.cpu import scan_kernels
from flowvm.ops.rows.cuda.folding import load_of, number_type
from flowvm.ops.rows.cuda.running import Scan, scan_launch
from flowvm.ops.scalar.functions import exp, log

Array = Any
State = Any
Metas = tuple[TensorMeta, ...]
Attrs = tuple[Any, ...]


# --- scans ----------------------------------------------------------------------------------------


def _plus(a: State, b: State) -> State:
    return (a[0] + b[0],)


def _times(a: State, b: State) -> State:
    return (a[0] * b[0],)


@functools.cache
def _running(given: DType, kind: DType, product: bool) -> Scan:
    wide = np.float64 if kind.is_floating_point else np.int64
    stored, load, start = number_type(kind), load_of(given), wide(int(product))

    def neutral() -> State:
        return (start,)

    def lift(v: Any, k: int) -> State:
        return (wide(load(v)),)

    def put(out: Array, second: Array, at: int, state: State) -> None:
        out[at] = stored(state[0])

    return Scan((wide,), neutral, lift, _times if product else _plus, put)


@functools.cache
def _extreme(stays: Callable[[Any, Any], Any], given: DType) -> Scan:
    """The last of equals wins, and every NaN; place -1 is nothing's."""
    load, kind = load_of(given), number_type(given)
    stored = np.uint8 if given is bool_ else np.dtype(given.name).type
    zero = kind(0)

    def neutral() -> State:
        return zero, np.int64(-1)

    def lift(v: Any, k: int) -> State:
        return load(v), np.int64(k)

    def join(a: State, b: State) -> State:
        if b[1] < 0:
            return a
        if a[1] < 0 or b[0] != b[0] or (a[0] == a[0] and not stays(a[0], b[0])):
            return b
        return a

    def put(values: Array, indices: Array, at: int, state: State) -> None:
        values[at] = stored(state[0])
        indices[at] = state[1]

    return Scan((kind, np.int64), neutral, lift, join, put)


@functools.cache
def _exponentials(given: DType) -> Scan:
    """The largest so far, and the sum of exp(x - it); -inf adds nothing, inf stays inf."""
    load, stored = load_of(given), number_type(given)
    lowest = np.finfo(np.float64).min

    def neutral() -> State:
        return lowest, 0.0

    def lift(v: Any, k: int) -> State:
        x = np.float64(load(v))
        if x > -np.inf:
            return x, 1.0
        return lowest, x - x if x != x else 0.0

    def join(a: State, b: State) -> State:
        if a[0] < b[0]:
            return b[0], a[1] * exp(a[0] - b[0]) + b[1]
        if b[0] < a[0]:
            return a[0], a[1] + b[1] * exp(b[0] - a[0])
        return a[0], a[1] + b[1]

    def put(out: Array, second: Array, at: int, state: State) -> None:
        out[at] = stored(state[0] + log(state[1]) if state[1] != 0.0 else -np.inf)

    return Scan((np.float64, np.float64), neutral, lift, join, put)


# --- rules ----------------------------------------------------------------------------------------


def cumsum(launch: Launch, metas: Metas, attrs: Attrs) -> CudaLaunch:
    """Running sums."""
    made = _running(metas[0].dtype, launch.outputs[0].dtype, False)
    return scan_launch(launch, metas, attrs[0], made, bool(attrs[1]))


def cumprod(launch: Launch, metas: Metas, attrs: Attrs) -> CudaLaunch:
    """Running products."""
    made = _running(metas[0].dtype, launch.outputs[0].dtype, True)
    return scan_launch(launch, metas, attrs[0], made)


def cummax(launch: Launch, metas: Metas, attrs: Attrs) -> CudaLaunch:
    """The largest so far, and where it is."""
    return scan_launch(launch, metas, attrs[0], _extreme(scan_kernels.LARGEST, metas[0].dtype))


def cummin(launch: Launch, metas: Metas, attrs: Attrs) -> CudaLaunch:
    """The smallest so far, and where it is."""
    return scan_launch(launch, metas, attrs[0], _extreme(scan_kernels.SMALLEST, metas[0].dtype))


def logcumsumexp(launch: Launch, metas: Metas, attrs: Attrs) -> CudaLaunch:
    """Logarithms of running sums of exponentials."""
    return scan_launch(launch, metas, attrs[0], _exponentials(metas[0].dtype))
