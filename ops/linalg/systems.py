"""Linear systems: solve, inverse, determinant and Cholesky's factor, on the CPU by LAPACK, called
by address inside kernels.

Each matrix of a batch is factored in a unit's own scratch memory.  A matrix that cannot be factored
is found there: the error is raised where the result is read, LinAlgError with its place in the
batch.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from flowvm import return_types
from flowvm.eager.tensor import Tensor, method
from flowvm.errors import DTypeError, ShapeError, Status
from flowvm.launch import Launch, View
from flowvm.meta.arrays import Array
from flowvm.meta.meta import TensorMeta
from flowvm.ops.declare.composite import need_tensor
from flowvm.ops.declare.core import sum_to
from flowvm.ops.declare.letters import matrices, unsplit
from flowvm.ops.declare.outputs import with_out
from flowvm.ops.declare.registry import Sample, broadcast_shapes, op, samples
from flowvm.ops.linalg.cpu.blas import call, enter, leave, threads
from flowvm.ops.linalg.cpu.lapack import PREFIX
from flowvm.ops.linalg.parts.factors import cholesky_backward
from flowvm.ops.products.matmul import _matmul_nt, _matmul_tn
from flowvm.ops.shapes.complex_parts import imag
from flowvm.ops.shapes.matrices import tril
from flowvm.private.scipy import lapack_routine

if TYPE_CHECKING:
    from flowvm.eager.nodes import Node
    from flowvm.eager.tensor import Tensor


# public: flow

UNITS = 16  # parts that a batch is cut into at most: each has scratch of its own
SINGULAR = int(Status.SINGULAR_MATRIX)
NOT_POSITIVE = int(Status.NOT_POSITIVE_DEFINITE)
HEAD = 8  # int32 words of scratch before the pivots: the integers that LAPACK takes by reference


@functools.cache
def _routine(name: str) -> int:
    return lapack_routine(name)


# not public
class Batch(NamedTuple):
    """Matrices and right sides, and LAPACK's routine for one of them."""

    routine: int  # its address
    library: int  # `threads` of the library that has it
    n: int  # rows and columns
    k: int  # columns of a right side
    matrices: int
    units: int  # parts that they are cut into
    each: int  # bytes of scratch of a unit
    a_step: int  # elements from a matrix to the next, 0 if there is one for all
    b_step: int  # from a right side to the next


