"""Numbers that a captured graph finds anew for each replay: learning rates, step counts, seeds.

While a graph is captured, Python code computes with them as with the numbers that they stand for,
and what it computes is live again: `lr * (1 - decay) ** step` is remembered as such.  Where code
decides by one (`if step > 10`), the outcome is a guard: a replay for which it would be another one
is not made.

They are neither floats nor ints, on purpose: C code (`math.sqrt`, `2.0 * n`) takes the value out of
a subclass of those and forgets where it came from.  Where a plain number is demanded, they refuse.
Outside a capture there are none: everything here is made by `flowvm.graph`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, NoReturn

from flowvm.errors import CaptureError

__all__ = ["Frozen", "FrozenFloat", "FrozenInt", "Guard", "Live", "freeze", "now", "plain_type"]

Find = Callable[[], Any]
Guard = tuple[Find, Any]  # (what was asked, the answer)


class Live:
    """A number that is found anew for each replay: `find()` gives that of the present one.

    `guards` takes every decision that Python code makes by it.
    """

    __slots__ = ("find", "guards")

    def __init__(self, find: Find, guards: list[Guard]) -> None:
        self.find, self.guards = find, guards

    def _computed(self, function: Callable[..., Any], *values: Any) -> Any:
        if not all(isinstance(v, (int, float, Live)) for v in values):
            return NotImplemented
        return Live(lambda: function(*map(now, values)), self.guards)

    def _decided(self, function: Callable[..., Any], *values: Any) -> Any:
        if not all(isinstance(v, (int, float, Live)) for v in values):
            return NotImplemented

        def find() -> Any:
            return function(*map(now, values))

        outcome = find()
        self.guards.append((find, outcome))
        return outcome

    def _refuse(self, what: str) -> NoReturn:
        raise CaptureError(
            f"{what} of a number that changes from replay to replay ({self.find()!r} now), such as "
            "a learning rate or a step count, would fix it: compute with + - * / // % ** and abs() "
            "(x ** 0.5 for a square root), or with tensors"
        )

    def __float__(self) -> float:
        self._refuse("float()")

    def __int__(self) -> int:
        self._refuse("int()")

    def __index__(self) -> int:
        self._refuse("index")

    def __repr__(self) -> str:
        return f"{self.find()!r} (live)"

    def __format__(self, spec: str) -> str:
        return format(self.find(), spec)

    def __hash__(self) -> int:
        return id(self)


def now(value: Any) -> Any:
    """The number itself: of a live one, that of the present replay."""
    return value.find() if isinstance(value, Live) else value


def _binary(function: Callable[..., Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    def method(self: Live, other: Any) -> Any:
        return self._computed(function, self, other)

    def reflected(self: Live, other: Any) -> Any:
        return self._computed(function, other, self)

    return method, reflected


def _unary(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, *more: self._computed(function, self, *more)


def _decision(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, *others: self._decided(function, self, *others)


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"):
    _method, _reflected = _binary(getattr(operator, f"__{_name}__"))
    setattr(Live, f"__{_name}__", _method)
    setattr(Live, f"__r{_name}__", _reflected)
for _name, _function in (
    ("neg", operator.neg), ("pos", operator.pos), ("abs", abs), ("round", round),
    ("ceil", math.ceil), ("floor", math.floor), ("trunc", math.trunc),
):  # fmt: skip
    setattr(Live, f"__{_name}__", _unary(_function))
for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
    setattr(Live, f"__{_name}__", _decision(getattr(operator, f"__{_name}__")))
Live.__bool__ = _decision(bool)  # type: ignore[attr-defined]


class Frozen:
    """A live number as the plain number that it is now, on its way into an instruction."""

    live: Live


class FrozenInt(int, Frozen):
    """See Frozen."""


class FrozenFloat(float, Frozen):
    """See Frozen."""


def freeze(value: Live | Frozen) -> Any:
    """The plain number that `value` is now, which remembers `value`."""
    if isinstance(value, Frozen):
        return value
    plain = value.find()
    frozen: Any = FrozenFloat(plain) if isinstance(plain, float) else FrozenInt(plain)
    frozen.live = value
    return frozen


def plain_type(value: Any) -> type:
    """int or float for a frozen number, else its type."""
    if isinstance(value, Frozen):
        return float if isinstance(value, float) else int
    return type(value)
