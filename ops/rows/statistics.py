"""Norms and sums of exponentials over dimensions, made of sums and elementwise ops."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from flowvm.eager.autocast import widened
from flowvm.eager.native.trace_cache import steady
from flowvm.eager.tensor import Tensor, method
from flowvm.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError
from flowvm.meta.dtype import DType, as_dtype, float64, int64, uint64
from flowvm.ops.declare.composite import Recorded, filled_of, need_tensor, record
from flowvm.ops.declare.elementwise import elementwise
from flowvm.ops.declare.halves import in_float32
from flowvm.ops.declare.outputs import with_out
from flowvm.ops.declare.registry import Sample, samples
from flowvm.ops.pointwise.compare import bitwise_xor, isinf, where
from flowvm.ops.pointwise.math import abs as abs_of
from flowvm.ops.pointwise.math import exp, log, sign
from flowvm.ops.pointwise.parts.unary import back
from flowvm.ops.rows.moments import floats_only, root_of
from flowvm.ops.rows.parts.folds import Fold, count_up, magnitude_up, square_up
from flowvm.ops.rows.reduce import amax, amin, dims_of, spread, sum
from flowvm.ops.shapes.complex_parts import real
from flowvm.ops.shapes.join import cat
from flowvm.vm.callers.hot import hot

if TYPE_CHECKING:
    from flowvm.eager.nodes import Node
    from flowvm.meta.arrays import Array


# public: flow

Dims = int | tuple[int, ...] | list[int] | None


# a number for each element, in float64, times it: of the element's dtype
_times = elementwise(
    "times",
    "x * y",
    types="first",
    saves="x, y",
    grad=lambda c, g: back(c, lambda: g * c.saved[1], lambda: g * c.saved[0]),
)
# --- norms ------------------------------------------------------------------------------------


def _recorded(
    fold: Fold, node: Recorded, x: Tensor, dims: tuple[int, ...], keepdim: bool
) -> Tensor:
    """The fold of `x`, with its node."""
    out = fold(x, dims, keepdim)
    if x._node is not None:
        record(node, (x,), out, (dims,), (x,))
    return out


def _narrowed(t: Tensor, dtype: DType) -> Tensor:
    narrow: Tensor = t.to(dtype)
    return narrow


def _squares_grad(c: Node, g: Tensor) -> tuple[Tensor]:
    (x,) = c.saved
    return (_times.call(x, spread(g * 2, x._meta, c.attrs[0])),)


def _powers_grad(c: Node, g: Tensor) -> tuple[Tensor]:
    """g * (|x| / norm) ** (p - 1) by the sign of x; as in PyTorch, 0 where that is 0 or x is."""
    x, out = c.saved
    dims, order = c.attrs
    none = out == 0
    length = spread(where(none, 1, out), x._meta, dims)
    zero = x == 0
    share = where(zero, 0.0, (where(zero, 1, abs_of.call(x)) / length) ** (order - 1))
    slope = spread(where(none, 0, g), x._meta, dims) * share * sign.call(x)
    return (slope.to(x._meta.dtype),)


def _magnitudes_grad(c: Node, g: Tensor) -> tuple[Tensor]:
    (x,) = c.saved
    return ((spread(g, x._meta, c.attrs[0]) * sign.call(x)).to(x._meta.dtype),)


_count_node = Recorded("norm", lambda c, g: (filled_of(c.metas[0]),), ("x",))
_squares_node = Recorded("sum_of_squares", _squares_grad, ("x",), "x")
_powers_node = Recorded("norm", _powers_grad, ("x",), "x, out", ("out",))
_magnitudes_node = Recorded("sum_of_magnitudes", _magnitudes_grad, ("x",), "x")


@steady
@in_float32
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
    Sums of squares and of other powers are kept in float64.

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
    # float64 inside, whose range powers need
    powers = abs_of.call(x.detach()).to(float64) ** ord
    power: Tensor = sum(powers, dims, keepdim) ** (1 / ord)
    record(_powers_node, (x,), power, (dims, float(ord)), (x, power.detach()))
    return _narrowed(power, dtype)


# --- sums of exponentials, traces ---------------------------------------------------------------


# public: flow, special
@with_out
@in_float32
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
    if x._meta.dtype.is_complex:
        return _log_of_sum(x, dims, keepdim)
    out = _log_of_sum(x.detach(), dims, keepdim)
    return record(_exponents_node, (x,), out, (dims,), (x,))


def _away(x: Tensor, dims: tuple[int, ...]) -> tuple[Any, Any, Any]:
    """Return the largest numbers, the numbers to subtract, the exponentials of the differences."""
    top = amax(real(x.detach()), dims, True)
    shift = where(isinf.call(top), 0, top)  # an infinity would become NaN
    return top, shift, exp.call(x - shift)


def _log_of_sum(x: Tensor, dims: tuple[int, ...], keepdim: bool) -> Tensor:
    _, shift, powers = _away(x, dims)
    total = log.call(sum(powers, dims, keepdim))
    out: Tensor = total + (shift if keepdim else shift.reshape(total._meta.shape))
    return out


def _exponents_grad(c: Node, g: Tensor) -> tuple[Tensor]:
    """Return the gradient by each exponential's share of the sum; infinite ones share it evenly."""
    (x,) = c.saved
    (dims,) = c.attrs
    top, _, powers = _away(x, dims)
    slope = g.reshape(top._meta.shape) / sum(powers, dims, True) * powers
    most = top == math.inf
    ties = (x == top).to(x._meta.dtype)
    even: Tensor = g.reshape(top._meta.shape) / sum(ties, dims, True) * ties
    return (where(most, even, slope),)


