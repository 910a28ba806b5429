"""What is known of a distribution, as a table of formulas in front of its class.

    @formulas(mean="loc", mode="loc", variance="2 * scale**2", entropy="1 + (2 * scale).log()")
    class Laplace(_LocScale): ...

Each becomes the property or method that Distribution has under that name, with its docstring.  A
name in a formula is math, ops or a constant (`_KNOWN`), what the file knows, or else an attribute
of the distribution.
"""

from __future__ import annotations

import ast
import builtins
import math
import sys
from collections.abc import Callable
from typing import Any, Final, TypeVar

from flowvm import ops
from flowvm.distributions.distribution import Distribution
from flowvm.distributions.utils import EULER, LOG_2PI
from flowvm.fields import give

D = TypeVar("D", bound=type[Distribution])

_KNOWN: Final = {"EULER": EULER, "LOG_2PI": LOG_2PI, "math": math, "ops": ops}


def formulas(**texts: str) -> Callable[[D], D]:
    """A decorator that gives a distribution these properties and methods without arguments."""

    def complete(cls: D) -> D:
        known = {**vars(sys.modules[cls.__module__]), **_KNOWN}
        for name, text in texts.items():
            tree = _Own(known).visit(ast.parse(text, mode="eval"))
            notes = {"return": "Value"}
            method = give(cls, f"{name}(self)", [f"return {ast.unparse(tree)}"], _KNOWN, notes)
            general = vars(Distribution)[name]
            method.__doc__ = general.__doc__
            if isinstance(general, property):
                setattr(cls, name, property(method))
        return cls

    return complete


class _Own(ast.NodeTransformer):
    """Makes attributes of `self` of the names that are not in `known`."""

    def __init__(self, known: dict[str, Any]) -> None:
        self.known = known

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id in self.known or hasattr(builtins, node.id):
            return node
        return ast.Attribute(ast.Name("self", ast.Load()), node.id, ast.Load())
