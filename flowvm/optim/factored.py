"""Adafactor, LAMB and Muon: steps that look at a parameter as a whole, its norm or its matrix."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY
from typing import Any

from flowvm import ops
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, InvalidValueError
from flowvm.meta.dtype import bfloat16, finfo
from flowvm.optim.optimizer import (
    Group,
    Optimizer,
    Params,
    at_least,
    number,
    options,
    refuse_complex,
    zeros_of,
)


# public: optim
@options
class Adafactor(Optimizer):
    """Adam's divisor from the means of squared gradients of rows and of columns; no momentum.

    The step is clipped to the root mean square `d`, and scaled by that of the parameter, which is
    eps[1] at least.  The share of new gradients is step ** beta2_decay.  eps[0] None is the
    machine epsilon of the parameter's dtype. See Optimizer for the flags.

    Shazeer and Stern, "Adafactor: adaptive learning rates with sublinear memory cost", 2018.

    >>> model = nn.Linear(3, 2)
    >>> opt = flow.optim.Adafactor(model.parameters(), lr=1e-2)
    >>> model(flow.ones(4, 3)).sum().backward()
    >>> opt.step()
    >>> [tuple(opt.state[model.weight][name].shape) for name in ("row_var", "col_var")]
    [(2, 1), (1, 3)]
    """

    live_options = ("lr", "beta2_decay", "weight_decay")

    params: Params
    lr: float | Tensor = 1e-2
    beta2_decay: float = -0.8
    eps: tuple[float | None, float] = (None, 1e-3)
    d: float = 1.0
    weight_decay: float = 0.0
    _: KW_ONLY
    foreach: bool | None = None
    maximize: bool = False

    def _check(self, group: Group) -> None:
        at_least("lr", group["lr"])
        at_least("d", group["d"], 1.0)
        at_least("weight_decay", group["weight_decay"])
        if not group["beta2_decay"] <= 0.0:
            raise ArgumentError(f"beta2_decay should be <= 0 but is: {group['beta2_decay']}")
        for i, eps in enumerate(group["eps"]):
            if eps is not None or i:
                at_least(f"eps[{i}]", eps)

    def _first_state(self, param: Tensor, group: Group) -> dict[str, object]:
        refuse_complex("Adafactor", param)
        if param.ndim < 2:
            return {"step": 0, "variance": zeros_of(param)}
        *lead, rows, columns = param.shape
        return {
            "step": 0,
            "row_var": ops.zeros((*lead, rows, 1), dtype=param.dtype, device=param.device),
            "col_var": ops.zeros((*lead, 1, columns), dtype=param.dtype, device=param.device),
        }

    def _step_group(self, group: Group) -> None:
        lr, decay, (eps1, eps2) = number(group["lr"]), group["weight_decay"], group["eps"]
        for param, raw, entry in self._with_state(group["params"], group):
            step = entry["step"] = entry["step"] + 1
            grad = -raw if group["maximize"] else raw
            least = finfo(param.dtype).eps if eps1 is None else eps1
            new = step ** group["beta2_decay"]
            slowed = 1 / step**0.5
            rate = slowed if slowed < lr else lr
            size = param.numel() ** 0.5
            scale = ops.clamp(param.norm() / size, min=eps2) * rate
            if decay:
                param.mul_(1 - lr * decay)
            estimate = _second_moment(grad, entry, new, least)
            change = ops.clamp(estimate, min=least * least).rsqrt() * grad
            clipped = ops.clamp(change.norm() / (size * group["d"]), min=1.0)
            param.sub_(change * (scale / clipped))


def _second_moment(grad: Tensor, entry: dict[str, Any], new: Any, least: float) -> Tensor:
    """The estimate of squared gradients, of which a share `new` is this one's."""
    if grad.ndim < 2:
        entry["variance"].lerp_(grad * grad, new)
        variance: Tensor = entry["variance"]
        return variance
    row, column = entry["row_var"], entry["col_var"]
    square = grad * grad
    row.lerp_(square.mean(-1, keepdim=True), new)
    column.lerp_(square.mean(-2, keepdim=True), new)
    estimate: Tensor = row @ column / ops.clamp(row.mean(-2, keepdim=True), min=least)
    return estimate


