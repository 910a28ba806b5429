"""Numba-CUDA's private names: its front end, which types and lowers kernels; and its simulator.

`NUMBA_CUDA` is the table for compiled kernels, `SIMULATOR` that for kernels that run as Python: of
the two, a process has use for one.  The functions below are all that touches private attributes of
Numba-CUDA's objects.

Public are `numba.cuda`, `numba.cuda.types` and `numba.cuda.extending`.
"""

from __future__ import annotations

import builtins
import functools
import importlib.util
import sys
import types as pytypes
from collections.abc import Callable
from typing import Any

import numpy as np

from flowvm.errors import DeviceError
from flowvm.private.table import Package, Use

TESTED = ("0.30.4",)  # earlier versions cannot be imported beside Numba 0.68.1
ARRAYS = "numba.cuda.np.arrayobj"


# --- an import --------------------------------------------------------------------------------


@functools.cache
def _import_arrays() -> None:
    """Import ARRAYS, which Numba-CUDA else does when it first compiles.

    Up to 0.30.4 that asks for np.row_stack, which NumPy 2.5 has no more.  So that one module is
    given a NumPy that has it, as the vstack that it was, for as long as the import takes: by the
    `__import__` among its builtins.  NumPy itself stays as it is, for everybody.
    """
    if hasattr(np, "row_stack") or ARRAYS in sys.modules:
        importlib.import_module(ARRAYS)
        return
    parent = importlib.import_module(ARRAYS.rpartition(".")[0])
    spec = importlib.util.find_spec(ARRAYS)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"No module named {ARRAYS!r}", name=ARRAYS)
    older = pytypes.ModuleType("numpy")
    vars(older).update(vars(np), row_stack=np.vstack)
    importing = True

    def importer(name: str, *rest: Any) -> object:
        module = builtins.__import__(name, *rest)
        return older if importing and module is np else module

    module: Any = importlib.util.module_from_spec(spec)
    module.__builtins__ = {**vars(builtins), "__import__": importer}
    sys.modules[ARRAYS] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[ARRAYS]
        raise
    finally:
        importing = False
    module.np = np
    setattr(parent, ARRAYS.rpartition(".")[2], module)


# --- the tables -------------------------------------------------------------------------------

NUMBA_CUDA = Package(
    "numba-cuda",
    TESTED,
    (
        Use("CUDATarget", "numba.cuda.descriptor:CUDATarget", "holds types and code of devices",
            ("_typingctx", "_targetctx", "typing_context", "target_context")),
        Use("TypingContext", "numba.cuda.target:CUDATypingContext", "says what names mean",
            ("_get_global_type", "resolve_value_type", "can_convert", "refresh")),
        Use("TargetContext", "numba.cuda.target:CUDATargetContext", "says how all is lowered",
            ("get_function", "cast", "data_model_manager", "insert_user_function"),
            prepare=_import_arrays),
        Use("CUDADispatcher", "numba.cuda.dispatcher:CUDADispatcher",
            "is how a kernel calls a plain function",
            ("compile_device", "_compiling_counter", "_numba_type_", "overloads", "py_func")),
        Use("compiler", "numba.cuda.compiler", "types and lowers a function",
            ("CUDACompiler", "compile_extra", "kernel_fixup")),
        Use("CodeLibrary", "numba.cuda.codegen:CUDACodeLibrary", "holds the code of a kernel",
            ("_entry_name", "llvm_strs", "get_function", "finalize")),
        Use("CUDACallConv", "numba.cuda.core.callconv:CUDACallConv",
            "says how functions of a kernel are called"),
        Use("lock", "numba.cuda.core.compiler_lock:global_compiler_lock",
            "keeps other users of Numba-CUDA out while flowvm compiles"),
        Use("CUDAFlags", "numba.cuda.flags:CUDAFlags", "says how a function is compiled"),
        Use("utils", "numba.cuda.utils", "says that code is for a device",
            ("numba_target_override",)),
        Use("get_arch_option", "numba.cuda.cudadrv.nvrtc:get_arch_option",
            "names a device's architecture"),
        Use("nvvm", "numba.cuda.cudadrv.nvvm", "finds libNVVM and what it is given",
            ("NVVM", "LibDevice", "llvm_replace")),
        Use("Conversion", "numba.cuda.typeconv:Conversion", "says which types convert",
            ("unsafe",)),
        Use("DataModelManager", "numba.cuda.datamodel:DataModelManager",
            "says how values lie in memory", ("register", "chain")),
        Use("BooleanModel", "numba.cuda.datamodel.models:BooleanModel",
            "says how a bool lies in memory", ("from_data",)),
        Use("imputils", "numba.cuda.core.imputils", "registers how a range is counted",
            ("RefType", "iternext_impl", "lower_constant", "impl_ret_untracked")),
        Use("cgutils", "numba.cuda.cgutils", "makes the small parts of LLVM code",
            ("alloca_once_value", "create_struct_proxy", "get_null_value", "pack_array",
             "unpack_tuple")),
        Use("arrays", ARRAYS, "reads and writes elements of arrays",
            ("load_item", "make_array", "make_view", "store_item"), prepare=_import_arrays),
    ),
)  # fmt: skip

SIMULATOR = Package(
    "numba-cuda",
    TESTED,
    (
        Use("FakeCUDAModule", "numba.cuda.simulator.kernelapi:FakeCUDAModule",
            "is `cuda` as simulated kernels see it", ("_shared", "_local", "shared", "local")),
        Use("as_dtype", "numba.cuda.np.numpy_support:as_dtype", "is the dtype of a shared array"),
    ),
    error=DeviceError,
)  # fmt: skip


# --- what is private of their objects ----------------------------------------------------------


def cuda_target(typing: object, context: Callable[[object], object]) -> Any:
    """A target with contexts of our own; `context(typing)` makes the second."""
    target = NUMBA_CUDA.CUDATarget("cuda")
    target._typingctx = typing
    target._targetctx = context(typing)
    return target


def global_type(context: Any, value: object) -> Any:
    """The type of a global that Numba has registered, such as what an @overload is for; or None."""
    NUMBA_CUDA.require("TypingContext")
    return context._get_global_type(value)


def type_of(dispatcher: Any) -> Any:
    """The type of a function that kernels call."""
    return dispatcher._numba_type_


def compiling(dispatcher: Any) -> Any:
    """A context manager: Numba counts inside that the function is being compiled."""
    return dispatcher._compiling_counter


def enter_at(library: Any, name: str) -> None:
    """Make the function `name` of a library a kernel, and its entry."""
    NUMBA_CUDA.require("CodeLibrary")
    library._entry_name = name
    NUMBA_CUDA.compiler.kernel_fixup(library.get_function(name), False)


def memories(module: Any, shared: object, local: object) -> None:
    """Set `cuda.shared` and `cuda.local` of a simulator's module."""
    module._shared, module._local = shared, local
