"""Linear algebra under the names that PyTorch has at its top and as methods: `flow.svd`, `x.qr()`.

Where `flow.linalg` has the same function with other conventions, these are the older ones.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from flowvm import return_types
from flowvm.eager.autocast import outside
from flowvm.eager.keywords import spelled
from flowvm.eager.tensor import Tensor, method
from flowvm.errors import ArgumentError, ShapeError
from flowvm.meta.dtype import DType, int32
from flowvm.ops.declare.halves import in_float32
from flowvm.ops.declare.outputs import with_out
from flowvm.ops.declare.registry import Sample, samples
from flowvm.ops.linalg import decompositions, norms, spectra
from flowvm.ops.linalg.decompositions import householder_product, lu_factor_ex, reflected, unpacked
from flowvm.ops.linalg.parts.checks import batched, identity, matrices, same_dtype, square, turned
from flowvm.ops.products.matmul import matmul
from flowvm.ops.rows.statistics import vector_norm
from flowvm.ops.shapes.fill import zeros

if TYPE_CHECKING:
    from flowvm.meta.arrays import Array


# public: flow


@method()
@with_out
def qr(input: Tensor, some: bool = True) -> return_types.qr:
    """Q and R of matrices (*, m, n), reduced, or complete without `some`; see `linalg.qr`.

    >>> Q, R = flow.qr(flow.tensor([[0.0, 2.0], [1.0, 0.0]]))
    >>> R.abs()
    tensor([[1., 0.],
            [0., 2.]])
    """
    return return_types.qr(decompositions.qr(input, "reduced" if some else "complete"))


@method()
@with_out
def svd(input: Tensor, some: bool = True, compute_uv: bool = True) -> return_types.svd:
    """U, S and V (not its transpose) of matrices (*, m, n); without `some` the full U and V.

    Without `compute_uv` U and V are zeros.

    >>> U, S, V = flow.svd(flow.tensor([[0.0, 2.0], [3.0, 0.0]]))
    >>> S
    tensor([3., 2.])
    """
    x = matrices("svd", input, "input")
    m, n = x.shape[-2:]
    if not compute_uv:
        u, v = (zeros((*x.shape[:-2], k, k), dtype=x.dtype, device=x.device) for k in (m, n))
        return return_types.svd((u, spectra.svdvals(x), v))
    u, s, vh = spectra.svd(x, not some)
    return return_types.svd((u, s, vh.mH))


@method()
def pinverse(input: Tensor, rcond: float = 1e-15) -> Tensor:
    """The Moore-Penrose inverse; see `linalg.pinv`.

    >>> flow.pinverse(flow.tensor([[2.0, 0.0], [0.0, 0.0]]))
    tensor([[0.5000, 0.0000],
            [0.0000, 0.0000]])
    """
    return spectra.pinv(input, rcond)


@method()
@with_out
def geqrf(input: Tensor) -> return_types.geqrf:
    """R in the upper triangle of the matrices, reflectors of Q below it, and their factors, as
    `orgqr` and `ormqr` take them.  No gradient.

    >>> a, tau = flow.geqrf(flow.tensor([[3.0, 1.0], [4.0, 2.0]]))
    >>> a[0, 0].abs(), tau.shape  # the length of the first column
    (tensor(5.), flow.Size([2]))
    """
    return return_types.geqrf(decompositions.geqrf(input))


@method()
@with_out
@spelled(input2="tau")
def orgqr(input: Tensor, tau: Tensor) -> Tensor:
    """The Q of `geqrf`'s answer; see `linalg.householder_product`.

    >>> a, tau = flow.geqrf(flow.tensor([[3.0, 1.0], [4.0, 2.0]]))
    >>> Q = flow.orgqr(a, tau)
    >>> flow.allclose(Q.T @ Q, flow.eye(2), atol=1e-6)
    True
    """
    return householder_product(input, tau)


@method()
@with_out
@spelled(input2="tau", input3="other")
def ormqr(
    input: Tensor, tau: Tensor, other: Tensor, left: bool = True, transpose: bool = False
) -> Tensor:
    """The product of the whole Q (m, m) of `geqrf`'s answer with `other`: Q @ other, other @ Q
    without `left`, Q's conjugate transpose with `transpose`.

    >>> A = flow.tensor([[3.0, 1.0], [4.0, 2.0]])
    >>> a, tau = flow.geqrf(A)
    >>> flow.allclose(flow.ormqr(a, tau, a.triu()), A, atol=1e-6)  # Q @ R
    True
    """
    x, other = matrices("ormqr", input, "input"), matrices("ormqr", other, "other")
    same_dtype("ormqr", x, other)
    if other.shape[-2 if left else -1] != x.shape[-2]:
        raise ShapeError(
            f"ormqr: other of shape {tuple(other.shape)} does not fit Q of {x.shape[-2]} rows"
        )
    if left:
        return reflected(x, tau, other, transpose)
    return reflected(x, tau, other.mH, not transpose).mH


# --- norms ----------------------------------------------------------------------------------------


@method()
@with_out
@in_float32
def norm(
    input: Tensor,
    p: float | str | None = "fro",
    dim: int | tuple[int, ...] | list[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: DType | None = None,
) -> Tensor:
    """The norm of order `p` of all elements, or over `dim`, as one vector: "fro", None and 2 are
    the root of the sum of squares; see `linalg.vector_norm`.

    "nuc" is the sum of the singular values of a matrix, or of the matrices in two dimensions.

    >>> flow.norm(flow.tensor([3.0, 4.0]))
    tensor(5.)
    """
    if p == "nuc":
        dims = (-2, -1) if dim is None else dim
        if dim is None and input.ndim != 2:
            raise ShapeError(f'norm: p="nuc" without dim needs a matrix, got {tuple(input.shape)}')
        return norms.matrix_norm(input, "nuc", dims, keepdim, dtype=dtype)
    if isinstance(p, str) and p != "fro":
        raise ArgumentError(f'norm: p is "fro", "nuc" or a number, got {p!r}')
    order = 2 if p is None or isinstance(p, str) else p
    return vector_norm(input, order, dim, keepdim, dtype=dtype)


# --- LU -------------------------------------------------------------------------------------------


@method()
@with_out
def lu(input: Tensor, pivot: bool = True, get_infos: bool = False) -> tuple[Tensor, ...]:
    """The factors in one matrix and LAPACK's exchanges, and with `get_infos` its info; see
    `linalg.lu_factor`.

    >>> factors, pivots = flow.lu(flow.tensor([[1.0, 2.0], [2.0, 8.0]]))
    >>> factors, pivots
    (tensor([[ 2.0000,  8.0000],
            [ 0.5000, -2.0000]]), tensor([2, 2], dtype=int32))
    """
    factors = lu_factor_ex(input, pivot=pivot)
    return tuple(factors) if get_infos else (factors.LU, factors.pivots)


@with_out
def lu_unpack(
    LU_data: Tensor, LU_pivots: Tensor, unpack_data: bool = True, unpack_pivots: bool = True
) -> return_types.lu_unpack:
    """Return P, L and U from the result of `lu`; parts that are not asked for have no elements.

    >>> P, L, U = flow.lu_unpack(*flow.lu(flow.tensor([[1.0, 2.0], [2.0, 8.0]])))
    >>> P @ L @ U
    tensor([[1., 2.],
            [2., 8.]])
    """
    if LU_pivots.dtype is not int32:
        raise ArgumentError(f"lu_unpack: pivots are int32, got {LU_pivots.dtype.name}")
    p, lower, upper = unpacked(matrices("lu_unpack", LU_data, "LU_data"), LU_pivots)
    none = zeros(0, dtype=LU_data.dtype, device=LU_data.device)
    if not unpack_data:
        lower = upper = none
    return return_types.lu_unpack((p if unpack_pivots else none, lower, upper))


@method()
@with_out
@spelled(input="b")
def lu_solve(b: Tensor, LU_data: Tensor, LU_pivots: Tensor) -> Tensor:
    """X with A @ X = b, by the factors of A that `lu` gave; see `linalg.lu_solve`.

    >>> A = flow.tensor([[1.0, 2.0], [2.0, 8.0]])
    >>> flow.lu_solve(flow.tensor([[3.0], [10.0]]), *flow.lu(A))
    tensor([[1.],
            [1.]])
    """
    return decompositions.lu_solve(LU_data, LU_pivots, b)


# --- triangles ------------------------------------------------------------------------------------


@method()
@with_out
def triangular_solve(
    input: Tensor,
    A: Tensor,
    upper: bool = True,
    transpose: bool = False,
    unitriangular: bool = False,
) -> return_types.triangular_solve:
    """X with A @ X = input for triangular A, or its transpose, and A: `linalg.solve_triangular`.

    >>> A = flow.tensor([[1.0, 1.0], [0.0, 2.0]])
    >>> flow.triangular_solve(flow.tensor([[3.0], [4.0]]), A)[0]
    tensor([[1.],
            [2.]])
    """
    b = matrices("triangular_solve", input, "input")
    a, b = batched(square("triangular_solve", A), b)
    t = turned(a) if transpose else a
    x = decompositions.solve_triangular(t, b, upper=upper != transpose, unitriangular=unitriangular)
    return return_types.triangular_solve((x, a.clone()))


@method()
@with_out
@spelled(input="B", input2="L")
def cholesky_solve(B: Tensor, L: Tensor, upper: bool = False) -> Tensor:
    """X with A @ X = B (*, n, k), by Cholesky's factor of A, the lower one or the `upper`.

    >>> L = flow.tensor([[2.0, 0.0], [0.0, 1.0]])  # of A = [[4, 0], [0, 1]]
    >>> flow.cholesky_solve(flow.tensor([[8.0], [3.0]]), L)
    tensor([[2.],
            [3.]])
    """
    factor = square("cholesky_solve", L, "L")
    y = decompositions.solve_triangular(factor.mH if upper else factor, B, upper=False)
    return decompositions.solve_triangular(factor if upper else factor.mH, y, upper=True)


@method()
@with_out
@spelled(input="L")
def cholesky_inverse(L: Tensor, upper: bool = False) -> Tensor:
    """The inverse of A, by its Cholesky factor, the lower one or the `upper`.

    >>> flow.cholesky_inverse(flow.tensor([[2.0, 0.0], [0.0, 1.0]]))  # of A = [[4, 0], [0, 1]]
    tensor([[0.2500, 0.0000],
            [0.0000, 1.0000]])
    """
    factor = square("cholesky_inverse", L, "L")
    eye = identity(factor, factor.shape[-1])
    half = decompositions.solve_triangular(factor.mH if upper else factor, eye, upper=False)
    return outside(matmul, half.mH, half)  # type: ignore[no-any-return]


# --- samples --------------------------------------------------------------------------------------


def _regular(rng: np.random.Generator, *shape: int) -> Array:
    """Matrices that are far from singular."""
    return rng.standard_normal(shape) * 0.3 + np.eye(shape[-1]) * 2


def _reflectors(a: Any, tau: Any) -> Array:
    """The first columns of the product of the reflectors in a's columns."""
    q = np.eye(len(a))
    for i, scale in enumerate(tau):
        v = np.concatenate([np.zeros(i), [1.0], a[i + 1 :, i]])
        q = q - scale * np.outer(q @ v, v)
    return q[:, : a.shape[1]]


