"""Devices on which tensors live.

A `Device` is interned: there is one object for "cpu" and one for each "cuda:<index>", so `is`
compares.  Any well-formed name can be parsed; `require` checks if the device can be used, and says
what is missing.  The functions that know are in `backends`, and are called at a device's first
use.  The one for CUDA loads the driver; nothing else here does.
"""

import os
import re
from collections.abc import Callable
from typing import Final, NoReturn, SupportsIndex, TypeAlias

from flowvm.errors import ArgumentTypeError, DeviceError
from flowvm.guards.regions import Mode, Region, Switch

_TYPES = ("cpu", "cuda", "meta")
_SPELLING = re.compile(r"([a-z]+)(?::(0|[1-9][0-9]*))?")
_interned: dict[tuple[str, int], "Device"] = {}


# The choices of a thread: the CUDA device that "cuda" means (see `flow.cuda.device`), and the
# device of new tensors.
cuda_index: Final = Mode(0)
made_on: "Final[Mode[Device | None]]" = Mode(None)


class Device(Region):
    """A place for tensors: `flow.device("cpu")`, `flow.device("cuda:1")`, `flow.device("cuda", 1)`,
    or `flow.device("meta")`, where tensors have shapes and dtypes and no values.

    "cuda" alone means the current CUDA device, which is "cuda:0" unless `flow.cuda.set_device` was
    called.  There is one CPU device, so its index is None, as in PyTorch.  Inside `with
    flow.device("cuda"):` new tensors are made there.

    >>> flow.device("cuda:1").index
    1
    >>> flow.device("cpu").type
    'cpu'
    """

    __slots__ = ("index", "type")

    type: str
    index: int | None

    def __new__(
        cls,
        device: "DeviceLike | None" = None,
        index: int | None = None,
        *,
        type: str | None = None,  # PyTorch's name of the first one
    ) -> "Device":
        if type is not None and device is not None:
            raise ArgumentTypeError(
                f"device and type are one argument, got {device!r} and {type!r}"
            )
        key = _parse(device if type is None else type, index)
        interned = _interned.get(key)
        if interned is None:
            interned = object.__new__(cls)
            object.__setattr__(interned, "type", key[0])
            object.__setattr__(interned, "index", key[1] if key[0] == "cuda" else None)
            interned = _interned.setdefault(
                key, interned
            )  # atomic: two threads agree on one object
        return interned

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{self!r} cannot be changed")

    def _mode(self) -> "Mode[Device | None]":
        return made_on

    def _switch(self) -> Switch:
        return made_on, require(self), self

    def __str__(self) -> str:
        return self.type if self.index is None else f"{self.type}:{self.index}"

    def __repr__(self) -> str:
        if self.index is None:
            return f"device(type={self.type!r})"
        return f"device(type={self.type!r}, index={self.index})"

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[object, ...]:
        return Device, (str(self),)


# a function of the number that a rank may give its CPU: its own
own_number: "list[Callable[[], int]]" = [int]


def _parse(device: object, index: object) -> tuple[str, int]:
    if isinstance(device, Device):
        device = str(device)
    if isinstance(device, int) and not isinstance(device, bool) and index is None:
        device, index = "cuda", device  # as in PyTorch, a bare number is an accelerator
    if not isinstance(device, str):
        raise ArgumentTypeError(f"expected a device such as 'cpu' or 'cuda:0', got {device!r}")
    match = _SPELLING.fullmatch(device)
    if match is None or match[1] not in _TYPES:
        raise DeviceError(
            f"no device is called {device!r}; write 'cpu', 'cuda', 'cuda:<index>' or 'meta'"
        )
    if match[2] is not None and index is not None:
        raise DeviceError(f"device {device!r} has an index already, so index={index!r} is too much")
    number = index if match[2] is None else int(match[2])
    if number is None:
        number = cuda_index.now() if match[1] == "cuda" else 0
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise DeviceError(f"a device index is an integer from 0 up, got {number!r}")
    if match[1] == "cpu" and number != 0 and number != own_number[-1]():
        raise DeviceError(f"there is one CPU device, 'cpu'; got index {number}")
    return match[1], number if match[1] == "cuda" else 0  # one meta device, too, as in PyTorch


cpu: Final = Device("cpu")
meta: Final = Device("meta")

DeviceLike: TypeAlias = Device | str | int  # what names a device in a call


def as_device(value: DeviceLike | None) -> Device:
    """Return `value` as a Device that can be used; None is the default device."""
    if value is None:
        return made_on.now() or cpu
    return require(value if isinstance(value, Device) else Device(value))


# public: flow
def set_default_device(device: DeviceLike | None) -> None:
    """Set the device on which this thread makes new tensors; None: the CPU.

    >>> flow.set_default_device("cpu")
    >>> flow.ones(2).device.type
    'cpu'
    """
    place = cpu if device is None else as_device(device)
    made_on.set(None if place is cpu else place)


# public: flow
def get_default_device() -> Device:
    """Return the device on which this thread makes new tensors.

    >>> flow.get_default_device().type
    'cpu'
    """
    return made_on.now() or cpu


# by type of device, but the CPU: why the one of an index cannot be used, "" if it can
backends: dict[str, Callable[[int], str]] = {}
_usable: set[Device] = {cpu, meta}


def admit(device: Device) -> None:
    """Take `device` for one that can be used: it stands for others that can be."""
    _usable.add(device)


def is_available(device: Device) -> bool:
    """Return True if tensors can be made on `device`."""
    return not _why_not(device)


def require(device: Device) -> Device:
    """Return `device`; DeviceError says why it cannot be used."""
    if why := _why_not(device):
        raise DeviceError(f"device '{device}' is not available: {why}")
    return device


def forget() -> None:
    """Forget which devices can be used, so that they are checked anew."""
    _usable.difference_update({d for d in _usable if d.type == "cuda"})


def _why_not(device: Device) -> str:
    """Return the reason why `device` cannot be used; "" if it can, which is remembered."""
    if device in _usable:
        return ""
    why = backends[device.type](device.index or 0)
    if not why:
        _usable.add(device)
    return why


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=forget)  # CUDA does not survive a fork
