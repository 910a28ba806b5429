"""Metadata of tensors without their values: shape, stride, dtype, device; interned.

Two tensors that look alike share one `TensorMeta`, so "have I seen this call before" is a dict
lookup on identities, and everything derived (byte counts, contiguity) is computed once.  Storage
offset is not part of it: it changes no kernel.
"""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, SupportsIndex, TypeAlias, overload

from flowvm.errors import ArgumentError, ArgumentTypeError, OutOfMemoryError
from flowvm.guards.lru_cache import LRUCache
from flowvm.meta.device import Device, cpu
from flowvm.meta.dtype import DType

Attrs: TypeAlias = tuple[Any, ...]  # a call's attribute values, each of the kind its op declares


# public: flow
class Size(tuple[int, ...]):
    """A tensor's shape: a tuple with `numel()`; a part of one, and one with more, is one, too.

    >>> flow.ones(2, 3).shape.numel()
    6
    >>> flow.ones(2, 3, 4).shape[1:] + (5,)
    flow.Size([3, 4, 5])
    """

    __slots__ = ()

    @overload
    def __getitem__(self, index: SupportsIndex) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> Size: ...
    def __getitem__(self, index: Any) -> Any:
        dims = tuple.__getitem__(self, index)
        return Size(dims) if index.__class__ is slice else dims

    def __add__(self, other: Any) -> Size:
        return Size(tuple.__add__(self, other))

    def __radd__(self, other: object) -> Any:
        return Size(other + tuple(self)) if isinstance(other, tuple) else NotImplemented

    def __mul__(self, times: SupportsIndex) -> Size:
        return Size(tuple.__mul__(self, times))

    __rmul__ = __mul__

    def numel(self) -> int:
        """The product of the dimensions."""
        return math.prod(self)

    def __repr__(self) -> str:
        return f"flow.Size({list(self)})"


def as_shape(shape: Any) -> Size:
    """`shape`, an int or ints in a tuple or list, as a Size; ArgumentError for a negative one."""
    if not isinstance(shape, Iterable):
        shape = (shape,)
    try:
        size = Size(operator.index(d) for d in shape)
    except TypeError:
        raise ArgumentTypeError(f"a shape is made of integers, got {shape!r}") from None
    if any(d < 0 for d in size):
        raise ArgumentError(f"a dimension cannot be negative: shape {tuple(size)}")
    return size