_exponents_node = Recorded("logsumexp", _exponents_grad, ("x",), "x")


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


def _norm_reference(x: Array, p: Any = 2, dim: int | None = None, keepdim: bool = False) -> Any:
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


@with_out
def hash_tensor(input: Tensor, dim: Dims = None, *, keepdim: bool = False, mode: int = 0) -> Tensor:
    """Return the exclusive or of the bits of all elements, or along `dim`, as uint64.

    Floats count as float64, other numbers as int64; `mode` must be 0.

    ShapeError for no elements without `dim`, DTypeError for complex numbers.

    >>> flow.hash_tensor(flow.tensor([1, 2, 4])), flow.hash_tensor(flow.tensor([[1, 3], [4, 4]]), 1)
    (tensor(7, dtype=uint64), tensor([2, 0], dtype=uint64))
    """
    x = need_tensor("hash_tensor", "input", input)
    if mode != 0:
        raise ArgumentError(f"hash_tensor: mode is 0, got {mode!r}")
    if x.dtype.is_complex:
        raise DTypeError(f"hash_tensor is not defined for {x.dtype.name}; take view_as_real first")
    dim_arg = None if dim is None or dim in ((), []) else dim
    if dim_arg is None and x.numel() == 0:
        raise ShapeError("hash_tensor: a tensor without elements has no hash; give dim")
    dims = dims_of("hash_tensor", x, dim_arg)
    bits: Any = x.detach().to(float64).view(int64) if x.is_floating_point() else x.to(int64)
    others = tuple(d for d in range(x.ndim) if d not in dims)
    sizes = tuple(x.shape[d] for d in others)
    bits = (
        bits.permute(*others, *dims).reshape(*sizes, math.prod(x.shape[d] for d in dims))
        if x.ndim
        else bits.reshape(1)
    )
    if bits.shape[-1] == 0:
        raise ShapeError(f"hash_tensor: dimension {dim} has no elements")
    while (n := bits.shape[-1]) > 1:  # halves on each other; what is left over stays
        half = n // 2
        folded = bitwise_xor(bits[..., :half], bits[..., half : 2 * half])
        bits = cat([folded, bits[..., 2 * half :]], -1) if n % 2 else folded
    shape = [1 if d in dims else n for d, n in enumerate(x.shape)] if keepdim else list(sizes)
    words: Tensor = bits.reshape(shape).view(uint64)
    return words


method()(hash_tensor)
