"""Normalisation by mean and variance as ops, differentiable any number of times.

    out = (x - mean) * rstd * weight + bias      mean, var: over x's group, rstd = (var + eps)^-1/2

The gradient of x is D(g * weight), where D(h) = rstd * (h - M(h) - xhat * M(h * xhat)) and M
averages over the group.  D is an op as well, symmetric in h and v, and its gradient is again made
of D: derivatives of every order are exact.  One instruction forward and one backward: that has the
gradients of weight and bias too.  `stats` (2, groups), the means and variances, is a constant for
autograd, which reads it as part of x.  It is float64, for a variance has twice the range of x; a
usual one is rounded as x is.  Of layer norm it has the dimensions of the rows in the place
of groups, so that it can be cut among ranks along each of them, as x is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from flowvm.eager.tensor import Tensor
from flowvm.launch import GRAIN, Launch, View
from flowvm.meta.dtype import float64
from flowvm.meta.meta import TensorMeta
from flowvm.ops.declare.composite import filled_of
from flowvm.ops.declare.core import sum_to
from flowvm.ops.declare.kinds import Count
from flowvm.ops.declare.letters import unsplit
from flowvm.ops.declare.registry import op
from flowvm.ops.rows.cpu.norm_launch import (
    Size,
    backward_launch,
    cube_of,
    forward_launch,
    groups_of,
)
from flowvm.ops.rows.parts.norm_checks import check_channels, check_norm
from flowvm.ops.rows.parts.norm_letters import normalized, normalized_back
from flowvm.ops.rows.parts.norm_rules import moved, unbiasing

if TYPE_CHECKING:
    from flowvm.eager.nodes import Node


def _forward(
    x: TensorMeta, kind: str, size: Size, eps: float, center: bool, **weights: TensorMeta
) -> Launch:
    check_norm(x, kind, size, center, **weights)
    inputs = x, *weights.values()
    groups = (
        x.shape[: x.ndim - len(size)] if isinstance(size, tuple) else (groups_of(x, kind, size),)
    )
    outputs = x.dense(), x.with_shape((2, *groups), float64)
    return forward_launch(outputs, inputs, kind, size, eps, center, False)


@op(
    "input -> out, stats",
    name="normalize",
    saves="input, stats",
    constants="stats",
    grad=lambda c, g: (_back(g, *c.saved, *c.attrs),),
    cuda="norms:forward",
    letters=normalized,
)
def _plain(
    input: TensorMeta,
    kind: Literal["batch", "layer", "group", "instance", "rms"],
    size: Size,
    eps: float,
    center: bool,
) -> Launch:
    return _forward(input, kind, size, eps, center)


# --- D, and D of g * weight with the gradients of weight and bias ---------------------------------


def _back_grad(c: Node, v: Tensor) -> tuple[object, ...]:
    h, x, stats = c.saved
    return _back(v, x, stats, *c.attrs), _along_x(c, v, h, x, stats) if c.needs[1] else None, None


def _along_x(c: Node, v: Tensor, h: Tensor, x: Tensor, stats: Tensor) -> Tensor:
    """The gradient of <v, D(h)> by x."""
    kind, size, eps, center = c.attrs
    shape, dims = cube_of(x._meta, kind, size)

    def average(t: Tensor) -> Tensor:
        return t.mean(dims, keepdim=True)

    x3 = x.reshape(shape)
    apart = x3 - average(x3) if center else x3
    rstd = (average(apart * apart) + eps).rsqrt()
    xhat = apart * rstd
    v3, h3 = v.reshape(shape), h.reshape(shape)
    a, b = average(v3 * xhat), average(h3 * xhat)
    q = average(v3 * h3) - a * b
    if center:
        q = q - average(v3) * average(h3)
    dv, dh = (_back(t, x, stats, *c.attrs).reshape(shape) for t in (v, h))
    out: Tensor = -(rstd * (rstd * xhat * q + b * dv + a * dh)).reshape(x.shape)
    return out


@op(
    "h, x, stats -> out",
    name="normalize_backward",
    saves="h, x, stats",
    grad=_back_grad,
    cuda="norms:backward",
    letters=normalized_back,
)
def _back(
    h: TensorMeta,
    x: TensorMeta,
    stats: TensorMeta,
    kind: Literal["batch", "layer", "group", "instance", "rms"],
    size: Size,
    eps: float,
    center: bool,
) -> Launch:
    """D(h)."""
    return backward_launch((x.dense(),), (h, x, stats), kind, size, eps, center, False)


def _weight_shape(x: TensorMeta, kind: str, weight: TensorMeta) -> tuple[int, ...]:
    """The shape in which a weight broadcasts over x."""
    if kind == "layer":
        return tuple(weight.shape)
    return (weight.numel,) + (1,) * (x.ndim - 2)


def _full_back_grad(c: Node, vx: Tensor, vw: Tensor, vb: Tensor) -> tuple[object, ...]:
    """Differentiate dx = D(g * weight), dw = sum(g * xhat) and db = sum(g)."""
    g, x, stats, weight = c.saved
    kind = c.attrs[0]
    wide, vw, vb = (t.reshape(_weight_shape(x._meta, kind, weight._meta)) for t in (weight, vw, vb))
    dv = _back(vx, x, stats, *c.attrs)
    dg = dx = dw = None
    if c.needs[0]:
        dg = dv * wide + vw * _plain(x, *c.attrs)[0] + vb
    if c.needs[1]:
        dx = _along_x(c, vx, g * wide, x, stats) + _back(g * vw, x, stats, *c.attrs)
    if c.needs[3]:
        dw = sum_to(dv * g, wide._meta.shape).reshape(weight.shape)
    return dg, dx, None, dw


@op(
    "g, x, stats, weight -> dx, dw, db",
    name="normalize_backward",
    saves="g, x, stats, weight",
    grad=_full_back_grad,
    cuda="norms:backward",
    letters=normalized_back,
)
def _full_back(
    g: TensorMeta,
    x: TensorMeta,
    stats: TensorMeta,
    weight: TensorMeta,
    kind: Literal["batch", "layer", "group", "instance", "rms"],
    size: Size,
    eps: float,
    center: bool,
) -> Launch:
    outputs = x.dense(), weight.dense(), weight.dense()
    inputs = g, x, stats, weight
    return backward_launch(outputs, inputs, kind, size, eps, center, False)


# --- with weights ---------------------------------------------------------------------------------


def _weighted_grad(c: Node, g: Tensor) -> tuple[object, ...]:
    x, weight, stats = c.saved
    gradients: tuple[Any, ...] = _full_back(g, x, stats, weight, *c.attrs)[: len(c.metas)]
    return gradients


@op(
    "input, weight -> out, stats",
    name="normalize",
    saves="input, weight, stats",
    constants="stats",
    grad=_weighted_grad,
    cuda="norms:forward",
    letters=normalized,
)
def _weighted(
    input: TensorMeta,
    weight: TensorMeta,
    kind: Literal["batch", "layer", "group", "instance", "rms"],
    size: Size,
    eps: float,
    center: bool,
) -> Launch:
    """Lower layer norm with a weight."""
    return _forward(input, kind, size, eps, center, weight=weight)


@op(
    "input, weight, bias -> out, stats",
    name="normalize",
    saves="input, weight, stats",
    constants="stats",
    grad=_weighted_grad,
    cuda="norms:forward",
    letters=normalized,
)
def _affine(
    input: TensorMeta,
    weight: TensorMeta,
    bias: TensorMeta,
    kind: Literal["batch", "layer", "group", "instance", "rms"],
    size: Size,
    eps: float,
    center: bool,
) -> Launch:
    return _forward(input, kind, size, eps, center, weight=weight, bias=bias)


@op(
    "input, weight, bias, running_mean!, running_var! -> out, stats",
    name="batch_norm",
    saves="input, weight, stats",
    constants="stats",
    scalars="momentum: float",
    grad=lambda c, g: (*_tracking_back(g, *c.saved, *c.attrs), None, None),
    cuda="norms:tracking",
    letters=unsplit,
)
def _tracking(
    input: TensorMeta,
    weight: TensorMeta,
    bias: TensorMeta,
    running_mean: TensorMeta,
    running_var: TensorMeta,
    eps: float,
) -> Launch:
    """Batch norm that moves the running statistics."""
    check_norm(input, "batch", 0, True, weight=weight, bias=bias)
    check_channels("batch_norm", input, running_mean=running_mean, running_var=running_var)
    outputs = input.dense(), input.with_shape((2, int(input.shape[1])), float64)
    inputs = input, weight, bias, running_mean, running_var
    return forward_launch(outputs, inputs, "batch", 0, eps, True, False)


def _tracking_back(
    g: Tensor, x: Tensor, weight: Tensor, stats: Tensor, eps: float, momentum: float
) -> tuple[Tensor, ...]:
    result: tuple[Tensor, ...] = _full_back(g, x, stats, weight, "batch", 0, eps, True)
    return result


def _update_body(
    running_mean: Any, running_var: Any, mean: Any, var: Any, unbias: float, momentum: float,
    lo: int, hi: int,
) -> None:  # fmt: skip
    for c in range(lo, hi):
        running_mean[c] = moved(running_mean[c], mean[c], momentum)
        running_var[c] = moved(running_var[c], var[c] * unbias, momentum)


@op(
    "running_mean!, running_var!, mean, var -> ",
    name="update_running_statistics",
    scalars="momentum: float",
    letters=unsplit,
)
def _update(
    running_mean: TensorMeta,
    running_var: TensorMeta,
    mean: TensorMeta,
    var: TensorMeta,
    count: Count,
) -> Launch:
    metas = running_mean, running_var, mean, var
    views = tuple(View(m.dtype, (m.numel,)) for m in metas)
    return Launch((), _update_body, views, (float(unbiasing(count)),), mean.numel, GRAIN)


# --- by given statistics --------------------------------------------------------------------------


def _fixed_back_grad(c: Node, vx: Tensor, vw: Tensor, vb: Tensor) -> tuple[object, ...]:
    """Differentiate dx = g * rstd * weight, dw = sum(g * (x - mean) * rstd) and db = sum(g)."""
    g, x, stats, weight = c.saved
    shape = _weight_shape(x._meta, "batch", weight._meta)
    vw, vb, wide, mean, rstd = (
        t.to(x._meta.dtype).reshape(shape)
        for t in (vw, vb, weight, stats[0], (stats[1] + c.attrs[0]).rsqrt())
    )
    dg = dx = dw = None
    if c.needs[0]:
        dg = rstd * (vx * wide + vw * (x - mean)) + vb
    if c.needs[1]:
        dx = g * (vw * rstd)
    if c.needs[3]:
        dw = sum_to(vx * g * rstd, wide._meta.shape).reshape(weight.shape)
    return dg, dx, None, dw


@op(
    "g, x, stats, weight -> dx, dw, db",
    name="normalize_backward",
    saves="g, x, stats, weight",
    grad=_fixed_back_grad,
    cuda="norms:fixed_backward",
    letters=normalized_back,
)
def _fixed_back(
    g: TensorMeta, x: TensorMeta, stats: TensorMeta, weight: TensorMeta, eps: float
) -> Launch:
    outputs = x.dense(), weight.dense(), weight.dense()
    return backward_launch(outputs, (g, x, stats, weight), "batch", 0, eps, True, True)


@op(
    "input, weight, bias, mean, var -> out, stats",
    name="normalize",
    saves="input, weight, stats",
    constants="stats",
    grad=lambda c, g: (*_fixed_back(g, c.saved[0], c.saved[2], c.saved[1], *c.attrs), None, None),
    cuda="norms:fixed",
    letters=unsplit,
)
def _fixed(
    input: TensorMeta,
    weight: TensorMeta,
    bias: TensorMeta,
    mean: TensorMeta,
    var: TensorMeta,
    eps: float,
) -> Launch:
    """The mean and variance are constants for autograd."""
    check_norm(input, "fixed", 0, True, weight=weight, bias=bias)
    check_channels("batch_norm", input, mean=mean, var=var)
    outputs = input.dense(), input.with_shape((2, int(input.shape[1])), float64)
    inputs = input, weight, bias, mean, var
    return forward_launch(outputs, inputs, "batch", 0, eps, True, True)


# --- any mixture of weight and bias ---------------------------------------------------------------


def _both(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return weight and bias of x's channels; ones and zeros stand for missing ones."""
    if weight is not None and bias is not None:
        return weight, bias
    check_channels("norm", x._meta)
    channels = x._meta.with_shape((x._meta.shape[1],))
    return (
        filled_of(channels, 1) if weight is None else weight,
        filled_of(channels, 0) if bias is None else bias,
    )


def _normalized(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    kind: str,
    size: Size,
    eps: float,
    center: bool,
) -> tuple[Tensor, Tensor]:
    """(out, stats)."""
    result: tuple[Tensor, Tensor]
    if weight is not None and bias is not None:
        result = _affine(x, weight, bias, kind, size, eps, center)
    elif weight is None and bias is None:
        result = _plain(x, kind, size, eps, center)
    elif kind != "layer":
        result = _affine(x, *_both(x, weight, bias), kind, size, eps, center)
    elif weight is not None:
        result = _weighted(x, weight, kind, size, eps, center)
    elif bias is not None:
        result = _affine(x, filled_of(bias._meta, 1), bias, kind, size, eps, center)
    return result
