"""The answer to calls that need LAPACK on CUDA: a DeviceError."""

from __future__ import annotations

from typing import Any, NoReturn

from flowvm.errors import DeviceError


def absent(launch: object, metas: tuple[Any, ...], attrs: tuple[object, ...]) -> NoReturn:
    """Raise DeviceError, whatever the call."""
    shapes = ", ".join(str(tuple(m.shape)) for m in metas)
    raise DeviceError(
        f"this factorization (of {shapes}) is LAPACK's, on the CPU alone, and has no CUDA kernel; "
        "compute it on the CPU: x.cpu()"
    )