samples(
    norm,
    lambda rng: [
        Sample((rng.uniform(0.5, 2, (3, 4)) * rng.choice([-1.0, 1.0], (3, 4)), *rest))
        for rest in ((), (1, 1), (math.inf, 0, True), (3, (0, 1)), ("nuc",))
    ],
    lambda x, p=2, dim=None, keepdim=False: (
        np.linalg.norm(x, p)
        if p == "nuc"
        else np.linalg.norm(x, p, dim, keepdim)
        if isinstance(dim, int)
        else (np.abs(x) ** p).sum() ** (1 / p)
    ),
    errors=(
        (lambda flow: flow.norm(flow.ones(2, 2), "other"), ValueError),
        (lambda flow: flow.norm(flow.arange(3)), RuntimeError),
    ),
)
samples(pinverse, lambda rng: [Sample((_regular(rng, 3, 3),))], np.linalg.pinv)
samples(
    cholesky_solve,
    lambda rng: [
        Sample((rng.standard_normal((3, 2)), np.tril(_regular(rng, 3, 3)))),
        Sample((rng.standard_normal((3, 2)), np.triu(_regular(rng, 3, 3)), True)),
    ],
    lambda b, f, upper=False: np.linalg.solve(f.T @ f if upper else f @ f.T, b),
)
samples(
    cholesky_inverse,
    lambda rng: [Sample((np.tril(_regular(rng, 3, 3)),))],
    lambda f: np.linalg.inv(f @ f.T),
)
samples(
    orgqr, lambda rng: [Sample((rng.standard_normal((4, 3)), rng.uniform(0.1, 1, 2)))], _reflectors
)
samples(
    ormqr,
    lambda rng: [
        Sample((rng.standard_normal((4, 2)), rng.uniform(0.1, 1, 2), rng.standard_normal((4, 3))))
    ],
    lambda a, tau, c: _reflectors(np.pad(a, ((0, 0), (0, 2))), tau) @ c,
)
