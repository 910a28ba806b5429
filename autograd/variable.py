"""`Variable`, PyTorch's name for a tensor with a gradient before tensors had one themselves."""

from __future__ import annotations

import warnings

from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentTypeError
from flowvm.loading.listing import listing
from flowvm.ops.shapes.fill import empty

__all__ = ["Variable"]
__dir__ = listing(globals())


class VariableMeta(type):
    """Every tensor is an instance of `Variable`."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, Tensor)

    def __call__(
        cls, data: Tensor | None = None, requires_grad: bool = False, volatile: bool = False
    ) -> Tensor:
        if volatile:
            warnings.warn("volatile has no effect; use `with flow.no_grad():`", stacklevel=2)
        if data is None:
            data = empty(0)
        if not isinstance(data, Tensor):
            raise ArgumentTypeError(f"Variable: data must be a Tensor, got {type(data).__name__}")
        variable: Tensor = data.detach()
        return variable.requires_grad_(True) if requires_grad else variable


# public: autograd
class Variable(metaclass=VariableMeta):
    """Variable(data, requires_grad=False): `data` outside the graph, on the same memory, as a leaf
    of its own.  `isinstance(t, Variable)` is true of every Tensor.

    >>> x = flow.autograd.Variable(flow.ones(2), requires_grad=True)
    >>> (3 * x).sum().backward()
    >>> x.grad
    tensor([3., 3.])
    """
