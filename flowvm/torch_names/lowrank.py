"""Factorizations of large matrices that have few large singular values or eigenvalues.

What is sought lies nearly in the space that a few random vectors span once the matrix has been
applied to them some times (Halko, Martinsson and Tropp, 2011), so products with tall matrices are
all that is needed.  They are compositions, and gradients flow as through their parts.
"""

from __future__ import annotations

from typing import Any

from flowvm.eager.modes import recording
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, ShapeError
from flowvm.linalg import eigh, norm, qr, svd
from flowvm.loading.listing import listing, own_names
from flowvm.meta.dtype import finfo
from flowvm.ops.declare.composite import need_tensor
from flowvm.ops.linalg.parts.checks import matrices, same_dtype
from flowvm.ops.products.matmul import matmul
from flowvm.ops.random.random import randn
from flowvm.ops.shapes.join import cat, stack

# public: flow (late, unlisted)

__dir__ = listing(globals())


# not public
def get_approximate_basis(A: Tensor, q: int, niter: int | None = 2, M: object = None) -> Tensor:
    """Return orthonormal columns (*, m, q) that nearly span the image of the matrices A - M (*, m,
    n).

    niter   how often the space is refined, by products with the matrix and its adjoint

    >>> flow.manual_seed(0)
    >>> x = flow.randn(8, 2) @ flow.randn(2, 5)  # of rank 2
    >>> Q = flow.lowrank.get_approximate_basis(x, 2)
    >>> flow.allclose(Q @ (Q.mT @ x), x, atol=1e-4)
    True
    """
    name = "get_approximate_basis"
    x = _less(name, A, M)
    times = 2 if niter is None else niter
    if times < 0:
        raise ArgumentError(f"{name}: niter must not be negative, got {niter}")
    basis: Any = qr(matmul(x, randn(x.shape[-1], q, dtype=x.dtype, device=x.device))).Q
    for _ in range(times):
        basis = qr(matmul(x.mH, basis)).Q
        basis = qr(matmul(x, basis)).Q
    return basis  # type: ignore[no-any-return]


def _less(name: str, a: Tensor, mean: object) -> Tensor:
    x: Any = matrices(name, a)
    if mean is None:
        return x  # type: ignore[no-any-return]
    same_dtype(name, x, need_tensor(name, "M", mean))
    less: Tensor = x - mean
    return less


