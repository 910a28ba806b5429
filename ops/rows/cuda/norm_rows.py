"""Norms whose groups are rows with weights of their own for each element: layer and RMS norm, and
the group norm of (N, C).

Rows are held in registers where they fit (`held`); else a team visits its row twice: for the sums,
and for the result.  Row r takes its weights from (r % period) * n on.  The gradients of the weights
are reductions over rows, which find each row's mean and rstd in scratch memory.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from flowvm.cuda.launch import Const, CudaLaunch, KernelStep, Param, Scratch, blocks_for
from flowvm.dtype import DType
from flowvm.launch import Launch
from flowvm.meta import TensorMeta
from flowvm.ops.rows.cpu.norm_launch import row_sizes
from flowvm.ops.rows.cuda.folding import moments_of, number_type
from flowvm.ops.rows.cuda.held import Plan, Round, held_step, hold_of
from flowvm.ops.rows.cuda.operands import flat, halves
from flowvm.ops.rows.cuda.reducing import Reduction, cut_of, reduction_steps
from flowvm.ops.rows.cuda.sums import join_pair, pair_of
from flowvm.ops.rows.cuda.teams import place_of, team
from flowvm.ops.rows.parts.fold_walk import Walk
from flowvm.ops.scalar.functions import sqrt

__all__ = ["rows_backward", "rows_forward"]

Array = Any
Metas = tuple[TensorMeta, ...]
Attrs = tuple[Any, ...]


@functools.cache
def _weight_sums(kind: Any, n: int, period: int) -> Reduction:
    """Of g * xhat and of g over rows, of which `period` lie in a row of weights."""

    def fetch(g: Array, x: Array, noted: Array, at: int, m: int, e: int) -> Any:
        r = e if period == 1 else e * period + m // n
        return g[at] * ((x[at] - noted[2 * r]) * noted[2 * r + 1]), g[at]

    return pair_of(fetch, kind)


@functools.cache
def _rows_forward(dtype: DType, center: bool, weighted: bool, biased: bool) -> Any:
    kind = number_type(dtype)
    made = moments_of(dtype, kind, kind)
    one, nothing = kind(1), kind(0)
    kinds, _, begin, take, take_4, close, join, _ = made
    shared, together, _, _ = team(join, kinds, False)

    def kernel(
        out: Array, means: Array, variances: Array, x: Array, weight: Array, bias: Array, rows: int,
        n: int, period: int, eps: float, lanes: int,
    ) -> None:  # fmt: skip
        lane, r, _ = place_of(lanes, 1, False)
        arrays = shared()
        inside = r < rows
        if not inside:
            r = rows - 1
        state = begin(x[r * n] if center else nothing, 0)
        e, at, taken = lane, r * n + lane, 0
        while e + 3 * lanes < n:
            a, b, c, d = x[at], x[at + lanes], x[at + 2 * lanes], x[at + 3 * lanes]
            state = take_4(state, a, b, c, d, e, lanes)
            at += 4 * lanes
            e += 4 * lanes
            taken += 4
        while e < n:
            state = take(state, x[at], e)
            at += lanes
            e += lanes
            taken += 1
        mine = close(state, taken) if center else (np.float64(taken), 0.0, state[2])
        total = together(mine, arrays, lane, lanes)
        middle, spread = kind(total[1]), kind(total[2] / n)
        scale = one / sqrt(spread + kind(eps))
        if not inside:
            return
        if lane == 0:
            means[r] = middle
            variances[r] = spread
        at, w = r * n + lane, r % period * n + lane
        for _ in range(lane, n, lanes):
            value = (x[at] - middle) * scale
            if weighted:
                value *= weight[w]
            if biased:
                value += bias[w]
            out[at] = value
            at += lanes
            w += lanes

    return kernel


@functools.cache
def _rows_backward(dtype: DType, center: bool, weighted: bool) -> Any:
    """`noted` gets each row's mean and rstd, for the gradients of the weights."""
    kind = number_type(dtype)
    one, nothing = kind(1), kind(0)
    shared, together, _, _ = team(join_pair, (np.float64, np.float64), False)

    def kernel(
        out: Array, noted: Array, g: Array, x: Array, means: Array, variances: Array,
        weight: Array, rows: int, n: int, period: int, eps: float, lanes: int,
    ) -> None:  # fmt: skip
        lane, r, _ = place_of(lanes, 1, False)
        arrays = shared()
        inside = r < rows
        if not inside:
            r = rows - 1
        middle, scale = means[r], one / sqrt(variances[r] + kind(eps))
        first, offset = r * n, r % period * n - r * n
        plain, slanted = 0.0, 0.0
        for at in range(first + lane, first + n, lanes):
            h = g[at] * weight[at + offset] if weighted else g[at]
            plain += np.float64(h)
            slanted += np.float64(h * (x[at] - middle))
        total = together((plain, slanted), arrays, lane, lanes)
        base = kind(total[0] / n) if center else nothing
        slope = kind(total[1] / n) * scale * scale
        if not inside:
            return
        if weighted and lane == 0:
            noted[2 * r] = middle
            noted[2 * r + 1] = scale
        for at in range(first + lane, first + n, lanes):
            h = g[at] * weight[at + offset] if weighted else g[at]
            out[at] = scale * ((h - base) - (x[at] - middle) * slope)

    return kernel


# --- rows in registers ----------------------------------------------------------------------------


_WEIGHTS = "w = lane", "w = m % period * n + lane"  # where a thread's are, without and with groups


