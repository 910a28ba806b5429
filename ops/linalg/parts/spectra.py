"""Singular and eigenvalues of a matrix by LAPACK, each an op with its gradient, and least squares.

LAPACK is given rows as columns, the transposed matrix: of Aᵀ = conj(V) S Uᵀ it gives what in our
rows is Vᴴ and U, so nothing is turned.  Gradients follow Giles, "Collected matrix derivative
results for forward and reverse mode algorithmic differentiation" (2008), and for rectangular
matrices Walter and Lehmann (2010).  They are infinite or NaN where two values that they divide by
the difference of are equal.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any, Literal

from flowvm.eager.tensor import Tensor
from flowvm.launch import Launch
from flowvm.meta.dtype import int32
from flowvm.meta.meta import TensorMeta
from flowvm.ops.declare.letters import unsplit
from flowvm.ops.declare.registry import op
from flowvm.ops.linalg.cpu.lapack import INFO, Argument, Char, Int, Program, Real, named
from flowvm.ops.linalg.parts import matrix_checks
from flowvm.ops.linalg.parts.checks import identity, turned
from flowvm.ops.linalg.systems import solve
from flowvm.ops.pointwise.compare import eq, where
from flowvm.ops.products.matmul import matmul
from flowvm.ops.shapes.complex_parts import complex, real
from flowvm.ops.shapes.fill import zeros_like

if TYPE_CHECKING:
    from flowvm.eager.nodes import Node


ABSENT = "flowvm.ops.linalg.cuda.absent:absent"
_lapack = functools.partial(op, cuda=ABSENT, letters=unsplit)
_matrix = functools.partial(_lapack, takes=matrix_checks.matrix)
_square = functools.partial(_lapack, takes=matrix_checks.square)
LEAF = 25  # SMLSIZ of LAPACK's ilaenv: subproblems of divide and conquer


# --- singular values ------------------------------------------------------------------------------


def _gaps(values: Tensor) -> Tensor:
    """E with E_ij = v_j - v_i, and 1 on the diagonal."""
    gaps: Tensor = values.unsqueeze(-2) - values.unsqueeze(-1)
    return gaps + identity(values, values.shape[-1])


def _over(x: Tensor, divisor: Tensor) -> Tensor:
    """Return x / divisor, 0 where x is: an unused value has gradient 0, even of equal values."""
    quotient: Tensor = x / where(eq.call(x, 0), 1, divisor)
    return quotient


def _skew(x: Tensor) -> Tensor:
    return x - x.mH


def _svd_grad(c: Node, gu: Tensor, gs: Any, gvh: Tensor) -> tuple[object, ...]:
    """Return U (diag(gS) + skew(Uᴴ gU)/E S + S skew(Vᴴ gV)/E) Vᴴ.

    The part outside of the spaces that U and V span counts by 1/S.

    Complex columns of U and V turn together, by any angle.  Of what does not depend on it the
    diagonals of both skew parts have the sum 0, and their difference is the gradient by the angle
    between the two columns, which is that of S's imaginary part, by 4 S.
    """
    u, s, vh = c.saved
    k = s.shape[-1]
    m, n = u.shape[-2], vh.shape[-1]
    u, vh = u[..., :k], vh[..., :k, :]
    gaps = _gaps(s * s)
    row, column = s.unsqueeze(-2), s.unsqueeze(-1)
    core: Any = 0 if gs is None else gs.diag_embed()
    turns: Any = 0
    if gu is not None:
        gu = gu[..., :k]
        left = _skew(matmul(u.mH, gu))
        core = core + _over(left, gaps) * row
        turns = turns + left
    if gvh is not None:
        gvh = gvh[..., :k, :]
        right = _skew(matmul(vh, gvh.mH))
        core = core + column * _over(right, gaps)
        turns = turns - right
    if isinstance(core, int):
        return (None,)
    if u._meta.dtype.is_complex:
        if not isinstance(turns, int):
            core = core + _over(turns.diagonal(0, -2, -1), 4 * s).diag_embed()
        core = core.to(u._meta.dtype)
    out = matmul(matmul(u, core), vh)
    if gu is not None and m > k:
        outside = _over(gu, row)
        out = out + matmul(outside - matmul(u, matmul(u.mH, outside)), vh)
    if gvh is not None and n > k:
        outside = _over(gvh, column)
        out = out + matmul(u, outside - matmul(matmul(outside, vh.mH), vh))
    return (out,)


@_matrix("a -> u, s, vh", name="svd", saves="u, s, vh", grad=_svd_grad, complex=True)
def svd_op(a: TensorMeta, full: bool) -> Launch:
    """U (m, k), S (k) and Vᴴ (k, n) of a (m, n); with `full` U (m, m) and Vᴴ (n, n)."""
    m, n = a.shape[-2:]
    k, batch = min(m, n), a.shape[:-2]
    left, right = (m, n) if full else (k, k)
    outputs = (
        a.with_shape((*batch, m, left)), a.with_shape((*batch, k), a.dtype.real),
        a.with_shape((*batch, right, n)),
    )  # fmt: skip
    p = Program(outputs, (a,), batch)
    if k > 0:
        _gesdd(p, a, "A" if full else "S", p.out(1), p.out(2), n, p.out(0), left)
    elif full:
        for place, size in ((0, m), (2, n)):  # whose rows and columns are the identity's
            _identity(p, place, size, a)
    return p.launch()


def _identity(p: Program, place: int, n: int, a: TensorMeta) -> None:
    p.call(
        named("svd", a, "laset"), Char("A"), Int(n), Int(n), Real(0.0, a.dtype), Real(1.0, a.dtype),
        p.out(place), Int(max(1, n)),
    )  # fmt: skip


def _gesdd(
    p: Program, a: TensorMeta, job: str, s: Argument, u: Argument, ldu: int, vt: Argument, ldvt: int
) -> None:
    m, n = a.shape[-2:]
    k, size = min(m, n), a.dtype.itemsize
    copied = p.work(m * n * size)
    words = 4 * k * k + 8 * k + 2 * max(m, n) + 32 * (m + n)
    p.copy(p.input(0), copied)
    reals = 7 * k * (k + 1) + 2 * k * max(m, n)
    p.call(
        named("svd", a, "gesdd"), Char(job), Int(n), Int(m), copied, Int(n), s, u, Int(ldu), vt,
        Int(ldvt), p.work(words * size), Int(words), *_reals(p, a, reals), p.work(8 * k * 4), INFO,
    )  # fmt: skip


def _reals(p: Program, a: TensorMeta, count: int) -> list[Argument]:
    """Reserve memory for real numbers, which only routines for complex numbers take."""
    return [p.work(count * a.dtype.real.itemsize)] if a.dtype.is_complex else []


def _svdvals_grad(c: Node, g: Tensor) -> tuple[Tensor | None, ...]:
    """U diag(g) Vᴴ: no difference divides it, so equal values do no harm."""
    u, _, vh = svd_op(c.saved[0], False)
    return (matmul(u * g.unsqueeze(-2), vh),)


@_matrix("a -> s", name="svdvals", saves="a", grad=_svdvals_grad, complex=True)
def svdvals_op(a: TensorMeta) -> Launch:
    """S (k) alone."""
    m, n = a.shape[-2:]
    p = Program((a.with_shape((*a.shape[:-2], min(m, n)), a.dtype.real),), (a,), a.shape[:-2])
    if min(m, n) > 0:
        none = p.work(8)
        _gesdd(p, a, "N", p.out(0), none, n, none, min(m, n))
    return p.launch()


# --- eigenvalues of Hermitian matrices ------------------------------------------------------------


def _eigh_grad(c: Node, gw: Any, gvh: Any) -> tuple[Tensor | None, ...]:
    """V (diag(gw) + (Vᴴ gV)/E) Vᴴ, whose second term has no diagonal: columns have length 1, and
    the angles of complex ones say nothing.
    """
    w, vh = c.saved
    n = w.shape[-1]
    core = 0 if gw is None else gw.diag_embed()
    if gvh is not None:
        eye = identity(w, n)
        core = core + _over(matmul(vh, gvh.mH), _gaps(w)) * (1 - eye)
    if isinstance(core, int):
        return (None,)
    return (matmul(vh.mH, matmul(core.to(vh._meta.dtype), vh)),)


@_square("a -> w, vh", name="eigh", saves="w, vh", grad=_eigh_grad, complex=True)
def eigh_op(a: TensorMeta, lower: bool) -> Launch:
    """The eigenvalues, ascending, and Vᴴ; one triangle of a is read."""
    p = Program((a.with_shape(a.shape[:-1], a.dtype.real), a.dense()), (a,), a.shape[:-2])
    p.copy(p.input(0), p.out(1))
    _syevd(p, a, "V", lower, p.out(1))
    return p.launch()


def _eigvalsh_grad(c: Node, g: Tensor) -> tuple[Tensor | None, ...]:
    """V diag(g) Vᴴ."""
    _, vh = eigh_op(c.saved[0], *c.attrs)
    return (matmul(vh.mH * g.unsqueeze(-2), vh),)


@_square("a -> w", name="eigvalsh", saves="a", grad=_eigvalsh_grad, complex=True)
def eigvalsh_op(a: TensorMeta, lower: bool) -> Launch:
    """The eigenvalues alone."""
    p = Program((a.with_shape(a.shape[:-1], a.dtype.real),), (a,), a.shape[:-2])
    copied = p.work(a.shape[-1] ** 2 * a.dtype.itemsize)
    p.copy(p.input(0), copied)
    _syevd(p, a, "N", lower, copied)
    return p.launch()


def _syevd(p: Program, a: TensorMeta, job: str, lower: bool, place: Argument) -> None:
    n, size = a.shape[-1], a.dtype.itemsize
    if n == 0:
        return
    words = 1 + 6 * n + 2 * n * n + 32 * n
    ints = 3 + 5 * n
    reals = [*_reals(p, a, words), Int(words)] if a.dtype.is_complex else []
    p.call(
        named("eigh", a, "syevd", "heevd"), Char(job), Char("U" if lower else "L"), Int(n), place,
        Int(n), p.out(0), p.work(words * size), Int(words), *reals, p.work(4 * ints), Int(ints),
        INFO,
    )  # fmt: skip


# --- eigenvalues of any matrices ------------------------------------------------------------------


def _eig_backward(w: Tensor, rows: Tensor, gw: Any, grows: Tensor) -> Tensor | None:
    """V⁻ᴴ (diag(gw) + (Vᴴ gV - Vᴴ V diag(Re(Vᴴ gV))) / conj(E)) Vᴴ, whose second term has no
    diagonal (Boeddeker and others, "On the computation of complex-valued gradients with application
    to statistically optimum beamforming", 2017); turned, as V's columns are the rows.
    """
    core: Any = 0 if gw is None else gw.diag_embed()
    conjugate = rows.conj()  # Vᴴ
    if grows is not None:
        inner = matmul(conjugate, turned(grows))
        along = real(inner.diagonal(0, -2, -1)).unsqueeze(-2)
        inner = inner - matmul(conjugate, turned(rows) * along)
        core = core + _over(inner, _gaps(w).conj()) * (1 - identity(w, w.shape[-1]))
    if isinstance(core, int):
        return None
    return turned(solve(conjugate, matmul(core, conjugate)))


def _complex_eig_grad(c: Node, gw: object, grows: Tensor) -> tuple[Tensor | None]:
    w, rows = c.saved
    return (_eig_backward(w, rows, gw, grows),)


@_square("a -> w, rows", name="complex_eig", saves="w, rows", grad=_complex_eig_grad, complex=True)
def complex_eig(a: TensorMeta, vectors: bool) -> Launch:
    """The eigenvalues of the transpose of a complex a, and its vectors as rows, (0, 0) without
    `vectors`.
    """
    return _geev(a, 1, vectors)


def _real_eig_grad(c: Node, gwr: Any, gwi: Any, grows: Any) -> tuple[Tensor | None, ...]:
    """Return the gradient of a real matrix by its eigenvalues and eigenvectors.

    The rows of a conjugate pair hold the real and the imaginary part of the first vector.
    """
    wr, wi, rows = c.saved
    gw = None
    if gwr is not None or gwi is not None:
        parts = [zeros_like(wr) if g is None else g for g in (gwr, gwi)]
        gw = complex(*parts)
    if grows is not None:
        first, second = (wi > 0).unsqueeze(-1), (wi < 0).unsqueeze(-1)
        grows = complex(where(second, 0, grows), where(first, grows.roll(-1, -2), 0))
    out = _eig_backward(complex(wr, wi), paired(wi, rows), gw, grows)
    return (None if out is None else real(out),)


def paired(wi: Tensor, rows: Tensor) -> Tensor:
    """The vectors of a real matrix of LAPACK's rows: two conjugate values, the one with the
    positive imaginary part first, have the real parts of the first one's vector and the imaginary.
    """
    first, second = (wi > 0).unsqueeze(-1), (wi < 0).unsqueeze(-1)
    imaginary = where(first, rows.roll(-1, -2), where(second, -rows, 0))
    return complex(where(second, rows.roll(1, -2), rows), imaginary)


@_square("a -> wr, wi, rows", name="real_eig", saves="wr, wi, rows", grad=_real_eig_grad)
def real_eig(a: TensorMeta, vectors: bool) -> Launch:
    """The parts of the eigenvalues of the transpose of a real a, and its vectors as `paired` takes
    them, (0, 0) without `vectors`.
    """
    return _geev(a, 2, vectors)


def _geev(a: TensorMeta, parts: int, vectors: bool) -> Launch:
    n, size, batch = a.shape[-1], a.dtype.itemsize, a.shape[:-2]
    rows = n if vectors else 0
    values = a.with_shape((*batch, n))
    p = Program((*[values] * parts, a.with_shape((*batch, rows, rows))), (a,), batch)
    if n > 0:
        copied, none, words = p.work(n * n * size), p.work(size), 70 * n + 65 * 64
        p.copy(p.input(0), copied)
        p.finite(copied, n * n * size, a.dtype)
        vectors_out = p.out(parts) if vectors else none
        p.call(
            named("eig", a, "geev"), Char("N"), Char("V" if vectors else "N"), Int(n), copied,
            Int(n), *[p.out(k) for k in range(parts)], none, Int(1), vectors_out, Int(n),
            p.work(words * size), Int(words), *_reals(p, a, 2 * n), INFO,
        )  # fmt: skip
    return p.launch()


# --- least squares --------------------------------------------------------------------------------


@_lapack("a, b -> x, rank, s", name="lstsq", complex=True, takes=matrix_checks.least_squares)
def lstsq_op(
    a: TensorMeta, b: TensorMeta, rcond: float, driver: Literal["gels", "gelsy", "gelsd", "gelss"]
) -> Launch:
    """X (k, max(m, n)) of A (n, m), by columns, and right sides (k, max(m, n)); A's rank where the
    driver finds it, and its singular values where it does.
    """
    n, m = a.shape[-2:]
    k, small, large, size = b.shape[-2], min(m, n), max(m, n), a.dtype.itemsize
    batch = a.shape[:-2]
    values = a.with_shape((*batch, small), a.dtype.real)
    outputs = b.dense(), a.with_shape(batch, int32), values
    p = Program(outputs, (a, b), batch)
    p.copy(p.input(1), p.out(0))
    if small == 0 or k == 0:
        return p.launch()
    copied = p.work(m * n * size)
    p.copy(p.input(0), copied)
    first = (Int(m), Int(n), Int(k), copied, Int(m), p.out(0), Int(large))
    limit, name = Real(rcond, a.dtype), named("lstsq", a, driver)
    if driver == "gels":
        words = small + max(small, k) * 32 + 32 * large
        p.call(name, Char("N"), *first, p.work(words * size), Int(words), INFO)
    elif driver == "gelsy":
        chosen = p.work(4 * n + 8)
        p.clear(chosen, (n + 2) // 2)
        words = max(small + 3 * n + 1, 2 * small + k) + 2 * n + 32 * (n + 1 + k) + 32 * large
        work = (p.work(words * size), Int(words), *_reals(p, a, 2 * n))
        p.call(name, *first, chosen, limit, p.out(1), *work, INFO)
    else:
        levels = max(0, int(math.log2(small / (LEAF + 1))) + 1) if small > LEAF else 1
        words = 12 * large + 2 * large * LEAF + 8 * large * levels + large * k + (LEAF + 1) ** 2
        words += 3 * small + 32 * (large + k)
        reals = _reals(p, a, words + 3 * LEAF * k)
        shared = (p.out(2), limit, p.out(1), p.work(words * size), Int(words), *reals)
        ints = p.work(4 * (3 * small * levels + 11 * small)) if driver == "gelsd" else None
        p.call(name, *first, *shared, *([] if ints is None else [ints]), INFO)
    return p.launch()
