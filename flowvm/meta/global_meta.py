"""Metadata of a global tensor: its logical shape, its placement, and the meta of the local part.

A `GlobalMeta` is a TensorMeta that no local tensor has.  So no cache by metas (the entries of
calls, views) takes a global tensor for a local one, and no check is needed.  `local` is the meta of
the tensor's memory on this rank.

Invariants
- a tensor's meta is of C order: strides are of its local part alone, and what is computed with the
  logical ones (views) is translated;
- `device` is the placement's, so metas made "on the device of" a global tensor are global too, and
  broadcast;
- a rank outside the placement has a `local` without elements, and computes nothing with it.
"""

from __future__ import annotations

from flowvm.guards.lru_cache import LRUCache
from flowvm.meta.dtype import DType
from flowvm.meta.meta import Size, TensorMeta, as_shape, dense_stride
from flowvm.meta.placements import (
    PARTIAL,
    PlacedDevice,
    Sbps,
    broadcast,
    part,
    partial_sum,
    placed_device,
    placement,
)

_cache = LRUCache("global metas", one_each=True)
_META_BYTES = 1500


class GlobalMeta(TensorMeta):
    """Logical shape and dtype, placement, sbp, and the meta of the part that is here."""

    __slots__ = ("bounds", "inside", "is_copy", "local", "sbp")
    local: TensorMeta
    sbp: Sbps
    inside: bool  # whether this rank is one of the placement's
    # True for a copy in the place of a view.  A write to it also writes to its base, so it shares
    # no entry with other tensors' calls
    is_copy: bool
    bounds: tuple[tuple[int, int], ...]  # of the part that is here, in each dimension
    device: PlacedDevice
    parted = True

    @staticmethod
    def make(
        shape: object,
        dtype: DType,
        device: PlacedDevice,
        sbp: Sbps,
        local_stride: tuple[int, ...] | None = None,
        stride: tuple[int, ...] | None = None,
        is_copy: bool = False,
    ) -> GlobalMeta:
        """Return the interned meta with these properties.  `local_stride` None is C order; `stride`
        is for views in the making.
        """
        size = shape if type(shape) is Size else as_shape(shape)
        key = size, dtype, device, sbp, local_stride, stride, is_copy
        interned: GlobalMeta | None = _cache.young.get(key)
        if interned is None:
            interned = _cache.find(key)
        if interned is None:
            interned = _cache.put(key, _new_meta(*key), _META_BYTES)
        return interned

    @property
    def placement(self) -> placement:
        """The placement of the tensor."""
        where: placement = self.device.placement
        return where

    @property
    def whole(self) -> TensorMeta:
        """The meta of a local tensor of the logical shape."""
        return TensorMeta.of(self.shape, self.dtype, self.device.local)

    def with_sbp(self, sbp: Sbps) -> GlobalMeta:
        """Return the meta of an equal tensor with another sbp; its parts are of C order."""
        return GlobalMeta.make(self.shape, self.dtype, self.device, sbp)

    def with_local(self, local: TensorMeta) -> GlobalMeta:
        """Return this meta with another arrangement of the local part."""
        stride = None if local.contiguous else local.stride
        return GlobalMeta.make(self.shape, self.dtype, self.device, self.sbp, stride)

    def as_copy(self) -> GlobalMeta:
        """Return the meta of a copy that stands in the place of a view."""
        stride = None if self.local.contiguous else self.local.stride
        return GlobalMeta.make(self.shape, self.dtype, self.device, self.sbp, stride, is_copy=True)

    def dense(self, dtype: DType | None = None) -> GlobalMeta:
        """Return the meta of a new tensor like this one; partial sums become broadcast."""
        held = tuple(broadcast if s is partial_sum else s for s in self.sbp)
        return GlobalMeta.make(self.shape, dtype or self.dtype, self.device, held)

    def with_shape(self, shape: object, dtype: DType | None = None) -> GlobalMeta:
        """Return the meta of a new tensor of `shape` on this placement: every rank holds it
        whole.
        """
        return _broadcast(as_shape(shape), dtype or self.dtype, self.device, None)

    @property
    def has_partial(self) -> bool:
        """True if ranks hold summands."""
        return any(s.dim == PARTIAL for s in self.sbp)

    def __repr__(self) -> str:
        held = ",".join(s.short for s in self.sbp)
        return f"{super().__repr__()} {held}@{self.placement.ranks.tolist()}"

    def __reduce__(self) -> tuple[object, ...]:
        local_stride = None if self.local.contiguous else self.local.stride
        return _again, (self.shape, self.dtype, self.placement, self.sbp, local_stride)


def _again(
    shape: Size, dtype: DType, where: placement, sbp: Sbps, local_stride: tuple[int, ...] | None
) -> GlobalMeta:
    return GlobalMeta.make(shape, dtype, placed_device(where), sbp, local_stride)


def _new_meta(
    size: Size,
    dtype: DType,
    device: PlacedDevice,
    sbp: Sbps,
    local_stride: tuple[int, ...] | None,
    stride: tuple[int, ...] | None,
    is_copy: bool,
) -> GlobalMeta:
    whole = TensorMeta.of(size, dtype, device.local, stride)
    meta = GlobalMeta()
    for name in ("shape", "stride", "dtype", "ndim", "numel", "nbytes", "span", "contiguous"):
        setattr(meta, name, getattr(whole, name))
    meta.device, meta.sbp, meta.is_copy = device, sbp, is_copy
    place = device.placement.place_of(device.rank)
    meta.inside = place is not None
    if place is None:
        meta.bounds = ((0, 0),) * len(size)
        local: tuple[int, ...] = (0,) * max(1, len(size))
        local_stride = None
    else:
        meta.bounds = part(size, device.placement, sbp, place)
        local = tuple(end - begin for begin, end in meta.bounds)
    meta.local = TensorMeta.of(local, dtype, device.local, local_stride)
    return meta


def _broadcast(
    size: Size, dtype: DType, device: PlacedDevice, stride: tuple[int, ...] | None
) -> GlobalMeta:
    """Return the meta that `TensorMeta.of` makes on a placement's device."""
    held: Sbps = (broadcast,) * len(device.placement.shape)
    if device.sbp is not None:
        if stride is None and all(-1 <= s.dim < len(size) for s in device.sbp):
            held = device.sbp
        device = device.placement.device(device.rank)
    if stride is not None and stride == dense_stride(size):
        stride = None
    return GlobalMeta.make(size, dtype, device, held, None, stride)


PlacedDevice.maker = staticmethod(_broadcast)
