"""Memory formats, which programs ask for: here tensors keep their own strides."""

from __future__ import annotations

from typing import TypeVar

from flowvm.loading.listing import listing, own_names
from flowvm.nn.module import Module

__dir__ = listing(globals())

M = TypeVar("M", bound=Module)


# public: nn.utils
def convert_conv2d_weight_memory_format(module: M, memory_format: object) -> M:
    """`module` as it is: memory_format is taken and means nothing, kernels read any strides.

    >>> conv = nn.Conv2d(3, 4, 2)
    >>> nn.utils.convert_conv2d_weight_memory_format(conv, flow.channels_last) is conv
    True
    """
    return module


# public: nn.utils
def convert_conv3d_weight_memory_format(module: M, memory_format: object) -> M:
    """`module` as it is, as convert_conv2d_weight_memory_format.

    >>> conv = nn.Conv3d(3, 4, 2)
    >>> nn.utils.convert_conv3d_weight_memory_format(conv, flow.channels_last_3d) is conv
    True
    """
    return module


__all__ = own_names(globals())