def _solve_body(
    out: Array, a: Array, b: Array, t: Batch, scratch: Array, lo: int, hi: int, details: Array
) -> int:
    """out = a⁻¹ b, or a⁻¹ without b; LAPACK's columns are our rows, so both are transposed on the
    way.
    """
    n, k, count, units, each, identity = t.n, t.k, t.matrices, t.units, t.each, len(b) == 0
    enter(t.library)
    for unit in range(lo, hi):
        own = scratch[unit * each : (unit + 1) * each]
        ints = own[: 4 * (HEAD + n)].view(np.int32)
        reals = own[(4 * (HEAD + n) + 15) // 16 * 16 :].view(out.dtype)
        left, right = reals[: n * n], reals[n * n : n * n + n * k]
        at = own.ctypes.data
        data = reals.ctypes.data
        for item in range(unit * count // units, (unit + 1) * count // units):
            for i in range(n):
                for j in range(n):
                    left[j * n + i] = a[item * t.a_step + i * n + j]
            for i in range(n):
                for j in range(k):
                    if identity:
                        right[j * n + i] = 1 if i == j else 0
                    else:
                        right[j * n + i] = b[item * t.b_step + i * k + j]
            ints[0], ints[1], ints[2] = n, k, 0
            if n > 0 and k > 0:
                right_at = data + n * n * out.itemsize
                call(t.routine, (at, at + 4, data, at, at + 4 * HEAD, right_at, at, at + 8))
            if ints[2] != 0:
                details[0], details[1] = item, ints[2] - 1
                leave(t.library)
                return SINGULAR
            for i in range(n):
                for j in range(k):
                    out[item * n * k + i * k + j] = right[j * n + i]
    leave(t.library)
    return 0


def _determinant_body(
    sign: Array, logarithm: Array, a: Array, t: Batch, scratch: Array, lo: int, hi: int
) -> None:
    n, count, units, each = t.n, t.matrices, t.units, t.each
    enter(t.library)
    for unit in range(lo, hi):
        own = scratch[unit * each : (unit + 1) * each]
        ints = own[: 4 * (HEAD + n)].view(np.int32)
        reals = own[(4 * (HEAD + n) + 15) // 16 * 16 :].view(sign.dtype)
        at, data = own.ctypes.data, reals.ctypes.data
        for item in range(unit * count // units, (unit + 1) * count // units):
            for i in range(n * n):
                reals[i] = a[item * n * n + i]
            ints[0], ints[2] = n, 0
            if n > 0:
                call(t.routine, (at, at, data, at, at + 4 * HEAD, at + 8))
            s, total = 1.0, 0.0
            for i in range(n):
                v = reals[i * n + i]
                if ints[HEAD + i] != i + 1:
                    s = -s
                if v < 0:
                    s = -s
                if v == 0:
                    s = 0.0
                total += np.log(abs(v))
            sign[item], logarithm[item] = s, total
    leave(t.library)


def _complex_determinant_body(
    sign: Array, logarithm: Array, a: Array, t: Batch, scratch: Array, lo: int, hi: int
) -> None:
    n, count, units, each = t.n, t.matrices, t.units, t.each
    enter(t.library)
    for unit in range(lo, hi):
        own = scratch[unit * each : (unit + 1) * each]
        ints = own[: 4 * (HEAD + n)].view(np.int32)
        numbers = own[(4 * (HEAD + n) + 15) // 16 * 16 :].view(sign.dtype)
        at, data = own.ctypes.data, numbers.ctypes.data
        for item in range(unit * count // units, (unit + 1) * count // units):
            for i in range(n * n):
                numbers[i] = a[item * n * n + i]
            ints[0], ints[2] = n, 0
            if n > 0:
                call(t.routine, (at, at, data, at, at + 4 * HEAD, at + 8))
            s, total = 1.0 + 0j, 0.0
            for i in range(n):
                v = numbers[i * n + i]
                size = abs(v)
                if ints[HEAD + i] != i + 1:
                    s = -s
                s = s * (v / size) if size != 0 else 0j
                total += np.log(size)
            sign[item], logarithm[item] = s, total
    leave(t.library)


def _cholesky_body(
    out: Array, a: Array, t: Batch, scratch: Array, lo: int, hi: int, details: Array
) -> int:
    """LAPACK's upper factor is, in our rows, the lower one."""
    n, count, units, each = t.n, t.matrices, t.units, t.each
    enter(t.library)
    for unit in range(lo, hi):
        own = scratch[unit * each : (unit + 1) * each]
        ints, at = own.view(np.int32), own.ctypes.data
        own[32] = ord("U")
        for item in range(unit * count // units, (unit + 1) * count // units):
            matrix = out[item * n * n : (item + 1) * n * n]
            for i in range(n):
                for j in range(n):
                    matrix[i * n + j] = a[item * n * n + i * n + j] if j <= i else 0
            ints[0], ints[2] = n, 0
            if n > 0:
                call(t.routine, (at + 32, at, matrix.ctypes.data, at, at + 8, 1))
            if ints[2] != 0:
                details[0], details[1] = item, ints[2]
                leave(t.library)
                return NOT_POSITIVE
    leave(t.library)
    return 0


def _flat(*metas: TensorMeta) -> tuple[View, ...]:
    return tuple(View(m.dtype, (m.numel,)) for m in metas)


def _square(name: str, a: TensorMeta) -> int:
    """Return the number of rows of square matrices; ShapeError for others."""
    if a.ndim < 2 or a.shape[-1] != a.shape[-2]:
        raise ShapeError(f"{name}: expected square matrices (*, n, n), got shape {tuple(a.shape)}")
    if not a.dtype.inexact:
        raise DTypeError(f"{name} needs a floating point or complex tensor, got {a.dtype.name}")
    return a.shape[-1]


def _named(a: TensorMeta, name: str) -> int:
    return _routine(PREFIX[a.dtype.name] + name)


def _scratch(n: int, k: int, itemsize: int) -> int:
    """Bytes for a unit: integers, pivots, the matrix and k columns, from a multiple of 16, the size
    of the largest number, on; a multiple of 64.
    """
    words = (4 * (HEAD + n) + 15) // 16 * 16
    return (words + (n * n + n * k) * itemsize + 63) // 64 * 64


def _system(a: TensorMeta, b: TensorMeta | None) -> Launch:
    n = _square("solve" if b is not None else "inverse", a)
    k, batch = n, tuple(a.shape[:-2])
    if b is not None:
        if b.ndim < 2 or b.shape[-2] != n or b.dtype is not a.dtype:
            raise ShapeError(
                f"solve: the right side must be {a.dtype.name} of shape (*, {n}, k), got "
                f"{b.dtype.name} of shape "
                f"{tuple(b.shape)}"
            )
        k, batch = b.shape[-1], broadcast_shapes(batch, b.shape[:-2])
    count = math.prod(batch)
    units, each = min(UNITS, count), _scratch(n, k, a.dtype.itemsize)
    out = a.with_shape((*batch, n, k))
    a_step = 0 if math.prod(a.shape[:-2]) != count else n * n
    b_step = 0 if b is None or math.prod(b.shape[:-2]) != count else n * k
    batch_ = Batch(_named(a, "gesv"), threads(), n, k, count, units, each, a_step, b_step)
    right = None if b is None else _flat(b)[0]
    views = (*_flat(out, a), View.optional(right, a.dtype))
    return Launch((out,), _solve_body, views, (batch_,), units, 1, max(64, units * each))


def _solve_grad(c: Node, g: Tensor) -> tuple[Tensor | None, ...]:
    a, x = c.saved
    db = _solve(a.mH.contiguous(), g)
    da = sum_to(-_matmul_nt(db, x.conj()), c.metas[0].shape) if c.needs[0] else None
    return da, sum_to(db, c.metas[1].shape) if c.needs[1] else None


@op(
    "a, b -> out", name="solve", saves="a, out", grad=_solve_grad, complex=True,
    cuda="systems:solve", letters=unsplit,
)  # fmt: skip
def _solve(a: TensorMeta, b: TensorMeta) -> Launch:
    return _system(a, b)


def _inverse_grad(c: Node, g: Tensor) -> tuple[Tensor | None, ...]:
    x = c.saved[0].conj()
    return (-_matmul_nt(_matmul_tn(x, g), x),)


@op(
    "a -> out", name="inverse", saves="out", grad=_inverse_grad, complex=True,
    cuda="systems:inverse", letters=matrices,
)  # fmt: skip
def _inverse(a: TensorMeta) -> Launch:
    return _system(a, None)


def _slogdet_grad(c: Node, _: Any, g: Any) -> tuple[Any, ...]:
    if g is None:
        return (None,)
    (a,) = c.saved
    return (g.unsqueeze(-1).unsqueeze(-1) * _inverse(a).transpose(-2, -1),)


@op(
    "a -> sign, logabsdet",
    name="slogdet",
    saves="a",
    grad=_slogdet_grad,
    cuda="systems:slogdet",
    letters=unsplit,
)
def _slogdet(a: TensorMeta) -> Launch:
    return _determinant(a, _determinant_body)


def _determinant(a: TensorMeta, body: Any) -> Launch:
    n = _square("slogdet", a)
    count = math.prod(a.shape[:-2])
    units, each = min(UNITS, count), _scratch(n, 0, a.dtype.itemsize)
    sign, logarithm = a.with_shape(a.shape[:-2]), a.with_shape(a.shape[:-2], a.dtype.real)
    batch = Batch(_named(a, "getrf"), threads(), n, 0, count, units, each, n * n, 0)
    views = _flat(sign, logarithm, a)
    return Launch((sign, logarithm), body, views, (batch,), units, 1, max(64, units * each))


def _complex_slogdet_grad(c: Node, gs: Any, g: object) -> tuple[object, ...]:
    """A⁻ᴴ (g - i Im(conj(gs) sign)): the logarithm's differential is the real part of tr(A⁻¹ dA),
    and the sign's i times itself times the imaginary one.
    """
    if gs is None and g is None:
        return (None,)
    a, sign = c.saved
    factor: Any = 0 if g is None else g
    if gs is not None:
        factor = factor - 1j * imag(gs.conj() * sign)
    return (factor.unsqueeze(-1).unsqueeze(-1) * _inverse(a).mH,)


@op(
    "a -> sign, logabsdet", name="complex_slogdet", saves="a, sign", grad=_complex_slogdet_grad,
    complex=True, letters=unsplit,
)  # fmt: skip
def _complex_slogdet(a: TensorMeta) -> Launch:
    return _determinant(a, _complex_determinant_body)


def _cholesky_grad(c: Node, g: Tensor) -> tuple[Tensor]:
    return (cholesky_backward(c.saved[0], tril(g)),)


@op(
    "a -> out", name="cholesky", saves="out", grad=_cholesky_grad, complex=True,
    cuda="systems:cholesky", letters=matrices,
)  # fmt: skip
def _cholesky(a: TensorMeta) -> Launch:
    n = _square("cholesky", a)
    count = math.prod(a.shape[:-2])
    units, each = min(UNITS, count), 64
    batch = Batch(_named(a, "potrf"), threads(), n, 0, count, units, each, n * n, 0)
    views = _flat(a, a)
    return Launch((a.dense(),), _cholesky_body, views, (batch,), units, 1, max(64, units * each))


# --- functions
# -------------------------------------------------------------------------------------


def solve(A: Tensor, B: Tensor) -> Tensor:
    """X with A @ X = B, for matrices (*, n, n) and B (*, n, k), or (n) with one matrix; batches
    broadcast.

    LinAlgError where the result is read, if a matrix is singular.

    >>> flow.solve(flow.tensor([[2.0, 0.0], [0.0, 4.0]]), flow.tensor([2.0, 8.0]))
    tensor([1., 2.])
    """
    need_tensor("linalg.solve", "A", A)
    need_tensor("linalg.solve", "B", B)
    if B._meta.ndim == 1 or (
        B._meta.ndim == A._meta.ndim - 1 and B._meta.shape == A._meta.shape[:-1]
    ):
        column: Tensor = solve(A, B.unsqueeze(-1)).squeeze(-1)
        return column
    batch = broadcast_shapes(A.shape[:-2], B.shape[:-2])
    if math.prod(A.shape[:-2]) not in (1, math.prod(batch)):
        A = A.expand((*batch, *A.shape[-2:]))
    if math.prod(B.shape[:-2]) not in (1, math.prod(batch)):
        B = B.expand((*batch, *B.shape[-2:]))
    out: Tensor = _solve(A, B)
    return out


@method()
@with_out
def inverse(input: Tensor) -> Tensor:
    """The inverse of square matrices (*, n, n).

    LinAlgError where the result is read, if a matrix is singular.

    >>> flow.inverse(flow.tensor([[2.0, 0.0], [0.0, 4.0]]))
    tensor([[0.5000, 0.0000],
            [0.0000, 0.2500]])
    """
    out: Tensor = _inverse(input)
    return out


inv = inverse  # public: flow


@method()
@with_out
def slogdet(input: Tensor) -> return_types.slogdet:
    """The sign of the determinant of matrices (*, n, n), a complex number of size 1 if they are
    complex, and the logarithm of its absolute value.

    >>> flow.slogdet(flow.tensor([[0.0, 1.0], [1.0, 0.0]]))
    flow.return_types.slogdet(
    sign=tensor(-1.),
    logabsdet=tensor(0.))
    """
    need_tensor("linalg.slogdet", "input", input)
    function = _complex_slogdet if input._meta.dtype.is_complex else _slogdet
    return return_types.slogdet(function(input))


@method()
def logdet(input: Tensor) -> Tensor:
    """The logarithm of the determinant of matrices (*, n, n), NaN where that is negative, and
    complex if they are.

    >>> flow.logdet(flow.eye(2))
    tensor(0.)
    """
    sign, logabsdet = slogdet(input)
    if not sign._meta.dtype.is_complex:  # then the sign has no gradient
        sign = sign.detach()
    out: Tensor = logabsdet + sign.log()
    return out


@method()
def det(input: Tensor) -> Tensor:
    """The determinant of square matrices (*, n, n).  Its gradient needs the inverse, so none for a
    singular matrix.

    >>> flow.det(flow.tensor([[4.0, 2.0], [2.0, 3.0]]))
    tensor(8.)
    """
    sign, logabsdet = slogdet(input)
    if not sign._meta.dtype.is_complex:
        sign = sign.detach()
    out: Tensor = sign * logabsdet.exp()
    return out


@method()
@with_out
def cholesky(input: Tensor, upper: bool = False) -> Tensor:
    """The lower triangular L with L @ L.mH = input, Hermitian and positive definite, or with
    `upper` L.mH.

    Only the lower half of the input is read.  LinAlgError where the result is read, if it is not
    positive definite.

    >>> flow.cholesky(flow.tensor([[4.0, 2.0], [2.0, 5.0]]))
    tensor([[2., 0.],
            [1., 2.]])
    """
    out: Tensor = _cholesky(input)
    return out.mH if upper else out


# --- samples
# -----------------------------------------------------------------------------------------


def _regular(rng: np.random.Generator, *shape: int) -> Array:
    """Matrices that are far from singular."""
    return rng.standard_normal(shape) * 0.3 + np.eye(shape[-1]) * 2


def _matrices(rng: np.random.Generator) -> list[Sample]:
    return [Sample((_regular(rng, 3, 3),)), Sample((_regular(rng, 2, 2, 2),))]


samples(
    solve,
    lambda rng: [
        Sample((_regular(rng, 3, 3), rng.standard_normal((3, 2)))),
        Sample((_regular(rng, 3, 3), rng.standard_normal(3))),
        Sample((_regular(rng, 2, 2, 2), rng.standard_normal((2, 2, 1)))),
        Sample((_regular(rng, 3, 3), rng.standard_normal((2, 3, 1)))),
    ],
    lambda a, b: np.linalg.solve(a, b[:, None])[:, 0] if b.ndim == 1 else np.linalg.solve(a, b),
    errors=(
        (lambda flow: flow.solve(flow.zeros(2, 2), flow.ones(2, 1)).numpy(), RuntimeError),
        (lambda flow: flow.solve(flow.ones(2, 3), flow.ones(2, 1)), RuntimeError),
    ),
)
samples(
    inverse,
    _matrices,
    np.linalg.inv,
    errors=((lambda flow: flow.inverse(flow.zeros(2, 2)).numpy(), RuntimeError),),
)
samples(det, _matrices, np.linalg.det)
samples(slogdet, _matrices, lambda a: tuple(np.linalg.slogdet(a)))
samples(logdet, _matrices, lambda a: np.linalg.slogdet(a)[1])
samples(
    cholesky,
    lambda rng: [
        Sample((np.eye(3) * 2 + 0.1 * np.ones((3, 3)),)),
        Sample((np.eye(2) * rng.uniform(1, 2, (2, 1, 1)),), {"upper": True}),
    ],
    lambda a, upper=False: (
        np.swapaxes(np.linalg.cholesky(a), -1, -2) if upper else np.linalg.cholesky(a)
    ),
    grad=False,
    errors=((lambda flow: flow.cholesky(-flow.ones(1, 1)).numpy(), RuntimeError),),
)
