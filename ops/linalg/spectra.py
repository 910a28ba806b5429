"""Singular values and eigenvalues, and functions of them: pinv, rank, condition.

A vector's sign, of complex ones its angle, is LAPACK's choice.  Gradients of vectors hold where no
two values are equal; those of values alone hold everywhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from flowvm import return_types
from flowvm.eager.autocast import outside
from flowvm.eager.modes import grad_enabled
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError
from flowvm.meta.dtype import finfo, int64
from flowvm.ops.declare.composite import Recorded, record
from flowvm.ops.declare.outputs import with_out
from flowvm.ops.declare.registry import Sample, samples
from flowvm.ops.linalg.parts.checks import constant_of, identity, matrices, square, turned
from flowvm.ops.linalg.parts.spectra import (
    complex_eig,
    eigh_op,
    eigvalsh_op,
    paired,
    real_eig,
    svd_op,
    svdvals_op,
)
from flowvm.ops.pointwise.clamp import maximum
from flowvm.ops.pointwise.compare import where
from flowvm.ops.products.matmul import matmul
from flowvm.ops.rows.reduce import amax, sum
from flowvm.ops.shapes.complex_parts import complex
from flowvm.ops.shapes.create import tensor
from flowvm.ops.shapes.fill import zeros

if TYPE_CHECKING:
    from flowvm.eager.nodes import Node
    from flowvm.meta.arrays import Array


# public: linalg


def _need_driver(name: str, driver: str | None) -> None:
    if driver is not None:
        raise ArgumentError(
            f"{name}: driver={driver!r} chooses a routine of cuSOLVER; leave it away on the CPU"
        )


@with_out
def svd(
    A: Tensor, full_matrices: bool = True, *, driver: str | None = None
) -> return_types.linalg_svd:
    """U, S and Vh of matrices (*, m, n): A = U @ diag(S) @ Vh, S (*, k) descending, k = min(m, n).

    With `full_matrices` U (m, m) and Vh (n, n), whose further columns and rows have no gradient;
    else U (m, k) and Vh (k, n).

    >>> flow.linalg.svd(flow.tensor([[3.0, 0.0], [0.0, 2.0]])).S
    tensor([3., 2.])
    """
    _need_driver("linalg.svd", driver)
    return return_types.linalg_svd(svd_op(matrices("linalg.svd", A), bool(full_matrices)))


@with_out
def svdvals(A: Tensor, *, driver: str | None = None) -> Tensor:
    """The singular values of matrices (*, m, n), descending: (*, min(m, n)).

    >>> flow.linalg.svdvals(flow.tensor([[0.0, 2.0], [3.0, 0.0]]))
    tensor([3., 2.])
    """
    _need_driver("linalg.svdvals", driver)
    A = matrices("linalg.svdvals", A)
    return svdvals_op(A)  # type: ignore[no-any-return]


def _triangle(name: str, UPLO: str) -> bool:
    if UPLO not in ("L", "U", "l", "u"):
        raise ArgumentError(f"{name}: UPLO is 'L' or 'U', got {UPLO!r}")
    return UPLO in ("L", "l")


@with_out
def eigh(A: Tensor, UPLO: str = "L") -> return_types.linalg_eigh:
    """The eigenvalues of symmetric or Hermitian matrices (*, n, n), real and ascending, and their
    vectors, as columns.

    UPLO   which triangle is read: "L", the lower one, or "U"

    >>> flow.linalg.eigh(flow.tensor([[2.0, 0.0], [0.0, 1.0]])).eigenvalues
    tensor([1., 2.])
    """
    A = square("linalg.eigh", A)
    values, rows = eigh_op(A, _triangle("linalg.eigh", UPLO))
    return return_types.linalg_eigh((values, rows.mH))


@with_out
def eigvalsh(A: Tensor, UPLO: str = "L") -> Tensor:
    """The eigenvalues of symmetric or Hermitian matrices (*, n, n), ascending: real (*, n).

    >>> flow.linalg.eigvalsh(flow.tensor([[3.0, 0.0], [0.0, 1.0]]))
    tensor([1., 3.])
    """
    A = square("linalg.eigvalsh", A)
    lower = _triangle("linalg.eigvalsh", UPLO)
    return eigvalsh_op(A, lower)  # type: ignore[no-any-return]


def _eig(A: Tensor, vectors: bool) -> tuple[Tensor, Tensor]:
    """The eigenvalues, and the vectors as rows if asked for."""
    if A._meta.dtype.is_complex:
        return complex_eig(turned(A), vectors)  # type: ignore[no-any-return]
    real, imaginary, rows = real_eig(turned(A), vectors)
    return complex(real, imaginary), paired(imaginary, rows) if vectors else rows


@with_out
def eig(A: Tensor) -> return_types.linalg_eig:
    """The eigenvalues of square matrices (*, n, n), complex and in no order, and their vectors, of
    length 1, as columns.

    LinAlgError where the result is read, if they are not found, or a matrix has infinities or
    NaN.

    >>> flow.linalg.eig(flow.tensor([[0.0, -1.0], [1.0, 0.0]])).eigenvalues
    tensor([0.+1.j, 0.-1.j])
    """
    values, rows = _eig(square("linalg.eig", A), True)
    return return_types.linalg_eig((values, turned(rows)))


@with_out
def eigvals(A: Tensor) -> Tensor:
    """The eigenvalues of square matrices (*, n, n), complex and in no order: (*, n).

    >>> flow.linalg.eigvals(flow.tensor([[2.0, 0.0], [0.0, 3.0]]))
    tensor([2.+0.j, 3.+0.j])
    """
    A = square("linalg.eigvals", A)
    return _eig(A, grad_enabled() and A.requires_grad)[0]  # the vectors are for the gradient


# --- rank and pseudoinverse -----------------------------------------------------------------------


def _limit(name: str, A: Tensor, top: Tensor, atol: object, rtol: object) -> Tensor:
    """Return the limit above which a singular value counts: max(atol, rtol * top) for each matrix.

    `rtol` is max(m, n) times the dtype's epsilon by default, or 0 if `atol` is given and not 0.
    """
    default = max(A.shape[-2:]) * finfo(A.dtype).eps

    def as_tensor(value: Any) -> Tensor:
        if isinstance(value, Tensor):
            return value.to(top.dtype)
        return tensor(float(value), dtype=top.dtype, device=top.device)

    absolute = as_tensor(0.0 if atol is None else atol)
    if rtol is not None:
        relative = as_tensor(rtol)
    elif atol is None:
        relative = as_tensor(default)
    else:
        relative = where(absolute > 0, as_tensor(0.0), as_tensor(default))
    return maximum(absolute, relative * top)  # type: ignore[no-any-return]


def _magnitudes(A: Tensor, hermitian: bool) -> Tensor:
    return eigvalsh(A).abs() if hermitian else svdvals(A)


@with_out
def matrix_rank(
    A: Tensor,
    tol: object = None,
    hermitian: bool = False,
    *,
    atol: object = None,
    rtol: object = None,
) -> Tensor:
    """Count the singular values of matrices (*, m, n) above max(atol, rtol * the largest).

    The result is int64 (*).  `rtol` is max(m, n) * eps by default, 0 where `atol` is positive.
    `tol` is the older name of `atol`.  With `hermitian` the magnitudes of eigenvalues count.

    >>> flow.linalg.matrix_rank(flow.ones(3, 2))
    tensor(1)
    """
    A = matrices("linalg.matrix_rank", A).detach()
    if hermitian:
        square("linalg.matrix_rank", A)
    if tol is not None:
        atol, rtol = tol, 0.0
    if min(A.shape[-2:]) == 0:
        return zeros(tuple(A.shape[:-2]), dtype=int64, device=A.device)
    values = _magnitudes(A, hermitian)
    limit = _limit("linalg.matrix_rank", A, amax(values, -1), atol, rtol)
    return sum(values > limit.unsqueeze(-1), -1)


def _pinv_grad(c: Node, g: Tensor) -> tuple[Tensor | None, ...]:
    """-Yᴴ g Yᴴ + (I - A Y) gᴴ Y Yᴴ + Yᴴ Y gᴴ (I - Y A) (Golub and Pereyra, 1973)."""
    a, y = c.saved
    m, n = a.shape[-2:]
    yt, gt = y.mH, g.mH
    out = -matmul(yt, matmul(g, yt))
    left = identity(a, m) - matmul(a, y)
    right = identity(a, n) - matmul(y, a)
    out = out + matmul(left, matmul(gt, matmul(y, yt)))
    return (out + matmul(matmul(matmul(yt, y), gt), right),)


_pinv_node = Recorded("pinv", _pinv_grad, ("a",), "a, out")


@with_out
def pinv(
    A: Tensor,
    rcond: object = None,
    hermitian: bool = False,
    *,
    atol: object = None,
    rtol: object = None,
) -> Tensor:
    """The Moore-Penrose inverse (*, n, m) of matrices (*, m, n): singular values not above
    max(atol, rtol * the largest) are taken as 0.

    `rtol` is max(m, n) * eps by default, 0 where `atol` is positive; `rcond` is its older name.
    The gradient holds where the rank does not change (Golub and Pereyra, 1973).

    >>> flow.linalg.pinv(flow.tensor([[2.0, 0.0], [0.0, 0.0]]))
    tensor([[0.5000, 0.0000],
            [0.0000, 0.0000]])
    """
    A = matrices("linalg.pinv", A)
    if hermitian:
        square("linalg.pinv", A)
    rtol = rcond if rtol is None else rtol
    m, n = A.shape[-2:]
    if min(m, n) == 0:
        return constant_of(A, zeros((*A.shape[:-2], n, m), dtype=A.dtype, device=A.device))
    x = A.detach()
    if hermitian:
        values, u = eigh(x)
        vh = u.mH
        size = values.abs()
    else:
        u, values, vh = svd(x, False)
        size = values
    limit = _limit("linalg.pinv", A, amax(size, -1), atol, rtol).unsqueeze(-1)
    inverted = where(size > limit, 1 / where(size > limit, values, 1), 0)
    out = outside(matmul, vh.mH * inverted.unsqueeze(-2), u.mH)
    return record(_pinv_node, (A,), out, (), (A, out))


# --- samples --------------------------------------------------------------------------------------


def _regular(rng: np.random.Generator, *shape: int) -> Array:
    """Matrices that are far from singular."""
    return rng.standard_normal(shape) * 0.3 + np.eye(shape[-1]) * 2


samples(
    svdvals,
    lambda rng: [Sample((_regular(rng, 3, 3),)), Sample((rng.standard_normal((2, 4, 2)),))],
    lambda a: np.linalg.svd(a, compute_uv=False),
)
samples(
    pinv,
    lambda rng: [Sample((_regular(rng, 3, 3),)), Sample((rng.standard_normal((2, 4, 2)),))],
    np.linalg.pinv,
    errors=((lambda flow: pinv(flow.ones(2)), RuntimeError),),
)
samples(
    matrix_rank,
    lambda rng: [Sample((_regular(rng, 2, 3, 3),)), Sample((np.ones((4, 3)),))],
    np.linalg.matrix_rank,
    name="linalg.matrix_rank",
    floats=("float64", "float32"),
    grad=False,
)
