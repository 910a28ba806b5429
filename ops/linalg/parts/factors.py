"""Factors of a matrix by LAPACK, each an op with its gradient: LU, QR, triangular systems, LDL.

An op takes and gives matrices as LAPACK has them, by columns: transposed, in our rows.  Whoever
calls it turns them (`turned`); the transposes of the formulas are conjugate ones (`mH`).  Gradients
follow Giles, "Collected matrix derivative results for forward and reverse mode algorithmic
differentiation" (2008), and, for matrices that are not square, Walter and Lehmann, "Algorithmic
differentiation of linear algebra functions" (2010).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flowvm.eager.tensor import Tensor
from flowvm.errors import AutogradError, Status
from flowvm.launch import Launch, View
from flowvm.meta.arrays import Array
from flowvm.meta.dtype import int32, int64
from flowvm.meta.meta import TensorMeta
from flowvm.ops.declare.kinds import Count
from flowvm.ops.declare.letters import unsplit
from flowvm.ops.declare.registry import op
from flowvm.ops.linalg.cpu.lapack import INFO, Char, Int, Program, named
from flowvm.ops.linalg.parts import matrix_checks
from flowvm.ops.linalg.parts.checks import turned
from flowvm.ops.products.matmul import matmul
from flowvm.ops.shapes.complex_parts import real
from flowvm.ops.shapes.fill import zeros_like
from flowvm.ops.shapes.join import cat
from flowvm.ops.shapes.matrices import tril, triu
from flowvm.ops.shapes.ranges import arange

if TYPE_CHECKING:
    from flowvm.eager.nodes import Node
    from flowvm.eager.tensor import Tensor


ABSENT = "flowvm.ops.linalg.cuda.absent:absent"
OUTSIDE = int(Status.INDEX_OUT_OF_RANGE)
BLOCK = 32  # columns that LAPACK works on together, which its workspace has room for


# --- triangular systems ---------------------------------------------------------------------------


def _right_grad(c: Node, g: Tensor) -> tuple[object, ...]:
    """X M = B, M = a or its transpose: the gradient by B solves Y Mᴴ = g, that by M is -Xᴴ Y."""
    a, x = c.saved
    upper, flip, unit = c.attrs
    y = right_triangular(a.conj(), g, upper, not flip, unit)
    if not c.needs[0]:
        return None, y
    full = -matmul(turned(y), x.conj()) if flip else -matmul(x.mH, y)
    half = triu if upper else tril
    return half(full, (1 if upper else -1) if unit else 0), y


@op(
    "a, b -> x", name="triangular_solve", saves="a, x", grad=_right_grad,
    complex=True, cuda=ABSENT, letters=unsplit, takes=matrix_checks.system,
)  # fmt: skip
def right_triangular(a: TensorMeta, b: TensorMeta, upper: bool, flip: bool, unit: bool) -> Launch:
    """X of X M = b, for M = a (*, n, n) or, with `flip`, its transpose, and b (*, k, n).

    Rows are columns to LAPACK, so this is what it solves without anything turned.
    """
    n, k = a.shape[-1], b.shape[-2]
    p = Program((b.dense(),), (a, b), b.shape[:-2])
    p.copy(p.input(1), p.out(0))
    if n > 0 and k > 0:
        p.call(
            named("solve_triangular", a, "trtrs"), Char("L" if upper else "U"),
            Char("T" if flip else "N"), Char("U" if unit else "N"), Int(n), Int(k), p.input(0),
            Int(n), p.out(0), Int(n), INFO,
        )  # fmt: skip
    return p.launch(Status.SINGULAR_MATRIX)


# --- general systems, whose answer may be missing -----------------------------------------------


def _right_solve_grad(c: Node, g: object, *_: object) -> tuple[object, ...]:
    """X a = b: the gradient by b solves Y aᴴ = g, that by a is -Xᴴ Y."""
    if g is None:
        return None, None
    a, x = c.saved
    y, _info = right_solve(a.mH, g)
    return (-matmul(x.mH, y) if c.needs[0] else None), y


@op(
    "a, b -> x, info", name="solve_ex", saves="a, x", constants="info", grad=_right_solve_grad,
    complex=True, cuda=ABSENT, letters=unsplit, takes=matrix_checks.system,
)  # fmt: skip
def right_solve(a: TensorMeta, b: TensorMeta) -> Launch:
    """X of X a = b, a (*, n, n) and b (*, k, n), and LAPACK's info."""
    n, k = a.shape[-1], b.shape[-2]
    p = Program((b.dense(), b.with_shape(b.shape[:-2], int32)), (a, b), b.shape[:-2])
    p.copy(p.input(1), p.out(0))
    if n > 0:
        copied, pivots = p.work(n * n * a.dtype.itemsize), p.work(4 * n)
        p.copy(p.input(0), copied)
        p.call(
            named("solve_ex", a, "gesv"), Int(n), Int(k), copied, Int(n), pivots, p.out(0), Int(n),
            INFO,
        )  # fmt: skip
    return p.launch(flags=1)


