"""Losses of two tensors, element by element, and their reductions.

`size_average` and `reduce` are older than `reduction`, which they override.

A loss of x (what was computed) and y (the target) is a row of expressions: the value and its first
and second derivatives. From them come the op, an op for each gradient, and the ops that those have
as gradients; a third derivative raises.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from flowvm.eager.autocast import widened
from flowvm.eager.native.trace_cache import steady
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, AutogradError, ShapeError
from flowvm.ops.declare.composite import need_tensor
from flowvm.ops.declare.core import sum_to
from flowvm.ops.declare.elementwise import Elementwise, elementwise
from flowvm.ops.declare.halves import in_float32
from flowvm.ops.declare.registry import Sample, samples
from flowvm.ops.pointwise.activation import logsigmoid
from flowvm.ops.pointwise.math import abs as abs_of
from flowvm.ops.rows.parts.class_loss_ops import check_reduction, legacy_reduction
from flowvm.ops.rows.statistics import vector_norm
from flowvm.ops.shapes.views import broadcast_tensors
from flowvm.vm.callers.hot import hot

if TYPE_CHECKING:
    from flowvm.eager.nodes import Node
    from flowvm.meta.arrays import Array


# public: flow, F


def _loss_op(
    name: str, value: str, dx: str, dy: str, dxx: str, dxy: str, dyy: str, params: str = ""
) -> Elementwise:
    """Declare an op for `value` of x, y and `params` with its derivatives.

    "0" stands for a derivative that vanishes everywhere.
    """
    names = [n for n in params.replace(" ", "").split(",") if n]
    rest = (None,) * len(names)

    def declared(
        suffix: str, expr: str, gradients: str, grad: Callable[..., object]
    ) -> Elementwise:
        args = ", ".join([*gradients, "x", "y", *names])
        return elementwise(
            name + suffix,
            expr,
            args=args,
            types="float",
            saves=args,
            grad=grad,
            several=False,
            amp="" if suffix else "full",
        )

    def no_third(c: Node, w: Tensor) -> tuple[Tensor | None, ...]:
        raise AutogradError(f"{name} has first and second derivatives only; this is the third")

    def second(part: str, expr: str) -> Elementwise | None:
        return None if expr == "0" else declared(f"_{part}", f"v * g * ({expr})", "vg", no_third)

    xx, xy, yy = second("xx", dxx), second("xy", dxy), second("yy", dyy)

    def backward(part: str, expr: str, along: tuple[Elementwise | None, ...]) -> Elementwise:
        def grad(c: Node, v: Tensor) -> tuple[Any, ...]:
            g, *saved = c.saved
            first = sum_to(op(v, *saved), c.metas[0].shape) if c.needs[0] else None
            others = (
                sum_to(d(v, g, *saved), m.shape) if need and d is not None else None
                for d, need, m in zip(along, c.needs[1:3], c.metas[1:3], strict=True)
            )
            return (first, *others, *rest)

        op = declared(f"_backward_{part}", f"g * ({expr})", "g", grad)
        return op

    by_x, by_y = backward("x", dx, (xx, xy)), backward("y", dy, (xy, yy))

    def forward_grad(c: Node, g: Tensor) -> tuple[Tensor | None, ...]:
        return (
            sum_to(by_x(g, *c.saved), c.metas[0].shape) if c.needs[0] else None,
            sum_to(by_y(g, *c.saved), c.metas[1].shape) if c.needs[1] else None,
            *rest,
        )

    return declared("", value, "", forward_grad)


_mse = _loss_op("mse_loss", "(x - y) * (x - y)", "2 * (x - y)", "2 * (y - x)", "2", "-2", "2")
_l1 = _loss_op("l1_loss", "abs(x - y)", "sign(x - y)", "sign(y - x)", "0", "0", "0")
_NEAR = "abs(x - y) < a"
_SIGN = "sign(x - y) if x - y == x - y else x - y"  # NaN stays
_BACK = "sign(y - x) if y - x == y - x else y - x"
_smooth_l1 = _loss_op(
    "smooth_l1_loss",
    f"0.5 * (x - y) * (x - y) / a if {_NEAR} else abs(x - y) - 0.5 * a",
    f"(x - y) / a if {_NEAR} else ({_SIGN})",
    f"(y - x) / a if {_NEAR} else ({_BACK})",
    f"1 / a if {_NEAR} else 0",
    f"-1 / a if {_NEAR} else 0",
    f"1 / a if {_NEAR} else 0",
    "a",
)
_huber = _loss_op(
    "huber_loss",
    f"0.5 * (x - y) * (x - y) if {_NEAR} else a * (abs(x - y) - 0.5 * a)",
    f"x - y if {_NEAR} else a * ({_SIGN})",
    f"y - x if {_NEAR} else a * ({_BACK})",
    f"1 if {_NEAR} else 0",
    f"-1 if {_NEAR} else 0",
    f"1 if {_NEAR} else 0",
    "a",
)
# Logarithms stop at -100 as in PyTorch, so that a confident error is finite.
_bce = _loss_op(
    "binary_cross_entropy",
    "-(probability(y) * maximum(log(probability(x)), -100) + (1 - y) * maximum(log1p(-x), -100))",
    "(x - y) / maximum((1 - x) * x, 1e-12)",
    "maximum(log1p(-x), -100) - maximum(log(x), -100)",
    "y / maximum(x * x, 1e-12) + (1 - y) / maximum((1 - x) * (1 - x), 1e-12)",
    "-1 / maximum((1 - x) * x, 1e-12)",
    "0",
)
_bce_logits = _loss_op(
    "binary_cross_entropy_with_logits",
    # of an infinite x the part that does not count is not there, or it would be NaN
    "(maximum(x, 0) - x * y if x - x == 0 else "
    "((x * (1 - y) if y != 1 else 0) if x > 0 else (-x * y if y != 0 else 0)))"
    " + log1p(exp(-abs(x)))",
    "sigmoid(x) - y",
    "-x",
    "sigmoid(x) * sigmoid(-x)",
    "-1",
    "0",
)
_kl = _loss_op(
    "kl_div", "(y * log(y) if y != 0 else 0) - y * x", "-y", "log(y) + 1 - x", "0", "-1", "1 / y"
)
_kl_log = _loss_op(
    "kl_div",
    "exp(y) * (y - x)",
    "-exp(y)",
    "exp(y) * (y - x + 1)",
    "0",
    "-exp(y)",
    "exp(y) * (y - x + 2)",
)


# not public
def reduced(loss: Tensor, reduction: str) -> Tensor:
    """The loss of each element as it is, or its mean or sum."""
    if reduction == "mean":
        result: Tensor = loss.mean()
        return result
    if reduction == "sum":
        out: Tensor = loss.sum()
        return out
    check_reduction("a loss", reduction)
    return loss


def _warn_shapes(name: str, input: Tensor, target: Tensor) -> None:
    need_tensor(name, "input", input)
    need_tensor(name, "target", target)
    if input._meta.shape is not target._meta.shape and input._meta.shape != target._meta.shape:
        warnings.warn(
            f"{name}: input has shape {tuple(input.shape)} and target {tuple(target.shape)}; "
            f"they are broadcast, "
            f"which is rarely meant.  Give them one shape",
            stacklevel=3,
        )


@steady
@in_float32
def mse_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    weight: Tensor | None = None,
) -> Tensor:
    """(x - y)², as its mean, its sum or, with "none", each; `weight` multiplies each.

    >>> F.mse_loss(flow.tensor([1.0, 2.0]), flow.tensor([3.0, 6.0]))
    tensor(10.)
    """
    reduction = legacy_reduction(size_average, reduce, reduction)
    _warn_shapes("mse_loss", input, target)
    loss = _mse.call(input, target)
    return reduced(loss if weight is None else loss * weight, reduction)


@steady
@in_float32
def l1_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    weight: Tensor | None = None,
) -> Tensor:
    """|x - y|, as its mean, its sum or, with "none", each; `weight` multiplies each.

    Complex numbers are taken: their differences have sizes.

    >>> F.l1_loss(flow.tensor([1.0, 2.0]), flow.tensor([3.0, 6.0]))
    tensor(3.)
    """
    reduction = legacy_reduction(size_average, reduce, reduction)
    _warn_shapes("l1_loss", input, target)
    if any(isinstance(t, Tensor) and t._meta.dtype.is_complex for t in (input, target)):
        loss: Tensor = abs_of.call(input - target)
    else:
        loss = _l1.call(input, target)
    return reduced(loss if weight is None else loss * weight, reduction)


@steady
@in_float32
def smooth_l1_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    beta: float = 1.0,
) -> Tensor:
    """(x - y)² / (2 beta) where |x - y| < beta, |x - y| - beta / 2 elsewhere.

    >>> F.smooth_l1_loss(flow.tensor([0.0, 3.0]), flow.tensor([1.0, 0.0]), reduction="none")
    tensor([0.5000, 2.5000])
    """
    reduction = legacy_reduction(size_average, reduce, reduction)
    if beta < 0:
        raise ArgumentError(f"smooth_l1_loss: beta must not be negative, got {beta}")
    if beta == 0:
        return l1_loss(input, target, reduction=reduction)
    _warn_shapes("smooth_l1_loss", input, target)
    return reduced(_smooth_l1(input, target, float(beta)), reduction)


@steady
@in_float32
def huber_loss(
    input: Tensor,
    target: Tensor,
    reduction: str = "mean",
    delta: float = 1.0,
    weight: Tensor | None = None,
) -> Tensor:
    """(x - y)² / 2 where |x - y| < delta, delta * (|x - y| - delta / 2) elsewhere.

    >>> F.huber_loss(flow.tensor([0.0, 3.0]), flow.tensor([0.0, 0.0]), reduction="none")
    tensor([0.0000, 2.5000])
    """
    if delta <= 0:
        raise ArgumentError(f"huber_loss: delta must be positive, got {delta}")
    _warn_shapes("huber_loss", input, target)
    loss = _huber(input, target, float(delta))
    return reduced(loss if weight is None else loss * weight, reduction)


def _same_shape(name: str, input: Tensor, target: Tensor) -> None:
    need_tensor(name, "input", input)
    need_tensor(name, "target", target)
    if input._meta.shape != target._meta.shape:
        raise ShapeError(
            f"{name}: target must have the input's shape {tuple(input.shape)}, got "
            f"{tuple(target.shape)}"
        )


@steady
@in_float32
def binary_cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """-(y log(x) + (1 - y) log(1 - x)) of probabilities x and targets y, both between 0 and 1: any
    other number is an InvalidValueError where the loss is read.

    >>> F.binary_cross_entropy(flow.tensor([0.5, 0.5]), flow.tensor([0.0, 1.0]))  # log 2
    tensor(0.6931)
    """
    reduction = legacy_reduction(size_average, reduce, reduction)
    _same_shape("binary_cross_entropy", input, target)
    loss = _bce.call(input, target)
    return reduced(loss if weight is None else loss * weight, reduction)


@steady
@in_float32
def binary_cross_entropy_with_logits(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    pos_weight: Tensor | None = None,
) -> Tensor:
    """binary_cross_entropy of sigmoid(x), without its overflow; `pos_weight` multiplies the part of
    the positive targets.

    >>> F.binary_cross_entropy_with_logits(flow.zeros(2), flow.tensor([0.0, 1.0]))  # log 2
    tensor(0.6931)
    """
    reduction = legacy_reduction(size_average, reduce, reduction)
    _same_shape("binary_cross_entropy_with_logits", input, target)
    if pos_weight is None:
        loss = _bce_logits.call(input, target)
    else:
        positive = (pos_weight - 1) * target + 1
        loss = (1 - target) * input - positive * logsigmoid(input)
    return reduced(loss if weight is None else loss * weight, reduction)


@steady
@in_float32
def kl_div(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    log_target: bool = False,
) -> Tensor:
    """y (log(y) - x): the divergence of log-probabilities x from probabilities y (their logarithm
    with log_target).

    "batchmean" divides the sum by the first dimension, which is what the mathematics means.

    >>> p = flow.tensor([0.5, 0.5])
    >>> F.kl_div(p.log(), p, reduction="sum")
    tensor(0.)
    """
    reduction = legacy_reduction(size_average, reduce, reduction)
    loss = (_kl_log if log_target else _kl).call(input, target)
    if reduction == "batchmean":
        out: Tensor = loss.sum() / input.shape[0] if input.ndim else loss.sum()
        return out
    return reduced(loss, reduction)


@steady
@in_float32
def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """x1 · x2 / (|x1| |x2|) over `dim` of both, broadcast; no length counts as less than eps.

    >>> F.cosine_similarity(flow.tensor([[1.0, 0.0]]), flow.tensor([[3.0, 4.0]]))
    tensor([0.6000])
    """
    if hot["autocast"]:
        x1, x2 = widened(x1, x2)
    need_tensor("cosine_similarity", "x1", x1)
    need_tensor("cosine_similarity", "x2", x2)
    if x1._meta.shape != x2._meta.shape:
        x1, x2 = broadcast_tensors(x1, x2)

    def direction(x: Tensor) -> Tensor:
        out: Tensor = x / vector_norm(x, 2, dim, True).clamp(min=eps)
        return out

    # each is divided by its length first: products of large or small numbers leave the dtype
    out: Tensor = (direction(x1) * direction(x2)).sum(dim)
    return out


# --- samples -------------------------------------------------------------------------------------


def _reduction(loss: object, reduction: str) -> Any:
    loss = np.asarray(loss)
    return loss if reduction == "none" else loss.mean() if reduction == "mean" else loss.sum()


def _pairs(
    make: Callable[[np.random.Generator, tuple[int, ...]], tuple[object, object]] | None = None,
    **options: object,
) -> Callable[[np.random.Generator], list[Sample]]:
    def generate(rng: np.random.Generator) -> list[Sample]:
        def pair(*shape: int) -> tuple[object, object]:
            if make is not None:
                return make(rng, shape)
            return np.asarray(rng.standard_normal(shape)), np.asarray(rng.standard_normal(shape))

        return [
            Sample(pair(3, 4), {"reduction": "mean", **options}),
            Sample(pair(5), {"reduction": "sum", **options}),
            Sample(pair(2, 3), {"reduction": "none", **options}),
            Sample(pair(), {"reduction": "mean", **options}),
        ]

    return generate


def _probabilities(rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[Array, Array]:
    return np.asarray(rng.uniform(0.1, 0.9, shape)), np.asarray(rng.uniform(0.1, 0.9, shape))


def _logits(rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[Array, Array]:
    return np.asarray(rng.standard_normal(shape) * 2), np.asarray(rng.uniform(0.1, 0.9, shape))


def _huber_reference(x: Array, y: Array, a: float) -> Any:
    d = abs(x - y)
    return np.where(d < a, 0.5 * d * d, a * (d - 0.5 * a))


def _bce_reference(x: Array, y: Array) -> Any:
    return -(y * np.log(x) + (1 - y) * np.log(1 - x))


def _register() -> None:
    samples(mse_loss, _pairs(), lambda x, y, reduction: _reduction((x - y) ** 2, reduction))
    samples(l1_loss, _pairs(), lambda x, y, reduction: _reduction(abs(x - y), reduction))
    samples(
        smooth_l1_loss,
        _pairs(beta=0.7),
        lambda x, y, reduction, beta: _reduction(_huber_reference(x, y, beta) / beta, reduction),
    )
    samples(
        huber_loss,
        _pairs(delta=0.7),
        lambda x, y, reduction, delta: _reduction(_huber_reference(x, y, delta), reduction),
    )
    samples(
        binary_cross_entropy,
        _pairs(_probabilities),
        lambda x, y, reduction: _reduction(_bce_reference(x, y), reduction),
        errors=(
            (lambda flow: flow.binary_cross_entropy(flow.ones(2), flow.ones(3)), RuntimeError),
        ),
    )
    samples(
        binary_cross_entropy_with_logits,
        lambda rng: [
            *_pairs(_logits)(rng),
            Sample(_logits(rng, (2, 3)), {"reduction": "mean", "pos_weight": rng.uniform(1, 3, 3)}),
        ],
        lambda x, y, reduction, pos_weight=1.0: _reduction(
            -(pos_weight * y * -np.log1p(np.exp(-x)) + (1 - y) * -np.log1p(np.exp(x))), reduction
        ),
    )
    samples(
        kl_div,
        lambda rng: [
            *_pairs(_probabilities)(rng),
            *_pairs(log_target=True)(rng),
            Sample(_probabilities(rng, (2, 3)), {"reduction": "batchmean"}),
        ],
        _kl_reference,
    )
    samples(
        cosine_similarity,
        lambda rng: [
            Sample((rng.standard_normal((3, 4)), rng.standard_normal((3, 4)))),
            Sample((rng.standard_normal((3, 4)), rng.standard_normal((3, 4)), 0)),
            Sample((rng.standard_normal(4), rng.standard_normal(4), -1)),
        ],
        lambda x, y, dim=1: (
            (x * y).sum(dim) / np.linalg.norm(x, axis=dim) / np.linalg.norm(y, axis=dim)
        ),
    )


def _kl_reference(x: Array, y: Array, reduction: str, log_target: bool = False) -> object:
    loss = np.exp(y) * (y - x) if log_target else y * (np.log(y) - x)
    if reduction == "batchmean":
        return loss.sum() / len(x)
    return _reduction(loss, reduction)


_register()
