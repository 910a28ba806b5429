"""Matrix products: `matmul` and `linear`.

`matmul`, `_matmul_nt` (a @ b') and `_matmul_tn` (a' @ b) are each other's gradients: nothing is
ever transposed in memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from flowvm.eager.autocast import lowered
from flowvm.eager.tensor import Tensor, method
from flowvm.errors import DTypeError, ShapeError
from flowvm.launch import Launch
from flowvm.meta.device import cpu
from flowvm.meta.dtype import DType
from flowvm.meta.global_meta import GlobalMeta
from flowvm.meta.meta import TensorMeta
from flowvm.ops.declare.composite import need_tensor
from flowvm.ops.declare.core import sum_to
from flowvm.ops.declare.outputs import with_out
from flowvm.ops.declare.registry import Sample, broadcast_shapes, op, operator_of, samples
from flowvm.ops.products.cpu.gemm import check_pair, product, walkable
from flowvm.ops.products.parts import product_letters
from flowvm.ops.shapes.complex_parts import complex, imag, real
from flowvm.vm.callers.hot import hot

if TYPE_CHECKING:
    from flowvm.eager.nodes import Node


def _columns(t: Tensor) -> Tensor:
    """All but the last dimension as one: (rows, columns)."""
    shape = t._meta.shape
    return t if len(shape) == 2 else t.reshape((math.prod(shape[:-1]), shape[-1]))


def _both_columns(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """`_columns` of two tensors of one batch.  Of global ones with a split dimension in front, so
    that rows stay where they are: their order is the same for both.
    """
    meta: TensorMeta = b._meta
    if isinstance(meta, GlobalMeta):
        for s in meta.sbp:
            if 0 < s.dim < meta.ndim - 1:
                return _columns(a.movedim(s.dim, 0)), _columns(b.movedim(s.dim, 0))
    return _columns(a), _columns(b)


def _matmul_grad(c: Node, g: Tensor) -> tuple[Tensor | None, ...]:
    a, b = c.saved
    (need_a, need_b), (ma, mb) = c.needs, c.metas
    if ma.ndim == 1 and mb.ndim == 1:
        return g * b if need_a else None, g * a if need_b else None
    if ma.ndim == 1 or mb.ndim == 1:
        return _vector_grad(c, g)
    da = sum_to(_matmul_nt(g, b), ma.shape) if need_a else None
    if need_b and mb.ndim == 2:
        return da, _matmul_tn(*_both_columns(a, g))
    return da, sum_to(_matmul_tn(a, g), mb.shape) if need_b else None


def _vector_grad(c: Node, g: Tensor) -> tuple[Any, ...]:
    """The gradient of a product with one vector: the vector as a matrix of one row or column."""
    a, b = c.saved
    (need_a, need_b), (ma, mb) = c.needs, c.metas
    rows = a.unsqueeze(0) if ma.ndim == 1 else a
    columns = b.unsqueeze(1) if mb.ndim == 1 else b
    g = g.unsqueeze(-2 if ma.ndim == 1 else -1)
    da = sum_to(_matmul_nt(g, columns), rows._meta.shape) if need_a else None
    db = sum_to(_matmul_tn(rows, g), columns._meta.shape) if need_b else None
    return (
        da.reshape(ma.shape) if da is not None and ma.ndim == 1 else da,
        db.reshape(mb.shape) if db is not None and mb.ndim == 1 else db,
    )


def _nt_grad(c: Node, g: Tensor) -> tuple[Tensor | None, ...]:
    a, b = c.saved
    da = sum_to(_matmul(g, b), c.metas[0].shape) if c.needs[0] else None
    if c.needs[1] and c.metas[1].ndim == 2:
        return da, _matmul_tn(*_both_columns(g, a))
    return da, sum_to(_matmul_tn(g, a), c.metas[1].shape) if c.needs[1] else None


def _tn_grad(c: Node, g: Tensor) -> tuple[Tensor | None, Tensor | None]:
    a, b = c.saved
    return (
        sum_to(_matmul_nt(b, g), c.metas[0].shape) if c.needs[0] else None,
        sum_to(_matmul(a, g), c.metas[1].shape) if c.needs[1] else None,
    )


@op(
    "input, other -> out", saves="input, other", grad=_matmul_grad, dense=False, half="native",
    cuda="products:product", name="matmul",
    letters=product_letters.product(False, False), amp="half",
)  # fmt: skip
def _matmul(input: TensorMeta, other: TensorMeta) -> Launch:
    """The matrix product; `a @ b` is the same.

    Two vectors give their dot product, two matrices (m, k) and (k, n) give (m, n).  A vector on the
    left is a row, on the right a column, and that dimension is left out of the result.  More
    dimensions are batches of matrices and broadcast.

    Both must have one dtype, of floats or integers: DTypeError.  ShapeError where the inner sizes
    differ.

    >>> flow.matmul(flow.tensor([[1, 2], [3, 4]]), flow.tensor([10, 1]))
    tensor([12, 34])
    """
    return product("matmul", input, other, False, False)


@op(
    "input, other -> out", saves="input, other", grad=_nt_grad, dense=False, half="native",
    cuda="products:product", letters=product_letters.product(False, True), amp="half",
)  # fmt: skip
def _matmul_nt(input: TensorMeta, other: TensorMeta) -> Launch:
    """input @ other.transpose(-2, -1), for matrices."""
    return product("matmul", input, other, False, True)


@op(
    "input, other -> out", saves="input, other", grad=_tn_grad, dense=False, half="native",
    cuda="products:product", letters=product_letters.product(True, False), amp="half",
)  # fmt: skip
def _matmul_tn(input: TensorMeta, other: TensorMeta) -> Launch:
    """input.transpose(-2, -1) @ other, for matrices."""
    return product("matmul", input, other, True, False)


def _of_parts(product: Any, a: Tensor, b: Tensor) -> Tensor:
    """A product of complex numbers: four of real ones, which read the parts where they lie."""
    (ar, ai), (br, bi) = (real(a), imag(a)), (real(b), imag(b))
    out: Tensor = complex(product(ar, br) - product(ai, bi), product(ar, bi) + product(ai, br))
    return out


def _with_copies(function: Any, ta: bool, tb: bool) -> None:
    """Make `function` copy operands first whose batches the kernel cannot walk together, and refuse
    mixed dtypes before anything else.
    """
    operator = operator_of(function)
    upcast = operator.rules.fallback

    def fallback(*args: object) -> object:
        a, b = args[0], args[1]
        if not (isinstance(a, Tensor) and isinstance(b, Tensor)):
            return None
        check_pair(operator.name, a._meta, b._meta, ta, tb)
        if a._meta.dtype.is_complex:
            return _of_parts(function, a, b)
        if not walkable(a._meta, b._meta, ta, tb):
            batch = broadcast_shapes(a._meta.shape[:-2], b._meta.shape[:-2])
            return function(
                a.expand((*batch, *a.shape[-2:])).contiguous(),
                b.expand((*batch, *b.shape[-2:])).contiguous(),
            )
        return upcast(*args)

    operator.rules.fallback = fallback


_with_copies(_matmul, False, False)
_with_copies(_matmul_nt, False, True)
_with_copies(_matmul_tn, True, False)
method("matmul")(_matmul)
method("__matmul__")(_matmul)
matmul = with_out(_matmul)  # public: flow, linalg


def _linear_grad(c: Node, g: Tensor) -> tuple[object, ...]:
    x, w = c.saved
    rows, columns = _both_columns(g, x)
    to_x, to_w, to_bias = c.needs
    return (
        _matmul(g, w) if to_x else None,
        _matmul_tn(rows, columns) if to_w else None,
        rows.sum(0) if to_bias else None,
    )


@op(
    "input, weight, bias -> out",
    name="linear",
    saves="input, weight",
    grad=_linear_grad,
    dense=False,
    half="cuda",
    cuda="products:product",
    letters=product_letters.affine,
    amp="half",
)
def _affine(input: TensorMeta, weight: TensorMeta, bias: TensorMeta) -> Launch:
    _check_linear(input, weight)
    if tuple(bias.shape) != (weight.shape[0],) or bias.dtype is not input.dtype:
        raise ShapeError(
            f"linear: bias must be {input.dtype.name} of shape ({weight.shape[0]},), one number "
            f"for each row of weight, got {bias.dtype.name} of shape {tuple(bias.shape)}"
        )
    return product("linear", input, weight, False, True, bias)


def _check_linear(input: TensorMeta, weight: TensorMeta) -> None:
    if weight.ndim != 2 or input.ndim == 0 or input.shape[-1] != weight.shape[1]:
        raise ShapeError(
            f"linear: input (*, in) and weight (out, in) do not fit: shapes {tuple(input.shape)} "
            f"and "
            f"{tuple(weight.shape)}"
        )
    if input.dtype is not weight.dtype or input.dtype.is_bool:
        raise DTypeError(
            f"linear: input and weight must have one dtype, of numbers, got "
            f"{input.dtype.name} and "
            f"{weight.dtype.name}"
        )


def _is_host(meta: TensorMeta, dtype: DType) -> bool:
    return meta.dtype is dtype and meta.device is cpu


def _sum_of_reduced(otherwise: Any) -> Callable[..., Any]:
    """The fallback of `linear` on the CPU: reduced floats are multiplied as they are, and the bias
    added to that, which is quicker than to convert it all to float32 and back.
    """

    def fallback(input: Any, weight: Any, bias: Any) -> object:
        metas = [t._meta for t in (input, weight, bias) if isinstance(t, Tensor)]
        kind = metas[0].dtype
        if len(metas) == 3 and kind.reduced and all(_is_host(m, kind) for m in metas):
            _check_linear(*metas[:2])
            if metas[2].shape == metas[1].shape[:1]:
                return linear(input, weight) + bias
        return otherwise(input, weight, bias)

    return fallback


operator_of(_affine).rules.fallback = _sum_of_reduced(operator_of(_affine).rules.fallback)


def _whole_affine(input: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """`linear` of integers, whose product has no epilogue."""
    if bias._meta.dtype is not input._meta.dtype:
        raise DTypeError(
            f"linear: bias must be {input.dtype.name} like the input, got {bias.dtype.name}"
        )
    out: Tensor = linear(input, weight) + bias
    return out


# public: flow, F
@with_out
def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """input @ weight.T + bias: (*, in) with weight (out, in) and bias (out,) to (*, out).

    All have one dtype; that of integers wraps around.

    >>> F.linear(flow.tensor([[1.0, 2.0]]), flow.tensor([[3.0, 4.0]]), flow.tensor([100.0]))
    tensor([[111.]])
    """
    if hot["autocast"]:
        input, weight, bias = lowered(input, weight, bias)
    out: Tensor
    need_tensor("linear", "input", input)
    need_tensor("linear", "weight", weight)
    if bias is not None and not input._meta.dtype.is_floating_point:
        out = _whole_affine(input, weight, bias)
    elif bias is not None:
        out = _affine(input, weight, bias)
    elif weight._meta.ndim == 1:
        out = _matmul(input, weight)
    else:
        _check_linear(input._meta, weight._meta)
        one = input._meta.ndim == 1
        out = _matmul(weight, input) if one else _matmul_nt(input, weight)
    return out


# --- samples -----------------------------------------------------------------------------------


def _matmul_samples(rng: np.random.Generator) -> list[Sample]:
    x = rng.standard_normal
    shapes = (
        ((3, 4), (4, 2)),
        ((4,), (4,)),
        ((3, 4), (4,)),
        ((4,), (4, 3)),
        ((2, 3, 4), (4, 2)),
        ((2, 1, 2, 3), (3, 3, 2)),
        ((12, 9), (9, 8)),
        ((0, 3), (3, 2)),
        ((2, 0), (0, 3)),
    )
    return [Sample((x(a), x(b))) for a, b in shapes]


def _linear_samples(rng: np.random.Generator) -> list[Sample]:
    x = rng.standard_normal
    return [
        Sample((x((3, 4)), x((2, 4)), x(2))),
        Sample((x((2, 3, 4)), x((5, 4)), x(5))),
        Sample((x(4), x((2, 4)), x(2))),
        Sample((x((3, 4)), x((2, 4)))),
        Sample((x((9, 12)), x((8, 12)), x(8))),
        Sample((x((0, 4)), x((2, 4)), x(2))),
    ]


samples(
    _matmul,
    _matmul_samples,
    np.matmul,
    errors=(
        (lambda flow: flow.matmul(flow.ones(2, 3), flow.ones(2, 3)), RuntimeError),
        (
            lambda flow: flow.matmul(flow.ones(2, 3), flow.ones(3, 2, dtype=flow.float64)),
            RuntimeError,
        ),
        (lambda flow: flow.matmul(flow.ones(2, 3), flow.tensor(1.0)), RuntimeError),
        (lambda flow: flow.matmul(flow.ones(2, 3), 2.0), TypeError),
    ),
)
samples(
    linear,
    _linear_samples,
    lambda x, w, b=0.0: x @ w.T + b,
    errors=(
        (lambda flow: flow.linear(flow.ones(2, 3), flow.ones(2, 4)), RuntimeError),
        (lambda flow: flow.linear(flow.ones(2, 3), flow.ones(2, 3), flow.ones(3)), RuntimeError),
    ),
)
