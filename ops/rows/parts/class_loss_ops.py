"""The ops of losses against class indices: one instruction forward, reduction and all, and one
backward.

Targets are data: one that names no class is found by the kernel and raises at the next sync.  The
second output, `notes`, is for the gradient (`class_loss_kernels`).
"""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING, Literal

from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, ShapeError
from flowvm.launch import Launch, View
from flowvm.meta.meta import TensorMeta
from flowvm.ops.declare.letters import unsplit
from flowvm.ops.declare.registry import op, power_below
from flowvm.ops.pointwise.compare import ne, where
from flowvm.ops.rows.cpu.class_loss_kernels import (
    BLOCK,
    MEAN,
    NONE,
    SUM,
    Kind,
    Rows,
    entropy_backward_body,
    entropy_body,
    likelihood,
    likelihood_backward,
)
from flowvm.ops.rows.softmax import _softmax_backward, softmax

if TYPE_CHECKING:
    from flowvm.eager.nodes import Node


CHUNK = 1 << 15  # logits of a chunk of work
_REDUCTIONS = {"none": NONE, "mean": MEAN, "sum": SUM}


def legacy_reduction(size_average: bool | None, reduce: bool | None, reduction: str) -> str:
    """`reduction` as two older arguments say it, where one of them is given."""
    if size_average is None and reduce is None:
        return reduction
    if reduce is not None and not reduce:
        replacement = "none"
    else:
        replacement = "mean" if size_average is None or size_average else "sum"
    warnings.warn(
        f"size_average and reduce are older than reduction: write reduction={replacement!r}",
        stacklevel=3,
    )
    return replacement


def check_reduction(name: str, reduction: str) -> None:
    """ArgumentError unless `reduction` is one there is."""
    if reduction not in _REDUCTIONS:
        raise ArgumentError(f'{name}: reduction is "none", "mean" or "sum", got {reduction!r}')


def check_classes(name: str, x: TensorMeta, target: TensorMeta) -> tuple[int, int, int]:
    """(N, C, inner) of input (C), (N, C) or (N, C, d1, ...) with the target's shape checked against
    it.
    """
    if x.ndim == 0 or not x.dtype.is_floating_point:
        raise ShapeError(
            f"{name}: input must be floating point of shape (C), (N, C) or (N, C, d1, ...), got "
            f"{x.dtype.name} "
            f"of shape {tuple(x.shape)}"
        )
    shape = tuple(x.shape)
    expected = () if x.ndim == 1 else (shape[0], *shape[2:])
    if tuple(target.shape) != expected:
        raise ShapeError(
            f"{name}: for input of shape {shape}, class indices have shape {expected}, got "
            f"{tuple(target.shape)}"
        )
    if shape[min(1, x.ndim - 1)] == 0:
        raise ShapeError(f"{name}: input of shape {shape} has no classes")
    if x.ndim == 1:
        return 1, shape[0], 1
    return shape[0], shape[1], math.prod(shape[2:])


def _check_weight(x: TensorMeta, n: int, weight: tuple[TensorMeta, ...]) -> None:
    for w in weight:
        if tuple(w.shape) != (n,) or w.dtype is not x.dtype:
            raise ShapeError(
                f"weight must be {x.dtype.name} of shape ({n},), one number a class, got "
                f"{w.dtype.name} of "
                f"shape {tuple(w.shape)}"
            )


def _flat(*metas: TensorMeta) -> tuple[View, ...]:
    return tuple(View(m.dtype, (m.numel,)) for m in metas)


def _optional(x: TensorMeta, weight: tuple[TensorMeta, ...]) -> View:
    return View.optional(_flat(*weight)[0] if weight else None, x.dtype)


# --- cross entropy --------------------------------------------------------------------------------


