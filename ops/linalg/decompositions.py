"""Matrices as products of simpler ones: Cholesky, LU, QR, LDL, Householder's reflectors.

What LAPACK finds wrong with a matrix is an error where a result is read, LinAlgError with the
matrix' place in the batch; functions whose name ends in `_ex` leave LAPACK's info instead.
"""

from __future__ import annotations

from flowvm import return_types
from flowvm.eager.modes import grad_enabled
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, LinAlgError, ShapeError
from flowvm.meta.dtype import int32
from flowvm.ops.declare.composite import need_tensor
from flowvm.ops.declare.outputs import with_out
from flowvm.ops.linalg.parts.checks import (
    batched,
    constant_of,
    identity,
    matrices,
    same_dtype,
    square,
    turned,
)
from flowvm.ops.linalg.parts.factors import (
    cholesky_info,
    geqrf_op,
    ldl_op,
    ldl_solve_op,
    left_triangular,
    lu_op,
    orgqr_op,
    permutation_matrix,
    qr_op,
    right_triangular,
)
from flowvm.ops.linalg.systems import cholesky as _cholesky
from flowvm.ops.linalg.systems import solve as _solve
from flowvm.ops.products.matmul import matmul
from flowvm.ops.shapes.fill import zeros
from flowvm.ops.shapes.join import cat
from flowvm.ops.shapes.matrices import tril, triu

# public: linalg


# not public
def checked(name: str, info: Tensor, check: bool) -> None:
    """LinAlgError if `check` and an info is not 0; its value is waited for."""
    bad = info.reshape(-1).nonzero() if check else None
    if bad is not None and bad.shape[0]:
        item = int(bad[0, 0].item())
        raise LinAlgError(
            f"{name}: matrix {item} of the batch has no such factors (LAPACK info "
            f"{info.reshape(-1)[item].item()})"
        )


@with_out
def cholesky(A: Tensor, *, upper: bool = False) -> Tensor:
    """The lower triangular L with L @ L.mH = A (*, n, n), Hermitian and positive definite; with
    `upper` its conjugate transpose.

    LinAlgError where the result is read, if a matrix is not positive definite.

    >>> flow.linalg.cholesky(flow.tensor([[4.0, 2.0], [2.0, 5.0]]))
    tensor([[2., 0.],
            [1., 2.]])
    """
    return _cholesky(square("linalg.cholesky", A), upper)


@with_out
def cholesky_ex(
    A: Tensor, *, upper: bool = False, check_errors: bool = False
) -> return_types.linalg_cholesky_ex:
    """Compute `cholesky`, and `info`: the order of the first leading minor that is not positive.

    `info` is int32 of the batch's shape, 0 where there is none.  With `check_errors` LinAlgError at
    the call, which then waits.

    >>> factor = flow.linalg.cholesky_ex(flow.tensor([[4.0, 0.0], [0.0, -1.0]]))
    >>> factor.info  # the leading minor that is not positive
    tensor(2, dtype=int32)
    """
    A = square("linalg.cholesky_ex", A)
    factor, info = cholesky_info(A.mH if upper else A)
    checked("linalg.cholesky_ex", info, check_errors)
    lower = tril(factor)
    return return_types.linalg_cholesky_ex((lower.mH if upper else lower, info))


# --- LU -------------------------------------------------------------------------------------------


@with_out
def lu_factor_ex(
    A: Tensor, *, pivot: bool = True, check_errors: bool = False
) -> return_types.linalg_lu_factor_ex:
    """The factors of matrices (*, m, n) in one matrix, the exchanges (*, min(m, n)), int32, and
    info: the first column without a pivot, from 1 up, or 0.

    ArgumentError for pivot=False, which LAPACK has not.

    >>> flow.linalg.lu_factor_ex(flow.tensor([[2.0, 0.0], [0.0, 0.0]])).info
    tensor(2, dtype=int32)
    """
    A = matrices("linalg.lu_factor_ex", A)
    _need_pivot("linalg.lu_factor_ex", pivot)
    factors, pivots, info = lu_op(turned(A), False)
    checked("linalg.lu_factor_ex", info, check_errors)
    return return_types.linalg_lu_factor_ex((turned(factors), pivots, info))


def _need_pivot(name: str, pivot: bool) -> None:
    if not pivot:
        raise ArgumentError(
            f"{name}: pivot=False is for CUDA in PyTorch, and there is no such kernel here; use "
            "pivot=True"
        )


