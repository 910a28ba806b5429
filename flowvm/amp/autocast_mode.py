"""`flow.autocast`: a region in which products and convolutions compute in a 16-bit float; and
decorators for an autograd.Function.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from flowvm.eager.autocast import Autocasting, autocast_dtype, autocast_mode, defaults, inside
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, ArgumentTypeError, DeviceError
from flowvm.guards.regions import AroundToo, Mode, Switch
from flowvm.meta.device import Device, is_available
from flowvm.meta.dtype import DType, float16, float64

# public: amp


def is_autocast_available(device_type: str) -> bool:
    """Return True if `autocast(device_type)` can be enabled here.

    >>> flow.amp.is_autocast_available("cpu")
    True
    """
    return device_type in ("cpu", "cuda") and is_available(Device(device_type))


# public: flow (late), amp
class autocast(AroundToo):  # noqa: N801 - PyTorch's name
    """A context manager, or a decorator, inside which this thread computes in mixed precision.

    device_type   "cpu" or "cuda"; a region is for tensors of every device
    dtype         float16 or bfloat16; by default bfloat16 for "cpu", float16 for "cuda"
    enabled       False: compute as given, also inside another region
    cache_enabled is PyTorch's, and must be True

    Products and convolutions convert their float32 inputs to `dtype`; exponentials, logarithms,
    powers, sums, softmax, layer_norm, group_norm and losses convert 16-bit ones to float32; `cat`
    and its like to the widest; all else computes in what it is given.  PyTorch's CUDA lists
    (`flowvm.eager.autocast`).  Backward belongs outside; inside, it computes as if it were.

    DeviceError for a device_type that is not there, ArgumentError for another dtype.

    >>> with flow.autocast("cpu", dtype=flow.bfloat16):
    ...     y = flow.ones(2, 2) @ flow.ones(2, 2)
    >>> y.dtype
    flow.bfloat16
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
        self.dtype = dtype or defaults.get(device_type, float16)

    def _mode(self) -> Mode[Autocasting | None]:
        return autocast_mode()

    def _switch(self) -> Switch:
        return autocast_mode(), inside(self.dtype if self.enabled else None), self


# --- custom autograd functions --------------------------------------------------------------------


def _cast(value: object, device_type: str, dtype: DType) -> Any:
    """`value` with its float16, bfloat16 and float32 tensors of that device type as `dtype`."""
    if isinstance(value, Tensor):
        kind = value.dtype
        if kind.is_floating_point and kind is not float64 and value.device.type == device_type:
            return value.to(dtype)
        return value
    if isinstance(value, (str, bytes, np.ndarray)):
        return value
    if isinstance(value, Mapping):
        return {
            _cast(k, device_type, dtype): _cast(v, device_type, dtype) for k, v in value.items()
        }
    if isinstance(value, Iterable):
        items = (_cast(v, device_type, dtype) for v in value)
        return type(value)(items) if isinstance(value, (list, tuple)) else items
    return value


def _need_type(name: str, device_type: str) -> None:
    if not isinstance(device_type, str):
        raise ArgumentError(
            f"{name}: device_type is a string such as 'cpu', got {type(device_type).__name__}"
        )


def custom_fwd(
    fwd: Callable[..., object] | None = None, *, device_type: str, cast_inputs: DType | None = None
) -> Callable[..., Any]:
    """Decorate `forward` of an autograd.Function: it notes its region for `custom_bwd`.

    cast_inputs   inside an autocast region, convert tensors of floats (but float64) to it, and
                  compute without autocast

    >>> class Scale(flow.autograd.Function):
    ...     @staticmethod
    ...     @flow.amp.custom_fwd(device_type="cpu")
    ...     def forward(ctx, x):
    ...         return x * 2
    ...     @staticmethod
    ...     @flow.amp.custom_bwd(device_type="cpu")
    ...     def backward(ctx, g):
    ...         return g * 2
    >>> Scale.apply(flow.ones(2))
    tensor([2., 2.])
    """
    _need_type("custom_fwd", device_type)
    if fwd is None:
        return functools.partial(custom_fwd, device_type=device_type, cast_inputs=cast_inputs)
    inner = fwd

    @functools.wraps(inner)
    def forward(ctx: Any, *args: object, **kwargs: object) -> object:
        around = autocast_dtype()
        dtype = around or defaults.get(device_type, float16)
        ctx.autocast = dtype, around is not None and cast_inputs is None
        if around is None or cast_inputs is None:
            return inner(ctx, *args, **kwargs)
        with autocast(enabled=False):
            args = _cast(args, device_type, cast_inputs)
            return inner(ctx, *args, **_cast(kwargs, device_type, cast_inputs))

    return forward


def custom_bwd(bwd: Callable[..., object] | None = None, *, device_type: str) -> Callable[..., Any]:
    """A decorator of `backward` of an autograd.Function: it computes in the autocast region that
    `forward`, decorated with `custom_fwd`, was in.

    >>> class Scale(flow.autograd.Function):
    ...     @staticmethod
    ...     @flow.amp.custom_fwd(device_type="cpu")
    ...     def forward(ctx, x):
    ...         return x * 2
    ...     @staticmethod
    ...     @flow.amp.custom_bwd(device_type="cpu")
    ...     def backward(ctx, g):
    ...         return g * 2
    >>> x = flow.ones(2, requires_grad=True)
    >>> Scale.apply(x).sum().backward()
    >>> x.grad
    tensor([2., 2.])
    """
    _need_type("custom_bwd", device_type)
    if bwd is None:
        return functools.partial(custom_bwd, device_type=device_type)
    inner = bwd

    @functools.wraps(inner)
    def backward(ctx: Any, *grads: object, **kwargs: object) -> object:
        with autocast("cpu", *ctx.autocast):  # for every device
            return inner(ctx, *grads, **kwargs)

    return backward
