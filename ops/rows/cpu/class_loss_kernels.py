"""The kernels of cross_entropy and nll_loss: the loss of each row, and in the same instruction
their sum or mean.

Those of cross entropy are written for a `Kind` of call: the first one compiles what it needs.

Logits are (count, n, inner): row (o, i) has its n logits `inner` apart, and rows are numbered as
targets are.  Where inner is 1 a unit is a block of `size` rows, else a stripe of `size` rows side
by side.  With a reduction, units leave their sums of losses and weights in scratch, and phase 1, of
one unit, adds them up; so the result depends on the shape alone.

`notes` are for the gradient: of each row its top, then of each its level, then what the sum of the
losses was divided by.  What a row's loss and gradient are is in `class_loss_rules`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from flowvm.errors import Status
from flowvm.launch import PHASE_BITS
from flowvm.meta.arrays import Array
from flowvm.ops.rows.cpu.row_bodies import FEW, SHORT, rows_body, short_body
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

WORDS_ONLY = True  # for flowvm.compiler.native
BAD = int(Status.INDEX_OUT_OF_RANGE)
BLOCK = SHORT  # logits that the arena has room for
NONE, MEAN, SUM = 0, 1, 2  # how losses are reduced


class Kind(NamedTuple):
    """The variant of a kernel of cross entropy.

    Rows are side by side (`inner` is not 1), or short; with weights, with label smoothing.
    """

    stripes: bool
    short: bool
    weighted: bool
    smoothed: bool

    @classmethod
    def of(cls, n: int, inner: int, weighted: bool, smoothing: float) -> Kind:
        return cls(inner != 1, inner == 1 and n <= FEW, weighted, smoothing != 0)


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


@functools.cache
def entropy_body(kind: Kind) -> Callable[..., int]:
    """body(loss, notes, x, target, [weight], t, scratch, arena, lo, hi, details)"""
    stripes, short, weighted, smoothed = kind
    levels, stripe_levels = (short_body if short else rows_body)(LEVELS), stripe_of(LEVELS)
    program = WEIGHTED_APART if weighted else APART
    apart, stripe_apart = run_of(program), stripe_of(program)

    def losses(
        loss: Array, notes: Array, x: Array, target: Array, weight: Array, t: Rows,
        scratch: Array, arena: Array, lo: int, hi: int, details: Array,
    ) -> int:  # fmt: skip
        real, rows, n, inner, size = x.dtype.type, len(target), t.n, t.inner, t.size
        ignored, smoothing, reduction = t.ignored, t.smoothing, t.reduction
        sums = scratch.view(np.float64)
        if lo >> PHASE_BITS == 1:
            _sum_up(loss, notes, sums, reduction)
            return 0
        if reduction == NONE and lo == 0:
            notes[2 * rows] = 1
        keep, spread = real(1 - smoothing), real(smoothing / n)
        if smoothed:
            whole = sum_of(weight) if weighted else real(n)
        for unit in range(lo, hi):
            if stripes:
                across = (inner + size - 1) // size
                outer, column = unit // across, unit % across * size
                first, count = outer * inner + column, min(size, inner - column)
                step, at, base = 1, outer * n * inner + column, inner
                tops = notes[first : first + count]
                logs = notes[rows + first : rows + first + count]
                stripe_levels(x, tops, logs, logs, at, n, inner)
                if smoothed:
                    offs = arena.view(x.dtype)[:count]
                    if weighted:
                        stripe_apart(x, weight, tops, offs, at, n, inner)
                    else:
                        stripe_apart(x, tops, offs, at, n, inner)
            else:
                first, count = unit * size, min(size, rows - unit * size)
                step, at, base = n, first * n, 1
                if short:
                    levels(notes, x, n, arena, first, first + count)
                else:
                    levels(notes, x, n, first, first + count)
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
                    if smoothed and smoothing != 0:  # apart, or LLVM would round the sum elsewhere
                        if stripes:
                            off = offs[k]
                        elif weighted:
                            off = apart(x[at + k * n : at + k * n + n], weight, top)
                        else:
                            off = apart(x[at + k * n : at + k * n + n], top)
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
        return losses(loss, notes, x, target, x, t, scratch, arena, lo, hi, details)

    def weighted_entropy(
        loss: Array, notes: Array, x: Array, target: Array, weight: Array, t: Rows, scratch: Array,
        arena: Array, lo: int, hi: int, details: Array,
    ) -> int:  # fmt: skip
        return losses(loss, notes, x, target, weight, t, scratch, arena, lo, hi, details)

    return weighted_entropy if weighted else entropy


@functools.cache
def entropy_backward_body(kind: Kind) -> Callable[..., None]:
    """body(out, g, x, target, notes, [weight], t, arena, lo, hi)"""
    stripes, short, weighted, _ = kind
    program = WEIGHTED_ENTROPY_BACKWARD if weighted else ENTROPY_BACKWARD
    rows_back, short_back = result_of(program), short_results_of(program)
    stripe_back = stripe_result(program)[0]

    def logits_back(
        out: Array, x: Array, weight: Array, tops: Array, logs: Array, factors: Array, offs: Array,
        first: int, at: int, n: int, inner: int,
    ) -> None:  # fmt: skip
        # The gradients of logits, as if none were of a target.
        if stripes:
            if weighted:
                stripe_back(out, x, weight, tops, logs, factors, offs, at, n, inner)
            else:
                stripe_back(out, x, tops, logs, factors, offs, at, n, inner)
        elif short:
            if weighted:
                short_back(out, x, weight, tops, logs, factors, offs, first, n)
            else:
                short_back(out, x, tops, logs, factors, offs, first, n)
        else:
            for k in range(len(tops)):
                xs, os = x[at + k * n : at + k * n + n], out[at + k * n : at + k * n + n]
                if weighted:
                    rows_back(os, xs, weight, tops[k], logs[k], factors[k], offs[k])
                else:
                    rows_back(os, xs, tops[k], logs[k], factors[k], offs[k])

    def gradients(
        out: Array, g: Array, x: Array, target: Array, notes: Array, weight: Array, t: Rows,
        arena: Array, lo: int, hi: int,
    ) -> None:  # fmt: skip
        real, rows, n, inner, size = x.dtype.type, len(target), t.n, t.inner, t.size
        ignored, smoothing, one = t.ignored, t.smoothing, len(g) == 1
        keep, spread = real(1 - smoothing), real(smoothing / n)
        whole = sum_of(weight) if weighted else real(n)
        divisor, own = notes[2 * rows], arena.view(x.dtype)
        for unit in range(lo, hi):
            if stripes:
                across = (inner + size - 1) // size
                first = unit // across * inner + unit % across * size
                count = min(size, inner - unit % across * size)
                step, at, base = 1, unit // across * n * inner + unit % across * size, inner
            else:
                first, count = unit * size, min(size, rows - unit * size)
                step, at, base = n, first * n, 1
            factors, offs, scales = own[:count], own[size:][:count], own[2 * size :][:count]
            for k in range(count):
                c, scale, w = target[first + k], real(0), real(1)
                if c != ignored:
                    scale = g[0 if one else first + k] / divisor
                    w = weight[c] if weighted else w
                factors[k], offs[k] = factor_and_off(scale, w, whole, keep, spread)
                scales[k] = scale
            tops, logs = notes[first : first + count], notes[rows + first : rows + first + count]
            logits_back(out, x, weight, tops, logs, factors, offs, first, at, n, inner)
            for k in range(count):
                c = target[first + k]
                if c != ignored:
                    w = weight[c] if weighted else real(1)
                    out[at + k * step + c * base] -= target_gradient(scales[k], w, keep)

    def entropy_backward(
        out: Array, g: Array, x: Array, target: Array, notes: Array, t: Rows, arena: Array,
        lo: int, hi: int,
    ) -> None:  # fmt: skip
        gradients(out, g, x, target, notes, x, t, arena, lo, hi)

    def weighted_entropy_backward(
        out: Array, g: Array, x: Array, target: Array, notes: Array, weight: Array, t: Rows,
        arena: Array, lo: int, hi: int,
    ) -> None:  # fmt: skip
        gradients(out, g, x, target, notes, weight, t, arena, lo, hi)

    return weighted_entropy_backward if weighted else entropy_backward


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
