"""llvmlite's private names: the lock of all calls of LLVM, the disposal of its pass managers, and
the builder's insertion.

`LLVMLITE` is the table.  llvmlite takes its lock by Python code, around each call, and its objects
make such calls when they are collected, on whatever thread that is.  An exception of a signal's
handler that comes between leaves the lock taken, and nobody compiles any more.
"""

from __future__ import annotations

import functools
from types import FunctionType
from typing import TYPE_CHECKING, Any

from flowvm.guards.locks import held
from flowvm.private.table import Package, Use, found_at

if TYPE_CHECKING:
    from flowvm.private.code_types import Builder, Value

TESTED = ("0.48.0", "0.50.0")
_WRAPPER = "llvmlite.binding.ffi:_lib_fn_wrapper"


def _reads_otherwise() -> str:
    """Return the reason why a call differs from the one for which `_called` was written, or ""."""
    call = getattr(found_at(_WRAPPER).__call__, "__wrapped__", found_at(_WRAPPER).__call__)
    lock = found_at("llvmlite.binding.ffi:lib._lock")
    named = set(call.__code__.co_names)
    if named != {"_lock", "_cfn"}:
        return f"a call uses {', '.join(sorted(named))}"
    missing = [name for name in ("_lock", "_cblist") if not hasattr(lock, name)]
    if missing:
        return f"its lock has no {', '.join(missing)}"
    return "" if hasattr(lock._lock, "_is_owned") else f"its lock is on {lock._lock!r}"


LLVMLITE = Package(
    "llvmlite",
    TESTED,
    (
        Use(
            "calls",
            _WRAPPER,
            "takes a lock by Python code, which an exception of a signal may leave taken",
            ("__call__", "_lock", "_cfn"),
            probe=_reads_otherwise,
            optional=True,
        ),
        Use(
            "pass_manager",
            "llvmlite.binding.newpassmanagers:NewPassManager",
            "frees LLVM's pass managers",
            ("_dispose",),
            optional=True,
        ),
        Use(
            "builder",
            "llvmlite.ir.builder:IRBuilder",
            "puts an instruction of another class where the builder is",
            ("_insert",),
        ),
    ),
)


@functools.cache
def mend_calls() -> bool:
    """Let llvmlite hold its lock so that no exception leaves it taken.  Return True if that was
    done.

    Where llvmlite is not as tested nothing is changed: then `flowvm.guards.apart` gives back what
    the main thread has left taken.
    """
    if any(standing.why for standing in LLVMLITE.report() if standing.use.name == "calls"):
        return False
    wrapper = LLVMLITE.calls
    # another function of that code: keys of compiled code have `_called`, which must not change
    mended = FunctionType(_called.__code__, _called.__globals__)
    wrapper.__call__ = functools.update_wrapper(mended, wrapper.__call__)
    return True


def _called(self: Any, *args: object, **kwargs: object) -> object:
    """Call a function of LLVM with llvmlite's lock held."""
    lock = self._lock
    with held(lock._lock):
        if not lock._cblist:
            return self._cfn(*args, **kwargs)
        for callback, _ in lock._cblist:
            callback()
        try:
            return self._cfn(*args, **kwargs)
        finally:
            for _, given_back in lock._cblist:
                given_back()


def insert(builder: Builder, instruction: Value) -> None:
    """Put an instruction that llvmlite has no method for where the builder is."""
    LLVMLITE.builder._insert(builder, instruction)


def free_passes(manager: Any) -> None:
    """Free a pass manager of llvmlite, which has run.

    It is never freed: its class finds the `_dispose` of another base first, which does nothing.
    So 30 to 60 KB would stay of each.
    """
    if LLVMLITE.usable("pass_manager"):
        LLVMLITE.pass_manager._dispose(manager)
        manager.detach()
