"""Norms and sums of exponentials over dimensions, made of sums and elementwise ops."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from flowvm.eager.autocasting import widened
from flowvm.eager.native.courses import steady
from flowvm.eager.tensor import Tensor, method
from flowvm.errors import ArgumentTypeError, ShapeError
from flowvm.meta.dtype import DType, as_dtype
from flowvm.ops.declare.elementwise import elementwise
from flowvm.ops.declare.outputs import with_out
from flowvm.ops.declare.recording import Recorded, filled_of, need_tensor, record
from flowvm.ops.declare.registry import Sample, samples
from flowvm.ops.pointwise.compare import isinf, where
from flowvm.ops.pointwise.math import abs as abs_of
from flowvm.ops.pointwise.math import exp, log, sign
from flowvm.ops.pointwise.parts.unary import back
from flowvm.ops.rows.moments import floats_only, root_of
from flowvm.ops.rows.parts.folds import Fold, count_up, magnitude_up, square_up
from flowvm.ops.rows.reduce import amax, amin, dims_of, spread, sum
from flowvm.ops.shapes.complex_parts import real
from flowvm.vm.callers.hot import hot

__all__ = ["logsumexp", "trace", "vector_norm"]

Dims = int | tuple[int, ...] | list[int] | None


def _root_grad(c: Any, g: Tensor) -> tuple[Any, ...]:
    """As in PyTorch, no gradient where the root is 0: the norm of zeros has gradient 0."""
    x, degree, out = c.saved
    slope = where(out == 0, 0, out / (where(x == 0, 1, x) * degree))
    return back(c, lambda: g * slope, None)


_root = elementwise("root", "pow(x, 1 / y)", types="float", saves="x, y, out", grad=_root_grad)
# --- norms ------------------------------------------------------------------------------------


def _recorded(
    fold: Fold, node: Recorded, x: Tensor, dims: tuple[int, ...], keepdim: bool
) -> Tensor:
    """The fold of `x`, with its node; of reduced floats in float32, whose range squares need."""
    wide = x._meta.dtype.compute if x._meta.dtype.reduced else None
    out = fold(x, dims, keepdim, 1.0, wide)
    if x._node is not None:
        record(node, (x,), out, (dims,), (x,))
    return out


def _narrowed(t: Tensor, dtype: DType) -> Tensor:
    narrow: Tensor = t.to(dtype)
    return narrow


def _squares_grad(c: Any, g: Tensor) -> tuple[Tensor]:
    (x,) = c.saved
    wide = spread(g * 2, x._meta, c.attrs[0])
    return ((wide * x).to(x._meta.dtype),)


def _magnitudes_grad(c: Any, g: Tensor) -> tuple[Tensor]:
    (x,) = c.saved
    return ((spread(g, x._meta, c.attrs[0]) * sign.call(x)).to(x._meta.dtype),)


_count_node = Recorded("norm", lambda c, g: (filled_of(c.metas[0]),), ("x",))
_squares_node = Recorded("sum_of_squares", _squares_grad, ("x",), "x")
_magnitudes_node = Recorded("sum_of_magnitudes", _magnitudes_grad, ("x",), "x")


@steady
def vector_norm(
    input: Tensor,
    ord: float = 2,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: DType | None = None,
) -> Tensor:
    """The norm of order `ord` over `dim` (one or several; None: all) of the elements as one vector.

    inf and -inf are the largest and smallest magnitude, 0 the number of elements that are not 0.

    >>> flow.vector_norm(flow.tensor([[3.0, 4.0], [0.0, 2.0]]), dim=1)
    tensor([5., 2.])
    """
    if hot["autocast"]:
        (input,) = widened(input)
    if isinstance(ord, bool) or not isinstance(ord, (int, float)):
        raise ArgumentTypeError(f"norm: the order is a number, got {ord!r}")
    if dtype is not None:
        input = need_tensor("norm", "input", input).to(as_dtype(dtype))
    if need_tensor("norm", "input", input)._meta.dtype.is_complex:
        input = abs_of.call(input)
    x = floats_only("norm", input)
    dims = dims_of("norm", x, dim)
    dtype = x._meta.dtype
    if ord == 2:
        root = root_of.call(_recorded(square_up, _squares_node, x, dims, keepdim))
        return _narrowed(root, dtype)
    if ord == 1:
        return _narrowed(_recorded(magnitude_up, _magnitudes_node, x, dims, keepdim), dtype)
    if ord == 0:
        return record(_count_node, (x,), _narrowed(count_up(x, dims, keepdim), dtype))
    size = abs_of.call(x)
    if ord == math.inf:
        return amax(size, dims, keepdim)
    if ord == -math.inf:
        return amin(size, dims, keepdim)
    if ord < 2:  # no power of 0, whose gradient would be infinite or NaN times 0
        zero = size == 0
        powers = where(zero, 0.0 if ord > 0 else math.inf, where(zero, 1, size) ** ord)
    else:
        powers = size**ord
    power: Tensor = _root.call(sum(powers, dims, keepdim), float(ord))
    return power


# --- sums of exponentials, traces ---------------------------------------------------------------


@with_out
def logsumexp(input: Tensor, dim: Any, keepdim: bool = False) -> Tensor:
    """log(sum(exp(input))) over `dim` (one or several) without overflow; -inf of nothing.

    >>> flow.logsumexp(flow.tensor([1000.0, 1000.0]), 0)  # 1000 + log 2
    tensor(1000.6932)
    """
    x = need_tensor("logsumexp", "input", input)
    if not x._meta.dtype.inexact:
        x = x / 1
    dims = dims_of("logsumexp", x, dim)
    if any(x._meta.shape[d] == 0 for d in dims):
        empty: Tensor = log.call(sum(x, dims, keepdim))
        return empty
    top = amax(real(x.detach()), dims, True)
    top = where(isinf.call(top), 0, top)  # an infinity would become NaN
    total = log.call(sum(exp.call(x - top), dims, keepdim))
    shift: Tensor = total + (top if keepdim else top.reshape(total._meta.shape))
    return shift


@steady
def trace(input: Tensor) -> Tensor:
    """The sum of the diagonal of a matrix.  Integers and bools sum to int64.

    >>> flow.trace(flow.tensor([[1, 2], [3, 4]]))
    tensor(5)
    """
    if need_tensor("trace", "input", input)._meta.ndim != 2:
        raise ShapeError(f"trace needs a matrix, got shape {tuple(input.shape)}")
    return sum(input.diagonal())


for _f in (logsumexp, trace):
    method()(_f)


# --- samples ----------------------------------------------------------------------------------


def _norm_reference(x: Any, p: Any = 2, dim: Any = None, keepdim: bool = False) -> Any:
    size = np.abs(x)
    if p in (math.inf, -math.inf):
        return (np.max if p > 0 else np.min)(size, axis=dim, keepdims=keepdim)
    if p == 0:
        return np.sum(x != 0, axis=dim, keepdims=keepdim).astype(x.dtype)
    p = 2 if p == "fro" else p
    return np.sum(size**p, axis=dim, keepdims=keepdim) ** (1 / p)


def _norm_samples(rng: np.random.Generator) -> list[Sample]:
    x = rng.uniform(0.5, 2.0, (3, 4)) * rng.choice([-1.0, 1.0], (3, 4))
    return [
        Sample((x,)),
        Sample((x, 1, 1)),
        Sample((x, math.inf, 0, True)),
        Sample((x, -math.inf)),
        Sample((x, 3, (0, 1))),
        Sample((x, 0.5)),
    ]


samples(vector_norm, _norm_samples, _norm_reference)
samples(
    vector_norm,
    lambda rng: [Sample((np.array([[1.0, 0.0], [2.0, 3.0]]), 0, 1))],
    _norm_reference,
    name="norm zero",
    grad=False,
)
samples(
    logsumexp,
    lambda rng: [
        Sample((rng.standard_normal((3, 4)), 1)),
        Sample((rng.standard_normal((3, 4, 2)) * 50, (0, 2), True)),
    ],
    lambda x, dim, keepdim=False: np.logaddexp.reduce(
        np.moveaxis(x, dim, list(range(-len(dim), 0))).reshape(*[x.shape[1]], -1)
        if isinstance(dim, tuple)
        else x,
        axis=-1,
    ).reshape((1, 4, 1) if keepdim else -1),
)
samples(
    trace,
    lambda rng: [Sample((rng.standard_normal((3, 4)),)), Sample((rng.standard_normal((2, 2)),))],
    np.trace,
    errors=((lambda flow: flow.trace(flow.ones(2)), RuntimeError),),
)
