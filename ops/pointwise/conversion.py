"""Tensor methods that convert or ask: `float()`, `cpu()`, `type_as()`, `data_ptr()` and so on."""

from __future__ import annotations

from typing import Any

from flowvm.device import cpu as _cpu
from flowvm.dtype import (
    DType,
    bfloat16,
    bool_,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
)
from flowvm.eager.reading import wait_for
from flowvm.eager.tensor import Tensor, method
from flowvm.errors import ArgumentTypeError, DeviceError
from flowvm.ops.declare.core import detach
from flowvm.vm.engine.engine import engine

__all__: list[str] = []


def _converter(name: str, dtype: DType) -> None:
    def convert(x: Tensor) -> Tensor:
        out: Tensor = x.to(dtype)
        return out

    convert.__name__ = convert.__qualname__ = name
    convert.__doc__ = f"`x.to(flow.{dtype.name})`."
    method(name)(convert)


for _name, _to in (
    ("bool", bool_),
    ("byte", uint8),
    ("char", int8),
    ("short", int16),
    ("int", int32),
    ("long", int64),
    ("half", float16),
    ("bfloat16", bfloat16),
    ("float", float32),
    ("double", float64),
):
    _converter(_name, _to)


@method()
def cpu(x: Tensor) -> Tensor:
    """`x.to("cpu")`: `x` itself when it is there."""
    out: Tensor = x.to(_cpu)
    return out


@method()
def cuda(x: Tensor, device: object = None, non_blocking: bool = False) -> Tensor:
    """`x.to("cuda")`; DeviceError where there is none.  No copy blocks, whatever is asked for."""
    out: Tensor = x.to("cuda" if device is None else device)
    return out


@method()
def type_as(x: Tensor, other: Tensor) -> Tensor:
    """`x` in `other`'s dtype and on its device: `x.to(other)`."""
    if not isinstance(other, Tensor):
        raise ArgumentTypeError(f"type_as: other must be a Tensor, got {type(other).__name__}")
    out: Tensor = x.to(other)
    return out


@method()
def get_device(x: Tensor) -> int:
    """The index of its CUDA device; -1 on the CPU."""
    index = x._meta.device.index
    return -1 if index is None else index


@method()
def pin_memory(x: Tensor) -> Tensor:
    """`x` itself: copies to a device go through page-locked buffers of the VM's own."""
    if x._meta.device is not _cpu:
        raise DeviceError(f"pin_memory: only CPU tensors are pinned, this one is on {x.device}")
    return x


@method()
def is_pinned(x: Tensor) -> bool:
    """False: the VM has page-locked buffers, tensors are not in them."""
    return False


@method()
def data_ptr(x: Tensor) -> int:
    """The address of the first element.  Waits for the tensor; 0 when it is empty."""
    wait_for(x)
    return engine.pointer(x._ref) if x._meta.numel else 0


@method()
def ndimension(x: Tensor) -> int:
    """The number of dimensions."""
    return x._meta.ndim


@method()
def is_signed(x: Tensor) -> bool:
    """Whether the dtype has negative values."""
    return x._meta.dtype.is_signed


@method()
def is_complex(x: Tensor) -> bool:
    """False: there are no complex dtypes."""
    return False


@method()
def is_nonzero(x: Tensor) -> bool:
    """Whether the value of a one-element tensor is not zero.  Waits for the tensor."""
    return bool(x.item())


def _data(x: Tensor) -> Tensor:
    """The same memory outside the autograd graph, as `detach()`; assigning copies into it."""
    return detach(x)


def _set_data(x: Tensor, value: Tensor) -> None:
    if not isinstance(value, Tensor):
        raise ArgumentTypeError(f"data must be a Tensor, got {type(value).__name__}")
    detach(x).copy_(value)


Tensor.data = property(_data, _set_data)  # type: ignore[attr-defined]
Tensor.is_cpu = property(lambda x: x._meta.device is _cpu)  # type: ignore[attr-defined]


@method("__contains__")
def _contains(x: Tensor, element: object) -> bool:
    """Whether any element equals `element`.  Waits for the tensor."""
    same: Any = x == element
    return bool(same.any().item())


@method("__reversed__")
def _reversed(x: Tensor) -> Tensor:
    """The tensor flipped along its first dimension."""
    out: Tensor = x.flip(0) if x._meta.ndim else x
    return out


@method("__rmatmul__")
def _rmatmul(x: Tensor, other: object) -> Tensor:
    """`other @ x` where `other` is no Tensor."""
    raise ArgumentTypeError(f"@ needs two Tensors, got {type(other).__name__}")
