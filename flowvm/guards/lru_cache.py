"""Caches by shape, bounded by bytes: the entries unused for longest are dropped first.

Every new shape leaves entries behind: metas, the entries of calls.  Such a cache is an `LRUCache`,
two dicts.  Look-ups go to `young`, a plain dict in which a hit records nothing.  When all `young`
together exceed half of `config.kept_bytes`, their entries become `old`, and the old ones unused
since are dropped.  A miss that finds its key in `old` moves it back.  So used entries are never
dropped, and a hit costs a look-up in a dict.

Functions of shapes that give no more than a few numbers use `lru_cached`: an LRU cache of Python's
with so many places that their bytes do not matter.

Bytes are estimates by the kind of object; `flow.vm.stats()` shows them.  A user of a dropped entry
keeps it alive by its own reference; nothing here frees anything.  Some keys must not have two
objects (`one_each`: metas are compared by identity): there, a dropped entry that is still in use is
found again.
"""

from __future__ import annotations

import ctypes
import functools
import threading
import weakref
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from flowvm.config import config
from flowvm.guards.forks import Rank, held_at_fork

if TYPE_CHECKING:
    from collections.abc import Mapping


PLACES = 1 << 11  # of an `lru_cached` function
RESULT_BYTES = 1200  # of one of its results, about, with the key
_Function = TypeVar("_Function", bound=Callable[..., object])

_lock = held_at_fork(threading.RLock(), Rank.VM)
_all: weakref.WeakSet[LRUCache] = weakref.WeakSet()
_functions: list[Any] = []
_dropped: Counter[str] = Counter()
_young_bytes = 0  # of all of them
clearings = (ctypes.c_int64 * 1)()  # how often some `young` was cleared, for native calls


class LRUCache:
    """One cache; `group` is its name in the statistics, which caches may share.

    With `one_each` there is never a second object for a key whose first is still in use.
    """

    def __init__(self, group: str, one_each: bool = False) -> None:
        self.group = group
        self.one_each = one_each
        self.young: dict[Any, Any] = {}  # always this very object
        self.old: dict[object, object] = {}
        self.young_bytes = self.old_bytes = 0
        self.each: dict[object, int] = {}  # bytes of every key of both
        # dropped, with their bytes; no callbacks: a tensor's death may run no Python code
        self.gone: dict[object, tuple[weakref.ref[object], int]] = {}
        with _lock:  # or an iteration over the caches would see their number change
            _all.add(self)

    def find(self, key: object) -> Any:
        """Return the value cached for `key` and make it young; None if there is none."""
        value = self.young.get(key)
        if value is None and (key in self.old or key in self.gone):
            with _lock:
                value = self.old.pop(key, None)
                if value is not None:
                    nbytes = self.each[key]
                    self.old_bytes -= nbytes
                else:
                    gone, nbytes = self.gone.pop(key, (_nothing, 0))
                    value = gone()
                    if value is None:
                        return self.young.get(key)
                    self.each[key] = nbytes
                self._count(nbytes)
                self.young[key] = value
        return value

    def put(self, key: object, value: object, nbytes: int) -> Any:
        """Cache `value`, which takes `nbytes`, unless another thread was first.  Return the cached
        value.
        """
        with _lock:
            first = self.find(key)
            if first is not None:
                return first
            if _young_bytes + nbytes > config.kept_bytes // 2:
                drop_old()
            self.young[key], self.each[key] = value, nbytes
            self._count(nbytes)
        return value

    def replace(self, key: object, value: object) -> None:
        """Replace the value cached for `key`, if there still is one."""
        with _lock:
            if self.find(key) is not None:
                self.young[key] = value

    def _count(self, nbytes: int) -> None:
        global _young_bytes
        self.young_bytes += nbytes
        _young_bytes += nbytes

    def forget(self) -> None:
        """Drop all entries."""
        with _lock:
            self._count(-self.young_bytes)
            _dropped[self.group] += len(self.each)
            self.old_bytes = 0
            self._let_go({**self.old, **self.young})
            self.old, self.each = {}, {}
            self._clear()

    def _age(self) -> list[object]:
        """Turn young entries to old ones.  Return the dropped entries, which the caller releases at
        the end.
        """
        dropped = self.old
        _dropped[self.group] += len(dropped)
        self._let_go(dropped)
        for key in dropped:
            del self.each[key]
        self.old, self.old_bytes = dict(self.young), self.young_bytes
        self._clear()
        self._count(-self.young_bytes)
        return [dropped]

    def _clear(self) -> None:
        self.young.clear()
        clearings[0] += 1

    def _let_go(self, dropped: Mapping[object, object]) -> None:
        """Remember dropped entries as long as somebody uses them."""
        if self.one_each:
            used = {key: one for key, one in self.gone.items() if one[0]() is not None}
            for key, value in dropped.items():
                used[key] = weakref.ref(value), self.each[key]
            self.gone = used


def _nothing() -> None:
    return None


def drop_old() -> None:
    """Drop the entries unused for longest; young entries become old."""
    with _lock:
        dropped = [cache._age() for cache in list(_all)]
    del dropped  # last, and with no lock: it may have finalizers


def lru_cached(group: str) -> Callable[[_Function], _Function]:
    """Decorate a function of shapes: cache its latest results."""

    def decorate(function: _Function) -> _Function:
        cached: Any = functools.lru_cache(PLACES)(function)
        _functions.append((group, cached))
        return cached  # type: ignore[no-any-return]

    return decorate


def group_sizes() -> dict[str, int]:
    """Return, for each group, the number of entries, their bytes, and the number dropped."""
    count: Counter[str] = Counter()
    nbytes: Counter[str] = Counter()
    dropped = Counter(_dropped)
    with _lock:
        for one in list(_all):
            count[one.group] += len(one.each)
            nbytes[one.group] += one.young_bytes + one.old_bytes
    for group, function in _functions:
        info = function.cache_info()
        count[group] += info.currsize
        nbytes[group] += info.currsize * RESULT_BYTES
        dropped[group] += info.misses - info.currsize
    entries: dict[str, int] = {}
    for group in sorted(count):
        entries[f"{group}_kept"] = count[group]
        entries[f"{group}_kept_bytes"] = nbytes[group]
        entries[f"{group}_dropped"] = dropped[group]
    return entries
