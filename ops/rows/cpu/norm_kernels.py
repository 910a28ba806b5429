"""The kernels of normalisation whose groups are rows: runs of n elements, each with a weight and
a bias of its own (layer and RMS norm, and the group norm of (N, C)).

Row r takes its weights from (r % period) * n on.  `stats` holds the rows' means, then their
variances.  A row is visited several times while it is in the cache, so memory is read once.

    forward    out = (x - mean) * rstd * weight + bias
    backward   dx = rstd * (h - M(h) - xhat * M(h * xhat)), where h = g * weight and M averages

The gradients of weight and bias are sums over rows: each block of `tall` rows leaves its part in
scratch, and a second phase adds the parts up, in an order that depends on the shape alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flowvm.launch import PHASE_BITS
from flowvm.ops.rows.cpu.runs import dot_of, moments_of, slopes_of, weighted_slopes

__all__ = [
    "STRIPE",
    "UNIT_MASK",
    "add_parts",
    "affine_rows",
    "plain_rows",
    "plain_rows_backward",
    "rows_backward",
    "weighted_rows",
]

Array = Any
UNIT_MASK = (1 << PHASE_BITS) - 1
STRIPE = 256  # weights of a unit of phase 1


def _forward(
    out: Array, stats: Array, x: Array, weight: Array, bias: Array, weighted: bool, biased: bool,
    n: int, period: int, eps: float, center: bool, lo: int, hi: int,
) -> None:  # fmt: skip
    real, groups = out.dtype.type, len(stats) // 2
    for r in range(lo, hi):
        xs, ys = x[r * n : r * n + n], out[r * n : r * n + n]
        if center:
            middle, squares = moments_of(xs)
        else:
            middle, squares = real(0), dot_of(xs, xs)
        spread = squares / real(n)
        stats[r], stats[groups + r] = middle, spread
        scale = real(1.0 / np.sqrt(spread + eps))
        first = r % period * n
        if weighted:
            ws = weight[first : first + n]
            if biased:
                bs = bias[first : first + n]
                for j in range(n):
                    ys[j] = (xs[j] - middle) * scale * ws[j] + bs[j]
            else:
                for j in range(n):
                    ys[j] = (xs[j] - middle) * scale * ws[j]
        else:
            for j in range(n):
                ys[j] = (xs[j] - middle) * scale


def plain_rows(
    out: Array, stats: Array, x: Array, n: int, period: int, eps: float, center: bool,
    lo: int, hi: int,
) -> None:  # fmt: skip
    """Without weight and bias."""
    _forward(out, stats, x, x, x, False, False, n, period, eps, center, lo, hi)


def weighted_rows(
    out: Array, stats: Array, x: Array, weight: Array, n: int, period: int, eps: float,
    center: bool, lo: int, hi: int,
) -> None:  # fmt: skip
    """Without bias."""
    _forward(out, stats, x, weight, x, True, False, n, period, eps, center, lo, hi)


def affine_rows(
    out: Array, stats: Array, x: Array, weight: Array, bias: Array, n: int, period: int,
    eps: float, center: bool, lo: int, hi: int,
) -> None:  # fmt: skip
    """With both."""
    _forward(out, stats, x, weight, bias, True, True, n, period, eps, center, lo, hi)


def plain_rows_backward(
    out: Array, g: Array, x: Array, stats: Array, n: int, eps: float, center: bool,
    lo: int, hi: int,
) -> None:  # fmt: skip
    """dx where there is no weight."""
    real, groups = out.dtype.type, len(stats) // 2
    for r in range(lo, hi):
        gs, xs, os = g[r * n : r * n + n], x[r * n : r * n + n], out[r * n : r * n + n]
        middle, scale = stats[r], real(1.0 / np.sqrt(stats[groups + r] + eps))
        base, slope = slopes_of(gs, xs, middle)
        base = base / real(n) if center else real(0)
        slope = slope / real(n) * scale * scale
        for j in range(n):
            os[j] = scale * ((gs[j] - base) - (xs[j] - middle) * slope)


def rows_backward(
    out: Array, dw: Array, db: Array, g: Array, x: Array, stats: Array, weight: Array,
    n: int, period: int, tall: int, eps: float, center: bool, scratch: Array, arena: Array,
    lo: int, hi: int,
) -> None:  # fmt: skip
    """dx; then, in phase 1, stripes of dw and db."""
    real, groups, size = out.dtype.type, len(stats) // 2, len(dw)
    parts = scratch.view(out.dtype)
    if lo >> PHASE_BITS == 1:
        add_parts(dw, db, parts, (groups + tall - 1) // tall, arena, lo & UNIT_MASK, hi & UNIT_MASK)
        return
    for block in range(lo, hi):
        own = parts[2 * block * size : 2 * (block + 1) * size]
        for j in range(len(own)):
            own[j] = 0
        for r in range(block * tall, min((block + 1) * tall, groups)):
            gs, xs, os = g[r * n : r * n + n], x[r * n : r * n + n], out[r * n : r * n + n]
            first = r % period * n
            ws = weight[first : first + n]
            middle, scale = stats[r], real(1.0 / np.sqrt(stats[groups + r] + eps))
            base, slope = weighted_slopes(gs, ws, xs, middle)
            base = base / real(n) if center else real(0)
            slope = slope / real(n) * scale * scale
            for j in range(n):
                os[j] = scale * ((gs[j] * ws[j] - base) - (xs[j] - middle) * slope)
            slants, sums = own[first : first + n], own[size + first : size + first + n]
            for j in range(n):
                slants[j] += gs[j] * ((xs[j] - middle) * scale)
                sums[j] += gs[j]


def add_parts(
    dw: Array, db: Array, parts: Array, blocks: int, arena: Array, lo: int, hi: int
) -> None:
    """Stripes [lo, hi) of the sums over blocks: a block's part of dw, then its part of db."""
    size = len(dw)
    for stripe in range(lo, hi):
        first, width = stripe * STRIPE, min(STRIPE, size - stripe * STRIPE)
        totals = arena.view(np.float64)[: 2 * width]
        ws, bs = totals[:width], totals[width:]
        for j in range(2 * width):
            totals[j] = 0
        for block in range(blocks):
            at = 2 * block * size + first
            slants, sums = parts[at : at + width], parts[at + size : at + size + width]
            for j in range(width):
                ws[j] += slants[j]
                bs[j] += sums[j]
        wide, shifts = dw[first : first + width], db[first : first + width]
        for j in range(width):
            wide[j] = ws[j]
            shifts[j] = bs[j]
