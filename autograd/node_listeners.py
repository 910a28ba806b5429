"""Being told of every node as it is made.

`Node.__init__` stays as it is while nobody asks; the first hook puts another function in its place
and the last one takes it away, for all threads.  A hook says itself which threads it is for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from flowvm.eager.nodes import Node, askers
from flowvm.guards.forks import held_at_fork

Hook = Callable[[Node], None]

_lock = held_at_fork(threading.Lock())
_plain = Node.__init__


def _telling(node: Node, *args: Any, **kwargs: Any) -> None:
    _plain(node, *args, **kwargs)
    for hook in dict.fromkeys(askers.values()):
        hook(node)


def tell(hook: Hook, asker: object) -> None:
    """Call `hook` with every node that is made from now on: once, however many ask for it."""
    with _lock:
        askers[asker] = hook
        _install()


def forget(asker: object) -> None:
    """Withdraw the request of `asker`, if it made one."""
    with _lock:
        askers.pop(asker, None)
        _install()


def is_told(hook: Hook) -> bool:
    """Return True if `hook` is registered."""
    return hook in askers.values()


def _install() -> None:
    init = _telling if askers else _plain
    setattr(Node, "__init__", init)  # noqa: B010 - mypy minds an assignment
