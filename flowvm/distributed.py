"""`flow.distributed`: one process computes; what asks hears so, what would need several raises.

Programs ask `is_available() and is_initialized()` before they use it, and run as one rank.
"""

from __future__ import annotations

from typing import Any

from flowvm.errors import MissingNameError
from flowvm.vm.callers.tracebacks import border

__all__ = [
    "is_available",
    "is_gloo_available",
    "is_initialized",
    "is_mpi_available",
    "is_nccl_available",
    "is_torchelastic_launched",
    "is_ucc_available",
    "is_xccl_available",
]


def is_available() -> bool:
    """Whether there are process groups: never."""
    return False


def is_initialized() -> bool:
    """Whether there is a process group: never."""
    return False


def is_mpi_available() -> bool:
    """Whether MPI can be used: never."""
    return False


def is_nccl_available() -> bool:
    """Whether NCCL can be used: never."""
    return False


def is_gloo_available() -> bool:
    """Whether Gloo can be used: never."""
    return False


def is_ucc_available() -> bool:
    """Whether UCC can be used: never."""
    return False


def is_xccl_available() -> bool:
    """Whether XCCL can be used: never."""
    return False


def is_torchelastic_launched() -> bool:
    """Whether this process was started as one of several: not by flowvm."""
    return False


@border
def __getattr__(name: str) -> Any:
    raise MissingNameError(
        f"flowvm.distributed has no {name!r}: flowvm computes in one process, on its threads and "
        f"one device a tensor; is_available() answers False, so that programs run as one rank",
        name,
    )
