"""Linear systems on CUDA: `solve`, `inverse`, `slogdet`, `cholesky`; one block for each matrix.

Elimination with partial pivoting, column by column, in global memory: made for batches of small
matrices.  One large matrix keeps one multiprocessor busy, and the others wait.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import cuda

from flowvm.cuda.compiler.compilation import threads
from flowvm.cuda.launch import STATUS_AT, CudaLaunch, Details, KernelStep, Operand, Scratch
from flowvm.errors import Status
from flowvm.launch import Launch, View
from flowvm.meta.arrays import Array
from flowvm.meta.meta import TensorMeta
from flowvm.ops.declare.cuda.steps import consts
from flowvm.ops.linalg.systems import Batch
from flowvm.ops.scalar import functions as scalar

Metas = tuple[TensorMeta, ...]
BLOCK = 256
SINGULAR = int(Status.SINGULAR_MATRIX)
NOT_POSITIVE = int(Status.NOT_POSITIVE_DEFINITE)


def _report(details: Array, status: int, item: int, place: int) -> None:
    if cuda.threadIdx.x == 0:
        details[0], details[1] = item, place
        cuda.threadfence_system()
        details[STATUS_AT] = status


# --- elimination ----------------------------------------------------------------------------------


def _pivot(lu: Array, c: int, sizes: Array, rows: Array) -> int:
    """The row, from c on, with the largest element of column c, of equal ones the first."""
    t = cuda.threadIdx.x
    size, row = np.float64(-1), np.int64(c)
    for i in range(c + t, lu.shape[0], cuda.blockDim.x):
        v = np.float64(scalar.abs_(lu[i, c]))
        if v > size:
            size, row = v, np.int64(i)
    sizes[t], rows[t] = size, row
    cuda.syncthreads()
    apart = cuda.blockDim.x // 2
    while apart > 0:
        if t < apart:
            other = t + apart
            if sizes[other] > sizes[t] or (sizes[other] == sizes[t] and rows[other] < rows[t]):
                sizes[t], rows[t] = sizes[other], rows[other]
        cuda.syncthreads()
        apart //= 2
    largest = rows[0]
    cuda.syncthreads()
    return largest  # type: ignore[no-any-return]


def _swap(m: Array, a: int, b: int) -> None:
    for j in range(cuda.threadIdx.x, m.shape[1], cuda.blockDim.x):
        m[a, j], m[b, j] = m[b, j], m[a, j]


def _subtract(m: Array, lu: Array, c: int, first: int) -> None:
    """Rows below c of `m`, from column `first` on, less their factor times row c."""
    columns = m.shape[1] - first
    for e in range(cuda.threadIdx.x, (lu.shape[0] - c - 1) * columns, cuda.blockDim.x):
        i, j = c + 1 + e // columns, first + e % columns
        m[i, j] -= lu[i, c] * m[c, j]


def _eliminate(lu: Array, x: Array, sizes: Array, rows: Array) -> tuple[int, int]:
    """Make `lu` triangular, and do the same to the rows of `x`; how often rows were exchanged, and
    the first column without a pivot (or -1).
    """
    n, swaps, singular = lu.shape[0], 0, -1
    for c in range(n):
        p = _pivot(lu, c, sizes, rows)
        if p != c:
            swaps += 1
            _swap(lu, c, p)
            _swap(x, c, p)
            cuda.syncthreads()
        if lu[c, c] == 0:
            singular = c if singular < 0 else singular
            continue
        for i in range(c + 1 + cuda.threadIdx.x, n, cuda.blockDim.x):
            lu[i, c] /= lu[c, c]
        cuda.syncthreads()
        _subtract(lu, lu, c, c + 1)
        _subtract(x, lu, c, 0)
        cuda.syncthreads()
    return swaps, singular


def _substitute(x: Array, lu: Array) -> None:
    """Solve the triangular system that is left, from the last row up."""
    n, k = x.shape
    for c in range(n - 1, -1, -1):
        for j in range(cuda.threadIdx.x, k, cuda.blockDim.x):
            x[c, j] /= lu[c, c]
        cuda.syncthreads()
        for e in range(cuda.threadIdx.x, c * k, cuda.blockDim.x):
            x[e // k, e % k] -= lu[e // k, c] * x[c, e % k]
        cuda.syncthreads()


def _fill(lu: Array, a: Array, start: int) -> None:
    n = lu.shape[0]
    for e in range(cuda.threadIdx.x, n * n, cuda.blockDim.x):
        lu[e // n, e % n] = a[start + e]


def _solve(out: Array, a: Array, b: Array, room: Array, a0: int, b0: int, details: Array) -> None:
    sizes = cuda.shared.array(BLOCK, np.float64)
    rows = cuda.shared.array(BLOCK, np.int64)
    item = cuda.blockIdx.x
    lu, x = room[item], out[item]
    n, k = x.shape
    _fill(lu, a, item * a0)
    for e in range(cuda.threadIdx.x, n * k, cuda.blockDim.x):
        x[e // k, e % k] = b[item * b0 + e]
    cuda.syncthreads()
    _, singular = _eliminate(lu, x, sizes, rows)
    if singular >= 0:
        _report(details, SINGULAR, item, singular)
    else:
        _substitute(x, lu)


def _inverse(out: Array, a: Array, room: Array, details: Array) -> None:
    sizes = cuda.shared.array(BLOCK, np.float64)
    rows = cuda.shared.array(BLOCK, np.int64)
    item = cuda.blockIdx.x
    lu, x = room[item], out[item]
    n = lu.shape[0]
    _fill(lu, a, item * n * n)
    for e in range(cuda.threadIdx.x, n * n, cuda.blockDim.x):
        x[e // n, e % n] = 1 if e // n == e % n else 0
    cuda.syncthreads()
    _, singular = _eliminate(lu, x, sizes, rows)
    if singular >= 0:
        _report(details, SINGULAR, item, singular)
    else:
        _substitute(x, lu)


def _determinant(sign: Array, logarithm: Array, a: Array, room: Array) -> None:
    sizes = cuda.shared.array(BLOCK, np.float64)
    rows = cuda.shared.array(BLOCK, np.int64)
    item = cuda.blockIdx.x
    lu = room[item]
    n = lu.shape[0]
    _fill(lu, a, item * n * n)
    cuda.syncthreads()
    swaps, _ = _eliminate(lu, lu[:, :0], sizes, rows)
    if cuda.threadIdx.x == 0:
        s, total = 1.0 - 2.0 * (swaps & 1), np.float64(0)
        for i in range(n):
            v = np.float64(lu[i, i])
            s = 0.0 if v == 0 else -s if v < 0 else s
            total += scalar.log(scalar.abs_(v))
        sign[item], logarithm[item] = s, total


def _cholesky(out: Array, a: Array, details: Array) -> None:
    item, t = cuda.blockIdx.x, cuda.threadIdx.x
    m = out[item]
    n = m.shape[0]
    for e in range(t, n * n, cuda.blockDim.x):
        m[e // n, e % n] = a[item * n * n + e] if e % n <= e // n else 0
    cuda.syncthreads()
    for c in range(n):
        corner = m[c, c]
        cuda.syncthreads()
        if not corner > 0:
            _report(details, NOT_POSITIVE, item, c + 1)
            return
        root = scalar.sqrt(corner)
        for i in range(c + t, n, cuda.blockDim.x):
            m[i, c] = root if i == c else m[i, c] / root
        cuda.syncthreads()
        rest = n - c - 1
        for e in range(t, rest * rest, cuda.blockDim.x):
            i, j = c + 1 + e // rest, c + 1 + e % rest
            if j <= i:
                m[i, j] -= m[i, c] * m[j, c]
        cuda.syncthreads()


# --- rules ----------------------------------------------------------------------------------------


def _by_matrix(
    launch: Launch, kernel: Callable[..., object], count: int, *params: Any, room: int = 0
) -> CudaLaunch:
    """A block for each of `count` matrices."""
    if count == 0:
        return CudaLaunch(launch.outputs, ())
    step = KernelStep(kernel, params, (count, 1, 1), (threads(BLOCK), 1, 1))
    return CudaLaunch(launch.outputs, (step,), room)


def _room(meta: TensorMeta, count: int) -> tuple[Scratch, int]:
    """Return scratch memory for `count` matrices of `meta`'s shape, and its bytes."""
    n = meta.shape[-1]
    return Scratch(0, meta.dtype.name, (count, n, n)), count * n * n * meta.dtype.itemsize


