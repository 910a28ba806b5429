"""Reductions over dimensions: sums and their kin, extremes with their places, moments.

What is kept, joined and stored is said once for every device, by `fold_programs`; this module says
how a thread takes elements.  Float sums are kept in float64;
four float32 elements are joined before they join those.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from flowvm.cuda.launch import CudaLaunch, Operand
from flowvm.launch import Launch, View
from flowvm.meta.arrays import Array
from flowvm.meta.dtype import DType, bool_, uint8
from flowvm.meta.meta import Attrs, TensorMeta
from flowvm.ops.rows.cuda.fold_kernels import Reduction, reduction_steps
from flowvm.ops.rows.cuda.sums import element, unchanged
from flowvm.ops.rows.parts import folds
from flowvm.ops.rows.parts.fold_programs import DEVIATION, MOMENTS, Reduced, place_of, total_of
from flowvm.ops.rows.parts.fold_rules import Rule
from flowvm.ops.rows.parts.fold_walk import walk_of
from flowvm.ops.rows.parts.orders import LARGEST, SMALLEST, Order
from flowvm.ops.rows.parts.states import State

if TYPE_CHECKING:
    from flowvm.meta.arrays import Number

Rows = Callable[[Launch, tuple[TensorMeta, ...], Attrs], CudaLaunch]


def number_type(dtype: DType) -> Any:
    """NumPy's type that a kernel reckons in: reduced floats as float32, integers as int64."""
    return dtype.compute.numpy.type if dtype.is_floating_point else np.int64


def load_of(dtype: DType) -> Callable[[Number], Number]:
    """An element as `number_type`."""
    return _load(number_type(dtype))


@functools.cache
def _load(kind: Any) -> Callable[[Number], Number]:
    def load(v: Number) -> Number:
        return kind(v)

    return load


def memory_of(meta: TensorMeta, extent: int) -> View:
    """The memory of an operand as one dimension; bools are bytes."""
    return View(uint8 if meta.dtype is bool_ else meta.dtype, (extent,))


# --- sums, products, extremes, truth --------------------------------------------------------------


def put_of(p: Reduced, *stored: Any) -> Callable[..., None]:
    """The `put` of a reduction, whose results are stored as these NumPy types."""
    results = p.results
    kind, other = stored[0], stored[-1]

    def one(first: Array, second: Array, m: int, state: State, extra: float) -> None:
        first[m] = kind(results(state, extra)[0])

    def two(first: Array, second: Array, m: int, state: State, extra: float) -> None:
        a, b = results(state, extra)
        first[m] = kind(a)
        second[m] = other(b)

    return two if p.outputs == 2 else one


@functools.cache
def _fold(
    rule: Rule, lift: Callable[[Number], object], source: DType, kind: DType, divided: bool
) -> Reduction:
    keep, start, own = rule.keep, rule.start, number_type(kind)
    p = total_of(rule, own, divided)
    (wide,) = p.kinds
    load = load_of(source)

    def begin(v: object, e: int) -> State:
        return (wide(start(wide(0), wide(1), wide(own(lift(load(v)))))),)

    def take(state: State, v: object, e: int) -> State:
        return (keep(state[0], wide(own(lift(load(v))))),)

    def take_4(
        state: State, a: object, b: object, c: object, d: object, e: int, step: int
    ) -> State:
        ab = keep(own(lift(load(a))), own(lift(load(b))))
        cd = keep(own(lift(load(c))), own(lift(load(d))))
        return (keep(state[0], wide(keep(ab, cd))),)

    put = put_of(p, _stored(kind))
    return Reduction(p.kinds, element, begin, take, take_4, unchanged, p.join, put)


def _stored(kind: DType) -> Any:
    """Return NumPy's type for stored elements; bools are bytes."""
    return np.uint8 if kind is bool_ else np.dtype(kind.name).type


def fold_rule(
    fold: folds.Fold, launch: Launch, metas: tuple[TensorMeta, ...], attrs: Attrs
) -> CudaLaunch:
    """The launch of one of `folds`."""
    x, out = metas[0], launch.outputs[0]
    dims, _, divisor, *_ = (*attrs, 1.0, None) if len(attrs) > 1 else (
        tuple(range(x.ndim)), False, 1.0
    )  # fmt: skip
    walk = walk_of(x, dims)
    assert walk is not None
    rule = fold.rules[not out.dtype.is_floating_point]
    reduction = _fold(rule, fold.lift, x.dtype, out.dtype, divisor != 1.0)
    to = Operand(0, memory_of(out, walk.results))
    from_ = Operand(1, memory_of(x, walk.extent))
    steps, scratch = reduction_steps(reduction, walk, (from_,), (to, to), divisor)
    return CudaLaunch(launch.outputs, steps, scratch)


