"""The names of `torch._C` that programs use: classes in annotations, and functions without an
effect.
"""

from __future__ import annotations

from typing import Any

from flowvm.accelerator import current_accelerator
from flowvm.compat import primitives
from flowvm.eager.overrides import disabled as _disabled_torch_function_impl  # noqa: F401
from flowvm.eager.tensor import Tensor
from flowvm.errors import ModeError
from flowvm.jit import ScriptFunction as ScriptFunction
from flowvm.jit import ScriptModule as ScriptModule
from flowvm.meta.device import Device, cpu
from flowvm.meta.dtype import DType, int8
from flowvm.ops import Generator as Generator
from flowvm.overrides import DisableTorchFunction as DisableTorchFunction
from flowvm.overrides import DisableTorchFunctionSubclass as DisableTorchFunctionSubclass


class Graph:
    """A class for annotations."""


class Node:
    """A class for annotations."""


class Value:
    """A class for annotations."""


class SymInt:
    """A class for annotations: sizes are plain numbers."""


class SymFloat:
    """A class for annotations."""


class SymBool:
    """A class for annotations."""


class NoDtype:
    """A dtype that no tensor here has: a name to compare with."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"torch.{self.name}"


complex32, chalf = NoDtype("complex32"), NoDtype("complex32")
quint8, qint8, qint32 = NoDtype("quint8"), NoDtype("qint8"), NoDtype("qint32")
quint4x2, quint2x4 = NoDtype("quint4x2"), NoDtype("quint2x4")
float4_e2m1fn_x2 = NoDtype("float4_e2m1fn_x2")
_TensorMeta = type(Tensor)
dtype = DType
char = int8


class PyTorchFileReader:
    """A class for annotations: `flow.load` reads PyTorch's files."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        raise ModeError("PyTorchFileReader: flow.load(path) reads PyTorch's files")


def _are_functorch_transforms_active() -> bool:
    """Return False: transforms are functions here, and no mode."""
    return False


def enable_eager_execution(val: bool = True) -> None:
    """Do nothing: calls are eager anyway."""


def _get_privateuse1_backend_name() -> str:
    """Return PyTorch's name of a device type of somebody's own, which nobody has given here."""
    return "privateuseone"


def _log_api_usage_once(event: str) -> None:
    """Accept and ignore: nothing is logged."""


def _get_tracing_state() -> None:
    """Return None: no tracer of C++ exists."""
    return


def _get_accelerator(check: bool | None = None) -> Device:
    """The device beside the CPU, or the CPU where there is none."""
    accelerator = current_accelerator()
    return cpu if accelerator is None else accelerator


# PyTorch's switches of compilers of its own: each answers that it was off
_SWITCHES = frozenset({
    "_jit_can_fuse_on_cpu", "_jit_can_fuse_on_gpu", "_jit_override_can_fuse_on_cpu",
    "_jit_override_can_fuse_on_gpu", "_jit_set_nvfuser_enabled", "_jit_set_nvfuser_guard_mode",
    "_jit_set_profiling_executor", "_jit_set_profiling_mode", "_jit_set_texpr_fuser_enabled",
})  # fmt: skip


def _off(on: bool = False) -> bool:
    """Return False: there is nothing to switch."""
    return False


def __getattr__(name: str) -> Any:
    return _off if name in _SWITCHES else primitives.named(name)


class _nn:  # noqa: N801 - PyTorch's name of a module
    """The functions of `torch._C._nn` that programs call."""

    @staticmethod
    def _parse_to(*args: object, **kwargs: Any) -> tuple[object, object, bool, object]:
        """The arguments of `to`: device, dtype, non_blocking, memory_format."""
        device, dtype = kwargs.get("device"), kwargs.get("dtype")
        blocking, form = bool(kwargs.get("non_blocking", False)), kwargs.get("memory_format")
        for arg in (*args, kwargs.get("tensor")):
            if isinstance(arg, Tensor):
                device, dtype = arg.device, arg.dtype
            elif isinstance(arg, DType):
                dtype = arg
            elif isinstance(arg, bool):
                blocking = arg
            elif arg is not None:
                device = arg
        return None if device is None else Device(device), dtype, blocking, form
