"""Tensors from data: from Python numbers and from NumPy.

Data is copied, except by `from_numpy`, `as_tensor`, `frombuffer` and `from_file`, which share
memory (see `flowvm.vm.engine.loans` for the order of what is done to it from both sides).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from flowvm.eager.global_calls import elsewhere, takes_placement
from flowvm.eager.live import Live, plain_number
from flowvm.eager.native.functions import constant_call
from flowvm.eager.tensor import Tensor, method
from flowvm.eager.values import adopt_array
from flowvm.errors import ArgumentError, ArgumentTypeError, DTypeError
from flowvm.loading.lazy import lazy
from flowvm.meta.arrays import Array
from flowvm.meta.device import Device, as_device, cpu
from flowvm.meta.dtype import DType, as_dtype, complex_of, get_default_dtype, uint8, uint64
from flowvm.meta.dtype import from_numpy as dtype_of
from flowvm.meta.formats import accept
from flowvm.meta.global_meta import GlobalMeta
from flowvm.meta.placements import broadcast
from flowvm.ops.declare.composite import whole
from flowvm.ops.declare.registry import Sample, samples
from flowvm.ops.shapes.fill import device_like, dtype_or, finished, full
from flowvm.ops.shapes.inplace_views import UntypedStorage
from flowvm.vm.callers.lines import warn

# public: flow

if TYPE_CHECKING:
    from flowvm.cuda import exchange
    from flowvm.meta.device import DeviceLike
    from flowvm.meta.dtype import DTypeLike
else:
    exchange = lazy("flowvm.cuda.exchange")

# --- from data --------------------------------------------------------------------------------


@partial(constant_call, elsewhere=elsewhere)
@takes_placement
def tensor(
    data: Any,
    *,
    dtype: Any = None,
    device: Device | str | None = None,
    requires_grad: bool = False,
    **options: object,
) -> Tensor:
    """A tensor with a copy of `data`: numbers in nested lists or tuples, a NumPy array, or a
    tensor.

    Without `dtype`: floats take the default dtype, ints int64, bools bool; NumPy arrays and tensors
    keep theirs. ArgumentError for ragged lists and for ints that do not fit; ArgumentTypeError for
    what are no numbers.

    >>> flow.tensor([[1.0, 2.0], [3.0, 4.0]])
    tensor([[1., 2.],
            [3., 4.]])
    """
    accept("tensor", options)
    if isinstance(data, Tensor):
        chosen = dtype_or(dtype, data._meta.dtype)
        place = data._meta.device if device is None else device
        copied: Tensor = data.detach().to(chosen, device=place, copy=True)
        return finished(copied, requires_grad)
    if hasattr(type(data), "__cuda_array_interface__"):
        tensor_on_device: Tensor = exchange.from_interface(data, copy=True).to(dtype, device=device)
        return finished(tensor_on_device, requires_grad)
    if isinstance(data, Live):
        return full((), data, dtype=dtype, device=device, requires_grad=requires_grad)
    place = as_device(device)
    array, kind = _array(data, None if dtype is None else as_dtype(dtype))
    result = adopt_array(array, dtype=kind)
    return finished(result if place is cpu else result.to(device=place), requires_grad)


def _array(data: object, dtype: DType | None) -> tuple[Array, DType]:
    """Return `data` as a fresh C-contiguous array in the stored form of `dtype`, and its dtype."""
    if isinstance(data, (np.ndarray, np.generic)):
        kind = dtype_of(data.dtype) if dtype is None else dtype
        return kind.stored(np.asarray(data)), kind
    plain = _plain(data)
    if dtype is None and type(plain) is list and plain and type(plain[0]) is float:
        array_dtype = get_default_dtype()
        if not array_dtype.reduced and {float}.issuperset(map(type, plain)):  # as observations are
            with np.errstate(over="ignore"):
                return np.array(plain, array_dtype.storage), array_dtype
    try:
        array = np.array(plain)
    except ValueError:
        raise ArgumentError(
            "tensor: the nested lists are ragged: every list at one depth must have the same length"
        ) from None
    if dtype is uint64 and array.dtype.kind in "fO":  # NumPy's choice for 1 beside 2**63
        numbers = np.array(plain, object)
        if numbers.size and all(type(v) is int and v < 1 << 64 for v in numbers.ravel()):
            array = numbers if numbers.min() < 0 else numbers.astype(np.uint64)
    if array.dtype.kind not in "biufc":
        if array.dtype == object and all(isinstance(v, int) for v in array.ravel().tolist()):
            raise ArgumentError("tensor: an integer does not fit int64")
        wrong = next(_no_numbers(plain), _first(plain))
        raise (ArgumentTypeError if isinstance(wrong, (str, bytes)) else DTypeError)(
            f"tensor: data must be numbers in nested lists, an array or a tensor, "
            f"got {type(wrong).__name__} ({str(wrong)[:40]!r})"
        )
    if dtype is None:
        dtype = _dtype_of(array, plain)
    integers = array.dtype.kind in "iu" and dtype.category == 1
    if integers and array.size and array.dtype != dtype.numpy:
        limits = np.iinfo(dtype.numpy)
        for extreme in (int(array.min()), int(array.max())):
            if not limits.min <= extreme <= limits.max:
                raise ArgumentError(
                    f"tensor: {extreme} does not fit {dtype.name}, "
                    f"which goes from {limits.min} to {limits.max}"
                )
    if array.dtype == dtype.storage and not dtype.reduced and array.flags.c_contiguous:
        return array, dtype
    with np.errstate(over="ignore", invalid="ignore"):
        return dtype.stored(array), dtype


_NUMBERS = frozenset({bool, int, float})


def _plain(data: object) -> Any:
    """`data` with the tensors in it as numbers or lists."""
    if isinstance(data, (list, tuple)):
        if _NUMBERS.issuperset(map(type, data)):  # as most are: nothing to be done for each
            return data
        return [_plain(d) for d in data]
    return data.tolist() if isinstance(data, Tensor) else plain_number(data)


def _first(data: object) -> Any:
    while isinstance(data, (list, tuple)) and data:
        data = data[0]
    return data


def _no_numbers(data: object) -> Iterator[object]:
    """Give what is no number in nested lists."""
    if isinstance(data, (list, tuple)):
        for part in data:
            yield from _no_numbers(part)
    elif not isinstance(data, (int, float, complex, np.generic)):
        yield data


def _dtype_of(array: Array, plain: object) -> DType:
    if array.dtype == np.float64 and not isinstance(_first(plain), (np.float64, np.ndarray)):
        return get_default_dtype()
    if array.dtype == np.complex128 and not isinstance(_first(plain), (np.complex128, np.ndarray)):
        return complex_of(get_default_dtype())
    return dtype_of(array.dtype)


def as_tensor(data: Any, dtype: Any = None, device: Any = None) -> Tensor:
    """`data` as a tensor: itself if it is one of that dtype, shared memory for a NumPy array or
    another library's CUDA array, else a copy.

    >>> x = flow.ones(2)
    >>> flow.as_tensor(x) is x, flow.as_tensor([1, 2])
    (True, tensor([1, 2]))
    """
    if isinstance(data, Tensor):
        result: Tensor = data.to(dtype, device=device)
        return result
    if hasattr(type(data), "__cuda_array_interface__"):
        shared: Tensor = exchange.from_interface(data).to(dtype, device=device)
        return shared
    if isinstance(data, np.ndarray) and (
        dtype is None or dtype_of(data.dtype.newbyteorder("=")) is as_dtype(dtype)
    ):
        shared = _on_memory("as_tensor", data, dtype_of(data.dtype.newbyteorder("=")))
        moved: Tensor = shared.to(device=as_device(device))
        return moved
    return tensor(data, dtype=dtype, device=device)


def asarray(
    obj: Any,
    *,
    dtype: Any = None,
    device: Any = None,
    copy: bool | None = None,
    requires_grad: bool | None = None,
) -> Tensor:
    """`obj` as a tensor, as `as_tensor` has it; always a copy if `copy`, and never one if it is
    False: ArgumentError where that takes one.

    A tensor of `obj` stays in its graph, unless `requires_grad` is said: then it is outside, a leaf
    if that is True.

    >>> flow.asarray([1, 2]), flow.asarray(3.0).shape
    (tensor([1, 2]), flow.Size([]))
    """
    if isinstance(obj, Tensor):
        result: Tensor = obj.to(dtype, device=device, copy=bool(copy))
        shared = result.storage() is obj.storage()
        if requires_grad is not None and not (requires_grad and result.is_leaf):
            result = result.detach()
    elif copy:
        result, shared = tensor(obj, dtype=dtype, device=device), False
    else:
        result = as_tensor(obj, dtype, device)
        shared = isinstance(obj, np.ndarray) and result.data_ptr() == obj.ctypes.data
    if copy is False and not shared:
        raise ArgumentError(
            f"asarray: {type(obj).__name__} has no memory that a tensor of this dtype and device "
            f"could share; leave copy=False away"
        )
    return finished(result, bool(requires_grad))


def frombuffer(
    buffer: Any, *, dtype: DTypeLike, count: int = -1, offset: int = 0, requires_grad: bool = False
) -> Tensor:
    """The bytes of an object with Python's buffer protocol as a vector of `count` elements of
    `dtype` (-1: all there are) from byte `offset` on: on its memory, as `from_numpy` has it, or a
    copy, with a warning.

    ArgumentError if it is empty, or has no room for so many.

    >>> flow.frombuffer(bytearray([1, 2, 3]), dtype=flow.uint8)
    tensor([1, 2, 3], dtype=uint8)
    """
    kind = as_dtype(dtype)
    size, length = kind.itemsize, len(memoryview(buffer).cast("B"))
    if length == 0 or not 0 <= offset < length:
        raise ArgumentError(f"frombuffer: offset {offset} is not within {length} bytes")
    if count < 0 and (length - offset) % size:
        raise ArgumentError(
            f"frombuffer: {length - offset} bytes from offset {offset} are not a multiple of "
            f"{size}, the size of {kind.name}"
        )
    n = (length - offset) // size if count < 0 else count
    if n == 0 or offset + n * size > length:
        raise ArgumentError(
            f"frombuffer: {n} elements of {size} bytes from offset {offset} are not within "
            f"{length} bytes"
        )
    array = np.frombuffer(buffer, kind.storage, n, offset)
    return finished(_on_memory("frombuffer", array, kind), requires_grad)


def from_file(
    filename: Any, shared: bool | None = None, size: int = 0, *, dtype: DTypeLike | None = None,
    layout: Any = None, device: DeviceLike | None = None, pin_memory: bool = False,
    requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """A vector of `size` elements on the bytes of a file, which is mapped into memory.

    shared    changes go to the file, which is made, or made longer, where it is too short; else
              they are the tensor's alone, and the file must have so many bytes

    ArgumentError if it has not, or for a dtype that NumPy has not; OSError as `open` has it.

    >>> import tempfile
    >>> path = tempfile.mktemp()
    >>> x = flow.from_file(path, shared=True, size=3, dtype=flow.int32)
    >>> x[1] = 7
    >>> flow.from_file(path, size=3, dtype=flow.int32)
    tensor([0, 7, 0], dtype=int32)
    """
    kind = get_default_dtype() if dtype is None else as_dtype(dtype)
    count = whole("from_file", "size", size)
    if kind is not as_dtype(np.dtype(kind.storage)):
        raise ArgumentError(f"from_file: NumPy has no {kind.name}; read integers, and view them")
    if count < 0:
        raise ArgumentError(f"from_file: size is at least 0, got {count}")
    need, path = count * kind.itemsize, os.fspath(filename)
    way = "rb" if not shared else "r+b" if os.path.exists(path) else "w+b"
    with open(path, way) as file:
        held = os.fstat(file.fileno()).st_size
        if held < need and not shared:
            raise ArgumentError(
                f"from_file: {path} has {held} bytes, and {count} elements of {kind.name} are "
                f"{need}; shared=True makes it longer"
            )
        if held < need:
            file.truncate(need)
        if count == 0:
            return finished(adopt_array(np.empty(0, kind.storage), dtype=kind), requires_grad)
        array = np.memmap(file, kind.storage, "r+" if shared else "c", shape=(count,))
    whole_file = np.asarray(array)
    result = finished(adopt_array(whole_file, whole_file, shared=bool(shared)), False)
    if device is not None and as_device(device) is not result._meta.device:
        result = result.to(device)
    return finished(result, requires_grad)


# not public
def _storage_from_file(
    filename: object, shared: bool = False, nbytes: int = 0, *, size: int | None = None
) -> UntypedStorage:
    """The first `nbytes` bytes of a file as a storage, as `flow.from_file` maps them."""
    count = nbytes if size is None else size
    return UntypedStorage(from_file(filename, shared, count, dtype=uint8))


UntypedStorage.from_file = staticmethod(_storage_from_file)  # type: ignore[attr-defined]


def from_numpy(ndarray: Array) -> Tensor:
    """Return a tensor on the memory of `ndarray`: writes to one change the other, too.

    As long as somebody else has the array, calls that access its memory are done when they return,
    as all of PyTorch's are.

    It is copied, with a warning, if it cannot be shared: it is read-only, has negative strides or
    another byte order, or is not aligned.

    >>> a = np.array([1, 2])
    >>> x = flow.from_numpy(a)
    >>> a[0] = 5
    >>> x.add_(1), a
    (tensor([6, 3]), array([6, 3]))
    """
    if not isinstance(ndarray, np.ndarray):
        raise ArgumentTypeError(f"from_numpy: expected a NumPy array, got {type(ndarray).__name__}")
    return _on_memory("from_numpy", ndarray, dtype_of(ndarray.dtype.newbyteorder("=")))


def _on_memory(what: str, array: Array, kind: DType) -> Tensor:
    """A tensor on the memory of `array`; where that cannot be, on a copy, with a warning."""
    obstacle = _obstacle(array)
    if not obstacle and array.size:
        return adopt_array(array, dtype=kind, shared=True)
    if obstacle:
        warn(
            f"{what}: {obstacle}, so the tensor has a copy of it: what is written to one is not "
            f"seen by the other. Give it array.copy() if that is meant"
        )
    copied = np.array(array, array.dtype.newbyteorder("="), order="C", copy=True)
    return adopt_array(copied, dtype=kind)


def _obstacle(array: Array) -> str:
    """Return the reason why kernels cannot use an array's memory, or ""."""
    if array.size == 0:
        return ""
    if not array.flags.writeable:
        return "the array is read-only"
    if not array.dtype.isnative:
        return f"the array has the byte order {array.dtype.byteorder!r}"
    if not array.flags.aligned:
        return "the array's memory is not aligned"
    if any(s < 0 or s % array.itemsize for s in array.strides):
        return f"the array has strides {array.strides}"
    return ""


