"""Normalisation by mean and variance: layer, batch, group, instance and RMS norm are one kernel.

They differ in what is averaged together, a group, and in which weight an element has; a `_Groups`
says both in strides.

    out = (x - mean) * rstd * weight + bias      mean, var: over x's group; rstd = 1 / sqrt(var +
    eps)

The gradient of x is D(g * weight), where D(h) = rstd * (h - M(h) - xhat * M(h * xhat)) and M
averages over the group.  D is an op as well, symmetric in h and v, and its gradient is again made
of D: derivatives of every order are exact.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from flowvm.dtype import finfo, float16, float32
from flowvm.errors import ArgumentError, DTypeError, ShapeError
from flowvm.meta import TensorMeta
from flowvm.ops.core import sum_to
from flowvm.ops.elementwise import elementwise
from flowvm.ops.registry import GRAIN, Launch, Sample, View, op, samples
from flowvm.ops.rows import centered_dot, squares_of, sum_of
from flowvm.tensor import Tensor

__all__ = [
    "batch_norm",
    "group_norm",
    "instance_norm",
    "layer_norm",
    "normalize",
    "rms_norm",
]

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


# --- ops -----------------------------------------------------------------------------------------


def _flat(*metas: TensorMeta) -> tuple[View, ...]:
    return tuple(View(m.dtype, (m.numel,)) for m in metas)


def _grain(groups: _Groups) -> int:
    return max(1, GRAIN // max(1, groups.segments * groups.inner))


def _check_weights(name: str, x: TensorMeta, length: int, **weights: TensorMeta) -> None:
    if not x.dtype.is_floating_point:
        raise DTypeError(f"{name} needs a floating point input, got {x.dtype.name}")
    for which, w in weights.items():
        if w.numel != length or w.dtype is not x.dtype:
            raise ShapeError(
                f"{name}: {which} must be {x.dtype.name} with {length} elements, got "
                f"{w.dtype.name} of shape "
                f"{tuple(w.shape)}"
            )


def _plain_grad(c: Any, g: Any, g_mean: Any, g_var: Any) -> tuple[Any, ...]:
    x, mean, var = c.saved
    kind, size, _, center = c.attrs
    dx = None if g is None else _spread_back(g, x, mean, var, *c.attrs)
    if g_mean is None and g_var is None:
        return (dx,)
    shape, dims, small = _cube(c.metas[0], kind, size)
    n = math.prod(shape[d] for d in dims)
    x3, extra = x.reshape(shape), None
    if center and g_mean is not None:
        extra = (g_mean / n).reshape(small)
    if g_var is not None:
        middle = x3.mean(dims, keepdim=True) if center else 0.0
        part = (x3 - middle) * (g_var * (2 / n)).reshape(small)
        extra = part if extra is None else part + extra
    if extra is None:
        return (dx,)
    extra = extra.expand(shape).reshape(x.shape)
    return (extra if dx is None else dx + extra,)


@op("input -> out, mean, var", name="normalize", saves="input, mean, var", grad=_plain_grad)
def _plain(input: TensorMeta, kind: str, size: int, eps: float, center: bool) -> Launch:
    _check_weights(f"{kind} norm", input, 0)
    groups = _groups(input, kind, size)
    out, stat = input.dense(), input.with_shape((groups.groups,))
    consts = (*groups[1:], float(eps), bool(center))
    views = _flat(out, stat, stat, input)
    return Launch((out, stat, stat), _plain_body, views, consts, groups.groups, _grain(groups))


def _spread_grad(c: Any, v: Tensor) -> tuple[Any, ...]:
    h, x, mean, var = c.saved
    kind, size, eps, center = c.attrs
    dv = _spread_back(v, x, mean, var, *c.attrs)
    if not c.needs[1]:
        return dv, None, None, None
    dh = _spread_back(h, x, mean, var, *c.attrs)
    xhat, _, variance = _plain(x, *c.attrs)
    shape, dims, small = _cube(c.metas[1], kind, size)

    def average(t: Tensor) -> Any:
        return t.mean(dims, keepdim=True)

    v3, h3, xhat = v.reshape(shape), h.reshape(shape), xhat.reshape(shape)
    rstd = (variance + eps).rsqrt().reshape(small)
    a, b = average(v3 * xhat), average(h3 * xhat)
    q = average(v3 * h3) - a * b
    if center:
        q = q - average(v3) * average(h3)
    dx = -(rstd * (rstd * xhat * q + b * dv.reshape(shape) + a * dh.reshape(shape)))
    return dv, dx.reshape(x.shape), None, None


@op(
    "h, x, mean, var -> out",
    name="normalize_backward",
    saves="h, x, mean, var",
    grad=_spread_grad,
)
def _spread_back(
    h: TensorMeta,
    x: TensorMeta,
    mean: TensorMeta,
    var: TensorMeta,
    kind: str,
    size: int,
    eps: float,
    center: bool,
) -> Launch:
    """D(h)."""
    groups = _groups(x, kind, size)
    consts = (*groups[1:], float(eps), bool(center))
    views = _flat(x, h, x, mean, var)
    return Launch((x.dense(),), _plain_backward_body, views, consts, groups.groups, _grain(groups))


def _weight_shape(x: TensorMeta, kind: str, weight: TensorMeta) -> tuple[int, ...]:
    """The shape in which a weight broadcasts over x."""
    if kind == "layer":
        return tuple(weight.shape)
    return (weight.numel,) + (1,) * (x.ndim - 2)


def _weighted_back_grad(c: Any, v: Tensor) -> tuple[Any, ...]:
    g, x, mean, var, weight = c.saved
    kind = c.attrs[0]
    wide = weight.reshape(_weight_shape(c.metas[1], kind, c.metas[4]))
    dv = _spread_back(v, x, mean, var, *c.attrs)
    dx = None
    if c.needs[1]:  # through x as D sees it, with g * weight for its h
        held = _Context((g * wide, x, mean, var), c)
        dx = _spread_grad(held, v)[1]
    dw = sum_to(dv * g, wide._meta.shape).reshape(weight.shape) if c.needs[4] else None
    return dv * wide if c.needs[0] else None, dx, None, None, dw


class _Context:
    """What `_spread_grad` needs of a node, for D(h) inside another op."""

    def __init__(self, saved: tuple[Tensor, ...], c: Any) -> None:
        self.saved = saved
        self.metas = c.metas
        self.needs = (True, True, False, False)
        self.attrs = c.attrs


@op(
    "g, x, mean, var, weight -> out",
    name="normalize_backward",
    saves="g, x, mean, var, weight",
    grad=_weighted_back_grad,
)
def _weighted_back(
    g: TensorMeta,
    x: TensorMeta,
    mean: TensorMeta,
    var: TensorMeta,
    weight: TensorMeta,
    kind: str,
    size: int,
    eps: float,
    center: bool,
) -> Launch:
    """D(g * weight)."""
    groups = _groups(x, kind, size)
    consts = (*groups[1:], float(eps), bool(center))
    views = _flat(x, g, x, mean, var, weight)
    return Launch(
        (x.dense(),), _weighted_backward_body, views, consts, groups.groups, _grain(groups)
    )


def _sums_grad(c: Any, vw: Any, vb: Any) -> tuple[Any, ...]:
    """Of dw = sum(g * xhat) and db = sum(g)."""
    g, x, mean, var = c.saved
    kind, shape = c.attrs[0], c.metas[1].shape
    dg = dx = None
    if vw is not None:
        wide = vw.reshape(_weight_shape(c.metas[1], kind, vw._meta))
        xhat = _plain(x, *c.attrs)[0]
        dg = wide * xhat
        dx = _spread_back(g * wide, x, mean, var, *c.attrs) if c.needs[1] else None
    if vb is not None:
        wide = vb.reshape(_weight_shape(c.metas[1], kind, vb._meta))
        dg = wide.expand(shape) if dg is None else dg + wide
    return dg, dx, None, None


@op(
    "g, x, mean, var -> dw, db",
    name="normalize_sums",
    saves="g, x, mean, var",
    grad=_sums_grad,
)
def _sums(
    g: TensorMeta,
    x: TensorMeta,
    mean: TensorMeta,
    var: TensorMeta,
    kind: str,
    size: int,
    eps: float,
    center: bool,
) -> Launch:
    """The gradients of weight and bias."""
    if kind == "layer":
        count, n = x.numel // size if size else 0, size
        out = x.with_shape(_trailing(x, size))
        views = _flat(out, out, g, x, mean, var)
        units = -(-n // COLUMNS)
        grain = max(1, GRAIN // max(1, count * COLUMNS))
        return Launch((out, out), _column_sums_body, views, (count, n, float(eps)), units, grain)
    count, channels, space = x.shape[0], x.shape[1], math.prod(x.shape[2:])
    each = 0 if kind == "batch" else channels // size
    out = x.with_shape((channels,))
    views = _flat(out, out, g, x, mean, var)
    consts = (count, channels, space, each, float(eps))
    grain = max(1, GRAIN // max(1, count * space))
    return Launch((out, out), _channel_sums_body, views, consts, channels, grain)


def _trailing(x: TensorMeta, size: int) -> tuple[int, ...]:
    """The trailing dimensions of x that have `size` elements together."""
    shape: list[int] = []
    for d in reversed(x.shape):
        if math.prod(shape) == size and shape:
            break
        shape.insert(0, d)
    return tuple(shape)


def _affine_grad(c: Any, g: Any, g_mean: Any, g_var: Any) -> tuple[Any, ...]:
    x, weight, mean, var = c.saved
    dx = dw = db = None
    if g is not None:
        if c.needs[0]:
            dx = _weighted_back(g, x, mean, var, weight, *c.attrs)
        if c.needs[1] or c.needs[2]:
            dw, db = _sums(g, x, mean, var, *c.attrs)
            dw, db = dw.reshape(c.metas[1].shape), db.reshape(c.metas[2].shape)
    return dx, dw, db


@op(
    "input, weight, bias -> out, mean, var",
    name="normalize",
    saves="input, weight, mean, var",
    grad=_affine_grad,
)
def _affine(
    input: TensorMeta,
    weight: TensorMeta,
    bias: TensorMeta,
    kind: str,
    size: int,
    eps: float,
    center: bool,
) -> Launch:
    length = size if kind == "layer" else input.shape[1]
    _check_weights(f"{kind} norm", input, length, weight=weight, bias=bias)
    groups = _groups(input, kind, size)
    out, stat = input.dense(), input.with_shape((groups.groups,))
    consts = (*groups[1:], float(eps), bool(center))
    views = _flat(out, stat, stat, input, weight, bias)
    return Launch((out, stat, stat), _affine_body, views, consts, groups.groups, _grain(groups))


@op(
    "running_mean!, running_var!, mean, var -> ",
    name="update_running_statistics",
    scalars="momentum: float",
)
def _update(
    running_mean: TensorMeta,
    running_var: TensorMeta,
    mean: TensorMeta,
    var: TensorMeta,
    count: int,
) -> Launch:
    unbias = count / max(1, count - 1)
    views = _flat(running_mean, running_var, mean, var)
    return Launch((), _update_body, views, (float(unbias),), mean.numel, GRAIN)


def _scale_shift_grad(c: Any, g: Tensor) -> tuple[Any, ...]:
    x, y = c.saved
    return (
        sum_to(g * y, c.metas[0].shape) if c.needs[0] else None,
        sum_to(g * x, c.metas[1].shape) if c.needs[1] else None,
        sum_to(g, c.metas[2].shape) if c.needs[2] else None,
    )


_scale_shift = elementwise("scale_shift", "x * y + z", saves="x, y", grad=_scale_shift_grad)


def _normalized(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    kind: str,
    size: int,
    eps: float,
    center: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """(out, mean, var) for any mixture of weight and bias."""
    if weight is not None and bias is not None:
        result: tuple[Tensor, Tensor, Tensor] = _affine(x, weight, bias, kind, size, eps, center)
        return result
    out, mean, var = _plain(x, kind, size, eps, center)
    length = size if kind == "layer" else x.shape[1]
    if weight is not None:
        _check_weights(f"{kind} norm", x._meta, length, weight=weight._meta)
        out = out * weight.reshape(_weight_shape(x._meta, kind, weight._meta))
    if bias is not None:
        _check_weights(f"{kind} norm", x._meta, length, bias=bias._meta)
        out = out + bias.reshape(_weight_shape(x._meta, kind, bias._meta))
    return out, mean, var


# --- functions
# -------------------------------------------------------------------------------------


def _size_of(
    name: str, x: Tensor, normalized_shape: int | Sequence[int], **weights: Tensor | None
) -> int:
    """The number of elements in `normalized_shape`, which must be x's last dimensions and the
    weights' shape.
    """
    shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    have = tuple(x._meta.shape)
    if not shape or have[len(have) - len(shape) :] != shape:
        raise ShapeError(
            f"{name}: normalized_shape {shape} must be the last dimensions of the input's shape "
            f"{have}"
        )
    for which, w in weights.items():
        if w is not None and tuple(w._meta.shape) != shape:
            raise ShapeError(
                f"{name}: {which} must have normalized_shape {shape}, got {tuple(w.shape)}"
            )
    return math.prod(shape)


def layer_norm(
    input: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """(x - mean) / sqrt(var + eps) * weight + bias, with mean and variance over the last
    dimensions.

    `normalized_shape` names these dimensions and is the shape of `weight` and `bias`.
    """
    size = _size_of("layer_norm", input, normalized_shape, weight=weight, bias=bias)
    return _normalized(input, weight, bias, "layer", size, eps, True)[0]


def rms_norm(
    input: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    """x / sqrt(mean(x²) + eps) * weight, the mean over the last dimensions; eps None is the
    dtype's.
    """
    size = _size_of("rms_norm", input, normalized_shape, weight=weight)
    eps = finfo(input._meta.dtype).eps if eps is None else eps
    return _normalized(input, weight, None, "layer", size, eps, False)[0]


def _check_channels(name: str, x: Tensor, **per_channel: Tensor | None) -> int:
    if x._meta.ndim < 2:
        raise ShapeError(f"{name}: input must be (N, C, ...), got shape {tuple(x.shape)}")
    channels: int = x._meta.shape[1]
    for which, t in per_channel.items():
        if t is not None and tuple(t._meta.shape) != (channels,):
            raise ShapeError(
                f"{name}: {which} has one number for each of {channels} channels, got shape "
                f"{tuple(t.shape)}"
            )
    return channels


def group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Normalise each sample of (N, C, ...) within `num_groups` groups of its channels; weight and
    bias are per channel.
    """
    channels = _check_channels("group_norm", input, weight=weight, bias=bias)
    if num_groups <= 0 or channels % num_groups:
        raise ShapeError(f"group_norm: {channels} channels do not divide into {num_groups} groups")
    return _normalized(input, weight, bias, "group", num_groups, eps, True)[0]


