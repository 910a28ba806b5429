"""The kernels of batch norm for (N, C): channels lie side by side, and COLUMNS of them are a unit.

They do what those of `norm_kernels` do, along the lines of memory.  Sums are kept in float64: there
are N additions one after the other.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "affine_columns",
    "columns_sums",
    "plain_columns",
    "plain_columns_backward",
    "weighted_columns_backward",
]

import numpy as np

Array = Any
COLUMNS = 64  # channels of a unit


def _forward(
    out: Array, mean: Array, var: Array, x: Array, weight: Array, bias: Array, affine: bool,
    rows: int, n: int, eps: float, scratch: Array, lo: int, hi: int,
) -> None:  # fmt: skip
    real = out.dtype.type
    for unit in range(lo, hi):
        first, width = unit * COLUMNS, min(COLUMNS, n - unit * COLUMNS)
        own = scratch.view(np.float64)[2 * unit * COLUMNS : 2 * (unit + 1) * COLUMNS]
        sums, factor = own[:width], own[COLUMNS : COLUMNS + width].view(out.dtype)[:width]
        means = mean[first : first + width]
        for j in range(width):
            sums[j] = 0
        for r in range(rows):
            xs = x[r * n + first : r * n + first + width]
            for j in range(width):
                sums[j] += xs[j]
        for j in range(width):
            means[j] = sums[j] / rows
            sums[j] = 0
        for r in range(rows):
            xs = x[r * n + first : r * n + first + width]
            for j in range(width):
                d = xs[j] - means[j]
                sums[j] += d * d
        for j in range(width):
            spread = sums[j] / rows
            var[first + j] = spread
            factor[j] = (weight[first + j] if affine else real(1)) / np.sqrt(spread + eps)
        for r in range(rows):
            at = r * n + first
            xs, ys = x[at : at + width], out[at : at + width]
            if affine:
                bs = bias[first : first + width]
                for j in range(width):
                    ys[j] = (xs[j] - means[j]) * factor[j] + bs[j]
            else:
                for j in range(width):
                    ys[j] = (xs[j] - means[j]) * factor[j]


def plain_columns(
    out: Array, mean: Array, var: Array, x: Array, rows: int, n: int, eps: float, scratch: Array,
    lo: int, hi: int,
) -> None:  # fmt: skip
    """(x - mean) * rstd."""
    _forward(out, mean, var, x, x, x, False, rows, n, eps, scratch, lo, hi)


def affine_columns(
    out: Array, mean: Array, var: Array, x: Array, weight: Array, bias: Array, rows: int, n: int,
    eps: float, scratch: Array, lo: int, hi: int,
) -> None:  # fmt: skip
    """(x - mean) * rstd * weight + bias."""
    _forward(out, mean, var, x, weight, bias, True, rows, n, eps, scratch, lo, hi)


def _column_sums(
    sums: Array, slants: Array, g: Array, x: Array, means: Array, rows: int, n: int, first: int
) -> None:
    """sums = sum of g, slants = sum of g * (x - mean), for each of some neighbouring columns."""
    width = len(sums)
    for j in range(width):
        sums[j] = 0
        slants[j] = 0
    for r in range(rows):
        at = r * n + first
        gs, xs = g[at : at + width], x[at : at + width]
        for j in range(width):
            sums[j] += gs[j]
            slants[j] += gs[j] * (xs[j] - means[j])


def _backward(
    out: Array, g: Array, x: Array, mean: Array, var: Array, weight: Array, weighted: bool,
    rows: int, n: int, eps: float, scratch: Array, lo: int, hi: int,
) -> None:  # fmt: skip
    real = out.dtype.type
    for unit in range(lo, hi):
        first, width = unit * COLUMNS, min(COLUMNS, n - unit * COLUMNS)
        own = scratch.view(np.float64)[2 * unit * COLUMNS : 2 * (unit + 1) * COLUMNS]
        sums, slants = own[:width], own[COLUMNS : COLUMNS + width]
        means = mean[first : first + width]
        _column_sums(sums, slants, g, x, means, rows, n, first)
        for j in range(width):
            variance = var[first + j] + eps
            sums[j] /= rows
            slants[j] /= rows * variance
        for r in range(rows):
            at = r * n + first
            gs, xs, os = g[at : at + width], x[at : at + width], out[at : at + width]
            for j in range(width):
                os[j] = (gs[j] - real(sums[j])) - (xs[j] - means[j]) * real(slants[j])
        for j in range(width):
            factor = weight[first + j] if weighted else real(1)
            sums[j] = factor / np.sqrt(var[first + j] + eps)
        for r in range(rows):
            at = r * n + first
            os = out[at : at + width]
            for j in range(width):
                os[j] *= real(sums[j])


def plain_columns_backward(
    out: Array, g: Array, x: Array, mean: Array, var: Array, rows: int, n: int, eps: float,
    scratch: Array, lo: int, hi: int,
) -> None:  # fmt: skip
    """D(g)."""
    _backward(out, g, x, mean, var, g, False, rows, n, eps, scratch, lo, hi)


def weighted_columns_backward(
    out: Array, g: Array, x: Array, mean: Array, var: Array, weight: Array, rows: int, n: int,
    eps: float, scratch: Array, lo: int, hi: int,
) -> None:  # fmt: skip
    """D(g * weight): the weight is the same for all of a group, so it comes last."""
    _backward(out, g, x, mean, var, weight, True, rows, n, eps, scratch, lo, hi)


def columns_sums(
    dw: Array, db: Array, g: Array, x: Array, mean: Array, var: Array, rows: int, n: int,
    eps: float, scratch: Array, lo: int, hi: int,
) -> None:  # fmt: skip
    """The gradients of weight and bias."""
    for unit in range(lo, hi):
        first, width = unit * COLUMNS, min(COLUMNS, n - unit * COLUMNS)
        own = scratch.view(np.float64)[2 * unit * COLUMNS : 2 * (unit + 1) * COLUMNS]
        sums, slants = own[:width], own[COLUMNS : COLUMNS + width]
        _column_sums(sums, slants, g, x, mean[first : first + width], rows, n, first)
        for j in range(width):
            dw[first + j] = slants[j] / np.sqrt(var[first + j] + eps)
            db[first + j] = sums[j]
