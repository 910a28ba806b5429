"""Recording names: the changed functions while code is traced.

Ops know nothing of proxies.  While code is traced, the names of public functions (`flow.relu`,
`F.linear`, `math.sqrt`, and whatever they are called in the modules of the program and on the
modules that are traced) refer to functions that look for a proxy among their arguments; without one
they are what they were.  A function that is reached in another way (a dict, a closure, a default
value) turns proxies down, in words.  Parameters and buffers are proxies as well, so that what is
computed of them alone is part of the graph.

Other threads may compute meanwhile, with other models than the one that is traced.
"""

from __future__ import annotations

import functools
import math
import sys
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, ArgumentTypeError
from flowvm.fx.node import Node
from flowvm.fx.proxy import BOTH, COMPARED, Held, Proxy
from flowvm.guards.regions import Switched
from flowvm.loading.lazy import lazy
from flowvm.loading.listing import listing
from flowvm.nn import functional
from flowvm.nn.module import Module
from flowvm.nn.module_calls import forget, tell

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flowvm.fx.proxy import Recorder


__all__ = ["wrap"]
__dir__ = listing(globals())

_rooms = ("flowvm.special", "flowvm.linalg", "flowvm.fft")
_lazy = [lazy(name) for name in _rooms]
alone = threading.RLock()  # one thread traces at a time
Wrapped = TypeVar("Wrapped", bound="Callable[..., object] | str")
_wrapped: list[tuple[dict[str, object], str]] = []  # by `wrap`: a module's names that are leaves
_local = threading.local()


# public: fx
def wrap(fn_or_name: Wrapped) -> Wrapped:
    """Make calls of a function of this module single nodes of a trace: `wrap("name")` at the head
    of a file, or `@wrap`.

    >>> @flow.fx.wrap
    ... def rows(x):
    ...     return [x[k] for k in range(len(x))][0]
    >>> print(flow.fx.symbolic_trace(lambda x: rows(x) * 2).graph.find_nodes(op="call_function"))
    [rows, mul]
    """
    if not callable(fn_or_name) and not isinstance(fn_or_name, str):
        raise ArgumentTypeError(
            f"fx.wrap takes a function of this module or its name, got {fn_or_name!r}"
        )
    name = fn_or_name if isinstance(fn_or_name, str) else fn_or_name.__name__
    frame = sys._getframe(1)
    if frame.f_globals is not frame.f_locals:
        raise ArgumentError(f"fx.wrap({name!r}) stands at the top level of a module")
    _wrapped.append((frame.f_globals, name))
    return fn_or_name


def _spaces() -> Iterator[dict[str, Callable[..., object]]]:
    """Public functions by name."""
    spaces = [vars(module) for module in (sys.modules["flowvm"], functional, math)]
    spaces += [{name: getattr(module, name) for name in module.__all__} for module in _lazy]
    for space in spaces:
        names = space.get("__all__", space)
        names_in_space = {name: space.get(name) for name in names if not name.startswith("_")}
        yield {k: f for k, f in names_in_space.items() if callable(f) and not isinstance(f, type)}


def _first_proxy(args: Sequence[object], kwargs: Mapping[str, object]) -> Proxy | None:
    for value in (*args, *kwargs.values()):
        if isinstance(value, Proxy):
            return value
        if isinstance(value, (tuple, list)):
            inside = _first_proxy(value, {})
        elif isinstance(value, dict):
            inside = _first_proxy((), value)
        else:
            continue
        if inside is not None:
            return inside
    return None


def _recording(function: Callable[..., object]) -> Callable[..., object]:
    """Return a function that records a node for a call with proxies."""

    @functools.wraps(function)
    def called(*args: object, **kwargs: object) -> object:
        proxy = _first_proxy(args, kwargs)
        if proxy is None:
            return function(*args, **kwargs)
        return proxy.tracer.create_proxy("call_function", function, args, kwargs)

    return called


