"""`flow.xpu`: flowvm does not compute on Intel's GPUs, and says so."""

from __future__ import annotations

from typing import NoReturn

from flowvm.errors import DeviceError
from flowvm.loading.listing import listing, own_names

__dir__ = listing(globals())


def _refuse() -> NoReturn:
    raise DeviceError("flowvm has no 'xpu' devices: use 'cpu', or 'cuda' where there is one")


def is_available() -> bool:
    """Return False: such devices do not exist here."""
    return False


def is_initialized() -> bool:
    """Return False: such devices do not exist here."""
    return False


def device_count() -> int:
    """Return 0: such devices do not exist here."""
    return 0


def current_device() -> NoReturn:
    """Raise DeviceError: such devices do not exist here."""
    _refuse()


def synchronize(device: object = None) -> NoReturn:
    """Raise DeviceError: such devices do not exist here."""
    _refuse()


def empty_cache() -> None:
    """Do nothing: nothing is cached."""


def manual_seed(seed: int) -> None:
    """Do nothing: such devices do not exist here."""


def manual_seed_all(seed: int) -> None:
    """Do nothing: such devices do not exist here."""


__all__ = own_names(globals())
