"""The kernels of cross_entropy and nll_loss: the loss of each row, and in the same instruction
their sum or mean.

Logits are (count, n, inner): row (o, i) has its n logits `inner` apart, and rows are numbered as
targets are.  Where inner is 1 a unit is a block of `size` rows, else a stripe of `size` rows side
by side.  With a reduction, units leave their sums of losses and weights in scratch, and phase 1, of
one unit, adds them up; so the result depends on the shape alone.

`notes` are for the gradient: of each row its top, then of each its level, then what the sum of the
losses was divided by.  What a row's loss and gradient are is in `class_loss_rules`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from flowvm.errors import Status
from flowvm.launch import PHASE_BITS
from flowvm.ops.rows.cpu.row_bodies import FEW, SHORT, rows_body
from flowvm.ops.rows.cpu.row_code import result_of, run_of, short_results_of
from flowvm.ops.rows.cpu.runs import sum_of
from flowvm.ops.rows.cpu.stripes import stripe_of, stripe_result
from flowvm.ops.rows.parts.class_loss_rules import (
    ENTROPY_BACKWARD,
    WEIGHTED_ENTROPY_BACKWARD,
    entropy_of,
    factor_and_off,
    is_class,
    likelihood_gradient,
    likelihood_of,
    reduced_loss,
    smoothing_of,
    target_gradient,
)
from flowvm.ops.rows.parts.softmax_programs import APART, LEVELS, WEIGHTED_APART

Array = Any
BAD = int(Status.INDEX_OUT_OF_RANGE)
BLOCK = SHORT  # logits that the arena has room for
NONE, MEAN, SUM = 0, 1, 2  # how losses are reduced
_levels, _stripe_levels = rows_body(LEVELS), stripe_of(LEVELS)
_apart, _stripe_apart = run_of(APART), stripe_of(APART)
_weighted_apart, _stripe_weighted_apart = run_of(WEIGHTED_APART), stripe_of(WEIGHTED_APART)
_back, _short_back = result_of(ENTROPY_BACKWARD), short_results_of(ENTROPY_BACKWARD)
_stripe_back = stripe_result(ENTROPY_BACKWARD)[0]
_weighted_back = result_of(WEIGHTED_ENTROPY_BACKWARD)
_weighted_short_back = short_results_of(WEIGHTED_ENTROPY_BACKWARD)
_weighted_stripe_back = stripe_result(WEIGHTED_ENTROPY_BACKWARD)[0]


class Rows(NamedTuple):
    """Logits are (count, n, inner), a unit is `size` rows; how they are reduced, the target that is
    ignored, and label_smoothing.
    """

    n: int
    inner: int
    size: int
    reduction: int
    ignored: int
    smoothing: float


def _sum_up(loss: Array, notes: Array, sums: Array, reduction: int) -> None:
    """Phase 1."""
    total, weights = 0.0, 0.0
    for u in range(len(sums) // 2):
        total += sums[2 * u]
        weights += sums[2 * u + 1]
    loss[0], notes[len(notes) - 1] = reduced_loss(total, weights, reduction == MEAN)


# --- cross entropy --------------------------------------------------------------------------------


def _entropy(
    loss: Array, notes: Array, x: Array, target: Array, weight: Array, weighted: bool, t: Rows,
    scratch: Array, arena: Array, lo: int, hi: int, details: Array,
) -> int:  # fmt: skip
    real, rows, n, inner, size = x.dtype.type, len(target), t.n, t.inner, t.size
    ignored, smoothing, reduction = t.ignored, t.smoothing, t.reduction
    sums, offs = scratch.view(np.float64), arena.view(x.dtype)
    if lo >> PHASE_BITS == 1:
        _sum_up(loss, notes, sums, reduction)
        return 0
    if reduction == NONE and lo == 0:
        notes[2 * rows] = 1
    keep, spread = real(1 - smoothing), real(smoothing / n)
    stripes = (inner + size - 1) // size
    whole = sum_of(weight) if weighted else real(n)
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
            i, c, value = first + k, target[first + k], real(0)
            if c != ignored:
                if not is_class(c, n):
                    details[0], details[1], details[2] = c, n, 1
                    return BAD
                top, level = notes[i], notes[rows + i]
                w = weight[c] if weighted else real(1)
                value = entropy_of(x[at + k * step + c * base], top, level, w, keep)
                if smoothing != 0:
                    if inner != 1:
                        off = offs[k]
                    elif weighted:
                        off = _weighted_apart(x[at + k * n : at + k * n + n], weight, top)
                    else:
                        off = _apart(x[at + k * n : at + k * n + n], top)
                    value += smoothing_of(level, off, whole, spread)
                total += value
                weights += w
            if reduction == NONE:
                loss[i] = value
        if reduction != NONE:
            sums[2 * unit], sums[2 * unit + 1] = total, weights
    return 0


def entropy(
    loss: Array, notes: Array, x: Array, target: Array, t: Rows, scratch: Array, arena: Array,
    lo: int, hi: int, details: Array,
) -> int:  # fmt: skip
    """Without weights."""
    return _entropy(loss, notes, x, target, x, False, t, scratch, arena, lo, hi, details)


def weighted_entropy(
    loss: Array, notes: Array, x: Array, target: Array, weight: Array, t: Rows, scratch: Array,
    arena: Array, lo: int, hi: int, details: Array,
) -> int:  # fmt: skip
    """With a weight for each class."""
    return _entropy(loss, notes, x, target, weight, True, t, scratch, arena, lo, hi, details)


def _entropy_backward(
    out: Array, g: Array, x: Array, target: Array, notes: Array, weight: Array, weighted: bool,
    t: Rows, arena: Array, lo: int, hi: int,
) -> None:  # fmt: skip
    real, rows, n, inner, size = x.dtype.type, len(target), t.n, t.inner, t.size
    ignored, smoothing, one = t.ignored, t.smoothing, len(g) == 1
    keep, spread = real(1 - smoothing), real(smoothing / n)
    whole = sum_of(weight) if weighted else real(n)
    stripes, divisor = (inner + size - 1) // size, notes[2 * rows]
    own = arena.view(x.dtype)
    for unit in range(lo, hi):
        if inner == 1:
            first, count = unit * size, min(size, rows - unit * size)
            step, at, base = n, first * n, 1
        else:
            first = unit // stripes * inner + unit % stripes * size
            count = min(size, inner - unit % stripes * size)
            step, at, base = 1, unit // stripes * n * inner + unit % stripes * size, inner
        factors, offs, scales = own[:count], own[size:][:count], own[2 * size :][:count]
        for k in range(count):
            c, scale, w = target[first + k], real(0), real(1)
            if c != ignored:
                scale = g[0 if one else first + k] / divisor
                w = weight[c] if weighted else w
            factors[k], offs[k] = factor_and_off(scale, w, whole, keep, spread)
            scales[k] = scale
        tops, logs = notes[first : first + count], notes[rows + first : rows + first + count]
        _logits_back(out, x, weight, weighted, tops, logs, factors, offs, first, at, n, inner)
        for k in range(count):
            c = target[first + k]
            if c != ignored:
                w = weight[c] if weighted else real(1)
                out[at + k * step + c * base] -= target_gradient(scales[k], w, keep)


def _logits_back(
    out: Array, x: Array, weight: Array, weighted: bool, tops: Array, logs: Array, factors: Array,
    offs: Array, first: int, at: int, n: int, inner: int,
) -> None:  # fmt: skip
    """The gradients of logits, as if none were of a target."""
    if inner != 1:
        if weighted:
            _weighted_stripe_back(out, x, weight, tops, logs, factors, offs, at, n, inner)
        else:
            _stripe_back(out, x, tops, logs, factors, offs, at, n, inner)
    elif n <= FEW:
        if weighted:
            _weighted_short_back(out, x, weight, tops, logs, factors, offs, first, n)
        else:
            _short_back(out, x, tops, logs, factors, offs, first, n)
    else:
        for k in range(len(tops)):
            xs, os = x[at + k * n : at + k * n + n], out[at + k * n : at + k * n + n]
            if weighted:
                _weighted_back(os, xs, weight, tops[k], logs[k], factors[k], offs[k])
            else:
                _back(os, xs, tops[k], logs[k], factors[k], offs[k])


def entropy_backward(
    out: Array, g: Array, x: Array, target: Array, notes: Array, t: Rows, arena: Array,
    lo: int, hi: int,
) -> None:  # fmt: skip
    """Without weights."""
    _entropy_backward(out, g, x, target, notes, x, False, t, arena, lo, hi)


def weighted_entropy_backward(
    out: Array, g: Array, x: Array, target: Array, notes: Array, weight: Array, t: Rows,
    arena: Array, lo: int, hi: int,
) -> None:  # fmt: skip
    """With a weight for each class."""
    _entropy_backward(out, g, x, target, notes, weight, True, t, arena, lo, hi)


# --- negative log likelihood: units are blocks of `size` targets ----------------------------------


def likelihood(
    loss: Array, notes: Array, x: Array, target: Array, weight: Array, t: Rows, scratch: Array,
    lo: int, hi: int, details: Array,
) -> int:  # fmt: skip
    """A call may lack a weight for each class."""
    sums, n, inner, size, ignored = scratch.view(np.float64), t.n, t.inner, t.size, t.ignored
    reduction, weighted = t.reduction, len(weight) > 0
    if lo >> PHASE_BITS == 1:
        _sum_up(loss, notes, sums, reduction)
        return 0
    if reduction == NONE and lo == 0:
        notes[0] = 1
    for unit in range(lo, hi):
        total, weights = 0.0, 0.0
        for i in range(unit * size, min((unit + 1) * size, len(target))):
            c, value = target[i], x.dtype.type(0)
            if c != ignored:
                if not is_class(c, n):
                    details[0], details[1], details[2] = c, n, 1
                    return BAD
                w = weight[c] if weighted else x.dtype.type(1)
                if inner == 1:  # spares two divisions
                    value = likelihood_of(x[i * n + c], w)
                else:
                    value = likelihood_of(x[(i // inner * n + c) * inner + i % inner], w)
                total += value
                weights += w
            if reduction == NONE:
                loss[i] = value
        if reduction != NONE:
            sums[2 * unit], sums[2 * unit + 1] = total, weights
    return 0


def likelihood_backward(
    out: Array, g: Array, target: Array, notes: Array, weight: Array, t: Rows, lo: int, hi: int
) -> None:
    """Units are samples.  The targets have been checked by the forward pass."""
    divisor, n, inner, ignored, one = notes[0], t.n, t.inner, t.ignored, len(g) == 1
    for o in range(lo, hi):
        plane = out[o * n * inner : (o + 1) * n * inner]
        for j in range(len(plane)):
            plane[j] = 0
        for j in range(inner):
            c = target[o * inner + j]
            if c != ignored:
                w = weight[c] if len(weight) > 0 else out.dtype.type(1)
                scale = g[0 if one else o * inner + j] / divisor
                plane[c * inner + j] = likelihood_gradient(scale, w)
