"""`flow.backends.cuda`: CUDA, its matrix products, and the choice of attention's computation."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Final

from flowvm.cuda import options
from flowvm.loading.listing import listing

__all__ = [
    "cudnn_sdp_enabled",
    "enable_cudnn_sdp",
    "enable_flash_sdp",
    "enable_math_sdp",
    "enable_mem_efficient_sdp",
    "flash_sdp_enabled",
    "is_built",
    "math_sdp_enabled",
    "matmul",
    "mem_efficient_sdp_enabled",
    "preferred_linalg_library",
    "sdp_kernel",
]
__dir__ = listing(globals())

matmul: Final = options.matmul
_attention: Final = {"flash": True, "mem_efficient": True, "math": True, "cudnn": True}


def is_built() -> bool:
    """Return True: this flowvm can use CUDA if there is a device."""
    return True


def enable_flash_sdp(enabled: bool) -> None:
    """Set and ignore: flowvm has one way to compute attention."""
    _attention["flash"] = bool(enabled)


def flash_sdp_enabled() -> bool:
    """Return the value set; it changes nothing."""
    return _attention["flash"]


def enable_mem_efficient_sdp(enabled: bool) -> None:
    """Set and ignore: flowvm has one way to compute attention."""
    _attention["mem_efficient"] = bool(enabled)


def mem_efficient_sdp_enabled() -> bool:
    """Return the value set; it changes nothing."""
    return _attention["mem_efficient"]


def enable_math_sdp(enabled: bool) -> None:
    """Set and ignore: flowvm has one way to compute attention."""
    _attention["math"] = bool(enabled)


def math_sdp_enabled() -> bool:
    """Return the value set; it changes nothing."""
    return _attention["math"]


def enable_cudnn_sdp(enabled: bool) -> None:
    """Set and ignore: flowvm has one way to compute attention."""
    _attention["cudnn"] = bool(enabled)


def cudnn_sdp_enabled() -> bool:
    """Return the value set; it changes nothing."""
    return _attention["cudnn"]


def sdp_kernel(
    enable_flash: bool = True,
    enable_math: bool = True,
    enable_mem_efficient: bool = True,
    enable_cudnn: bool = True,
) -> AbstractContextManager[object]:
    """Return a context manager that sets these switches; they change nothing."""
    chosen = (enable_flash, enable_mem_efficient, enable_math, enable_cudnn)
    return options.Setting(_attention, dict(zip(_attention, map(bool, chosen), strict=True)))


def preferred_linalg_library(backend: str | None = None) -> str:
    """Return "default" and ignore the argument: LAPACK computes on the CPU, cuSOLVER where CuPy has
    it.
    """
    return "default"