@functools.cache
def _forward_plan(center: bool, weighted: bool, biased: bool, grouped: bool) -> Plan:
    """Distances are taken from the row's first element, then from the mean."""
    value = " * ".join(["v#", "scale", *["weight[w + @]"] * weighted]) + " + bias[w + @]" * biased
    begin: tuple[str, ...] = (_WEIGHTS[grouped], "middle = zero")
    if center:
        begin += ("begin = x[first]", "if not abs(begin) < inf:", "    begin = zero")
    load = (
        "v# = x[at + @] - begin if in# else zero" if center else "v# = x[at + @] if in# else zero"
    )
    mean = (Round(("off",), "zero", "off += v#", "sum"), ("off /= kind(n)", "middle = begin + off"))
    apart = "v# = v# - off if in# else zero\n" if center else ""
    spread = (
        Round(("spread",), "zero", f"{apart}spread += v# * v#", "sum"),
        (
            "spread /= kind(n)",
            "scale = one / sqrt(spread + kind(eps))",
            "if inside and lane == 0:",
            "    means[m] = middle",
            "    variances[m] = spread",
        ),
    )
    return Plan(
        ("out", "means", "variances"), ("x", "weight", "bias"), ("period", "eps"), begin, (load,),
        (mean, spread) if center else (spread,), value,
    )  # fmt: skip


@functools.cache
def _backward_plan(center: bool, weighted: bool, grouped: bool) -> Plan:
    """h is the gradient of the normalized row, v the row's distances from its mean."""
    begin = (
        _WEIGHTS[grouped],
        "middle, scale = means[m], one / sqrt(variances[m] + kind(eps))",
    )
    load = (
        f"h# = g[at + @]{' * weight[w + @]' * weighted} if in# else zero",
        "v# = x[at + @] - middle if in# else zero",
    )
    line = "plain += h#\nslanted += h# * v#"
    sums = Round(("plain", "slanted"), "zero", line, "sums")
    after = (
        "base = plain / kind(n)" if center else "base = zero",
        "slope = slanted / kind(n) * scale * scale",
        *(("if inside and lane == 0:", "    noted[2 * m] = middle", "    noted[2 * m + 1] = scale")
          if weighted else ()),
    )  # fmt: skip
    return Plan(
        ("out", "noted"), ("g", "x", "means", "variances", "weight"), ("period", "eps"), begin,
        load, ((sums, after),), "scale * ((h# - base) - v# * slope)",
    )  # fmt: skip


# --- rules ----------------------------------------------------------------------------------------


def rows_forward(launch: Launch, metas: Metas, attrs: Attrs) -> CudaLaunch:
    """out and stats of x, maybe weight and bias."""
    kind, size, eps, center = attrs
    x, (out, stats) = metas[0], launch.outputs
    n, period = row_sizes(x, kind, size)
    rows = stats.numel // 2
    cut = cut_of(rows, n, False, 1)
    lanes = min(cut.lanes, cut.block)
    weights = [flat(k + 3, m) for k, m in enumerate(metas[1:])]
    given = flat(2, x)
    weight, bias = (*weights, given, given)[:2]
    arrays = flat(0, out), *halves(1, stats), given, weight, bias
    weighted, biased = len(metas) > 1, len(metas) > 2
    if (hold := hold_of(rows, n, x.dtype.itemsize, 1)) is not None:
        plan = _forward_plan(center, weighted, biased, period > 1)
        params = (*arrays, Const(period), Const(float(eps)))
        step = held_step(plan, number_type(x.dtype), hold, rows, n, params)
        return CudaLaunch(launch.outputs, (step,))
    step = KernelStep(
        _rows_forward(x.dtype, center, weighted, biased),
        (*arrays, *map(Const, (rows, n, period, float(eps), lanes))),
        blocks_for(rows, cut.block // lanes),
        (cut.block, 1, 1),
    )
    return CudaLaunch(launch.outputs, (step,))


def rows_backward(launch: Launch, metas: Metas, attrs: Attrs) -> CudaLaunch:
    """dx of (g, x, stats), or dx, dw and db of these and a weight."""
    kind, size, eps, center = attrs
    outputs, (_, x, stats, *weights) = launch.outputs, metas
    n, period = row_sizes(x, kind, size)
    rows, at = stats.numel // 2, len(outputs)
    cut = cut_of(rows, n, False, 1)
    g, given = flat(at, metas[0]), flat(at + 1, x)
    noted: Param = Scratch(0, x.dtype.name, (2 * rows,)) if weights else g
    weight = flat(at + 3, weights[0]) if weights else g
    arrays = flat(0, outputs[0]), noted, g, given, *halves(at + 2, stats), weight
    if (hold := hold_of(rows, n, x.dtype.itemsize, 2)) is not None:
        plan = _backward_plan(center, bool(weights), period > 1)
        params = (*arrays, Const(period), Const(float(eps)))
        step = held_step(plan, number_type(x.dtype), hold, rows, n, params)
    else:
        step = KernelStep(
            _rows_backward(x.dtype, center, bool(weights)),
            (*arrays, *map(Const, (rows, n, period, float(eps), cut.lanes))),
            blocks_for(rows, cut.columns),
            (cut.block, 1, 1),
        )
    if not weights:
        return CudaLaunch(outputs, (step,))
    width, own = n * period, number_type(x.dtype)
    walk = Walk(((1, 0), (width, 1)), ((1, 0), (rows // period, width)))
    to = flat(1, outputs[1]), flat(2, outputs[2])
    start = -(-2 * rows * x.dtype.itemsize // 8) * 8
    made = _weight_sums(own, n if period > 1 else 1, period)
    steps, scratch = reduction_steps(made, walk, (g, given, noted), to, 1.0, start)
    return CudaLaunch(outputs, (step, *steps), start + scratch)
