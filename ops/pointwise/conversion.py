"""Tensor methods that convert or ask: `float()`, `cpu()`, `type_as()`, `data_ptr()` and so on."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from flowvm.eager.keywords import spelled
from flowvm.eager.tensor import Tensor, method
from flowvm.eager.values import wait_for
from flowvm.errors import ArgumentTypeError, AutogradError, DeviceError, DTypeError, ShapeError
from flowvm.meta.device import cpu as _cpu
from flowvm.meta.device import meta as _nowhere
from flowvm.meta.dtype import (
    DType,
    bfloat16,
    bool_,
    complex64,
    complex128,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
)
from flowvm.meta.formats import strided
from flowvm.ops.declare.composite import need_tensor
from flowvm.ops.declare.core import copy_, detach, sum_to
from flowvm.ops.declare.registry import broadcast_shapes
from flowvm.ops.declare.renewal import become
from flowvm.ops.shapes.create import tensor as tensor_of
from flowvm.ops.shapes.fill import size_of
from flowvm.vm.engine.engine import engine


def _converter(name: str, dtype: DType) -> None:
    def convert(x: Tensor, memory_format: object = None) -> Tensor:
        out: Tensor = x.to(dtype, memory_format=memory_format)
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
    ("cfloat", complex64),
    ("cdouble", complex128),
):
    _converter(_name, _to)


@method()
def cpu(x: Tensor, memory_format: object = None) -> Tensor:
    """`x.to("cpu")`: `x` itself when it is there.

    >>> x = flow.ones(2)
    >>> x.cpu() is x
    True
    """
    out: Tensor = x.to(_cpu, memory_format=memory_format)
    return out


@method()
def cuda(
    x: Tensor, device: object = None, non_blocking: bool = False, memory_format: object = None
) -> Tensor:
    """Return `x.to("cuda")`; DeviceError if there is no such device.  No copy blocks.

    >>> x = flow.ones(2)
    >>> x.cuda().is_cuda if flow.cuda.is_available() else False
    False
    """
    out: Tensor = x.to("cuda" if device is None else device, memory_format=memory_format)
    return out


@method()
def type_as(x: Tensor, other: Tensor) -> Tensor:
    """`x` in `other`'s dtype and on its device: `x.to(other)`.

    >>> flow.tensor([1, 2]).type_as(flow.ones(1))
    tensor([1., 2.])
    """
    if not isinstance(other, Tensor):
        raise ArgumentTypeError(f"type_as: other must be a Tensor, got {type(other).__name__}")
    out: Tensor = x.to(other)
    return out


@method()
def get_device(x: Tensor) -> int:
    """The index of its CUDA device; -1 on the CPU.

    >>> flow.ones(2).get_device()
    -1
    """
    index = x._meta.device.index
    return -1 if index is None else index


@method()
def pin_memory(x: Tensor, device: object = None) -> Tensor:
    """`x` itself: copies to a device go through page-locked buffers of the VM's own.

    >>> x = flow.ones(2)
    >>> x.pin_memory() is x
    True
    """
    if x._meta.device is not _cpu:
        raise DeviceError(f"pin_memory: only CPU tensors are pinned, this one is on {x.device}")
    return x


@method()
def is_pinned(x: Tensor, device: object = None) -> bool:
    """False: the VM has page-locked buffers, tensors are not in them.

    >>> flow.ones(2).is_pinned()
    False
    """
    return False


@method()
def data_ptr(x: Tensor) -> int:
    """The address of the first element.  Waits for the tensor; 0 if there are no values.

    >>> x = flow.ones(4)
    >>> x[1:].data_ptr() - x.data_ptr()  # bytes
    4
    """
    wait_for(x)
    if x._meta.numel == 0 or x._meta.device is _nowhere:
        return 0
    return engine.storages.pointer(x._ref)


@method()
def ndimension(x: Tensor) -> int:
    """The number of dimensions.

    >>> flow.ones(2, 3).ndimension()
    2
    """
    return x._meta.ndim


@method()
def is_signed(x: Tensor) -> bool:
    """Return True if the dtype has negative values.

    >>> flow.tensor(1).is_signed(), flow.tensor(1, dtype=flow.uint8).is_signed()
    (True, False)
    """
    return x._meta.dtype.is_signed


@method()
def is_complex(x: Tensor) -> bool:
    """Return True if the dtype is a complex one.

    >>> flow.tensor(1j).is_complex()
    True
    """
    return x._meta.dtype.is_complex


@method()
def is_nonzero(x: Tensor) -> bool:
    """Return True if the value of a one-element tensor is not zero.  Waits for the tensor.

    >>> flow.tensor([0.0]).is_nonzero()
    False
    """
    return bool(x.item())


# what PyTorch's tensors can be and these cannot; all are plain memory of the CPU or of CUDA
_NEVER = (
    "is_ipu", "is_maia", "is_mkldnn", "is_mps", "is_mtia", "is_nested", "is_quantized",
    "is_sparse", "is_sparse_csr", "is_vulkan", "is_xla", "is_xpu",
)  # fmt: skip
for _name in _NEVER:
    setattr(
        Tensor,
        _name,
        property(
            lambda x: False,
            doc="""False: there are no such tensors.

            >>> flow.ones(2).is_ipu
            False
            """,
        ),
    )


@method()
def const_data_ptr(x: Tensor) -> int:
    """`data_ptr()`, for reading.

    >>> x = flow.ones(2)
    >>> x.const_data_ptr() == x.data_ptr()
    True
    """
    return data_ptr(x)


@method()
def dense_dim(x: Tensor) -> int:
    """The number of dense dimensions: all, of a tensor that is not sparse.

    >>> flow.ones(2, 3).dense_dim()
    2
    """
    return x._meta.ndim


@method()
def sparse_dim(x: Tensor) -> int:
    """The number of sparse dimensions: 0, of a tensor that is not sparse.

    >>> flow.ones(2).sparse_dim()
    0
    """
    return 0


@method()
def is_same_size(x: Tensor, other: Tensor) -> bool:
    """Return True if `other` has `x`'s shape.

    >>> flow.ones(2, 3).is_same_size(flow.zeros(2, 3))
    True
    """
    return x._meta.shape == need_tensor("is_same_size", "other", other)._meta.shape


@method()
def is_inference(x: Tensor) -> bool:
    """Return False: tensors of `inference_mode` are like other tensors without a graph.

    >>> flow.ones(2).is_inference()
    False
    """
    return False


@method()
def is_distributed(x: Tensor) -> bool:
    """False: each process has its own tensors.

    >>> flow.ones(2).is_distributed()
    False
    """
    return False


@method()
def is_coalesced(x: Tensor) -> bool:
    """True: only a sparse tensor can have an element twice.

    >>> flow.ones(2).is_coalesced()
    True
    """
    return True


@method()
def to_dense(x: Tensor, dtype: object = None, *, masked_grad: object = None) -> Tensor:
    """`x` itself, or in `dtype`: it is dense; of a sparse tensor, a dense one.

    >>> x = flow.ones(2)
    >>> x.to_dense() is x
    True
    """
    out: Tensor = x.to(dtype)
    return out


@method()
def apply_(x: Tensor, callable: object) -> Tensor:
    """Replace each element of `x`, on the CPU, by `callable` of it; slow.  Waits for the tensor.

    >>> flow.tensor([1.0, 2.0]).apply_(lambda v: v + 10)
    tensor([11., 12.])
    """
    return _mapped(x, (), callable)


@method()
def map_(x: Tensor, tensor: Tensor, callable: object) -> Tensor:
    """Each element of `x`, on the CPU, replaced by `callable(element, tensor's element)`, where
    `tensor` broadcasts; slow.  Waits for both.

    >>> flow.tensor([1.0, 2.0]).map_(flow.tensor([10.0, 20.0]), lambda a, b: a + b)
    tensor([11., 22.])
    """
    return _mapped(x, (tensor,), callable)


@method("map2_")
def _map2(x: Tensor, first: Tensor, second: Tensor, callable: object) -> Tensor:
    """As `map_`, with two tensors.

    >>> x, y = flow.tensor([1.0, 2.0]), flow.tensor([10.0, 20.0])
    >>> flow.zeros(2).map2_(x, y, lambda v, a, b: a + b)
    tensor([11., 22.])
    """
    return _mapped(x, (first, second), callable)


def _mapped(x: Tensor, others: tuple[Tensor, ...], callable: Any) -> Tensor:
    if x._meta.device is not _cpu:
        raise DeviceError(f"elements are mapped on the CPU, this tensor is on {x.device}")
    if x._node is not None:
        raise AutogradError("elements that are mapped have no gradient; detach() the tensor")
    wide = [x.numpy(), *(need_tensor("map_", "tensor", t).detach().numpy() for t in others)]
    shaped = [np.broadcast_to(array, x._meta.shape).reshape(-1).tolist() for array in wide]
    values = [callable(*each) for each in zip(*shaped, strict=True)]
    mapped = tensor_of(values, dtype=x._meta.dtype)
    return copy_(x, mapped.reshape(x._meta.shape))


@method()
@spelled(size="*")
def sum_to_size(x: Tensor, *size: object) -> Tensor:
    """`x` summed over the dimensions in which `size`, to which it broadcasts back, is 1 or has
    none.

    >>> flow.ones(3, 2).sum_to_size(1, 2)
    tensor([[3., 3.]])
    """
    shape = size_of(size, "sum_to_size")
    if broadcast_shapes(x._meta.shape, shape) != tuple(x._meta.shape):
        raise ShapeError(f"sum_to_size: {tuple(shape)} does not broadcast to {tuple(x.shape)}")
    counts = x._meta.dtype.is_bool and x._meta.shape != shape
    return sum_to(x.long() if counts else x, shape)


def _volatile(x: Tensor) -> bool:
    """False, as in PyTorch since 0.4.

    >>> flow.ones(2).volatile
    False
    """
    return False


def _set_volatile(x: Tensor, value: object) -> None:
    warnings.warn("volatile has no effect; use `with flow.no_grad():`", stacklevel=2)


Tensor.volatile = property(_volatile, _set_volatile)  # type: ignore[assignment, method-assign]
Tensor.layout = property(lambda x: strided, doc="`flow.strided`.")  # type: ignore[assignment, method-assign]
Tensor.name = property(  # type: ignore[assignment, method-assign]
    lambda x: None,
    doc="""None.

    >>> flow.ones(2).name is None
    True
    """,
)
Tensor.output_nr = property(  # type: ignore[assignment, method-assign]
    lambda x: getattr(x._node, "index", 0),
    doc="""The tensor's position among the results of its node.

    >>> flow.ones(2).output_nr
    0
    """,
)


def _data(x: Tensor) -> Tensor:
    """The tensor's memory outside the autograd graph, as `detach()`.

    Assignment gives the tensor the memory, shape and dtype of another one.

    >>> x = flow.ones(2, requires_grad=True)
    >>> x.data.requires_grad
    False
    """
    return detach(x)


def _set_data(x: Tensor, value: Tensor) -> None:
    if not isinstance(value, Tensor):
        raise ArgumentTypeError(f"data must be a Tensor, got {type(value).__name__}")
    if value._meta.dtype.inexact < (x._node is not None):
        raise DTypeError(f"data: a tensor that requires grad holds floats, got {value.dtype.name}")
    become(x, value)


Tensor.data = property(_data, _set_data)  # type: ignore[assignment, method-assign]
Tensor.is_cpu = property(  # type: ignore[assignment, method-assign]
    lambda x: x._meta.device.type == "cpu",
    doc="""True if the tensor is in the computer's memory.

    >>> flow.ones(2).is_cpu
    True
    """,
)


@method("__contains__")
def _contains(x: Tensor, element: object) -> bool:
    """Return True if any element equals `element`.  Waits for the tensor."""
    same: Any = x == element
    return bool(same.any().item())


@method("__reversed__")
def _reversed(x: Tensor) -> Tensor:
    """The tensor flipped along its first dimension."""
    out: Tensor = x.flip(0) if x._meta.ndim else x
    return out


@method("__rmatmul__")
def _rmatmul(x: Tensor, other: object) -> Tensor:
    """`other @ x`."""
    if isinstance(other, Tensor):
        return other @ x
    raise ArgumentTypeError(f"@ needs two Tensors, got {type(other).__name__}")
