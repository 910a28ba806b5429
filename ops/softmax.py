"""softmax, log_softmax and softmin: each row in one visit, in the stable form.

A row is what is normalised together: the tensor is seen as (outer, n, inner), and row (o, i) has
its n elements `inner` apart. The gradient is an op of its own, whose gradient is written in
differentiable ops.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from flowvm.dtype import DType
from flowvm.errors import ArgumentTypeError, DTypeError, OutOfRangeError
from flowvm.meta import TensorMeta
from flowvm.ops.registry import GRAIN, Launch, Sample, View, op, samples
from flowvm.ops.rows import _larger, top_of
from flowvm.ops.scalar import exp, log
from flowvm.tensor import Tensor, method

__all__ = ["log_softmax", "softmax", "softmin"]

Array = Any
RUN = 4096  # elements summed before their sum joins the row's
SHORT = 64  # the same where rows are summed side by side, one addition at a time
WIDTH = 64  # rows that lie side by side and are done together


def axis_of(name: str, dim: Any, ndim: int) -> int:
    """`dim` counted from the front; a 0-d tensor counts as having one dimension."""
    if not isinstance(dim, int) or isinstance(dim, bool):
        raise ArgumentTypeError(f"{name}: dim must be an int, got {dim!r}")
    reach = max(ndim, 1)
    if not -reach <= dim < reach:
        raise OutOfRangeError(f"{name}: dim must be in [{-reach}, {reach - 1}], got {dim}")
    return dim % reach


def rows_of(name: str, meta: TensorMeta, dim: Any) -> tuple[int, int, int]:
    """(outer, n, inner) of a dense tensor: the sizes before, of and behind `dim`."""
    axis = axis_of(name, dim, meta.ndim)
    shape = tuple(meta.shape) or (1,)
    return math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])


def _rows_body(out: Array, x: Array, n: int, logarithm: bool, lo: int, hi: int) -> None:
    for row in range(lo, hi):
        xs, ys = x[row * n : row * n + n], out[row * n : row * n + n]
        top = top_of(xs)
        total = out.dtype.type(0)
        for start in range(0, n, RUN):
            block, es = xs[start : start + RUN], ys[start : start + RUN]
            for j in range(len(es)):
                es[j] = exp(block[j] - top)
            part = out.dtype.type(0)
            for j in range(len(es)):
                part += es[j]
            total += part
        if logarithm:
            total = log(total)
            for j in range(n):
                ys[j] = (xs[j] - top) - total
        else:
            scale = out.dtype.type(1) / total
            for j in range(n):
                ys[j] *= scale


def _columns_body(
    out: Array, x: Array, n: int, inner: int, logarithm: bool, scratch: Array, lo: int, hi: int
) -> None:
    """WIDTH neighbouring rows at a time, so that memory is read along its lines."""
    stats = scratch.view(out.dtype)
    blocks = (inner + WIDTH - 1) // WIDTH
    for unit in range(lo, hi):
        first = unit % blocks * WIDTH
        width, at = min(WIDTH, inner - first), unit // blocks * n * inner + first
        own = stats[3 * unit * WIDTH : 3 * (unit + 1) * WIDTH]
        top, total, part = own[:width], own[WIDTH : WIDTH + width], own[2 * WIDTH :]
        for i in range(width):
            top[i] = x[at + i]
            total[i] = 0
            part[i] = 0
        for j in range(1, n):
            xs = x[at + j * inner : at + j * inner + width]
            for i in range(width):
                top[i] = _larger(xs[i], top[i])
        for j in range(n):
            xs = x[at + j * inner : at + j * inner + width]
            ys = out[at + j * inner : at + j * inner + width]
            for i in range(width):
                ys[i] = exp(xs[i] - top[i])
            for i in range(width):
                part[i] += ys[i]
            if j % SHORT == SHORT - 1 or j == n - 1:
                for i in range(width):
                    total[i] += part[i]
                    part[i] = 0
        for i in range(width):
            total[i] = log(total[i]) if logarithm else out.dtype.type(1) / total[i]
        for j in range(n):
            xs = x[at + j * inner : at + j * inner + width]
            ys = out[at + j * inner : at + j * inner + width]
            if logarithm:
                for i in range(width):
                    ys[i] = (xs[i] - top[i]) - total[i]
            else:
                for i in range(width):
                    ys[i] *= total[i]


def _rows_backward(
    out: Array, g: Array, y: Array, n: int, logarithm: bool, lo: int, hi: int
) -> None:
    for row in range(lo, hi):
        gs, ys = g[row * n : row * n + n], y[row * n : row * n + n]
        os = out[row * n : row * n + n]
        total = out.dtype.type(0)
        for start in range(0, n, RUN):
            part = out.dtype.type(0)
            left, right = gs[start : start + RUN], ys[start : start + RUN]
            if logarithm:
                for j in range(len(left)):
                    part += left[j]
            else:
                for j in range(len(left)):
                    part += left[j] * right[j]
            total += part
        if logarithm:
            for j in range(n):
                os[j] = gs[j] - exp(ys[j]) * total
        else:
            for j in range(n):
                os[j] = (gs[j] - total) * ys[j]


def _columns_backward(
    out: Array, g: Array, y: Array, n: int, inner: int, logarithm: bool, scratch: Array,
    lo: int, hi: int,
) -> None:  # fmt: skip
    stats = scratch.view(out.dtype)
    blocks = (inner + WIDTH - 1) // WIDTH
    for unit in range(lo, hi):
        first = unit % blocks * WIDTH
        width, at = min(WIDTH, inner - first), unit // blocks * n * inner + first
        own = stats[3 * unit * WIDTH : 3 * (unit + 1) * WIDTH]
        total, part = own[:width], own[WIDTH : WIDTH + width]
        for i in range(width):
            total[i] = 0
            part[i] = 0
        for j in range(n):
            row = at + j * inner
            gs, ys = g[row : row + width], y[row : row + width]
            for i in range(width):
                part[i] += gs[i] if logarithm else gs[i] * ys[i]
            if j % SHORT == SHORT - 1 or j == n - 1:
                for i in range(width):
                    total[i] += part[i]
                    part[i] = 0
        for j in range(n):
            row = at + j * inner
            gs, ys, os = g[row : row + width], y[row : row + width], out[row : row + width]
            if logarithm:
                for i in range(width):
                    os[i] = gs[i] - exp(ys[i]) * total[i]
            else:
                for i in range(width):
                    os[i] = (gs[i] - total[i]) * ys[i]


def _launch(name: str, x: TensorMeta, dim: int, operands: int) -> Launch:
    if not x.dtype.is_floating_point:
        raise DTypeError(
            f"{name} needs a floating point tensor, got {x.dtype.name}; pass dtype=flow.float32"
        )
    outer, n, inner = rows_of(name, x, dim)
    views = (View(x.dtype, (x.numel,)),) * operands
    forward, logarithm = operands == 2, name == "log_softmax"
    grain = max(1, GRAIN // max(n, 1))
    if inner == 1:
        body = _rows_body if forward else _rows_backward
        return Launch(
            (x.dense(),), body, views, (n, logarithm), outer if n else 0, grain, reassociate=True
        )
    units = outer * -(-inner // WIDTH) if n else 0
    scratch = 3 * units * WIDTH * x.dtype.itemsize
    return Launch(
        outputs=(x.dense(),),
        body=_columns_body if forward else _columns_backward,
        views=views,
        consts=(n, inner, logarithm),
        units=units,
        grain=max(1, grain // WIDTH),
        scratch=max(scratch, 8),
    )


def _softmax_backward_grad(c: Any, v: Tensor) -> tuple[Any, ...]:
    g, y = c.saved
    (dim,) = c.attrs
    dg = _softmax_backward(v, y, dim) if c.needs[0] else None
    if not c.needs[1]:
        return dg, None
    return dg, v * (g - (g * y).sum(dim, keepdim=True)) - g * (v * y).sum(dim, keepdim=True)


def _log_softmax_backward_grad(c: Any, v: Tensor) -> tuple[Any, ...]:
    g, y = c.saved
    (dim,) = c.attrs
    p = y.exp()
    return (
        v - (p * v).sum(dim, keepdim=True) if c.needs[0] else None,
        -(p * v * g.sum(dim, keepdim=True)) if c.needs[1] else None,
    )


@op("g, y -> out", saves="g, y", grad=_softmax_backward_grad)
def _softmax_backward(g: TensorMeta, y: TensorMeta, dim: int) -> Launch:
    return _launch("softmax", y, dim, 3)


@op("g, y -> out", saves="g, y", grad=_log_softmax_backward_grad)
def _log_softmax_backward(g: TensorMeta, y: TensorMeta, dim: int) -> Launch:
    return _launch("log_softmax", y, dim, 3)


@op(
    "x -> out",
    name="softmax",
    saves="out",
    grad=lambda c, g: (_softmax_backward(g, c.saved[0], c.attrs[0]),),
)
def _softmax(x: TensorMeta, dim: int) -> Launch:
    return _launch("softmax", x, dim, 2)


@op(
    "x -> out",
    name="log_softmax",
    saves="out",
    grad=lambda c, g: (_log_softmax_backward(g, c.saved[0], c.attrs[0]),),
)
def _log_softmax(x: TensorMeta, dim: int) -> Launch:
    return _launch("log_softmax", x, dim, 2)


@method()
def softmax(input: Tensor, dim: int, dtype: DType | None = None) -> Tensor:
    """exp(x) / sum(exp(x)) over `dim`: positive numbers that sum to 1.

    `dtype` converts the input first.  DTypeError for integers without it, OutOfRangeError for a
    `dim` there is not.
    """
    out: Tensor = _softmax(input if dtype is None else input.to(dtype), dim)
    return out


@method()
def log_softmax(input: Tensor, dim: int, dtype: DType | None = None) -> Tensor:
    """log(softmax(x)) over `dim`, computed so that neither large nor small values overflow.

    `dtype` converts the input first.  DTypeError for integers without it, OutOfRangeError for a
    `dim` there is not.
    """
    out: Tensor = _log_softmax(input if dtype is None else input.to(dtype), dim)
    return out


def softmin(input: Tensor, dim: int, dtype: DType | None = None) -> Tensor:
    """softmax(-x) over `dim`."""
    return softmax(-input, dim, dtype)


def _exps(x: np.ndarray[Any, Any], dim: int) -> np.ndarray[Any, Any]:
    return np.exp(x - x.max(dim, keepdims=True)) if x.size else x


def _softmax_reference(x: Any, dim: int) -> Any:
    e = _exps(np.atleast_1d(x), dim)
    return (e / e.sum(dim, keepdims=True)).reshape(np.shape(x))


def _samples(rng: np.random.Generator) -> list[Sample]:
    x = rng.standard_normal
    return [
        Sample((x((3, 4)), 1)),
        Sample((x((2, 3, 4)), -2)),
        Sample((x((4, 3)), 0)),
        Sample((np.asarray(0.5), 0)),
        Sample((x((0, 3)), 1)),
        Sample((x((2, 0)), 1)),
        Sample((x(5) * 20, -1)),
    ]


_errors = (
    (lambda flow: flow.softmax(flow.ones(2, 3), 2), IndexError),
    (lambda flow: flow.softmax(flow.ones(2, 3, dtype=flow.int64), 1), RuntimeError),
)
samples(softmax, _samples, _softmax_reference, errors=_errors)
samples(log_softmax, _samples, lambda x, dim: np.log(_softmax_reference(x, dim)))
samples(softmin, _samples, lambda x, dim: _softmax_reference(-x, dim))
