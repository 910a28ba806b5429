"""The kernels of normalisation by mean and variance: layer, batch, group, instance and RMS norm.

They differ in what is averaged together, a group, and in which weight an element has; a `_Groups`
says both in strides.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from flowvm.meta import TensorMeta
from flowvm.ops.rows import centered_dot, squares_of, sum_of

Array = Any
COLUMNS = 64  # weights of a layer norm that one unit sums gradients for


class _Groups(NamedTuple):
    """`groups` groups: group r is `segments` runs of `inner` elements, from r * step on, `jump`
    apart.

    Element j of a segment has weight r % period * each + j // run.
    """

    groups: int
    segments: int
    inner: int
    step: int
    jump: int
    period: int
    each: int
    run: int


def _groups(x: TensorMeta, kind: str, size: int) -> _Groups:
    """kind "layer": `size` trailing elements; "batch": each channel; "group": `size` groups of
    channels in each sample.
    """
    if kind == "layer":
        return _Groups(x.numel // size if size else 0, 1, size, size, 0, 1, 0, 1)
    samples, channels = x.shape[0], x.shape[1]
    space = math.prod(x.shape[2:])
    if kind == "batch":
        return _Groups(
            channels, samples, space, space, channels * space, channels, 1, max(space, 1)
        )
    each = channels // size
    n = each * space
    return _Groups(samples * size, 1, n, n, 0, size, each, max(space, 1))


def _cube(
    x: TensorMeta, kind: str, size: int
) -> tuple[tuple[int, int, int], tuple[int, ...], tuple[int, ...]]:
    """The shape in which groups are dimensions, the dimensions that are averaged, and the shape of
    the averages.
    """
    groups = _groups(x, kind, size)
    if kind == "batch":
        return (groups.segments, groups.groups, groups.inner), (0, 2), (1, groups.groups, 1)
    return (groups.groups, 1, groups.inner), (2,), (groups.groups, 1, 1)


# --- kernels -----------------------------------------------------------------------------------


def _forward(
    out: Array, mean: Array, var: Array, x: Array, weight: Array, bias: Array, affine: bool,
    segments: int, inner: int, step: int, jump: int, period: int, each: int, run: int,
    eps: float, center: bool, lo: int, hi: int,
) -> None:  # fmt: skip
    real = out.dtype.type
    for r in range(lo, hi):
        middle, total = real(0), 0.0
        if center:
            for s in range(segments):
                at = r * step + s * jump
                total += sum_of(x[at : at + inner])
            middle, total = real(total / (segments * inner)), 0.0
        for s in range(segments):
            at = r * step + s * jump
            total += squares_of(x[at : at + inner], middle)
        total /= segments * inner
        mean[r], var[r] = middle, total
        scale = real(1.0 / np.sqrt(total + eps))
        first = r % period * each
        for s in range(segments):
            at = r * step + s * jump
            if not affine:
                xs, ys = x[at : at + inner], out[at : at + inner]
                for j in range(inner):
                    ys[j] = (xs[j] - middle) * scale
            elif run == 1:
                xs, ys = x[at : at + inner], out[at : at + inner]
                ws, bs = weight[first : first + inner], bias[first : first + inner]
                for j in range(inner):
                    ys[j] = (xs[j] - middle) * scale * ws[j] + bs[j]
            else:
                for q in range(inner // run):
                    xs, ys = (
                        x[at + q * run : at + (q + 1) * run],
                        out[at + q * run : at + (q + 1) * run],
                    )
                    factor, shift = scale * weight[first + q], bias[first + q]
                    for j in range(run):
                        ys[j] = (xs[j] - middle) * factor + shift


def _plain_body(
    out: Array, mean: Array, var: Array, x: Array,
    segments: int, inner: int, step: int, jump: int, period: int, each: int, run: int,
    eps: float, center: bool, lo: int, hi: int,
) -> None:  # fmt: skip
    _forward(
        out, mean, var, x, x, x, False, segments, inner, step, jump, period, each, run, eps, center,
        lo, hi,
    )  # fmt: skip


def _affine_body(
    out: Array, mean: Array, var: Array, x: Array, weight: Array, bias: Array,
    segments: int, inner: int, step: int, jump: int, period: int, each: int, run: int,
    eps: float, center: bool, lo: int, hi: int,
) -> None:  # fmt: skip
    _forward(
        out, mean, var, x, weight, bias, True, segments, inner, step, jump, period, each, run, eps,
        center,
        lo, hi,
    )  # fmt: skip


def _backward(
    out: Array, g: Array, x: Array, mean: Array, var: Array, weight: Array, weighted: bool,
    segments: int, inner: int, step: int, jump: int, period: int, each: int, run: int,
    eps: float, center: bool, lo: int, hi: int,
) -> None:  # fmt: skip
    """D(g * weight).  `out` holds g * weight until the averages are known."""
    real = out.dtype.type
    for r in range(lo, hi):
        middle, scale = mean[r], real(1.0 / np.sqrt(var[r] + eps))
        first = r % period * each
        plain, slanted = 0.0, 0.0
        for s in range(segments):
            at = r * step + s * jump
            for q in range(inner // run if run > 1 else 1):
                length = run if run > 1 else inner
                start = at + q * length
                gs, os = g[start : start + length], out[start : start + length]
                if not weighted:
                    for j in range(length):
                        os[j] = gs[j]
                elif run > 1:
                    factor = weight[first + q]
                    for j in range(length):
                        os[j] = gs[j] * factor
                else:
                    ws = weight[first : first + length]
                    for j in range(length):
                        os[j] = gs[j] * ws[j]
            if center:
                plain += sum_of(out[at : at + inner])
            slanted += centered_dot(out[at : at + inner], x[at : at + inner], middle)
        base = real(plain / (segments * inner))
        slope = real(slanted / (segments * inner)) * scale * scale
        for s in range(segments):
            at = r * step + s * jump
            xs, os = x[at : at + inner], out[at : at + inner]
            for j in range(inner):
                os[j] = scale * (os[j] - base - (xs[j] - middle) * slope)


def _plain_backward_body(
    out: Array, g: Array, x: Array, mean: Array, var: Array,
    segments: int, inner: int, step: int, jump: int, period: int, each: int, run: int,
    eps: float, center: bool, lo: int, hi: int,
) -> None:  # fmt: skip
    _backward(
        out, g, x, mean, var, g, False, segments, inner, step, jump, period, each, run, eps, center,
        lo, hi,
    )  # fmt: skip


def _weighted_backward_body(
    out: Array, g: Array, x: Array, mean: Array, var: Array, weight: Array,
    segments: int, inner: int, step: int, jump: int, period: int, each: int, run: int,
    eps: float, center: bool, lo: int, hi: int,
) -> None:  # fmt: skip
    _backward(
        out, g, x, mean, var, weight, True, segments, inner, step, jump, period, each, run, eps,
        center,
        lo, hi,
    )  # fmt: skip


def _column_sums_body(
    dw: Array, db: Array, g: Array, x: Array, mean: Array, var: Array, rows: int, n: int,
    eps: float, lo: int, hi: int,
) -> None:  # fmt: skip
    """Units are blocks of COLUMNS weights of a layer norm."""
    real = dw.dtype.type
    for unit in range(lo, hi):
        first, width = unit * COLUMNS, min(COLUMNS, n - unit * COLUMNS)
        ws, bs = dw[first : first + width], db[first : first + width]
        for j in range(width):
            ws[j] = 0
            bs[j] = 0
        for r in range(rows):
            at = r * n + first
            gs, xs = g[at : at + width], x[at : at + width]
            middle, scale = mean[r], real(1.0 / np.sqrt(var[r] + eps))
            for j in range(width):
                ws[j] += gs[j] * ((xs[j] - middle) * scale)
                bs[j] += gs[j]


def _channel_sums_body(
    dw: Array, db: Array, g: Array, x: Array, mean: Array, var: Array, count: int, channels: int,
    space: int, each: int, eps: float, lo: int, hi: int,
) -> None:  # fmt: skip
    """Units are channels.  `each`: the channels of a group, 0 where a channel is a group in all
    samples together.
    """
    for c in range(lo, hi):
        w, b = 0.0, 0.0
        for i in range(count):
            row = i * channels + c
            group = row // each if each else c
            gs, xs = g[row * space : (row + 1) * space], x[row * space : (row + 1) * space]
            w += centered_dot(gs, xs, mean[group]) / np.sqrt(var[group] + eps)
            b += sum_of(gs)
        dw[c], db[c] = w, b


def _update_body(
    running_mean: Array, running_var: Array, mean: Array, var: Array, unbias: float,
    momentum: float,
    lo: int, hi: int,
) -> None:  # fmt: skip
    for c in range(lo, hi):
        running_mean[c] += momentum * (mean[c] - running_mean[c])
        running_var[c] += momentum * (var[c] * unbias - running_var[c])
