"""`flow.autocast`: a region in which products and convolutions compute in a 16-bit float."""

from __future__ import annotations

from typing import Any

from flowvm.device import Device, is_available
from flowvm.dtype import DType, bfloat16, float16
from flowvm.eager.autocasting import autocast_mode, inside
from flowvm.errors import ArgumentError, ArgumentTypeError, DeviceError
from flowvm.regions import AroundToo, Mode

_DEFAULTS = {"cpu": bfloat16, "cuda": float16}  # PyTorch's


def is_autocast_available(device_type: str) -> bool:
    """Whether `autocast(device_type)` can be enabled here."""
    return device_type in ("cpu", "cuda") and is_available(Device(device_type))


class autocast(AroundToo):  # noqa: N801 - PyTorch's name
    """A context manager, or a decorator, inside which this thread computes in mixed precision.

    device_type   "cpu" or "cuda"; a region is for tensors of every device
    dtype         float16 or bfloat16; by default bfloat16 for "cpu", float16 for "cuda"
    enabled       False: compute as given, also inside another region
    cache_enabled is PyTorch's, and must be True

    Products and convolutions convert their float32 inputs to `dtype`; exponentials, logarithms,
    powers, sums, softmax, layer_norm, group_norm and losses convert 16-bit ones to float32; `cat`
    and its like to the widest; all else computes in what it is given.  PyTorch's CUDA lists
    (`flowvm.eager.autocasting`).  Backward belongs outside; inside, it computes as if it were.

    DeviceError for a device_type that is not there, ArgumentError for another dtype.
    """

    def __init__(
        self,
        device_type: str = "cpu",
        dtype: DType | None = None,
        enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> None:
        if not isinstance(device_type, str):
            raise ArgumentTypeError(
                f"autocast: device_type is a string such as 'cpu', got {device_type!r}"
            )
        if enabled and not is_autocast_available(device_type):
            raise DeviceError(
                f"autocast: there is no device {device_type!r} here; device_type='cpu', or "
                f"enabled=False"
            )
        if dtype is not None and not (isinstance(dtype, DType) and dtype.reduced):
            raise ArgumentError(
                f"autocast: dtype must be flow.float16 or flow.bfloat16, got {dtype!r}"
            )
        if cache_enabled is False:
            raise ArgumentError(
                "autocast: cache_enabled=False does nothing here: a parameter that has changed is "
                "converted again anyway; leave it out"
            )
        self.device_type, self.enabled = device_type, bool(enabled)
        self.dtype = dtype or _DEFAULTS.get(device_type, float16)

    def _mode(self) -> Mode[Any]:
        return autocast_mode()

    def _switch(self) -> tuple[Mode[Any], Any, Any]:
        return autocast_mode(), inside(self.dtype if self.enabled else None), self
