"""Locks of other packages: their list, their owners, and their release.

A fork waits for some of them (`flowvm.guards.forks`).  Any of them may be left taken: if a package
takes a lock by Python code, an exception of a signal handler may come before its release.  A
waiting thread then reports the owners, and a thread releases the locks that it has left taken
(`flowvm.guards.apart`).
"""

from __future__ import annotations

import _imp
import logging
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from types import ModuleType


_OWNER = re.compile(
    r"<locked .*RLock object owner=(\d+) "
)  # of an RLock, which says it nowhere else


class Taken(NamedTuple):
    """A lock that a thread has; `owner` is the thread's number, 0 if it is unknown."""

    name: str
    owner: int
    release: Callable[[], object]
    users: tuple[str, ...]  # a frame of these files on the owner's stack may rightly hold the lock


def foreign_locks() -> list[object]:
    """The locks of Numba and llvmlite, as far as they are imported."""
    locks = []
    numba = sys.modules.get("numba.core.compiler_lock")
    if numba is not None:
        locks.append(getattr(getattr(numba, "global_compiler_lock", None), "_lock", None))
    llvmlite = sys.modules.get("llvmlite.binding.ffi")
    if llvmlite is not None:
        locks.append(getattr(getattr(getattr(llvmlite, "lib", None), "_lock", None), "_lock", None))
    return [lock for lock in locks if hasattr(lock, "acquire")]


def make_free(lock: Any) -> None:
    """Free `lock` in a forked child, whoever had it, as `threading` does with its own."""
    lock._at_fork_reinit()


def held_locks() -> Iterator[Taken]:
    """Locks of Numba, llvmlite, `logging` and the imports that some thread has now."""
    numba = (_folder("numba"), *(os.path.join(*p) for p in (("compiler", "native.py"),
             ("compiler", "frontend.py"))))  # fmt: skip
    kinds = (("Numba's", numba), ("llvmlite's", (_folder("llvmlite"),)))
    for lock in foreign_locks():
        whose, users = kinds[0] if _is_numbas(lock) else kinds[1]
        yield from _owned_lock(f"{whose} lock", lock, users)
    files = (logging.__file__,)
    yield from _owned_lock("the lock of logging", getattr(logging, "_lock", None), files)
    for handler in map(_target, list(getattr(logging, "_handlerList", ()))):
        yield from _owned_lock(f"the lock of {handler!r}", getattr(handler, "lock", None), files)
    importing = ("importlib._bootstrap", _folder("importlib"))
    if _imp.lock_held():
        yield Taken("the lock of imports", 0, _imp.release_lock, importing)
    for name, reference in list(getattr(_bootstrap(), "_module_locks", {}).items()):
        lock = reference()
        if owner := getattr(lock, "owner", None):
            yield Taken(f"the import lock of {name}", int(owner), lock.release, importing)


def give_back() -> list[str]:
    """Release the locks that this thread has and none of its frames is using.  Return their names.

    An exception came between taking it and its use.
    """
    own, names = threading.get_ident(), []
    files = list(_files(sys._getframe(1)))
    for one in held_locks():
        if one.owner not in (0, own) or any(user in file for user in one.users for file in files):
            continue
        try:
            one.release()
            names.append(one.name)
            while True:  # as often as it was taken
                one.release()
        except RuntimeError:  # it is not this thread's, or not any more
            pass
    return names


def owner_of(lock: object) -> int:
    """The number of the thread that has an RLock, 0 if none has it or it cannot be told."""
    match = _OWNER.match(repr(lock))
    return int(match[1]) if match else 0


def _owned_lock(name: str, lock: Any, users: tuple[str, ...]) -> Iterator[Taken]:
    if owner := owner_of(lock):
        yield Taken(name, owner, lock.release, users)


def _is_numbas(lock: object) -> bool:
    numba = sys.modules.get("numba.core.compiler_lock")
    return lock is getattr(getattr(numba, "global_compiler_lock", None), "_lock", None)


def _target(reference: object) -> object:
    return reference() if callable(reference) else None


def _bootstrap() -> ModuleType | None:
    return sys.modules.get("_frozen_importlib")


def _folder(package: str) -> str:
    return f"{os.sep}{package}{os.sep}"


def _files(frame: FrameType | None) -> Iterator[str]:
    while frame is not None:
        yield frame.f_code.co_filename
        frame = frame.f_back
