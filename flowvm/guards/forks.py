"""Locks that a fork takes, so that a child finds nothing half done.

A child has one thread, and memory as of one moment, in the middle of other threads' work.  A lock
that one of them had is never free again, and the data that it guards is half written.  So the maker
of a lock declares here that a fork must wait for it.  The forking thread takes all these locks in
the order of their ranks, and releases them in the parent and in the child.  Numba's and llvmlite's
locks are taken with them.

A lock is taken in the order of ranks elsewhere, too; within a rank no thread takes a second one.
"""

from __future__ import annotations

import time
import weakref
from enum import IntEnum
from typing import Any, TypeVar

from flowvm.private.locks import foreign_locks, make_free

_Lock = TypeVar("_Lock")


class Rank(IntEnum):
    """The order in which locks are taken."""

    GRAPH = 0  # held while a graph is captured and compiled
    MODULE = 1  # held while a lazy module gets its parameters
    VM = 2
    COMPILER = 3
    FOREIGN = 4  # Numba's and llvmlite's
    LEAF = 5  # held for a few lines that take no other and issue nothing


_ranks: weakref.WeakKeyDictionary[Any, Rank] = weakref.WeakKeyDictionary()


def held_at_fork(lock: _Lock, rank: Rank = Rank.LEAF) -> _Lock:
    """Return `lock`, for which forks wait from now on, as long as it is referenced."""
    _ranks[lock] = rank
    return lock


class Held:
    """The locks that a fork has taken, and the locks that it did not get."""

    def __init__(self) -> None:
        self.locks: list[Any] = []
        self.missed: list[object] = []

    def take(self, leaves: bool, until: float) -> bool:
        """Take the leaf locks, or all others.  Wait until the moment `until` of the monotonic
        clock.  Return True if all were taken.
        """
        known = [lock for one in _ranks.keyrefs() if (lock := one()) is not None]
        ranked = [(lock, _ranks[lock]) for lock in known]
        ranked += [(lock, Rank.FOREIGN) for lock in foreign_locks()]
        for lock, rank in sorted(ranked, key=lambda item: item[1]):
            if (rank == Rank.LEAF) is not leaves:
                continue
            if lock.acquire(timeout=max(0.0, until - time.monotonic())):
                self.locks.append(lock)
            else:
                self.missed.append(lock)
        return not self.missed

    def let_go(self, in_child: bool = False) -> None:
        """Release the locks.  In a child, also free the locks of threads that it does not have."""
        if in_child:
            for lock in self.missed:
                make_free(lock)
        while self.locks:
            self.locks.pop().release()
        self.missed = []
