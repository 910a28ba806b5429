"""The CUDA devices of this machine and the current one, "cuda": PyTorch's functions.

A device argument is None (the current device), an index, "cuda:1" or a `flow.device`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flowvm.cuda.driver import runtime as runtimes
from flowvm.cuda.driver.runtime import Properties
from flowvm.errors import DeviceError, FlowError
from flowvm.guards.regions import Mode, Region, Switch
from flowvm.loading.listing import listing, own_names
from flowvm.meta.device import Device, cuda_index

if TYPE_CHECKING:
    from flowvm.meta.device import DeviceLike


# public: cuda

__dir__ = listing(globals())


def is_available() -> bool:
    """Return True if a CUDA device can be used.  Never raises."""
    return device_count() > 0


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Return True if there is a CUDA device, whose kernels compute bfloat16 in float32 where it
    has no instructions for it; without `including_emulation` if the device has them, from Ampere
    on.
    """
    if not is_available():
        return False
    return including_emulation or get_device_capability()[0] >= 8


def device_count() -> int:
    """Return the number of CUDA devices; 0 if CUDA cannot be used."""
    try:
        return runtimes.count()
    except FlowError:
        return 0


def init() -> None:
    """Prepare the current device now and not at its first use.  Raise DeviceError if something is
    missing.
    """
    runtimes.runtime(cuda_index.now())


def is_initialized() -> bool:
    """Return True if this process uses a CUDA device already."""
    return bool(runtimes.runtimes())


# not public
def index_of(device: DeviceLike | None = None) -> int:
    """The index of a device argument; DeviceError if it is no CUDA device."""
    if device is None:
        return cuda_index.now()
    chosen = device if isinstance(device, Device) else Device(device)
    if chosen.type != "cuda":
        raise DeviceError(f"expected a CUDA device, got '{chosen}'")
    return chosen.index or 0


def current_device() -> int:
    """The index of the device that "cuda" means on this thread."""
    return cuda_index.now()


def set_device(device: DeviceLike) -> None:
    """Let "cuda" mean `device` on this thread, from now on.  DeviceError if there is none such."""
    index = index_of(device)
    _require(index)
    cuda_index.set(index)


def _require(index: int) -> None:
    if why := runtimes.why_not(index):
        raise DeviceError(f"device 'cuda:{index}' is not available: {why}")


class device(Region):  # noqa: N801 - PyTorch's name
    """`with flow.cuda.device(1):` "cuda" means "cuda:1" on this thread; None changes nothing."""

    def __init__(self, device: DeviceLike) -> None:
        self.index = cuda_index.now() if device is None else index_of(device)

    def _mode(self) -> Mode[int]:
        return cuda_index

    def _switch(self) -> Switch:
        _require(self.index)
        return cuda_index, self.index, None


def get_device_properties(device: DeviceLike | None = None) -> Properties:
    """Return the device's properties: name, total_memory, major, minor and so on."""
    return runtimes.properties(index_of(device))


def get_device_name(device: DeviceLike | None = None) -> str:
    """The device's name."""
    return get_device_properties(device).name


def get_device_capability(device: DeviceLike | None = None) -> tuple[int, int]:
    """Return the device's compute capability; an A100 has (8, 0)."""
    return get_device_properties(device).capability


def can_device_access_peer(device: DeviceLike, peer_device: Any) -> bool:
    """Return False: no kernel reads another device's memory.  Copies between devices always
    work.
    """
    index_of(device), index_of(peer_device)
    return False


__all__ = own_names(globals())