@with_out
def lu_factor(A: Tensor, *, pivot: bool = True) -> return_types.linalg_lu_factor:
    """The factors of matrices (*, m, n) in one matrix, and LAPACK's exchanges of rows; see
    `lu_solve`.

    LinAlgError where the result is read, if a matrix is singular.

    >>> flow.linalg.lu_factor(flow.tensor([[1.0, 2.0], [2.0, 8.0]]))
    flow.return_types.linalg_lu_factor(
    LU=tensor([[ 2.0000,  8.0000],
            [ 0.5000, -2.0000]]),
    pivots=tensor([2, 2], dtype=int32))
    """
    A = matrices("linalg.lu_factor", A)
    _need_pivot("linalg.lu_factor", pivot)
    factors, pivots, _ = lu_op(turned(A), True)
    return return_types.linalg_lu_factor((turned(factors), pivots))


@with_out
def lu(A: Tensor, *, pivot: bool = True) -> return_types.linalg_lu:
    """P, L and U of matrices (*, m, n): A = P @ L @ U, where P exchanges rows, L is lower
    triangular with ones on the diagonal and U is upper triangular.

    >>> P, L, U = flow.linalg.lu(flow.tensor([[1.0, 2.0], [2.0, 8.0]]))
    >>> P, L, U
    (tensor([[0., 1.],
            [1., 0.]]), tensor([[1.0000, 0.0000],
            [0.5000, 1.0000]]), tensor([[ 2.,  8.],
            [ 0., -2.]]))
    """
    factors = lu_factor_ex(matrices("linalg.lu", A), pivot=pivot)
    return return_types.linalg_lu(unpacked(factors.LU, factors.pivots))


