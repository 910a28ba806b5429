"""`flow.accelerator`: the device beside the CPU: CUDA or none."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

from flowvm import cuda
from flowvm.loading.listing import listing, own_names
from flowvm.meta.device import Device

if TYPE_CHECKING:
    from flowvm.cuda.devices import device
    from flowvm.cuda.events import Stream
    from flowvm.meta.device import DeviceLike


__dir__ = listing(globals())


def is_available() -> bool:
    """Return True if an accelerator can be used."""
    return cuda.is_available()


def device_count() -> int:
    """Return the number of accelerators."""
    return cuda.device_count() if cuda.is_available() else 0


def current_accelerator(check_available: bool = False) -> Device | None:
    """Return the device without its number; None if there is none."""
    return Device("cuda") if cuda.is_available() else None


def current_device_index() -> int:
    """Return the number of the device that "cuda" means here.  DeviceError if there is none."""
    return cuda.current_device()


def set_device_index(device: DeviceLike) -> None:
    """Let "cuda" mean this device."""
    cuda.set_device(device)


def device_index(device: DeviceLike) -> device:
    """Return a context manager in which "cuda" means this device; None changes nothing."""
    return nullcontext() if device is None else cuda.device(device)


def current_stream(device: DeviceLike | None = None) -> Stream:
    """Return the stream to which work goes."""
    return cuda.current_stream(device)


def synchronize(device: DeviceLike | None = None) -> None:
    """Wait for all work of the device."""
    cuda.synchronize(device)


def empty_cache() -> None:
    """Give unused memory back."""
    cuda.empty_cache()


current_device_idx = current_device_index
set_device_idx = set_device_index

__all__ = own_names(globals())
