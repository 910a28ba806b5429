"""Proxies: the values of traced code; each operation on one makes a node."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from flowvm.errors import TraceError
from flowvm.fx.node import Node
from flowvm.loading.listing import listing
from flowvm.private.cpython import unpacked

if TYPE_CHECKING:
    from flowvm.eager.tensor import Tensor

__all__ = ["Attribute", "Proxy"]
__dir__ = listing(globals())


class Recorder(Protocol):
    """The methods of a Tracer that its proxies call."""

    def create_proxy(
        self, kind: str, target: object, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> Proxy: ...

    def create_node(
        self, kind: str, target: object, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> Node: ...

    def getattr(self, obj: Proxy, name: str) -> Proxy: ...

    def iter(self, obj: Proxy) -> Iterator[object]: ...

    def to_bool(self, obj: Proxy) -> bool: ...

    def keys(self, obj: Proxy) -> object: ...


# public: fx
class Proxy:
    """An unknown value: it stands for the result of `node`.

    Its methods, attributes and operators are recorded.  Code that needs the value itself (an `if`,
    a loop over it, `len`) raises TraceError.

    >>> def sign(x):
    ...     return 1 if x.sum() > 0 else -1
    >>> flow.fx.symbolic_trace(sign)
    Traceback (most recent call last):
        ...
    flowvm.errors.TraceError: symbolically traced variables cannot be used as inputs to ...
    """

    def __init__(self, node: Node, tracer: Recorder) -> None:
        self.node, self.tracer = node, tracer

    def __repr__(self) -> str:
        return f"Proxy({self.node.name})"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(f"a Proxy has no {name}")
        return self.tracer.getattr(self, name)

    def __call__(self, *args: object, **kwargs: object) -> Proxy:
        return self.tracer.create_proxy("call_method", "__call__", (self, *args), kwargs)

    def __iter__(self) -> Iterator[object]:
        count = unpacked(sys._getframe(1))
        if count is not None:  # a, b = x
            return iter([operator.getitem(self, k) for k in range(count)])
        return iter(self.tracer.iter(self))

    def __setitem__(self, key: object, value: object) -> NoReturn:
        raise TraceError(
            "'Proxy' object does not support item assignment; compute the new tensor with "
            "flow.where, index_put or slice_scatter"
        )

    def __bool__(self) -> bool:
        return bool(self.tracer.to_bool(self))

    def keys(self) -> object:
        """Raise TraceError: `**x` needs a known value."""
        return self.tracer.keys(self)

    def __len__(self) -> int:
        raise TraceError(
            "'len' is not supported in symbolic tracing; call x.size(0), or trace what is around "
            "with make_fx"
        )

    def _value(self, *_: object) -> NoReturn:
        raise TraceError(
            f"the value of {self.node.name} is not known while code is traced, and a Python number "
            f"is needed of it"
        )

    __int__ = __float__ = __index__ = __complex__ = __contains__ = _value
    _meta = property(_value)

    __hash__ = object.__hash__


def _recorded(function: Callable[..., object]) -> Callable[..., Proxy]:
    def record(self: Proxy, *args: object) -> Proxy:
        return self.tracer.create_proxy("call_function", function, (self, *args), {})

    return record


def _reflected(function: Callable[..., object]) -> Callable[..., Proxy]:
    def record(self: Proxy, other: object) -> Proxy:
        return self.tracer.create_proxy("call_function", function, (other, self), {})

    return record


BOTH = (
    "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and_", "or_", "xor",
    "lshift", "rshift",
)  # fmt: skip
COMPARED = {"eq": "eq", "ne": "ne", "lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}
for _name in (*BOTH, *COMPARED, "neg", "pos", "invert", "getitem"):
    setattr(Proxy, f"__{_name.strip('_')}__", _recorded(getattr(operator, _name)))
for _name in BOTH:
    setattr(Proxy, f"__r{_name.strip('_')}__", _reflected(getattr(operator, _name)))
Proxy.__abs__ = _recorded(abs)  # type: ignore[attr-defined]
Proxy.__round__ = _recorded(round)  # type: ignore[attr-defined]


class Attribute(Proxy):
    """An attribute of a Proxy: a method if it is called, else a node of its own."""

    def __init__(self, root: Proxy, attr: str) -> None:
        self.root, self.attr, self.tracer = root, attr, root.tracer
        self._node: Node | None = None

    @property
    def node(self) -> Node:  # type: ignore[override]
        """The node of the attribute, made at the first use."""
        if self._node is None:
            proxy = self.tracer.create_proxy("call_function", getattr, (self.root, self.attr), {})
            self._node = proxy.node
        return self._node

    def __call__(self, *args: object, **kwargs: object) -> Proxy:
        return self.tracer.create_proxy("call_method", self.attr, (self.root, *args), kwargs)


class Held(Proxy):
    """A parameter or buffer of the module that is traced: its shape and dtype are known."""

    _KNOWN = frozenset(("shape", "dtype", "device", "ndim", "requires_grad", "layout", "is_cuda"))
    _ASKED = frozenset(
        ("size", "dim", "numel", "nelement", "ndimension", "stride", "is_floating_point",
         "is_complex", "element_size")
    )  # fmt: skip

    def __init__(self, node: Node, tracer: Recorder, tensor: Tensor) -> None:
        super().__init__(node, tracer)
        self.tensor = tensor

    def __getattr__(self, name: str) -> Any:
        if name in self._KNOWN or name in self._ASKED:
            return getattr(self.tensor, name)
        return super().__getattr__(name)

    def __len__(self) -> int:
        return len(self.tensor)
