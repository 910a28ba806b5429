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

from flowvm.errors import DTypeError, ShapeError
from flowvm.launch import Launch, View
from flowvm.meta import TensorMeta
from flowvm.ops.declare.registry import op
from flowvm.ops.scalar import functions as scalar

__all__ = ["adam_step_", "amsgrad_step_", "sgd_momentum_step_", "sgd_step_"]

GRAIN = 16384
INLINE_ALWAYS = (
    True  # for flowvm.compiler.native: a call in a loop would keep it from being vectorized
)
Array = Any


# --- one element, on any device -----------------------------------------------------------------


def sgd_element(w: Any, g: Any, rate: Any, direction: Any, decay: Any) -> Any:
    """The new parameter."""
    return w - rate * (direction * g + decay * w)


def momentum_numbers(momentum: float, dampening: float, first: int) -> tuple[float, float]:
    """What is kept of the buffer and taken of the gradient; the first step takes it whole."""
    return 0.0 if first else momentum, 1.0 if first else 1.0 - dampening


def momentum_element(
    w: Any, g: Any, buf: Any, rate: Any, direction: Any, decay: Any, keep: Any, take: Any
) -> tuple[Any, Any]:
    """The new parameter and buffer."""
    b = keep * buf + take * (direction * g + decay * w)
    return w - rate * b, b


def nesterov_element(
    w: Any,
    g: Any,
    buf: Any,
    rate: Any,
    direction: Any,
    decay: Any,
    keep: Any,
    take: Any,
    ahead: Any,
) -> tuple[Any, Any]:
    """The new parameter and buffer."""
    d = direction * g + decay * w
    b = keep * buf + take * d
    return w - rate * (d + ahead * b), b


AdamNumbers = tuple[float, float, float, float, float, float, float]


def adam_numbers(
    decoupled: bool,
    lr: float,
    beta1: float,
    beta2: float,
    weight_decay: float,
    step: int,
) -> AdamNumbers:
    """shrink, decay, new1, keep2, new2, size and spread of `adam_element`."""
    return (
        1.0 - lr * weight_decay if decoupled else 1.0,
        0.0 if decoupled else weight_decay,
        1.0 - beta1,
        beta2,
        1.0 - beta2,
        lr / (1.0 - beta1**step),
        scalar.sqrt(1.0 - beta2**step),
    )


def adam_element(
    w: Any,
    g: Any,
    m: Any,
    v: Any,
    shrink: Any,
    decay: Any,
    new1: Any,
    keep2: Any,
    new2: Any,
    size: Any,
    spread: Any,
    direction: Any,
    floor: Any,
) -> tuple[Any, Any, Any]:
    """The new parameter, mean and mean square."""
    d = direction * g + decay * w
    mean = m + (d - m) * new1
    square = v * keep2 + d * d * new2
    return w * shrink - size * (mean / (scalar.sqrt(square) / spread + floor)), mean, square


def amsgrad_element(
    w: Any,
    g: Any,
    m: Any,
    v: Any,
    top: Any,
    shrink: Any,
    decay: Any,
    new1: Any,
    keep2: Any,
    new2: Any,
    size: Any,
    spread: Any,
    direction: Any,
    floor: Any,
) -> tuple[Any, Any, Any, Any]:
    """The new parameter, mean, mean square, and the largest mean square so far."""
    d = direction * g + decay * w
    mean = m + (d - m) * new1
    square = v * keep2 + d * d * new2
    top = max(top, square)
    return w * shrink - size * (mean / (scalar.sqrt(top) / spread + floor)), mean, square, top


# --- ranges, on the CPU -------------------------------------------------------------------------


def _sgd_body(
    p: Array, g: Array, sign: float, lr: float, weight_decay: float, lo: int, hi: int
) -> None:
    real = p.dtype.type
    rate, decay, direction = real(lr), real(weight_decay), real(sign)
    p, g = p[lo:hi], g[lo:hi]
    for i in range(len(p)):
        p[i] = sgd_element(p[i], g[i], rate, direction, decay)


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
    kept, taken = momentum_numbers(momentum, dampening, first)
    keep, take, ahead = real(kept), real(taken), real(momentum)
    p, g, buf = p[lo:hi], g[lo:hi], buf[lo:hi]
    if nesterov:
        for i in range(len(p)):
            w, b = nesterov_element(p[i], g[i], buf[i], rate, direction, decay, keep, take, ahead)
            p[i], buf[i] = w, b
    else:
        for i in range(len(p)):
            w, b = momentum_element(p[i], g[i], buf[i], rate, direction, decay, keep, take)
            p[i], buf[i] = w, b


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
    a, b, c, d, e, f, h = adam_numbers(decoupled, lr, beta1, beta2, weight_decay, step)
    shrink, decay, new1, keep2, new2 = real(a), real(b), real(c), real(d), real(e)
    size, spread, direction, floor = real(f), real(h), real(sign), real(eps)
    p, g, m, v = p[lo:hi], g[lo:hi], m[lo:hi], v[lo:hi]
    for i in range(len(p)):
        p[i], m[i], v[i] = adam_element(
            p[i], g[i], m[i], v[i],
            shrink, decay, new1, keep2, new2, size, spread, direction, floor,
        )  # fmt: skip


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
    a, b, c, d, e, f, h = adam_numbers(decoupled, lr, beta1, beta2, weight_decay, step)
    shrink, decay, new1, keep2, new2 = real(a), real(b), real(c), real(d), real(e)
    size, spread, direction, floor = real(f), real(h), real(sign), real(eps)
    p, g, m, v, top = p[lo:hi], g[lo:hi], m[lo:hi], v[lo:hi], top[lo:hi]
    for i in range(len(p)):
        p[i], m[i], v[i], top[i] = amsgrad_element(
            p[i], g[i], m[i], v[i], top[i],
            shrink, decay, new1, keep2, new2, size, spread, direction, floor,
        )  # fmt: skip


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


@op("param!, grad -> ", scalars="lr: float, weight_decay: float", cuda="optimizer:sgd")
def sgd_step_(param: TensorMeta, grad: TensorMeta, maximize: bool) -> Launch:
    """sgd_step_(param, grad, maximize, lr, weight_decay): one step of plain SGD, in place."""
    return _launch(_sgd_body, (param, grad), (_sign(maximize),))


@op(
    "param!, grad, momentum_buffer! -> ",
    scalars="lr: float, momentum: float, dampening: float, weight_decay: float, first: int",
    cuda="optimizer:momentum",
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


@op("param!, grad, exp_avg!, exp_avg_sq! -> ", scalars=_ADAM_SCALARS, cuda="optimizer:adam")
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


@op(
    "param!, grad, exp_avg!, exp_avg_sq!, max_exp_avg_sq! -> ",
    scalars=_ADAM_SCALARS,
    cuda="optimizer:amsgrad",
)
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
