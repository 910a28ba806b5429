"""The report of a kernel that its data cannot be used: details first, then the status.

Several threads may report, and each of them is right.  The instruction fails with the details that
are there in the end.
"""

from __future__ import annotations

from typing import Any

from numba import cuda

from flowvm.cuda.launch import STATUS_AT

OUTSIDE = 1  # flowvm.errors.Status.INDEX_OUT_OF_RANGE: index, size, dimension


def report(details: Any, status: int, a: int, b: int, c: int) -> None:
    """Fail the instruction with `status` and these details."""
    details[0], details[1], details[2] = a, b, c
    cuda.threadfence_system()
    details[STATUS_AT] = status
