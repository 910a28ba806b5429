"""Parameter: the Tensor that a Module registers and an optimizer updates.

A Parameter shares the storage of the tensor it was made from and is always a leaf. Whatever wants
to change its values does so in place under `no_grad` (or through an optimizer kernel), so its
identity, by which optimizers and hooks know it, never changes. The two places that reach below
Tensor's public interface, making an alias of another class and pointing a tensor at other data, are
here.
"""

from __future__ import annotations

from typing import cast

from flowvm import ops
from flowvm.eager.modes import note_change
from flowvm.eager.tensor import Tensor, alias
from flowvm.errors import ArgumentTypeError, DTypeError

__all__ = ["Parameter"]


class Parameter(Tensor):
    """A Tensor that becomes one of a Module's parameters when it is assigned as its attribute.

    Parameter(data, requires_grad=True) shares the data of `data`.
    """

    def __new__(cls, data: Tensor | None = None, requires_grad: bool = True) -> Parameter:
        if data is None:
            data = ops.empty(0)
        if not isinstance(data, Tensor):
            raise ArgumentTypeError(
                f"Parameter() needs a Tensor, got {type(data).__name__}; "
                "make one with flow.tensor(...)"
            )
        if requires_grad and not data.dtype.is_floating_point:
            raise DTypeError(
                f"only floating point tensors can require gradients, got dtype {data.dtype}; "
                "pass requires_grad=False, or register_buffer() it"
            )
        return _alias(cls, data, requires_grad)

    def __init__(self, data: Tensor | None = None, requires_grad: bool = True) -> None:
        """Everything happens in __new__, which shares the data."""

    def __repr__(self) -> str:
        return f"Parameter containing:\n{super().__repr__()}"


def _alias(cls: type[Parameter], data: Tensor, requires_grad: bool) -> Parameter:
    made = alias(data, data._meta, 0, cls)
    made.requires_grad_(requires_grad)
    return cast(Parameter, made)


def set_data(tensor: Tensor, data: Tensor) -> None:
    """Let `tensor` be `data` from now on: same object, other storage, dtype or device."""
    tensor.storage()  # so that the old memory has an owner that goes when the last alias does
    tensor._storage = data.storage()
    tensor._ref = data._ref
    tensor._meta = data._meta
    note_change()
