"""`flow.backends.cudnn`: flowvm uses no cuDNN, its convolutions are its own kernels and cuBLAS.

`allow_tf32` says whether float32 convolutions on CUDA may use TF32.  `benchmark`,
`benchmark_limit`, `deterministic` and `enabled` are taken and kept; they change nothing:
convolutions are deterministic always, and nothing is tried out.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Final

from flowvm.backends._switches import with_switches
from flowvm.cuda import options
from flowvm.loading.listing import listing

__all__ = ["CUDNN_TENSOR_DTYPES", "flags", "is_acceptable", "is_available", "version"]
__dir__ = listing(globals())

CUDNN_TENSOR_DTYPES: Final[frozenset[object]] = frozenset()


def is_available() -> bool:
    """Return False: flowvm does not use cuDNN."""
    return False


def version() -> int | None:
    """Return None: there is no cuDNN."""
    return None


def is_acceptable(tensor: object) -> bool:
    """Return False: cuDNN computes with no tensor here."""
    return False


def flags(
    enabled: bool = False,
    benchmark: bool = False,
    benchmark_limit: int = 10,
    deterministic: bool = False,
    allow_tf32: bool = True,
    **others: object,
) -> AbstractContextManager[Any]:
    """Return a context manager that sets these switches."""
    settings = {
        "enabled": enabled,
        "benchmark": benchmark,
        "benchmark_limit": benchmark_limit,
        "deterministic": deterministic,
        "allow_tf32": allow_tf32,
    }
    return options.Setting(options.convolution, settings)


with_switches(__name__, options.convolution)