# --- LU -------------------------------------------------------------------------------------------


def _permutation_body(out: Array, pivots: Array, lo: int, hi: int, details: Array) -> int:
    for item in range(lo, hi):
        row = out[item]
        for i in range(len(row)):
            row[i] = i
        for i in range(pivots.shape[1]):
            j = pivots[item, i] - 1
            if j < 0 or j >= len(row):
                details[0], details[1], details[2] = j, len(row), -1
                return OUTSIDE
            row[i], row[j] = row[j], row[i]
    return 0


@op("pivots -> out", name="lu_permutation", letters=unsplit, takes=matrix_checks.permutes)
def permutation_of(pivots: TensorMeta, m: Count) -> Launch:
    """Return the row of A for each row of L @ U: int64 (*, m), by LAPACK's exchanges (*, k)."""
    out = pivots.with_shape((*pivots.shape[:-1], m), int64)
    k = pivots.shape[-1]
    count = out.numel // m if m else 0
    views = (View(int64, (count, m)), View(pivots.dtype, (count, k)))
    return Launch((out,), _permutation_body, views, units=count)


def permutation_matrix(pivots: Tensor, m: int, like: Tensor) -> Tensor:
    """P (*, m, m) with P @ L @ U = A."""
    rows = permutation_of(pivots, m)
    places = arange(m, device=pivots.device).unsqueeze(-1) == rows.unsqueeze(-2)
    out: Tensor = places.to(like._meta.dtype)
    return out


def _lu_grad(c: Node, g: Any, *_: Any) -> tuple[object, ...]:
    """Return the gradient of LU: P L⁻ᴴ (tril(Lᴴ gL, -1) + triu(gU Uᴴ)) U⁻ᴴ.

    This is for the leading square part. The part below it (A2 = L2 U) or beside it (A2 = L U2) is
    solved for first.
    """
    if g is None:
        return (None,)
    lu, pivots = turned(c.saved[0]), c.saved[1]
    g = turned(g)
    m, n = lu.shape[-2:]
    k = min(m, n)
    core, gcore = lu[..., :k, :k], g[..., :k, :k]
    lower, upper = tril(core, -1), triu(core)
    glower, gupper = tril(gcore, -1), triu(gcore)
    rest: object = None
    if m > k:  # A2 = L2 U
        rest = right_triangular(upper.conj(), g[..., k:, :], True, True, False)
        gupper = gupper - triu(matmul(lu[..., k:, :].mH, rest))
    elif n > k:  # A2 = L U2
        rest = left_triangular(lower.conj(), g[..., :, k:], False, True, True)
        glower = glower - tril(matmul(rest, lu[..., :, k:].mH), -1)
    whole = lower + _ones_of(lower)
    middle = tril(matmul(whole.mH, glower), -1) + triu(matmul(gupper, upper.mH))
    inner = left_triangular(lower.conj(), middle, False, True, True)
    out = right_triangular(upper.conj(), inner, True, True, False)
    if m > k:
        out = cat([out, rest], -2)
    elif n > k:
        out = cat([out, rest], -1)
    return (turned(matmul(permutation_matrix(pivots, m, lu), out)),)


def _ones_of(x: Tensor) -> Tensor:
    from_zero = zeros_like(x[..., 0]) + 1
    out: Tensor = from_zero.diag_embed()
    return out


def left_triangular(
    a: Tensor, b: Tensor, upper: bool, flip: bool = False, unit: bool = False
) -> Tensor:
    """X of M X = b, for M = a or, with `flip`, its transpose; b (*, n, k)."""
    return turned(right_triangular(a, turned(b), upper, not flip, unit))


@op(
    "a -> lu, pivots, info", name="lu_factor", saves="lu, pivots", constants="pivots, info",
    grad=_lu_grad, complex=True, cuda=ABSENT, letters=unsplit, takes=matrix_checks.matrix,
)  # fmt: skip
def lu_op(a: TensorMeta, strict: bool) -> Launch:
    """The factors in one matrix, LAPACK's exchanges of rows, int32 from 1 up, and its info, which
    is an error if `strict`.
    """
    n, m = a.shape[-2:]
    batch = a.shape[:-2]
    outputs = (
        a.dense(), a.with_shape((*batch, min(m, n)), int32), a.with_shape(batch, int32),
    )  # fmt: skip
    p = Program(outputs, (a,), batch)
    p.copy(p.input(0), p.out(0))
    if m > 0 and n > 0:
        p.call(named("lu_factor", a, "getrf"), Int(m), Int(n), p.out(0), Int(m), p.out(1), INFO)
    return p.launch(Status.SINGULAR_MATRIX, -1 if strict else 2)


