"""PyTorch's switches of the whole process, which have one right value here.

What is asked is answered truthfully, and what is set is remembered where it has no effect: every
algorithm is deterministic, whoever asks for that; threads are those of `flow.set_num_threads`,
there is no second pool of them.
"""

from __future__ import annotations

from typing import Any

from flowvm.autograd.anomaly import set_detect_anomaly
from flowvm.eager.autocast import autocast_dtype, autocast_mode, defaults, forget, inside
from flowvm.errors import ArgumentError, ArgumentTypeError
from flowvm.meta.dtype import DType

# public: flow (late, unlisted)

_DEBUG = ("default", "warn", "error")
_state: dict[str, Any] = {"deterministic": 0, "interop": 1, "warn": False}


def use_deterministic_algorithms(mode: bool, *, warn_only: bool = False) -> None:
    """Set if deterministic algorithms are asked for: all are, whatever `mode` is."""
    if not isinstance(mode, bool):
        raise ArgumentTypeError(
            f"use_deterministic_algorithms: mode is True or False, got {mode!r}"
        )
    _state["deterministic"] = 0 if not mode else 1 if warn_only else 2


def are_deterministic_algorithms_enabled() -> bool:
    """Return True if `use_deterministic_algorithms` was last called with True."""
    return bool(_state["deterministic"])


def is_deterministic_algorithms_warn_only_enabled() -> bool:
    """Return True if `use_deterministic_algorithms` was last called with `warn_only`."""
    return bool(_state["deterministic"] == 1)


def set_deterministic_debug_mode(debug_mode: int | str) -> None:
    """Set the deterministic debug mode by a number or word: 0 "default", 1 "warn", 2 "error"."""
    if debug_mode not in (*range(3), *_DEBUG):
        raise ArgumentError(
            f"set_deterministic_debug_mode: 0, 1, 2 or one of {_DEBUG}, got {debug_mode!r}"
        )
    number = _DEBUG.index(debug_mode) if isinstance(debug_mode, str) else int(debug_mode)
    _state["deterministic"] = number


def get_deterministic_debug_mode() -> int:
    """Return the deterministic debug mode: 0 default, 1 warn, 2 error."""
    return int(_state["deterministic"])


def set_num_interop_threads(threads: int) -> None:
    """Set a number of threads for independent operations; the VM's streams need no pool, so it is
    only stored.
    """
    if not isinstance(threads, int) or threads < 1:
        raise ArgumentError(f"set_num_interop_threads: a positive int, got {threads!r}")
    _state["interop"] = threads


def get_num_interop_threads() -> int:
    """Return the number of threads for independent operations, as set; at first 1."""
    return int(_state["interop"])


def set_flush_denormal(mode: bool) -> bool:
    """Return False: subnormal numbers stay numbers, and that cannot be changed."""
    return False


def set_warn_always(b: bool) -> None:
    """Set if a warning is given each time; Python's filters decide that, so it is only stored."""
    _state["warn"] = bool(b)


def is_warn_always_enabled() -> bool:
    """Return the last argument of `set_warn_always`."""
    return bool(_state["warn"])


def set_anomaly_enabled(mode: bool, check_nan: bool = True) -> None:
    """`flow.autograd.set_detect_anomaly(mode, check_nan)`."""
    set_detect_anomaly(mode, check_nan)


def is_autocast_enabled(device_type: str = "cuda") -> bool:
    """Return True if this thread is inside an enabled `autocast`, which is for tensors of every
    device.
    """
    return autocast_dtype() is not None


def is_autocast_cpu_enabled() -> bool:
    """Return `is_autocast_enabled("cpu")`."""
    return is_autocast_enabled("cpu")


def is_autocast_cache_enabled() -> bool:
    """Return True: a parameter is converted once, and again when it has changed."""
    return True


def get_autocast_dtype(device_type: str) -> DType:
    """Return the dtype to which the surrounding `autocast` converts; without one, its default for
    the device type.
    """
    return autocast_dtype() or _default("get_autocast_dtype", device_type)


def _default(name: str, device_type: str | bool) -> DType:
    if device_type not in defaults:
        raise ArgumentError(f"{name}: 'cpu' or 'cuda', got {device_type!r}")
    return defaults[device_type]


def set_autocast_enabled(device_type: str | bool, enabled: bool | None = None) -> None:
    """Let this thread compute as inside `flow.autocast(device_type)` from now on, until that is
    turned off, or the `with flow.autocast(...)` around ends.  One argument is for "cuda".

    >>> flow.set_autocast_enabled("cpu", True)
    >>> (flow.ones(2, 2) @ flow.ones(2, 2)).dtype
    flow.bfloat16
    >>> flow.set_autocast_enabled("cpu", False)
    """
    if enabled is None:
        device_type, enabled = "cuda", bool(device_type)
    dtype = _default("set_autocast_enabled", device_type)
    autocast_mode().set(inside(dtype) if enabled else None)


def set_autocast_dtype(device_type: str, dtype: DType) -> None:
    """Set the default dtype of `autocast` for the device type.  If this thread is in a region, set
    the region's dtype until it ends.

    ArgumentError for another dtype than float16 and bfloat16.

    >>> flow.set_autocast_dtype("cpu", flow.float16)
    >>> with flow.autocast("cpu"):
    ...     print(flow.get_autocast_dtype("cpu"))
    flow.float16
    >>> flow.set_autocast_dtype("cpu", flow.bfloat16)
    """
    _default("set_autocast_dtype", device_type)
    if not (isinstance(dtype, DType) and dtype.reduced):
        raise ArgumentError(f"set_autocast_dtype: flow.float16 or flow.bfloat16, got {dtype!r}")
    if autocast_dtype() is None:
        defaults[device_type] = dtype
    else:
        autocast_mode().set(inside(dtype))


def set_autocast_cpu_dtype(dtype: DType) -> None:
    """`set_autocast_dtype("cpu", dtype)`."""
    set_autocast_dtype("cpu", dtype)


def set_autocast_gpu_dtype(dtype: DType) -> None:
    """`set_autocast_dtype("cuda", dtype)`."""
    set_autocast_dtype("cuda", dtype)


def set_autocast_cache_enabled(enabled: bool) -> None:
    """Do nothing for True; ArgumentError for False: a parameter that has changed is converted again
    anyway.
    """
    if not enabled:
        raise ArgumentError(
            "set_autocast_cache_enabled: False does nothing here: a parameter that has changed is "
            "converted again anyway; leave it out"
        )


def clear_autocast_cache() -> None:
    """Forget the converted parameters of the region that this thread is in."""
    forget()


def get_autocast_cpu_dtype() -> DType:
    """`get_autocast_dtype("cpu")`."""
    return get_autocast_dtype("cpu")


def get_autocast_gpu_dtype() -> DType:
    """`get_autocast_dtype("cuda")`."""
    return get_autocast_dtype("cuda")


def is_vulkan_available() -> bool:
    """Return False: the devices are the CPU and CUDA."""
    return False
