"""Adam and AdamW: steps scaled by running moments of the gradient."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY

from flowvm import ops
from flowvm.eager.tensor import Tensor
from flowvm.ops.declare.update import each
from flowvm.optim.optimizer import Group, Optimizer, Params, number, options

_each = each(ops.adam_step_, "exp_avg", "exp_avg_sq", counts="step")


# public: optim
@options
class Adam(Optimizer):
    """p -= lr * m / (sqrt(v) + eps), m and v the bias-corrected moments of the gradient.

    weight_decay is added to the gradient, or with decoupled_weight_decay shrinks the parameter;
    amsgrad divides by the largest v so far; maximize climbs; do_bias_correction=False, OneFlow's,
    leaves the moments as they are. See Optimizer for the other flags.

    Kingma and Ba, "Adam: a method for stochastic optimization", 2015.

    >>> model = nn.Linear(2, 1)
    >>> opt = flow.optim.Adam(model.parameters(), lr=1e-3)
    >>> before = model.bias.item()
    >>> model(flow.ones(4, 2)).sum().backward()
    >>> opt.step()  # the first step of each element is by lr
    >>> opt.zero_grad()
    >>> round(before - model.bias.item(), 6)
    0.001
    """

    live_options = ("lr", "betas", "eps", "weight_decay")
    _ranges = ("lr", "eps", "weight_decay", "betas")
    _zeros = ("exp_avg", "exp_avg_sq")

    params: Params
    lr: float | Tensor = 1e-3
    betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    amsgrad: bool = False
    _: KW_ONLY
    foreach: bool | None = None
    maximize: bool = False
    capturable: bool = False
    differentiable: bool = False
    fused: bool | None = None
    decoupled_weight_decay: bool = False
    do_bias_correction: bool = True
    contiguous_params: bool = False

    def _step_group(self, group: Group) -> None:
        lr, eps, decay = number(group["lr"]), group["eps"], group["weight_decay"]
        beta1, beta2 = group["betas"]
        amsgrad, maximize = group["amsgrad"], group["maximize"]
        decoupled = group["decoupled_weight_decay"]
        corrected = group.get("do_bias_correction", True)  # PyTorch's saved groups lack it
        remaining = group["params"]
        if not amsgrad:
            remaining = _each(
                remaining, self.state, decoupled, maximize, corrected, lr, beta1, beta2, eps, decay
            )
        for param, grad, entry in self._with_state(remaining, group):
            step = entry["step"] = entry["step"] + 1
            mean, square = entry["exp_avg"], entry["exp_avg_sq"]
            if not amsgrad:
                ops.adam_step_(
                    param, grad, mean, square,
                    decoupled, maximize, corrected, lr, beta1, beta2, eps, decay, step,
                )  # fmt: skip
                continue
            if "max_exp_avg_sq" not in entry:
                entry.setdefault("max_exp_avg_sq", ops.zeros_like(mean))
            ops.amsgrad_step_(
                param, grad, mean, square, entry["max_exp_avg_sq"],
                decoupled, maximize, corrected, lr, beta1, beta2, eps, decay, step,
            )  # fmt: skip


# public: optim
class AdamW(Adam):
    """Adam whose weight decay shrinks the parameter directly: p *= 1 - lr * weight_decay.

    Loshchilov and Hutter, "Decoupled weight decay regularization", 2019.

    >>> w = nn.Parameter(flow.tensor([2.0, 4.0]))
    >>> opt = flow.optim.AdamW([w], lr=0.5, weight_decay=0.5)
    >>> w.sum().backward()
    >>> opt.step()  # 0.75 w - 0.5
    >>> w
    Parameter containing:
    tensor([1.0000, 2.5000], requires_grad=True)
    """

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 1e-3,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        do_bias_correction: bool = True,
        contiguous_params: bool = False,
    ) -> None:
        super().__init__(
            params, lr, betas, eps, weight_decay, amsgrad,
            foreach=foreach, maximize=maximize, capturable=capturable,
            differentiable=differentiable, fused=fused, decoupled_weight_decay=True,
            do_bias_correction=do_bias_correction, contiguous_params=contiguous_params,
        )  # fmt: skip

    def __setstate__(self, state: Mapping[str, object]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:
            group["decoupled_weight_decay"] = True  # what Adam saved
