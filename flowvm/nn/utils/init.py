"""A module made without the work of drawing its parameters."""

from __future__ import annotations

import inspect
from typing import Any, TypeVar

from flowvm.errors import ArgumentError
from flowvm.loading.listing import listing, own_names
from flowvm.nn.module import Module

__dir__ = listing(globals())

M = TypeVar("M", bound=Module)


# public: nn.utils
def skip_init(module_cls: type[M], *args: Any, **kwargs: Any) -> M:
    """module_cls(*args, **kwargs) whose parameters and buffers are to be filled: they have no
    defined values.

    It takes a `device`, as every layer does.

    >>> nn.utils.skip_init(nn.Linear, 2, 3).weight.shape
    flow.Size([3, 2])
    """
    if not issubclass(module_cls, Module):
        raise ArgumentError(f"skip_init makes a Module, got {module_cls}")
    if "device" not in inspect.signature(module_cls).parameters:
        raise ArgumentError(f"skip_init: {module_cls.__name__} takes no device")
    device = kwargs.pop("device", "cpu")
    return module_cls(*args, **kwargs, device=device).to_empty(device=device)


__all__ = own_names(globals())
