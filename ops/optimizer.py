"""Optimizer updates: one in-place instruction for each parameter and step.

An update reads the gradient and rewrites the parameter and its state in one pass over memory.
Learning rate, decay and step count are dynamic scalars, so a schedule makes no new cache entries.
Arithmetic is done in the parameter's dtype, in PyTorch's order of operations.

The kernels see contiguous 1-D views; the registry copies a float16 or strided operand and writes it
back.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flowvm.errors import DTypeError, ShapeError
from flowvm.meta import TensorMeta
from flowvm.ops.registry import Launch, View, op
from flowvm.tensor import Tensor

__all__ = ["adam_step_", "sgd_step_"]

GRAIN = 16384
Array = Any


def _sgd_body(
    p: Array, g: Array, sign: float, lr: float, weight_decay: float, lo: int, hi: int
) -> None:
    real = p.dtype.type
    rate, decay, direction = real(lr), real(weight_decay), real(sign)
    for i in range(lo, hi):
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
    if nesterov:
        for i in range(lo, hi):
            d = direction * g[i] + decay * p[i]
            b = keep * buf[i] + take * d
            buf[i] = b
            p[i] -= rate * (d + ahead * b)
    else:
        for i in range(lo, hi):
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
    for i in range(lo, hi):
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
    for i in range(lo, hi):
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


@op("param!, grad -> ", scalars="lr: float, weight_decay: float")
def _sgd(param: TensorMeta, grad: TensorMeta, sign: float) -> Launch:
    return _launch(_sgd_body, (param, grad), (sign,))


@op(
    "param!, grad, momentum_buffer! -> ",
    scalars="lr: float, momentum: float, dampening: float, weight_decay: float, first: int",
)
def _sgd_momentum(
    param: TensorMeta, grad: TensorMeta, momentum_buffer: TensorMeta, nesterov: bool, sign: float
) -> Launch:
    return _launch(_momentum_body, (param, grad, momentum_buffer), (nesterov, sign))


_ADAM_SCALARS = "lr: float, beta1: float, beta2: float, eps: float, weight_decay: float, step: int"


@op("param!, grad, exp_avg!, exp_avg_sq! -> ", scalars=_ADAM_SCALARS)
def _adam(
    param: TensorMeta,
    grad: TensorMeta,
    exp_avg: TensorMeta,
    exp_avg_sq: TensorMeta,
    decoupled: bool,
    sign: float,
) -> Launch:
    return _launch(_adam_body, (param, grad, exp_avg, exp_avg_sq), (decoupled, sign))


@op("param!, grad, exp_avg!, exp_avg_sq!, max_exp_avg_sq! -> ", scalars=_ADAM_SCALARS)
def _adam_amsgrad(
    param: TensorMeta,
    grad: TensorMeta,
    exp_avg: TensorMeta,
    exp_avg_sq: TensorMeta,
    max_exp_avg_sq: TensorMeta,
    decoupled: bool,
    sign: float,
) -> Launch:
    metas = (param, grad, exp_avg, exp_avg_sq, max_exp_avg_sq)
    return _launch(_amsgrad_body, metas, (decoupled, sign))


def sgd_step_(
    param: Tensor,
    grad: Tensor,
    momentum_buffer: Tensor | None,
    lr: float,
    momentum: float = 0.0,
    dampening: float = 0.0,
    weight_decay: float = 0.0,
    nesterov: bool = False,
    maximize: bool = False,
    first: bool = False,
) -> None:
    """One step of SGD on `param` and, when there is one, its momentum buffer, in place.

    `first` says that the buffer holds nothing yet (it must be zeros): it becomes the gradient.
    """
    sign = -1.0 if maximize else 1.0
    if momentum_buffer is None:
        _sgd(param, grad, sign, lr, weight_decay)
    else:
        _sgd_momentum(
            param,
            grad,
            momentum_buffer,
            nesterov,
            sign,
            lr,
            momentum,
            dampening,
            weight_decay,
            int(first),
        )


def adam_step_(
    param: Tensor,
    grad: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    max_exp_avg_sq: Tensor | None,
    step: int,
    lr: float,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    maximize: bool = False,
    decoupled: bool = False,
) -> None:
    """Step number `step`, counted from 1, of Adam (decoupled: AdamW) on `param` and its state, in
    place.

    With max_exp_avg_sq it is the AMSGrad variant.
    """
    sign = -1.0 if maximize else 1.0
    numbers = (decoupled, sign, lr, beta1, beta2, eps, weight_decay, step)
    if max_exp_avg_sq is None:
        _adam(param, grad, exp_avg, exp_avg_sq, *numbers)
    else:
        _adam_amsgrad(param, grad, exp_avg, exp_avg_sq, max_exp_avg_sq, *numbers)
