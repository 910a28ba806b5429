"""Formulas of a distribution's moments and entropy, as a table in front of its class.

    @formulas(mean="loc", mode="loc", variance="2 * scale**2", entropy="1 + (2 * scale).log()")
    class Laplace(_LocScale): ...

Each becomes the property or method that Distribution has under that name, with its docstring.  A
name in a formula is math, ops or a constant (`_KNOWN`), what the file knows, or else an attribute
of the distribution.
"""

from __future__ import annotations

import builtins
import math
import re
import sys
from collections.abc import Callable
from typing import Final, TypeVar

from flowvm import ops
from flowvm.distributions.distribution import Distribution
from flowvm.distributions.utils import EULER, LOG_2PI
from flowvm.fields import give

D = TypeVar("D", bound=type[Distribution])

_NAME: Final = re.compile(r"(?<![\w.])[A-Za-z_]\w*+(?! *=[^=])")  # no attribute, no keyword
_KNOWN: Final = {"EULER": EULER, "LOG_2PI": LOG_2PI, "math": math, "ops": ops}


def formulas(**texts: str) -> Callable[[D], D]:
    """A decorator that gives a distribution these properties and methods without arguments."""

    def complete(cls: D) -> D:
        known = {**vars(builtins), **vars(sys.modules[cls.__module__]), **_KNOWN}

        def own(name: str) -> str:
            return name if name in known else f"self.{name}"

        for name, text in texts.items():
            line = "return " + _NAME.sub(lambda name: own(name[0]), text)
            method = give(cls, f"{name}(self)", [line], _KNOWN, {"return": "Value"})
            general = vars(Distribution)[name]
            method.__doc__ = general.__doc__
            if isinstance(general, property):
                setattr(cls, name, property(method))
        return cls

    return complete
