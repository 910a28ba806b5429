"""`flow.cuda.amp`: the older names of `flow.amp`, for "cuda", with the older order of arguments.

Where there is no CUDA device, regions and scalers are disabled with a warning, as in PyTorch.  It
stands above `flowvm.amp`, as no other module of `flowvm.cuda` does.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

from flowvm import amp
from flowvm.amp import autocast_mode
from flowvm.loading.listing import listing
from flowvm.meta.dtype import DType, float16

__all__ = ["GradScaler", "autocast", "custom_bwd", "custom_fwd"]
__dir__ = listing(globals())


def _usable(name: str, enabled: bool) -> bool:
    if enabled and not amp.is_autocast_available("cuda"):
        warnings.warn(
            f"cuda.amp.{name}: no CUDA device is available, so this call does nothing; "
            f"flow.amp.{name}('cpu') is for the CPU",
            stacklevel=3,
        )
        return False
    return enabled


def autocast(
    enabled: bool = True, dtype: DType = float16, cache_enabled: bool = True
) -> autocast_mode.autocast:
    """`flow.amp.autocast("cuda", dtype, enabled)`."""
    return amp.autocast("cuda", dtype, _usable("autocast", enabled), cache_enabled)


class GradScaler(amp.GradScaler):
    """`flow.amp.GradScaler("cuda", ...)`."""

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        enabled = _usable("GradScaler", enabled)
        super().__init__(
            "cuda", init_scale, growth_factor, backoff_factor, growth_interval, enabled
        )


def custom_fwd(
    fwd: Callable[..., object] | None = None, *, cast_inputs: DType | None = None
) -> Callable[..., Any]:
    """`flow.amp.custom_fwd(..., device_type="cuda")`."""
    return amp.custom_fwd(fwd, device_type="cuda", cast_inputs=cast_inputs)


custom_bwd = partial(amp.custom_bwd, device_type="cuda")
