"""Losses against class indices: cross_entropy and nll_loss.

The common case of cross_entropy, logits (N, C) without class weights, is one instruction forward
and one backward; when it is small the reduction is part of it.  Everything else is log_softmax and
nll_loss.  Targets are data: one that names no class is found by the kernel and raises at the next
           sync.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from flowvm.dtype import float16, float32, int64
from flowvm.errors import ArgumentError, DTypeError, ShapeError, Status
from flowvm.meta import TensorMeta
from flowvm.ops.compare import ne
from flowvm.ops.registry import GRAIN, Launch, Sample, View, op, samples
from flowvm.ops.rows import sum_of, top_of
from flowvm.ops.scalar import exp, log
from flowvm.ops.softmax import _softmax_backward, log_softmax, softmax
from flowvm.tensor import Tensor

__all__ = ["cross_entropy", "nll_loss"]

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


def _indices(name: str, target: Tensor) -> Tensor:
    dtype = target._meta.dtype
    if dtype is int64:
        return target
    if dtype.is_floating_point or dtype.is_bool:
        raise DTypeError(
            f"{name}: class indices are integers, got {dtype.name}; use target.to(flow.int64)"
        )
    out: Tensor = target.to(int64)
    return out


def nll_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    """-input[n, target[n]]: the negative log likelihood, of log-probabilities.

    input   (N, C), (C) or (N, C, d1, ...)
    target  class indices, (N), () or (N, d1, ...); `ignore_index` counts as nothing
    weight  (C): what a sample of each class counts; the mean is divided by their sum
    """
    check_reduction("nll_loss", reduction)
    if input._meta.dtype is float16:  # sums and counts are beyond its range
        wide = None if weight is None else weight.to(float32)
        options: Any = {"ignore_index": ignore_index, "reduction": reduction}
        found: Tensor = nll_loss(input.to(float32), target, wide, **options).to(float16)
        return found
    target = _indices("nll_loss", target)
    if weight is None or weight._node is not None:
        loss = _nll(input, target, ignore_index)
    else:
        loss = _weighted_nll(input, target, weight, ignore_index)
    if weight is not None and weight._node is not None:  # rare: weights that are learned
        loss = loss * _weights(input, target, weight, ignore_index)
    if reduction == "none":
        out: Tensor = loss
        return out
    total = loss.sum()
    if reduction == "mean":
        total = total / _divisor(input, target, weight, ignore_index)
    result: Tensor = total
    return result


def _weights(input: Tensor, target: Tensor, weight: Tensor, ignore_index: int) -> Tensor:
    """The weight of each target, differentiable."""
    wide = _by_class(weight, input._meta.ndim).expand(input._meta.shape)
    out: Tensor = -_nll(wide, target, ignore_index)
    return out


def _divisor(input: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int) -> Tensor:
    """What a sum is divided by to be the mean: the number of targets that count, or their
    weights.
    """
    if weight is None:
        out: Tensor = _valid_count(target, input._meta.dtype, ignore_index)
    elif weight._node is None:
        out = _valid_weight(target, weight, ignore_index)
    else:
        out = _weights(input, target, weight, ignore_index).sum()
    return out


def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """-log(softmax(input)[target]): the cross entropy between logits and classes.

    input   logits, (N, C), (C) or (N, C, d1, ...)
    target  class indices, (N), () or (N, d1, ...), of which `ignore_index` counts as nothing; or,
            of the input's shape and floating point, the probability of each class
    weight  (C): what a sample of each class counts
    label_smoothing   how much of each target is spread evenly over the classes, 0 to 1
    """
    meta = input._meta
    if meta.dtype is float16:
        soft = target.to(float32) if target._meta.dtype.is_floating_point else target
        wide = None if weight is None else weight.to(float32)
        options: Any = {"ignore_index": ignore_index, "reduction": reduction}
        options["label_smoothing"] = label_smoothing
        out: Tensor = cross_entropy(input.to(float32), soft, wide, **options).to(float16)
        return out
    if target._meta.dtype.is_floating_point:
        return _with_probabilities(input, target, weight, reduction, label_smoothing)
    target = _indices("cross_entropy", target)
    simple = weight is None and meta.ndim <= 2
    if simple and (reduction == "none" or meta.numel <= ONE_UNIT):
        loss: Tensor = _entropy(input, target, reduction, ignore_index, label_smoothing)[0]
        return loss
    check_reduction("cross_entropy", reduction)
    if simple:
        out = _entropy(input, target, "none", ignore_index, label_smoothing)[0].sum()
        return out if reduction == "sum" else out / _divisor(input, target, None, ignore_index)
    likely = log_softmax(input, 0 if meta.ndim == 1 else 1)
    options = {"ignore_index": ignore_index, "reduction": reduction}
    hard = nll_loss(likely, target, weight, **options)
    if label_smoothing == 0:
        return hard
    return hard * (1 - label_smoothing) + label_smoothing * _spread(
        likely, target, weight, **options
    )


def _by_class(weight: Tensor, ndim: int) -> Tensor:
    """`weight` shaped to broadcast along the classes of an input with `ndim` dimensions."""
    return weight if ndim == 1 else weight.reshape((-1,) + (1,) * (ndim - 2))


def _spread(
    likely: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int, reduction: str
) -> Tensor:
    """The loss against all classes alike, divided by their number: label smoothing's part."""
    axis = 0 if likely.ndim == 1 else 1
    each = likely if weight is None else likely * _by_class(weight, likely.ndim)
    valid = ne(target, ignore_index).to(likely.dtype)
    out: Tensor = -(each.sum(axis) * valid) / likely.shape[axis]
    if reduction != "none":
        out = out.sum()
    if reduction == "mean":
        out = out / _divisor(likely, target, weight, ignore_index)
    return out


