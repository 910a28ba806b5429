"""The listeners of module calls: captures, and the profiler.

`Module.__call__` itself stays as short as it is.  While somebody wants to be told, it is another
function, which a *maker* makes of the one below it; without any it is the plain one again.

From level 2 on the profiler is told: the plain one is one that notes which instructions were issued
inside (`flowvm.vm.callers.scopes`).  A module goes by its path below the outermost module that was
called: `Net.layers.0.attention`; a second `Net` that is alive is `Net(2)`.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from itertools import count
from threading import get_ident
from types import FrameType
from typing import Any

from flowvm.eager.native.functions import noted_module_call
from flowvm.errors import FlowError
from flowvm.guards.collection import Uncollected
from flowvm.guards.forks import Rank, held_at_fork
from flowvm.nn.hooks import call_with_hooks, hooked
from flowvm.nn.module import NOTHING, Module, leave
from flowvm.private.cpython import CPYTHON, next_of
from flowvm.vm.callers.hot import hot
from flowvm.vm.callers.scopes import NEVER
from flowvm.vm.engine.engine import engine
from flowvm.vm.watch.purposes import made_for

Call = Callable[..., Any]
Maker = Callable[[Call], Call]

_lock = held_at_fork(threading.Lock())
_naming = held_at_fork(threading.RLock(), Rank.VM)
_level = 0
_plain = Module.__call__
_askers: dict[object, Maker] = {}  # who asked: for what


def tell(maker: Maker, asker: object) -> None:
    """Have modules called by what `maker` makes of a call: once, however many ask for it."""
    with _lock:
        _askers[asker] = maker
        _install()


def forget(asker: object) -> None:
    """Take back what `asker` asked for, if it did."""
    with _lock:
        _askers.pop(asker, None)
        _install()


def _install() -> None:
    call: Call = _call if _level >= 2 else _plain
    for maker in dict.fromkeys(_askers.values()):
        call = maker(call)
    Module.__call__ = call  # type: ignore[method-assign]


# --- the profiler ---------------------------------------------------------------------------------


class Paths:
    """The paths of modules, by identity; a module that dies is forgotten."""

    def __init__(self) -> None:
        self.known: dict[int, str] = {}
        self._dying: dict[int, weakref.ref[Module]] = {}
        self._roots: dict[str, set[int]] = {}  # numbers of living modules that are nobody's
        self.numbers: dict[int, int] = {}  # of their paths, by identity
        self.names: dict[int, str] = {}  # every path that there ever was, by number
        self._numbered: dict[str, int] = {}
        self._next = count()

    def add(self, module: Module, root: Module | None) -> str:
        """The path of a module that is not known, called inside `root` or, if that is None, by the
        user.
        """
        with _naming:
            return self.known.get(id(module)) or self._add(module, root)

    def _add(self, module: Module, root: Module | None) -> str:
        if root is not None:
            self._add_below(root, self.known[id(root)])
            if id(module) in self.known:
                return self.known[id(module)]
        name = type(module).__name__
        numbers = self._roots.setdefault(name, set())
        number = next(n for n in range(1, len(numbers) + 2) if n not in numbers)
        numbers.add(number)
        self._name(module, name if number == 1 else f"{name}({number})", (numbers, number))
        self._add_below(module, self.known[id(module)])
        return self.known[id(module)]

    def _add_below(self, root: Module, path: str) -> None:
        """Name what is below; the deeper path is the better one: it has the larger tree."""
        for below, module in root.named_modules(prefix=path):
            before = self.known.get(id(module))
            if before is None or before.count(".") < below.count("."):
                self._name(module, below, None)

    def _name(self, module: Module, path: str, root: tuple[set[int], int] | None) -> None:
        known, numbers, dying, key = self.known, self.numbers, self._dying, id(module)

        def gone(ref: weakref.ref[Module]) -> None:
            if root is not None:
                root[0].discard(root[1])
            if dying.get(key) is ref:
                known.pop(key, None)
                numbers.pop(key, None)
                dying.pop(key, None)

        known[key] = path
        number = self._numbered.get(path)
        if number is None:
            number = next(self._next)
            self.names[number] = path
            self._numbered[path] = number
        numbers[key] = number
        for own in (module._parameters, module._buffers):
            for name, tensor in own.items():
                if tensor is not None:
                    made_for(tensor, "param", f"{path}.{name}")
        if root is not None or key not in dying:
            dying[key] = weakref.ref(module, gone)


paths = Paths()
_note, _known = engine.flight.scopes.calls.append, paths.known


def _noted(self: Module, input: object = NOTHING, /, *args: object, **kwargs: object) -> object:
    """`Module.__call__`, noted when it is over: where calls are not native, and what those leave.
    In one place, for a function more, and two notes in place of one, would each be felt.  What
    comes next is read as `issued` does, whose question whether it may be is asked when this is
    installed.
    """
    path = _known.get(id(self)) or paths.add(self, _outermost())
    first = next_of(hot["counter"])
    try:
        if not (hooked or args or kwargs or input is NOTHING):
            return self.forward(input)
        if input is not NOTHING:
            args = (input, *args)
        if self._hooks is None:
            return self.forward(*args, **kwargs)
        return call_with_hooks(self, self._hooks, args, kwargs)
    except FlowError as error:
        leave(error, self)
        raise
    finally:
        _note((first, next_of(hot["counter"]), get_ident(), path))


def _added(module: Module) -> int:
    """The number of the path of a module that is not known, for its native call."""
    paths.add(module, _outermost())
    return paths.numbers[id(module)]


_call = noted_module_call(_noted, _plain, leave, hooked, paths.numbers, _added)


def _calls_of(frame: FrameType | None) -> Iterator[dict[str, Any]]:
    """The variables of the noted calls that run in a frame or around it, the innermost first."""
    while frame is not None:
        if frame.f_code is _noted.__code__:
            yield frame.f_locals
        frame = frame.f_back


def _outermost() -> Module | None:
    """The outermost module around the one that is being called."""
    root: Module | None = None
    for call in _calls_of(sys._getframe(2)):
        root = call["self"]
    return engine.flight.scopes.outermost() if root is None else root


def _running() -> list[tuple[int, int, int, str]]:
    """The calls that are not over in any thread, as if they never were, the innermost first."""
    with Uncollected():
        return [
            (call["first"], NEVER, thread, call["path"])
            for thread, frame in sys._current_frames().items()
            for call in _calls_of(frame)
            if "first" in call
        ]


engine.flight.scopes.running, engine.flight.scopes.names = _running, paths.names


def _on_level(level: int) -> None:
    global _level
    if level >= 2:
        CPYTHON.require("counter")
    with _lock:
        _level = level
        _install()


engine.flight.on_level.append(_on_level)
_on_level(engine.flight.level)
