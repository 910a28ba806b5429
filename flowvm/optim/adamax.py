"""Adamax, NAdam, RAdam: Adam with another divisor, another momentum, another warm-up."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Any, ClassVar

from flowvm import ops
from flowvm.eager.live import single
from flowvm.eager.tensor import Tensor
from flowvm.meta.dtype import float32, get_default_dtype
from flowvm.optim.optimizer import Group, Optimizer, Params, number, options

# public: optim


@options
class Adamax(Optimizer):
    """p -= lr * m / u, m Adam's first moment, corrected, and u = max(beta2 * u, |grad| + eps).

    See Optimizer for the flags.  Kingma and Ba, "Adam: a method for stochastic optimization",
    2015, section 7.1.

    >>> w = nn.Parameter(flow.tensor([1.0, 2.0]))
    >>> opt = flow.optim.Adamax([w], lr=0.5)
    >>> (3 * w).sum().backward()
    >>> opt.step()
    >>> w
    Parameter containing:
    tensor([0.5000, 1.5000], requires_grad=True)
    """

    live_options = ("lr", "betas", "eps", "weight_decay")
    _ranges = ("lr", "eps", "weight_decay", "betas")
    _zeros = ("exp_avg", "exp_inf")

    params: Params
    lr: float | Tensor = 2e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    foreach: bool | None = None
    _: KW_ONLY
    maximize: bool = False
    differentiable: bool = False
    capturable: bool = False

    def _step_group(self, group: Group) -> None:
        lr, eps, decay = number(group["lr"]), group["eps"], group["weight_decay"]
        (beta1, beta2), maximize = group["betas"], group["maximize"]
        for param, grad, entry in self._with_state(group["params"], group):
            step = entry["step"] = entry["step"] + 1
            ops.adamax_step_(
                param, grad, entry["exp_avg"], entry["exp_inf"],
                maximize, lr, beta1, beta2, eps, decay, step,
            )  # fmt: skip


class _Decoupling(Optimizer):
    """Base of NAdam and RAdam: Adam's state, weight decay of both kinds."""

    live_options: ClassVar[tuple[str, ...]] = ("lr", "betas", "eps", "weight_decay")
    _ranges: ClassVar[tuple[str, ...]] = ("lr", "eps", "weight_decay", "betas")
    _zeros = ("exp_avg", "exp_avg_sq")


@options
class NAdam(_Decoupling):
    """Adam with Nesterov's momentum, whose strength grows from half of beta1 to beta1:
    beta1 * (1 - 0.96 ** (step * momentum_decay) / 2).

    See Optimizer for the flags.  Dozat, "Incorporating Nesterov momentum into Adam", 2016.
    The product of momenta is kept in the default dtype's precision, as PyTorch keeps it.

    >>> w = nn.Parameter(flow.tensor([1.0, 2.0]))
    >>> opt = flow.optim.NAdam([w], lr=0.5)
    >>> (3 * w).sum().backward()
    >>> opt.step()
    >>> bool((w < flow.tensor([1.0, 2.0])).all())
    True
    """

    live_options = ("lr", "betas", "eps", "weight_decay", "momentum_decay")
    _ranges = ("lr", "eps", "weight_decay", "betas", "momentum_decay")

    params: Params
    lr: float | Tensor = 2e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    momentum_decay: float = 4e-3
    decoupled_weight_decay: bool = False
    _: KW_ONLY
    foreach: bool | None = None
    maximize: bool = False
    capturable: bool = False
    differentiable: bool = False

    def _first_state(self, param: Tensor, group: Group) -> dict[str, object]:
        return {**super()._first_state(param, group), "mu_product": 1.0}

    def _step_group(self, group: Group) -> None:
        lr, eps, decay = number(group["lr"]), group["eps"], group["weight_decay"]
        (beta1, beta2), growth = group["betas"], group["momentum_decay"]
        maximize, decoupled = group["maximize"], group["decoupled_weight_decay"]
        for param, grad, entry in self._with_state(group["params"], group):
            step = entry["step"] = entry["step"] + 1
            mu = beta1 * (1.0 - 0.5 * 0.96 ** (step * growth))
            mu_next = beta1 * (1.0 - 0.5 * 0.96 ** ((step + 1) * growth))
            product = entry["mu_product"] = in_default_precision(
                entry["mu_product"] * in_default_precision(mu)
            )
            ops.nadam_step_(
                param, grad, entry["exp_avg"], entry["exp_avg_sq"],
                decoupled, maximize, lr, beta1, beta2, eps, decay, mu, mu_next, product, step,
            )  # fmt: skip


@options
class RAdam(_Decoupling):
    """Adam that steps by its momentum alone until the second moment's variance is bounded, and by
    a rectified rate from then on.

    See Optimizer for the flags.  Liu et al., "On the variance of the adaptive learning rate and
    beyond", 2020.

    >>> w = nn.Parameter(flow.tensor([1.0, 2.0]))
    >>> opt = flow.optim.RAdam([w], lr=0.25)
    >>> (3 * w).sum().backward()
    >>> opt.step()  # the first steps are by the mean gradient
    >>> w
    Parameter containing:
    tensor([0.2500, 1.2500], requires_grad=True)
    """

    params: Params
    lr: float | Tensor = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    decoupled_weight_decay: bool = False
    _: KW_ONLY
    foreach: bool | None = None
    maximize: bool = False
    capturable: bool = False
    differentiable: bool = False

    def _step_group(self, group: Group) -> None:
        lr, eps, decay = number(group["lr"]), group["eps"], group["weight_decay"]
        (beta1, beta2), maximize = group["betas"], group["maximize"]
        decoupled = group["decoupled_weight_decay"]
        for param, grad, entry in self._with_state(group["params"], group):
            step = entry["step"] = entry["step"] + 1
            ops.radam_step_(
                param, grad, entry["exp_avg"], entry["exp_avg_sq"],
                decoupled, maximize, lr, beta1, beta2, eps, decay, step,
            )  # fmt: skip


# not public
def in_default_precision(value: object) -> Any:
    """A number as a tensor of the default dtype would hold it."""
    return single(value) if get_default_dtype() is float32 else value
