"""Locks of other packages that a fork waits for, and the one thing about a lock that CPython keeps
to itself: how a child makes one free whose owner it does not have.
"""

from __future__ import annotations

import sys
from typing import Any


def foreign_locks() -> list[Any]:
    """The locks of Numba and llvmlite, as far as they are imported."""
    found = []
    numba = sys.modules.get("numba.core.compiler_lock")
    if numba is not None:
        found.append(getattr(getattr(numba, "global_compiler_lock", None), "_lock", None))
    llvmlite = sys.modules.get("llvmlite.binding.ffi")
    if llvmlite is not None:
        found.append(getattr(getattr(getattr(llvmlite, "lib", None), "_lock", None), "_lock", None))
    return [lock for lock in found if hasattr(lock, "acquire")]


def make_free(lock: Any) -> None:
    """In a child of a fork: `lock` is free, whoever had it; as `threading` does with its own."""
    lock._at_fork_reinit()
