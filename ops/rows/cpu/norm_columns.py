"""The kernels of batch norm for channels of few elements a sample: (N, C), and small planes.

The tensor is seen as rows, a sample each, of n columns; a channel is `space` neighbouring columns.
Phase 0 works on blocks of `tall` rows and `width` columns and leaves each column's part in scratch;
phase 1 combines the parts of a stripe's channels; phase 2 writes blocks of the result.  So memory
is read along its lines, twice, and several workers share it.  scratch holds two numbers for each
column of each block, then COEFFICIENTS for each column.

Parts of a variance are combined by Chan's formula, so nothing is lost where the mean is large
against the spread.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flowvm.launch import PHASE_BITS

Array = Any
UNIT_MASK = (1 << PHASE_BITS) - 1
COEFFICIENTS = 4  # numbers of a column that phase 2 needs
UNUSED, MOVED, FIXED = 0, 1, 2  # what becomes of a given mean and variance


def _moments(means: Array, squares: Array, x: Array, at: int, rows: int, n: int) -> None:
    """Of `rows` rows' columns from `at` on: mean and sum of squared distances from it.

    Sums are of distances from the first row, which leave no error in a mean that is large against
    the spread; and of four rows at a time, as a sum is read and written once for them.
    """
    width, count = len(means), means.dtype.type(rows)
    firsts = x[at : at + width]
    for j in range(width):
        means[j] = 0
        squares[j] = 0
    whole = rows // 4 * 4
    for r in range(0, whole, 4):
        a, b, c, d = _four(x, at + r * n, n, width)
        for j in range(width):
            f = firsts[j]
            means[j] += ((a[j] - f) + (b[j] - f)) + ((c[j] - f) + (d[j] - f))
    for r in range(whole, rows):
        a = x[at + r * n : at + r * n + width]
        for j in range(width):
            means[j] += a[j] - firsts[j]
    for j in range(width):
        means[j] = firsts[j] + means[j] / count
    for r in range(0, whole, 4):
        a, b, c, d = _four(x, at + r * n, n, width)
        for j in range(width):
            m = means[j]
            p, q, u, v = a[j] - m, b[j] - m, c[j] - m, d[j] - m
            squares[j] += (p * p + q * q) + (u * u + v * v)
    for r in range(whole, rows):
        a = x[at + r * n : at + r * n + width]
        for j in range(width):
            p = a[j] - means[j]
            squares[j] += p * p


def _four(x: Array, at: int, n: int, width: int) -> tuple[Array, Array, Array, Array]:
    """Four rows' columns from `at` on."""
    b, c, d = at + n, at + 2 * n, at + 3 * n
    return x[at : at + width], x[b : b + width], x[c : c + width], x[d : d + width]


