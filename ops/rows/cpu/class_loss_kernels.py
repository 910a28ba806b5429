"""The kernels of cross_entropy and nll_loss: the loss of each row, and in the same instruction
their sum or mean.

Logits are (count, n, inner): row (o, i) has its n logits `inner` apart, and rows are numbered as
targets are.  Where inner is 1 a unit is a block of `tall` rows, else a stripe of `width` rows side
by side.  With a reduction, units leave their sums of losses and weights in scratch, and phase 1, of
one unit, adds them up; so the result depends on the shape alone.

`notes` are for the gradient: of each row the maximum, then of each the logarithm of the sum of
exp(x - maximum), then what the sum of the losses was divided by.  Kept apart they are exact where
their sum would lose the logarithm to a large maximum.

A row counts w = weight[target], 1 without weights, and its loss, with s for label_smoothing, is
(1 - s) w (log(sum) - x[target]) + s / n sum(weight (log(sum) - x)).

Long because each loss stands with its gradient, both with and without weights.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flowvm.errors import Status
from flowvm.launch import PHASE_BITS
from flowvm.ops.rows.cpu.row_bodies import FEW, SHORT, rows_body, run_of
from flowvm.ops.rows.cpu.row_stripes import stripe_of
from flowvm.ops.rows.cpu.runs import sum_of
from flowvm.ops.rows.parts.softmax_programs import APART, LEVELS, WEIGHTED_APART
from flowvm.ops.scalar.decay import decay

Array = Any
BAD = int(Status.INDEX_OUT_OF_RANGE)
BLOCK = SHORT  # logits that the arena has room for
_levels, _stripe_levels = rows_body(LEVELS), stripe_of(LEVELS)
_apart, _stripe_apart = run_of(APART), stripe_of(APART)
_weighted_apart, _stripe_weighted_apart = run_of(WEIGHTED_APART), stripe_of(WEIGHTED_APART)


def _sum_up(loss: Array, notes: Array, sums: Array, mean: bool) -> None:
    """Phase 1."""
    total, weights = 0.0, 0.0
    for u in range(len(sums) // 2):
        total += sums[2 * u]
        weights += sums[2 * u + 1]
    divisor = weights if mean else 1.0
    notes[len(notes) - 1] = divisor
    loss[0] = total / divisor


def _entropy(
    loss: Array, notes: Array, x: Array, target: Array, weight: Array, weighted: bool,
    n: int, inner: int, size: int, reduction: int, ignored: int, smoothing: float,
    scratch: Array, arena: Array, lo: int, hi: int, details: Array,
) -> int:  # fmt: skip
    """`size` is `tall` or `width`."""
    real, rows = x.dtype.type, len(target)
    sums, offs = scratch.view(np.float64), arena.view(x.dtype)
    if lo >> PHASE_BITS == 1:
        _sum_up(loss, notes, sums, reduction == 1)
        return 0
    if reduction == 0 and lo == 0:
        notes[2 * rows] = 1
    keep, spread = real(1 - smoothing), real(smoothing / n)
    stripes = (inner + size - 1) // size
    everything = sum_of(weight) if weighted else real(n)
    for unit in range(lo, hi):
        if inner == 1:
            first, count = unit * size, min(size, rows - unit * size)
            step, at, base = n, first * n, 1
            _levels(notes, x, n, arena, first, first + count)
        else:
            outer, column = unit // stripes, unit % stripes * size
            first, count = outer * inner + column, min(size, inner - column)
            step, at, base = 1, outer * n * inner + column, inner
            tops, logs = notes[first : first + count], notes[rows + first : rows + first + count]
            _stripe_levels(x, tops, logs, logs, at, n, inner)
            if smoothing != 0 and weighted:
                _stripe_weighted_apart(x, weight, tops, offs[:count], at, n, inner)
            elif smoothing != 0:
                _stripe_apart(x, tops, offs[:count], at, n, inner)
        total, weights = 0.0, 0.0
        for k in range(count):
            i, t, value = first + k, target[first + k], real(0)
            if t != ignored:
                if t < 0 or t >= n:
                    details[0], details[1], details[2] = t, n, 1
                    return BAD
                top, level = notes[i], notes[rows + i]
                w = weight[t] if weighted else real(1)
                value = keep * w * (level - (x[at + k * step + t * base] - top))
                if smoothing != 0:
                    if inner != 1:
                        off = offs[k]
                    elif weighted:
                        off = _weighted_apart(x[at + k * n : at + k * n + n], weight, top)
                    else:
                        off = _apart(x[at + k * n : at + k * n + n], top)
                    value += spread * (everything * level - off)
                total += value
                weights += w
            if reduction == 0:
                loss[i] = value
        if reduction != 0:
            sums[2 * unit], sums[2 * unit + 1] = total, weights
    return 0


def entropy(
    loss: Array, notes: Array, x: Array, target: Array,
    n: int, inner: int, size: int, reduction: int, ignored: int, smoothing: float,
    scratch: Array, arena: Array, lo: int, hi: int, details: Array,
) -> int:  # fmt: skip
    """Without weights."""
    return _entropy(
        loss, notes, x, target, x, False, n, inner, size, reduction, ignored, smoothing, scratch,
        arena, lo, hi, details,
    )  # fmt: skip


def weighted_entropy(
    loss: Array, notes: Array, x: Array, target: Array, weight: Array,
    n: int, inner: int, size: int, reduction: int, ignored: int, smoothing: float,
    scratch: Array, arena: Array, lo: int, hi: int, details: Array,
) -> int:  # fmt: skip
    """With a weight for each class."""
    return _entropy(
        loss, notes, x, target, weight, True, n, inner, size, reduction, ignored, smoothing,
        scratch, arena, lo, hi, details,
    )  # fmt: skip


# --- the gradient: g / divisor (share * softmax(x) - s / n weight), at the target less (1 - s) w --


def _entropy_backward(
    out: Array, g: Array, x: Array, target: Array, notes: Array, weight: Array, weighted: bool,
    n: int, inner: int, size: int, ignored: int, smoothing: float, arena: Array, lo: int, hi: int,
) -> None:  # fmt: skip
    real, rows = x.dtype.type, len(target)
    keep, spread = real(1 - smoothing), real(smoothing / n)
    everything = sum_of(weight) if weighted else real(n)
    stripes = (inner + size - 1) // size
    own = arena.view(x.dtype)
    for unit in range(lo, hi):
        if inner == 1:
            first, count = unit * size, min(size, rows - unit * size)
        else:
            first = unit // stripes * inner + unit % stripes * size
            count = min(size, inner - unit % stripes * size)
        scale, share = own[:count], own[size : size + count]
        for k in range(count):
            t = target[first + k]
            each = g[first + k if len(g) > 1 else 0] / notes[2 * rows]
            scale[k], share[k] = real(0), real(0)
            if t != ignored:
                scale[k] = each
                share[k] = keep * (weight[t] if weighted else real(1)) + spread * everything
        if inner == 1:
            _fill_rows(out, x, notes, scale, share, weight, weighted, n, first, spread)
            step, at, base = n, first * n, 1
        else:
            at = unit // stripes * n * inner + unit % stripes * size
            _fill_columns(
                out, x, notes, scale, share, weight, weighted, n, inner, first, at, spread
            )
            step, base = 1, inner
        for k in range(count):
            t = target[first + k]
            if t != ignored:
                w = weight[t] if weighted else real(1)
                out[at + k * step + t * base] -= keep * w * scale[k]


def _fill_rows(
    out: Array, x: Array, notes: Array, scale: Array, share: Array, weight: Array, weighted: bool,
    n: int, first: int, spread: Any,
) -> None:  # fmt: skip
    count, rows, short = len(scale), len(notes) // 2, n <= FEW
    for k in range(count):
        i = first + k
        xs, os = x[i * n : i * n + n], out[i * n : i * n + n]
        top, level, factor = notes[i], notes[rows + i], scale[k] * share[k]
        if short:
            for j in range(n):
                os[j] = (xs[j] - top) - level
        else:
            off = scale[k] * spread
            if weighted:
                for j in range(n):
                    os[j] = decay((xs[j] - top) - level) * factor - off * weight[j]
            else:
                for j in range(n):
                    os[j] = decay((xs[j] - top) - level) * factor - off
    if short:
        block = out[first * n : (first + count) * n]
        for j in range(len(block)):
            block[j] = decay(block[j])
        for k in range(count):
            os = block[k * n : k * n + n]
            factor, off = scale[k] * share[k], scale[k] * spread
            for j in range(n):
                os[j] = os[j] * factor - (off * weight[j] if weighted else off)


def _fill_columns(
    out: Array, x: Array, notes: Array, scale: Array, share: Array, weight: Array, weighted: bool,
    n: int, inner: int, first: int, at: int, spread: Any,
) -> None:  # fmt: skip
    count, rows = len(scale), len(notes) // 2
    tops, logs = notes[first : first + count], notes[rows + first : rows + first + count]
    for c in range(n):
        xs = x[at + c * inner : at + c * inner + count]
        os = out[at + c * inner : at + c * inner + count]
        off = spread * weight[c] if weighted else spread
        for k in range(count):
            os[k] = (decay((xs[k] - tops[k]) - logs[k]) * share[k] - off) * scale[k]


def entropy_backward(
    out: Array, g: Array, x: Array, target: Array, notes: Array,
    n: int, inner: int, size: int, ignored: int, smoothing: float, arena: Array, lo: int, hi: int,
) -> None:  # fmt: skip
    """Without weights."""
    _entropy_backward(
        out, g, x, target, notes, x, False, n, inner, size, ignored, smoothing, arena, lo, hi
    )


def weighted_entropy_backward(
    out: Array, g: Array, x: Array, target: Array, notes: Array, weight: Array,
    n: int, inner: int, size: int, ignored: int, smoothing: float, arena: Array, lo: int, hi: int,
) -> None:  # fmt: skip
    """With a weight for each class."""
    _entropy_backward(
        out, g, x, target, notes, weight, True, n, inner, size, ignored, smoothing, arena, lo, hi
    )


# --- negative log likelihood: units are blocks of `tall` targets ----------------------------------


def _likelihood(
    loss: Array, notes: Array, x: Array, target: Array, weight: Array, weighted: bool,
    n: int, inner: int, tall: int, reduction: int, ignored: int,
    scratch: Array, lo: int, hi: int, details: Array,
) -> int:  # fmt: skip
    sums = scratch.view(np.float64)
    if lo >> PHASE_BITS == 1:
        _sum_up(loss, notes, sums, reduction == 1)
        return 0
    if reduction == 0 and lo == 0:
        notes[0] = 1
    for unit in range(lo, hi):
        total, weights = 0.0, 0.0
        for i in range(unit * tall, min((unit + 1) * tall, len(target))):
            t, value = target[i], x.dtype.type(0)
            if t != ignored:
                if t < 0 or t >= n:
                    details[0], details[1], details[2] = t, n, 1
                    return BAD
                w = weight[t] if weighted else x.dtype.type(1)
                if inner == 1:  # spares two divisions
                    value = -(x[i * n + t] * w)
                else:
                    value = -(x[(i // inner * n + t) * inner + i % inner] * w)
                total += value
                weights += w
            if reduction == 0:
                loss[i] = value
        if reduction != 0:
            sums[2 * unit], sums[2 * unit + 1] = total, weights
    return 0


def likelihood(
    loss: Array, notes: Array, x: Array, target: Array, n: int, inner: int, tall: int,
    reduction: int, ignored: int, scratch: Array, lo: int, hi: int, details: Array,
) -> int:  # fmt: skip
    """Without weights."""
    return _likelihood(
        loss, notes, x, target, x, False, n, inner, tall, reduction, ignored, scratch, lo, hi,
        details,
    )  # fmt: skip


def weighted_likelihood(
    loss: Array, notes: Array, x: Array, target: Array, weight: Array, n: int, inner: int,
    tall: int, reduction: int, ignored: int, scratch: Array, lo: int, hi: int, details: Array,
) -> int:  # fmt: skip
    """With a weight for each class."""
    return _likelihood(
        loss, notes, x, target, weight, True, n, inner, tall, reduction, ignored, scratch, lo, hi,
        details,
    )  # fmt: skip


def _place(
    out: Array, g: Array, target: Array, notes: Array, weight: Array, weighted: bool, n: int,
    inner: int, ignored: int, lo: int, hi: int,
) -> None:  # fmt: skip
    """Units are samples.  The targets have been checked by the forward pass."""
    divisor = notes[0]
    for o in range(lo, hi):
        plane = out[o * n * inner : (o + 1) * n * inner]
        for j in range(len(plane)):
            plane[j] = 0
        for j in range(inner):
            t = target[o * inner + j]
            if t != ignored:
                value = g[o * inner + j if len(g) > 1 else 0] / divisor
                plane[t * inner + j] = -(value * weight[t] if weighted else value)


def likelihood_backward(
    out: Array, g: Array, target: Array, notes: Array, n: int, inner: int, ignored: int,
    lo: int, hi: int,
) -> None:  # fmt: skip
    """Without weights."""
    _place(out, g, target, notes, g, False, n, inner, ignored, lo, hi)


def weighted_likelihood_backward(
    out: Array, g: Array, target: Array, notes: Array, weight: Array, n: int, inner: int,
    ignored: int, lo: int, hi: int,
) -> None:  # fmt: skip
    """With a weight for each class."""
    _place(out, g, target, notes, weight, True, n, inner, ignored, lo, hi)
