"""Rprop and ASGD: a step size for each element, and an average of where SGD went."""

from __future__ import annotations

from dataclasses import KW_ONLY

from flowvm import ops
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError
from flowvm.optim.adamax import in_default_precision
from flowvm.optim.optimizer import (
    Group,
    Optimizer,
    Params,
    at_least,
    full_of,
    number,
    options,
    zeros_of,
)


# public: optim
@options
class Rprop(Optimizer):
    """p -= sign(grad) * size: an element's size grows by etas[1] where its gradient keeps its sign,
    shrinks by etas[0] where it turns, within step_sizes, and starts at lr.

    Where the gradient turned, that element waits for a step. See Optimizer for the flags.
    Riedmiller and Braun, "A direct adaptive method for faster backpropagation learning", 1993.

    >>> w = nn.Parameter(flow.tensor([1.0, 2.0]))
    >>> opt = flow.optim.Rprop([w], lr=0.5)  # gradients of the whole data
    >>> (3 * w).sum().backward()
    >>> opt.step()
    >>> w
    Parameter containing:
    tensor([0.5000, 1.5000], requires_grad=True)
    """

    live_options = ("etas", "step_sizes")

    params: Params
    lr: float | Tensor = 1e-2
    etas: tuple[float, float] = (0.5, 1.2)
    step_sizes: tuple[float, float] = (1e-6, 50)
    _: KW_ONLY
    capturable: bool = False
    foreach: bool | None = None
    maximize: bool = False
    differentiable: bool = False

    def _check(self, group: Group) -> None:
        at_least("lr", group["lr"])
        lower, higher = group["etas"]
        if not 0.0 < lower < 1.0 < higher:
            raise ArgumentError(f"Invalid eta values: {lower}, {higher}: not around 1")

    def _first_state(self, param: Tensor, group: Group) -> dict[str, object]:
        size = full_of(param, number(group["lr"]))
        return {"step": 0, "prev": zeros_of(param), "step_size": size}

    def _step_group(self, group: Group) -> None:
        (lower, higher), maximize = group["etas"], group["maximize"]
        smallest, largest = group["step_sizes"]
        for param, grad, entry in self._with_state(group["params"], group):
            entry["step"] += 1
            ops.rprop_step_(
                param, grad, entry["prev"], entry["step_size"],
                maximize, lower, higher, smallest, largest,
            )  # fmt: skip


# public: optim
@options
class ASGD(Optimizer):
    """SGD at the rate lr / (1 + lambd * lr * step) ** alpha, and `ax` in the state, the average of
    where it was from step t0 on.

    See Optimizer for the flags.  Polyak and Juditsky, "Acceleration of stochastic approximation by
    averaging", 1992.  The rate is kept in the default dtype's precision, as PyTorch keeps it.

    >>> w = nn.Parameter(flow.tensor([1.0, 2.0]))
    >>> opt = flow.optim.ASGD([w], lr=0.5, lambd=0.0, t0=1000)
    >>> w.sum().backward()
    >>> opt.step()
    >>> w
    Parameter containing:
    tensor([0.5000, 1.5000], requires_grad=True)
    """

    live_options = ("lr", "lambd", "alpha", "t0", "weight_decay")
    _ranges = ("lr", "weight_decay")

    params: Params
    lr: float | Tensor = 1e-2
    lambd: float = 1e-4
    alpha: float = 0.75
    t0: float = 1e6
    weight_decay: float = 0.0
    foreach: bool | None = None
    maximize: bool = False
    differentiable: bool = False
    capturable: bool = False

    def _first_state(self, param: Tensor, group: Group) -> dict[str, object]:
        eta = in_default_precision(number(group["lr"]))
        return {"step": 0, "eta": eta, "mu": 1.0, "ax": zeros_of(param)}

    def _step_group(self, group: Group) -> None:
        lr, lambd, alpha = number(group["lr"]), group["lambd"], group["alpha"]
        t0, decay, maximize = group["t0"], group["weight_decay"], group["maximize"]
        for param, grad, entry in self._with_state(group["params"], group):
            step = entry["step"] = entry["step"] + 1
            ops.asgd_step_(
                param, grad, entry["ax"], maximize, lambd, decay, entry["eta"], entry["mu"]
            )
            entry["eta"] = in_default_precision(lr / (1.0 + lambd * lr * step) ** alpha)
            averaged = step - t0
            entry["mu"] = in_default_precision(1.0 / averaged) if averaged > 1 else 1.0
