"""Norms by channel: batch, group and instance norm of (N, C, space).

A plane is the `space` elements of one channel of one sample; they have one weight and one bias.
Moments and sums are reductions of any shape (`reducing`), over channels for batch norm and
otherwise over groups, or over planes where a group's channels have different weights.  What they
leave is put together for groups and channels, and a last launch writes the result.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
from numba import cuda

from flowvm.cuda.launch import Const, CudaLaunch, KernelStep, Param, Scalar, Scratch, blocks_for
from flowvm.launch import Launch
from flowvm.meta import TensorMeta
from flowvm.ops.rows.cuda.folding import moments_of, number_type
from flowvm.ops.rows.cuda.operands import each_step, flat, halves
from flowvm.ops.rows.cuda.reducing import cut_of, reduction_steps
from flowvm.ops.rows.cuda.row_functions import reduction_of, result_of
from flowvm.ops.rows.cuda.teams import place_of
from flowvm.ops.rows.parts.fold_walk import Walk
from flowvm.ops.rows.parts.norm_programs import PLANE, PLANE_BACKWARD, PLANE_SLOPES
from flowvm.ops.scalar.functions import sqrt

Array = Any
Metas = tuple[TensorMeta, ...]
Attrs = tuple[Any, ...]


def sizes_of(x: TensorMeta) -> tuple[int, int]:
    """Channels, and elements of a plane."""
    return int(x.shape[1]), math.prod(x.shape[2:])


@functools.cache
def _planes_forward(kind: Any, affine: bool, batch: bool) -> Any:
    one, result = kind(1), result_of(PLANE, kind)[0]

    def kernel(
        out: Array, means: Array, variances: Array, x: Array, weight: Array, bias: Array,
        planes: int, space: int, channels: int, count: int, eps: float, length: int, segments: int,
        lanes: int,
    ) -> None:  # fmt: skip
        lane, p, segment = place_of(lanes, segments, False)
        if p < planes:
            c = p % channels
            r = c if batch else p // count
            middle, factor = means[r], one / sqrt(variances[r] + kind(eps))
            shift = kind(0)
            if affine:
                factor *= weight[c]
                shift = bias[c]
            end = p * space + min((segment + 1) * length, space)
            for at in range(p * space + segment * length + lane, end, lanes):
                out[at] = result(x, middle, factor, shift, at, 0)

    return kernel


@functools.cache
def _planes_backward(kind: Any, weighted: bool, batch: bool) -> Any:
    one, result = kind(1), result_of(PLANE_BACKWARD, kind)[0]

    def kernel(
        out: Array, g: Array, x: Array, means: Array, variances: Array, bases: Array,
        slopes: Array, weight: Array, planes: int, space: int, channels: int, count: int,
        eps: float, length: int, segments: int, lanes: int,
    ) -> None:  # fmt: skip
        lane, p, segment = place_of(lanes, segments, False)
        if p < planes:
            c = p % channels
            r = c if batch else p // count
            middle, factor = means[r], one / sqrt(variances[r] + kind(eps))
            if weighted:
                factor *= weight[c]
            base, slope = kind(bases[r]), kind(slopes[r])
            end = p * space + min((segment + 1) * length, space)
            for at in range(p * space + segment * length + lane, end, lanes):
                out[at] = result(g, x, middle, factor, base, slope, at, 0)

    return kernel


@functools.cache
def _group_slopes(weighted: bool) -> Any:
    def kernel(
        bases: Array, slopes: Array, plain: Array, slanted: Array, variances: Array, weight: Array,
        groups: int, count: int, channels: int, share: float, eps: float,
    ) -> None:  # fmt: skip
        """rstd * M(h) and rstd**3 * M(h * (x - mean)); 0 where `share` is: stats were given."""
        r = cuda.grid(1)
        if r < groups:
            flat, slant = 0.0, 0.0
            for p in range(r * count, (r + 1) * count):
                w = np.float64(weight[p % channels]) if weighted else 1.0
                flat += plain[p] * w
                slant += slanted[p] * w
            scale = 1.0 / sqrt(np.float64(variances[r]) + eps)
            bases[r] = flat * share * scale
            slopes[r] = slant * share * scale * scale * scale

    return kernel


@functools.cache
def _channel_sums(kind: Any) -> Any:
    def kernel(
        dw: Array, db: Array, plain: Array, slanted: Array, variances: Array, channels: int,
        planes: int, count: int, eps: float,
    ) -> None:  # fmt: skip
        c = cuda.grid(1)
        if c < channels:
            w, b = 0.0, 0.0
            for p in range(c, planes, channels):
                w += slanted[p] / sqrt(np.float64(variances[p // count]) + eps)
                b += plain[p]
            dw[c] = kind(w)
            db[c] = kind(b)

    return kernel


@functools.cache
def _moved(kind: Any) -> Any:
    def kernel(
        mean: Array, var: Array, means: Array, variances: Array, channels: int, unbias: float,
        momentum: float,
    ) -> None:  # fmt: skip
        c = cuda.grid(1)
        if c < channels:
            old, spread = np.float64(mean[c]), np.float64(var[c])
            mean[c] = kind(old + momentum * (np.float64(means[c]) - old))
            var[c] = kind(spread + momentum * (np.float64(variances[c]) * unbias - spread))

    return kernel


def _copied(means: Array, variances: Array, mean: Array, var: Array, channels: int) -> None:
    c = cuda.grid(1)
    if c < channels:
        means[c] = mean[c]
        variances[c] = var[c]


def _group_walk(x: TensorMeta, kind: str, groups: int, share: int) -> Walk:
    """Over the elements of groups, or, `share` > 1, of the planes that a group has."""
    channels, space = sizes_of(x)
    if kind != "batch":
        n = x.numel // (groups * share)
        return Walk(((1, 0), (groups * share, n)), ((1, 0), (n, 1)))
    samples = x.numel // (channels * space)
    if space == 1:
        return Walk(((1, 0), (channels, 1)), ((1, 0), (samples, channels)))
    return Walk(((1, 0), (channels, space)), ((samples, channels * space), (space, 1)))


def _plane_params(x: TensorMeta, groups: int, eps: float) -> tuple[tuple[Param, ...], Any, int]:
    """The consts of the kernels of planes, their cut and their number."""
    channels, space = sizes_of(x)
    planes = x.numel // space
    cut = cut_of(planes, space, False, 1)
    count = max(1, planes // groups)
    sizes = planes, space, channels, count, float(eps), cut.length, cut.segments, cut.lanes
    return tuple(map(Const, sizes)), cut, -(-planes // cut.columns) * cut.segments


def planes_forward(launch: Launch, metas: Metas, kind: str, eps: float, fixed: bool) -> CudaLaunch:
    """out and stats of x, maybe weight and bias, maybe a mean and variance: those to move, or, if
    `fixed`, those to use.
    """
    x, (out, stats) = metas[0], launch.outputs
    (means, variances), given = halves(1, stats), flat(2, x)
    groups, own = stats.numel // 2, number_type(x.dtype)
    consts, cut, blocks = _plane_params(x, groups, eps)
    steps: tuple[KernelStep, ...]
    scratch = 0
    running = [flat(k + 5, m) for k, m in enumerate(metas[3:])]
    if fixed:
        steps = (each_step(_copied, groups, means, variances, *running, Const(groups)),)
    else:
        walk, made = _group_walk(x, kind, groups, 1), moments_of(x.dtype, own, own)
        steps, scratch = reduction_steps(
            made, walk, (given,), (variances, means), float(walk.elements)
        )
        if running:
            total = walk.elements
            unbias = Const(float(total / max(1, total - 1)))
            steps += (
                each_step(_moved(own), groups, *running, means, variances, Const(groups), unbias,
                      Scalar(0, "f")),
            )  # fmt: skip
    weight, bias = (*(flat(k + 3, m) for k, m in enumerate(metas[1:3])), given, given)[:2]
    last = KernelStep(
        _planes_forward(own, len(metas) > 1, kind == "batch"),
        (flat(0, out), means, variances, given, weight, bias, *consts),
        blocks_for(blocks, 1),
        (cut.block, 1, 1),
    )
    return CudaLaunch(launch.outputs, (*steps, last), scratch)


def planes_backward(launch: Launch, metas: Metas, kind: str, eps: float, fixed: bool) -> CudaLaunch:
    """dx of (g, x, stats), or dx, dw and db of these and a weight; `fixed`: stats were given."""
    outputs, (g_meta, x, stats, *weights) = launch.outputs, metas
    at, own, groups = len(outputs), number_type(x.dtype), stats.numel // 2
    g, given, (means, variances) = flat(at, g_meta), flat(at + 1, x), halves(at + 2, stats)
    weight = flat(at + 3, weights[0]) if weights else g
    channels, space = sizes_of(x)
    batch = kind == "batch"
    planes = groups if batch else x.numel // space
    count = max(1, planes // groups)
    parts = [Scratch(8 * planes * i, "float64", (planes,)) for i in range(2)]
    slopes = [Scratch(16 * planes + 8 * groups * i, "float64", (groups,)) for i in range(2)]
    start = 16 * (planes + groups)
    walk, plain_slanted = _group_walk(x, kind, groups, count), (parts[0], parts[1])
    found = reduction_of(PLANE_SLOPES, x.dtype, True, count)
    steps, scratch = reduction_steps(found, walk, (g, given, means), plain_slanted, 1.0, start)
    share = 0.0 if fixed else 1.0 / (x.numel // groups)
    steps += (
        each_step(_group_slopes(bool(weights)), groups, *slopes, *parts, variances, weight,
              *map(Const, (groups, count, channels, share, float(eps)))),
    )  # fmt: skip
    if weights:
        dw, db = flat(1, outputs[1]), flat(2, outputs[2])
        sizes = map(Const, (channels, planes, count, float(eps)))
        steps += (each_step(_channel_sums(own), channels, dw, db, *parts, variances, *sizes),)
    consts, cut, blocks = _plane_params(x, groups, eps)
    last = KernelStep(
        _planes_backward(own, bool(weights), batch),
        (flat(0, outputs[0]), g, given, means, variances, *slopes, weight, *consts),
        blocks_for(blocks, 1),
        (cut.block, 1, 1),
    )
    return CudaLaunch(outputs, (*steps, last), start + scratch)
