"""Being told of every node as it is made.

`Node.__init__` stays as it is while nobody asks; the first hook puts another function in its place
and the last one takes it away, for all threads.  A hook says itself which threads it is for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from flowvm.eager.nodes import Node

Hook = Callable[[Any], None]

_lock = threading.Lock()
_plain = Node.__init__
_hooks: dict[Hook, int] = {}  # to how often it was asked for


def _telling(node: Node, *args: Any, **kwargs: Any) -> None:
    _plain(node, *args, **kwargs)
    for hook in tuple(_hooks):
        hook(node)


def tell(hook: Hook) -> None:
    """Call `hook` with every node that is made from now on: once, however often this is asked."""
    with _lock:
        _hooks[hook] = _hooks.get(hook, 0) + 1
        _install()


def forget(hook: Hook) -> None:
    """Undo one `tell`."""
    with _lock:
        _hooks[hook] -= 1
        if not _hooks[hook]:
            del _hooks[hook]
        _install()


def is_told(hook: Hook) -> bool:
    """Whether `hook` is called."""
    return hook in _hooks


def _install() -> None:
    setattr(Node, "__init__", _telling if _hooks else _plain)  # noqa: B010 - mypy minds an assignment