# not public
def unpacked(factors: Tensor, pivots: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """P, L and U of `lu_factor`'s answer."""
    m, n = factors.shape[-2:]
    k = min(m, n)
    lower = tril(factors[..., :k], -1)
    ones = zeros((*factors.shape[:-2], k), dtype=factors.dtype, device=factors.device) + 1
    eye = ones.diag_embed()
    if m > k:
        below = zeros((*factors.shape[:-2], m - k, k), dtype=factors.dtype, device=factors.device)
        eye = cat([eye, below], -2)
    return permutation_matrix(pivots, m, factors), lower + eye, triu(factors[..., :k, :])


@with_out
def lu_solve(
    LU: Tensor, pivots: Tensor, B: Tensor, *, left: bool = True, adjoint: bool = False
) -> Tensor:
    """X with A @ X = B (or X @ A = B without `left`), by the factors of A that `lu_factor` gave;
    with `adjoint`, of A's conjugate transpose.  Batches broadcast.

    >>> LU, pivots = flow.linalg.lu_factor(flow.tensor([[1.0, 2.0], [2.0, 8.0]]))
    >>> flow.linalg.lu_solve(LU, pivots, flow.tensor([[3.0], [10.0]]))
    tensor([[1.],
            [1.]])
    """
    factors = square("linalg.lu_solve", LU, "LU")
    B = matrices("linalg.lu_solve", B, "B")
    same_dtype("linalg.lu_solve", factors, B)
    if pivots.dtype is not int32:
        raise ArgumentError(f"linalg.lu_solve: pivots are int32, got {pivots.dtype.name}")
    if not left:  # X A = B: Aᴴ Xᴴ = Bᴴ
        return lu_solve(factors, pivots, B.mH, adjoint=not adjoint).mH
    n = factors.shape[-1]
    if B.shape[-2] != n:
        raise ShapeError(
            f"linalg.lu_solve: B of shape {tuple(B.shape)} does not fit LU of shape "
            f"{tuple(factors.shape)}"
        )
    factors, B = batched(factors, B)
    exchange = permutation_matrix(pivots, n, factors)
    if adjoint:  # Aᴴ = Uᴴ Lᴴ Pᵀ
        conjugate = factors.conj()
        y = left_triangular(conjugate, B, True, True)
        return matmul(exchange, left_triangular(conjugate, y, False, True, True))  # type: ignore[no-any-return]
    mixed = matmul(turned(exchange), B)
    return left_triangular(factors, left_triangular(factors, mixed, False, False, True), True)


@with_out
def solve_triangular(
    A: Tensor, B: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Tensor:
    """Solve A @ X = B (or X @ A = B without `left`) for triangular A (*, n, n).

    The other triangle is not read; with `unitriangular` the diagonal is taken as ones.  LinAlgError
    where the result is read, if an element of the diagonal is 0.

    >>> A = flow.tensor([[1.0, 1.0], [0.0, 2.0]])
    >>> flow.linalg.solve_triangular(A, flow.tensor([[3.0], [4.0]]), upper=True)
    tensor([[1.],
            [2.]])
    """
    A, B = square("linalg.solve_triangular", A), matrices("linalg.solve_triangular", B, "B")
    same_dtype("linalg.solve_triangular", A, B)
    if B.shape[-2 if left else -1] != A.shape[-1]:
        raise ShapeError(
            f"linalg.solve_triangular: B of shape {tuple(B.shape)} does not fit A of shape "
            f"{tuple(A.shape)}"
        )
    A, B = batched(A, B)
    if left:
        return left_triangular(A, B, bool(upper), False, bool(unitriangular))
    return right_triangular(A, B, bool(upper), False, bool(unitriangular))  # type: ignore[no-any-return]


# --- QR and reflectors ----------------------------------------------------------------------------


@with_out
def qr(A: Tensor, mode: str = "reduced") -> return_types.linalg_qr:
    """Q with orthonormal columns and upper triangular R, A = Q @ R, of matrices (*, m, n).

    mode   "reduced": Q (m, k) and R (k, n), k = min(m, n); "complete": Q (m, m) and R (m, n);
           "r": R (k, n), and a Q without elements

    >>> Q, R = flow.linalg.qr(flow.tensor([[0.0, 2.0], [1.0, 0.0]]))
    >>> R.abs()
    tensor([[1., 0.],
            [0., 2.]])
    """
    A = matrices("linalg.qr", A)
    if mode not in ("reduced", "complete", "r"):
        raise ArgumentError(f"linalg.qr: mode is 'reduced', 'complete' or 'r', got {mode!r}")
    m, n = A.shape[-2:]
    q, r = qr_op(turned(A), mode == "complete")
    r = triu(turned(r)[..., : m if mode == "complete" else min(m, n), :])
    q = zeros(0, dtype=A.dtype, device=A.device) if mode == "r" else turned(q)
    return return_types.linalg_qr((q, r))


# not public
def reflected(A: Tensor, tau: Tensor, other: Tensor, adjoint: bool = False) -> Tensor:
    """H₁ H₂ ... Hₖ @ other for the reflectors I - τ v vᴴ in A's columns; `adjoint`: Hₖᴴ ... H₁ᴴ.

    The product is I - V T Vᴴ, where T⁻¹ has 1 / τ on its diagonal and above it what Vᴴ V has there
    (Schreiber and Van Loan, "A storage-efficient WY representation for products of Householder
    transformations", 1989).  So T = D (I + U D)⁻¹, D having τ, which may be 0, and U being what is
    above.
    """
    need_tensor("ormqr", "input", A)
    need_tensor("ormqr", "tau", tau)
    need_tensor("ormqr", "other", other)
    m, k = A.shape[-2], tau.shape[-1]
    if k == 0:
        return other.expand((*A.shape[:-2], m, other.shape[-1])).clone()
    v = tril(A, -1)[..., :k] + _unit(A, k)
    inside = triu(matmul(v.mH, v), 1) * tau.unsqueeze(-2) + identity(A, k)
    part = matmul(v.mH, other)
    if adjoint:
        return other - matmul(v, _solve(inside.mH, part * tau.conj().unsqueeze(-1)))  # type: ignore[no-any-return]
    return other - matmul(v, tau.unsqueeze(-1) * _solve(inside, part))  # type: ignore[no-any-return]


def _unit(A: Tensor, n: int) -> Tensor:
    """The first n columns of the identity of A's rows, batched as A is."""
    m = A.shape[-2]
    ones = zeros((*A.shape[:-2], n), dtype=A.dtype, device=A.device) + 1
    eye = ones.diag_embed()
    if m > n:
        below = zeros((*A.shape[:-2], m - n, n), dtype=A.dtype, device=A.device)
        eye = cat([eye, below], -2)
    return eye[..., :m, :]


@with_out
def householder_product(A: Tensor, tau: Tensor) -> Tensor:
    """The first n columns of H₁ H₂ ... Hₖ, where Hᵢ = I - τᵢ v vᴴ and v is column i of A (*, m, n)
    below the diagonal, with 1 on it and 0 above; tau (*, k), k <= n <= m.

    >>> A = flow.tensor([[3.0, 1.0], [4.0, 2.0]])
    >>> Q = flow.linalg.householder_product(*flow.geqrf(A))
    >>> flow.allclose(Q.T @ Q, flow.eye(2), atol=1e-6)
    True
    """
    name = "linalg.householder_product"
    A = matrices(name, A)
    same_dtype(name, A, tau)
    (m, n), k = A.shape[-2:], tau.shape[-1]
    if not k <= n <= m or tuple(tau.shape[:-1]) != tuple(A.shape[:-2]):
        raise ShapeError(
            f"{name}: needs A (*, m, n) and tau (*, k) with k <= n <= m, got shapes "
            f"{tuple(A.shape)} and {tuple(tau.shape)}"
        )
    if k == 0:
        return constant_of(A, _unit(A, n))
    if grad_enabled() and (A.requires_grad or tau.requires_grad):
        return reflected(A, tau, _unit(A, n))
    return turned(orgqr_op(turned(A), tau))


# not public
def geqrf(input: Tensor) -> tuple[Tensor, Tensor]:
    """R in the upper triangle, reflectors below it, and their factors (*, k)."""
    factors, tau = geqrf_op(turned(matrices("geqrf", input, "input")))
    return turned(factors), tau


# --- LDL ------------------------------------------------------------------------------------------


def _hermitian(A: Tensor, hermitian: bool) -> bool:
    """Return True if `hermitian` says so and complex numbers make a difference."""
    return bool(hermitian) and A._meta.dtype.is_complex


@with_out
def ldl_factor_ex(
    A: Tensor, *, hermitian: bool = False, check_errors: bool = False
) -> return_types.linalg_ldl_factor_ex:
    """L and D of symmetric matrices (*, n, n) with A = L @ D @ L.T, D in blocks of 1 and 2, in one
    matrix; LAPACK's exchanges, int32; its info.  The lower triangle is read.

    With `hermitian` of Hermitian ones, A = L @ D @ L.mH, if they are complex.

    >>> flow.linalg.ldl_factor_ex(flow.tensor([[2.0, 0.0], [0.0, 1.0]])).info
    tensor(0, dtype=int32)
    """
    A = square("linalg.ldl_factor_ex", A)
    factors, pivots, info = ldl_op(turned(A), False, _hermitian(A, hermitian))
    checked("linalg.ldl_factor_ex", info, check_errors)
    return return_types.linalg_ldl_factor_ex((tril(turned(factors)), pivots, info))


@with_out
def ldl_factor(A: Tensor, *, hermitian: bool = False) -> return_types.linalg_ldl_factor:
    """L and D of symmetric matrices (*, n, n), or Hermitian ones, and LAPACK's exchanges; see
    `ldl_factor_ex` and `ldl_solve`.

    LinAlgError where the result is read, if D is singular.

    >>> LD, pivots = flow.linalg.ldl_factor(flow.tensor([[2.0, 4.0], [4.0, 1.0]]))
    >>> LD.shape, pivots.dtype
    (flow.Size([2, 2]), flow.int32)
    """
    A = square("linalg.ldl_factor", A)
    factors, pivots, _ = ldl_op(turned(A), True, _hermitian(A, hermitian))
    return return_types.linalg_ldl_factor((tril(turned(factors)), pivots))


@with_out
def ldl_solve(LD: Tensor, pivots: Tensor, B: Tensor, *, hermitian: bool = False) -> Tensor:
    """X with A @ X = B (*, n, k), by the factors of A that `ldl_factor` gave.  No gradient.

    >>> A = flow.tensor([[2.0, 0.0], [0.0, 4.0]])
    >>> LD, pivots = flow.linalg.ldl_factor(A)
    >>> flow.linalg.ldl_solve(LD, pivots, flow.tensor([[2.0], [8.0]]))
    tensor([[1.],
            [2.]])
    """
    LD, B = square("linalg.ldl_solve", LD, "LD"), matrices("linalg.ldl_solve", B, "B")
    same_dtype("linalg.ldl_solve", LD, B)
    need_tensor("linalg.ldl_solve", "pivots", pivots)
    if pivots.dtype is not int32:
        raise ArgumentError(f"linalg.ldl_solve: pivots are int32, got {pivots.dtype.name}")
    if LD.shape[-1] != B.shape[-2]:
        raise ShapeError(
            f"linalg.ldl_solve: B of shape {tuple(B.shape)} does not fit LD of shape "
            f"{tuple(LD.shape)}"
        )
    LD, B = batched(LD, B)
    pivots = pivots.expand(LD.shape[:-1])
    x = ldl_solve_op(turned(LD), turned(B), pivots, _hermitian(LD, hermitian))
    return turned(x)
