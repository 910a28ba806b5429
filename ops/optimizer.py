"""Optimizer updates: one in-place instruction for each parameter and step.

An update reads the gradient and rewrites the parameter and its state in one pass over memory.
Learning rate, decay and step count are dynamic scalars, so a schedule makes no new cache entries.
Arithmetic is done in the parameter's dtype, in PyTorch's order of operations.

The kernels see contiguous 1-D views; the registry copies a float16 or strided operand and writes it
back. Each cuts out its range first and then counts from 0: an index that may be negative, for all
Numba knows, would keep the loop from being vectorized (4 times slower).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flowvm.errors import DTypeError, ShapeError
from flowvm.meta import TensorMeta
from flowvm.ops.registry import Launch, View, op

__all__ = ["adam_step_", "amsgrad_step_", "sgd_momentum_step_", "sgd_step_"]

GRAIN = 16384
Array = Any


def _sgd_body(
    p: Array, g: Array, sign: float, lr: float, weight_decay: float, lo: int, hi: int
) -> None:
    real = p.dtype.type
    rate, decay, direction = real(lr), real(weight_decay), real(sign)
    p, g = p[lo:hi], g[lo:hi]
    for i in range(len(p)):
        p[i] -= rate * (direction * g[i] + decay * p[i])


def _momentum_body(
    p: Array,
    g: Array,
    buf: Array,
    nesterov: bool,
    sign: float,
    lr: float,
    momentum: float,
    dampening: float,
    weight_decay: float,
    first: int,
    lo: int,
    hi: int,
) -> None:
    real = p.dtype.type
    rate, decay, direction = real(lr), real(weight_decay), real(sign)
    # The first step takes the gradient whole: the buffer starts as a copy of it.
    keep = real(0.0 if first else momentum)
    take = real(1.0 if first else 1.0 - dampening)
    ahead = real(momentum)
    p, g, buf = p[lo:hi], g[lo:hi], buf[lo:hi]
    if nesterov:
        for i in range(len(p)):
            d = direction * g[i] + decay * p[i]
            b = keep * buf[i] + take * d
            buf[i] = b
            p[i] -= rate * (d + ahead * b)
    else:
        for i in range(len(p)):
            b = keep * buf[i] + take * (direction * g[i] + decay * p[i])
            buf[i] = b
            p[i] -= rate * b


def _adam_body(
    p: Array,
    g: Array,
    m: Array,
    v: Array,
    decoupled: bool,
    sign: float,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    step: int,
    lo: int,
    hi: int,
) -> None:
    real = p.dtype.type
    shrink = real(1.0 - lr * weight_decay if decoupled else 1.0)
    decay = real(0.0 if decoupled else weight_decay)
    direction, floor = real(sign), real(eps)
    new1, keep2, new2 = real(1.0 - beta1), real(beta2), real(1.0 - beta2)
    size = real(lr / (1.0 - beta1**step))
    spread = real(np.sqrt(1.0 - beta2**step))
    p, g, m, v = p[lo:hi], g[lo:hi], m[lo:hi], v[lo:hi]
    for i in range(len(p)):
        w = p[i]
        d = direction * g[i] + decay * w
        mean = m[i] + (d - m[i]) * new1
        square = v[i] * keep2 + d * d * new2
        m[i] = mean
        v[i] = square
        p[i] = w * shrink - size * (mean / (np.sqrt(square) / spread + floor))


def _amsgrad_body(
    p: Array,
    g: Array,
    m: Array,
    v: Array,
    top: Array,
    decoupled: bool,
    sign: float,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    step: int,
    lo: int,
    hi: int,
) -> None:
    real = p.dtype.type
    shrink = real(1.0 - lr * weight_decay if decoupled else 1.0)
    decay = real(0.0 if decoupled else weight_decay)
    direction, floor = real(sign), real(eps)
    new1, keep2, new2 = real(1.0 - beta1), real(beta2), real(1.0 - beta2)
    size = real(lr / (1.0 - beta1**step))
    spread = real(np.sqrt(1.0 - beta2**step))
    p, g, m, v, top = p[lo:hi], g[lo:hi], m[lo:hi], v[lo:hi], top[lo:hi]
    for i in range(len(p)):
        w = p[i]
        d = direction * g[i] + decay * w
        mean = m[i] + (d - m[i]) * new1
        square = v[i] * keep2 + d * d * new2
        highest = max(top[i], square)
        m[i] = mean
        v[i] = square
        top[i] = highest
        p[i] = w * shrink - size * (mean / (np.sqrt(highest) / spread + floor))


def _launch(body: Any, metas: tuple[TensorMeta, ...], consts: tuple[float | bool, ...]) -> Launch:
    """The update over 1-D views of operands that agree in shape and dtype."""
    param = metas[0]
    for name, meta in zip(("grad", "state", "state", "state"), metas[1:], strict=False):
        if meta.shape != param.shape:
            raise ShapeError(
                f"optimizer step: {name} has shape {tuple(meta.shape)}, the parameter "
                f"{tuple(param.shape)}"
            )
        if meta.dtype != param.dtype:
            raise DTypeError(
                f"optimizer step: {name} has dtype {meta.dtype}, the parameter {param.dtype}"
            )
    return Launch(
        outputs=(),
        body=body,
        views=tuple(View(meta.dtype, (meta.numel,), (1,)) for meta in metas),
        consts=consts,
        units=param.numel,
        grain=GRAIN,
    )


def _sign(maximize: bool) -> float:
    return -1.0 if maximize else 1.0


@op("param!, grad -> ", scalars="lr: float, weight_decay: float")
def sgd_step_(param: TensorMeta, grad: TensorMeta, maximize: bool) -> Launch:
    """sgd_step_(param, grad, maximize, lr, weight_decay): one step of plain SGD, in place."""
    return _launch(_sgd_body, (param, grad), (_sign(maximize),))


@op(
    "param!, grad, momentum_buffer! -> ",
    scalars="lr: float, momentum: float, dampening: float, weight_decay: float, first: int",
)
def sgd_momentum_step_(
    param: TensorMeta, grad: TensorMeta, momentum_buffer: TensorMeta, nesterov: bool, maximize: bool
) -> Launch:
    """sgd_momentum_step_(param, grad, momentum_buffer, nesterov, maximize, lr, momentum, dampening,
    weight_decay, first): one step of SGD with momentum, in place.

    `first` says that the buffer holds nothing yet (it must be zeros): it becomes the gradient.
    """
    metas = (param, grad, momentum_buffer)
    return _launch(_momentum_body, metas, (nesterov, _sign(maximize)))


_ADAM_SCALARS = "lr: float, beta1: float, beta2: float, eps: float, weight_decay: float, step: int"


@op("param!, grad, exp_avg!, exp_avg_sq! -> ", scalars=_ADAM_SCALARS)
def adam_step_(
    param: TensorMeta,
    grad: TensorMeta,
    exp_avg: TensorMeta,
    exp_avg_sq: TensorMeta,
    decoupled: bool,
    maximize: bool,
) -> Launch:
    """adam_step_(param, grad, exp_avg, exp_avg_sq, decoupled, maximize, lr, beta1, beta2, eps,
    weight_decay, step): step number `step`, from 1, of Adam (decoupled: AdamW), in place.
    """
    metas = (param, grad, exp_avg, exp_avg_sq)
    return _launch(_adam_body, metas, (decoupled, _sign(maximize)))


@op("param!, grad, exp_avg!, exp_avg_sq!, max_exp_avg_sq! -> ", scalars=_ADAM_SCALARS)
def amsgrad_step_(
    param: TensorMeta,
    grad: TensorMeta,
    exp_avg: TensorMeta,
    exp_avg_sq: TensorMeta,
    max_exp_avg_sq: TensorMeta,
    decoupled: bool,
    maximize: bool,
) -> Launch:
    """adam_step_ with max_exp_avg_sq after exp_avg_sq: the AMSGrad variant."""
    metas = (param, grad, exp_avg, exp_avg_sq, max_exp_avg_sq)
    return _launch(_amsgrad_body, metas, (decoupled, _sign(maximize)))
