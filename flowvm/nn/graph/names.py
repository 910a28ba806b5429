"""Which names a function loads: globals, closure variables, attributes of those and of its first
parameter, by its bytecode.
"""

from __future__ import annotations

import dis
import functools
import sysconfig
from collections.abc import Iterator
from types import CodeType

from flowvm.vm.callers.lines import is_internal

__all__ = ["is_library", "loads_of"]

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
    return tuple(dict.fromkeys(_found_loads(code, code.co_varnames[:1])))


def _found_loads(
    code: CodeType, first: tuple[str, ...]
) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    kind, name, attributes = "", "", []
    for instruction in dis.get_instructions(code):
        op, value = instruction.opname, instruction.argval
        if op in ("LOAD_ATTR", "LOAD_METHOD"):
            attributes.append(value)
            continue
        if op == "COPY":  # self.count += 1 loads through one
            continue
        if kind:
            yield kind, name, tuple(attributes)
        kind, attributes = "", []
        if isinstance(value, tuple) and value:  # two variables at once
            value = value[-1]
        if op in ("LOAD_GLOBAL", "LOAD_NAME"):
            kind, name = "global", value
        elif op in ("LOAD_DEREF", "LOAD_CLASSDEREF"):
            kind, name = ("self" if (value,) == first else "closure"), value
        elif op.startswith("LOAD_FAST") and (value,) == first:
            kind, name = "self", value
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            inside = bool(first) and first[0] in constant.co_freevars
            yield from _found_loads(constant, first if inside else ("",))