def _gather(sums: Array, space: int) -> None:
    """Each channel's first column gets the sum over its columns."""
    for c in range(len(sums) // space):
        total = 0.0
        for j in range(c * space, (c + 1) * space):
            total += sums[j]
        sums[c * space] = total


def _expand(columns: Array, channels: Array, space: int) -> None:
    """Each column gets its channel's number."""
    if space == 1:
        for c in range(len(channels)):
            columns[c] = channels[c]
    else:
        for c in range(len(channels)):
            value = channels[c]
            for j in range(c * space, (c + 1) * space):
                columns[j] = value


def _combine(
    middle: Array, spread: Array, parts: Array, first: int, width: int, rows: int, n: int,
    tall: int, space: int, arena: Array,
) -> None:  # fmt: skip
    """Mean and variance of a stripe's channels from the parts of their columns."""
    blocks = (rows + tall - 1) // tall
    totals = arena.view(np.float64)[: 2 * width]
    means, squares = totals[:width], totals[width:]
    for j in range(2 * width):
        totals[j] = 0
    for b in range(blocks):
        part = parts[2 * b * n + first : 2 * b * n + first + width]
        weight = min(tall, rows - b * tall) / (rows * space)
        for j in range(width):
            means[j] += part[j] * weight
    _gather(means, space)
    for c in range(len(middle)):
        middle[c] = means[c * space]
        for j in range(c * space + 1, (c + 1) * space):
            means[j] = means[c * space]
    for b in range(blocks):
        at = 2 * b * n + first
        part, square = parts[at : at + width], parts[at + n : at + n + width]
        count = float(min(tall, rows - b * tall))
        for j in range(width):
            d = part[j] - means[j]
            squares[j] += square[j] + count * d * d
    _gather(squares, space)
    for c in range(len(middle)):
        spread[c] = squares[c * space] / (rows * space)


def _forward(
    out: Array, stats: Array, x: Array, weight: Array, bias: Array, mean: Array, var: Array,
    affine: bool, use: int, rows: int, n: int, tall: int, width: int, space: int, eps: float,
    momentum: float, scratch: Array, arena: Array, lo: int, hi: int,
) -> None:  # fmt: skip
    """`use` says what to do with `mean` and `var`."""
    phase, parts = lo >> PHASE_BITS, scratch.view(out.dtype)
    phase += 1 if use == FIXED else 0  # nothing is measured
    stripes, blocks = (n + width - 1) // width, (rows + tall - 1) // tall
    for k in range(hi - lo):
        unit = (lo & UNIT_MASK) + k
        first, block = unit % stripes * width, unit // stripes
        count = min(width, n - first)
        height, at = min(tall, rows - block * tall), block * tall * n + first
        own = parts[2 * blocks * n + COEFFICIENTS * first :][: COEFFICIENTS * count]
        middle, factor, shift = own[:count], own[count : 2 * count], own[2 * count : 3 * count]
        if phase == 0:
            here = 2 * block * n + first
            means, squares = parts[here : here + count], parts[here + n : here + n + count]
            _moments(means, squares, x, at, height, n)
        elif phase == 1:
            c, channels = first // space, count // space
            means, spreads = stats[c : c + channels], stats[n // space + c :][:channels]
            if use == FIXED:
                for j in range(channels):
                    means[j], spreads[j] = mean[c + j], var[c + j]
            else:
                _combine(means, spreads, parts, first, count, rows, n, tall, space, arena)
            if use == MOVED:
                unbias = rows * space / max(1, rows * space - 1)
                for j in range(channels):
                    mean[c + j] += momentum * (means[j] - mean[c + j])
                    var[c + j] += momentum * (spreads[j] * unbias - var[c + j])
            _expand(middle, means, space)
            _expand(factor, spreads, space)
            for j in range(count):
                factor[j] = 1.0 / np.sqrt(factor[j] + eps)
                shift[j] = 0
            if affine:
                _expand(shift, weight[c : c + channels], space)
                for j in range(count):
                    factor[j] *= shift[j]
                _expand(shift, bias[c : c + channels], space)
        else:
            for r in range(height):
                xs, ys = x[at + r * n : at + r * n + count], out[at + r * n : at + r * n + count]
                for j in range(count):
                    ys[j] = (xs[j] - middle[j]) * factor[j] + shift[j]


def plain_columns(
    out: Array, stats: Array, x: Array, rows: int, n: int, tall: int, width: int, space: int,
    eps: float, scratch: Array, arena: Array, lo: int, hi: int,
) -> None:  # fmt: skip
    """Without weight and bias."""
    _forward(
        out, stats, x, x, x, x, x, False, UNUSED, rows, n, tall, width, space, eps, 0.0, scratch,
        arena, lo, hi,
    )  # fmt: skip


def affine_columns(
    out: Array, stats: Array, x: Array, weight: Array, bias: Array, rows: int, n: int, tall: int,
    width: int, space: int, eps: float, scratch: Array, arena: Array, lo: int, hi: int,
) -> None:  # fmt: skip
    """With both."""
    _forward(
        out, stats, x, weight, bias, x, x, True, UNUSED, rows, n, tall, width, space, eps, 0.0,
        scratch, arena, lo, hi,
    )  # fmt: skip


def moving_columns(
    out: Array, stats: Array, x: Array, weight: Array, bias: Array, mean: Array, var: Array,
    rows: int, n: int, tall: int, width: int, space: int, eps: float, momentum: float,
    scratch: Array, arena: Array, lo: int, hi: int,
) -> None:  # fmt: skip
    """With both; the running mean and variance move towards the batch's."""
    _forward(
        out, stats, x, weight, bias, mean, var, True, MOVED, rows, n, tall, width, space, eps,
        momentum, scratch, arena, lo, hi,
    )  # fmt: skip


def fixed_columns(
    out: Array, stats: Array, x: Array, weight: Array, bias: Array, mean: Array, var: Array,
    rows: int, n: int, tall: int, width: int, space: int, eps: float,
    scratch: Array, arena: Array, lo: int, hi: int,
) -> None:  # fmt: skip
    """With both, by the mean and variance that are given."""
    _forward(
        out, stats, x, weight, bias, mean, var, True, FIXED, rows, n, tall, width, space, eps, 0.0,
        scratch, arena, lo, hi,
    )  # fmt: skip


def _slopes(
    sums: Array, slants: Array, g: Array, x: Array, middle: Array, at: int, rows: int, n: int
) -> None:
    """The sums of g and of g * (x - mean) over `rows` rows' columns from `at` on."""
    width = len(middle)
    for j in range(width):
        sums[j] = 0
        slants[j] = 0
    whole = rows // 4 * 4
    for r in range(0, whole, 4):
        a, b, c, d = _four(g, at + r * n, n, width)
        p, q, u, v = _four(x, at + r * n, n, width)
        for j in range(width):
            sums[j] += (a[j] + b[j]) + (c[j] + d[j])
        for j in range(width):
            slants[j] += a[j] * (p[j] - middle[j]) + b[j] * (q[j] - middle[j])
        for j in range(width):
            slants[j] += c[j] * (u[j] - middle[j]) + d[j] * (v[j] - middle[j])
    for r in range(whole, rows):
        here = at + r * n
        a, p = g[here : here + width], x[here : here + width]
        for j in range(width):
            sums[j] += a[j]
        for j in range(width):
            slants[j] += a[j] * (p[j] - middle[j])


def _backward(
    out: Array, dw: Array, db: Array, g: Array, x: Array, stats: Array, weight: Array,
    weighted: bool, rows: int, n: int, tall: int, width: int, space: int, fixed: bool, eps: float,
    scratch: Array, arena: Array, lo: int, hi: int,
) -> None:  # fmt: skip
    """`fixed`: the mean and variance do not depend on x."""
    phase, parts = lo >> PHASE_BITS, scratch.view(out.dtype)
    stripes, blocks = (n + width - 1) // width, (rows + tall - 1) // tall
    for k in range(hi - lo):
        unit = (lo & UNIT_MASK) + k
        first, block = unit % stripes * width, unit // stripes
        count = min(width, n - first)
        height, at = min(tall, rows - block * tall), block * tall * n + first
        c, channels = first // space, count // space
        means, spreads = stats[c : c + channels], stats[n // space + c :][:channels]
        own = parts[2 * blocks * n + COEFFICIENTS * first :][: COEFFICIENTS * count]
        middle, factor = own[:count], own[count : 2 * count]
        base, slope = own[2 * count : 3 * count], own[3 * count :]
        if phase == 0:
            middle = arena.view(out.dtype)[:count]
            _expand(middle, means, space)
            here = 2 * block * n + first
            sums, slants = parts[here : here + count], parts[here + n : here + n + count]
            _slopes(sums, slants, g, x, middle, at, height, n)
        elif phase == 1:
            totals = arena.view(np.float64)[: 2 * count]
            plain, slanted = totals[:count], totals[count:]
            for j in range(2 * count):
                totals[j] = 0
            for b in range(blocks):
                here = 2 * b * n + first
                sums, slants = parts[here : here + count], parts[here + n : here + n + count]
                for j in range(count):
                    plain[j] += sums[j]
                    slanted[j] += slants[j]
            _gather(plain, space)
            _gather(slanted, space)
            share = 0.0 if fixed else 1.0 / (rows * space)
            for j in range(channels):
                scale = 1.0 / np.sqrt(spreads[j] + eps)
                if weighted:
                    dw[c + j], db[c + j] = slanted[j * space] * scale, plain[j * space]
                plain[j] = plain[j * space] * share
                slanted[j] = slanted[j * space] * share * scale * scale
            _expand(middle, means, space)
            _expand(factor, spreads, space)
            _expand(base, plain[:channels], space)
            _expand(slope, slanted[:channels], space)
            for j in range(count):
                factor[j] = 1.0 / np.sqrt(factor[j] + eps)
            if weighted:
                for j in range(count):
                    factor[j] *= weight[c + j // space]
        else:
            for r in range(height):
                here = at + r * n
                gs, xs = g[here : here + count], x[here : here + count]
                os = out[here : here + count]
                for j in range(count):
                    os[j] = ((gs[j] - base[j]) - (xs[j] - middle[j]) * slope[j]) * factor[j]


def plain_columns_backward(
    out: Array, g: Array, x: Array, stats: Array, rows: int, n: int, tall: int, width: int,
    space: int, fixed: bool, eps: float, scratch: Array, arena: Array, lo: int, hi: int,
) -> None:  # fmt: skip
    """dx where there is no weight."""
    _backward(
        out, g, g, g, x, stats, g, False, rows, n, tall, width, space, fixed, eps, scratch, arena,
        lo, hi,
    )  # fmt: skip


def columns_backward(
    out: Array, dw: Array, db: Array, g: Array, x: Array, stats: Array, weight: Array, rows: int,
    n: int, tall: int, width: int, space: int, fixed: bool, eps: float, scratch: Array,
    arena: Array, lo: int, hi: int,
) -> None:  # fmt: skip
    """dx, dw and db: the weight is the same for all of a group, so it comes last."""
    _backward(
        out, dw, db, g, x, stats, weight, True, rows, n, tall, width, space, fixed, eps, scratch,
        arena, lo, hi,
    )  # fmt: skip