def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Normalise each channel of (N, C, ...), by the batch's mean and variance if `training`, else
    by the running ones.

    Training moves `running_mean` and `running_var` by `momentum` towards the batch's, in place, the
    variance unbiased.
    """
    channels = _check_channels(
        "batch_norm",
        input,
        running_mean=running_mean,
        running_var=running_var,
        weight=weight,
        bias=bias,
    )
    if not training:
        return _with_running(input, running_mean, running_var, weight, bias, eps)
    count = input._meta.numel // max(1, channels)
    if count == 1:
        raise ArgumentError(
            f"batch_norm: training needs more than one value per channel, got input of shape "
            f"{tuple(input.shape)}"
        )
    out, mean, var = _normalized(input, weight, bias, "batch", channels, eps, True)
    if running_mean is not None and running_var is not None:
        _update(running_mean, running_var, mean.detach(), var.detach(), count, float(momentum))
    return out


def _with_running(
    x: Tensor,
    mean: Tensor | None,
    var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> Tensor:
    if mean is None or var is None:
        raise ArgumentError("batch_norm: without training, running_mean and running_var are needed")
    scale = (var + eps).rsqrt()
    if weight is not None:
        scale = scale * weight
    shift = -(mean * scale) if bias is None else bias - mean * scale
    shape = (-1,) + (1,) * (x._meta.ndim - 2)
    dtype = x._meta.dtype
    scale, shift = scale.reshape(shape).to(dtype), shift.reshape(shape).to(dtype)
    out: Tensor = _scale_shift.call(x, scale, shift)
    return out


def instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Normalise each channel of each sample of (N, C, ...) by its own mean and variance.

    With running statistics, these move by `momentum` towards the average over the samples; without
    `use_input_stats` they are what normalises.
    """
    channels = _check_channels(
        "instance_norm",
        input,
        running_mean=running_mean,
        running_var=running_var,
        weight=weight,
        bias=bias,
    )
    if not use_input_stats:
        return _with_running(input, running_mean, running_var, weight, bias, eps)
    space = math.prod(input._meta.shape[2:])
    if space == 1:
        raise ArgumentError(
            f"instance_norm needs more than one element per channel, got input of shape "
            f"{tuple(input.shape)}"
        )
    out, mean, var = _normalized(input, weight, bias, "group", channels, eps, True)
    if running_mean is not None and running_var is not None:
        mean, var = (s.detach().reshape((-1, channels)).mean(0) for s in (mean, var))
        _update(running_mean, running_var, mean, var, space, float(momentum))
    return out


