"""flowvm: a deep learning framework in pure Python, eager first, around a virtual machine that schedules instructions.

    import flowvm as flow

PyTorch's names and meaning. What is here: tensors and ops (`flow.tensor`, `flow.matmul`, ...), `flow.nn`, `flow.optim`, `flow.autograd`,
`flow.utils.data`, and `flow.vm`, where the machine can be watched (`trace`, `stats`, `dump`, `verify`). Importing starts no thread and
compiles nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from flowvm import autograd, ops, vm
from flowvm.autograd import (
    enable_grad,
    inference_mode,
    is_grad_enabled,
    is_inference_mode_enabled,
    no_grad,
    set_grad_enabled,
)
from flowvm.config import config
from flowvm.device import Device as device
from flowvm.dtype import DType as dtype
from flowvm.dtype import (
    bool_,
    can_cast,
    double,
    finfo,
    float16,
    float32,
    float64,
    float_,
    get_default_dtype,
    half,
    iinfo,
    int8,
    int16,
    int32,
    int64,
    int_,
    long,
    promote_types,
    result_type,
    set_default_dtype,
    short,
    uint8,
)
from flowvm.errors import FlowError
from flowvm.interop import from_dlpack
from flowvm.meta import Size
from flowvm.ops import *  # noqa: F403 - the public ops are pinned by ops.__all__
from flowvm.printing import get_printoptions, printoptions, set_printoptions
from flowvm.streams import Stream, current_stream, stream
from flowvm.tensor import Tensor

if TYPE_CHECKING:
    from flowvm import datasets, nn, optim, utils
    from flowvm.serialization import load, save

__version__ = "0.1.0"

# PyTorch's names for dtypes that are builtins' names too
bool = bool_
int = int_
float = float_

inf = ops.inf
nan = ops.nan
pi = ops.pi
e = ops.e

_LAZY_MODULES = ("datasets", "graph", "nn", "optim", "utils")
_LAZY_NAMES = {"save": "flowvm.serialization", "load": "flowvm.serialization"}


def __getattr__(name: str) -> Any:
    if name in _LAZY_MODULES:
        return importlib.import_module(f"flowvm.{name}")
    if name in _LAZY_NAMES:
        return getattr(importlib.import_module(_LAZY_NAMES[name]), name)
    import difflib

    near = difflib.get_close_matches(name, __dir__(), 1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise AttributeError(f"flowvm has no {name!r}{hint}")


def __dir__() -> list[str]:
    return sorted({*__all__, *_LAZY_MODULES, *_LAZY_NAMES})


__all__ = sorted(
    {
        *ops.__all__,
        "FlowError",
        "Size",
        "Stream",
        "Tensor",
        "autograd",
        "bool",
        "can_cast",
        "config",
        "current_stream",
        "datasets",
        "device",
        "double",
        "dtype",
        "e",
        "enable_grad",
        "finfo",
        "float",
        "float16",
        "float32",
        "float64",
        "from_dlpack",
        "get_default_dtype",
        "get_printoptions",
        "half",
        "iinfo",
        "inf",
        "inference_mode",
        "int",
        "int16",
        "int32",
        "int64",
        "int8",
        "is_grad_enabled",
        "is_inference_mode_enabled",
        "load",
        "long",
        "nan",
        "nn",
        "no_grad",
        "ops",
        "optim",
        "pi",
        "printoptions",
        "promote_types",
        "result_type",
        "save",
        "set_default_dtype",
        "set_grad_enabled",
        "set_printoptions",
        "short",
        "stream",
        "uint8",
        "utils",
        "vm",
    }
)