# --- Cholesky -------------------------------------------------------------------------------------


def cholesky_backward(factor: Tensor, g: Tensor) -> Tensor:
    """L⁻ᴴ Φ(Lᴴ g) L⁻¹ made Hermitian, where Φ is the lower part with half of the diagonal (Murray,
    "Differentiation of the Cholesky decomposition", 2016).
    """
    product = matmul(factor.mH, g)
    phi = tril(product, -1) + (product.diagonal(0, -2, -1) * 0.5).diag_embed()
    right = right_triangular(factor, phi, False, False, False)
    half = left_triangular(factor.conj(), right, False, True)
    out: Tensor = (half + half.mH) * 0.5
    return out


def _cholesky_info_grad(c: Node, g: Tensor, *_: object) -> tuple[Tensor]:
    return (None if g is None else cholesky_backward(tril(c.saved[0]), tril(g)),)


@op(
    "a -> factor, info", name="cholesky_ex", saves="factor", constants="info",
    grad=_cholesky_info_grad, complex=True, cuda=ABSENT,
    letters=unsplit,
    takes=matrix_checks.square,
)  # fmt: skip
def cholesky_info(a: TensorMeta) -> Launch:
    """The factor in the lower triangle, anything above it, and LAPACK's info."""
    n = a.shape[-1]
    p = Program((a.dense(), a.with_shape(a.shape[:-2], int32)), (a,), a.shape[:-2])
    p.copy(p.input(0), p.out(0))
    if n > 0:
        p.call(named("cholesky_ex", a, "potrf"), Char("U"), Int(n), p.out(0), Int(n), INFO)
    return p.launch(flags=1)


# --- QR -------------------------------------------------------------------------------------------


def qr_backward(q: Tensor, r: Tensor, gq: Any, gr: Any) -> Tensor:
    """(gQ + Q copyltu(M)) R⁻ᴴ with M = R gRᴴ - gQᴴ Q, for Q (m, n) and R (n, n), whose diagonal is
    real.
    """
    middle: Any = 0
    if gr is not None:
        middle = matmul(r, gr.mH)
    if gq is not None:
        middle = middle - matmul(gq.mH, q)
    below = tril(middle, -1)
    mirrored = below + below.mH + real(middle.diagonal(0, -2, -1)).diag_embed()
    side = matmul(q, mirrored)
    if gq is not None:
        side = side + gq
    return right_triangular(r.conj(), side, True, True, False)  # type: ignore[no-any-return]


def _qr_grad(c: Node, gq: Any, gr: Any) -> tuple[Tensor | None, ...]:
    if gq is None and gr is None:
        return (None,)
    q, full = (turned(s) for s in c.saved)
    gq, gr = (None if g is None else turned(g) for g in (gq, gr))
    (m, columns), n = q.shape[-2:], full.shape[-1]
    k = min(m, n)
    if columns > k:
        raise AutogradError(
            f"qr: with mode='complete' there is no gradient for more rows than columns, {m} and "
            f"{n}; use mode='reduced'"
        )
    r = triu(full[..., :k, :])
    gr = None if gr is None else triu(gr[..., :k, :])
    if m >= n:
        return (turned(qr_backward(q, r, gq, gr)),)
    # A = [X, Y]: X = Q U, and V = Qᴴ Y
    rest = None
    if gr is not None:
        gv, v = gr[..., m:], r[..., m:]
        rest = matmul(q, gv)
        through = matmul(matmul(q, v), gv.mH)  # Y gVᴴ
        gq = through if gq is None else gq + through
    first = qr_backward(q, r[..., :m], gq, None if gr is None else gr[..., :m])
    if rest is None:
        rest = zeros_like(r[..., m:])
    return (turned(cat([first, rest], -1)),)