def normalize(input: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Tensor:
    """x divided by its p-norm over `dim`, or by eps where that is smaller."""
    if input._meta.dtype is float16:
        found: Tensor = normalize(input.to(float32), p, dim, eps).to(float16)
        return found
    if p == 2:
        # The clamp comes before the root: at 0 it lets no gradient through, where the root's is
        # infinite.
        squares = (input * input).sum(dim, keepdim=True)
        result: Tensor = input / squares.clamp(min=eps * eps).sqrt()
        return result
    size = input.abs()
    if p == math.inf:
        norm = size.amax(dim, keepdim=True)
    elif p == 1:
        norm = size.sum(dim, keepdim=True)
    else:
        norm = (size**p).sum(dim, keepdim=True) ** (1 / p)
    out: Tensor = input / norm.clamp(min=eps)
    return out


# --- samples
# -----------------------------------------------------------------------------------------


def _reference(
    x: Any, axes: tuple[int, ...], weight: Any, bias: Any, eps: float, center: bool = True
) -> Any:
    middle = x.mean(axes, keepdims=True) if center else 0.0
    out = (x - middle) / np.sqrt(((x - middle) ** 2).mean(axes, keepdims=True) + eps)
    out = out if weight is None else out * weight
    return out if bias is None else out + bias


def _channels(x: Any, w: Any) -> Any:
    return None if w is None else w.reshape((-1,) + (1,) * (x.ndim - 2))


def _layer_reference(
    x: Any, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Any:
    n = 1 if isinstance(shape, int) else len(shape)
    return _reference(x, tuple(range(x.ndim - n, x.ndim)), weight, bias, eps)


def _group_reference(
    x: Any, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Any:
    flat = _reference(x.reshape(x.shape[0], groups, -1), (2,), None, None, eps).reshape(x.shape)
    flat = flat if weight is None else flat * _channels(x, weight)
    return flat if bias is None else flat + _channels(x, bias)


def _batch_reference(x: Any, mean: Any, var: Any, weight: Any, bias: Any, training: bool) -> Any:
    if training:
        axes = (0, *range(2, x.ndim))
        return _reference(x, axes, _channels(x, weight), _channels(x, bias), 1e-5)
    mean, var, weight, bias = (_channels(x, v) for v in (mean, var, weight, bias))
    return (x - mean) / np.sqrt(var + 1e-5) * weight + bias


def _register() -> None:
    def layer(rng: np.random.Generator) -> list[Sample]:
        x = rng.standard_normal
        return [
            Sample((x((3, 4)), 4, x(4), x(4))),
            Sample((x((2, 3, 4)), (3, 4), x((3, 4)), x((3, 4)))),
            Sample((x((3, 4)), (4,))),
            Sample((x((3, 4)), (4,), x(4))),
            Sample((x((0, 4)), (4,), x(4), x(4))),
        ]

    samples(
        layer_norm,
        layer,
        _layer_reference,
        errors=((lambda flow: flow.layer_norm(flow.ones(2, 3), (2,)), RuntimeError),),
    )
    samples(
        rms_norm,
        lambda rng: [
            Sample((rng.standard_normal((3, 4)), (4,), rng.standard_normal(4), 1e-5)),
            Sample((rng.standard_normal((2, 3, 4)), (3, 4), None, 1e-5)),
        ],
        lambda x, shape, weight, eps: _reference(
            x, tuple(range(x.ndim - len(shape), x.ndim)), weight, None, eps, False
        ),
    )
    samples(
        group_norm,
        lambda rng: [
            Sample(
                (rng.standard_normal((2, 4, 3)), 2, rng.standard_normal(4), rng.standard_normal(4))
            ),
            Sample(
                (rng.standard_normal((3, 4)), 2, rng.standard_normal(4), rng.standard_normal(4))
            ),
            Sample((rng.standard_normal((2, 4, 2)), 4)),
        ],
        _group_reference,
        errors=((lambda flow: flow.group_norm(flow.ones(2, 3), 2), RuntimeError),),
    )
    samples(
        instance_norm,
        lambda rng: [
            Sample(
                (rng.standard_normal((2, 3, 4)),),
                {"weight": rng.standard_normal(3), "bias": rng.standard_normal(3)},
            ),
            Sample((rng.standard_normal((2, 2, 2, 2)),)),
        ],
        lambda x, weight=None, bias=None: _group_reference(x, x.shape[1], weight, bias),
        errors=((lambda flow: flow.instance_norm(flow.ones(2, 3, 1)), ValueError),),
    )

    def batch(rng: np.random.Generator) -> list[Sample]:
        x = rng.standard_normal
        return [
            Sample((x((4, 3)), None, None, x(3), x(3), True)),
            Sample((x((2, 2, 3)), None, None, x(2), x(2), True)),
            Sample((x((2, 3, 2)), x(3), rng.uniform(1, 2, 3), x(3), x(3), False)),
        ]

    samples(
        batch_norm,
        batch,
        _batch_reference,
        errors=(
            (lambda flow: flow.batch_norm(flow.ones(1, 3), None, None, training=True), ValueError),
            (lambda flow: flow.batch_norm(flow.ones(2, 3), None, None), ValueError),
            (lambda flow: flow.batch_norm(flow.ones(2, 3), None, None, flow.ones(2)), RuntimeError),
        ),
    )
    samples(
        normalize,
        lambda rng: [
            Sample((rng.standard_normal((3, 4)),)),
            Sample((rng.standard_normal((3, 4)), 3.0, 0)),
            Sample((rng.standard_normal((3, 4)), 1.0, -1)),
        ],
        lambda x, p=2.0, dim=1: x / np.linalg.norm(x, p, dim, keepdims=True),
    )


_register()