def _with_probabilities(
    input: Tensor, target: Tensor, weight: Tensor | None, reduction: str, label_smoothing: float
) -> Tensor:
    check_reduction("cross_entropy", reduction)
    if input._meta.shape != target._meta.shape or input._meta.ndim == 0:
        raise ShapeError(
            f"cross_entropy: a floating point target holds probabilities and has the input's shape "
            f"{tuple(input.shape)}, got {tuple(target.shape)}; class indices are integers"
        )
    axis = 0 if input._meta.ndim == 1 else 1
    classes = input._meta.shape[axis]
    if label_smoothing:
        target = target * (1 - label_smoothing) + label_smoothing / classes
    terms = log_softmax(input, axis) * target
    if weight is not None:
        terms = terms * _by_class(weight, input._meta.ndim)
    if reduction == "none":
        result: Tensor = -terms.sum(axis)
        return result
    total = -terms.sum()
    out: Tensor = total if reduction == "sum" else total / max(1, input._meta.numel // classes)
    return out


# --- samples
# -----------------------------------------------------------------------------------------


def _log_softmax_reference(x: Any) -> Any:
    axis = 0 if x.ndim == 1 else 1
    shifted = x - x.max(axis, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis, keepdims=True))


def _nll_reference(
    likely: Any,
    target: Any,
    weight: Any = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Any:
    axis = 0 if likely.ndim == 1 else 1
    counted = target != ignore_index
    places = np.expand_dims(np.where(counted, target, 0), axis)
    weight = np.ones(likely.shape[axis]) if weight is None else weight
    weights = np.where(counted, weight[np.where(counted, target, 0)], 0.0)
    loss = -np.take_along_axis(likely, places, axis).squeeze(axis) * weights
    if reduction == "none":
        return loss
    return loss.sum() / (weights.sum() if reduction == "mean" else 1)


def _entropy_reference(
    x: Any,
    target: Any,
    weight: Any = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Any:
    likely = _log_softmax_reference(x)
    axis = 0 if x.ndim == 1 else 1
    shape = tuple(-1 if d == axis else 1 for d in range(x.ndim))
    per_class = (np.ones(x.shape[axis]) if weight is None else weight).reshape(shape)
    if np.issubdtype(np.asarray(target).dtype, np.floating):
        target = target * (1 - label_smoothing) + label_smoothing / x.shape[axis]
        loss = -(likely * target * per_class).sum(axis)
        return {"none": loss, "sum": loss.sum(), "mean": loss.mean()}[reduction]
    options = {"ignore_index": ignore_index}
    hard = _nll_reference(likely, target, weight, reduction="none", **options)
    counted = target != ignore_index
    spread = np.where(counted, -(likely * per_class).sum(axis) / x.shape[axis], 0.0)
    loss = hard * (1 - label_smoothing) + label_smoothing * spread
    total = _nll_reference(-np.ones_like(x), target, weight, reduction="sum", **options)
    return {"none": loss, "sum": loss.sum(), "mean": loss.sum() / total}[reduction]


def _class_samples(rng: np.random.Generator) -> list[Sample]:
    x = rng.standard_normal
    target = np.array([2, 0, 3])
    some = np.array([2, 1, 0])
    return [
        Sample((x((3, 4)), target)),
        Sample((x((3, 4)), target), {"reduction": "sum"}),
        Sample((x((3, 4)), some), {"reduction": "none", "ignore_index": 1}),
        Sample((x((3, 4)), some), {"ignore_index": 1}),
        Sample((x((3, 4)), target, rng.uniform(1, 2, 4))),
        Sample((x(4), np.asarray(2))),
        Sample(
            (x((2, 3, 2)), np.array([[0, 2], [1, 1]]), rng.uniform(1, 2, 3)), {"reduction": "none"}
        ),
    ]


samples(
    nll_loss,
    _class_samples,
    _nll_reference,
    errors=(
        (lambda flow: flow.nll_loss(flow.ones(2, 3), flow.ones(3, dtype=flow.int64)), RuntimeError),
        (lambda flow: flow.nll_loss(flow.ones(2, 3), flow.full((2,), 3)).item(), IndexError),
        (lambda flow: flow.nll_loss(flow.ones(2, 3), flow.zeros(2)), RuntimeError),
    ),
)
samples(
    cross_entropy,
    lambda rng: [
        *_class_samples(rng),
        Sample((rng.standard_normal((3, 4)), np.array([2, 0, 3])), {"label_smoothing": 0.2}),
        Sample(
            (rng.standard_normal((3, 4)), np.array([2, 1, 0]), rng.uniform(1, 2, 4)),
            {"label_smoothing": 0.2, "ignore_index": 1},
        ),
        Sample((rng.standard_normal((3, 4)), rng.uniform(0, 1, (3, 4))), {"label_smoothing": 0.1}),
    ],
    _entropy_reference,
    errors=(
        (
            lambda flow: flow.cross_entropy(flow.ones(2, 3), flow.zeros(3, dtype=flow.int64)),
            RuntimeError,
        ),
        (lambda flow: flow.cross_entropy(flow.ones(2, 3), flow.full((2,), 3)).item(), IndexError),
        (
            lambda flow: flow.cross_entropy(
                flow.ones(2, 3), flow.zeros(2, dtype=flow.int64), reduction="all"
            ),
            ValueError,
        ),
    ),
)