def dense_stride(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides, in elements, of a C-contiguous tensor of `shape`."""
    stride, step = [], 1
    for d in reversed(shape):
        stride.append(step)
        step *= max(d, 1)
    return tuple(reversed(stride))


def reach(shape: Sequence[int], stride: Sequence[int]) -> tuple[int, int]:
    """Return the distances, in elements, from a view's first element to its lowest and to its
    highest in memory.  Strides may be negative, if memory is read backwards.
    """
    if 0 in shape:
        return 0, 0
    steps = [(d - 1) * s for d, s in zip(shape, stride, strict=True)]
    return sum(s for s in steps if s < 0), sum(s for s in steps if s > 0)


_cache = LRUCache("metas", one_each=True)
_interned: dict[tuple[Any, ...], TensorMeta] = _cache.young
about_memory: list[Callable[[], str]] = []  # what an error says of who has memory, see providers
_META_BYTES = 900  # of a meta of some dimensions, with its key
_MEMORY = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


class TensorMeta:
    """Shape, stride (elements), dtype and device; one object for each combination."""

    __slots__ = (
        "__weakref__",
        "contiguous",
        "device",
        "dtype",
        "nbytes",
        "ndim",
        "numel",
        "shape",
        "span",
        "stride",
    )
    shape: Size
    stride: tuple[int, ...]
    dtype: DType
    device: Device
    ndim: int
    numel: int
    nbytes: int  # numel * itemsize
    span: int  # bytes from the first element to behind the last, for the strides given
    contiguous: bool  # C order without gaps
    parted: ClassVar[bool] = False  # a view of such a tensor is translated: a global one's

    @staticmethod
    def of(
        shape: SupportsIndex | Sequence[int],
        dtype: DType,
        device: Device = cpu,
        stride: tuple[int, ...] | None = None,
    ) -> TensorMeta:
        """Return the interned meta with these properties; `stride` None is C order.

        OutOfMemoryError when no machine could hold that many bytes.
        """
        size = shape if type(shape) is Size else as_shape(shape)
        key = (size, dtype, device, stride)
        interned = _interned.get(key)
        return interned if interned is not None else _make(key, size, dtype, device, stride)

    def dense(self, dtype: DType | None = None) -> TensorMeta:
        """The C-contiguous meta of the same shape, of `dtype` or the same."""
        return TensorMeta.of(self.shape, dtype or self.dtype, self.device)

    def with_shape(self, shape: Sequence[int], dtype: DType | None = None) -> TensorMeta:
        """A C-contiguous meta of `shape` on the same device, of `dtype` or the same."""
        return TensorMeta.of(as_shape(shape), dtype or self.dtype, self.device)

    def __repr__(self) -> str:
        short = {
            "float": "f",
            "bfloat": "bf",
            "int": "i",
            "uint": "u",
            "bool": "bool",
            "complex": "c",
        }
        kind = self.dtype.name.partition("_")[0].rstrip("0123456789")
        name = short[kind] + self.dtype.name[len(kind) :]
        strided = "" if self.contiguous else f" stride {list(self.stride)}"
        return f"{name}{list(self.shape)}{strided}".replace(" ", "" if self.contiguous else " ")

    def __reduce__(self) -> tuple[object, ...]:
        return TensorMeta.of, (self.shape, self.dtype, self.device, self.stride)


def _make(
    key: tuple[object, ...],
    size: Size,
    dtype: DType,
    device: Device,
    stride: tuple[int, ...] | None,
) -> TensorMeta:
    known: TensorMeta | None = _cache.find(key)
    if known is not None:
        return known
    if device.__class__ is not Device:  # of a placement: see flowvm.meta.global_meta
        maker: Any = device
        return _put(key, maker.maker(size, dtype, device, stride))
    dense = dense_stride(size)
    steps = dense if stride is None else stride
    numel = size.numel()
    if numel >= 1 << 63 or max(steps, default=0) >= 1 << 63:
        raise ArgumentError(f"a tensor of shape {tuple(size)} has more elements than 64 bits count")
    contiguous = numel == 0 or all(
        s == e for d, s, e in zip(size, steps, dense, strict=True) if d != 1
    )
    if stride is None or contiguous:  # equal layouts share one object
        shared = _cache.find((size, dtype, device, None)) if contiguous else None
        if shared is not None:
            return _put(key, shared)
        steps = dense
    meta = TensorMeta()
    meta.shape, meta.stride, meta.dtype, meta.device = size, steps, dtype, device
    meta.ndim, meta.numel, meta.nbytes = len(size), numel, numel * dtype.itemsize
    last = sum((d - 1) * s for d, s in zip(size, steps, strict=True))
    meta.span = 0 if numel == 0 else (last + 1) * dtype.itemsize
    meta.contiguous = contiguous
    if meta.span > _MEMORY and device is cpu:
        raise OutOfMemoryError(
            f"a tensor of shape {tuple(size)} and dtype {dtype.name} takes "
            f"{meta.span / 2**30:.4g} GiB; "
            f"this machine has {_MEMORY / 2**30:.4g} GiB" + "".join(note() for note in about_memory)
        )
    if contiguous:
        meta = _put((size, dtype, device, None), meta)
    return _put(key, meta)


def _put(key: tuple[object, ...], meta: TensorMeta) -> TensorMeta:
    interned: TensorMeta = _cache.put(key, meta, _META_BYTES)
    return interned


def array_interface(meta: TensorMeta, address: int, read_only: bool) -> dict[str, Any]:
    """Return the `__array_interface__` for NumPy: elements of `meta` at an address."""
    return {
        "version": 3,
        "shape": tuple(meta.shape),
        "typestr": meta.dtype.storage.str,
        "strides": None
        if meta.contiguous
        else tuple([s * meta.dtype.itemsize for s in meta.stride]),
        "data": (address, read_only),
    }
