"""`torch.ops`: operators by the names of PyTorch's registry, `torch.ops.aten.add.Tensor`.

An overload's name is accepted and ignored: functions here dispatch by themselves.  Programs use
these objects as keys of tables, and call them.  A call raises AttributeError if flowvm has no such
function.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import flowvm
from flowvm.custom_ops import CustomOpDef, find
from flowvm.errors import MissingNameError


def called(
    op: OpOverload | OpOverloadPacket, args: tuple[object, ...], kwargs: dict[str, object]
) -> Any:
    """Call an operator's function; MissingNameError if flowvm has none."""
    if op.function is None:
        raise MissingNameError(f"flowvm has no operator {op.name}", op.name)
    return op.function(*args, **kwargs)


class OpOverload:
    """`torch.ops.aten.add.Tensor`, which calls `flow.add`, or an op of one's own."""

    def __init__(self, name: str, overload: str, function: Any) -> None:
        self.name, self.overload, self.function = name, overload, function

    @property
    def _schema(self) -> Any:
        """The schema of an op of one's own."""
        return self.function.schema

    def __call__(self, *args: object, **kwargs: object) -> Any:
        return called(self, args, kwargs)

    def __repr__(self) -> str:
        return f"<OpOverload(op='{self.name}', overload='{self.overload}')>"


class OpOverloadPacket:
    """`torch.ops.aten.add`: it can be called, and has its overloads as attributes."""

    def __init__(self, name: str, function: Any) -> None:
        self.name, self.function = name, function

    def __getattr__(self, overload: str) -> OpOverload:
        if overload.startswith("__"):
            raise AttributeError(overload)
        if isinstance(self.function, CustomOpDef) and overload != "default":
            raise MissingNameError(f"{self.name} has one overload, default", overload)
        op_overload = OpOverload(self.name, overload, self.function)
        setattr(self, overload, op_overload)
        return op_overload

    def __call__(self, *args: object, **kwargs: object) -> Any:
        return called(self, args, kwargs)

    def overloads(self) -> list[str]:
        """The names of its overloads, as far as they are known: functions here are one."""
        return ["default"]

    def __repr__(self) -> str:
        return f"<OpOverloadPacket(op='{self.name}')>"


class Namespace:
    """`torch.ops.aten`, or another one, which has ops of one's own (`flow.library`)."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __getattr__(self, name: str) -> OpOverloadPacket:
        own = find(f"{self.name}::{name}")
        if own is not None:  # not kept: it may be taken back
            return OpOverloadPacket(f"{self.name}.{name}", own)
        places: tuple[object, ...] = ()
        if self.name in ("aten", "prims") and not name.startswith("__"):
            places = (flowvm, flowvm.nn.functional, flowvm.Tensor)
        function = next((f for p in places if callable(f := getattr(p, name, None))), None)
        if function is None and (not places or name.startswith("__")):
            raise MissingNameError(f"flowvm has no operator {self.name}.{name}", name)
        packet = OpOverloadPacket(f"{self.name}.{name}", function)
        setattr(self, name, packet)
        return packet


@cache
def _namespace(name: str) -> Namespace:
    return Namespace(name)


def load_library(path: object) -> None:
    """MissingNameError: there are no operators in C++."""
    raise MissingNameError(f"flowvm loads no operators of C++: {path}", "load_library")


def __getattr__(name: str) -> Namespace:
    if name.startswith("__"):
        raise AttributeError(name)
    return _namespace(name)
