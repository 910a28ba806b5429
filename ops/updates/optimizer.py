"""Optimizer steps: one in-place instruction for each parameter.

A step reads the gradient and rewrites the parameter and its state in one pass over memory.
Arithmetic is done in the parameter's dtype, in PyTorch's order of operations.
"""

from __future__ import annotations

from collections.abc import Callable

from flowvm.ops.declare.update import update

# public: ops (unlisted)

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

_ADAM_RATES = "lr: float, beta1: float, beta2: float, eps: float, weight_decay: float, step: int"
_ADAM_NUMBERS = f"decoupled: int, maximize: int, corrected: int, {_ADAM_RATES}"
_ADAM_ONCE = """
    sign = -1.0 if maximize else 1.0
    shrink = 1.0 - lr * weight_decay if decoupled else 1.0
    decay = 0.0 if decoupled else weight_decay
    new1 = 1.0 - beta1
    new2 = 1.0 - beta2
    size = lr / (1.0 - beta1**step) if corrected else lr
    spread = sqrt(1.0 - beta2**step) if corrected else 1.0
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
    doc="""adam_step_(param, grad, exp_avg, exp_avg_sq, decoupled, maximize, corrected, lr, beta1,
    beta2, eps, weight_decay, step): step number `step`, from 1, of Adam (decoupled: AdamW), in
    place.  Moments are used as they are unless `corrected`.
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

# --- steps divided by a mean of squared gradients ------------------------------------------------


def _rmsprop(name: str, centered: bool, momentum: bool) -> Callable[..., object]:
    """RMSprop with the state that its options want, in this order behind square_avg."""
    square = "square_avg - grad_avg * grad_avg" if centered else "square_avg"
    lines = [
        "d = climb * grad + weight_decay * param",
        "square_avg = square_avg * alpha + new * d * d",
        *(["grad_avg = grad_avg + (d - grad_avg) * new"] if centered else []),
        f"spread = sqrt({square}) + eps",
    ]
    if momentum:
        lines.append("momentum_buffer = momentum_buffer * momentum + d / spread")
        lines.append("param = param - lr * momentum_buffer")
    else:
        lines.append("param = param - lr * (d / spread)")
    state = ["square_avg"] + ["grad_avg"] * centered + ["momentum_buffer"] * momentum
    return update(
        name,
        ", ".join(["param!", "grad", *(f"{s}!" for s in state)]),
        "maximize: int, lr: float, alpha: float, eps: float, weight_decay: float"
        + (", momentum: float" if momentum else ""),
        once="""
            climb = -1.0 if maximize else 1.0
            new = 1.0 - alpha
        """,
        each="\n".join(lines),
        doc=f"""{name}(param, grad, {", ".join(state)}, maximize, lr, alpha, eps,
        weight_decay{", momentum" if momentum else ""}): one step of RMSprop, in place.
        """,
    )


rmsprop_step_ = _rmsprop("rmsprop_step_", False, False)
rmsprop_momentum_step_ = _rmsprop("rmsprop_momentum_step_", False, True)
rmsprop_centered_step_ = _rmsprop("rmsprop_centered_step_", True, False)
rmsprop_centered_momentum_step_ = _rmsprop("rmsprop_centered_momentum_step_", True, True)

adagrad_step_ = update(
    "adagrad_step_",
    "param!, grad, total!",
    "maximize: int, lr: float, lr_decay: float, eps: float, weight_decay: float, step: int",
    once="""
        climb = -1.0 if maximize else 1.0
        rate = lr / (1.0 + (step - 1) * lr_decay)
    """,
    each="""
        d = climb * grad + weight_decay * param
        total = total + d * d
        param = param - rate * (d / (sqrt(total) + eps))
    """,
    doc="""adagrad_step_(param, grad, total, maximize, lr, lr_decay, eps, weight_decay, step): step
    number `step`, from 1, of Adagrad, in place; `total` is the sum of squared gradients.
    """,
)

adadelta_step_ = update(
    "adadelta_step_",
    "param!, grad, square_avg!, acc_delta!",
    "maximize: int, lr: float, rho: float, eps: float, weight_decay: float",
    once="""
        climb = -1.0 if maximize else 1.0
        new = 1.0 - rho
    """,
    each="""
        d = climb * grad + weight_decay * param
        square_avg = square_avg * rho + new * d * d
        delta = sqrt(acc_delta + eps) / sqrt(square_avg + eps) * d
        acc_delta = acc_delta * rho + new * delta * delta
        param = param - lr * delta
    """,
    doc="""adadelta_step_(param, grad, square_avg, acc_delta, maximize, lr, rho, eps,
    weight_decay): one step of Adadelta, in place.
    """,
)

# --- Adam's relatives ----------------------------------------------------------------------------

adamax_step_ = update(
    "adamax_step_",
    "param!, grad, exp_avg!, exp_inf!",
    "maximize: int, lr: float, beta1: float, beta2: float, eps: float, weight_decay: float, "
    "step: int",
    once="""
        climb = -1.0 if maximize else 1.0
        new1 = 1.0 - beta1
        size = lr / (1.0 - beta1**step)
    """,
    each="""
        d = climb * grad + weight_decay * param
        exp_avg = exp_avg + (d - exp_avg) * new1
        exp_inf = max(exp_inf * beta2, abs(d) + eps)
        param = param - size * (exp_avg / exp_inf)
    """,
    doc="""adamax_step_(param, grad, exp_avg, exp_inf, maximize, lr, beta1, beta2, eps,
    weight_decay, step): step number `step`, from 1, of Adamax, in place.
    """,
)

