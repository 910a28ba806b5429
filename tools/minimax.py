"""Minimax polynomials and rational functions: where the coefficients in `ops/scalar` come from.

    p = fit(lambda x: (mp.exp(x) - 1 - x) / x**2, -0.3466, 0.3466, 4, weight=lambda x: x**2)

finds the P of degree 4 for which the largest weight(x) * |f(x) - P(x)| is smallest, by Remez'
exchange on a grid of Chebyshev points in 60 digits.  `below` adds a denominator 1 + q1*x + ... of
that degree.  With `bits`, the coefficients are rounded to a mantissa of so many bits, and the
error is that of the rounded ones.

The modules that use the coefficients name f, the interval and the weight beside them; `python -m
tools.minimax` shows the fit of exp for float32 as an example.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable
from typing import Any, NamedTuple

from mpmath import mp  # type: ignore[import-untyped]

__all__ = ["Fit", "fit", "rounded"]

mp.dps = 60
Real = Any  # mpmath's mpf
SCALES = 97
Function = Callable[[Real], Real]


class Fit(NamedTuple):
    """P and Q by rising powers, and the largest weighted error; Q is [1] for a polynomial."""

    above: list[Real]
    below: list[Real]
    error: float


def fit(
    f: Function,
    low: float,
    high: float,
    degree: int,
    *,
    below: int = 0,
    weight: Function = lambda x: mp.mpf(1),
    bits: int = 0,
    points: int = 0,
) -> Fit:
    """The best P/Q for `f` on [low, high]; see the module."""
    count = points or 24 * (degree + below + 2)
    middle, half = (mp.mpf(low) + high) / 2, (mp.mpf(high) - low) / 2
    xs = [middle - half * mp.cos(mp.pi * (k + mp.mpf(0.5)) / count) for k in range(count)]
    fs, ws = [mp.mpf(f(x)) for x in xs], [mp.mpf(weight(x)) for x in xs]
    p, q = _fraction(xs, fs, ws, degree, below) if below else _exchange(xs, fs, ws, degree)
    scales = [mp.mpf(1), *(1 + mp.mpf(k) / SCALES for k in range(1, SCALES) if below and bits)]
    errors = []
    for scale in scales:  # a fraction may be multiplied through; some scales round better
        above = [rounded(c * scale, bits) if bits else c for c in p]
        under = [rounded(c * scale, bits) if bits else c for c in q]
        errors.append((max(map(abs, _errors(xs, fs, ws, above, under))), above, under))
    error, p, q = min(errors, key=lambda entry: entry[0])
    return Fit(p, q, float(error))


def rounded(value: Real, bits: int) -> Real:
    """`value` with a mantissa of `bits` bits, halves to even."""
    with mp.workprec(bits):
        return +mp.mpf(value)


def _horner(coefficients: list[Real], x: Real) -> Real:
    total = mp.mpf(0)
    for c in reversed(coefficients):
        total = total * x + c
    return total


def _exchange(
    xs: list[Real], fs: list[Real], ws: list[Real], n: int
) -> tuple[list[Real], list[Real]]:
    """Remez' algorithm: level the error on n + m + 2 points, move them to where it is largest."""
    size = n + 2
    heavy = [i for i, w in enumerate(ws) if w > max(ws) / 50]  # a light point levels nothing
    spread = [(1 - mp.cos(mp.pi * k / (size - 1))) / 2 for k in range(size)]
    chosen = [heavy[round(t * (len(heavy) - 1))] for t in spread]
    p, q = [mp.mpf(0)], [mp.mpf(1)]
    for _ in range(100):
        p, level = _levelled([(xs[i], fs[i], ws[i]) for i in chosen], n)
        errors = _errors(xs, fs, ws, p, q)
        if max(map(abs, errors)) <= abs(level) * mp.mpf(1.001):
            break
        peaks = _peaks(errors, size)
        chosen = peaks if len(peaks) == size else _one_exchanged(chosen, errors)
    return p, q


def _errors(
    xs: list[Real], fs: list[Real], ws: list[Real], p: list[Real], q: list[Real]
) -> list[Real]:
    return [w * (v - _horner(p, x) / _horner(q, x)) for x, v, w in zip(xs, fs, ws, strict=True)]


def _fraction(
    xs: list[Real], fs: list[Real], ws: list[Real], n: int, m: int
) -> tuple[list[Real], list[Real]]:
    """P/Q by least squares, each time weighted with the Q before (after Sanathanan and Koerner).

    On Chebyshev points that is near enough to minimax.
    """
    p: list[Real] = []
    q = [mp.mpf(1)]
    for _ in range(12):
        matrix, right = mp.zeros(n + m + 1), mp.zeros(n + m + 1, 1)
        for x, v, w in zip(xs, fs, ws, strict=True):
            u = (w / _horner(q, x)) ** 2
            row = [x**k for k in range(n + 1)] + [-v * x**k for k in range(1, m + 1)]
            for i, a in enumerate(row):
                right[i] += u * a * v
                for j, b in enumerate(row):
                    matrix[i, j] += u * a * b
        solved = list(mp.lu_solve(matrix, right))
        p, q = solved[: n + 1], [mp.mpf(1), *solved[n + 1 :]]
    return p, q


def _levelled(points: list[tuple[Real, Real, Real]], n: int) -> tuple[list[Real], Real]:
    """The polynomial whose weighted error on the points is one number, of alternating sign."""
    rows = [
        [*(x**k for k in range(n + 1)), mp.mpf(-1) ** i / w] for i, (x, _, w) in enumerate(points)
    ]
    solved = list(mp.lu_solve(mp.matrix(rows), mp.matrix([v for _, v, _ in points])))
    return solved[:-1], solved[-1]


def _peaks(errors: list[Real], size: int) -> list[int]:
    """The places of the largest errors of alternating sign, `size` neighbours among them."""
    peaks: list[int] = []
    for i, e in enumerate(errors):
        if peaks and (errors[peaks[-1]] > 0) == (e > 0):
            if abs(e) > abs(errors[peaks[-1]]):
                peaks[-1] = i
        else:
            peaks.append(i)
    while len(peaks) > size:
        peaks.pop(0 if abs(errors[peaks[0]]) < abs(errors[peaks[-1]]) else -1)
    return peaks


def _one_exchanged(chosen: list[int], errors: list[Real]) -> list[int]:
    """The largest error's place instead of that neighbour of it which has the same sign."""
    worst = max(range(len(errors)), key=lambda i: abs(errors[i]))
    at = bisect.bisect_left(chosen, worst)
    neighbours = [i for i in (at - 1, at) if 0 <= i < len(chosen)]
    for i in neighbours:
        if (errors[chosen[i]] > 0) == (errors[worst] > 0):
            return [*chosen[:i], worst, *chosen[i + 1 :]]
    return [worst, *chosen[:-1]] if at == 0 else [*chosen[1:], worst]


if __name__ == "__main__":
    example = fit(
        lambda x: (mp.exp(x) - 1 - x) / x**2, -0.34658, 0.34658, 4, weight=lambda x: x**2, bits=24
    )
    print("error", example.error)
    for k, c in enumerate(example.above):
        print(f"x**{k + 2}: {mp.nstr(c, 12)}")
