"""Running sums, products and extremes, and logcumsumexp along a dimension (`running`).

What joins two elements is written once for every device, in `fold_rules`, `orders` and
`exponential_sums`; this module puts it into the form of `running`.  Float sums and products are
kept in float64, so a result is rounded once.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from flowvm.cuda.launch import CudaLaunch
from flowvm.launch import Launch
from flowvm.meta.dtype import DType, bool_
from flowvm.meta.meta import TensorMeta
from flowvm.ops.rows.cuda.reductions import load_of, number_type
from flowvm.ops.rows.cuda.scan_kernels import Scan, scan_launch
from flowvm.ops.rows.parts.exponential_sums import element_sum, joined, logarithm, nothing
from flowvm.ops.rows.parts.fold_rules import ADD, MULTIPLY, Rule
from flowvm.ops.rows.parts.orders import LARGEST, SMALLEST, Order

Array = Any
State = Any
Metas = tuple[TensorMeta, ...]
Attrs = tuple[Any, ...]


# --- scans ----------------------------------------------------------------------------------------


@functools.cache
def _running(rule: Rule, source: DType, kind: DType) -> Scan:
    keep, wide, stored = rule.keep, np.dtype(rule.wide).type, number_type(kind)
    load, start = load_of(source), wide(rule.neutral)

    def neutral() -> State:
        return (start,)

    def lift(v: Any, k: int) -> State:
        return (wide(load(v)),)

    def join(a: State, b: State) -> State:
        return (keep(a[0], b[0]),)

    def put(out: Array, second: Array, at: int, state: State) -> None:
        out[at] = stored(state[0])

    return Scan((wide,), neutral, lift, join, put)


@functools.cache
def _extreme(order: Order, source: DType) -> Scan:
    """Place -1 is nothing's."""
    load, kind, follows = load_of(source), number_type(source), order.follows
    stored = np.uint8 if source is bool_ else np.dtype(source.name).type
    zero = kind(0)

    def neutral() -> State:
        return zero, np.int64(-1)

    def lift(v: Any, k: int) -> State:
        return load(v), np.int64(k)

    def join(a: State, b: State) -> State:
        if b[1] < 0:
            return a
        if a[1] < 0 or follows(a[0], b[0]):
            return b
        return a

    def put(values: Array, indices: Array, at: int, state: State) -> None:
        values[at] = stored(state[0])
        indices[at] = state[1]

    return Scan((kind, np.int64), neutral, lift, join, put)


@functools.cache
def _exponentials(source: DType) -> Scan:
    load, stored = load_of(source), number_type(source)

    def lift(v: Any, k: int) -> State:
        return element_sum(np.float64(load(v)))

    def put(out: Array, second: Array, at: int, state: State) -> None:
        out[at] = stored(logarithm(state))

    return Scan((np.float64, np.float64), nothing, lift, joined, put)


# --- rules ----------------------------------------------------------------------------------------


def _total(rules: tuple[Rule, Rule], launch: Launch, metas: Metas) -> Scan:
    kind = launch.outputs[0].dtype
    return _running(rules[not kind.is_floating_point], metas[0].dtype, kind)


def cumsum(launch: Launch, metas: Metas, attrs: Attrs) -> CudaLaunch:
    """Running sums."""
    return scan_launch(launch, metas, attrs[0], _total(ADD, launch, metas), bool(attrs[1]))


def cumprod(launch: Launch, metas: Metas, attrs: Attrs) -> CudaLaunch:
    """Running products."""
    return scan_launch(launch, metas, attrs[0], _total(MULTIPLY, launch, metas))


def cummax(launch: Launch, metas: Metas, attrs: Attrs) -> CudaLaunch:
    """The largest so far, and where it is."""
    return scan_launch(launch, metas, attrs[0], _extreme(LARGEST, metas[0].dtype))


def cummin(launch: Launch, metas: Metas, attrs: Attrs) -> CudaLaunch:
    """The smallest so far, and where it is."""
    return scan_launch(launch, metas, attrs[0], _extreme(SMALLEST, metas[0].dtype))


def logcumsumexp(launch: Launch, metas: Metas, attrs: Attrs) -> CudaLaunch:
    """Logarithms of running sums of exponentials."""
    return scan_launch(launch, metas, attrs[0], _exponentials(metas[0].dtype))