def _units(count: int, n: int, inner: int) -> tuple[int, int]:
    """Return the number of units, and the rows of one unit."""
    if inner == 1:  # a power of two, as other kernels' units of rows: a graph can join them
        tall = power_below(CHUNK // max(1, n))
        return -(-count // tall), tall
    width = min(inner, max(64, min(512, 2 * BLOCK // max(1, n)) // 16 * 16))
    return count * -(-inner // max(1, width)), max(1, width)


def _entropy_launch(
    x: TensorMeta,
    target: TensorMeta,
    weight: tuple[TensorMeta, ...],
    reduction: str,
    ignore_index: int,
    smoothing: float,
) -> Launch:
    count, n, inner = check_classes("cross_entropy", x, target)
    check_reduction("cross_entropy", reduction)
    _check_weight(x, n, weight)
    if not 0 <= smoothing <= 1:
        raise ArgumentError(f"cross_entropy: label_smoothing is between 0 and 1, got {smoothing}")
    units, size = _units(count, n, inner)
    notes = x.with_shape((2 * target.numel + 1,))
    loss = x.with_shape(() if reduction != "none" else target.shape)
    return Launch(
        (loss, notes),
        entropy_body(Kind.of(n, inner, bool(weight), smoothing)),
        _flat(loss, notes, x, target, *weight),
        (Rows(n, inner, size, _REDUCTIONS[reduction], ignore_index, float(smoothing)),),
        units,
        1 if inner == 1 else max(1, CHUNK // max(1, n * size)),
        scratch=max(8, 16 * units),
        arena=BLOCK * x.dtype.itemsize,
        phases=() if reduction == "none" else ((1, 1),),
        blocks=(0, 0, size * n, 0, *[0] * len(weight)) if inner == 1 else (),
    )


def _entropy_backward_launch(
    g: TensorMeta,
    x: TensorMeta,
    target: TensorMeta,
    notes: TensorMeta,
    weight: tuple[TensorMeta, ...],
    ignore_index: int,
    smoothing: float,
) -> Launch:
    count, n, inner = check_classes("cross_entropy", x, target)
    units, size = _units(count, n, inner)
    return Launch(
        (x.dense(),),
        entropy_backward_body(Kind.of(n, inner, bool(weight), 0.0)),
        _flat(x, g, x, target, notes, *weight),
        (Rows(n, inner, size, NONE, ignore_index, float(smoothing)),),
        units,
        1 if inner == 1 else max(1, CHUNK // max(1, n * size)),
        arena=3 * size * x.dtype.itemsize,
        blocks=(size * n, 0, size * n, 0, 0, *[0] * len(weight)) if inner == 1 else (),
    )


def _entropy_backward_grad(c: Node, v: Tensor) -> tuple[object, ...]:
    """Return the second gradient: linear in g, and by x that of g * (share * softmax(x) - ...)."""
    g, x, target, notes, *weight = c.saved
    reduction, ignored, smoothing = c.attrs
    axis = 0 if x.ndim == 1 else 1
    dg = dx = None
    if c.needs[0]:
        unit = _entropy_backward if not weight else _weighted_entropy_backward
        part = v * unit((g * 0 + 1).detach(), x, target, notes, *weight, *c.attrs)
        dg = part.sum(axis) if reduction == "none" else part.sum()
    if c.needs[1]:
        valid = ne(target, ignored)
        share = valid.to(x.dtype)
        if weight:
            chosen = where(valid, target, 0).reshape(-1)
            picked = weight[0].index_select(0, chosen).reshape(target.shape)
            share = share * (picked * (1 - smoothing) + weight[0].mean() * smoothing)
        scale = g / notes[-1] * share
        dx = _softmax_backward(v * scale.unsqueeze(axis), softmax(x, axis), axis)
    return dg, dx, *((None,) * len(c.metas[2:]))


@op(
    "g, input, target, notes -> out",
    name="cross_entropy_backward",
    saves="g, input, target, notes",
    grad=_entropy_backward_grad,
    cuda="class_loss:entropy_backward",
    letters=unsplit,
)
def _entropy_backward(
    g: TensorMeta,
    input: TensorMeta,
    target: TensorMeta,
    notes: TensorMeta,
    reduction: Literal["none", "mean", "sum"],
    ignore_index: int,
    smoothing: float,
) -> Launch:
    return _entropy_backward_launch(g, input, target, notes, (), ignore_index, smoothing)


@op(
    "g, input, target, notes, weight -> out",
    name="cross_entropy_backward",
    saves="g, input, target, notes, weight",
    grad=_entropy_backward_grad,
    cuda="class_loss:entropy_backward",
    letters=unsplit,
)
def _weighted_entropy_backward(
    g: TensorMeta,
    input: TensorMeta,
    target: TensorMeta,
    notes: TensorMeta,
    weight: TensorMeta,
    reduction: Literal["none", "mean", "sum"],
    ignore_index: int,
    smoothing: float,
) -> Launch:
    return _entropy_backward_launch(g, input, target, notes, (weight,), ignore_index, smoothing)


@op(
    "input, target -> loss, notes",
    name="cross_entropy",
    saves="input, target, notes",
    constants="notes",
    grad=lambda c, g: (_entropy_backward(g, *c.saved, *c.attrs), None),
    cuda="class_loss:entropy",
    letters=unsplit,
    amp="full",
)
def _entropy(
    input: TensorMeta,
    target: TensorMeta,
    reduction: Literal["none", "mean", "sum"],
    ignore_index: int,
    smoothing: float,
) -> Launch:
    return _entropy_launch(input, target, (), reduction, ignore_index, smoothing)


@op(
    "input, target, weight -> loss, notes",
    name="cross_entropy",
    saves="input, target, notes, weight",
    constants="notes",
    grad=lambda c, g: (_weighted_entropy_backward(g, *c.saved, *c.attrs), None, None),
    cuda="class_loss:entropy",
    letters=unsplit,
    amp="full",
)
def _weighted_entropy(
    input: TensorMeta,
    target: TensorMeta,
    weight: TensorMeta,
    reduction: Literal["none", "mean", "sum"],
    ignore_index: int,
    smoothing: float,
) -> Launch:
    """The weight is a constant for autograd."""
    return _entropy_launch(input, target, (weight,), reduction, ignore_index, smoothing)


# --- negative log likelihood: linear in the input -------------------------------------------------


def _nll_launch(
    x: TensorMeta,
    target: TensorMeta,
    weight: tuple[TensorMeta, ...],
    reduction: str,
    ignore_index: int,
) -> Launch:
    count, n, inner = check_classes("nll_loss", x, target)
    check_reduction("nll_loss", reduction)
    _check_weight(x, n, weight)
    tall = CHUNK // 8  # a target costs about as much as eight elements read in order
    units = -(-count * inner // tall)
    loss = x.with_shape(() if reduction != "none" else target.shape)
    notes = x.with_shape((1,))
    return Launch(
        (loss, notes),
        likelihood,
        (*_flat(loss, notes, x, target), _optional(x, weight)),
        (Rows(n, inner, tall, _REDUCTIONS[reduction], ignore_index, 0.0),),
        units,
        1,
        scratch=max(8, 16 * units),
        phases=() if reduction == "none" else ((1, 1),),
    )


def _nll_backward_launch(
    g: TensorMeta,
    target: TensorMeta,
    notes: TensorMeta,
    weight: tuple[TensorMeta, ...],
    shape: tuple[int, ...],
    ignore_index: int,
) -> Launch:
    out = g.with_shape(shape)
    count, n, inner = check_classes("nll_loss", out, target)
    return Launch(
        (out,),
        likelihood_backward,
        (*_flat(out, g, target, notes), _optional(out, weight)),
        (Rows(n, inner, 1, NONE, ignore_index, 0.0),),
        count,
        max(1, CHUNK // max(1, n * inner)),
    )


@op(
    "g, target, notes -> out",
    name="nll_loss_backward",
    saves="target",
    grad=lambda c, v: (_nll(v, c.saved[0], *c.attrs[1:])[0], None, None),
    cuda="class_loss:likelihood_backward",
    letters=unsplit,
)
def _nll_backward(
    g: TensorMeta,
    target: TensorMeta,
    notes: TensorMeta,
    shape: tuple[int, ...],
    reduction: Literal["none", "mean", "sum"],
    ignore_index: int,
) -> Launch:
    return _nll_backward_launch(g, target, notes, (), shape, ignore_index)


@op(
    "g, target, notes, weight -> out",
    name="nll_loss_backward",
    saves="target, weight",
    grad=lambda c, v: (_weighted_nll(v, *c.saved, *c.attrs[1:])[0], None, None, None),
    cuda="class_loss:likelihood_backward",
    letters=unsplit,
)
def _weighted_nll_backward(
    g: TensorMeta,
    target: TensorMeta,
    notes: TensorMeta,
    weight: TensorMeta,
    shape: tuple[int, ...],
    reduction: Literal["none", "mean", "sum"],
    ignore_index: int,
) -> Launch:
    return _nll_backward_launch(g, target, notes, (weight,), shape, ignore_index)


@op(
    "input, target -> loss, notes",
    name="nll_loss",
    saves="target, notes",
    constants="notes",
    grad=lambda c, g: (_nll_backward(g, *c.saved, tuple(c.metas[0].shape), *c.attrs), None),
    cuda="class_loss:likelihood",
    letters=unsplit,
    amp="full",
)
def _nll(
    input: TensorMeta,
    target: TensorMeta,
    reduction: Literal["none", "mean", "sum"],
    ignore_index: int,
) -> Launch:
    return _nll_launch(input, target, (), reduction, ignore_index)


@op(
    "input, target, weight -> loss, notes",
    name="nll_loss",
    saves="target, notes, weight",
    constants="notes",
    grad=lambda c, g: (
        _weighted_nll_backward(g, *c.saved, tuple(c.metas[0].shape), *c.attrs),
        None,
        None,
    ),
    cuda="class_loss:likelihood",
    letters=unsplit,
    amp="full",
)
def _weighted_nll(
    input: TensorMeta,
    target: TensorMeta,
    weight: TensorMeta,
    reduction: Literal["none", "mean", "sum"],
    ignore_index: int,
) -> Launch:
    """The weight is a constant for autograd."""
    return _nll_launch(input, target, (weight,), reduction, ignore_index)
