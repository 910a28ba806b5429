"""Systems of equations, inverses and determinants, by PyTorch's newer conventions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from flowvm import return_types
from flowvm.eager.keywords import spelled
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, ShapeError
from flowvm.meta.dtype import finfo, int64
from flowvm.ops.declare.composite import Recorded, need_tensor, record, whole
from flowvm.ops.declare.outputs import with_out
from flowvm.ops.declare.registry import Sample, samples
from flowvm.ops.linalg.decompositions import checked
from flowvm.ops.linalg.parts.checks import (
    batched,
    constant_of,
    identity,
    matrices,
    same_dtype,
    square,
    turned,
    vector_side,
)
from flowvm.ops.linalg.parts.factors import right_solve
from flowvm.ops.linalg.parts.spectra import lstsq_op
from flowvm.ops.linalg.spectra import pinv
from flowvm.ops.linalg.systems import det as _det
from flowvm.ops.linalg.systems import inverse as _inverse
from flowvm.ops.linalg.systems import slogdet as _slogdet
from flowvm.ops.linalg.systems import solve as _solve
from flowvm.ops.products.matmul import matmul
from flowvm.ops.rows.reduce import all as all_of
from flowvm.ops.rows.reduce import sum
from flowvm.ops.shapes.complex_parts import real
from flowvm.ops.shapes.fill import zeros
from flowvm.ops.shapes.join import cat

if TYPE_CHECKING:
    from flowvm.eager.nodes import Node
    from flowvm.meta.arrays import Array


# public: linalg


@with_out
def inv(A: Tensor) -> Tensor:
    """The inverse of square matrices (*, n, n).

    LinAlgError where the result is read, if a matrix is singular.

    >>> flow.linalg.inv(flow.tensor([[2.0, 0.0], [0.0, 4.0]]))
    tensor([[0.5000, 0.0000],
            [0.0000, 0.2500]])
    """
    return _inverse(square("linalg.inv", A))


@with_out
def inv_ex(A: Tensor, *, check_errors: bool = False) -> return_types.linalg_inv_ex:
    """The inverse of square matrices, and in `info`, int32, the first column without a pivot, from
    1 up, or 0; of a singular matrix the inverse is anything.

    With `check_errors` LinAlgError at the call, which then waits.

    >>> flow.linalg.inv_ex(flow.tensor([[2.0, 0.0], [0.0, 0.0]])).info
    tensor(2, dtype=int32)
    """
    A = square("linalg.inv_ex", A)
    out, info = right_solve(A, identity(A, A.shape[-1]).expand(A.shape))
    checked("linalg.inv_ex", info, check_errors)
    return return_types.linalg_inv_ex((out, info))


@with_out
def det(A: Tensor) -> Tensor:
    """The determinant of square matrices (*, n, n).

    >>> flow.linalg.det(flow.tensor([[4.0, 2.0], [2.0, 3.0]]))
    tensor(8.)
    """
    return _det(square("linalg.det", A))


@with_out
def slogdet(A: Tensor) -> return_types.linalg_slogdet:
    """The sign of the determinant of matrices (*, n, n), and the logarithm of its absolute value:
    0 and -inf of a singular one.

    >>> flow.linalg.slogdet(flow.tensor([[0.0, 1.0], [1.0, 0.0]]))
    flow.return_types.linalg_slogdet(
    sign=tensor(-1.),
    logabsdet=tensor(0.))
    """
    return return_types.linalg_slogdet(_slogdet(square("linalg.slogdet", A)))


def _system(name: str, A: Tensor, B: Tensor, left: bool) -> tuple[Tensor, Tensor, bool]:
    """A and B as matrices, and whether B is one of vectors."""
    A = square(name, A)
    B = need_tensor(name, "B", B)
    same_dtype(name, A, B)
    vector = vector_side(A, B)
    if vector and not left and B._meta.ndim > 1:
        raise ArgumentError(f"{name}: B of vectors, shape {tuple(B.shape)}, goes with left=True")
    if vector:
        if B._meta.ndim == 1 and not left:
            raise ArgumentError(f"{name}: a vector B goes with left=True")
        B = B.unsqueeze(-1)
    if B._meta.ndim < 2 or B.shape[-2 if left else -1] != A.shape[-1]:
        raise ShapeError(
            f"{name}: B of shape {tuple(B.shape)} does not fit A of shape {tuple(A.shape)}"
        )
    return A, B, vector


@with_out
def solve(A: Tensor, B: Tensor, *, left: bool = True) -> Tensor:
    """X with A @ X = B (or X @ A = B without `left`), for A (*, n, n) and B (*, n, k), or B (n), or
    B (*, n) with as many vectors as matrices; batches broadcast.

    LinAlgError where the result is read, if a matrix is singular.

    >>> flow.linalg.solve(flow.tensor([[2.0, 0.0], [0.0, 4.0]]), flow.tensor([2.0, 8.0]))
    tensor([1., 2.])
    """
    A, B, vector = _system("linalg.solve", A, B, left)
    x = _solve(A, B) if left else turned(_solve(turned(A), turned(B)))
    return x.squeeze(-1) if vector else x


@with_out
def solve_ex(
    A: Tensor, B: Tensor, *, left: bool = True, check_errors: bool = False
) -> return_types.linalg_solve_ex:
    """`solve`, and in `info`, int32, the first column of A without a pivot, from 1 up, or 0; the
    answer for a singular matrix is anything.

    >>> A = flow.tensor([[2.0, 0.0], [0.0, 0.0]])
    >>> flow.linalg.solve_ex(A, flow.tensor([2.0, 8.0])).info
    tensor(2, dtype=int32)
    """
    A, B, vector = _system("linalg.solve_ex", A, B, left)
    A, B = batched(A, B)
    x, info = right_solve(turned(A), turned(B)) if left else right_solve(A, B)
    checked("linalg.solve_ex", info, check_errors)
    x = turned(x) if left else x
    return return_types.linalg_solve_ex((x.squeeze(-1) if vector else x, info))


# --- least squares --------------------------------------------------------------------------------


def _lstsq_grad(c: Node, g: Tensor) -> tuple[Tensor | None, ...]:
    """Return the gradient of X = A⁺ B in products with k columns (Golub and Pereyra, 1973).

    By B it is (A⁺)ᴴ g; by A it is `pinv`'s gradient for g Bᴴ.
    """
    a, b, x = c.saved
    y = pinv(a)
    by_b = matmul(y.mH, g)
    if not c.needs[0]:
        return None, by_b
    residual = b - matmul(a, x)
    rest = g - matmul(y, matmul(a, g))
    out = -matmul(by_b, x.mH) + matmul(residual, matmul(y, by_b).mH)
    return out + matmul(matmul(y.mH, x), rest.mH), by_b


def _of_batch(t: Tensor, batch: tuple[int, ...], ndim: int) -> Tensor:
    """Narrow `t` to the matrices of `batch`, before they were broadcast.

    `t` has numbers for each matrix in its first `ndim` dimensions.
    """
    for dim, size in enumerate((1,) * (ndim - len(batch)) + batch):
        if size == 1:
            t = t.narrow(dim, 0, min(1, t.shape[dim]))
    out: Tensor = t.reshape(*batch, *t.shape[ndim:])
    return out


_lstsq_node = Recorded("lstsq", _lstsq_grad, ("a", "b"), "a, b, out")
DRIVERS = ("gels", "gelsy", "gelsd", "gelss")


@with_out
@spelled(b="B")
def lstsq(
    A: Tensor, B: Tensor, rcond: float | None = None, *, driver: str | None = None
) -> return_types.linalg_lstsq:
    """X that makes the norm of A @ X - B the least, of matrices A (*, m, n), B (*, m, k) or (*, m);
    the shortest such X where there are many.

    rcond    singular values below it times the largest are 0; max(m, n) * eps by default
    driver   "gelsy" (QR with pivots, the default), "gels" (QR, full rank), "gelsd" and "gelss"
             (singular values)

    `residuals` are the squared norms of the columns of A @ X - B, where m > n, all ranks are n and
    the driver is not gelsy; `rank` is int64.  To know whether the ranks are full the call waits.

    >>> A = flow.tensor([[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]])  # a line through 1, 3 and 5
    >>> X = flow.linalg.lstsq(A, flow.tensor([[1.0], [3.0], [5.0]])).solution
    >>> flow.allclose(X, flow.tensor([[1.0], [2.0]]), atol=1e-5)
    True
    """
    name = "linalg.lstsq"
    A = matrices(name, A)
    B = need_tensor(name, "B", B)
    same_dtype(name, A, B)
    driver = "gelsy" if driver is None else driver
    if driver not in DRIVERS:
        raise ArgumentError(f"{name}: driver is one of {', '.join(DRIVERS)}, got {driver!r}")
    (m, n), dtype, device = A.shape[-2:], A.dtype, A.device
    vector = B._meta.ndim == 1 or tuple(B.shape) == tuple(A.shape[:-1])
    if vector:
        B = B.unsqueeze(-1)
    if B._meta.ndim < 2 or B.shape[-2] != m:
        raise ShapeError(f"{name}: B of shape {tuple(B.shape)} does not fit A {tuple(A.shape)}")
    batch = tuple(A.shape[:-2])
    A, B = batched(A, B)
    rows = B.detach()
    if n > m:
        more = zeros((*B.shape[:-2], n - m, B.shape[-1]), dtype=dtype, device=device)
        rows = cat([rows, more], -2)
    limit = finfo(dtype).eps * max(m, n) if rcond is None else float(rcond)
    solution, *numbers = lstsq_op(turned(A.detach()), turned(rows), limit, driver)
    rank: Any
    rank, values = (_of_batch(t, batch, B.ndim - 2) for t in numbers)
    full = turned(solution)
    x = full[..., :n, :].clone()
    record(_lstsq_node, (A, B), x, (), (A, B, x))
    none = zeros(0, dtype=dtype.real, device=device)
    residuals = constant_of(real(A), none)
    if m > n and driver != "gelsy" and (driver == "gels" or bool(all_of(rank == n).item())):
        error = matmul(A, x) - B
        residuals = sum(real(error * error.conj()) if dtype.is_complex else error**2, -2)
    found_rank = zeros(0, dtype=int64, device=device) if driver == "gels" else rank.to(int64)
    found_values = values if driver in ("gelsd", "gelss") else none
    x = x.squeeze(-1) if vector else x
    return return_types.linalg_lstsq((x, residuals, found_rank, found_values))


# --- tensors as matrices --------------------------------------------------------------------------


@with_out
def tensorinv(A: Tensor, ind: int = 2) -> Tensor:
    """The inverse of `tensordot(A, ., ind)`: A's first `ind` dimensions have as many elements
    together as the others.

    >>> flow.linalg.tensorinv(flow.eye(6).reshape(2, 3, 6)).shape
    flow.Size([6, 2, 3])
    """
    ind = whole("linalg.tensorinv", "ind", ind)
    if ind <= 0:
        raise ArgumentError(f"linalg.tensorinv: ind is positive, got {ind}")
    need_tensor("linalg.tensorinv", "A", A)
    head, tail = tuple(A.shape[:ind]), tuple(A.shape[ind:])
    if math.prod(head) != math.prod(tail):
        raise ShapeError(
            f"linalg.tensorinv: dimensions {head} and {tail} must have as many elements together"
        )
    out: Tensor = inv(A.reshape((math.prod(head), math.prod(tail)))).reshape((*tail, *head))
    return out


@with_out
@spelled(other="B")
def tensorsolve(A: Tensor, B: Tensor, dims: Sequence[int] | None = None) -> Tensor:
    """X with tensordot(A, X, X.ndim) = B; `dims` of A are moved to the end first.

    >>> A = 2 * flow.eye(4).reshape(2, 2, 2, 2)
    >>> flow.linalg.tensorsolve(A, flow.tensor([[2.0, 4.0], [6.0, 8.0]]))
    tensor([[1., 2.],
            [3., 4.]])
    """
    need_tensor("linalg.tensorsolve", "A", A)
    need_tensor("linalg.tensorsolve", "B", B)
    if dims is not None:
        wrapped = [d + A.ndim if d < 0 else d for d in dims]
        A = A.permute([d for d in range(A.ndim) if d not in wrapped] + wrapped)
    tail = tuple(A.shape[B.ndim :])
    size = math.prod(tail)
    if size != B.numel() or tuple(A.shape[: B.ndim]) != tuple(B.shape):
        size_of = math.prod(A.shape[: B.ndim])
        if size != size_of or size != B.numel():
            raise ShapeError(
                f"linalg.tensorsolve: A of shape {tuple(A.shape)} does not fit B of shape "
                f"{tuple(B.shape)}"
            )
    out: Tensor = solve(A.reshape((size, size)), B.reshape(-1)).reshape(tail)
    return out


# --- samples --------------------------------------------------------------------------------------


def _regular(rng: np.random.Generator, *shape: int) -> Array:
    """Matrices that are far from singular."""
    return rng.standard_normal(shape) * 0.3 + np.eye(shape[-1]) * 2


samples(
    inv,
    lambda rng: [Sample((_regular(rng, 3, 3),)), Sample((_regular(rng, 2, 2, 2),))],
    np.linalg.inv,
    name="linalg.inv",
    errors=((lambda flow: inv(flow.zeros(2, 2)).numpy(), RuntimeError),),
)
samples(det, lambda rng: [Sample((_regular(rng, 2, 3, 3),))], np.linalg.det, name="linalg.det")
samples(
    slogdet,
    lambda rng: [Sample((_regular(rng, 2, 3, 3),))],
    lambda a: tuple(np.linalg.slogdet(a)),
    name="linalg.slogdet",
)
samples(
    solve,
    lambda rng: [
        Sample((_regular(rng, 3, 3), rng.standard_normal((3, 2)))),
        Sample((_regular(rng, 2, 3, 3), rng.standard_normal((2, 4, 3))), {"left": False}),
        Sample((_regular(rng, 2, 3, 3), rng.standard_normal((2, 3)))),
    ],
    lambda a, b, left=True: (
        (np.linalg.solve(a, b) if b.ndim == a.ndim else np.linalg.solve(a, b[..., None])[..., 0])
        if left
        else b @ np.linalg.inv(a)
    ),
    name="linalg.solve",
    errors=((lambda flow: solve(flow.ones(2, 2), flow.ones(3, 1)), RuntimeError),),
)
samples(
    tensorinv, lambda rng: [Sample((_regular(rng, 6, 6).reshape(2, 3, 6), 2))], np.linalg.tensorinv
)
samples(
    tensorsolve,
    lambda rng: [Sample((_regular(rng, 6, 6).reshape(2, 3, 6), rng.standard_normal((2, 3))))],
    np.linalg.tensorsolve,
)