def svd_lowrank(
    A: Tensor, q: int | None = 6, niter: int | None = 2, M: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return U, S and V (not its transpose) of the matrices A - M (*, m, n), for about the `q`
    largest singular values.  The method is randomized; the faster the singular values fall, the
    better the result.

    q       somewhat more than the rank that is looked for; min(m, n) if it is more than that
    niter   how often the space of U is refined
    M       taken off A; its shape is repeated to that of A

    >>> flow.manual_seed(0)
    >>> x = flow.randn(20, 2) @ flow.randn(2, 15)
    >>> U, S, V = flow.svd_lowrank(x, 2)
    >>> flow.allclose(U @ S.diag() @ V.mT, x, atol=1e-4)
    True
    """
    x: Tensor = _less("svd_lowrank", A, M)
    m, n = x.shape[-2:]
    count = min(6 if q is None else q, m, n)
    if count <= 0:
        raise ArgumentError(f"svd_lowrank: q and the matrices' sizes are positive, got {q}, {m, n}")
    turned = m < n  # the basis is of the longer side, so the small matrix is thin
    x = x.mH if turned else x
    basis = get_approximate_basis(x, count, niter)
    u, s, vh = svd(matmul(basis.mH, x), full_matrices=False)
    left, right = matmul(basis, u), vh.mH
    return (right, s, left) if turned else (left, s, right)


def pca_lowrank(
    A: Tensor, q: int | None = None, center: bool = True, niter: int = 2
) -> tuple[Tensor, Tensor, Tensor]:
    """Return U, S and V of samples (*, m, n), whose m rows are the samples.  The columns of V are
    the `q` principal directions (6 if there are as many).  S**2 / (m - 1) is the variance along
    them.

    `center`: each column's mean is taken off first.

    >>> flow.manual_seed(0)
    >>> x = flow.randn(50, 1) * flow.tensor([3.0, 4.0]) + 7  # along (0.6, 0.8)
    >>> flow.pca_lowrank(x, 1)[2].abs()
    tensor([[0.6000],
            [0.8000]])
    """
    x: Tensor = matrices("pca_lowrank", A)
    m, n = x.shape[-2:]
    count = min(6, m, n) if q is None else q
    if not 0 <= count <= min(m, n):
        raise ArgumentError(f"pca_lowrank: q is from 0 to {min(m, n)} for {m} x {n}, got {q}")
    if niter < 0:
        raise ArgumentError(f"pca_lowrank: niter must not be negative, got {niter}")
    return svd_lowrank(x - x.mean(-2, keepdim=True) if center else x, count, niter)


# --- eigenvalues ----------------------------------------------------------------------------------


def lobpcg(
    A: Tensor,
    k: int | None = None,
    B: Tensor | None = None,
    X: Tensor | None = None,
    n: int | None = None,
    iK: Tensor | None = None,
    niter: int | None = None,
    tol: float | None = None,
    largest: bool | None = None,
    method: str | None = None,
    tracker: None = None,
    ortho_iparams: object = None,
    ortho_fparams: object = None,
    ortho_bparams: object = None,
) -> tuple[Tensor, Tensor]:
    """The `k` largest eigenvalues (*, k) of symmetric matrices A (*, m, m), and their eigenvectors
    (*, m, k); with `B`, symmetric and positive definite, of A x = lambda B x.  With `largest` False
    the smallest, from the smallest on.

    X       (*, m, n) what to begin with, else `n` random vectors, by default k (which is 1)
    iK      (*, m, m) what residuals are multiplied with, about the inverse of A
    niter   steps at most, 1000 by default; -1 for no end
    tol     for residuals, by the norms of matrices and vector; the root of the dtype's eps
    method  "basic" and "ortho" are one method here, which keeps its vectors orthogonal; the
            `ortho_` numbers are PyTorch's and taken.  `tracker` is None.

    m is at least 3 n.  Each step waits for the residuals.  Gradients flow through the eigenvalues
    alone.  Locally optimal block preconditioned conjugate gradients (Knyazev, 2001).

    >>> flow.manual_seed(0)
    >>> values, vectors = flow.lobpcg(flow.arange(10.0).diag(), 2)
    >>> values
    tensor([9.0000, 8.0000])
    """
    x: Tensor = matrices("lobpcg", A)
    m = x.shape[-1]
    if x.shape[-2] != m:
        raise ShapeError(f"lobpcg: expected square matrices (*, m, m), got {tuple(x.shape)}")
    if tracker is not None or method not in (None, "basic", "ortho"):
        raise ArgumentError(f'lobpcg: method is "basic" or "ortho" and tracker None, got {method}')
    wide = k if k is not None else 1 if X is None else X.shape[-1]
    block = X.shape[-1] if X is not None else n or wide
    if not 0 < wide <= block or m < 3 * block:
        raise ArgumentError(
            f"lobpcg: matrices of {m} rows need at least 3 for each of n = {block} vectors, of "
            f"which k = {wide} are wanted; take linalg.eigh"
        )
    start = X if X is not None else randn(*x.shape[:-1], block, dtype=x.dtype, device=x.device)
    limit = finfo(x.dtype).eps ** 0.5 if tol is None else tol
    with recording(False):
        operands = [_one_by_one(t, x.shape[:-2]) for t in (x, B, start, iK)]
        each = [
            _of_one(a, b, z, p, 1000 if niter is None else niter, limit, largest is not False)
            for a, b, z, p in zip(*operands, strict=True)
        ]
        vectors: Any = stack(each).reshape(*x.shape[:-1], block)[..., :wide]
        weights = vectors if B is None else matmul(B, vectors)
    values: Any = (vectors * matmul(x, vectors)).sum(-2) / (vectors * weights).sum(-2)
    return values, vectors


def _one_by_one(t: Tensor | None, batch: Any) -> list[object]:
    if t is None:
        return [None] * batch.numel()
    return list(t.detach().expand(*batch, *t.shape[-2:]).reshape(-1, *t.shape[-2:]))


def _of_one(
    a: object, b: object, x: Any, k: object, niter: int, tol: float, largest: bool
) -> Tensor:
    """Return the vectors of one matrix.  Each step seeks the best in the space of the vectors,
    their residuals and the step before.
    """

    def by_b(z: object) -> object:
        return z if b is None else matmul(b, z)

    def best(space: Any, count: int) -> tuple[Any, object]:
        """Return the first eigenvalues and their vectors, among all vectors of the space."""
        scale, turn = eigh(matmul(space.mT, by_b(space)))
        nonzero = scale > scale.max() * finfo(space.dtype).eps * len(scale) * 10
        basis = matmul(space, turn[:, nonzero] / scale[nonzero].sqrt())
        values, turn = eigh(matmul(basis.mT, matmul(a, basis)))
        if largest:
            values, turn = values.flip(0), turn.flip(1)
        return values[:count], matmul(basis, turn[:, :count])

    block, before, step = x.shape[-1], None, 0
    size_a, size_b = norm(a), 1.0 if b is None else norm(b)
    values, x = best(x, block)
    while step != niter:
        rest = matmul(a, x) - by_b(x) * values
        sizes = norm(x, dim=0) * (size_a + values.abs() * size_b)
        if bool((norm(rest, dim=0) <= tol * sizes).all()):
            break
        rest = rest if k is None else matmul(k, rest)
        rest = rest / norm(rest, dim=0).clamp(min=finfo(x.dtype).tiny)
        old = x
        values, x = best(cat([x, rest] if before is None else [x, rest, before], 1), block)
        before = x - matmul(old, matmul(old.mT, by_b(x)))
        before = before / norm(before, dim=0).clamp(min=finfo(x.dtype).tiny)
        step += 1
    return x  # type: ignore[no-any-return]


__all__ = own_names(globals())
