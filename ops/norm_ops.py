"""Normalisation by mean and variance as ops, differentiable any number of times.

    out = (x - mean) * rstd * weight + bias      mean, var: over x's group, rstd = (var + eps)^-1/2

The gradient of x is D(g * weight), where D(h) = rstd * (h - M(h) - xhat * M(h * xhat)) and M
averages over the group.  D is an op as well, symmetric in h and v, and its gradient is again made
of D: derivatives of every order are exact.

Long because the op, D and D's gradient define each other.
"""

from __future__ import annotations

import math
from typing import Any

from flowvm.errors import DTypeError, ShapeError
from flowvm.meta import TensorMeta
from flowvm.ops import norm_columns
from flowvm.ops.core import sum_to
from flowvm.ops.elementwise import elementwise
from flowvm.ops.norm_columns import (
    affine_columns,
    columns_sums,
    plain_columns,
    plain_columns_backward,
    weighted_columns_backward,
)
from flowvm.ops.norm_kernels import (
    COLUMNS,
    _affine_body,
    _channel_sums_body,
    _column_sums_body,
    _cube,
    _Groups,
    _groups,
    _plain_backward_body,
    _plain_body,
    _update_body,
    _weighted_backward_body,
)
from flowvm.ops.registry import GRAIN, Launch, View, op
from flowvm.tensor import Tensor


def _flat(*metas: TensorMeta) -> tuple[View, ...]:
    return tuple(View(m.dtype, (m.numel,)) for m in metas)


def _grain(groups: _Groups) -> int:
    return max(1, GRAIN // max(1, groups.segments * groups.inner))


def _columns_launch(
    outputs: tuple[TensorMeta, ...],
    body: Any,
    views: tuple[View, ...],
    rows: int,
    n: int,
    eps: float,
) -> Launch:
    units = -(-n // norm_columns.COLUMNS)
    scratch = max(16, 16 * units * norm_columns.COLUMNS)
    grain = max(1, GRAIN // max(1, rows * norm_columns.COLUMNS))
    return Launch(outputs, body, views, (rows, n, float(eps)), units, grain, scratch)


def _launch(
    outputs: tuple[TensorMeta, ...],
    bodies: tuple[Any, Any],
    views: tuple[View, ...],
    groups: _Groups,
    eps: float,
    center: bool,
) -> Launch:
    """The first of the bodies, or the second for the batch norm of (N, C)."""
    if groups.jump == groups.groups and groups.inner == 1 and center:
        return _columns_launch(outputs, bodies[1], views, groups.segments, groups.groups, eps)
    consts = (*groups[1:], float(eps), bool(center))
    return Launch(outputs, bodies[0], views, consts, groups.groups, _grain(groups))


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
    views = _flat(out, stat, stat, input)
    return _launch((out, stat, stat), (_plain_body, plain_columns), views, groups, eps, center)


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
    views = _flat(x, h, x, mean, var)
    bodies = _plain_backward_body, plain_columns_backward
    return _launch((x.dense(),), bodies, views, groups, eps, center)


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
    views = _flat(x, g, x, mean, var, weight)
    bodies = _weighted_backward_body, weighted_columns_backward
    return _launch((x.dense(),), bodies, views, groups, eps, center)


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
    if kind == "batch" and space == 1:
        return _columns_launch((out, out), columns_sums, views, count, channels, eps)
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
    views = _flat(out, stat, stat, input, weight, bias)
    return _launch((out, stat, stat), (_affine_body, affine_columns), views, groups, eps, center)


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
