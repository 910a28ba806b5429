"""Sums, products, extremes and truth over any dimensions of any strided tensor, by one kernel each.

The form of the kernel follows from which dimension of the walk has stride 1.  A reduction without a
walk is made in several steps, or copied first.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from flowvm.eager.tensor import Tensor, alias
from flowvm.launch import Launch, View
from flowvm.meta.dtype import DType, bool_, float64, int64, uint8
from flowvm.meta.meta import TensorMeta
from flowvm.ops.declare.composite import filled_of
from flowvm.ops.declare.kinds import Dims
from flowvm.ops.declare.letters import fold
from flowvm.ops.declare.registry import op, operator_of
from flowvm.ops.rows.cpu import sum_kernels
from flowvm.ops.rows.cpu.fold_launch import blocks_of, fold_launch
from flowvm.ops.rows.cpu.sum_kernels import BUFFER
from flowvm.ops.rows.parts.fold_programs import total_of
from flowvm.ops.rows.parts.fold_rules import ADD, LARGEST, MULTIPLY, SMALLEST, Rule
from flowvm.ops.rows.parts.fold_walk import Walk, kernel_input, plain, shape_without, walk_of

if TYPE_CHECKING:
    from flowvm.meta.arrays import Number

# --- launches -----------------------------------------------------------------------------------


_rows_body = functools.cache(sum_kernels.rows_body)
_columns_body = functools.cache(sum_kernels.columns_body)
_few_body = functools.cache(sum_kernels.few_body)


def _smooth(n: int) -> bool:
    """Return True if halvings and thirds of n elements are less work than a row of n."""
    if n < 8:
        return n > 1
    while n % 2 == 0:
        n //= 2
    while n % 3 == 0:
        n //= 3
    return n == 1


def _launch(
    out: TensorMeta,
    walk: Walk,
    dtypes: tuple[DType, DType],
    rules: tuple[Rule, Rule],
    lift: Callable[[Number], Number],
    divisor: float,
) -> Launch:
    floating = dtypes[0].is_floating_point
    rule = rules[not floating]
    kind: object = dtypes[0].numpy.type
    p = total_of(rule, kind, floating and bool(rule.wide))
    views = (View(dtypes[0], (walk.results,)), View(dtypes[1], (walk.extent,)))
    n = walk.elements
    short = walk.free == ((1, 0), (walk.results, n)) and walk.reduced == ((1, 0), (n, 1))
    if short and n <= 16 and _smooth(n) and not walk.in_columns:
        length = BUFFER // n
        units = -(-walk.results // length)
        arena = 2 * BUFFER * dtypes[0].itemsize
        body, consts, blocks = _few_body(rule, p, lift), (n, length, divisor), (length, n * length)
        return Launch((out,), body, views, consts, units, 16, arena=arena, blocks=blocks)
    bodies = _rows_body(rule, p, lift), _columns_body(rule, p, lift)
    launch = fold_launch((out,), bodies, views, walk, 1, divisor)
    return replace(launch, blocks=blocks_of(walk))


# --- reductions ---------------------------------------------------------------------------------


def _truth(v: object) -> object:
    return v != 0


def _square(v: Number) -> Number:
    wide = np.float64(v)  # the square of 1e30 is no float32
    return wide * wide


def _summed(dtype: DType) -> DType:
    return dtype if dtype.is_floating_point else int64


def _widest(dtype: DType) -> DType:
    return float64


def _magnitude(v: Number) -> object:
    return abs(v)


class Fold:
    """A reduction: `fold(x, dims, keepdim)`; `dims` ascend.  Its results have no autograd node.

    gives    the dtype of the result for that of x
    neutral  what nothing reduces to
    adds     the results of parts of x are summands of its own; and `linear`, it is linear in x
    again    the reduction that joins this one's results, where it takes several steps
    """

    def __init__(
        self,
        name: str,
        rules: tuple[Rule, Rule],
        gives: Callable[[DType], DType],
        neutral: int = 0,
        lift: Callable[[Number], Number] = plain,
        again: Fold | None = None,
        adds: bool = False,
        linear: bool = False,
    ) -> None:
        self.rules, self.gives, self.neutral, self.lift = rules, gives, neutral, lift
        self.again = again or self
        rule = f"reductions:fold_{name}"
        letters = fold(adds, linear)
        declared = op("x -> out", name=name, dense=False, half="native", cuda=rule, letters=letters)
        self.call = declared(self.launch)
        operator_of(self.call).rules.fallback = self._in_steps

    def launch(
        self,
        x: TensorMeta,
        dims: Dims,
        keepdim: bool,
        divisor: float = 1.0,
        dtype: DType | None = None,
    ) -> Launch:
        """Return the Launch for a tensor that has a walk; reduced floats have a float32 result."""
        kind = dtype or self.gives(x.dtype.compute)
        out = x.with_shape(shape_without(x.shape, dims, keepdim), kind)
        source, lift = kernel_input(x.dtype, self.lift)
        walk = walk_of(x, dims)
        assert walk is not None
        dtypes = (uint8 if kind is bool_ else kind, source)
        return _launch(out, walk, dtypes, self.rules, lift, divisor)

    def __call__(
        self,
        x: Tensor,
        dims: tuple[int, ...],
        keepdim: bool,
        divisor: float = 1.0,
        dtype: DType | None = None,
    ) -> Tensor:
        meta = x._meta
        if meta.numel == 0:
            kind = dtype or self.gives(meta.dtype)
            nothing = math.nan if divisor == 0 else self.neutral
            return filled_of(
                meta.with_shape(shape_without(meta.shape, dims, keepdim), kind), nothing
            )
        x = x if x._node is None else alias(x, meta)
        out: Tensor = self.call(x, dims, keepdim, divisor, dtype)
        if meta.dtype.reduced and dtype is None and self.gives(meta.dtype) is meta.dtype:
            out = out.to(meta.dtype)
        return out

    def _in_steps(
        self, x: Tensor, dims: tuple[int, ...], keepdim: bool, divisor: float, dtype: DType | None
    ) -> Tensor | None:
        """The result where no launch can make it, else None."""
        if walk_of(x._meta, dims) is not None or x._meta.dtype.minifloat:
            return None  # of a float of 8 bits: an error
        if x._meta.dtype.reduced:
            x = x.to(x._meta.dtype.compute)
        if not x._meta.contiguous:
            return self(x.contiguous(), dims, keepdim, divisor, dtype)
        k = len(dims) - 1
        while k > 0 and dims[k - 1] == dims[k] - 1:
            k -= 1
        last = self(x, dims[k:], True, 1.0, dtype)
        out = self.again(last, dims[:k], True, divisor, dtype)
        shape = shape_without(x._meta.shape, dims, keepdim)
        return alias(out, TensorMeta.of(shape, out._meta.dtype, out._meta.device))


def _same(dtype: DType) -> DType:
    return dtype


def _bools(dtype: DType) -> DType:
    return bool_


def _counts(dtype: DType) -> DType:
    return int64


add_up = Fold("sum", ADD, _summed, adds=True, linear=True)
multiply_up = Fold("prod", MULTIPLY, _summed, 1)
largest = Fold("amax", LARGEST, _same)
smallest = Fold("amin", SMALLEST, _same)
some = Fold("any", LARGEST, _bools, 0, _truth, largest)
every = Fold("all", SMALLEST, _bools, 1, _truth, smallest)
count_up = Fold("count_nonzero", ADD, _counts, 0, _truth, add_up, adds=True)
square_up = Fold("sum_of_squares", ADD, _widest, 0, _square, add_up, adds=True)
magnitude_up = Fold("sum_of_magnitudes", ADD, _summed, 0, _magnitude, add_up, adds=True)