# not public
@method()
def new_tensor(
    x: Tensor,
    data: Any,
    dtype: DTypeLike | None = None,
    device: DeviceLike | None = None,
    requires_grad: bool = False,
    **options: Any,
) -> Tensor:
    """A tensor with a copy of `data`, of `x`'s dtype and device unless others are given.

    >>> flow.tensor([1.0]).new_tensor([3, 4])
    tensor([3., 4.])
    """
    kind, meta = dtype_or(dtype, x._meta.dtype), x._meta
    if device is None and "placement" not in options and isinstance(meta, GlobalMeta):
        source = tensor(data, dtype=kind)
        most = source._meta.ndim
        held = tuple(broadcast if s.dim >= most else s for s in meta.dense().sbp)
        options.update(placement=meta.placement, sbp=held)
        return tensor(source, dtype=kind, requires_grad=requires_grad, **options)
    place = device_like(x, device, options)
    return tensor(data, dtype=kind, device=place, requires_grad=requires_grad, **options)


samples(
    as_tensor,
    lambda rng: [Sample((rng.standard_normal((2, 3)),)), Sample((np.array(1.5),))],
    lambda x: x,
    errors=(
        (lambda flow: flow.tensor([[1], [2, 3]]), ValueError),
        (lambda flow: flow.tensor("text"), TypeError),
        (lambda flow: flow.tensor([300], dtype=flow.uint8), ValueError),
        (lambda flow: flow.tensor([1 << 70]), ValueError),
        (lambda flow: flow.from_numpy([1.0]), TypeError),
    ),
)