# public: optim
@options
class LAMB(Optimizer):
    """OneFlow's LAMB: p -= lr * |p| / |d| * (d + weight_decay * p), d being Adam's direction.

    The ratio of norms is 1 where one of them is 0. adam_w_mode=False adds weight_decay * p to the
    gradient instead. do_bias_correction=False leaves Adam's moments uncorrected. amsgrad is turned
    down, as by OneFlow; contiguous_params and fused are taken and choose nothing.

    You et al., "Large batch optimization for deep learning: training BERT in 76 minutes", 2020.

    >>> w = nn.Parameter(flow.tensor([3.0, 4.0]))
    >>> opt = flow.optim.LAMB([w], lr=0.5, weight_decay=0.0)
    >>> w.sum().backward()
    >>> opt.step()  # by half of the length of w, 5
    >>> (flow.tensor([3.0, 4.0]) - w).norm().item()
    2.5
    """

    live_options = ("lr", "betas", "eps", "weight_decay")
    _ranges = ("lr", "eps", "weight_decay", "betas")
    _zeros = ("exp_avg", "exp_avg_sq")

    params: Params
    lr: float | Tensor = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    adam_w_mode: bool = True
    do_bias_correction: bool = True
    amsgrad: bool = False
    contiguous_params: bool = False
    fused: bool = False
    _: KW_ONLY
    maximize: bool = False

    def _check(self, group: Group) -> None:
        if group["amsgrad"]:
            raise InvalidValueError("LAMB does not support the AMSGrad variant: amsgrad=False")
        super()._check(group)

    def _step_group(self, group: Group) -> None:
        lr, (beta1, beta2) = number(group["lr"]), group["betas"]
        corrected, decay = group["do_bias_correction"], group["weight_decay"]
        decoupled = group["adam_w_mode"]
        for param, grad, entry in self._with_state(group["params"], group):
            step = entry["step"] = entry["step"] + 1
            direction = ops.lamb_direction_(
                zeros_of(param), param, grad, entry["exp_avg"], entry["exp_avg_sq"],
                corrected, group["maximize"], beta1, beta2, group["eps"],
                0.0 if decoupled else decay, step,
            )  # fmt: skip
            own, its = param.norm(), direction.norm()
            trust = ops.where((own > 0) & (its > 0), own / its, ops.ones_like(own))
            if decoupled:
                direction = direction + decay * param
            param.sub_(direction * (trust * lr))


# public: optim
@options
class Muon(Optimizer):
    """Momentum whose matrix is made nearly orthogonal, for parameters of two dimensions.

    b = lerp(b, grad, 1 - momentum), nesterov takes a step further; then `ns_steps` times
    X = a X + (b A + c A A) X with A = X X^T, (a, b, c) the ns_coefficients, from X = b / |b|, in
    bfloat16. The rate is lr * sqrt(max(1, rows / columns)), or with adjust_lr_fn
    "match_rms_adamw" lr * 0.2 * sqrt(max(rows, columns)); weight decay shrinks the parameter by
    lr * weight_decay.  Sums in bfloat16 products are rounded where PyTorch's are not always: steps
    agree with its to two digits.

    Jordan et al., "Muon: an optimizer for hidden layers in neural networks", 2024; Liu et al.,
    "Muon is scalable for LLM training", 2025.

    >>> weight = nn.Parameter(flow.eye(2))
    >>> opt = flow.optim.Muon([weight], lr=0.1, weight_decay=0.0)
    >>> weight.sum().backward()
    >>> opt.step()
    >>> weight.shape
    flow.Size([2, 2])
    """

    live_options = ("lr", "weight_decay", "momentum")
    _ranges = ("lr", "momentum", "weight_decay")

    params: Params
    lr: float | Tensor = 1e-3
    weight_decay: float = 0.1
    momentum: float = 0.95
    nesterov: bool = True
    ns_coefficients: tuple[float, float, float] = (3.4445, -4.7750, 2.0315)
    eps: float = 1e-7
    ns_steps: int = 5
    adjust_lr_fn: str | None = None

    def _check(self, group: Group) -> None:
        super()._check(group)
        if group["adjust_lr_fn"] not in (None, "original", "match_rms_adamw"):
            raise ArgumentError(
                f"Adjust learning rate function {group['adjust_lr_fn']} is not supported: None, "
                f"'original' or 'match_rms_adamw'"
            )
        if group["ns_steps"] >= 100:
            raise ArgumentError(f"ns_steps must be less than 100, got {group['ns_steps']}")
        if len(group["ns_coefficients"]) != 3:
            raise ArgumentError(f"ns_coefficients are 3 numbers, got {group['ns_coefficients']}")
        for param in group["params"]:
            if param.ndim != 2:
                raise ArgumentError(
                    f"Muon only supports 2D parameters whereas we found a parameter with size: "
                    f"{tuple(param.shape)}; give the others to AdamW"
                )

    def _first_state(self, param: Tensor, group: Group) -> dict[str, object]:
        refuse_complex("Muon", param)
        return {"momentum_buffer": zeros_of(param)}

    def _step_group(self, group: Group) -> None:
        lr, momentum, decay = number(group["lr"]), group["momentum"], group["weight_decay"]
        for param, grad, entry in self._with_state(group["params"], group):
            buffer = entry["momentum_buffer"]
            buffer.lerp_(grad, 1 - momentum)
            way = ops.lerp(grad, buffer, momentum) if group["nesterov"] else buffer
            change = _orthogonal(way, group["ns_coefficients"], group["ns_steps"], group["eps"])
            param.mul_(1 - lr * decay)
            rate = lr * _stretch(group["adjust_lr_fn"], *param.shape)
            param.sub_(change.to(param.dtype) * rate)


def _stretch(rule: str | None, rows: int, columns: int) -> float:
    if rule == "match_rms_adamw":
        return 0.2 * math.sqrt(max(rows, columns))
    return math.sqrt(max(1, rows / columns))


def _orthogonal(
    matrix: Tensor, coefficients: tuple[float, float, float], steps: int, eps: float
) -> Tensor:
    """U V^T of the matrix U S V^T, nearly: singular values between 0.5 and 1.5, in bfloat16."""
    a, b, c = coefficients
    tall = matrix.shape[0] > matrix.shape[1]
    x: Tensor = matrix.to(bfloat16)
    x = x.t() if tall else x
    x = x / ops.clamp(x.norm(), min=eps)
    for _ in range(steps):
        gram = x @ x.t()
        x = ops.addmm(x, ops.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.t() if tall else x
