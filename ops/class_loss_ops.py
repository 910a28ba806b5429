"""The ops of losses against class indices, with fused gradients.

Targets are data: one that names no class is found by the kernel and raises at the next sync.

Long because each fused loss stands with its kernels and its gradient's.
"""

from __future__ import annotations

import math
from typing import Any

from flowvm.errors import ArgumentError, ShapeError, Status
from flowvm.meta import TensorMeta
from flowvm.ops.compare import ne
from flowvm.ops.registry import GRAIN, Launch, View, op
from flowvm.ops.rows import sum_of, top_of
from flowvm.ops.scalar import exp, log
from flowvm.ops.softmax import _softmax_backward, softmax
from flowvm.tensor import Tensor

__all__ = ["check_reduction"]

Array = Any
RUN = 1024  # logits whose exponentials are held at a time
ONE_UNIT = 1 << 16  # logits up to which one thread does everything, the reduction too
BAD = int(Status.INDEX_OUT_OF_RANGE)


def check_reduction(name: str, reduction: str) -> None:
    """ArgumentError unless `reduction` is one there is."""
    if reduction not in ("none", "mean", "sum"):
        raise ArgumentError(f'{name}: reduction is "none", "mean" or "sum", got {reduction!r}')


def _entropy_body(
    loss: Array, rows: Array, x: Array, target: Array, n: int, tall: int, reduction: int,
    ignored: int, smoothing: float, scratch: Array, lo: int, hi: int, details: Array,
) -> int:  # fmt: skip
    """Units are blocks of `tall` rows.  rows: log(sum(exp)) of each row, then what the sum of the
    losses is divided by.
    """
    real = loss.dtype.type
    total, valid = real(0), 0
    for unit in range(lo, hi):
        es = scratch.view(loss.dtype)[unit * RUN : unit * RUN + RUN]
        for i in range(unit * tall, min((unit + 1) * tall, len(target))):
            xs, t = x[i * n : i * n + n], target[i]
            value = real(0)
            if t != ignored:
                if t < 0 or t >= n:
                    details[0], details[1], details[2] = t, n, 1
                    return BAD
                top, s = top_of(xs), real(0)
                for start in range(0, n, RUN):
                    part = xs[start : start + RUN]
                    for j in range(len(part)):
                        es[j] = exp(part[j] - top)
                    s += sum_of(es[: len(part)])
                s = log(s)
                rows[i] = s + top
                value = s - (xs[t] - top)
                if smoothing != 0:
                    spread = (s + top) - sum_of(xs) / real(n)
                    value += real(smoothing) * (spread - value)
                valid += 1
                total += value
            if reduction == 0:
                loss[i] = value
    if reduction == 1:
        rows[len(target)] = valid
        loss[0] = total / real(valid)
    elif reduction == 2:
        rows[len(target)] = 1
        loss[0] = total
    elif lo == 0:
        rows[len(target)] = 1
    return 0


def _entropy_backward_body(
    out: Array, g: Array, x: Array, target: Array, rows: Array, n: int, ignored: int,
    smoothing: float, lo: int, hi: int,
) -> None:  # fmt: skip
    real = out.dtype.type
    off = real(smoothing / n)
    for i in range(lo, hi):
        xs, os = x[i * n : i * n + n], out[i * n : i * n + n]
        if target[i] == ignored:
            for j in range(n):
                os[j] = 0
        else:
            scale, level = g[i if len(g) > 1 else 0] / rows[len(target)], rows[i]
            for j in range(n):
                os[j] = (exp(xs[j] - level) - off) * scale
            os[target[i]] -= real(1 - smoothing) * scale


_REDUCTIONS = {"none": 0, "mean": 1, "sum": 2}


def _check_classes(name: str, x: TensorMeta, target: TensorMeta) -> tuple[int, int, int]:
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
    wanted = () if x.ndim == 1 else (shape[0], *shape[2:])
    if tuple(target.shape) != wanted:
        raise ShapeError(
            f"{name}: for input of shape {shape}, class indices have shape {wanted}, got "
            f"{tuple(target.shape)}"
        )
    if x.ndim == 1:
        return 1, shape[0], 1
    return shape[0], shape[1], math.prod(shape[2:])


def _entropy_grad(c: Any, g: Tensor, _: Any) -> tuple[Any, ...]:
    x, target, rows = c.saved
    return _entropy_backward(g, x, target, rows, *c.attrs), None


