"""Classes of rows: an `__init__` made of the fields that a class annotates, as dataclasses have.

A family of classes says once what is done with the arguments (`flowvm.nn.modules.layer` keeps them
and makes a forward, `flowvm.optim.optimizer` fills a group's options); a class says what they are.
Its decorator is marked by `typing.dataclass_transform`, so that type checkers know the arguments.

Invariant: the method is a function with names, defaults and annotations, as if it had been written
in the class, and calls `super().__init__`; the class has no attributes of the fields' names.
"""

from __future__ import annotations

import sys
from types import FunctionType

from flowvm.eager.calls import generated


def fields_of(cls: type) -> list[str]:
    """The names that a class itself annotates, in order; "_" of KW_ONLY, other private ones not."""
    notes = vars(cls).get("__annotations__", ())
    return [name for name in notes if name[0] != "_" or name == "_"]


def give_init(cls: type, fields: list[str], body: list[str], known: dict[str, object]) -> None:
    """Give a class an `__init__` of these fields: their values in the class are the defaults.

    body    its lines; `cls` is the class there, and `known` has what else the lines name
    """
    defaults = {name: vars(cls)[name] for name in fields if name in vars(cls)}
    for name in defaults:
        delattr(cls, name)
    arguments = [
        "*" if name == "_" else f"{name}=d_{name}" if name in defaults else name for name in fields
    ]
    notes = {name: cls.__annotations__[name] for name in fields if name != "_"}
    known = {"cls": cls, **known, **{f"d_{name}": value for name, value in defaults.items()}}
    give(cls, f"__init__(self, {', '.join(arguments)})", body, known, notes | {"return": "None"})


def give(
    cls: type, head: str, body: list[str], known: dict[str, object], notes: dict[str, object]
) -> FunctionType:
    """Give a class the method with this head and these lines, and return it."""
    name = head[: head.index("(")]
    text = "\n    ".join([f"def {head}:", *body])
    home = vars(sys.modules[cls.__module__])
    method = generated(text, f"<flowvm {cls.__name__}.{name}>", known, home)
    method.__qualname__ = f"{cls.__qualname__}.{name}"
    method.__annotations__ = notes
    setattr(cls, name, method)
    return method
