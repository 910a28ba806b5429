"""`flow.utils.tensor`: PyTorch's own tensors to flowvm's and back, under OneFlow's names.

Both share memory where the two have the dtype, by DLPack; see `flowvm.interop.protocols` for what
that means while a tensor is written.
"""

from __future__ import annotations

from typing import Any

from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentTypeError
from flowvm.interop.protocols import from_dlpack
from flowvm.loading.lazy import lazy
from flowvm.loading.listing import listing, own_names

torch = lazy("torch")

__dir__ = listing(globals())


def from_torch(torch_tensor: object) -> Tensor:
    """A tensor on the memory of a `torch.Tensor`, of its shape, dtype and strides.

    It has no gradient and no history.  ArgumentTypeError for anything else than PyTorch's tensors.

    >>> torch = __import__("pytest").importorskip("torch")
    >>> theirs = torch.tensor([1.0, 2.0])
    >>> ours = flow.utils.tensor.from_torch(theirs)
    >>> ours.data_ptr() == theirs.data_ptr()
    True
    """
    if isinstance(torch_tensor, Tensor) or not hasattr(torch_tensor, "detach"):
        kind = f"{type(torch_tensor).__module__}.{type(torch_tensor).__qualname__}"
        raise ArgumentTypeError(f"from_torch: expected a torch.Tensor, got {kind}")
    return from_dlpack(torch_tensor.detach())


def to_torch(flow_tensor: object) -> Any:
    """A `torch.Tensor` on the memory of a tensor: its value, waited for, without its history.

    ArgumentTypeError for anything else than a tensor; ModuleNotFoundError without PyTorch.

    >>> torch = __import__("pytest").importorskip("torch")
    >>> flow.utils.tensor.to_torch(flow.tensor([1, 2])).tolist()
    [1, 2]
    """
    if not isinstance(flow_tensor, Tensor):
        kind = type(flow_tensor).__name__
        raise ArgumentTypeError(f"to_torch: expected a flow.Tensor, got {kind}")
    return torch.from_dlpack(flow_tensor.detach())


__all__ = own_names(globals())
