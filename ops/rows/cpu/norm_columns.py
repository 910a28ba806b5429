"""The kernels of batch norm for channels of few elements a sample: (N, C), and small planes.

They are `norm_programs`' programs of planes, on a schedule of their own.  The tensor is seen as
rows, a sample each, of n columns; a channel is `space` neighbouring columns.  Phase 0 works on
blocks of `tall` rows and `width` columns and leaves each column's part in scratch; phase 1 combines
the parts of a stripe's channels; phase 2 writes blocks of the result.  So memory is read along its
lines, twice, and several workers share it.  scratch holds two numbers for each column of each
block, then COEFFICIENTS for each column.

Parts of a variance are combined by Chan's formula, so nothing is lost where the mean is large
against the spread.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from flowvm.launch import PHASE_BITS
from flowvm.meta.arrays import Array
from flowvm.ops.rows.cpu.row_bodies import pairs_of
from flowvm.ops.rows.cpu.runs import float64_variance
from flowvm.ops.rows.cpu.stripes import (
    begin_of,
    moments_by_four,
    spreads_apart,
    squares_in,
    stripe_result,
    sums_by_four,
)
from flowvm.ops.rows.parts.norm_programs import PLANE, PLANE_BACKWARD, PLANE_SLOPES
from flowvm.ops.rows.parts.norm_rules import base_and_slope, moved, unbiasing, weight_gradient

WORDS_ONLY = True  # for flowvm.compiler.native, as the next
LOOPS_ONLY = True  # for flowvm.compiler.native: a block's loops are as long as a stripe is wide
UNIT_MASK = (1 << PHASE_BITS) - 1
COEFFICIENTS = 5  # numbers of a column that phase 2 needs
UNUSED, MOVED, FIXED = 0, 1, 2  # what becomes of a mean and variance that a call has
_slopes = sums_by_four(PLANE_SLOPES)
_result, _result_back = stripe_result(PLANE)[0], stripe_result(PLANE_BACKWARD)[0]
_factors, _lifts = begin_of(PLANE, "factor"), begin_of(PLANE_BACKWARD, "lift")


class Columns(NamedTuple):
    """The layout of columns: `rows` rows of n columns, `space` of which are a channel.

    A block is `tall` rows of `width` columns.
    """

    rows: int
    n: int
    tall: int
    width: int
    space: int


# --- a stripe's channels and their columns --------------------------------------------------------


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


def _expand_weights(columns: Array, weights: Array, first: int, space: int, absent: float) -> None:
    """Repeat the weights of channels from `first` on along columns, as `_expand` does.

    Without weights, each one is `absent`.
    """
    if len(weights):
        _expand(columns, weights[first : first + len(columns) // space], space)
    else:
        for j in range(len(columns)):
            columns[j] = absent


def _combine(
    middle: Array, spread: Array, parts: Array, t: Columns, first: int, width: int, arena: Array
) -> None:
    """Combine the parts of a stripe's columns to the mean and variance of its channels.

    The mean has x's dtype; the variance stays wider if x's dtype cannot hold it.
    """
    real = parts.dtype.type
    rows, n, tall, space = t.rows, t.n, t.tall, t.space
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
        middle[c] = real(means[c * space])
        for j in range(c * space + 1, (c + 1) * space):
            means[j] = means[c * space]
    for b in range(blocks):
        at = 2 * b * n + first
        part, square = parts[at : at + width], parts[at + n : at + n + width]
        count = float(min(tall, rows - b * tall))
        for j in range(width):
            d = part[j] - means[j]
            squares[j] += squares_in(square[j]) + count * d * d
    _gather(squares, space)
    for c in range(len(middle)):
        exact = squares[c * space] / (rows * space)
        spread[c] = float64_variance(exact, real(exact))


# --- forward --------------------------------------------------------------------------------------


def _forward(
    out: Array, stats: Array, x: Array, weight: Array, bias: Array, mean: Array, var: Array,
    t: Columns, use: int, eps: float, momentum: float, scratch: Array, arena: Array,
    lo: int, hi: int,
) -> None:  # fmt: skip
    """Normalise by columns; `use` says what happens with `mean` and `var`."""
    phase, parts = lo >> PHASE_BITS, scratch.view(out.dtype)
    phase += 1 if use == FIXED else 0  # nothing is measured
    rows, n, tall, width, space = t.rows, t.n, t.tall, t.width, t.space
    stripes, blocks = (n + width - 1) // width, (rows + tall - 1) // tall
    for k in range(hi - lo):
        unit = (lo & UNIT_MASK) + k
        first, block = unit % stripes * width, unit // stripes
        count = min(width, n - first)
        height, at = min(tall, rows - block * tall), block * tall * n + first
        own = parts[2 * blocks * n + COEFFICIENTS * first :][: COEFFICIENTS * count]
        middle, factor, shift = own[:count], own[count : 2 * count], own[2 * count : 3 * count]
        if phase == 0:
            begin = 2 * block * n + first
            centers, squares = parts[begin : begin + count], parts[begin + n : begin + n + count]
            moments_by_four(centers, squares, x, at, height, n)
            spreads_apart(centers, squares, x, at, height, n)
        elif phase == 1:
            c, channels = first // space, count // space
            means, spreads = stats[c : c + channels], stats[n // space + c :][:channels]
            if use == FIXED:
                for j in range(channels):
                    means[j], spreads[j] = mean[c + j], var[c + j]
            else:
                _combine(means, spreads, parts, t, first, count, arena)
            if use == MOVED:
                unbias = unbiasing(rows * space)
                for j in range(channels):
                    mean[c + j] = moved(mean[c + j], mean.dtype.type(means[j]), momentum)
                    var[c + j] = moved(var[c + j], spreads[j] * unbias, momentum)
            spread = arena.view(np.float64)[:count]
            scale = arena[8 * count :].view(out.dtype)[:count]
            _expand(middle, means, space)
            _expand(spread, spreads, space)
            _expand_weights(scale, weight, c, space, 1.0)
            _expand_weights(shift, bias, c, space, 0.0)
            _factors(factor, spread, scale, eps)
        else:
            _result(out, x, middle, shift, factor, at, height, n)


def forward_columns(
    out: Array, stats: Array, x: Array, weight: Array, bias: Array, mean: Array, var: Array,
    t: Columns, use: int, eps: float, scratch: Array, arena: Array, lo: int, hi: int,
) -> None:  # fmt: skip
    """A call may lack weight and bias, and mean and var, which are used if it has them."""
    _forward(out, stats, x, weight, bias, mean, var, t, use, eps, 0.0, scratch, arena, lo, hi)


def moving_columns(
    out: Array, stats: Array, x: Array, weight: Array, bias: Array, mean: Array, var: Array,
    t: Columns, eps: float, momentum: float, scratch: Array, arena: Array, lo: int, hi: int,
) -> None:  # fmt: skip
    """The running mean and variance move towards the batch's."""
    _forward(
        out, stats, x, weight, bias, mean, var, t, MOVED, eps, momentum, scratch, arena, lo, hi
    )


