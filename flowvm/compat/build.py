"""`torch.__config__`: flowvm's build in a few lines."""

from __future__ import annotations

import platform

from flowvm.streams import get_num_threads
from flowvm.version import __version__


def show() -> str:
    """Return a text about flowvm's build: its packages, and the processor for which kernels are
    compiled.
    """
    return (
        f"flowvm {__version__}: kernels compiled by Numba when they are first used, for "
        f"{platform.machine()}; LAPACK is enabled (SciPy's); there is no MKL, no CUDA toolkit"
    )


def parallel_info() -> str:
    """Return a text with the number of computing threads."""
    return f"flowvm:\n\tget_num_threads() : {get_num_threads()}"
