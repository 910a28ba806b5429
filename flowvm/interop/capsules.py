"""Fields of a DLPack capsule, read and changed in place.

NumPy writes and reads the capsules (`flowvm.interop.protocols` says why), and knows neither devices
nor some floats.  So it is told that memory is on the CPU, and that bfloat16 is uint16; the capsule
that others get, or have given, says what is so.

A DLTensor begins with the address of its memory, then come the device (type and number, int32
each), the number of dimensions (int32), and the dtype: code and bits (uint8), lanes (uint16).
"""

from __future__ import annotations

import ctypes
from typing import Final

from flowvm.private.cpython import capsule_pointer

UNSIGNED: Final = 1  # DLPack's codes of dtypes
CODES: Final = {  # codes of dtypes that NumPy lacks
    "bfloat16": 4, "float8_e4m3fn": 10, "float8_e4m3fnuz": 11, "float8_e5m2": 12,
    "float8_e5m2fnuz": 13, "float8_e8m0fnu": 14,
}  # fmt: skip
_DEVICE: Final = {b"dltensor": 8, b"dltensor_versioned": 40}  # where a capsule's device stands
_USED: Final = {b"used_" + name: at for name, at in _DEVICE.items()}
_EVERY: Final = {**_DEVICE, **_USED}
_DTYPE: Final = 12  # behind the device


def _address(capsule: object) -> int:
    """Return the address of the device in the capsule's DLTensor."""
    name, address = capsule_pointer(capsule)
    return address + _EVERY[name]


def marked(capsule: object, device: tuple[int, int]) -> object:
    """Return the capsule, marked as having its memory on `device`."""
    (ctypes.c_int32 * 2).from_address(_address(capsule))[:] = list(device)
    return capsule


def is_used(capsule: object) -> bool:
    """Return True if the capsule's memory has been handed over; a capsule does so once."""
    return capsule_pointer(capsule)[0] in _USED


def device_of(capsule: object) -> tuple[int, int]:
    """Return the type and number of the device that the capsule names."""
    kind, index = (ctypes.c_int32 * 2).from_address(_address(capsule))
    return kind, index


def kind_of(capsule: object) -> tuple[bool, int]:
    """Return True if the capsule is a versioned one; and the code of its dtype, as UNSIGNED."""
    name, address = capsule_pointer(capsule)
    code = ctypes.c_uint8.from_address(address + _EVERY[name] + _DTYPE).value
    return name.endswith(b"_versioned"), code


def retyped(capsule: object, code: int) -> object:
    """Return the capsule with another code of its dtype, and as many bits."""
    ctypes.c_uint8.from_address(_address(capsule) + _DTYPE).value = code
    return capsule
