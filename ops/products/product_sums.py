"""Products that are added to something: `addmv`, `addr`, `addbmm`, with the in-place forms of
these and of `addmm` and `baddbmm`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from flowvm.eager.autocast import autocast_dtype, lowered, outside
from flowvm.eager.keywords import scaled_formerly
from flowvm.eager.tensor import Tensor, method
from flowvm.errors import DTypeError, ShapeError
from flowvm.meta.dtype import promote_types
from flowvm.ops.declare.composite import need_tensor
from flowvm.ops.declare.halves import in_float32
from flowvm.ops.declare.outputs import replaced, with_out
from flowvm.ops.declare.registry import Sample, broadcast_shapes, samples
from flowvm.ops.pointwise.compare import logical_and, logical_or
from flowvm.ops.pointwise.complex_numbers import conj
from flowvm.ops.products.matmul import matmul
from flowvm.ops.products.products import addmm, baddbmm, dot
from flowvm.vm.callers.hot import hot

# public: flow


def _need(name: str, argument: str, value: Tensor, ndim: int) -> Tensor:
    tensor = need_tensor(name, argument, value)
    if tensor._meta.ndim != ndim:
        raise ShapeError(
            f"{name}: {argument} has {ndim} dimensions, got shape {tuple(tensor.shape)}"
        )
    return tensor


def _plus(name: str, input: Tensor, product: Tensor, beta: float, alpha: float) -> Tensor:
    """beta * input + alpha * product; with beta 0, `input` has no effect, NaN or not."""
    shape = product._meta.shape
    if broadcast_shapes(need_tensor(name, "input", input)._meta.shape, shape) != tuple(shape):
        raise ShapeError(
            f"{name}: input of shape {tuple(input.shape)} does not broadcast to the product's "
            f"{tuple(shape)}"
        )
    kind = product._meta.dtype
    if not kind.inexact and name != "addr":  # as in PyTorch
        alpha, beta = int(alpha), int(beta)
    elif not kind.inexact and any(isinstance(n, float) for n in (beta, alpha)):
        raise DTypeError(f"{name}: beta and alpha are ints for integers, got {beta} and {alpha}")
    if kind.is_bool:
        scaled = product if alpha else logical_and(product, False)
        return logical_or(scaled, input) if beta else scaled
    scaled = product if alpha == 1 else product * alpha
    if beta == 0:
        wide = promote_types(kind, input._meta.dtype)
        return scaled if wide is kind else scaled.to(wide)
    total: Tensor = scaled + (input if beta == 1 else input * beta)
    return total


@method()
@with_out
@scaled_formerly("mat vec")
@in_float32
def addmv(input: Tensor, mat: Tensor, vec: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """beta * input + alpha * (mat @ vec) of a matrix (m, k) and a vector (k): (m), to which
    `input` broadcasts.  With beta 0, NaN in `input` has no effect.

    >>> flow.addmv(flow.tensor([1.0, 2.0]), flow.ones(2, 3), flow.ones(3), alpha=10)
    tensor([31., 32.])
    """
    if hot["autocast"] and autocast_dtype() is not None:
        low = lowered(input, mat, vec)
        return outside(lambda *args: addmv(*args, beta=beta, alpha=alpha), *low)
    product = matmul(_need("addmv", "mat", mat, 2), _need("addmv", "vec", vec, 1))
    return _plus("addmv", input, product, beta, alpha)


@method()
@with_out
@scaled_formerly("vec1 vec2")
@in_float32
def addr(input: Tensor, vec1: Tensor, vec2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """beta * input + alpha * outer(vec1, vec2) of vectors (m) and (n): (m, n), to which `input`
    broadcasts.  With beta 0, NaN in `input` has no effect.

    >>> flow.addr(flow.ones(2, 2), flow.tensor([1.0, 2.0]), flow.tensor([10.0, 20.0]))
    tensor([[11., 21.],
            [21., 41.]])
    """
    if hot["autocast"] and autocast_dtype() is not None:
        low = lowered(input, vec1, vec2)
        return outside(lambda *args: addr(*args, beta=beta, alpha=alpha), *low)
    column: Tensor = _need("addr", "vec1", vec1, 1)
    product = column.unsqueeze(1) * _need("addr", "vec2", vec2, 1)
    return _plus("addr", input, product, beta, alpha)


@method()
@with_out
@scaled_formerly("batch1 batch2")
@in_float32
def addbmm(
    input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1
) -> Tensor:
    """Return beta * input + alpha * the sum of the products of pairs of matrices: (m, n).

    The pairs are (b, m, k) and (b, k, n); `input` broadcasts.

    >>> flow.addbmm(flow.zeros(2, 2), flow.ones(3, 2, 4), flow.ones(3, 4, 2))
    tensor([[12., 12.],
            [12., 12.]])
    """
    if hot["autocast"] and autocast_dtype() is not None:
        low = lowered(input, batch1, batch2)
        return outside(lambda *args: addbmm(*args, beta=beta, alpha=alpha), *low)
    a: Tensor = _need("addbmm", "batch1", batch1, 3)
    b: Tensor = _need("addbmm", "batch2", batch2, 3)
    if a.shape[0] != b.shape[0] or a.shape[2] != b.shape[1]:
        raise ShapeError(
            f"addbmm: batches (b, m, k) and (b, k, n), got {tuple(a.shape)} and {tuple(b.shape)}"
        )
    count, rows, shared = a.shape  # one product: the batches' sums are a longer sum
    wide = a.transpose(0, 1).reshape((rows, count * shared))
    product = matmul(wide, b.reshape((count * shared, b.shape[2])))
    return _plus("addbmm", input, product, beta, alpha)


@method()
@with_out
@in_float32
def vdot(input: Tensor, other: Tensor) -> Tensor:
    """Return the sum of the products of two vectors' elements; the first vector is conjugated.

    >>> flow.vdot(flow.tensor([1j]), flow.tensor([2j]))
    tensor(2.+0.j)
    """
    x, y = need_tensor("vdot", "input", input), need_tensor("vdot", "other", other)
    product: Tensor = dot(conj(x), y)
    return product


for _f in (addbmm, addmm, addmv, addr, baddbmm):
    replaced(_f)


def _drawn(*shapes: tuple[int, ...]) -> Callable[[Any], list[Sample]]:
    return lambda rng: [
        Sample(tuple(rng.standard_normal(s) for s in shapes), {"beta": 0.5, "alpha": 2.0})
    ]


samples(
    addmv,
    _drawn((3,), (3, 4), (4,)),
    lambda x, a, b, beta, alpha: beta * x + alpha * a @ b,
    errors=(
        (lambda flow: flow.addmv(flow.ones(2), flow.ones(3, 4), flow.ones(4)), RuntimeError),
        (lambda flow: flow.addmv(flow.ones(3), flow.ones(3), flow.ones(3)), RuntimeError),
    ),
)
samples(
    addr, _drawn((3, 1), (3,), (4,)), lambda x, a, b, beta, alpha: beta * x + alpha * np.outer(a, b)
)
samples(
    addbmm,
    _drawn((2,), (3, 4, 5), (3, 5, 2)),
    lambda x, a, b, beta, alpha: beta * x + alpha * (a @ b).sum(0),
    errors=(
        (
            lambda flow: flow.addbmm(flow.ones(2), flow.ones(1, 2, 3), flow.ones(2, 3, 2)),
            RuntimeError,
        ),
    ),
)
samples(vdot, lambda rng: [Sample((rng.standard_normal(4), rng.standard_normal(4)))], np.vdot)