# --- backward -------------------------------------------------------------------------------------


def _backward(
    out: Array, dw: Array, db: Array, g: Array, x: Array, stats: Array, weight: Array, t: Columns,
    fixed: bool, eps: float, scratch: Array, arena: Array, lo: int, hi: int,
) -> None:  # fmt: skip
    """`fixed`: the mean and variance do not depend on x.  There are dw and db where there is a
    weight.
    """
    phase, parts = lo >> PHASE_BITS, scratch.view(out.dtype)
    rows, n, tall, width, space = t.rows, t.n, t.tall, t.width, t.space
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
        base, slope = own[2 * count : 3 * count], own[3 * count : 4 * count]
        lift = own[4 * count :]
        if phase == 0:
            middle = arena.view(out.dtype)[:count]
            _expand(middle, means, space)
            begin = 2 * block * n + first
            sums, slants = parts[begin : begin + count], parts[begin + n : begin + n + count]
            _slopes(sums, slants, middle, g, x, at, height, n)
        elif phase == 1:
            plain, slanted = pairs_of(parts, blocks, n, first, count, arena)
            _gather(plain, space)
            _gather(slanted, space)
            share = 0.0 if fixed else 1.0 / (rows * space)
            for j in range(channels):
                flat, slant, variance, w = plain[j * space], slanted[j * space], spreads[j], 1.0
                if len(weight):
                    w = float(weight[c + j])
                    dw[c + j], db[c + j] = weight_gradient(slant, variance, eps), flat
                plain[j], slanted[j] = base_and_slope(flat * w, slant * w, variance, share, eps)
            _expand(middle, means, space)
            _expand(base, plain[:channels], space)
            _expand(slope, slanted[:channels], space)
            spread = arena.view(np.float64)[:count]
            scale = arena[8 * count :].view(out.dtype)[:count]
            _expand(spread, spreads, space)
            _expand_weights(scale, weight, c, space, 1.0)
            _factors(factor, spread, scale, eps)
            _lifts(lift, spread, eps)
        else:
            _result_back(out, g, x, middle, base, slope, lift, factor, at, height, n)


def backward_columns(
    out: Array, g: Array, x: Array, stats: Array, t: Columns, fixed: bool, eps: float,
    scratch: Array, arena: Array, lo: int, hi: int,
) -> None:  # fmt: skip
    """Compute dx without a weight."""
    _backward(out, g, g, g, x, stats, g[:0], t, fixed, eps, scratch, arena, lo, hi)


def full_backward_columns(
    out: Array, dw: Array, db: Array, g: Array, x: Array, stats: Array, weight: Array, t: Columns,
    fixed: bool, eps: float, scratch: Array, arena: Array, lo: int, hi: int,
) -> None:  # fmt: skip
    """dx, dw and db."""
    _backward(out, dw, db, g, x, stats, weight, t, fixed, eps, scratch, arena, lo, hi)
