"""Maker of layers from a row: one function, and the arguments that are kept for it.

    @layer(F.softplus)
    class Softplus(Module):
        "log(1 + exp(beta * x)) / beta, and x itself where beta * x exceeds threshold."

        beta: float = 1.0
        threshold: float = 20.0

The fields are the arguments of `__init__` and attributes; `forward` takes the inputs and calls the
function with them and with all attributes that it has arguments for.  A type checker sees what it
sees of a dataclass.  A class keeps a method that it has, so a row is as long as what is its own.

`Dimensional` is the base of layers that stand in one, two and three dimensions: each of them is a
line, `class AvgPool2d(_AvgPool): ...`, and what it does and says follows from its name.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any, Final, TypeVar, dataclass_transform

from flowvm.fields import fields_of, give, give_init
from flowvm.nn import functional as F
from flowvm.nn.module import Module

Check = Callable[[Any, str, Any], Any]  # of (layer, name, value): the value to keep
L = TypeVar("L", bound=type)

_FIELDS: Final = "_fields"  # what a class's objects keep, and those of its subclasses


@dataclass_transform(eq_default=False)
def layer(
    function: Callable[..., object] | None = None,
    takes: str = "input",
    *,
    shown: str | None = None,
    buffers: tuple[str, ...] = (),
    **checks: Check,
) -> Callable[[L], L]:
    """A decorator that gives a Module with fields the methods that it has not.

    function   what `forward` calls; the module's `training` is an argument too
    takes      the inputs, with commas
    shown      what `extra_repr` is, as a format of `self`; by default all fields by name, but for
               `inplace` only where it is True
    buffers    fields that are registered as buffers
    checks     by a field's name, what its value goes through
    """

    def complete(cls: L) -> L:
        own = fields_of(cls)
        if own and "__init__" not in vars(cls):
            _with_init(cls, own, buffers, checks)
        if function is not None and "forward" not in vars(cls):
            _with_forward(cls, function, takes)
        if shown is not None:
            cls.extra_repr = lambda self: shown.format(self=self)  # type: ignore[attr-defined]
        elif own and cls.extra_repr is Module.extra_repr:  # type: ignore[attr-defined]
            cls.extra_repr = _all_fields  # type: ignore[attr-defined]
        return cls

    return complete


def _with_init(
    cls: type, own: list[str], buffers: tuple[str, ...], checks: dict[str, Check]
) -> None:
    """The `__init__` of the fields: what the base's has an argument for is given to that."""
    code = cls.__mro__[1].__init__.__code__  # type: ignore[misc]
    base = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]
    arguments = ", ".join(f"{name}={name}" for name in own if name in base)
    body = [f"super(cls, self).__init__({arguments})"]
    fields = []
    for name in own:
        if name not in base and name != "_":
            value = f"c_{name}(self, {name!r}, {name})" if name in checks else name
            buffer = name in buffers
            body.append(
                f"self.register_buffer({name!r}, {value})" if buffer else f"self.{name} = {value}"
            )
            fields.append(name)
        elif name in getattr(cls, _FIELDS, ()):
            fields.append(name)
    give_init(cls, own, body, {f"c_{name}": check for name, check in checks.items()})
    setattr(cls, _FIELDS, tuple(fields))


def _with_forward(cls: type, function: Callable[..., object], takes: str) -> None:
    inputs = takes.replace(",", " ").split()
    fields = {*(name for base in cls.__mro__ for name in vars(base).get(_FIELDS, ())), "training"}
    values, by_name = list(inputs), False
    parameters = inspect.signature(function).parameters
    for name, parameter in list(parameters.items())[len(inputs) :]:
        by_name = by_name or name not in fields or parameter.kind is parameter.KEYWORD_ONLY
        if name in fields:
            values.append(f"{name}=self.{name}" if by_name else f"self.{name}")
    cls._function = staticmethod(function)  # type: ignore[attr-defined]
    body = [f"return type(self)._function({', '.join(values)})"]  # one text for many classes
    notes = {name: parameters[name].annotation for name in inputs if name in parameters}
    notes = {**dict.fromkeys(inputs, "Tensor"), **notes, "return": "Tensor"}
    head = f"forward(self, {', '.join(inputs)})"
    give(cls, head, body, {}, notes).__doc__ = inspect.getdoc(function)


def _all_fields(self: Any) -> str:
    """The `extra_repr` of a layer whose fields are all shown."""
    return ", ".join(
        f"{name}={getattr(self, name)}"
        for name in getattr(self, _FIELDS)
        if name != "inplace" or self.inplace
    )


SHAPES: Final = {
    1: "(N, C, L) or (C, L)",
    2: "(N, C, H, W) or (C, H, W)",
    3: "(N, C, D, H, W) or (C, D, H, W)",
}
_SIZES: Final = {"twos": "2", "threes": "3", "fours": "4"}


class Dimensional(Module):
    """A layer over `_ndim` dimensions, which is the digit in the name of flowvm's classes.

    `_text` is the docstring of those that have none of their own: {name}, {n} and {shape} are the
    class's, {twos}, {threes} and {fours} so many sizes.  `_named` is the name in nn.functional of
    its `_function`, with {n}.
    """

    _ndim: int
    _text = ""
    _named = ""
    _function: Any

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        digit = re.fullmatch(r"[A-Z]\w*([123])d", cls.__name__)
        if digit is None or not cls.__module__.startswith("flowvm."):
            return  # what some of them share, or a user's
        n = cls._ndim = int(digit[1])
        if cls._named:
            cls._function = staticmethod(getattr(F, cls._named.format(n=n)))
        if cls._text and not vars(cls).get("__doc__"):
            sizes = {name: ", ".join(size * n) for name, size in _SIZES.items()}
            cls.__doc__ = cls._text.format(name=cls.__name__, n=n, shape=SHAPES[n], **sizes)
