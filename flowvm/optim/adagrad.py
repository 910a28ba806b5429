"""RMSprop, Adagrad, Adadelta: steps divided by a mean, or a sum, of squared gradients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY
from typing import TYPE_CHECKING, Any

from flowvm import ops
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, ModeError
from flowvm.loading.lazy import lazy
from flowvm.optim.optimizer import (
    Group,
    Optimizer,
    Params,
    full_of,
    is_sparse,
    number,
    options,
    zeros_of,
)

if TYPE_CHECKING:
    from flowvm.ops.sparse import gradients
else:
    gradients = lazy("flowvm.ops.sparse.gradients")

# public: optim


@options
class RMSprop(Optimizer):
    """p -= lr * grad / (sqrt(v) + eps), v a running mean of the squared gradient.

    centered takes the running mean of the gradient off it; momentum steps by
    b = momentum * b + grad / (sqrt(v) + eps). See Optimizer for the flags.

    Tieleman and Hinton, lecture 6.5 of "Neural networks for machine learning", 2012; centered:
    Graves, "Generating sequences with recurrent neural networks", 2013.

    >>> w = nn.Parameter(flow.tensor([1.0, 2.0]))
    >>> opt = flow.optim.RMSprop([w], lr=0.25, alpha=0.75, momentum=0.9)
    >>> w.sum().backward()
    >>> opt.step()  # by 0.25 / sqrt(0.25)
    >>> w
    Parameter containing:
    tensor([0.5000, 1.5000], requires_grad=True)
    """

    live_options = ("lr", "alpha", "eps", "weight_decay")
    _ranges = ("lr", "eps", "momentum", "weight_decay", "alpha")

    params: Params
    lr: float | Tensor = 1e-2
    alpha: float = 0.99
    eps: float = 1e-8
    weight_decay: float = 0.0
    momentum: float = 0.0
    centered: bool = False
    capturable: bool = False
    foreach: bool | None = None
    maximize: bool = False
    differentiable: bool = False
    contiguous_params: bool = False

    def _first_state(self, param: Tensor, group: Group) -> dict[str, object]:
        state = {"step": 0, "square_avg": zeros_of(param)}
        if group["momentum"] > 0:
            state["momentum_buffer"] = zeros_of(param)
        if group["centered"]:
            state["grad_avg"] = zeros_of(param)
        return state

    def _step_group(self, group: Group) -> None:
        momentum, centered = group["momentum"], group["centered"]
        steps = {
            (False, False): ops.rmsprop_step_,
            (False, True): ops.rmsprop_momentum_step_,
            (True, False): ops.rmsprop_centered_step_,
            (True, True): ops.rmsprop_centered_momentum_step_,
        }
        step = steps[bool(centered), bool(momentum > 0)]
        names = ["square_avg"] + ["grad_avg"] * bool(centered)
        names += ["momentum_buffer"] * bool(momentum > 0)
        numbers = (
            group["maximize"],
            number(group["lr"]),
            group["alpha"],
            group["eps"],
            group["weight_decay"],
            *((momentum,) if momentum > 0 else ()),
        )
        for param, grad, entry in self._with_state(group["params"], group):
            entry["step"] += 1
            step(param, grad, *(entry[name] for name in names), *numbers)


@options
class Adagrad(Optimizer):
    """p -= lr / (1 + (step - 1) * lr_decay) * grad / (sqrt(sum of squared gradients) + eps).

    The state is there from the beginning, as in PyTorch. See Optimizer for the flags.

    Duchi, Hazan and Singer, "Adaptive subgradient methods for online learning and stochastic
    optimization", 2011.

    >>> w = nn.Parameter(flow.tensor([1.0, 2.0]))
    >>> opt = flow.optim.Adagrad([w], lr=0.5)
    >>> (3 * w).sum().backward()
    >>> opt.step()
    >>> w
    Parameter containing:
    tensor([0.5000, 1.5000], requires_grad=True)
    """

    live_options = ("lr", "lr_decay", "eps", "weight_decay")
    _ranges = ("lr", "lr_decay", "weight_decay", "initial_accumulator_value", "eps")

    params: Params
    lr: float | Tensor = 1e-2
    lr_decay: float = 0.0
    weight_decay: float = 0.0
    initial_accumulator_value: float = 0.0
    eps: float = 1e-10
    foreach: bool | None = None
    _: KW_ONLY
    maximize: bool = False
    differentiable: bool = False
    fused: bool | None = None
    contiguous_params: bool = False

    _takes_sparse = True

    def add_param_group(self, param_group: Mapping[str, Any]) -> None:
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        for param in group["params"]:
            self.state[param] = self._first_state(param, group)

    def _first_state(self, param: Tensor, group: Group) -> dict[str, Any]:
        return {"step": 0, "sum": full_of(param, group["initial_accumulator_value"])}

    def _step_group(self, group: Group) -> None:
        lr, maximize = number(group["lr"]), group["maximize"]
        lr_decay, eps, decay = group["lr_decay"], group["eps"], group["weight_decay"]
        for param, grad, entry in self._with_state(group["params"], group):
            if grad.__class__ is not Tensor and is_sparse(grad):
                if decay:
                    raise ModeError(
                        "Adagrad: weight_decay option is not compatible with sparse gradients"
                    )
                entry["step"] += 1
                rate = lr / (1 + (entry["step"] - 1) * lr_decay)
                gradients.adagrad_step(
                    param, -grad if maximize else grad, entry["sum"], rate, eps
                )  # fmt: skip
                continue
            step = entry["step"] = entry["step"] + 1
            ops.adagrad_step_(param, grad, entry["sum"], maximize, lr, lr_decay, eps, decay, step)


@options
class Adadelta(Optimizer):
    """p -= lr * d, where d = grad * sqrt(u + eps) / sqrt(v + eps); v and u are running means of
    squared gradients and of squared d.

    See Optimizer for the flags.  Zeiler, "ADADELTA: an adaptive learning rate method", 2012.

    >>> w = nn.Parameter(flow.tensor([1.0, 2.0]))
    >>> opt = flow.optim.Adadelta([w], eps=1.0)
    >>> w.sum().backward()
    >>> opt.step()
    >>> w
    Parameter containing:
    tensor([0.0465, 1.0465], requires_grad=True)
    """

    live_options = ("lr", "rho", "eps", "weight_decay")
    _ranges = ("lr", "eps", "weight_decay")
    _zeros = ("square_avg", "acc_delta")

    params: Params
    lr: float | Tensor = 1.0
    rho: float = 0.9
    eps: float = 1e-6
    weight_decay: float = 0.0
    foreach: bool | None = None
    _: KW_ONLY
    capturable: bool = False
    maximize: bool = False
    differentiable: bool = False
    contiguous_params: bool = False

    def _check(self, group: Group) -> None:
        super()._check(group)
        if not 0.0 <= group["rho"] <= 1.0:
            raise ArgumentError(f"Invalid rho value: {group['rho']}, not in [0, 1]")

    def _step_group(self, group: Group) -> None:
        lr, maximize = number(group["lr"]), group["maximize"]
        rho, eps, decay = group["rho"], group["eps"], group["weight_decay"]
        for param, grad, entry in self._with_state(group["params"], group):
            entry["step"] += 1
            ops.adadelta_step_(
                param, grad, entry["square_avg"], entry["acc_delta"], maximize, lr, rho, eps, decay
            )
