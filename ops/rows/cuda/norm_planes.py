"""Norms by channel: batch, group and instance norm of (N, C, space).

A plane is the `space` elements of one channel of one sample; they have one weight and one bias.
Moments and sums are reductions of any shape (`reducing`), over channels for batch norm and
otherwise over groups, or over planes where a group's channels have different weights.  What they
leave is put together for groups and channels, and a last launch writes the result.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba import cuda

from flowvm.cuda.launch import Const, CudaLaunch, KernelStep, Param, Scalar, Scratch, blocks_for
from flowvm.launch import Launch
from flowvm.meta.arrays import Array
from flowvm.meta.dtype import DType
from flowvm.meta.meta import TensorMeta
from flowvm.ops.declare.cuda.steps import written
from flowvm.ops.rows.cuda.fold_kernels import cut_of, reduction_steps
from flowvm.ops.rows.cuda.operands import each_step, flat, halves
from flowvm.ops.rows.cuda.reductions import moments_of, number_type
from flowvm.ops.rows.cuda.row_functions import inside, reduction_of, result_of, scope_of
from flowvm.ops.rows.cuda.teams import place_of
from flowvm.ops.rows.parts.fold_walk import Walk
from flowvm.ops.rows.parts.norm_programs import PLANE, PLANE_BACKWARD, PLANE_SLOPES
from flowvm.ops.rows.parts.norm_rules import base_and_slope, moved, unbiasing, weight_gradient
from flowvm.ops.rows.parts.row_program import RowProgram

Metas = tuple[TensorMeta, ...]


def sizes_of(x: TensorMeta) -> tuple[int, int]:
    """Channels, and elements of a plane."""
    return int(x.shape[1]), math.prod(x.shape[2:])


@functools.cache
def _result_kernel(p: RowProgram, dtype: DType, weighted: bool, batch: bool) -> Callable[..., None]:
    """kernel(out, rows, numbers of groups and channels, sizes): the result of every element."""
    kind = number_type(dtype)
    result, arguments = result_of(p, kind)
    absent = {} if weighted else {"weight": "one", "bias": "zero"}
    heads = {name: f"{name}s[{'c' if name in ('weight', 'bias') else 'r'}]" for name in p.heads}
    heads_of_all = [f"{name}s" for name in p.heads]
    lines = [
        "lane, p, segment = place_of(lanes, segments, False)",
        "if p < planes:",
        *inside([
            "c = p % channels",
            f"r = {'c' if batch else 'p // count'}",
            *(f"{name} = {head if name in p.wide else f'kind({absent.get(name, head)})'}"
              for name, head in heads.items()),
            *(f"{name} = {expr}" for name, expr in p.begin),
            "end = p * space + min((segment + 1) * length, space)",
            "for at in range(p * space + segment * length + lane, end, lanes):",
            f"    out[at] = result({', '.join(arguments)}, at, 0)",
        ]),
    ]  # fmt: skip
    sizes = "planes", "space", "channels", "count", "eps", "length", "segments", "lanes"
    header = f"def results({', '.join(['out', *p.rows, *heads_of_all, *sizes])}):"
    scope = scope_of(kind) | {"place_of": place_of, "result": result}
    origin = f"{__name__}:_result_kernel"
    text = "\n".join([header, *inside(lines)])
    return written(text, "results", scope, origin, p, dtype, weighted, batch)


class Groups(NamedTuple):
    """Groups of `members` planes, `channels` of these a sample; `share` is 1 / elements of one."""

    groups: int
    members: int
    channels: int
    share: float
    eps: float


@functools.cache
def _group_slopes(weighted: bool) -> Callable[[Any, Any, Any, Any, Any, Any, Groups], None]:
    def kernel(
        bases: Array, slopes: Array, plain: Array, slanted: Array, variances: Array, weight: Array,
        t: Groups,
    ) -> None:  # fmt: skip
        r = cuda.grid(1)
        if r < t.groups:
            flat, slant = 0.0, 0.0
            for p in range(r * t.members, (r + 1) * t.members):
                w = np.float64(weight[p % t.channels]) if weighted else 1.0
                flat += plain[p] * w
                slant += slanted[p] * w
            bases[r], slopes[r] = base_and_slope(flat, slant, variances[r], t.share, t.eps)

    return kernel


@functools.cache
def _channel_sums(kind: Any) -> Callable[[Any, Any, Any, Any, Any, Groups], None]:
    def kernel(
        dw: Array, db: Array, plain: Array, slanted: Array, variances: Array, t: Groups
    ) -> None:
        c = cuda.grid(1)
        if c < t.channels:
            w, b = 0.0, 0.0
            for p in range(c, t.groups * t.members, t.channels):
                w += weight_gradient(slanted[p], variances[p // t.members], t.eps)
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
            old, spread = np.float64(mean[c]), np.float64(variances[c]) * unbias
            mean[c] = kind(moved(old, np.float64(means[c]), momentum))
            var[c] = kind(moved(np.float64(var[c]), spread, momentum))

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
    """Return the steps for out and stats of x, maybe with weight and bias.

    A mean and variance, if given, are moved or, with `fixed`, used.
    """
    x, (out, stats) = metas[0], launch.outputs
    (means, variances), elements = halves(1, stats), flat(2, x)
    groups, own = stats.numel // 2, number_type(x.dtype)
    consts, cut, blocks = _plane_params(x, groups, eps)
    steps: tuple[KernelStep, ...]
    scratch = 0
    running = [flat(k + 5, m) for k, m in enumerate(metas[3:])]
    if fixed:
        steps = (each_step(_copied, groups, means, variances, *running, Const(groups)),)
    else:
        walk, reduction = _group_walk(x, kind, groups, 1), moments_of(x.dtype, own, np.float64)
        steps, scratch = reduction_steps(
            reduction, walk, (elements,), (variances, means), float(walk.elements)
        )
        if running:
            unbias = Const(float(unbiasing(walk.elements)))
            steps += (
                each_step(_moved(own), groups, *running, means, variances, Const(groups), unbias,
                      Scalar(0, "f")),
            )  # fmt: skip
    weight, bias = (*(flat(k + 3, m) for k, m in enumerate(metas[1:3])), elements, elements)[:2]
    last = KernelStep(
        _result_kernel(PLANE, x.dtype, len(metas) > 1, kind == "batch"),
        (flat(0, out), elements, means, variances, weight, bias, *consts),
        blocks_for(blocks, 1),
        (cut.block, 1, 1),
    )
    return CudaLaunch(launch.outputs, (*steps, last), scratch)


def planes_backward(launch: Launch, metas: Metas, kind: str, eps: float, fixed: bool) -> CudaLaunch:
    """dx of (g, x, stats), or dx, dw and db of these and a weight; `fixed`: stats were given."""
    outputs, (g_meta, x, stats, *weights) = launch.outputs, metas
    at, own, groups = len(outputs), number_type(x.dtype), stats.numel // 2
    g, elements, (means, variances) = flat(at, g_meta), flat(at + 1, x), halves(at + 2, stats)
    weight = flat(at + 3, weights[0]) if weights else g
    channels, space = sizes_of(x)
    batch = kind == "batch"
    planes = groups if batch else x.numel // space
    count = max(1, planes // groups)
    parts = [Scratch(8 * planes * i, "float64", (planes,)) for i in range(2)]
    slopes = [Scratch(16 * planes + 8 * groups * i, "float64", (groups,)) for i in range(2)]
    start = 16 * (planes + groups)
    walk, plain_slanted = _group_walk(x, kind, groups, count), (parts[0], parts[1])
    reduction = reduction_of(PLANE_SLOPES, x.dtype, True, count)
    steps, scratch = reduction_steps(
        reduction, walk, (g, elements, means), plain_slanted, 1.0, start
    )
    share = 0.0 if fixed else 1.0 / (x.numel // groups)
    sizes = Const(Groups(groups, count, channels, share, float(eps)))
    steps += (
        each_step(_group_slopes(bool(weights)), groups, *slopes, *parts, variances, weight, sizes),
    )
    if weights:
        dw, db = flat(1, outputs[1]), flat(2, outputs[2])
        steps += (each_step(_channel_sums(own), channels, dw, db, *parts, variances, sizes),)
    consts, cut, blocks = _plane_params(x, groups, eps)
    last = KernelStep(
        _result_kernel(PLANE_BACKWARD, x.dtype, bool(weights), batch),
        (flat(0, outputs[0]), g, elements, means, variances, weight, *slopes, *consts),
        blocks_for(blocks, 1),
        (cut.block, 1, 1),
    )
    return CudaLaunch(outputs, (*steps, last), start + scratch)
