"""Discrete Fourier transforms of rows, by factors of their length.

A pass splits every transform of length r m into r of length m and sorts as it goes (Stockham's way:
Swarztrauber, "FFT algorithms for vector computers", 1984), so nothing is permuted at the end.  What
is computed of a row depends on its length alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowvm.meta.arrays import Array
from flowvm.ops.declare.cpu.body_arrays import array_in
from flowvm.ops.fourier.cpu.butterflies import by_four, by_two, first_by_four, joined

if TYPE_CHECKING:
    from flowvm.meta.arrays import Number


def transform(
    out: Array, x: Array, roots: Array, factors: Array, n: int, way: float, scale: float,
    apart: bool, parted: bool, scratch: Array, arena: Array, lo: int, hi: int,
) -> None:  # fmt: skip
    """Rows lo to hi of `x`, each of n numbers: out[k] = scale * the sum of x[j] roots[j k].

    `roots` are the n roots of 1 to the powers 0, 1, .. of exp(-2 pi i way / n), `way` 1 or -1.
    `apart`: a row's second memory is in `scratch`, since the thread's has no room for it.
    `parted`: all factors are 4, but for a 2 at the end, and the thread's memory has room for two
    rows, in which real and imaginary parts lie apart: so they are vectors.
    """
    if parted:
        for row in range(lo, hi):
            span = row * n
            _in_parts(out[span : span + n], x[span : span + n], roots, factors, way, scale, arena)
        return
    for row in range(lo, hi):
        to = out[row * n : (row + 1) * n]
        if apart:
            second = array_in(scratch, row * n * out.itemsize, n, out)
        else:
            second = array_in(arena, 0, n, out)
        source = x[row * n : (row + 1) * n]
        stride, length = 1, n
        for step in range(len(factors)):
            r = factors[step]
            remaining = len(factors) - 1 - step
            target = to if remaining % 2 == 0 else second
            length //= r
            if r == 4:
                _by_four(target, source, roots, length, stride, way)
            elif r == 2:
                _by_two(target, source, roots, length, stride)
            else:
                _by_any(target, source, roots, r, length, stride, n)
            stride *= r
            source = target
        if len(factors) == 0:
            for k in range(n):
                to[k] = source[k]
        if scale != 1.0:
            for k in range(n):
                to[k] = _scaled(to[k], scale)


def _in_parts(
    out: Array, x: Array, roots: Array, factors: Array, way: float, scale: float, arena: Array
) -> None:
    n, part = len(x), x.real
    source = array_in(arena, 0, 2 * n, part)
    target = array_in(arena, 2 * n * part.itemsize, 2 * n, part)
    length, stride = n // 4, 4
    first_by_four(target, x, roots, length, way)
    for step in range(1, len(factors)):
        source, target = target, source
        length //= factors[step]
        if factors[step] == 2:
            by_two(target, source, roots, length, stride, way)
        else:
            by_four(target, source, roots, length, stride, way)
        stride *= factors[step]
    joined(out, target, scale)


def _scaled(z: Number, scale: float) -> complex:
    return complex(z.real * scale, z.imag * scale)


def _by_two(y: Array, x: Array, roots: Array, m: int, s: int) -> None:
    for p in range(m):
        w = roots[p * s]
        for q in range(s):
            a, b = x[q + s * p], x[q + s * (p + m)]
            y[q + s * 2 * p] = a + b
            y[q + s * (2 * p + 1)] = (a - b) * w


def _by_four(y: Array, x: Array, roots: Array, m: int, s: int, way: float) -> None:
    for p in range(m):
        w1, w2, w3 = roots[p * s], roots[2 * p * s], roots[3 * p * s]
        for q in range(s):
            a, b = x[q + s * p], x[q + s * (p + m)]
            c, d = x[q + s * (p + 2 * m)], x[q + s * (p + 3 * m)]
            even, odd = a + c, b + d
            over, turn = a - c, b - d
            turned = complex(way * turn.imag, -way * turn.real)
            y[q + s * 4 * p] = even + odd
            y[q + s * (4 * p + 1)] = (over + turned) * w1
            y[q + s * (4 * p + 2)] = (even - odd) * w2
            y[q + s * (4 * p + 3)] = (over - turned) * w3


def _by_any(y: Array, x: Array, roots: Array, r: int, m: int, s: int, n: int) -> None:
    each = n // r
    for p in range(m):
        for q in range(s):
            for j in range(r):
                total = x[q + s * p]
                at = 0
                for k in range(1, r):
                    at += j
                    if at >= r:
                        at -= r
                    total += x[q + s * (p + m * k)] * roots[at * each]
                y[q + s * (r * p + j)] = total * roots[p * j * s]
