"""Copies between devices: instructions of the streams that do nothing else.

A copy to a device runs beside the kernels there, one to the host beside the CPU's; whoever needs
the result waits for it by its operands, as for any other.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from flowvm.eager.declaration import Invocation, Kernel, Rules, Signature
from flowvm.eager.global_calls import Globals, is_placed
from flowvm.eager.interpreter import Operator
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentTypeError, DeviceError, ValuelessError
from flowvm.loading.lazy import lazy
from flowvm.meta.batched_meta import base_device, is_batched
from flowvm.meta.device import Device, cpu
from flowvm.meta.device import meta as nowhere
from flowvm.meta.meta import Attrs, TensorMeta
from flowvm.ops.declare import valueless
from flowvm.ops.declare.letters import unsplit
from flowvm.vm.machine.lang import address_of

if TYPE_CHECKING:
    from flowvm.cuda.driver import streams
    from flowvm.vm.workers import transfers
else:
    streams = lazy("flowvm.cuda.driver.streams")
    transfers = lazy("flowvm.vm.workers.transfers")

_KERNEL = "int32(int64, int64, int64, int64, int64)"


@functools.cache
def _kernel(name: str) -> int:
    return address_of(getattr(transfers, name), _KERNEL)


def _lower(metas: tuple[TensorMeta, ...], attrs: Attrs) -> Invocation:
    (x,), (device,) = metas, attrs
    if not isinstance(device, Device):
        raise ArgumentTypeError(f"copy_to needs a device, got {device!r}")
    out = TensorMeta.of(x.shape, x.dtype, device)
    words = [out.nbytes]
    if x.device is nowhere or device is nowhere:
        if device is nowhere:
            return valueless.invocation((out,))
        raise ValuelessError(
            "a tensor on the meta device has no values to copy; make an empty one elsewhere: "
            "flow.empty_like(x, device=...), module.to_empty(device=...)"
        )
    if device is cpu:
        name, stream = "copy_out", streams.streams(x.device.index or 0).d2h
    else:
        ours = streams.streams(device.index or 0)
        name, stream = "copy_in", ours.h2d
        if x.device is not cpu:
            name = "copy_across"
            words += [ours.runtime.context, streams.streams(x.device.index or 0).runtime.context]
    return Invocation((out,), _kernel(name), np.array(words, np.int64), stream=stream)


_move = Operator(
    "copy_to",
    Signature(("x",), ("out",), attrs=("device",)),
    # complex numbers are on their way to the meta device; CUDA has none
    Kernel(_lower, everywhere=True, complex=True, minifloats=True),
    grad=lambda c, g: (moved(g, c.metas[0].device),),
    rules=Rules(letters=unsplit),
)


def moved(x: Tensor, device: Device) -> Tensor:
    """A dense copy of `x` on `device`, which gradients flow through; `x` itself if it is there."""
    if x._meta.device is device:
        return x
    if is_batched(x._meta, device):  # levels are no place to go to
        device = base_device(device)
        if base_device(x._meta.device) is device:
            return x
    if is_placed(x._meta, device):
        return _of_placement(x, device)
    out: Tensor = _move.call(x.contiguous(), device)
    return out


def _of_placement(x: Tensor, device: Device) -> Tensor:
    """A global tensor stays where it is, or goes to another placement; a local one, beside a global
    tensor, is global as well: ranks that run one program have the same.
    """
    own = x._meta.device
    if is_placed(device) and own.__class__ is Device:
        local: Any = device
        out: Tensor = Globals.placed(moved(x, local.local), device)
        return out
    if device.type == own.type:
        return Globals.across(x, device) if is_placed(device) else x
    raise DeviceError(
        f"a tensor on {own!r} does not go to {device!r} by to(): use to_global(placement=...) or "
        f"to_local()"
    )


def together(tensors: tuple[Tensor, ...], place: Device | None = None) -> tuple[Tensor, ...]:
    """The tensors with 0-d ones of the CPU moved to the others' device, or to `place`: beside
    tensors of a device they count as numbers.  `tensors` itself where nothing is to be moved.
    """
    places = (
        {base_device(t._meta.device) for t in tensors} if place is None else {base_device(place)}
    )
    device = next((d for d in places if d is not cpu), cpu)
    if device is cpu or is_placed(device) or not any(_is_number(t) for t in tensors):
        return tensors
    return tuple(moved(t, device) if _is_number(t) else t for t in tensors)


def _is_number(t: Tensor) -> bool:
    return t._meta.device is cpu and t._meta.ndim == 0
