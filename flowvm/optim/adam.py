"""Adam and AdamW: steps scaled by running moments of the gradient."""

from __future__ import annotations

from flowvm import ops
from flowvm.errors import ArgumentError
from flowvm.optim.optimizer import Group, Optimizer, Params, at_least


class Adam(Optimizer):
    """p -= lr * m / (sqrt(v) + eps), m and v the bias-corrected moments of the gradient.

    weight_decay is added to the gradient; amsgrad divides by the largest v so far; maximize climbs.
    """

    live_options = ("lr", "betas", "eps", "weight_decay")
    _decoupled = False

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "amsgrad": amsgrad,
            "maximize": maximize,
        }
        super().__init__(params, defaults)

    def _check(self, group: Group) -> None:
        for name in ("lr", "eps", "weight_decay"):
            at_least(name, group[name])
        for i, beta in enumerate(group["betas"]):
            if not 0.0 <= beta < 1.0:
                raise ArgumentError(f"Invalid beta parameter at index {i}: {beta}, not in [0, 1)")

    def _step_group(self, group: Group) -> None:
        lr, eps, decay = group["lr"], group["eps"], group["weight_decay"]
        beta1, beta2 = group["betas"]
        amsgrad, maximize, decoupled = group["amsgrad"], group["maximize"], self._decoupled
        for param in group["params"]:
            grad = param.grad
            if grad is None:
                continue
            entry = self.state.get(param)
            if entry is None:
                entry = self.state[param] = {"step": 0}
                for name in ("exp_avg", "exp_avg_sq"):
                    entry[name] = ops.zeros(param.shape, dtype=param.dtype, device=param.device)
            step = entry["step"] = entry["step"] + 1
            mean, square = entry["exp_avg"], entry["exp_avg_sq"]
            if not amsgrad:
                ops.adam_step_(
                    param, grad, mean, square,
                    decoupled, maximize, lr, beta1, beta2, eps, decay, step,
                )  # fmt: skip
                continue
            if "max_exp_avg_sq" not in entry:
                entry["max_exp_avg_sq"] = ops.zeros_like(mean)
            ops.amsgrad_step_(
                param, grad, mean, square, entry["max_exp_avg_sq"],
                decoupled, maximize, lr, beta1, beta2, eps, decay, step,
            )  # fmt: skip


class AdamW(Adam):
    """Adam whose weight decay shrinks the parameter directly: p *= 1 - lr * weight_decay."""

    _decoupled = True

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, maximize=maximize)