def _entropy_backward_grad(c: Any, v: Tensor) -> tuple[Any, ...]:
    g, x, target, rows = c.saved
    reduction, ignored, _ = c.attrs
    dg = dx = None
    if c.needs[0]:
        unit = _entropy_backward((g * 0 + 1).detach(), x, target, rows, *c.attrs)
        dg = (v * unit).sum(-1) if reduction == "none" else (v * unit).sum()
    if c.needs[1]:
        scale = g * ne(target, ignored).to(x.dtype)
        if reduction == "mean":
            scale = scale / rows[-1]
        dx = _softmax_backward(v * scale.unsqueeze(-1), softmax(x, -1), -1)
    return dg, dx, None, None


@op(
    "g, input, target, rows -> out",
    name="cross_entropy_backward",
    saves="g, input, target, rows",
    grad=_entropy_backward_grad,
)
def _entropy_backward(
    g: TensorMeta,
    input: TensorMeta,
    target: TensorMeta,
    rows: TensorMeta,
    reduction: str,
    ignore_index: int,
    smoothing: float,
) -> Launch:
    count, n, _ = _check_classes("cross_entropy", input, target)
    return Launch(
        outputs=(input.dense(),),
        body=_entropy_backward_body,
        views=tuple(View(m.dtype, (m.numel,)) for m in (input, g, input, target, rows)),
        consts=(n, ignore_index, float(smoothing)),
        units=count,
        grain=max(1, GRAIN // max(1, n)),
    )


@op(
    "input, target -> loss, rows",
    name="cross_entropy",
    saves="input, target, rows",
    grad=_entropy_grad,
)
def _entropy(
    input: TensorMeta, target: TensorMeta, reduction: str, ignore_index: int, smoothing: float
) -> Launch:
    count, n, _ = _check_classes("cross_entropy", input, target)
    check_reduction("cross_entropy", reduction)
    if not 0 <= smoothing <= 1:
        raise ArgumentError(f"cross_entropy: label_smoothing is between 0 and 1, got {smoothing}")
    whole = reduction != "none" or count * n <= ONE_UNIT
    tall = max(1, count if whole else GRAIN // max(1, n))
    units = 1 if whole else -(-count // tall)
    loss = input.with_shape(() if reduction != "none" else target.shape)
    rows = input.with_shape((count + 1,))
    return Launch(
        outputs=(loss, rows),
        body=_entropy_body,
        views=tuple(View(m.dtype, (m.numel,)) for m in (loss, rows, input, target)),
        consts=(n, tall, _REDUCTIONS[reduction], ignore_index, float(smoothing)),
        units=units,
        scratch=units * RUN * input.dtype.itemsize,
    )


# --- negative log likelihood -----------------------------------------------------------------


def _pick(
    out: Array, x: Array, target: Array, weight: Array, weighted: bool, n: int, inner: int,
    ignored: int, lo: int, hi: int, details: Array,
) -> int:  # fmt: skip
    for i in range(lo, hi):
        t = target[i]
        if t == ignored:
            out[i] = 0
            continue
        if t < 0 or t >= n:
            details[0], details[1], details[2] = t, n, 1
            return BAD
        value = x[(i // inner * n + t) * inner + i % inner]
        out[i] = -(value * weight[t] if weighted else value)
    return 0


def _nll_body(
    out: Array, x: Array, target: Array, n: int, inner: int, ignored: int, lo: int, hi: int,
    details: Array,
) -> int:  # fmt: skip
    return _pick(out, x, target, x, False, n, inner, ignored, lo, hi, details)


def _weighted_nll_body(
    out: Array, x: Array, target: Array, weight: Array, n: int, inner: int, ignored: int,
    lo: int, hi: int, details: Array,
) -> int:  # fmt: skip
    return _pick(out, x, target, weight, True, n, inner, ignored, lo, hi, details)


def _place(
    out: Array, g: Array, target: Array, weight: Array, weighted: bool, n: int, inner: int,
    ignored: int, lo: int, hi: int,
) -> None:  # fmt: skip
    """Units are the N samples.  The targets have been checked by the forward pass."""
    for i in range(lo, hi):
        plane = out[i * n * inner : (i + 1) * n * inner]
        for j in range(len(plane)):
            plane[j] = 0
        for j in range(inner):
            t = target[i * inner + j]
            if t != ignored:
                value = g[i * inner + j]
                plane[t * inner + j] = -(value * weight[t] if weighted else value)


def _nll_backward_body(
    out: Array, g: Array, target: Array, n: int, inner: int, ignored: int, lo: int, hi: int
) -> None:
    _place(out, g, target, g, False, n, inner, ignored, lo, hi)


def _weighted_nll_backward_body(
    out: Array, g: Array, target: Array, weight: Array, n: int, inner: int, ignored: int,
    lo: int, hi: int,
) -> None:  # fmt: skip
    _place(out, g, target, weight, True, n, inner, ignored, lo, hi)


def _total(out: Array, target: Array, weight: Array, weighted: bool, ignored: int) -> None:
    total, valid = 0.0, 0
    for i in range(len(target)):
        if target[i] != ignored:
            valid += 1
            if weighted and 0 <= target[i] < len(weight):
                total += weight[target[i]]
    out[0] = total if weighted else valid


def _count_body(out: Array, target: Array, ignored: int, lo: int, hi: int) -> None:
    _total(out, target, out, False, ignored)


def _weight_body(out: Array, target: Array, weight: Array, ignored: int, lo: int, hi: int) -> None:
    _total(out, target, weight, True, ignored)


def _flat(*metas: TensorMeta) -> tuple[View, ...]:
    return tuple(View(m.dtype, (m.numel,)) for m in metas)


def _nll_launch(
    body: Any, x: TensorMeta, target: TensorMeta, *weight: TensorMeta, ignored: int
) -> Launch:
    count, n, inner = _check_classes("nll_loss", x, target)
    for w in weight:
        if tuple(w.shape) != (n,) or w.dtype is not x.dtype:
            raise ShapeError(
                f"weight must be {x.dtype.name} of shape ({n},), one number a class, got "
                f"{w.dtype.name} of "
                f"shape {tuple(w.shape)}"
            )
    out = x.with_shape(target.shape)
    views = _flat(out, x, target, *weight)
    return Launch((out,), body, views, (n, inner, ignored), count * inner, GRAIN)


def _nll_backward_launch(
    body: Any,
    shape: tuple[int, ...],
    g: TensorMeta,
    target: TensorMeta,
    *weight: TensorMeta,
    ignored: int,
) -> Launch:
    out = g.with_shape(shape)
    count, n, inner = _check_classes("nll_loss", out, target)
    views = _flat(out, g, target, *weight)
    grain = max(1, GRAIN // max(1, n * inner))
    return Launch((out,), body, views, (n, inner, ignored), count, grain)


@op(
    "input, target -> out",
    name="nll_loss",
    saves="target",
    grad=lambda c, g: (_nll_backward(g, c.saved[0], tuple(c.metas[0].shape), *c.attrs), None),
)
def _nll(input: TensorMeta, target: TensorMeta, ignore_index: int) -> Launch:
    return _nll_launch(_nll_body, input, target, ignored=ignore_index)


@op(
    "g, target -> out",
    name="nll_loss_backward",
    saves="target",
    grad=lambda c, v: (_nll(v, c.saved[0], c.attrs[1]), None),
)
def _nll_backward(
    g: TensorMeta, target: TensorMeta, shape: tuple[int, ...], ignore_index: int
) -> Launch:
    return _nll_backward_launch(_nll_backward_body, shape, g, target, ignored=ignore_index)


@op(
    "input, target, weight -> out",
    name="nll_loss",
    saves="target, weight",
    grad=lambda c, g: (
        _weighted_nll_backward(g, *c.saved, tuple(c.metas[0].shape), *c.attrs),
        None,
        None,
    ),
)
def _weighted_nll(
    input: TensorMeta, target: TensorMeta, weight: TensorMeta, ignore_index: int
) -> Launch:
    return _nll_launch(_weighted_nll_body, input, target, weight, ignored=ignore_index)


@op(
    "g, target, weight -> out",
    name="nll_loss_backward",
    saves="target, weight",
    grad=lambda c, v: (_weighted_nll(v, *c.saved, c.attrs[1]), None, None),
)
def _weighted_nll_backward(
    g: TensorMeta,
    target: TensorMeta,
    weight: TensorMeta,
    shape: tuple[int, ...],
    ignore_index: int,
) -> Launch:
    return _nll_backward_launch(
        _weighted_nll_backward_body, shape, g, target, weight, ignored=ignore_index
    )


@op("target -> out", half="native")
def _valid_count(target: TensorMeta, dtype: Any, ignore_index: int) -> Launch:
    """How many targets count, as a 0-d float."""
    out = target.with_shape((), dtype)
    return Launch((out,), _count_body, _flat(out, target), (ignore_index,))


@op("target, weight -> out")
def _valid_weight(target: TensorMeta, weight: TensorMeta, ignore_index: int) -> Launch:
    """The sum of the weights of the targets that count."""
    out = weight.with_shape(())
    return Launch((out,), _weight_body, _flat(out, target, weight), (ignore_index,))
