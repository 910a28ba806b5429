"""SciPy's private things: LAPACK's routines by address, and the BLAS library that they call.

`SCIPY` is the table.  That `scipy.linalg.cython_lapack` has the routines is promised to Cython; the
dict that Cython finds them in is not.  OpenBLAS is a file of SciPy's wheels, and none of a SciPy
that was built on another library: then that has as many threads as it likes.
"""

from __future__ import annotations

import ctypes
import functools
import glob
import importlib
import os
from typing import Any

from flowvm.private.cpython import capsule_pointer
from flowvm.private.table import Package, Use

TESTED = ("1.11.4", "1.15.3", "1.17.1", "1.18.1")
_PREFIXES = ("scipy_openblas", "openblas")  # of its functions; SciPy has called them both ways
_SUFFIXES = ("", "64_")


def lapack_routine(name: str) -> int:
    """The address of a LAPACK routine such as dgesv, whose integers have 32 bits."""
    capsules = SCIPY.lapack.__pyx_capi__
    if name not in capsules:
        raise SCIPY.error(f"{SCIPY.distribution} {SCIPY.version} has no routine {name}")
    return capsule_pointer(capsules[name])[1]


@functools.cache
def openblas_threads() -> tuple[int, int] | None:
    """The addresses of `int get(void)` and `void set(int)`: how many threads the library of the
    routines uses, in the whole process; None where it is another library.
    """
    scipy: Any = importlib.import_module("scipy")
    folder = os.path.join(os.path.dirname(os.path.dirname(scipy.__file__)), "scipy.libs")
    for path in glob.glob(os.path.join(folder, "*openblas*")):
        library = ctypes.CDLL(path)
        for name in [f"{p}_%s_num_threads{s}" for p in _PREFIXES for s in _SUFFIXES]:
            functions: list[Any] = [getattr(library, name % verb, None) for verb in ("get", "set")]
            if None not in functions:
                get, put = (ctypes.cast(f, ctypes.c_void_p).value or 0 for f in functions)
                return get, put
    return None


def _threads() -> str:
    return "" if openblas_threads() else "SciPy has no OpenBLAS of its own"


SCIPY = Package(
    "scipy",
    TESTED,
    (
        Use(
            "lapack",
            "scipy.linalg.cython_lapack",
            "holds the addresses of LAPACK's routines",
            ("__pyx_capi__",),
        ),
        Use(
            "threads",
            "",
            "lets LAPACK run on the one thread that calls it",
            probe=_threads,
            optional=True,
        ),
    ),
)
