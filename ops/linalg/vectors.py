"""Products of vectors, and matrices and diagonals by PyTorch's newer conventions."""

from __future__ import annotations

import numpy as np

from flowvm.eager.tensor import Tensor
from flowvm.errors import ShapeError
from flowvm.ops.declare.composite import need_tensor, wrap_dim
from flowvm.ops.declare.halves import in_float32
from flowvm.ops.declare.outputs import with_out
from flowvm.ops.declare.registry import Sample, broadcast_shapes, samples
from flowvm.ops.pointwise.complex_numbers import conj
from flowvm.ops.rows.reduce import sum
from flowvm.ops.rows.scan import cumprod
from flowvm.ops.shapes.fill import ones_like
from flowvm.ops.shapes.join import cat, stack
from flowvm.ops.shapes.slices import diagonal as _diagonal

# public: linalg


@with_out
@in_float32
def cross(input: Tensor, other: Tensor, *, dim: int = -1) -> Tensor:
    """The cross product of vectors of 3 elements in dimension `dim`; other dimensions broadcast.

    >>> flow.linalg.cross(flow.tensor([1.0, 0.0, 0.0]), flow.tensor([0.0, 1.0, 0.0]))
    tensor([0., 0., 1.])
    """
    a, b = need_tensor("linalg.cross", "input", input), need_tensor("linalg.cross", "other", other)
    if a._meta.ndim != b._meta.ndim:
        raise ShapeError(
            f"linalg.cross: both must have as many dimensions, got shapes {tuple(a.shape)} and "
            f"{tuple(b.shape)}"
        )
    at = wrap_dim("linalg.cross", dim, a._meta.ndim)
    if a._meta.ndim == 0 or a.shape[at] != 3 or b.shape[at] != 3:
        raise ShapeError(
            f"linalg.cross: dimension {dim} must have 3 elements, got shapes {tuple(a.shape)} and "
            f"{tuple(b.shape)}"
        )
    shape = broadcast_shapes(a.shape, b.shape)
    (a0, a1, a2), (b0, b1, b2) = (t.expand(shape).unbind(at) for t in (a, b))
    return stack([a1 * b2 - a2 * b1, a2 * b0 - a0 * b2, a0 * b1 - a1 * b0], at)


@with_out
@in_float32
def vecdot(x: Tensor, y: Tensor, *, dim: int = -1) -> Tensor:
    """Return the dot products of vectors in dimension `dim`; x is conjugated, shapes broadcast.

    >>> flow.linalg.vecdot(flow.tensor([[1, 2], [3, 4]]), flow.tensor([10, 1]))
    tensor([12, 34])
    """
    x, y = need_tensor("linalg.vecdot", "x", x), need_tensor("linalg.vecdot", "y", y)
    product = conj(x) * y
    return sum(product, dim, dtype=product.dtype)


@in_float32
def vander(x: Tensor, *, N: int | None = None) -> Tensor:
    """Return the powers 0 to N - 1 of x (*, n): (*, n, N); by default N = n.

    >>> flow.linalg.vander(flow.tensor([1, 2, 3]))
    tensor([[1, 1, 1],
            [1, 2, 4],
            [1, 3, 9]])
    """
    x = need_tensor("linalg.vander", "x", x)
    if x._meta.ndim == 0:
        x = x.unsqueeze(-1)
    count = x.shape[-1] if N is None else int(N)
    if N is not None and count <= 1:
        raise ShapeError(f"linalg.vander: N is at least 2, got {N}")
    first = ones_like(x if x.dtype.inexact else x.long()).unsqueeze(-1)
    if count <= 1:
        return first[..., :count]
    rest = cumprod(x.unsqueeze(-1).expand((*x.shape, count - 1)), -1)
    return cat([first, rest], -1)


def diagonal(A: Tensor, *, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """A view of the diagonals of the matrices in `dim1` and `dim2`, as the last dimension.

    >>> flow.linalg.diagonal(flow.tensor([[1, 2], [3, 4]]))
    tensor([1, 4])
    """
    return _diagonal(A, offset, dim1, dim2)


# --- samples --------------------------------------------------------------------------------------


samples(
    cross,
    lambda rng: [
        Sample((rng.standard_normal((2, 3)), rng.standard_normal((1, 3)))),
        Sample((rng.standard_normal((3, 2)), rng.standard_normal((3, 2))), {"dim": 0}),
    ],
    lambda a, b, dim=-1: np.cross(a, b, axis=dim),
    name="linalg.cross",
    errors=((lambda flow: cross(flow.ones(2), flow.ones(2)), RuntimeError),),
)
samples(
    vecdot,
    lambda rng: [Sample((rng.standard_normal((2, 3)), rng.standard_normal((1, 3))))],
    lambda a, b: (a * b).sum(-1),
)
samples(
    vander,
    lambda rng: [Sample((rng.standard_normal((2, 3)),)), Sample((np.ones(3) * 2,), {"N": 2})],
    lambda x, N=None: x[..., None] ** np.arange(x.shape[-1] if N is None else N),
    name="linalg.vander",
)
samples(
    diagonal,
    lambda rng: [Sample((rng.standard_normal((2, 3, 3)),))],
    lambda x: np.diagonal(x, 0, -2, -1),
    name="linalg.diagonal",
)
