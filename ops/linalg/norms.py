"""Norms of vectors and matrices, and the condition that follows from two of them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from flowvm.eager.keywords import spelled
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, ArgumentTypeError, ShapeError
from flowvm.meta.dtype import DType, as_dtype
from flowvm.ops.declare.composite import need_tensor, wrap_dims
from flowvm.ops.declare.halves import in_float32
from flowvm.ops.declare.outputs import with_out
from flowvm.ops.declare.registry import Sample, samples
from flowvm.ops.linalg.parts.checks import inexact, matrices, square
from flowvm.ops.linalg.solvers import inv_ex
from flowvm.ops.linalg.spectra import svdvals
from flowvm.ops.pointwise.compare import ne, where
from flowvm.ops.pointwise.math import abs as abs_of
from flowvm.ops.rows.reduce import amax, amin, sum
from flowvm.ops.rows.statistics import vector_norm as _vector_norm
from flowvm.ops.shapes.views import movedim

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flowvm.meta.arrays import Array


# public: linalg

Dims = int | tuple[int, ...] | list[int] | None


@with_out
@in_float32
@spelled(input="x")
def vector_norm(
    x: Tensor,
    ord: float = 2,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: DType | None = None,
) -> Tensor:
    """The norm of order `ord` over `dim` (one or several; None: all) of the elements as one vector.

    inf and -inf are the largest and smallest magnitude, 0 the number of elements that are not 0,
    any other p the p-th root of the sum of p-th powers.  With `dtype`, x is converted first.

    >>> flow.linalg.vector_norm(flow.tensor([3.0, -4.0]))
    tensor(5.)
    """
    return _vector_norm(x, ord, dim, keepdim, dtype=dtype)


def _pair(name: str, dim: int | Sequence[int], ndim: int) -> tuple[int, int]:
    if not isinstance(dim, (tuple, list)) or len(dim) != 2:
        raise ArgumentError(f"{name}: dim is two dimensions, got {dim!r}")
    rows, columns = wrap_dims(name, tuple(dim), ndim)
    return rows, columns


@with_out
@in_float32
def matrix_norm(
    A: Tensor,
    ord: float | str = "fro",
    dim: Any = (-2, -1),
    keepdim: bool = False,
    *,
    dtype: DType | None = None,
) -> Tensor:
    """The norm of the matrices in the two dimensions `dim`.

    ord   "fro": root of the sum of squares; "nuc": sum of singular values; 2, -2: the largest and
          smallest of them; 1, -1 and inf, -inf: the largest and smallest sum of magnitudes of a
          column, and of a row

    >>> flow.linalg.matrix_norm(flow.tensor([[3.0, 0.0], [0.0, 4.0]]))
    tensor(5.)
    >>> flow.linalg.matrix_norm(flow.tensor([[3.0, 1.0], [0.0, 4.0]]), ord=1)
    tensor(5.)
    """
    name = "linalg.matrix_norm"
    if need_tensor(name, "A", A)._meta.ndim < 2:
        raise ShapeError(f"{name}: A must be matrices (*, m, n), got shape {tuple(A.shape)}")
    A = A if dtype is None else A.to(as_dtype(dtype))
    A = inexact(name, A)
    rows, columns = _pair(name, dim, A._meta.ndim)
    if isinstance(ord, bool) or not isinstance(ord, (int, float, str)):
        raise ArgumentTypeError(f"{name}: ord is a number, 'fro' or 'nuc', got {ord!r}")
    if ord == "fro":
        return _vector_norm(A, 2, (rows, columns), keepdim)
    if ord in ("nuc", 2, -2):
        values = svdvals(movedim(A, (rows, columns), (-2, -1)))
        fold = {"nuc": sum, 2: amax, -2: amin}[ord]
        out: Tensor = fold(values, -1)
        if keepdim:
            for d in sorted((rows, columns)):
                out = out.unsqueeze(d)
        return out
    if ord not in (1, -1, math.inf, -math.inf):
        raise ArgumentError(f"{name}: ord is 'fro', 'nuc', 1, -1, 2, -2, inf or -inf, got {ord!r}")
    summed, other_dim = (rows, columns) if ord in (1, -1) else (columns, rows)
    sums = sum(abs_of.call(A), summed, True)
    out = (amax if ord > 0 else amin)(sums, other_dim, True)
    if not keepdim:
        for d in sorted((rows, columns), reverse=True):
            out = out.squeeze(d)
    return out


@with_out
@in_float32
def norm(
    A: Tensor,
    ord: float | str | None = None,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: DType | None = None,
) -> Tensor:
    """`vector_norm` or `matrix_norm`, as the arguments say.

    Without `ord` the root of the sum of squares over `dim`.  With it, `dim` of one dimension means
    vectors and of two matrices; without `dim`, A has one or two dimensions and is either.

    >>> flow.linalg.norm(flow.tensor([3.0, 4.0]))
    tensor(5.)
    >>> flow.linalg.norm(flow.tensor([3.0, -4.0]), ord=1)
    tensor(7.)
    """
    A = need_tensor("linalg.norm", "A", A)
    if ord is not None and isinstance(dim, (tuple, list)) and len(dim) not in (1, 2):
        raise ArgumentError(f"linalg.norm: with ord, dim is one or two dimensions, got {dim!r}")
    if ord is None:
        return _vector_norm(A, 2, dim, keepdim, dtype=dtype)
    if dim is None:
        if A._meta.ndim not in (1, 2):
            raise ShapeError(
                f"linalg.norm: with ord and without dim A has one or two dimensions, got shape "
                f"{tuple(A.shape)}"
            )
        dim = tuple(range(A._meta.ndim))
    many = isinstance(dim, (tuple, list)) and len(dim) == 2
    if many:
        return matrix_norm(A, ord, dim, keepdim, dtype=dtype)
    if isinstance(ord, str):
        raise ArgumentError(f"linalg.norm: ord={ord!r} is for matrices, and dim is {dim!r}")
    return _vector_norm(A, ord, dim, keepdim, dtype=dtype)


@with_out
@in_float32
def cond(A: Tensor, p: float | str | None = None) -> Tensor:
    """The condition of matrices (*, m, n): norm(A) * norm(inverse(A)) in the norm of order `p`; for
    None, 2 and -2 the quotient of the largest and the smallest singular value (or the other way
    round).  inf for a singular matrix.

    >>> flow.linalg.cond(flow.tensor([[4.0, 0.0], [0.0, 2.0]]))
    tensor(2.)
    """
    A = matrices("linalg.cond", A)
    if p in (None, 2, -2):
        values = svdvals(A)
        if values.shape[-1] == 0:
            raise ShapeError(f"linalg.cond of a matrix without elements, shape {tuple(A.shape)}")
        out: Tensor = (
            values[..., -1] / values[..., 0] if p == -2 else values[..., 0] / values[..., -1]
        )
        return out
    A = square("linalg.cond", A)
    if A.shape[-1] == 0:
        return matrix_norm(A, "fro")
    assert p is not None
    inverse, info = inv_ex(A)
    singular = ne.call(info, 0).unsqueeze(-1).unsqueeze(-1)
    return matrix_norm(A, p) * matrix_norm(where(singular, math.inf, inverse), p)


# --- samples --------------------------------------------------------------------------------------


def _regular(rng: np.random.Generator, *shape: int) -> Array:
    """Matrices that are far from singular."""
    return rng.standard_normal(shape) * 0.3 + np.eye(shape[-1]) * 2


samples(
    vector_norm,
    lambda rng: [
        Sample((rng.standard_normal((3, 4)), p, 1, True)) for p in (2, 1, 3.5, math.inf, -1)
    ],
    lambda x, p, dim, keepdim: np.linalg.norm(x, p, dim, keepdim),
    name="linalg.vector_norm",
)
samples(
    matrix_norm,
    lambda rng: [
        Sample((rng.standard_normal((3, 4, 3)), p, (2, 0), k))
        for p, k in (("fro", False), ("nuc", True), (2, True), (-1, False), (math.inf, True))
    ],
    lambda x, p, dim, keepdim: np.linalg.norm(x, p, dim, keepdim),
    errors=((lambda flow: matrix_norm(flow.ones(2, 2), 3), ValueError),),
)
samples(
    norm,
    lambda rng: [
        Sample((rng.standard_normal((3, 4)),)),
        Sample((rng.standard_normal((3, 4)), 1)),
        Sample((rng.standard_normal((3, 4)), 1, 1)),
    ],
    np.linalg.norm,
    name="linalg.norm",
)
samples(
    cond,
    lambda rng: [Sample((_regular(rng, 2, 3, 3), p)) for p in (None, -2, "fro", 1)],
    np.linalg.cond,
    name="linalg.cond",
    floats=("float64", "float32"),
    grad2=False,
)
