"""The BLAS library that SciPy carries, as LAPACK's routines call it (`ops/products/linalg.py`): one
thread.

Matrix products do not use it; theirs is `ops/products/cpu/gemm.py`.
"""

from __future__ import annotations

import ctypes
import functools
import glob
import os

__all__ = ["one_thread"]


@functools.cache
def one_thread() -> None:
    """Let the library run on one thread: the VM splits work itself, and two pools would fight."""
    import scipy

    folder = os.path.join(os.path.dirname(os.path.dirname(scipy.__file__)), "scipy.libs")
    for path in glob.glob(os.path.join(folder, "*openblas*")):
        library = ctypes.CDLL(path)
        for prefix in ("scipy_openblas", "openblas"):
            for suffix in ("", "64_"):
                if hasattr(library, f"{prefix}_set_num_threads{suffix}"):
                    getattr(library, f"{prefix}_set_num_threads{suffix}")(1)
