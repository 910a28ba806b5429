"""Adam for sparse gradients: the rows of a table that were looked up move, and no others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from flowvm.autograd import no_grad
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, ModeError
from flowvm.loading.lazy import lazy
from flowvm.optim.optimizer import (
    Group,
    Optimizer,
    Params,
    at_least,
    check_betas,
    is_sparse,
    number,
    options,
)

if TYPE_CHECKING:
    from flowvm.ops.sparse import gradients
else:
    gradients = lazy("flowvm.ops.sparse.gradients")


# public: optim
@options
class SparseAdam(Optimizer):
    """Adam, for parameters with sparse gradients, such as those of `nn.Embedding(sparse=True)`.

    Running means move in rows that the gradient has values for; rows without stay as they are.  So
    a step costs what the rows looked up cost, whatever the size of the table.  maximize climbs.
    ModeError for a dense gradient: Adam takes those.

    >>> table = nn.Embedding.from_pretrained(flow.ones(3, 2), freeze=False, sparse=True)
    >>> opt = flow.optim.SparseAdam(table.parameters(), lr=0.5)
    >>> table(flow.tensor([1, 1])).sum().backward()
    >>> opt.step()
    >>> table.weight
    Parameter containing:
    tensor([[1.0000, 1.0000],
            [0.5000, 0.5000],
            [1.0000, 1.0000]], requires_grad=True)
    """

    live_options = ("lr", "betas", "eps")
    _zeros = ("exp_avg", "exp_avg_sq")
    not_in_graphs = "sparse gradients are not there in a graph; give sparse=False and use Adam"

    params: Params
    lr: float | Tensor = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    maximize: bool = False

    def _check(self, group: Group) -> None:
        for name in ("lr", "eps"):
            if not 0.0 < number(group[name]):
                at_least(name, group[name])
                raise ArgumentError(f"Invalid {name}: {group[name]}, must be more than 0")
        check_betas(group)
        places = [k for k, param in enumerate(group["params"]) if is_sparse(param)]
        if places:
            raise ArgumentError(
                f"Sparse params at indices {places}: SparseAdam requires dense parameter tensors"
            )

    def _step_group(self, group: Group) -> None:
        lr, (beta1, beta2), eps = number(group["lr"]), group["betas"], group["eps"]
        for param in group["params"]:
            if param.grad is not None and not is_sparse(param.grad):
                raise ModeError(
                    "SparseAdam does not support dense gradients, please consider Adam instead"
                )
        for param, grad, entry in self._with_state(group["params"], group):
            entry["step"] += 1
            gradients.adam_step(
                param, -grad if group["maximize"] else grad, entry["exp_avg"], entry["exp_avg_sq"],
                lr, beta1, beta2, eps, entry["step"],
            )  # fmt: skip

    _takes_sparse = True


def sparse_adam(
    params: Sequence[Tensor], grads: Sequence[Tensor], exp_avgs: Sequence[Tensor],
    exp_avg_sqs: Sequence[Tensor], state_steps: Sequence[int], *,
    eps: float, beta1: float, beta2: float, lr: float, maximize: bool = False,
) -> None:  # fmt: skip
    """Take one step of SparseAdam: PyTorch's function of this name, of lists.

    state_steps   the number of each parameter's step, this one counted

    >>> w, g = flow.ones(2, 1), flow.sparse_coo_tensor([[1]], [[2.0]], (2, 1))
    >>> m, v = flow.zeros(2, 1), flow.zeros(2, 1)
    >>> flow.optim.sparse_adam.sparse_adam([w], [g], [m], [v], [1], eps=1e-8, beta1=0.9,
    ...     beta2=0.999, lr=0.5)
    >>> w
    tensor([[1.0000],
            [0.5000]])
    """
    rows = zip(params, grads, exp_avgs, exp_avg_sqs, state_steps, strict=True)
    with no_grad():
        for param, grad, mean, square, step in rows:
            g: Any = -grad if maximize else grad
            gradients.adam_step(param, g, mean, square, lr, beta1, beta2, eps, step)
