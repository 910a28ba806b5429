"""`torch.utils.dlpack`: memory that libraries share, under PyTorch's names."""

from __future__ import annotations

from typing import Any

from flowvm.eager.tensor import Tensor
from flowvm.interop.protocols import from_dlpack as from_dlpack
from flowvm.loading.listing import listing

__all__ = ["from_dlpack", "to_dlpack"]
__dir__ = listing(globals())


def to_dlpack(tensor: Tensor) -> Any:
    """A capsule on the tensor's memory, for libraries that take no object with `__dlpack__`.

    BufferError for a tensor that requires grad.

    >>> from flowvm.utils.dlpack import to_dlpack
    >>> type(to_dlpack(flow.ones(2))).__name__
    'PyCapsule'
    """
    return tensor.__dlpack__()
