"""The kernels of normalisation by channel: batch, group and instance norm of (N, C, space).

A plane is the `space` elements of one channel of one sample; they have one weight and one bias.  A
group is what is averaged together: `count` planes, group r's from r * step on, `jump` apart.

Three steps: the planes' means and squared distances (forward) or sums (backward); the groups' from
those; the result.  Where a group stays in the cache (`together`) its worker does all three at once
and memory is read once; else each step is a phase, which shares a group over workers.

Parts of a variance are combined by Chan's formula, so nothing is lost where the mean is large
against the spread.  scratch, in float64: two numbers for each plane, then two for each group.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flowvm.launch import PHASE_BITS
from flowvm.ops.rows.cpu.norm_columns import FIXED, MOVED, UNIT_MASK, UNUSED
from flowvm.ops.rows.cpu.row_bodies import result_of, run_of
from flowvm.ops.rows.cpu.runs import moments_of
from flowvm.ops.rows.parts.norm_programs import PLANE, PLANE_BACKWARD, PLANE_SLOPES

Array = Any
_result, _result_back, _slopes = result_of(PLANE), result_of(PLANE_BACKWARD), run_of(PLANE_SLOPES)


def _measure(parts: Array, x: Array, p: int, space: int) -> None:
    parts[2 * p], parts[2 * p + 1] = moments_of(x[p * space : (p + 1) * space])


def _combine(
    stats: Array, parts: Array, r: int, step: int, jump: int, count: int, space: int
) -> None:
    middle, squares = 0.0, 0.0
    for s in range(count):
        middle += parts[2 * (r * step + s * jump)]
    middle /= count
    for s in range(count):
        p = r * step + s * jump
        d = parts[2 * p] - middle
        squares += parts[2 * p + 1] + space * d * d
    stats[r], stats[len(stats) // 2 + r] = middle, squares / (count * space)


def _move(mean: Array, var: Array, stats: Array, r: int, total: int, momentum: float) -> None:
    """The running statistics of channel r towards those of its `total` elements."""
    spread = stats[len(stats) // 2 + r] * (total / max(1, total - 1))
    mean[r] += momentum * (stats[r] - mean[r])
    var[r] += momentum * (spread - var[r])


def _write(
    out: Array, stats: Array, x: Array, weight: Array, bias: Array, affine: bool,
    p: int, r: int, channels: int, space: int, eps: float,
) -> None:  # fmt: skip
    real = out.dtype.type
    xs, ys = x[p * space : (p + 1) * space], out[p * space : (p + 1) * space]
    middle, factor = stats[r], real(1.0 / np.sqrt(stats[len(stats) // 2 + r] + eps))
    shift = real(0)
    if affine:
        factor, shift = factor * weight[p % channels], bias[p % channels]
    _result(ys, xs, middle, factor, shift)


def _group_of(p: int, step: int, jump: int, count: int) -> int:
    return p % jump if step == 1 and jump > 1 else p // count


def _forward(
    out: Array, stats: Array, x: Array, weight: Array, bias: Array, mean: Array, var: Array,
    affine: bool, use: int, channels: int, space: int, step: int, jump: int, count: int,
    together: bool, eps: float, momentum: float, scratch: Array, lo: int, hi: int,
) -> None:  # fmt: skip
    """`use` says what to do with `mean` and `var`."""
    phase, parts = lo >> PHASE_BITS, scratch.view(np.float64)
    phase += 1 if use == FIXED else 0  # nothing is measured
    for unit in range(lo & UNIT_MASK, hi & UNIT_MASK):
        if phase == 0 and not together:
            _measure(parts, x, unit, space)
        elif phase == 2:
            r = _group_of(unit, step, jump, count)
            _write(out, stats, x, weight, bias, affine, unit, r, channels, space, eps)
        else:
            if use == FIXED:
                stats[unit], stats[channels + unit] = mean[unit], var[unit]
            elif together:
                for s in range(count):
                    _measure(parts, x, unit * step + s * jump, space)
            if use != FIXED:
                _combine(stats, parts, unit, step, jump, count, space)
            if use == MOVED:
                _move(mean, var, stats, unit, count * space, momentum)
            if together:
                for s in range(count):
                    p = unit * step + s * jump
                    _write(out, stats, x, weight, bias, affine, p, unit, channels, space, eps)


def plain_planes(
    out: Array, stats: Array, x: Array, channels: int, space: int, step: int, jump: int,
    count: int, together: bool, eps: float, scratch: Array, lo: int, hi: int,
) -> None:  # fmt: skip
    """Without weight and bias."""
    _forward(
        out, stats, x, x, x, x, x, False, UNUSED, channels, space, step, jump, count, together,
        eps, 0.0, scratch, lo, hi,
    )  # fmt: skip


def affine_planes(
    out: Array, stats: Array, x: Array, weight: Array, bias: Array, channels: int, space: int,
    step: int, jump: int, count: int, together: bool, eps: float, scratch: Array, lo: int, hi: int,
) -> None:  # fmt: skip
    """With both."""
    _forward(
        out, stats, x, weight, bias, x, x, True, UNUSED, channels, space, step, jump, count,
        together, eps, 0.0, scratch, lo, hi,
    )  # fmt: skip


def moving_planes(
    out: Array, stats: Array, x: Array, weight: Array, bias: Array, mean: Array, var: Array,
    channels: int, space: int, step: int, jump: int, count: int, together: bool, eps: float,
    momentum: float, scratch: Array, lo: int, hi: int,
) -> None:  # fmt: skip
    """With both; the running mean and variance move towards the batch's."""
    _forward(
        out, stats, x, weight, bias, mean, var, True, MOVED, channels, space, step, jump, count,
        together, eps, momentum, scratch, lo, hi,
    )  # fmt: skip


