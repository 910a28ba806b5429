"""Finding NVIDIA's libraries: by cuda.pathfinder, in CuPy's and NVIDIA's wheels, by the system.

The first that loads is taken.  Only cuBLAS and NCCL are looked for: what else flowvm computes on a
device, its own kernels compute.  Nothing of CuPy is imported: its libraries are found as files.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple


class Library(NamedTuple):
    """Places to look for a library.  Patterns of files in Python's import folders and in the user's
    folder; names for the system's loader. {major} is the driver's CUDA version.
    """

    packages: tuple[str, ...]
    home: tuple[str, ...]
    names: tuple[str, ...]


LIBRARIES = {
    "cublas": Library(
        # the place of nvidia-cublas-cu12 and of NVIDIA's wheels for CUDA 13; CuPy's
        (
            "nvidia/cublas/lib/libcublas.so.1[0-9]",
            "nvidia/cu1[0-9]/lib/libcublas.so.1[0-9]",
            "cupy/.data/lib/libcublas.so.1[0-9]",
        ),
        (),
        ("libcublas.so.{major}", "libcublas.so.13", "libcublas.so.12", "libcublas.so"),
    ),
    "nccl": Library(
        # CuPy's own; the wheel that it depends on; its extension module, which leads to the
        # library that it was linked with
        (
            "cupy/.data/lib/libnccl.so.2*",
            "nvidia/nccl/lib/libnccl.so.2",
            "cupy_backends/cuda/libs/nccl.*.so",
        ),
        # the output of `python -m cupyx.tools.install_library --library nccl`
        (".cupy/cuda_lib/{major}.*/nccl/*/lib/libnccl.so.2",),
        ("libnccl.so.2", "libnccl.so"),
    ),
}


def load_library(library: str, version: int) -> ctypes.CDLL:
    """Load a library for a driver of CUDA `version` (12040 is 12.4).  OSError lists the files
    tried.
    """
    tried = []
    for name, load in _candidates(library, version // 1000):
        try:
            return load()
        except Exception as error:  # pathfinder has exceptions of its own
            tried.append(f"{name}: {type(error).__name__}")
    raise OSError("tried " + ", ".join(tried))


def _candidates(library: str, major: int) -> Iterator[tuple[str, Callable[[], ctypes.CDLL]]]:
    yield "cuda.pathfinder", lambda: _by_pathfinder(library)
    for path in _in_folders(LIBRARIES[library], major):
        yield str(path), lambda path=path: ctypes.CDLL(str(path))  # type: ignore[misc]
    for name in LIBRARIES[library].names:
        name = name.format(major=major)
        yield name, lambda name=name: ctypes.CDLL(name)  # type: ignore[misc]


def _by_pathfinder(library: str) -> ctypes.CDLL:
    from cuda.pathfinder import load_nvidia_dynamic_lib

    path = load_nvidia_dynamic_lib(library).abs_path
    if path is None:
        raise OSError(f"cuda.pathfinder gives no path of the library {library}")
    return ctypes.CDLL(path)


def _in_folders(of: Library, major: int) -> Iterator[Path]:
    for folder in dict.fromkeys(sys.path):
        for pattern in of.packages:
            yield from sorted(Path(folder or ".").glob(pattern))
    for pattern in of.home:
        yield from sorted(Path.home().glob(pattern.format(major=major)))
