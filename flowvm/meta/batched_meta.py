"""Metadata of a tensor inside `vmap`: what one example looks like, and where the others lie.

The logical shape and strides are one example's.  For each level (a `vmap` that is under way) the
device has the number of examples and the distance between them in memory, in elements.  Views of an
example change shape, strides and offset, and keep these distances, so every view is a view of all
examples.  A distance of 0 says that all examples are one: the tensor is *shared* at that level.

Invariants
- levels are in the order of their numbers;
- no local tensor has such a meta, so no cache by metas takes one for the other;
- what an op makes is made by the physical meta, which has the levels' dimensions in front.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from flowvm.meta import device as devices
from flowvm.meta.device import Device
from flowvm.meta.dtype import DType
from flowvm.meta.meta import Size, TensorMeta, as_shape, dense_stride


class Axis(NamedTuple):
    """The dimension of a level: its number, how many examples, and their distance."""

    level: int
    size: int
    stride: int


class BatchedDevice(Device):
    """The device of tensors with levels; a tensor made "on the device of" one has them, too."""

    __slots__ = ("axes", "local")
    axes: tuple[Axis, ...]
    local: Device
    maker: object  # makes metas; see below

    @staticmethod
    def of(local: Device, axes: tuple[Axis, ...]) -> Device:
        """Return the device with these levels; `local` itself if there are none."""
        if not axes:
            return local
        key = local, axes
        interned = _interned.get(key)
        if interned is None:
            interned = object.__new__(BatchedDevice)
            for name, value in (
                ("type", local.type), ("index", local.index), ("axes", axes), ("local", local),
            ):  # fmt: skip
                object.__setattr__(interned, name, value)
            devices.admit(interned)
            interned = _interned.setdefault(key, interned)
        return interned

    def __reduce_ex__(self, protocol: object) -> tuple[type[Device], tuple[str]]:
        return Device, (str(self.local),)


_interned: dict[object, BatchedDevice] = {}


class BatchedMeta(TensorMeta):
    """The meta of one example, and the levels in `device`."""

    __slots__ = ()
    device: BatchedDevice
    is_copy = False

    @property
    def example(self) -> TensorMeta:
        """The meta of one example alone."""
        return TensorMeta.of(self.shape, self.dtype, self.device.local, self.stride)

    def dense(self, dtype: DType | None = None) -> TensorMeta:
        """Return the meta of a new tensor like this one."""
        return self.with_shape(self.shape, dtype)

    def with_shape(self, shape: object, dtype: DType | None = None) -> TensorMeta:
        """Return the meta of a new tensor of `shape` with these levels."""
        size = as_shape(shape)
        device = fresh(self.device, size.numel())
        return TensorMeta.of(size, dtype or self.dtype, device)

    def __repr__(self) -> str:
        axes = ",".join(f"{a.size}{' shared' if a.stride == 0 else ''}" for a in self.device.axes)
        return f"{super().__repr__()} for each of {axes}"

    def __reduce__(self) -> tuple[object, ...]:
        return self.example.__reduce__()


def fresh(device: BatchedDevice, numel: int) -> Device:
    """Return the device of a new dense tensor with `numel` elements an example."""
    sizes = [a.size for a in device.axes]
    strides = dense_stride([*sizes, numel])[:-1]
    axes = tuple(a._replace(stride=s) for a, s in zip(device.axes, strides, strict=True))
    return BatchedDevice.of(device.local, axes)


def _new_meta(
    size: Size, dtype: DType, device: BatchedDevice, stride: tuple[int, ...] | None
) -> TensorMeta:
    whole = TensorMeta.of(size, dtype, device.local, stride)
    if stride is not None and whole.contiguous:
        return TensorMeta.of(size, dtype, device)
    meta = BatchedMeta()
    for name in ("shape", "stride", "dtype", "ndim", "numel", "nbytes", "span", "contiguous"):
        setattr(meta, name, getattr(whole, name))
    meta.device = device
    return meta


BatchedDevice.maker = staticmethod(_new_meta)


def axes_of(value: object) -> tuple[Axis, ...]:
    """Return the levels of a meta or device; none of any other value."""
    device = value.device if isinstance(value, TensorMeta) else value
    return device.axes if device.__class__ is BatchedDevice else ()


def is_batched(*values: object) -> bool:
    """Return True if a meta or device among the values has levels."""
    for value in values:
        device = value.device if isinstance(value, TensorMeta) else value
        if device.__class__ is BatchedDevice:
            return True
    return False


def base_device(device: Device) -> Device:
    """Return the device without levels."""
    return device.local if isinstance(device, BatchedDevice) else device


def example_of(meta: TensorMeta) -> TensorMeta:
    """Return the meta of one example; `meta` itself if it has no levels."""
    return meta.example if isinstance(meta, BatchedMeta) else meta


def with_axes(meta: TensorMeta, axes: Sequence[Axis]) -> TensorMeta:
    """Return the meta of an example like `meta` with these levels."""
    device = BatchedDevice.of(base_device(meta.device), tuple(sorted(axes)))
    return TensorMeta.of(meta.shape, meta.dtype, device, meta.stride)


def made_for(meta: TensorMeta, *others: TensorMeta) -> TensorMeta:
    """Return `meta` with the levels of the others as well: of a new tensor that they change."""
    if not is_batched(*others):
        return meta
    axes = {a.level: a for m in (meta, *others) for a in axes_of(m)}
    return with_axes(example_of(meta), tuple(axes.values()))


def differs_more(meta: TensorMeta, *others: TensorMeta) -> bool:
    """Return True if some of the others differ between examples that are one in `meta`."""
    own = {a.level for a in axes_of(meta) if a.stride}
    return any(a.stride and a.level not in own for m in others for a in axes_of(m))


def in_elements(device: Device, times: int, parts: int = 1) -> Device:
    """Return the device of a view whose elements have other bytes: distances in elements are
    `times` as large, divided by `parts`.
    """
    if device.__class__ is not BatchedDevice:
        return device
    axes = tuple(a._replace(stride=a.stride * times // parts) for a in axes_of(device))
    return BatchedDevice.of(base_device(device), axes)
