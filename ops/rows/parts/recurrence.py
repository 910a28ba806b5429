"""First-order recurrences along a dimension, and the launch of kernels that walk along one.

The recurrence y[k] = a[k] + b[k] * y[k-1] is what the gradients of products and of logcumsumexp
come down to, without a division; it is the transpose of A[k] = g[k] + b[k+1] * A[k+1], so the two
are each other's gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from flowvm.eager.tensor import Tensor
from flowvm.launch import GRAIN, Launch, View
from flowvm.meta.arrays import Array
from flowvm.meta.dtype import DType
from flowvm.meta.meta import TensorMeta
from flowvm.ops.declare.cpu.body_arrays import array_in
from flowvm.ops.declare.kinds import Dim
from flowvm.ops.declare.letters import along_dim
from flowvm.ops.declare.registry import op
from flowvm.ops.shapes.fill import ones_like, zeros_like
from flowvm.ops.shapes.join import cat

if TYPE_CHECKING:
    from flowvm.eager.nodes import Node


def split(x: TensorMeta, dim: int) -> tuple[int, int, int]:
    """The sizes [outer, n, inner] of `x` around its dimension `dim`."""
    return math.prod(x.shape[:dim]), x.shape[dim], math.prod(x.shape[dim + 1 :])


def _launch(
    body: Callable[..., None],
    x: TensorMeta,
    dim: int,
    dtypes: tuple[DType, ...],
    outputs: tuple[TensorMeta, ...],
    *flags: bool,
) -> Launch:
    """A unit is one line through the [outer, n, inner] elements."""
    outer, n, inner = split(x, dim)
    views = tuple(View(dtype, (x.numel,)) for dtype in dtypes)
    grain = GRAIN // (n + 1) + 1
    return Launch(outputs, body, views, (n, inner, *flags), units=outer * inner, grain=grain)


def _line(unit: int, n: int, inner: int, reverse: bool) -> tuple[int, int]:
    """Return the start of the line of `unit`, and its step."""
    outer = unit // inner
    start = outer * n * inner + unit - outer * inner
    return (start + (n - 1) * inner, -inner) if reverse else (start, inner)


# --- recurrences ------------------------------------------------------------------------------


def _forward_body(out: Array, a: Array, b: Array, n: int, inner: int, lo: int, hi: int) -> None:
    for unit in range(lo, hi):
        at, step = _line(unit, n, inner, False)
        y = out.dtype.type(0)
        for _ in range(n):
            y = a[at] + b[at] * y
            out[at] = y
            at += step


def _backward_body(out: Array, g: Array, b: Array, n: int, inner: int, lo: int, hi: int) -> None:
    for unit in range(lo, hi):
        at, step = _line(unit, n, inner, True)
        y = out.dtype.type(0)
        for k in range(n):
            y = g[at] + (b[at - step] * y if k > 0 else y)
            out[at] = y
            at += step


ABREAST = 256  # lines beside each other that are done at a time


def _others_body(
    out: Array, x: Array, n: int, inner: int, arena: Array, lo: int, hi: int
) -> None:  # fmt: skip
    unit = lo
    while unit < hi:
        if inner == 1 and unit + 4 <= hi:
            _others_of_four(out, x, n, unit * n)
            unit += 4
        elif inner == 1:
            _others_of_lines(out, x, array_in(arena, 0, 1, x), n, 1, unit * n)
            unit += 1
        else:
            m = min(ABREAST, hi - unit, inner - unit % inner)
            start = unit // inner * n * inner + unit % inner
            _others_of_lines(out, x, array_in(arena, 0, m, x), n, inner, start)
            unit += m


def _others_of_four(out: Array, x: Array, n: int, start: int) -> None:
    """Four rows at a time: a product waits for the one before it, and not for the other rows'."""
    one = out.dtype.type(1)
    a, b, c, d = start, start + n, start + 2 * n, start + 3 * n
    p, q, r, s = one, one, one, one
    for k in range(n):
        out[a + k], out[b + k], out[c + k], out[d + k] = p, q, r, s
        p, q, r, s = p * x[a + k], q * x[b + k], r * x[c + k], s * x[d + k]
    p, q, r, s = one, one, one, one
    for back in range(n):
        k = n - 1 - back
        out[a + k] *= p
        out[b + k] *= q
        out[c + k] *= r
        out[d + k] *= s
        p, q, r, s = p * x[a + k], q * x[b + k], r * x[c + k], s * x[d + k]


def _others_of_lines(out: Array, x: Array, y: Array, n: int, inner: int, start: int) -> None:
    """As many lines beside each other as `y` has elements."""
    m = len(y)
    for q in range(m):
        y[q] = 1
    for k in range(n):
        at = start + k * inner
        to, own = out[at : at + m], x[at : at + m]
        for q in range(m):
            to[q] = y[q]
            y[q] *= own[q]
    for q in range(m):
        y[q] = 1
    for back in range(n):
        at = start + (n - 1 - back) * inner
        to, own = out[at : at + m], x[at : at + m]
        for q in range(m):
            to[q] *= y[q]
            y[q] *= own[q]


@op("x -> out", name="others_product", letters=along_dim())
def others_product(x: TensorMeta, dim: Dim) -> Launch:
    """For each element the product of all others along `dim`."""
    outer, n, inner = split(x, dim)
    flat = View(x.dtype, (x.numel,))
    return Launch(
        (x.dense(),), _others_body, (flat, flat), (n, inner), units=outer * inner,
        grain=GRAIN // (n + 1) + 1, arena=x.dtype.itemsize * min(ABREAST, inner),
    )  # fmt: skip


def later(x: Tensor, dim: int, first: float) -> Tensor:
    """`x` one place further along `dim`, with `first` in the place that is free."""
    n = x._meta.shape[dim]
    if n == 0:
        return x
    head = x.narrow(dim, 0, 1)
    edge = ones_like(head) if first else zeros_like(head)
    later: Tensor = cat([edge, x.narrow(dim, 0, n - 1)], dim)
    return later


def _forward_grad(c: Node, g: Tensor) -> tuple[object, ...]:
    b, out = c.saved
    (dim,) = c.attrs
    to_a = recurrence_back(g, b, dim)
    return to_a, (to_a * later(out, dim, 0) if c.needs[1] else None)


def _backward_grad(c: Node, g: Tensor) -> tuple[object, ...]:
    b, out = c.saved
    (dim,) = c.attrs
    to_g = recurrence(g, b, dim)
    return to_g, (later(to_g, dim, 0) * out if c.needs[1] else None)


@op("a, b -> out", name="recurrence", saves="b, out", grad=_forward_grad, letters=along_dim())
def recurrence(a: TensorMeta, b: TensorMeta, dim: Dim) -> Launch:
    return _launch(_forward_body, a, dim, (a.dtype,) * 3, (a.dense(),))


@op("g, b -> out", name="recurrence_back", saves="b, out", grad=_backward_grad, letters=along_dim())
def recurrence_back(g: TensorMeta, b: TensorMeta, dim: Dim) -> Launch:
    return _launch(_backward_body, g, dim, (g.dtype,) * 3, (g.dense(),))