@op(
    "a -> q, r", name="qr", saves="q, r", grad=_qr_grad,
    complex=True, cuda=ABSENT, letters=unsplit, takes=matrix_checks.matrix,
)  # fmt: skip
def qr_op(a: TensorMeta, complete: bool) -> Launch:
    """Q (m, m) or (m, k), and a matrix (m, n) with R in its upper triangle."""
    n, m = a.shape[-2:]
    k = min(m, n)
    columns = m if complete else k
    batch, size = a.shape[:-2], a.dtype.itemsize
    p = Program((a.with_shape((*batch, columns, m)), a.dense()), (a,), batch)
    work, lwork = p.work(max(n, columns, 1) * BLOCK * size), Int(max(n, columns, 1) * BLOCK)
    tau = p.work(k * size)
    p.copy(p.input(0), p.out(1))
    if m > 0:
        if k > 0:
            p.call(
                named("qr", a, "geqrf"), Int(m), Int(n), p.out(1), Int(m), tau, work, lwork, INFO
            )
            p.copy(p.out(1), p.out(0), m * min(n, columns) * size)
        if columns > 0:
            p.call(
                named("qr", a, "orgqr", "ungqr"), Int(m), Int(columns), Int(k), p.out(0), Int(m),
                tau, work, lwork, INFO,
            )  # fmt: skip
    return p.launch()


# --- reflectors -----------------------------------------------------------------------------------


@op(
    "a -> factors, tau",
    name="geqrf",
    complex=True,
    cuda=ABSENT,
    letters=unsplit,
    takes=matrix_checks.matrix,
)
def geqrf_op(a: TensorMeta) -> Launch:
    """R, below it the reflectors of Q, and their factors (*, k)."""
    n, m = a.shape[-2:]
    size = a.dtype.itemsize
    p = Program((a.dense(), a.with_shape((*a.shape[:-2], min(m, n)))), (a,), a.shape[:-2])
    work = p.work(max(1, n) * BLOCK * size)
    p.copy(p.input(0), p.out(0))
    if m > 0 and n > 0:
        p.call(
            named("geqrf", a, "geqrf"), Int(m), Int(n), p.out(0), Int(m), p.out(1), work,
            Int(n * BLOCK), INFO,
        )  # fmt: skip
    return p.launch()


@op(
    "a, tau -> q",
    name="householder_product",
    complex=True,
    cuda=ABSENT,
    letters=unsplit,
    takes=matrix_checks.reflectors,
)
def orgqr_op(a: TensorMeta, tau: TensorMeta) -> Launch:
    """The first n columns of the product of the reflectors in the columns of a (m, n)."""
    n, m = a.shape[-2:]
    k = tau.shape[-1]
    p = Program((a.dense(),), (a, tau), a.shape[:-2])
    work = p.work(max(1, n) * BLOCK * a.dtype.itemsize)
    p.copy(p.input(0), p.out(0))
    if m > 0 and n > 0:
        p.call(
            named("householder_product", a, "orgqr", "ungqr"), Int(m), Int(n), Int(k), p.out(0),
            Int(m), p.input(1), work, Int(n * BLOCK), INFO,
        )  # fmt: skip
    return p.launch()


# --- LDL ------------------------------------------------------------------------------------------


@op(
    "a -> ld, pivots, info",
    name="ldl_factor",
    complex=True,
    cuda=ABSENT,
    letters=unsplit,
    takes=matrix_checks.square,
)
def ldl_op(a: TensorMeta, strict: bool, hermitian: bool) -> Launch:
    """L and D in the lower triangle, the exchanges, and LAPACK's info, an error if `strict`."""
    name = named("ldl_factor", a, "sytrf", "hetrf" if hermitian else "")
    n, batch = a.shape[-1], a.shape[:-2]
    outputs = a.dense(), a.with_shape((*batch, n), int32), a.with_shape(batch, int32)
    p = Program(outputs, (a,), batch)
    work = p.work(max(1, n) * BLOCK * a.dtype.itemsize)
    p.copy(p.input(0), p.out(0))
    if n > 0:
        p.call(name, Char("L"), Int(n), p.out(0), Int(n), p.out(1), work, Int(n * BLOCK), INFO)
    return p.launch(Status.SINGULAR_MATRIX, -1 if strict else 2)


@op(
    "ld, b, pivots -> x",
    name="ldl_solve",
    complex=True,
    cuda=ABSENT,
    letters=unsplit,
    takes=matrix_checks.factored_system,
)
def ldl_solve_op(ld: TensorMeta, b: TensorMeta, pivots: TensorMeta, hermitian: bool) -> Launch:
    """X of A X = b by A's factors."""
    name = named("ldl_solve", ld, "sytrs", "hetrs" if hermitian else "")
    n, k = ld.shape[-1], b.shape[-2]
    p = Program((b.dense(),), (ld, b, pivots), b.shape[:-2])
    p.copy(p.input(1), p.out(0))
    if n > 0 and k > 0:
        p.blocks(p.input(2), n)
        p.call(
            name, Char("L"), Int(n), Int(k), p.input(0), Int(n), p.input(2), p.out(0), Int(n), INFO
        )
    return p.launch(Status.SINGULAR_MATRIX)
