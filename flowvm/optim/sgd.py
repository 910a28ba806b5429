"""Stochastic gradient descent, with momentum."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import TYPE_CHECKING, Any

from flowvm import ops
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, ModeError
from flowvm.loading.lazy import lazy
from flowvm.ops.declare.update import each
from flowvm.optim.optimizer import Group, Optimizer, Params, is_sparse, number, options, zeros_of

if TYPE_CHECKING:
    from flowvm.ops.sparse import gradients
else:
    gradients = lazy("flowvm.ops.sparse.gradients")

_each = each(ops.sgd_step_)
_each_momentum = each(ops.sgd_momentum_step_, "momentum_buffer")


# public: optim
@options
class SGD(Optimizer):
    """p -= lr * b, where b = momentum * b + (1 - dampening) * (grad + weight_decay * p).

    nesterov steps by grad + momentum * b instead; maximize climbs. See Optimizer for the other
    flags.

    >>> w = nn.Parameter(flow.tensor([1.0, 2.0]))
    >>> opt = flow.optim.SGD([w], lr=0.5, momentum=0.9)
    >>> for _ in range(2):
    ...     opt.zero_grad()
    ...     w.sum().backward()  # the gradient is 1
    ...     opt.step()
    >>> w  # 1 - 0.5 - 0.5 * 1.9
    Parameter containing:
    tensor([-0.4500,  0.5500], requires_grad=True)
    """

    live_options = ("lr", "momentum", "dampening", "weight_decay")
    _ranges = ("lr", "momentum", "weight_decay")

    params: Params
    lr: float | Tensor = 1e-3
    momentum: float = 0.0
    dampening: float = 0.0
    weight_decay: float | Tensor = 0.0
    nesterov: bool = False
    _: KW_ONLY
    maximize: bool = False
    foreach: bool | None = None
    differentiable: bool = False
    fused: bool | None = None
    contiguous_params: bool = False

    def _check(self, group: Group) -> None:
        super()._check(group)
        if group["nesterov"] and (group["momentum"] <= 0 or group["dampening"] != 0):
            raise ArgumentError("Nesterov momentum requires a momentum and zero dampening")

    def _step_group(self, group: Group) -> None:
        lr, momentum, dampening = number(group["lr"]), group["momentum"], group["dampening"]
        decay = number(group["weight_decay"])
        nesterov, maximize = group["nesterov"], group["maximize"]
        plain_step = ops.sgd_step_
        if momentum:
            remaining = _each_momentum(
                group["params"], self.state, nesterov, maximize, lr, momentum, dampening, decay,
                False,
            )  # fmt: skip
        else:
            remaining = _each(group["params"], self.state, maximize, lr, decay)
        for param in remaining:
            grad = param.grad
            if grad is None:
                continue
            if is_sparse(grad):
                self._step_sparsely(param, grad, group, lr)
                continue
            if not momentum:
                plain_step(param, grad, maximize, lr, decay)
                continue
            entry = self.state.get(param)
            buffer = None if entry is None else entry.get("momentum_buffer")
            first = buffer is None
            if first:
                buffer = zeros_of(param)
            ops.sgd_momentum_step_(
                param, grad, buffer, nesterov, maximize, lr, momentum, dampening, decay, first
            )
            if first:  # not before: zeros that an interrupt left would not be a first step's
                self.state[param] = {"momentum_buffer": buffer}

    def _step_sparsely(self, param: Tensor, grad: Any, group: Group, lr: float) -> None:
        """Step by a sparse gradient, with a sparse momentum buffer, as PyTorch's."""
        momentum = group["momentum"]
        if number(group["weight_decay"]):
            raise ModeError(
                "SGD: weight_decay is not for sparse gradients, as it changes every row; leave it "
                "out, or give the embedding sparse=False"
            )
        if group["maximize"]:
            grad = -grad
        if momentum:
            held = self.state[param].get("momentum_buffer")
            if held is not None and not is_sparse(held):
                held = held.to_sparse(1)
            buffer = gradients.momentum_of(held, grad, momentum, group["dampening"])
            self.state[param] = {"momentum_buffer": buffer}
            grad = grad + buffer * momentum if group["nesterov"] else buffer
        param.add_(grad, alpha=-lr)