def fixed_planes(
    out: Array, stats: Array, x: Array, weight: Array, bias: Array, mean: Array, var: Array,
    channels: int, space: int, step: int, jump: int, count: int, together: bool, eps: float,
    scratch: Array, lo: int, hi: int,
) -> None:  # fmt: skip
    """With both, by the mean and variance that are given."""
    _forward(
        out, stats, x, weight, bias, mean, var, True, FIXED, channels, space, step, jump, count,
        together, eps, 0.0, scratch, lo, hi,
    )  # fmt: skip


def _slope(parts: Array, g: Array, x: Array, stats: Array, p: int, r: int, space: int) -> None:
    gs, xs = g[p * space : (p + 1) * space], x[p * space : (p + 1) * space]
    parts[2 * p], parts[2 * p + 1] = _slopes(gs, xs, stats[r])


def _average(
    parts: Array, stats: Array, weight: Array, weighted: bool, r: int, channels: int, space: int,
    step: int, jump: int, count: int, fixed: bool, eps: float,
) -> None:  # fmt: skip
    """The averages of h and of h * (x - mean) / (var + eps), h = g * weight, of group r; 0 where
    the mean and variance do not depend on x.
    """
    plain, slanted, groups = 0.0, 0.0, len(stats) // 2
    for s in range(count):
        p = r * step + s * jump
        w = float(weight[p % channels]) if weighted else 1.0
        plain += parts[2 * p] * w
        slanted += parts[2 * p + 1] * w
    at, share = len(parts) - 2 * groups + 2 * r, 0.0 if fixed else 1.0 / (count * space)
    parts[at] = plain * share
    parts[at + 1] = slanted * share / (stats[groups + r] + eps)


def _write_back(
    out: Array, g: Array, x: Array, stats: Array, parts: Array, weight: Array, weighted: bool,
    p: int, r: int, channels: int, space: int, eps: float,
) -> None:  # fmt: skip
    real, groups = out.dtype.type, len(stats) // 2
    gs, xs = g[p * space : (p + 1) * space], x[p * space : (p + 1) * space]
    os = out[p * space : (p + 1) * space]
    at = len(parts) - 2 * groups + 2 * r
    scale = 1.0 / np.sqrt(stats[groups + r] + eps)
    middle, factor = stats[r], real(scale * weight[p % channels] if weighted else scale)
    base, slope = real(scale * parts[at]), real(scale * parts[at + 1])
    _result_back(os, gs, xs, middle, factor, base, slope)


def _channel(
    dw: Array, db: Array, parts: Array, stats: Array, c: int, channels: int, step: int, jump: int,
    count: int, planes: int, eps: float,
) -> None:  # fmt: skip
    w, b = 0.0, 0.0
    for p in range(c, planes, channels):
        r = _group_of(p, step, jump, count)
        w += parts[2 * p + 1] / np.sqrt(stats[len(stats) // 2 + r] + eps)
        b += parts[2 * p]
    dw[c], db[c] = w, b


def _backward(
    out: Array, dw: Array, db: Array, g: Array, x: Array, stats: Array, weight: Array,
    weighted: bool, channels: int, space: int, step: int, jump: int, count: int, together: bool,
    fixed: bool, eps: float, scratch: Array, lo: int, hi: int,
) -> None:  # fmt: skip
    """The last phase works on channels: their dw and db."""
    phase, parts, groups = lo >> PHASE_BITS, scratch.view(np.float64), len(stats) // 2
    for unit in range(lo & UNIT_MASK, hi & UNIT_MASK):
        if together and phase == 0:
            for s in range(count):
                _slope(parts, g, x, stats, unit * step + s * jump, unit, space)
            _average(
                parts, stats, weight, weighted, unit, channels, space, step, jump, count, fixed,
                eps,
            )  # fmt: skip
            for s in range(count):
                p = unit * step + s * jump
                _write_back(
                    out, g, x, stats, parts, weight, weighted, p, unit, channels, space, eps
                )
        elif phase == (1 if together else 3):
            _channel(dw, db, parts, stats, unit, channels, step, jump, count, groups * count, eps)
        elif phase == 1:
            _average(
                parts, stats, weight, weighted, unit, channels, space, step, jump, count, fixed,
                eps,
            )  # fmt: skip
        else:
            r = _group_of(unit, step, jump, count)
            if phase == 0:
                _slope(parts, g, x, stats, unit, r, space)
            else:
                _write_back(
                    out, g, x, stats, parts, weight, weighted, unit, r, channels, space, eps
                )


def plain_planes_backward(
    out: Array, g: Array, x: Array, stats: Array, channels: int, space: int, step: int, jump: int,
    count: int, together: bool, fixed: bool, eps: float, scratch: Array, lo: int, hi: int,
) -> None:  # fmt: skip
    """dx where there is no weight."""
    _backward(
        out, g, g, g, x, stats, g, False, channels, space, step, jump, count, together, fixed, eps,
        scratch, lo, hi,
    )  # fmt: skip


def planes_backward(
    out: Array, dw: Array, db: Array, g: Array, x: Array, stats: Array, weight: Array,
    channels: int, space: int, step: int, jump: int, count: int, together: bool, fixed: bool,
    eps: float, scratch: Array, lo: int, hi: int,
) -> None:  # fmt: skip
    """dx, dw and db."""
    _backward(
        out, dw, db, g, x, stats, weight, True, channels, space, step, jump, count, together,
        fixed, eps, scratch, lo, hi,
    )  # fmt: skip
