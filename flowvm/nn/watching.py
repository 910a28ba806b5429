"""Which modules a capture ran, and whether they are still as they were.

While a thread captures, every Module that is called is noted, however the code reached it: as an
attribute, a closure's variable or a global.  A Plan holds as long as each of them has the
parameters, buffers and plain settings (training, p, eps, ...) that it was captured with.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from flowvm.nn.module import Module

__all__ = ["state_of", "watching"]

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


def state_of(module: Module) -> list[Any]:
    """What a Plan depends on of a module itself: settings, parameters and buffers."""
    own = module.__dict__
    found = [value for value in own.values() if isinstance(value, SETTINGS)]
    found += [None if p is None else p._ref for p in module._parameters.values()]
    found += [None if b is None else b._ref for b in module._buffers.values()]
    return found
