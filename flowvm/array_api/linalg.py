"""Linear algebra: matrices are the last two dimensions of an array."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from flowvm import linalg, ops
from flowvm.array_api.dtypes import paired
from flowvm.array_api.shapes import Axes, axes_of
from flowvm.array_api.statistics import sum as _sum
from flowvm.eager.tensor import Tensor
from flowvm.errors import ShapeError
from flowvm.loading.listing import listing
from flowvm.meta.dtype import DType

__all__ = [
    "cholesky", "cross", "det", "diagonal", "eigh", "eigvalsh", "inv", "matmul", "matrix_norm",
    "matrix_power", "matrix_rank", "matrix_transpose", "outer", "pinv", "qr", "slogdet", "solve",
    "svd", "svdvals", "tensordot", "trace", "vecdot", "vector_norm",
]  # fmt: skip
__dir__ = listing(globals())


class EighResult(NamedTuple):
    """Eigenvalues, in order, and eigenvectors, the columns."""

    eigenvalues: Tensor
    eigenvectors: Tensor


class QRResult(NamedTuple):
    """Q with orthonormal columns and the upper triangle R."""

    Q: Tensor
    R: Tensor


class SlogdetResult(NamedTuple):
    """The sign of a determinant and the logarithm of its absolute value."""

    sign: Tensor
    logabsdet: Tensor


class SVDResult(NamedTuple):
    """U, singular values from the greatest, and V, transposed and conjugated."""

    U: Tensor
    S: Tensor
    Vh: Tensor


def matmul(x1: Tensor, x2: Tensor, /) -> Tensor:
    """The matrix product; arrays of one dimension are a row and a column."""
    first, second = paired("matmul", x1, x2)
    product: Tensor = ops.matmul(first, second)
    return product


def matrix_transpose(x: Tensor, /) -> Tensor:
    """Rows and columns exchanged; ShapeError for fewer than two dimensions."""
    if x.ndim < 2:
        raise ShapeError(f"matrix_transpose: at least two dimensions, got shape {tuple(x.shape)}")
    return ops.transpose(x, -2, -1)


def tensordot(
    x1: Tensor, x2: Tensor, /, *, axes: int | tuple[Sequence[int], Sequence[int]] = 2
) -> Tensor:
    """Return products summed over the last `axes` dimensions of x1 and the first of x2, or over the
    given dimensions.
    """
    first, second = paired("tensordot", x1, x2)
    if isinstance(axes, int):
        return ops.tensordot(first, second, axes)
    return ops.tensordot(first, second, [list(part) for part in axes])


def vecdot(x1: Tensor, x2: Tensor, /, *, axis: int = -1) -> Tensor:
    """Sums of conj(x1) * x2 along `axis`, counted from the end, where both have one size."""
    first, second = paired("vecdot", x1, x2)
    if not -min(first.ndim, second.ndim) <= axis < 0:
        raise ShapeError(
            f"vecdot: axis is counted from the end of both shapes, {tuple(first.shape)} and "
            f"{tuple(second.shape)}, got {axis}"
        )
    if first.shape[axis] != second.shape[axis]:
        raise ShapeError(
            f"vecdot: axis {axis} is {first.shape[axis]} in x1 and {second.shape[axis]} in x2"
        )
    conjugate = first.conj() if first.dtype.is_complex else first
    return ops.sum(conjugate * second, axis, dtype=first.dtype)  # and not of 64 bits


def cholesky(x: Tensor, /, *, upper: object = False) -> Tensor:
    """The triangle whose product with its transpose is `x`: the lower one, or the upper."""
    return linalg.cholesky(x, upper=upper)


def cross(x1: Tensor, x2: Tensor, /, *, axis: int = -1) -> Tensor:
    """Cross products of vectors of 3 elements along `axis`."""
    first, second = paired("cross", x1, x2)
    n = max(first.ndim, second.ndim)  # PyTorch needs equal numbers of dimensions
    first, second = (x.reshape((1,) * (n - x.ndim) + tuple(x.shape)) for x in (first, second))
    return linalg.cross(first, second, dim=axis)


def det(x: Tensor, /) -> Tensor:
    """The determinant."""
    return linalg.det(x)


def diagonal(x: Tensor, /, *, offset: int = 0) -> Tensor:
    """The elements of a diagonal: the main one, or `offset` above."""
    return linalg.diagonal(x, offset=offset)


def eigh(x: Tensor, /) -> EighResult:
    """Return eigenvalues and eigenvectors of symmetric matrices.  Only the lower triangle is
    read.
    """
    return EighResult(*linalg.eigh(x))


def eigvalsh(x: Tensor, /) -> Tensor:
    """Return eigenvalues of symmetric matrices.  Only the lower triangle is read."""
    return linalg.eigvalsh(x)


def inv(x: Tensor, /) -> Tensor:
    """The inverse; an error, where it is read, for a matrix that has none."""
    return linalg.inv(x)


def matrix_norm(x: Tensor, /, *, keepdims: bool = False, ord: float | str | None = "fro") -> Tensor:
    """Return the norm of matrices: "fro", "nuc", 1, 2, inf, -1, -2, -inf."""
    return linalg.matrix_norm(x, "fro" if ord is None else ord, (-2, -1), keepdims)


def matrix_power(x: Tensor, n: int, /) -> Tensor:
    """The product of n matrices `x`; of the inverse for n < 0."""
    return linalg.matrix_power(x, n)


def matrix_rank(x: Tensor, /, *, rtol: float | Tensor | None = None) -> Tensor:
    """Return the number of singular values greater than `rtol` times the greatest."""
    return linalg.matrix_rank(x, rtol=rtol)


def outer(x1: Tensor, x2: Tensor, /) -> Tensor:
    """The products of each element of x1 with each of x2."""
    return ops.outer(*paired("outer", x1, x2))


def pinv(x: Tensor, /, *, rtol: float | Tensor | None = None) -> Tensor:
    """The pseudo-inverse; singular values up to `rtol` times the greatest count as 0."""
    return linalg.pinv(x, rtol=rtol)


def qr(x: Tensor, /, *, mode: str = "reduced") -> QRResult:
    """Q and R with x = Q R; Q of as many columns as are needed, or with "complete" square."""
    return QRResult(*linalg.qr(x, mode))


def slogdet(x: Tensor, /) -> SlogdetResult:
    """The sign of the determinant, and the logarithm of its absolute value."""
    return SlogdetResult(*linalg.slogdet(x))


def solve(x1: Tensor, x2: Tensor, /) -> Tensor:
    """The y with x1 y = x2, which is one vector if it has one dimension, else matrices."""
    first, second = paired("solve", x1, x2)
    if second.ndim == 1:
        return ops.squeeze(linalg.solve(first, second.unsqueeze(1)), -1)
    # PyTorch takes an array of one dimension less for a batch of vectors
    lead = ops.broadcast_shapes(first.shape[:-2], second.shape[:-2])
    return linalg.solve(
        first.expand(*lead, *first.shape[-2:]), second.expand(*lead, *second.shape[-2:])
    )


def svd(x: Tensor, /, *, full_matrices: object = True) -> SVDResult:
    """Singular values with both bases: square ones, or of as many columns as are needed."""
    return SVDResult(*linalg.svd(x, full_matrices))


def svdvals(x: Tensor, /) -> Tensor:
    """The singular values, from the greatest."""
    return linalg.svdvals(x)


def trace(x: Tensor, /, *, offset: int = 0, dtype: DType | None = None) -> Tensor:
    """The sum of a diagonal, in the dtype that `sum` has."""
    return _sum(linalg.diagonal(x, offset=offset), axis=-1, dtype=dtype)


def vector_norm(
    x: Tensor, /, *, axis: Axes | None = None, keepdims: bool = False, ord: float = 2
) -> Tensor:
    """The norm of vectors along `axis`, or of all elements: sums of abs(x) ** ord, to the power
    1 / ord; the greatest for inf, the smallest for -inf, how many are not 0 for 0.
    """
    places = axes_of("vector_norm", x, axis)
    if not places:
        result: Tensor = ops.abs(x) if ord else ops.ne(x, 0).to(x.dtype.real)
        return result
    return linalg.vector_norm(x, ord, places, keepdims)
