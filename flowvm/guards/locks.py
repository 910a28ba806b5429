"""Locks that no exception leaves taken.

`with lock:` of a lock written in C is safe up to Python 3.13: nothing comes between taking the lock
and the block.  As of 3.14 the handler of a signal may raise there, and a lock whose `__enter__` is
Python code was never safe.  `held(lock)` is safe in all versions, as `flowvm.guards.regions` is:
the lock is taken by one call of C code, and given back when the frame drops what it holds.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import partial
from itertools import compress
from typing import Any
from weakref import ref

# Takes whatever a with statement gives its `__exit__`, does nothing, and answers something false.
_nothing = "".format


class _Statement:
    """The two methods of one with statement, which looks them up without a step of Python."""

    __slots__ = ("__enter__", "__exit__")


def held(lock: Any) -> AbstractContextManager[object]:
    """Return a context manager for one with statement, in which this thread has `lock`.

    `lock` is a `threading.Lock` or `threading.RLock`.  Whatever exception comes, at any moment, the
    lock is given back, once.

    >>> import threading
    >>> lock = threading.Lock()
    >>> with held(lock):
    ...     lock.locked()
    True
    >>> lock.locked()
    False
    """
    locks: list[object] = []
    statements: list[Any] = [
        _Statement()
    ]  # no variable: a debugger that keeps this frame would have it
    statements[0].__exit__ = partial(_nothing, locks)  # it keeps the contents of the list
    # The weak reference comes into `locks` only if the lock was taken: that is one call of C code.
    # Else it goes with `__enter__`, before `__exit__` does, and is not called.
    statements[0].__enter__ = partial(
        locks.extend,
        compress(
            (ref(statements[0].__exit__, partial(lock.__exit__, 0)),), map(lock.acquire, (True,))
        ),
    )
    return statements.pop()  # type: ignore[no-any-return]