def solve(launch: Launch, metas: Metas, attrs: tuple[object, ...]) -> CudaLaunch:
    """X of A @ X = B."""
    t: Batch = launch.consts[0]
    out, a, b = (Operand(i, view) for i, view in enumerate(launch.views))
    whole = Operand(0, View(out.view.dtype, (t.matrices, t.n, t.k)))
    room, size = _room(metas[0], t.matrices)
    params = whole, a, b, room, *consts(t.a_step, t.b_step), Details()
    return _by_matrix(launch, _solve, t.matrices if t.k else 0, *params, room=size)


def inverse(launch: Launch, metas: Metas, attrs: tuple[object, ...]) -> CudaLaunch:
    """The inverse of each matrix."""
    t: Batch = launch.consts[0]
    out, a = (Operand(i, view) for i, view in enumerate(launch.views[:2]))
    whole = Operand(0, View(out.view.dtype, (t.matrices, t.n, t.n)))
    room, size = _room(metas[0], t.matrices)
    return _by_matrix(launch, _inverse, t.matrices, whole, a, room, Details(), room=size)


def slogdet(launch: Launch, metas: Metas, attrs: tuple[object, ...]) -> CudaLaunch:
    """The sign of each determinant, and the logarithm of its absolute value."""
    sign, logarithm, a = (Operand(i, view) for i, view in enumerate(launch.views))
    room, size = _room(metas[0], sign.view.shape[0])
    return _by_matrix(launch, _determinant, sign.view.shape[0], sign, logarithm, a, room, room=size)


def cholesky(launch: Launch, metas: Metas, attrs: tuple[object, ...]) -> CudaLaunch:
    """The lower triangular factor of each matrix."""
    t: Batch = launch.consts[0]
    out, a = (Operand(i, view) for i, view in enumerate(launch.views))
    whole = Operand(0, View(out.view.dtype, (t.matrices, t.n, t.n)))
    return _by_matrix(launch, _cholesky, t.matrices, whole, a, Details())