nadam_step_ = update(
    "nadam_step_",
    "param!, grad, exp_avg!, exp_avg_sq!",
    "decoupled: int, maximize: int, lr: float, beta1: float, beta2: float, eps: float, "
    "weight_decay: float, mu: float, mu_next: float, mu_product: float, step: int",
    once="""
        climb = -1.0 if maximize else 1.0
        shrink = 1.0 - lr * weight_decay if decoupled else 1.0
        decay = 0.0 if decoupled else weight_decay
        new1 = 1.0 - beta1
        new2 = 1.0 - beta2
        correction = 1.0 - beta2**step
        now = lr * (1.0 - mu) / (1.0 - mu_product)
        ahead = lr * mu_next / (1.0 - mu_product * mu_next)
    """,
    each="""
        d = climb * grad + decay * param
        exp_avg = exp_avg + (d - exp_avg) * new1
        exp_avg_sq = exp_avg_sq * beta2 + d * d * new2
        spread = sqrt(exp_avg_sq / correction) + eps
        param = param * shrink - now * (d / spread) - ahead * (exp_avg / spread)
    """,
    doc="""nadam_step_(param, grad, exp_avg, exp_avg_sq, decoupled, maximize, lr, beta1, beta2, eps,
    weight_decay, mu, mu_next, mu_product, step): step number `step`, from 1, of NAdam, in place;
    mu is this step's momentum, mu_next the next one's, mu_product of all up to this one.
    """,
)

radam_step_ = update(
    "radam_step_",
    "param!, grad, exp_avg!, exp_avg_sq!",
    f"decoupled: int, maximize: int, {_ADAM_RATES}",
    once="""
        climb = -1.0 if maximize else 1.0
        shrink = 1.0 - lr * weight_decay if decoupled else 1.0
        decay = 0.0 if decoupled else weight_decay
        new1 = 1.0 - beta1
        new2 = 1.0 - beta2
        size = lr / (1.0 - beta1**step)
        left = beta2**step
        longest = 2.0 / new2 - 1.0
        length = longest - 2.0 * step * left / (1.0 - left)
        above = (length - 4.0) * (length - 2.0) * longest
        below = (longest - 4.0) * (longest - 2.0) * length
        rectified = 1.0 if length > 5.0 else 0.0
        rectifier = sqrt((above / below) * (1.0 - left)) if length > 5.0 else 1.0
    """,
    each="""
        d = climb * grad + decay * param
        exp_avg = exp_avg + (d - exp_avg) * new1
        exp_avg_sq = exp_avg_sq * beta2 + d * d * new2
        spread = sqrt(exp_avg_sq) + eps if rectified != 0.0 else 1.0
        param = param * shrink - size * exp_avg * (rectifier / spread)
    """,
    doc="""radam_step_(param, grad, exp_avg, exp_avg_sq, decoupled, maximize, lr, beta1, beta2, eps,
    weight_decay, step): step number `step`, from 1, of RAdam, in place.
    """,
)

lamb_direction_ = update(
    "lamb_direction_",
    "direction!, param, grad, exp_avg!, exp_avg_sq!",
    "corrected: int, maximize: int, beta1: float, beta2: float, eps: float, penalty: float, "
    "step: int",
    once="""
        climb = -1.0 if maximize else 1.0
        new1 = 1.0 - beta1
        new2 = 1.0 - beta2
        mean = 1.0 - beta1**step if corrected else 1.0
        spread = sqrt(1.0 - beta2**step) if corrected else 1.0
    """,
    each="""
        d = climb * grad + penalty * param
        exp_avg = exp_avg * beta1 + new1 * d
        exp_avg_sq = exp_avg_sq * beta2 + new2 * d * d
        direction = (exp_avg / mean) / (sqrt(exp_avg_sq) / spread + eps)
    """,
    doc="""lamb_direction_(direction, param, grad, exp_avg, exp_avg_sq, corrected, maximize, beta1,
    beta2, eps, penalty, step): where LAMB goes in step number `step`, from 1, and its moments, in
    place.  `penalty` times the parameter is added to the gradient.
    """,
)

# --- others --------------------------------------------------------------------------------------

rprop_step_ = update(
    "rprop_step_",
    "param!, grad, prev!, step_size!",
    "maximize: int, etaminus: float, etaplus: float, smallest: float, largest: float",
    once="climb = -1.0 if maximize else 1.0",
    each="""
        d = climb * grad
        way = d * prev
        factor = etaplus if way > 0.0 else (etaminus if way < 0.0 else 1.0)
        step_size = min(max(step_size * factor, smallest), largest)
        prev = 0.0 * d if way < 0.0 else d
        param = param - sign(prev) * step_size
    """,
    doc="""rprop_step_(param, grad, prev, step_size, maximize, etaminus, etaplus, smallest,
    largest): one step of resilient propagation, in place.
    """,
)

asgd_step_ = update(
    "asgd_step_",
    "param!, grad, ax!",
    "maximize: int, lambd: float, weight_decay: float, eta: float, mu: float",
    once="""
        climb = -1.0 if maximize else 1.0
        shrink = 1.0 - lambd * eta
    """,
    each="""
        d = climb * grad + weight_decay * param
        param = param * shrink - eta * d
        ax = ax + (param - ax) * mu if mu != 1.0 else param
    """,
    doc="""asgd_step_(param, grad, ax, maximize, lambd, weight_decay, eta, mu): one step of averaged
    SGD at rate eta, in place; mu is the newest point's weight in the average ax.
    """,
)