def _declining(method: Callable[..., object]) -> Callable[[object, object], object]:
    """Return an operator of Tensor that defers to the operator of a proxy."""

    @functools.wraps(method)
    def called(self: object, other: object) -> object:
        return NotImplemented if isinstance(other, Proxy) else method(self, other)

    return called


def _calling(inner: Callable[..., object]) -> Callable[..., object]:
    """Return a `Module.__call__` that asks the tracer of this thread."""

    def call(self: Module, *args: object, **kwargs: object) -> object:
        tracer = getattr(_local, "tracer", None)
        if tracer is None:
            return inner(self, *args, **kwargs)
        return tracer.call_module(self, functools.partial(inner, self), args, kwargs)

    return call


class Tracing(Switched):
    """Replace names by recording functions inside the with statement.  The statement holds
    `alone`.
    """

    def __init__(self, tracer: Any, root: object) -> None:
        self.tracer, self.root = tracer, root
        self._before: list[tuple[Callable[..., None], object, str, object]] = []
        self._tracer: Any = None

    def _switch(self) -> None:
        self._tracer = getattr(_local, "tracer", None)
        known: dict[int, Callable[..., object]] = {}
        for functions in _spaces():
            for function in functions.values():
                known.setdefault(id(function), _recording(function))
        more = [names[name] for names, name in _wrapped if name in names]
        for function in (*more, *self.tracer.autowrapped):
            known.setdefault(id(function), _recording(function))
        for names, _ in _wrapped:
            self._replace(names, known)
        for space in list(sys.modules.values()):
            path = getattr(space, "__name__", "")
            own = path in ("flowvm", *_rooms) or path.startswith("flowvm.nn.")
            if isinstance(space, types.ModuleType) and (own or not path.startswith("flowvm.")):
                self._replace(vars(space), known)
        for name in (*BOTH, *COMPARED):
            dunder = f"__{name.strip('_')}__"
            self._put(setattr, Tensor, dunder, _declining(getattr(Tensor, dunder)))
        if isinstance(self.root, Module):
            for kind in {kind for m in self.root.modules() for kind in type(m).__mro__}:
                for name, value in list(vars(kind).items()):
                    if isinstance(value, staticmethod) and id(value.__func__) in known:
                        self._put(setattr, kind, name, staticmethod(known[id(value.__func__)]))
            for path, module in self.root.named_modules():
                self._replace(module.__dict__, known)
                if not path or not self.tracer.is_leaf_module(module, path):
                    self._hold(module, path)
        tell(_calling, self)
        _local.tracer = self.tracer

    def _replace(self, names: dict[str, object], known: Mapping[int, object]) -> None:
        for name, value in list(names.items()):
            if id(value) in known:
                self._put(dict.__setitem__, names, name, known[id(value)])

    def _hold(self, module: Module, path: str) -> None:
        """Make proxies of the parameters and buffers of a module."""
        for table in (module._parameters, module._buffers):
            for name, tensor in table.items():
                if tensor is not None and name in module.__dict__:
                    held = _Later(self.tracer, f"{path}.{name}".lstrip("."), tensor)
                    self._put(dict.__setitem__, module.__dict__, name, held)

    def _put(
        self,
        how: Callable[..., None],
        where: type[Tensor] | type | Mapping[str, object],
        name: str,
        value: object,
    ) -> None:
        names = where if isinstance(where, dict) else vars(where)
        before = names[name] if name in names else getattr(where, name)
        self._before.append((how, where, name, before))
        how(where, name, value)

    def _undo(self) -> None:
        _local.tracer = self._tracer
        forget(self)
        while self._before:
            how, where, name, before = self._before[-1]
            how(where, name, before)
            self._before.pop()


class _Later(Held):
    """A parameter whose node is made at its first use."""

    def __init__(self, tracer: Recorder, path: str, tensor: Tensor) -> None:
        self.tracer, self._path, self.tensor = tracer, path, tensor
        self._node: Node | None = None

    @property
    def node(self) -> Node:  # type: ignore[override]
        """The node."""
        if self._node is None:
            self._node = self.tracer.create_node("get_attr", self._path, (), {})
        return self._node
