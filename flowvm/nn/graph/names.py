"""Which names a function loads: globals, closure variables, attributes of those and of its first
parameter, by its bytecode.
"""

from __future__ import annotations

import functools
import sysconfig
from types import CodeType

from flowvm.private import cpython
from flowvm.private.cpython import CPYTHON
from flowvm.vm.callers.lines import is_internal

_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})


def is_library(code: CodeType) -> bool:
    """Whether code is no user's: flowvm's own, or that of an installed package."""
    name = code.co_filename
    return is_internal(name) or name.startswith(_LIBRARIES) or name.startswith("<frozen")


@functools.lru_cache(maxsize=4096)
def loads_of(code: CodeType) -> tuple[tuple[str, str, tuple[str, ...]], ...]:
    """(kind, name, attributes behind it) of the names that code loads; kind is "global", "closure"
    or, for the first parameter, "self".
    """
    CPYTHON.require("loads")
    return tuple(dict.fromkeys(cpython.loads_of(code, code.co_varnames[:1])))
