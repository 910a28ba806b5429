"""Distances between the rows of tensors, and the bilinear product of two tensors."""

from __future__ import annotations

import math

from flowvm import ops
from flowvm.eager.tensor import Tensor
from flowvm.errors import ShapeError
from flowvm.ops.declare.halves import in_float32
from flowvm.ops.rows.statistics import vector_norm


# public: flow (late, unlisted), F
@in_float32
def bilinear(input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """y_k = x1 @ weight_k @ x2 + bias_k over the last dimensions of x1 and x2.

    >>> F.bilinear(flow.tensor([[1.0, 2.0]]), flow.tensor([[3.0]]), flow.ones(1, 2, 1))
    tensor([[9.]])
    """
    if tuple(input1.shape[:-1]) != tuple(input2.shape[:-1]):
        raise ShapeError(
            f"bilinear: all dimensions but the last must agree, got {tuple(input1.shape)} and "
            f"{tuple(input2.shape)}"
        )
    rows = math.prod(input1.shape[:-1])
    x1 = input1.reshape((rows, input1.shape[-1]))
    x2 = input2.reshape((rows, input2.shape[-1]))
    products = (x1 @ weight) * x2
    out = ops.sum(
        products, -1, dtype=products.dtype
    ).t()  # (k, rows, in2) -> (k, rows) -> (rows, k)
    out = out if bias is None else out + bias
    return ops.reshape(out, (*input1.shape[:-1], weight.shape[0]))


# public: flow (late, unlisted), F
@in_float32
def pairwise_distance(
    x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False
) -> Tensor:
    """The p-norm of x1 - x2 + eps over the last dimension of both, broadcast.

    p may be 0 (how many elements are not 0), infinite, or any other number.

    >>> F.pairwise_distance(flow.tensor([[0.0, 0.0]]), flow.tensor([[3.0, 4.0]]), eps=0.0)
    tensor([5.])
    """
    return _norm(ops.abs(x1 - x2 + eps), p, keepdim)


def _norm(size: Tensor, p: float, keepdim: bool) -> Tensor:
    """The p-norm over the last dimension of what is not negative; its gradient is 0 at 0."""
    out: Tensor
    if p == 0:
        out = ops.sum(ops.sign(size), -1, keepdim)
    elif math.isinf(p):
        out = (ops.amax if p > 0 else ops.amin)(size, -1, keepdim)
    elif p == 1:
        out = ops.sum(size, -1, keepdim)
    else:
        out = vector_norm(size, p, -1, keepdim)
    return out


# public: F
def l2_normalize(input: Tensor, dim: int = 0, epsilon: float = 1e-12) -> Tensor:
    """The tensor divided by the root of the sum of its squares along `dim`, of at least `epsilon`.

    >>> F.l2_normalize(flow.tensor([3.0, 4.0]))
    tensor([0.6000, 0.8000])
    """
    squares = (input * input).sum(dim, keepdim=True)
    out: Tensor = input * squares.clamp(min=epsilon).rsqrt()
    return out


# public: F
@in_float32
def pdist(input: Tensor, p: float = 2.0) -> Tensor:
    """The p-norms between all pairs of rows of (N, M): (N (N - 1) / 2,), pair (0, 1) first, then
    (0, 2).

    >>> F.pdist(flow.tensor([[0.0, 0.0], [3.0, 4.0], [0.0, 1.0]]))
    tensor([5.0000, 1.0000, 4.2426])
    """
    if input.ndim != 2:
        raise ShapeError(f"pdist: input has two dimensions, got shape {tuple(input.shape)}")
    n = input.shape[0]
    pairs = ops.triu_indices(n, n, 1, device=input.device)
    first, second = (ops.index_select(input, 0, row) for row in (pairs[0], pairs[1]))
    return _norm(ops.abs(first - second), p, False)
