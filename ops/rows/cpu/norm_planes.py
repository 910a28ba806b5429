"""The kernels of normalisation by channel: batch, group and instance norm of (N, C, space).

A plane is the `space` elements of one channel of one sample; they have one weight and one bias.
What is found in a plane, and what is made of it, are `norm_programs`; what becomes of the planes'
numbers is in `norm_rules`.

Three steps: the planes' means and squared distances (forward) or sums (backward); the groups' from
those; the result.  Where a group stays in the cache (`together`) its worker does all three at once
and memory is read once; else each step is a phase, which shares a group over workers.

Parts of a variance are combined by Chan's formula, so nothing is lost where the mean is large
against the spread.  scratch, in float64: two numbers for each plane, then two for each group.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from flowvm.launch import PHASE_BITS
from flowvm.meta.arrays import Array
from flowvm.ops.rows.cpu.norm_columns import FIXED, MOVED, UNIT_MASK
from flowvm.ops.rows.cpu.row_code import result_of, run_of
from flowvm.ops.rows.cpu.runs import float64_variance, moments_of
from flowvm.ops.rows.parts.norm_programs import PLANE, PLANE_BACKWARD, PLANE_SLOPES
from flowvm.ops.rows.parts.norm_rules import base_and_slope, moved, unbiasing, weight_gradient

_result, _result_back, _slopes = result_of(PLANE), result_of(PLANE_BACKWARD), run_of(PLANE_SLOPES)


class Planes(NamedTuple):
    """The layout of planes: `channels` planes of `space` elements in a sample.

    A group is averaged together: `members` planes, group r's from r * step on, `jump` apart.
    """

    channels: int
    space: int
    step: int
    jump: int
    members: int
    together: bool


def _group_of(p: int, t: Planes) -> int:
    return p % t.jump if t.step == 1 and t.jump > 1 else p // t.members


# --- forward --------------------------------------------------------------------------------------


def _measure(parts: Array, x: Array, p: int, space: int) -> None:
    parts[2 * p], parts[2 * p + 1] = moments_of(x[p * space : (p + 1) * space])


def _combine(stats: Array, parts: Array, x: Array, r: int, t: Planes) -> None:
    """Combine the parts of group r to its mean, in x's dtype, and its variance, maybe wider."""
    real = x.dtype.type
    middle, squares, count, space = 0.0, 0.0, t.members, t.space
    for s in range(count):
        middle += parts[2 * (r * t.step + s * t.jump)]
    middle /= count
    for s in range(count):
        p = r * t.step + s * t.jump
        d = parts[2 * p] - middle
        squares += parts[2 * p + 1] + space * d * d
    spread = squares / (count * space)
    stats[r], stats[len(stats) // 2 + r] = real(middle), float64_variance(spread, real(spread))


def _move(mean: Array, var: Array, stats: Array, r: int, total: int, momentum: float) -> None:
    """Move the running statistics of channel r towards the ones of its `total` elements."""
    spread = stats[len(stats) // 2 + r] * unbiasing(total)
    middle = mean.dtype.type(stats[r])
    mean[r], var[r] = moved(mean[r], middle, momentum), moved(var[r], spread, momentum)


def _write(
    out: Array, stats: Array, x: Array, weight: Array, bias: Array, p: int, r: int, t: Planes,
    eps: float,
) -> None:  # fmt: skip
    real, space = out.dtype.type, t.space
    xs, ys = x[p * space : (p + 1) * space], out[p * space : (p + 1) * space]
    w, b = real(1), real(0)
    if len(weight):
        w, b = weight[p % t.channels], bias[p % t.channels]
    _result(ys, xs, stats[r], stats[len(stats) // 2 + r], w, b, eps)


def _forward(
    out: Array, stats: Array, x: Array, weight: Array, bias: Array, mean: Array, var: Array,
    t: Planes, use: int, eps: float, momentum: float, scratch: Array, lo: int, hi: int,
) -> None:  # fmt: skip
    """Normalise by planes; `use` says what happens with `mean` and `var`."""
    phase, parts = lo >> PHASE_BITS, scratch.view(np.float64)
    phase += 1 if use == FIXED else 0  # nothing is measured
    for unit in range(lo & UNIT_MASK, hi & UNIT_MASK):
        if phase == 0 and not t.together:
            _measure(parts, x, unit, t.space)
        elif phase == 2:
            _write(out, stats, x, weight, bias, unit, _group_of(unit, t), t, eps)
        else:
            if use == FIXED:
                stats[unit], stats[t.channels + unit] = mean[unit], var[unit]
            elif t.together:
                for s in range(t.members):
                    _measure(parts, x, unit * t.step + s * t.jump, t.space)
            if use != FIXED:
                _combine(stats, parts, x, unit, t)
            if use == MOVED:
                _move(mean, var, stats, unit, t.members * t.space, momentum)
            if t.together:
                for s in range(t.members):
                    p = unit * t.step + s * t.jump
                    _write(out, stats, x, weight, bias, p, unit, t, eps)


def forward_planes(
    out: Array, stats: Array, x: Array, weight: Array, bias: Array, mean: Array, var: Array,
    t: Planes, use: int, eps: float, scratch: Array, lo: int, hi: int,
) -> None:  # fmt: skip
    """A call may lack weight and bias, and mean and var, which are used if it has them."""
    _forward(out, stats, x, weight, bias, mean, var, t, use, eps, 0.0, scratch, lo, hi)


def moving_planes(
    out: Array, stats: Array, x: Array, weight: Array, bias: Array, mean: Array, var: Array,
    t: Planes, eps: float, momentum: float, scratch: Array, lo: int, hi: int,
) -> None:  # fmt: skip
    """The running mean and variance move towards the batch's."""
    _forward(out, stats, x, weight, bias, mean, var, t, MOVED, eps, momentum, scratch, lo, hi)


# --- backward -------------------------------------------------------------------------------------


def _slope(parts: Array, g: Array, x: Array, stats: Array, p: int, r: int, space: int) -> None:
    gs, xs = g[p * space : (p + 1) * space], x[p * space : (p + 1) * space]
    parts[2 * p], parts[2 * p + 1] = _slopes(gs, xs, x.dtype.type(stats[r]))


def _average(
    parts: Array, stats: Array, weight: Array, r: int, t: Planes, fixed: bool, eps: float
) -> None:
    """The base and the slope of group r."""
    plain, slanted, groups = 0.0, 0.0, len(stats) // 2
    for s in range(t.members):
        p = r * t.step + s * t.jump
        w = float(weight[p % t.channels]) if len(weight) else 1.0
        plain += parts[2 * p] * w
        slanted += parts[2 * p + 1] * w
    at, share = len(parts) - 2 * groups + 2 * r, 0.0 if fixed else 1.0 / (t.members * t.space)
    parts[at], parts[at + 1] = base_and_slope(plain, slanted, stats[groups + r], share, eps)


def _write_back(
    out: Array, g: Array, x: Array, stats: Array, parts: Array, weight: Array, p: int, r: int,
    t: Planes, eps: float,
) -> None:  # fmt: skip
    real, groups, space = out.dtype.type, len(stats) // 2, t.space
    gs, xs = g[p * space : (p + 1) * space], x[p * space : (p + 1) * space]
    os = out[p * space : (p + 1) * space]
    at = len(parts) - 2 * groups + 2 * r
    w = weight[p % t.channels] if len(weight) else real(1)
    base, slope = real(parts[at]), real(parts[at + 1])
    _result_back(os, gs, xs, stats[r], stats[groups + r], w, base, slope, eps)


def _channel(
    dw: Array, db: Array, parts: Array, stats: Array, c: int, planes: int, t: Planes, eps: float
) -> None:
    w, b = 0.0, 0.0
    for p in range(c, planes, t.channels):
        spread = stats[len(stats) // 2 + _group_of(p, t)]
        w += weight_gradient(parts[2 * p + 1], spread, eps)
        b += parts[2 * p]
    dw[c], db[c] = w, b


def _backward(
    out: Array, dw: Array, db: Array, g: Array, x: Array, stats: Array, weight: Array, t: Planes,
    fixed: bool, eps: float, scratch: Array, lo: int, hi: int,
) -> None:  # fmt: skip
    """The last phase, where there is a weight, works on channels: their dw and db."""
    phase, parts, groups = lo >> PHASE_BITS, scratch.view(np.float64), len(stats) // 2
    for unit in range(lo & UNIT_MASK, hi & UNIT_MASK):
        if t.together and phase == 0:
            for s in range(t.members):
                _slope(parts, g, x, stats, unit * t.step + s * t.jump, unit, t.space)
            _average(parts, stats, weight, unit, t, fixed, eps)
            for s in range(t.members):
                p = unit * t.step + s * t.jump
                _write_back(out, g, x, stats, parts, weight, p, unit, t, eps)
        elif phase == (1 if t.together else 3):
            _channel(dw, db, parts, stats, unit, groups * t.members, t, eps)
        elif phase == 0:
            _slope(parts, g, x, stats, unit, _group_of(unit, t), t.space)
        elif phase == 1:
            _average(parts, stats, weight, unit, t, fixed, eps)
        else:
            _write_back(out, g, x, stats, parts, weight, unit, _group_of(unit, t), t, eps)


def backward_planes(
    out: Array, g: Array, x: Array, stats: Array, t: Planes, fixed: bool, eps: float,
    scratch: Array, lo: int, hi: int,
) -> None:  # fmt: skip
    """Compute dx without a weight."""
    _backward(out, g, g, g, x, stats, g[:0], t, fixed, eps, scratch, lo, hi)


def full_backward_planes(
    out: Array, dw: Array, db: Array, g: Array, x: Array, stats: Array, weight: Array, t: Planes,
    fixed: bool, eps: float, scratch: Array, lo: int, hi: int,
) -> None:  # fmt: skip
    """dx, dw and db."""
    _backward(out, dw, db, g, x, stats, weight, t, fixed, eps, scratch, lo, hi)
