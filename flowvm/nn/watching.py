"""Which modules a capture ran, and whether they are still as they were.

While a thread captures, every Module that is called is noted, however the code reached it: as an
attribute, a closure's variable or a global.  A Plan holds as long as each of them has the
parameters, buffers and plain settings (training, p, eps, ...) that it was captured with.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from flowvm.nn.module import Module

__all__ = ["Watched", "watching"]

SETTINGS = (bool, int, float, str, tuple, type(None))

_lock = threading.Lock()
_plain = Module.__call__
_watchers = 0


class _Local(threading.local):
    seen: dict[int, Module] | None = None


_local = _Local()


def _noting(self: Module, *args: Any, **kwargs: Any) -> Any:
    if _local.seen is not None:
        _local.seen[id(self)] = self
    return _plain(self, *args, **kwargs)


@contextmanager
def watching() -> Iterator[dict[int, Module]]:
    """Note every module that this thread calls inside, by identity.

    Module.__call__ itself stays as short as it is: it is another function while somebody watches.
    """
    global _watchers
    with _lock:
        _watchers += 1
        Module.__call__ = _noting  # type: ignore[method-assign]
    seen: dict[int, Module] = {}
    _local.seen = seen
    try:
        yield seen
    finally:
        _local.seen = None
        with _lock:
            _watchers -= 1
            if not _watchers:
                Module.__call__ = _plain  # type: ignore[method-assign]


class Watched:
    """A module as it was: `holds()` while it still is.

    Only what was there is looked at, by name, because this is asked at every call of a graph.
    """

    __slots__ = ("_refs", "_settings", "_tensors", "_values", "module")

    def __init__(self, module: Module) -> None:
        own = module.__dict__
        names = [name for name, value in own.items() if isinstance(value, SETTINGS)]
        self.module = module
        self._settings = operator.itemgetter(*names, "training")  # at least two: it gives a tuple
        self._values = self._settings(own)
        self._tensors = [
            (table, name)
            for table in (module._parameters, module._buffers)
            for name, tensor in table.items()
            if tensor is not None
        ]
        self._refs = [table[name]._ref for table, name in self._tensors]  # type: ignore[union-attr]

    def holds(self) -> bool:
        """Whether settings, parameters and buffers are those of then."""
        try:
            if self._settings(self.module.__dict__) != self._values:
                return False
            refs = [table[name]._ref for table, name in self._tensors]  # type: ignore[union-attr]
        except (KeyError, AttributeError):  # something is gone, or None now
            return False
        return refs == self._refs
