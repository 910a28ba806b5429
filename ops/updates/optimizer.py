"""Optimizer steps: one in-place instruction for each parameter.

A step reads the gradient and rewrites the parameter and its state in one pass over memory.
Arithmetic is done in the parameter's dtype, in PyTorch's order of operations.
"""

from __future__ import annotations

from flowvm.ops.declare.update import update

__all__ = ["adam_step_", "amsgrad_step_", "sgd_momentum_step_", "sgd_step_"]

sgd_step_ = update(
    "sgd_step_",
    "param!, grad",
    "maximize: int, lr: float, weight_decay: float",
    once="sign = -1.0 if maximize else 1.0",
    each="param = param - lr * (sign * grad + weight_decay * param)",
    doc="sgd_step_(param, grad, maximize, lr, weight_decay): one step of plain SGD, in place.",
)

sgd_momentum_step_ = update(
    "sgd_momentum_step_",
    "param!, grad, momentum_buffer!",
    "nesterov: int, maximize: int, lr: float, momentum: float, dampening: float, "
    "weight_decay: float, first: int",
    once="""
        sign = -1.0 if maximize else 1.0
        keep = 0.0 if first else momentum
        take = 1.0 if first else 1.0 - dampening
    """,
    each="""
        d = sign * grad + weight_decay * param
        momentum_buffer = keep * momentum_buffer + take * d
        param = param - lr * (d + momentum * momentum_buffer if nesterov else momentum_buffer)
    """,
    doc="""sgd_momentum_step_(param, grad, momentum_buffer, nesterov, maximize, lr, momentum,
    dampening, weight_decay, first): one step of SGD with momentum, in place.

    `first` says that the buffer holds nothing yet (it must be zeros): it becomes the gradient.
    """,
)

_ADAM_NUMBERS = (
    "decoupled: int, maximize: int, lr: float, beta1: float, beta2: float, eps: float, "
    "weight_decay: float, step: int"
)
_ADAM_ONCE = """
    sign = -1.0 if maximize else 1.0
    shrink = 1.0 - lr * weight_decay if decoupled else 1.0
    decay = 0.0 if decoupled else weight_decay
    new1 = 1.0 - beta1
    new2 = 1.0 - beta2
    size = lr / (1.0 - beta1**step)
    spread = sqrt(1.0 - beta2**step)
"""

adam_step_ = update(
    "adam_step_",
    "param!, grad, exp_avg!, exp_avg_sq!",
    _ADAM_NUMBERS,
    once=_ADAM_ONCE,
    each="""
        d = sign * grad + decay * param
        exp_avg = exp_avg + (d - exp_avg) * new1
        exp_avg_sq = exp_avg_sq * beta2 + d * d * new2
        param = param * shrink - size * (exp_avg / (sqrt(exp_avg_sq) / spread + eps))
    """,
    doc="""adam_step_(param, grad, exp_avg, exp_avg_sq, decoupled, maximize, lr, beta1, beta2, eps,
    weight_decay, step): step number `step`, from 1, of Adam (decoupled: AdamW), in place.
    """,
)

amsgrad_step_ = update(
    "amsgrad_step_",
    "param!, grad, exp_avg!, exp_avg_sq!, max_exp_avg_sq!",
    _ADAM_NUMBERS,
    once=_ADAM_ONCE,
    each="""
        d = sign * grad + decay * param
        exp_avg = exp_avg + (d - exp_avg) * new1
        exp_avg_sq = exp_avg_sq * beta2 + d * d * new2
        max_exp_avg_sq = max(max_exp_avg_sq, exp_avg_sq)
        param = param * shrink - size * (exp_avg / (sqrt(max_exp_avg_sq) / spread + eps))
    """,
    doc="adam_step_ with max_exp_avg_sq after exp_avg_sq: the AMSGrad variant.",
)
