"""The Python interpreter that imports flowvm."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Final

from flowvm.errors import InterpreterError

_HAS_LOCK: Final[Callable[[], bool]] = getattr(sys, "_is_gil_enabled", lambda: True)


def need_global_lock(has_lock: Callable[[], bool] = _HAS_LOCK) -> None:
    """Raise InterpreterError if threads run Python code at once. flowvm relies on CPython's global
    lock; without it values could be wrong in silence.
    """
    if not has_lock():
        raise InterpreterError(
            "flowvm needs CPython's global lock, and this is free-threaded Python "
            f"{sys.version.split()[0]} with the lock off; start it with PYTHON_GIL=1 or -X gil=1, "
            "or use the usual build of CPython"
        )
