"""The kernels of reductions, and how a reduction over any dimensions comes down to them.

A reduction over adjacent dimensions sees its input as [outer, n, inner], so one kernel serves all
shapes; dimensions that are not adjacent are reduced one group after another.  A long n is cut into
blocks of a fixed size whose results are reduced again: blocks are what threads share, and a float
sum of many numbers keeps its digits.  Where the blocks lie depends on the shape alone, so the
result does not depend on the number of threads.

Invariant: a kernel's result for one output element does not depend on which others are in its range
of units.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from flowvm.dtype import DType, bool_, float16, float32, int64, uint8
from flowvm.meta import TensorMeta
from flowvm.ops.registry import GRAIN, Launch, View, op
from flowvm.tensor import Tensor, alias

__all__ = [
    "ROW_LIMIT",
    "Fold",
    "add_up",
    "every",
    "largest",
    "multiply_up",
    "shape_without",
    "smallest",
    "some",
    "whole_sum",
]

Array = Any
ROW_LIMIT, ROW_BLOCK = 1 << 16, 1 << 15  # n is cut beyond the limit; where it is the last dimension
COLUMN_LIMIT, COLUMN_BLOCK = 512, 256  # where it is not
SUB_BLOCK = 1024  # elements that are summed in their own dtype before they join a float64


# --- bodies -----------------------------------------------------------------------------------


def _add_body(
    out: Array,
    x: Array,
    n: int,
    block: int,
    blocks: int,
    inner: int,
    divisor: float,
    lo: int,
    hi: int,
) -> None:
    """Sums; x and out are flat.  A unit is an element of out, [outer, blocks, inner]."""
    if inner == 1:
        for unit in range(lo, hi):
            row = unit // blocks
            start = row * n + (unit - row * blocks) * block
            stop = min(start + block, row * n + n)
            total = _wide(out.dtype.type(0))
            while start < stop:
                part = x[start : min(start + SUB_BLOCK, stop)]
                few = out.dtype.type(0)
                for i in range(len(part)):
                    few += part[i]
                total += few
                start += SUB_BLOCK
            if divisor == 1.0:  # not a conditional expression: it would make integers floats
                out[unit] = total
            else:
                out[unit] = out.dtype.type(total / divisor)
        return
    unit = lo
    while unit < hi:
        row = unit // inner
        column = unit - row * inner
        width = min(inner - column, hi - unit)
        outer = row // blocks
        first = (row - outer * blocks) * block
        sums = out[unit : unit + width]
        sums[:] = 0
        for j in range(outer * n + first, outer * n + min(first + block, n)):
            start = j * inner + column
            part = x[start : start + width]
            for i in range(width):
                sums[i] += part[i]
        if divisor != 1.0:
            for i in range(width):
                sums[i] = out.dtype.type(sums[i] / divisor)
        unit += width


def _wide(x: Any) -> Any:
    """Zero in the type that totals are kept in: float64 or int64."""
    return x * 1


def _folding(combine: Callable[[Any, Any], Any]) -> Callable[..., None]:
    """A body like `_add_body` for a `combine` that is associative, n at least 1."""

    def body(
        out: Array, x: Array, n: int, block: int, blocks: int, inner: int, lo: int, hi: int
    ) -> None:
        if inner == 1:
            for unit in range(lo, hi):
                row = unit // blocks
                start = row * n + (unit - row * blocks) * block
                part = x[start : min(start + block, row * n + n)]
                most = len(part)
                if most < 8:
                    total = out.dtype.type(part[0])
                    for i in range(1, most):
                        total = combine(total, part[i])
                    out[unit] = total
                    continue
                a, b = out.dtype.type(part[0]), out.dtype.type(part[1])
                c, d = out.dtype.type(part[2]), out.dtype.type(part[3])
                for k in range(1, most // 4):
                    i = 4 * k
                    a, b = combine(a, part[i]), combine(b, part[i + 1])
                    c, d = combine(c, part[i + 2]), combine(d, part[i + 3])
                for i in range(most // 4 * 4, most):
                    a = combine(a, part[i])
                out[unit] = combine(combine(a, b), combine(c, d))
            return
        unit = lo
        while unit < hi:
            row = unit // inner
            column = unit - row * inner
            width = min(inner - column, hi - unit)
            outer = row // blocks
            first = (row - outer * blocks) * block
            totals = out[unit : unit + width]
            start = (outer * n + first) * inner + column
            part = x[start : start + width]
            for i in range(width):
                totals[i] = part[i]
            for j in range(outer * n + first + 1, outer * n + min(first + block, n)):
                start = j * inner + column
                part = x[start : start + width]
                for i in range(width):
                    totals[i] = combine(totals[i], part[i])
            unit += width

    return body


def _product(a: Any, b: Any) -> Any:
    return a * b


def _larger(a: Any, b: Any) -> Any:
    return b if (b > a) | (b != b) else a  # a NaN, once in, stays: nothing is larger


def _smaller(a: Any, b: Any) -> Any:
    return b if (b < a) | (b != b) else a


_multiply_body = _folding(_product)
_largest_body = _folding(_larger)
_smallest_body = _folding(_smaller)


# --- one group of dimensions --------------------------------------------------------------------


def shape_without(shape: Sequence[int], dims: Sequence[int], keepdim: bool) -> tuple[int, ...]:
    """`shape` with `dims` reduced: gone, or 1 with `keepdim`."""
    if keepdim:
        return tuple(1 if i in dims else d for i, d in enumerate(shape))
    return tuple(d for i, d in enumerate(shape) if i not in dims)


def _blocks(x: TensorMeta, first: int, last: int) -> tuple[int, int, int]:
    """n, the block and the number of blocks, of the dimensions `first` to `last`."""
    n = math.prod(x.shape[first : last + 1])
    inner = math.prod(x.shape[last + 1 :])
    limit, block = (ROW_LIMIT, ROW_BLOCK) if inner == 1 else (COLUMN_LIMIT, COLUMN_BLOCK)
    return (n, n, 1) if n <= limit else (n, block, -(-n // block))


def _launch(
    body: Callable[..., Any],
    x: TensorMeta,
    first: int,
    last: int,
    keepdim: bool,
    dtype: DType,
    seen: tuple[DType, DType],
    *more: float,
) -> Launch:
    n, block, blocks = _blocks(x, first, last)
    outer, inner = math.prod(x.shape[:first]), math.prod(x.shape[last + 1 :])
    if blocks > 1:
        shape: tuple[int, ...] = (*x.shape[:first], blocks, *x.shape[last + 1 :])
        more = tuple(1.0 for _ in more)
    else:
        shape = shape_without(x.shape, range(first, last + 1), keepdim)
    out = x.with_shape(shape, dtype)
    return Launch(
        (out,),
        body,
        (View(seen[0], (out.numel,)), View(seen[1], (x.numel,))),
        consts=(n, max(block, 1), blocks, inner, *more),
        units=outer * blocks * inner,
        grain=max(1, GRAIN // max(block, 1)),
        reassociate=body is _add_body,
    )


def _summed(dtype: DType) -> DType:
    return dtype if dtype.is_floating_point else int64


@op("x -> out", name="sum")
def _add(x: TensorMeta, first: int, last: int, keepdim: bool, divisor: float) -> Launch:
    kind = _summed(x.dtype)
    return _launch(_add_body, x, first, last, keepdim, kind, (kind, x.dtype), divisor)


def whole_sum(x: TensorMeta) -> Launch:
    """The sum of all elements of a float tensor that is one block."""
    return _launch(
        _add_body, x.with_shape((x.numel,)), 0, 0, False, x.dtype, (x.dtype, x.dtype), 1.0
    )


@op("x -> out", name="prod")
def _multiply(x: TensorMeta, first: int, last: int, keepdim: bool, _: float) -> Launch:
    kind = _summed(x.dtype)
    return _launch(_multiply_body, x, first, last, keepdim, kind, (kind, x.dtype))


def _seen(x: TensorMeta) -> tuple[DType, DType]:
    """Bools are 0 and 1: their extremes are those of bytes."""
    return (uint8, uint8) if x.dtype is bool_ else (x.dtype, x.dtype)


@op("x -> out", name="amax")
def _largest(x: TensorMeta, first: int, last: int, keepdim: bool, _: float) -> Launch:
    return _launch(_largest_body, x, first, last, keepdim, x.dtype, _seen(x))


@op("x -> out", name="amin")
def _smallest(x: TensorMeta, first: int, last: int, keepdim: bool, _: float) -> Launch:
    return _launch(_smallest_body, x, first, last, keepdim, x.dtype, _seen(x))


# --- any dimensions -----------------------------------------------------------------------------


def _groups(dims: tuple[int, ...]) -> list[tuple[int, int]]:
    """`dims`, ascending, as runs of adjacent ones: (first, last), the last run first."""
    groups: list[tuple[int, int]] = []
    for d in dims:
        if groups and groups[-1][1] == d - 1:
            groups[-1] = (groups[-1][0], d)
        else:
            groups.append((d, d))
    return groups[::-1]


class Fold:
    """A reduction by one kernel: `fold(x, dims, keepdim)`; `dims` ascend.  Its results have no
    autograd node.
    """

    def __init__(self, call: Callable[..., Tensor]) -> None:
        self.call = call

    def __call__(
        self, x: Tensor, dims: tuple[int, ...], keepdim: bool, divisor: float = 1.0
    ) -> Tensor:
        meta = x._meta
        if meta.dtype is float16:
            narrow: Tensor = self(_bare(x).to(float32), dims, keepdim, divisor).to(float16)
            return narrow
        groups = _groups(dims)
        if not groups:  # nothing to reduce: over a dimension of size 1, at the end of a kept shape
            x = _bare(x).contiguous()
            x = alias(x, meta.with_shape((*meta.shape, 1)))
            groups, keepdim = [(meta.ndim, meta.ndim)], False
        for k, (first, end) in enumerate(groups):
            last = end
            while _blocks(x._meta, first, last)[2] > 1:
                x = self.call(x, first, last, keepdim, 1.0)
                last = first
            x = self.call(x, first, last, keepdim, divisor if k == len(groups) - 1 else 1.0)
            if keepdim and last != end:  # the blocks were one dimension where several are kept
                ones = (1,) * (end - first + 1)
                x = alias(x, x._meta.with_shape((*x.shape[:first], *ones, *x.shape[first + 1 :])))
        return x


def _bare(x: Tensor) -> Tensor:
    return x if x._node is None else alias(x, x._meta)


add_up = Fold(_add)
multiply_up = Fold(_multiply)
largest = Fold(_largest)
smallest = Fold(_smallest)


def some(x: Tensor, dims: tuple[int, ...], keepdim: bool) -> Tensor:
    """Whether any element is not 0."""
    return largest(x.to(bool_), dims, keepdim)


def every(x: Tensor, dims: tuple[int, ...], keepdim: bool) -> Tensor:
    """Whether all elements are not 0."""
    return smallest(x.to(bool_), dims, keepdim)
