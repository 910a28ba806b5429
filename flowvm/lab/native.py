"""Calls of compiled loops on NumPy arrays.

The loops (`flowvm.lab.loops`) are plain Python functions on float64 and int64 arrays.  `call` runs
them compiled, through flowvm's own cache of compiled code: a second process loads what the first
has compiled.  Called directly they run as Python; tests hold the one to the other.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

from flowvm.compiler import jit
from flowvm.meta.arrays import Array

_TYPES = {"f": "float64", "i": "int64", "F": "float64[::1]", "I": "int64[::1]"}
_WORDS = 7  # of an array: two owners, items, item size, data, length, stride
_functions: dict[tuple[Callable[..., int], str], Any] = {}


def _kind(value: object) -> str:
    if isinstance(value, np.ndarray):
        assert value.dtype in (np.float64, np.int64), value.dtype
        assert value.flags.c_contiguous
        return "F" if value.dtype == np.float64 else "I"
    return "f" if isinstance(value, float) else "i"


def _words(array: Array) -> tuple[int, ...]:
    return 0, 0, array.size, 8, array.ctypes.data, array.size, 8


def call(function: Callable[..., int], *args: Any) -> int:
    """The result of a loop, compiled for the types of these arguments; the GIL is let go of."""
    kinds = "".join(map(_kind, args))
    native = _functions.get((function, kinds))
    if native is None:
        address = jit.native(function, f"int64({', '.join(_TYPES[k] for k in kinds)})")
        types: list[Any] = []
        for kind in kinds:
            count = _WORDS if kind in "FI" else 1
            types += [ctypes.c_double if kind == "f" else ctypes.c_int64] * count
        native = ctypes.CFUNCTYPE(ctypes.c_int64, *types)(address)
        _functions[function, kinds] = native
    passed: list[object] = []
    for kind, value in zip(kinds, args, strict=True):
        passed += _words(value) if kind in "FI" else [value]
    return int(native(*passed))
