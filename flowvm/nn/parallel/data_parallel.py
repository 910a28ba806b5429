"""DataParallel, on one device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowvm.errors import ArgumentError
from flowvm.nn.module import Module


def _one(device_ids: Sequence[object] | None) -> None:
    if device_ids is not None and len(set(device_ids)) > 1:
        raise ArgumentError(
            f"DataParallel: flowvm runs a model on one device, got device_ids {list(device_ids)}"
        )


# public: nn, nn.parallel
class DataParallel(Module):
    """Calls `module`, which lies in it by that name, as PyTorch's does with one device: nothing is
    split.

    device_ids, output_device and dim are taken; more than one device is an error.

    >>> model = nn.DataParallel(nn.Linear(2, 1))
    >>> list(model.state_dict())
    ['module.weight', 'module.bias']
    """

    def __init__(
        self,
        module: Module,
        device_ids: Sequence[object] | None = None,
        output_device: object = None,
        dim: int = 0,
    ) -> None:
        super().__init__()
        _one(device_ids)
        self.dim = dim
        self.module = module
        self.device_ids = [] if device_ids is None else list(device_ids)
        self.output_device = output_device

    def forward(self, *inputs: object, **kwargs: object) -> Any:
        return self.module(*inputs, **kwargs)


# public: nn.parallel
def data_parallel(
    module: Module,
    inputs: object,
    device_ids: Sequence[object] | None = None,
    output_device: object = None,
    dim: int = 0,
    module_kwargs: dict[str, Any] | None = None,
) -> Any:
    """module(*inputs, **module_kwargs); the other arguments are as for DataParallel."""
    _one(device_ids)
    arguments = inputs if isinstance(inputs, tuple) else (inputs,)
    return module(*arguments, **(module_kwargs or {}))
