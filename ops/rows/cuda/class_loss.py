"""cross_entropy and nll_loss and their gradients, by the same notes as the CPU's kernels leave.

Logits are (outer, n, inner); row i's n logits lie `inner` apart.  Forward: the rows' maxima and
logarithms of sums (`LEVELS`), with label smoothing the sums of their distances from
the maximum; then a thread for each row takes its loss, and checks the target; then the rows' losses
and weights are added up, in float64.  Backward: a team for each row writes all of its elements.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba import cuda

from flowvm.cuda.launch import Const, CudaLaunch, Details, KernelStep, Param, Scratch, blocks_for
from flowvm.errors import Status
from flowvm.launch import Launch
from flowvm.meta.arrays import Array
from flowvm.meta.meta import Attrs, TensorMeta
from flowvm.ops.declare.cuda.error_report import report
from flowvm.ops.rows.cuda.fold_kernels import Reduction, cut_of, reduction_steps
from flowvm.ops.rows.cuda.operands import each_step, flat, part
from flowvm.ops.rows.cuda.reductions import number_type
from flowvm.ops.rows.cuda.row_functions import reduction_of, result_of
from flowvm.ops.rows.cuda.sums import element, pair_of, sum_of
from flowvm.ops.rows.cuda.teams import place_of
from flowvm.ops.rows.parts.class_loss_ops import check_classes
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
from flowvm.ops.rows.parts.fold_walk import Walk
from flowvm.ops.rows.parts.softmax_programs import APART, LEVELS, WEIGHTED_APART
from flowvm.ops.rows.parts.states import State

Metas = tuple[TensorMeta, ...]
BAD = int(Status.INDEX_OUT_OF_RANGE)


# --- reductions -----------------------------------------------------------------------------------


def _both(x: Array, y: Array, z: Array, at: int, m: int, e: int) -> tuple[object, object]:
    return x[at], y[at]


@functools.cache
def _totals(kind: Any) -> Reduction:
    """The sums of losses and of weights; `extra`: 1 for their ratio."""

    def put(loss: Array, divisor: Array, m: int, state: State, mean: float) -> None:
        value, by = reduced_loss(np.float64(state[0]), state[1], mean == 1.0)
        divisor[m] = kind(by)
        loss[m] = kind(value)

    return pair_of(_both, np.float64)._replace(put=put)


def _along(count: int) -> Walk:
    """A walk over all of a vector."""
    return Walk(((1, 0), (1, 0)), ((1, 0), (count, 1)))


def _row_walk(outer: int, n: int, inner: int) -> Walk:
    return Walk(((outer, n * inner), (inner, 1)), ((1, 0), (n, inner)))


# --- rows -----------------------------------------------------------------------------------------


class Logits(NamedTuple):
    """Logits are (outer, n, inner), of `rows` rows; the target that is ignored; label_smoothing."""

    rows: int
    n: int
    inner: int
    ignored: int
    smoothing: float


class Shared(NamedTuple):
    """The division of rows among teams; a row has `each` gradients, 0 or 1."""

    each: int
    length: int
    segments: int
    lanes: int
    side: int


@functools.cache
def _row_losses(kind: Any, weighted: bool, smoothed: bool, reduced: bool) -> Any:
    nothing, one = kind(0), kind(1)

    def kernel(
        loss: Array, losses: Array, weights: Array, x: Array, target: Array, tops: Array,
        logs: Array, apart: Array, weight: Array, whole: Array, s: Logits, details: Array,
    ) -> None:  # fmt: skip
        rows, n, inner, ignored, smoothing = s.rows, s.n, s.inner, s.ignored, s.smoothing
        i = cuda.grid(1)
        value, w = nothing, nothing
        if i < rows:
            t = target[i]
            if t != ignored:
                if not is_class(t, n):
                    report(details, BAD, t, n, 1)
                else:
                    outer = i // inner
                    at = (outer * n + t) * inner + i - outer * inner
                    level = logs[i]
                    w = weight[t] if weighted else one
                    value = entropy_of(x[at], tops[i], level, w, kind(1.0 - smoothing))
                    if smoothed:
                        total = whole[0] if weighted else kind(n)
                        value += smoothing_of(level, apart[i], total, kind(smoothing / n))
        if not reduced:
            if i < rows:
                loss[i] = value
        elif i < len(losses):
            losses[i] = value
            weights[i] = w

    return kernel


def _divisor_of_one(notes: Array, rows: int) -> None:
    if cuda.grid(1) == 0:
        notes[rows] = 1


@functools.cache
def _rows_back(kind: Any, weighted: bool, smoothed: bool) -> Any:
    nothing, one = kind(0), kind(1)
    plain, gradient = (result_of(p, kind)[0] for p in (ENTROPY_BACKWARD, WEIGHTED_ENTROPY_BACKWARD))
    if not (weighted and smoothed):

        def gradient(
            x: Array,
            weight: Array,
            top: object,
            level: object,
            factor: object,
            off: object,
            at: int,
            c: int,
        ) -> Any:
            return plain(x, top, level, factor, off, at, c)

    def kernel(
        out: Array, g: Array, x: Array, target: Array, tops: Array, logs: Array, divisor: Array,
        weight: Array, whole: Array, s: Logits, by: Shared,
    ) -> None:  # fmt: skip
        n, inner, ignored, smoothing = s.n, s.inner, s.ignored, s.smoothing
        lanes, length = by.lanes, by.length
        lane, i, segment = place_of(lanes, by.segments, by.side != 0)
        if i < s.rows:
            t, scale = target[i], nothing
            w = one
            if t != ignored:
                scale = g[i * by.each] / divisor[0]
                w = weight[t] if weighted else one
            keep, spread = kind(1.0 - smoothing), kind(smoothing / n)
            total = whole[0] if weighted and smoothed else kind(n)
            factor, off = factor_and_off(scale, w, total, keep, spread)
            top, level = tops[i], logs[i]
            outer = i // inner
            begin, end = segment * length + lane, min((segment + 1) * length, n)
            at = (outer * n + begin) * inner + i - outer * inner
            for c in range(begin, end, lanes):
                value = gradient(x, weight, top, level, factor, off, at, c)
                if c == t:
                    value -= target_gradient(scale, w, keep)
                out[at] = value
                at += lanes * inner

    return kernel


def entropy(launch: Launch, metas: Metas, attrs: Attrs) -> CudaLaunch:
    """cross_entropy: loss and notes of logits and targets, maybe weights."""
    reduction, ignored, smoothing = attrs
    x, target, *weights = metas
    loss, notes = launch.outputs
    outer, n, inner = check_classes("cross_entropy", x, target)
    rows, own, name = target.numel, number_type(x.dtype), x.dtype.name
    logits, weight = flat(2, x), flat(4, weights[0]) if weights else flat(2, x)
    tops, logs = part(1, notes, 0, rows), part(1, notes, rows, rows)
    steps: tuple[KernelStep, ...] = ()
    many = max(1, rows)
    apart, whole = Scratch(0, name, (many,)), Scratch(8 * many, name, (1,))
    losses, counts = (Scratch(8 * (many + 1 + many * i), name, (many,)) for i in range(2))
    start, scratch = 8 * (3 * many + 1), 0
    if rows:
        walk = _row_walk(outer, n, inner)
        steps, scratch = reduction_steps(
            reduction_of(LEVELS, x.dtype), walk, (logits,), (tops, logs), 1.0, start
        )
        if smoothing:
            apart_of = reduction_of(WEIGHTED_APART if weights else APART, x.dtype)
            more, extra = reduction_steps(
                apart_of, walk, (logits, tops, weight), (apart, apart), 1.0, start
            )
            steps, scratch = steps + more, max(scratch, extra)
        if smoothing and weights:
            more, extra = _whole(own, weight, n, whole, start)
            steps, scratch = steps + more, max(scratch, extra)
    reduced = reduction != "none"
    steps += (
        each_step(
            _row_losses(own, bool(weights), bool(smoothing), reduced), many,
            flat(0, loss), losses, counts, logits, flat(3, target), tops, logs, apart, weight,
            whole, Const(Logits(rows, n, inner, ignored, float(smoothing))), Details(),
        ),
    )  # fmt: skip
    more, extra = _finish(launch, reduction, losses, counts, many, 2 * rows, own, start)
    return CudaLaunch(launch.outputs, steps + more, start + max(scratch, extra))


def _whole(
    kind: object, x: Param, count: int, out: Param, start: int
) -> tuple[tuple[KernelStep, ...], int]:
    """The sum of a vector."""
    return reduction_steps(sum_of(element, kind), _along(count), (x,), (out, out), 1.0, start)


def _finish(
    launch: Launch, reduction: str, losses: Param, counts: Param, many: int, at: int, kind: object,
    start: int,
) -> tuple[tuple[KernelStep, ...], int]:  # fmt: skip
    """The steps that leave the divisor in place `at` of the notes and, reduced, the loss."""
    loss, notes = launch.outputs
    if reduction == "none":
        return (each_step(_divisor_of_one, 1, flat(1, notes), Const(at)),), 0
    to = flat(0, loss), part(1, notes, at, 1)
    mean = float(reduction == "mean")
    return reduction_steps(_totals(kind), _along(many), (losses, counts), to, mean, start)


def entropy_backward(launch: Launch, metas: Metas, attrs: Attrs) -> CudaLaunch:
    """Lower the gradient of cross entropy, of (g, logits, targets, notes), maybe weights."""
    _, ignored, smoothing = attrs
    g, x, target, notes, *weights = metas
    if x.numel == 0:
        return CudaLaunch(launch.outputs, ())
    _, n, inner = check_classes("cross_entropy", x, target)
    rows, own = target.numel, number_type(x.dtype)
    weight = flat(5, weights[0]) if weights else flat(2, x)
    steps: tuple[KernelStep, ...] = ()
    whole: Param = weight
    scratch = 0
    if smoothing and weights:
        whole = Scratch(0, x.dtype.name, (1,))
        steps, scratch = _whole(own, weight, n, whole, 8)
        scratch += 8
    side = inner > 1
    cut = cut_of(rows, n, side, inner)
    shared = Shared(int(g.numel > 1), cut.length, cut.segments, cut.lanes, int(side))
    sizes = Logits(rows, n, inner, ignored, float(smoothing)), shared
    last = KernelStep(
        _rows_back(own, bool(weights), bool(smoothing)),
        (flat(0, x), flat(1, g), flat(2, x), flat(3, target), part(4, notes, 0, rows),
         part(4, notes, rows, rows), part(4, notes, 2 * rows, 1), weight, whole,
         *map(Const, sizes)),
        blocks_for(-(-rows // cut.columns) * cut.segments, 1),
        (cut.block, 1, 1),
    )  # fmt: skip
    return CudaLaunch(launch.outputs, (*steps, last), scratch)


# --- negative log likelihood ----------------------------------------------------------------------


@functools.cache
def _likelihoods(
    kind: Any, weighted: bool, reduced: bool
) -> Callable[[Any, Any, Any, Any, Any, Any, Logits, Any], None]:
    nothing, one = kind(0), kind(1)

    def kernel(
        loss: Array, losses: Array, weights: Array, x: Array, target: Array, weight: Array,
        s: Logits, details: Array,
    ) -> None:  # fmt: skip
        rows, n, inner, ignored = s.rows, s.n, s.inner, s.ignored
        i = cuda.grid(1)
        value, w = nothing, nothing
        if i < rows:
            t = target[i]
            if t != ignored:
                if not is_class(t, n):
                    report(details, BAD, t, n, 1)
                else:
                    outer = i // inner
                    w = weight[t] if weighted else one
                    value = likelihood_of(x[(outer * n + t) * inner + i - outer * inner], w)
        if not reduced:
            if i < rows:
                loss[i] = value
        elif i < len(losses):
            losses[i] = value
            weights[i] = w

    return kernel


@functools.cache
def _placed(kind: Any, weighted: bool) -> Callable[[Any, Any, Any, Any, Any, Logits, Shared], None]:
    nothing, one = kind(0), kind(1)

    def kernel(
        out: Array, g: Array, target: Array, divisor: Array, weight: Array, s: Logits, by: Shared
    ) -> None:
        n, inner, ignored, lanes, length = s.n, s.inner, s.ignored, by.lanes, by.length
        lane, i, segment = place_of(lanes, by.segments, by.side != 0)
        if i < s.rows:
            t, value = target[i], nothing
            if t != ignored:
                w = weight[t] if weighted else one
                value = likelihood_gradient(g[i * by.each] / divisor[0], w)
            outer = i // inner
            begin, end = segment * length + lane, min((segment + 1) * length, n)
            at = (outer * n + begin) * inner + i - outer * inner
            for c in range(begin, end, lanes):
                out[at] = value if c == t else nothing
                at += lanes * inner

    return kernel


def likelihood(launch: Launch, metas: Metas, attrs: Attrs) -> CudaLaunch:
    """nll_loss: loss and notes of log-probabilities and targets, maybe weights."""
    reduction, ignored = attrs
    x, target, *weights = metas
    _, n, inner = check_classes("nll_loss", x, target)
    rows, own, many = target.numel, number_type(x.dtype), max(1, target.numel)
    weight = flat(4, weights[0]) if weights else flat(2, x)
    losses, counts = (Scratch(8 * many * i, x.dtype.name, (many,)) for i in range(2))
    first = each_step(
        _likelihoods(own, bool(weights), reduction != "none"), many, flat(0, launch.outputs[0]),
        losses, counts, flat(2, x), flat(3, target), weight,
        Const(Logits(rows, n, inner, ignored, 0.0)), Details(),
    )  # fmt: skip
    more, extra = _finish(launch, reduction, losses, counts, many, 0, own, 16 * many)
    return CudaLaunch(launch.outputs, (first, *more), 16 * many + extra)


def likelihood_backward(launch: Launch, metas: Metas, attrs: Attrs) -> CudaLaunch:
    """Lower the gradient of the likelihood loss, of (g, targets, notes), maybe weights."""
    ignored = attrs[-1]
    g, target, notes, *weights = metas
    (out,) = launch.outputs
    if out.numel == 0:
        return CudaLaunch(launch.outputs, ())
    _, n, inner = check_classes("nll_loss", out, target)
    weight = flat(4, weights[0]) if weights else flat(1, g)
    rows, side = target.numel, inner > 1
    cut = cut_of(rows, n, side, inner)
    shared = Shared(int(g.numel > 1), cut.length, cut.segments, cut.lanes, int(side))
    sizes = Logits(rows, n, inner, ignored, 0.0), shared
    step = KernelStep(
        _placed(number_type(out.dtype), bool(weights)),
        (flat(0, out), flat(1, g), flat(2, target), part(3, notes, 0, 1), weight,
         *map(Const, sizes)),
        blocks_for(-(-rows // cut.columns) * cut.segments, 1),
        (cut.block, 1, 1),
    )  # fmt: skip
    return CudaLaunch(launch.outputs, (step,))
