"""Finding NVIDIA's libraries: by cuda.pathfinder, in CuPy's and NVIDIA's wheels, by the system.

The first that loads is taken.  Only cuBLAS is looked for: what else flowvm computes on a device,
its own kernels compute.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from pathlib import Path


def load_cublas(version: int) -> ctypes.CDLL:
    """libcublas for a driver of CUDA `version` (12040 is 12.4); OSError names what was tried."""
    tried = []
    for name, load in _candidates(version // 1000):
        try:
            return load()
        except Exception as error:  # pathfinder has exceptions of its own
            tried.append(f"{name}: {type(error).__name__}")
    raise OSError("tried " + ", ".join(tried))


def _candidates(major: int) -> Iterator[tuple[str, Callable[[], ctypes.CDLL]]]:
    yield "cuda.pathfinder", _by_pathfinder
    for path in _in_wheels():
        yield str(path), lambda path=path: ctypes.CDLL(str(path))  # type: ignore[misc]
    for name in (f"libcublas.so.{major}", "libcublas.so.13", "libcublas.so.12", "libcublas.so"):
        yield name, lambda name=name: ctypes.CDLL(name)  # type: ignore[misc]


def _by_pathfinder() -> ctypes.CDLL:
    from cuda.pathfinder import load_nvidia_dynamic_lib

    path = load_nvidia_dynamic_lib("cublas").abs_path
    if path is None:
        raise OSError("it is loaded from nobody knows where")
    return ctypes.CDLL(path)


def _in_wheels() -> Iterator[Path]:
    """nvidia-cublas-cu12's place and that of NVIDIA's wheels for CUDA 13; and CuPy's."""
    patterns = (
        "nvidia/cublas/lib/libcublas.so.1[0-9]",
        "nvidia/cu1[0-9]/lib/libcublas.so.1[0-9]",
        "cupy/.data/lib/libcublas.so.1[0-9]",
    )
    for folder in dict.fromkeys(sys.path):
        for pattern in patterns:
            yield from sorted(Path(folder or ".").glob(pattern))
