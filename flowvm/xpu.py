"""`flow.xpu`: flowvm does not compute on Intel's GPUs; what asks hears so."""

from __future__ import annotations

from typing import NoReturn

from flowvm.errors import DeviceError
from flowvm.loading.listing import listing, own_names

__dir__ = listing(globals())


def _refuse() -> NoReturn:
    raise DeviceError("flowvm has no 'xpu' devices: use 'cpu', or 'cuda' where there is one")


def is_available() -> bool:
    """Whether there is such a device: never."""
    return False


def is_initialized() -> bool:
    """Whether such a device is in use: never."""
    return False


def device_count() -> int:
    """How many such devices there are: none."""
    return 0


def current_device() -> NoReturn:
    """DeviceError: there is none."""
    _refuse()


def synchronize(device: object = None) -> NoReturn:
    """DeviceError: there is nothing to wait for."""
    _refuse()


def empty_cache() -> None:
    """Nothing is cached."""


def manual_seed(seed: int) -> None:
    """Seed the generators of such devices, of which there are none."""


def manual_seed_all(seed: int) -> None:
    """Seed the generators of such devices, of which there are none."""


__all__ = own_names(globals())
