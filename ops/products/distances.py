"""Distances between points, and the cross product."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from flowvm.eager.tensor import Tensor, method
from flowvm.errors import ArgumentError, DTypeError, ShapeError
from flowvm.ops.declare.composite import need_tensor, wrap_dim
from flowvm.ops.declare.halves import in_float32
from flowvm.ops.declare.outputs import with_out
from flowvm.ops.declare.registry import Sample, broadcast_shapes, samples
from flowvm.ops.products.matmul import matmul
from flowvm.ops.rows.statistics import vector_norm
from flowvm.ops.shapes.create import tensor
from flowvm.ops.shapes.fill import zeros

if TYPE_CHECKING:
    from flowvm.meta.arrays import Array


# public: flow

_MODES = (
    "use_mm_for_euclid_dist_if_necessary",
    "use_mm_for_euclid_dist",
    "donot_use_mm_for_euclid_dist",
)
_MANY = 25  # points from which on PyTorch takes the product for p = 2


def _points(name: str, argument: str, value: Tensor, least: int) -> Tensor:
    x = need_tensor(name, argument, value)
    if x._meta.ndim < least:
        raise ShapeError(
            f"{name}: {argument} has at least {least} dimensions, got shape {tuple(x.shape)}"
        )
    if not x._meta.dtype.is_floating_point:
        raise DTypeError(f"{name}: points are floats, got {x.dtype.name}")
    return x


@in_float32
def cdist(x1: Tensor, x2: Tensor, p: float = 2.0, compute_mode: str | None = None) -> Tensor:
    """The distance of each point of `x1`, (*, n, k), to each of `x2`, (*, m, k): (*, n, m).

    p              the order of the norm, 0 to infinity
    compute_mode   whether distances for p = 2 come of a matrix product, which is quicker and
                   rounds more: by default from 26 points on, as PyTorch's names for it say

    >>> flow.cdist(flow.tensor([[0.0, 0.0]]), flow.tensor([[3.0, 4.0], [0.0, 1.0]]))
    tensor([[5., 1.]])
    """
    a, b = _points("cdist", "x1", x1, 2), _points("cdist", "x2", x2, 2)
    if a.shape[-1] != b.shape[-1]:
        raise ShapeError(
            f"cdist: points have one number of coordinates, got {tuple(a.shape)} and "
            f"{tuple(b.shape)}"
        )
    if p < 0:
        raise ArgumentError(f"cdist: p is not negative, got {p}")
    mode = _MODES[0] if compute_mode is None else compute_mode
    if mode not in _MODES:
        raise ArgumentError(f"cdist: compute_mode is one of {', '.join(_MODES)}, got {mode!r}")
    broadcast_shapes(a.shape[:-2], b.shape[:-2])
    many = a.shape[-2] > _MANY or b.shape[-2] > _MANY
    if p == 2 and a.shape[-1] and (mode == _MODES[1] or (mode == _MODES[0] and many)):
        return _by_product(a, b)
    differences = a.unsqueeze(-2) - b.unsqueeze(-3)
    if not differences.numel():
        return differences.sum(-1)
    lengths: Tensor = vector_norm(differences, p, -1)
    return lengths


def _by_product(a: Tensor, b: Tensor) -> Tensor:
    """|a - b|**2 as a product of (-2a, |a|**2, 1) and (b, 1, |b|**2); no slope where it is 0."""
    left, right = (a * a).sum(-1, keepdim=True), (b * b).sum(-1, keepdim=True)
    squares = matmul(a * -2, b.transpose(-1, -2)) + left + right.transpose(-1, -2)
    apart = squares > 0
    lengths: Tensor = squares.masked_fill(~apart, 1).sqrt() * apart
    return lengths


@in_float32
def pdist(input: Tensor, p: float = 2.0) -> Tensor:
    """The distance of each pair of the n rows of `input`, (n, k): n (n - 1) / 2 numbers, in the
    order of the pairs' places above the diagonal.

    >>> flow.pdist(flow.tensor([[0.0, 0.0], [3.0, 4.0], [0.0, 1.0]]))
    tensor([5.0000, 1.0000, 4.2426])
    """
    x = _points("pdist", "input", input, 2)
    if x.ndim != 2:
        raise ShapeError(f"pdist: points are the rows of a matrix, got shape {tuple(x.shape)}")
    if p < 0:
        raise ArgumentError(f"pdist: p is not negative, got {p}")
    rows, columns = np.triu_indices(x.shape[0], 1)
    if not rows.size or not x.shape[1]:
        return zeros(rows.size, dtype=x.dtype, device=x.device)
    first, second = (tensor(i, device=x.device) for i in (rows, columns))
    differences = x.index_select(0, first) - x.index_select(0, second)
    lengths: Tensor = vector_norm(differences, p, -1)
    return lengths


@method()
@in_float32
def dist(input: Tensor, other: Tensor, p: float = 2) -> Tensor:
    """The norm of order `p` of `input - other`, over all elements.

    >>> flow.dist(flow.tensor([0.0, 0.0]), flow.tensor([3.0, 4.0]))
    tensor(5.)
    """
    length: Tensor = vector_norm(need_tensor("dist", "input", input) - other, p)
    return length


@method()
@with_out
@in_float32
def cross(input: Tensor, other: Tensor, dim: int | None = None) -> Tensor:
    """The cross products of vectors of three elements along `dim` (None: the first dimension of
    that length); the other dimensions broadcast.

    >>> flow.cross(flow.tensor([1, 0, 0]), flow.tensor([0, 1, 0]), dim=0)
    tensor([0, 0, 1])
    """
    a: Tensor = need_tensor("cross", "input", input)
    b: Tensor = need_tensor("cross", "other", other)
    shape = broadcast_shapes(a.shape, b.shape)
    if a.ndim != b.ndim:
        raise ShapeError(
            f"cross: both have the same number of dimensions, got {tuple(a.shape)} and "
            f"{tuple(b.shape)}"
        )
    if dim is None:
        if 3 not in a.shape:
            raise ShapeError(f"cross: no dimension of shape {tuple(a.shape)} is 3 long")
        dim = tuple(a.shape).index(3)
    at = wrap_dim("cross", dim, a.ndim)
    if a.ndim == 0 or a.shape[at] != 3 or b.shape[at] != 3:
        raise ShapeError(
            f"cross: dimension {dim} is 3 long in both, got {tuple(a.shape)} and {tuple(b.shape)}"
        )
    a, b = a.broadcast_to(shape), b.broadcast_to(shape)
    out: Tensor = a.roll(-1, at) * b.roll(-2, at) - a.roll(-2, at) * b.roll(-1, at)
    return out


def _away(rng: np.random.Generator, *shapes: tuple[int, ...]) -> tuple[object, ...]:
    return tuple(rng.uniform(0.1, 1, s) + 2 * i for i, s in enumerate(shapes))


def _cdist_reference(a: Array, b: Array, p: float = 2.0) -> Any:
    return np.linalg.norm(a[..., :, None, :] - b[..., None, :, :], p, axis=-1)


samples(
    cdist,
    lambda rng: (
        [Sample((*_away(rng, (2, 3, 4), (5, 4)), p)) for p in (1.0, 2.0, 3.0, float("inf"))]
        + [Sample((rng.standard_normal((30, 3)), 2 + rng.standard_normal((2, 3))))]
    ),
    _cdist_reference,
    floats=("float64", "float32"),
    atol=1e-5,
    errors=(
        (lambda flow: flow.cdist(flow.ones(2, 3), flow.ones(2, 4)), RuntimeError),
        (lambda flow: flow.cdist(flow.ones(2, 3), flow.ones(2, 3), -1.0), ValueError),
        (lambda flow: flow.cdist(flow.ones(2, 3).long(), flow.ones(2, 3).long()), RuntimeError),
        (lambda flow: flow.cdist(flow.ones(2), flow.ones(2, 3)), RuntimeError),
    ),
)
samples(
    pdist,
    lambda rng: [Sample((np.cumsum(rng.uniform(1, 2, (4, 3)), 0), p)) for p in (1.0, 2.0)],
    lambda x, p: _cdist_reference(x, x, p)[np.triu_indices(len(x), 1)],
    errors=((lambda flow: flow.pdist(flow.ones(2, 3, 4)), RuntimeError),),
)
samples(
    dist,
    lambda rng: [Sample((*_away(rng, (2, 3), (3,)), p)) for p in (1, 2)],
    lambda a, b, p: np.linalg.norm((a - b).ravel(), p),
)
samples(
    cross,
    lambda rng: [
        Sample((rng.standard_normal((3, 4)), rng.standard_normal((3, 1)))),
        Sample((rng.standard_normal((2, 3)), rng.standard_normal((2, 3)), -1)),
    ],
    lambda a, b, dim=0: np.cross(a + 0 * b, b + 0 * a, axis=dim),
    errors=(
        (lambda flow: flow.cross(flow.ones(2, 4), flow.ones(2, 4)), RuntimeError),
        (lambda flow: flow.cross(flow.ones(2, 3), flow.ones(2, 3), 0), RuntimeError),
    ),
)