def _rule_of(fold: folds.Fold) -> Rows:
    return functools.partial(fold_rule, fold)


fold_sum = _rule_of(folds.add_up)
fold_prod = _rule_of(folds.multiply_up)
fold_amax = _rule_of(folds.largest)
fold_amin = _rule_of(folds.smallest)
fold_any = _rule_of(folds.some)
fold_all = _rule_of(folds.every)
fold_count_nonzero = _rule_of(folds.count_up)
fold_sum_of_squares = _rule_of(folds.square_up)
fold_sum_of_magnitudes = _rule_of(folds.magnitude_up)


# --- extremes and where they are ------------------------------------------------------------------


@functools.cache
def _search(order: Order, source: DType, kind: DType) -> Reduction:
    beats, p, load = order.beats, place_of(order, number_type(source)), load_of(source)

    def begin(v: object, e: int) -> State:
        return load(v), np.int64(e)

    def take(state: State, v: object, e: int) -> State:
        other = load(v)
        if beats(other, state[0]):
            return other, np.int64(e)
        return state

    def take_4(
        state: State, a: object, b: object, c: object, d: object, e: int, step: int
    ) -> State:
        state = take(take(state, a, e), b, e + step)
        return take(take(state, c, e + 2 * step), d, e + 3 * step)

    put = put_of(p, _stored(kind), np.int64)
    return Reduction(p.kinds, element, begin, take, take_4, unchanged, p.join, put)


def _search_launch(
    order: Order, launch: Launch, metas: tuple[TensorMeta, ...], attrs: Attrs
) -> CudaLaunch:
    x, (values, indices) = metas[0], launch.outputs
    walk = walk_of(x, (attrs[0],))
    assert walk is not None
    reduction = _search(order, x.dtype, values.dtype)
    to = (
        Operand(0, memory_of(values, walk.results)),
        Operand(1, View(indices.dtype, (walk.results,))),
    )
    steps, scratch = reduction_steps(reduction, walk, (Operand(2, memory_of(x, walk.extent)),), to)
    return CudaLaunch(launch.outputs, steps, scratch)


largest: Rows = functools.partial(_search_launch, LARGEST)
smallest: Rows = functools.partial(_search_launch, SMALLEST)


# --- moments --------------------------------------------------------------------------------------


@functools.cache
def moments_of(source: DType, own: Any, stored: object, p: Reduced = MOMENTS) -> Reduction:
    """Return the reduction to mean and variance, or to the numbers of `p`.

    Variance is squared distances / `extra`; distances are taken in the type `own`.

    A lane sums distances from the segment's first element and their squares: that element is one of
    the set, so little cancels.
    """
    load = load_of(source)
    zero = own(0)

    def begin(v: Number, e: int) -> State:
        first = own(load(v))
        if not abs(first) < np.inf:  # then the mean is infinite, too
            first = zero
        return first, 0.0, 0.0

    def take(state: State, v: Number, e: int) -> State:
        d = np.float64(own(load(v)) - state[0])
        return state[0], state[1] + d, state[2] + d * d

    def take_4(
        state: State, a: Number, b: Number, c: Number, d: Number, e: int, step: int
    ) -> State:
        first = state[0]
        p, q = own(load(a)) - first, own(load(b)) - first
        r, s = own(load(c)) - first, own(load(d)) - first
        total = np.float64((p + q) + (r + s))
        a2, b2 = np.float64(p) * np.float64(p), np.float64(q) * np.float64(q)
        c2, d2 = np.float64(r) * np.float64(r), np.float64(s) * np.float64(s)
        return first, state[1] + total, state[2] + ((a2 + b2) + (c2 + d2))

    def close(state: State, number: int) -> State:
        if number == 0:
            return 0.0, 0.0, 0.0
        count = np.float64(number)
        off = state[1] / count
        return count, np.float64(state[0]) + off, max(state[2] - state[1] * off, 0.0)

    put = put_of(p, stored, stored)
    return Reduction(p.kinds, element, begin, take, take_4, close, p.join, put)


def moments(launch: Launch, metas: tuple[TensorMeta, ...], attrs: Attrs) -> CudaLaunch:
    """Variance, or its root, and mean over dimensions."""
    x, (dims, _, freedom, root, _) = metas[0], attrs
    walk = walk_of(x, dims)
    assert walk is not None
    kind = launch.outputs[0].dtype
    p = DEVIATION if root else MOMENTS
    reduction = moments_of(x.dtype, np.float64, number_type(kind), p)
    to = tuple(Operand(k, View(kind, (walk.results,))) for k in range(2))
    steps, scratch = reduction_steps(
        reduction, walk, (Operand(2, memory_of(x, walk.extent)),), (to[0], to[1]), freedom
    )
    return CudaLaunch(launch.outputs, steps, scratch)
