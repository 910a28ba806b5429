"""Values and operators of a graph as plain data, without code: what JSON has, and names.

    value       numbers, strings, None, lists as they are; {"tuple": [...]}, {"dtype": name},
                {"meta": [shape, dtype, device, stride]}, {"device": name}, {"type": "module:name"}
    operator    ["declared", name, pattern of tensors and numbers, mark] or ["recipe", where, value]

An operator that was declared is found again by its name and a hash of its declaration, one that was
made at run time is made again by its recipe.  Only flowvm's own modules are imported for that: an
operator of the user's has to be there already.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import sys
from collections.abc import Sequence
from types import CodeType, FunctionType, NoneType
from typing import Any

from flowvm.device import Device, as_device
from flowvm.dtype import DType, dtype_named
from flowvm.eager.interpreter import Operator, operators
from flowvm.errors import ArgumentError, ArgumentTypeError
from flowvm.meta import Size, TensorMeta
from flowvm.ops.declare.elementwise import Elementwise
from flowvm.vm.callers.lines import is_internal

_PLAIN = (bool, int, float, str, type(None))


# --- values -------------------------------------------------------------------------------------


def plain(value: Any, what: str) -> Any:
    """`value` as JSON has it; ArgumentTypeError, naming `what`, for what has no such form."""
    if type(value) in _PLAIN:
        return value
    if type(value) is Size:
        return {"size": list(value)}
    if isinstance(value, tuple) and type(value) is tuple:
        return {"tuple": [plain(v, what) for v in value]}
    if type(value) is list:
        return [plain(v, what) for v in value]
    if isinstance(value, DType):
        return {"dtype": value.name}
    if isinstance(value, TensorMeta):
        return {
            "meta": [list(value.shape), value.dtype.name, str(value.device), list(value.stride)]
        }
    if isinstance(value, Device):
        return {"device": str(value)}
    if isinstance(value, Operator):
        return {"operator": saved_operator(value)}
    if value is NoneType:
        return {"type": "types:NoneType"}
    if isinstance(value, type):
        return {"type": f"{value.__module__}:{value.__qualname__}"}
    raise ArgumentTypeError(
        f"{what} has a {type(value).__name__} ({value!r}), which has no saved form"
    )


def read_plain(saved: Any) -> Any:
    """What `plain` was given."""
    if isinstance(saved, list):
        return [read_plain(v) for v in saved]
    if not isinstance(saved, dict):
        return saved
    ((kind, inner),) = saved.items()
    if kind == "tuple":
        return tuple(read_plain(v) for v in inner)
    if kind == "size":
        return Size(inner)
    if kind == "dtype":
        return dtype_named(inner)
    if kind == "device":
        return as_device(inner)
    if kind == "operator":
        return read_operator(inner)
    if kind == "meta":
        shape, dtype, device, stride = inner
        return TensorMeta.of(shape, dtype_named(dtype), as_device(device), tuple(stride))
    if kind == "type":
        module, _, name = inner.partition(":")
        found = _found(module, name, "a type")
        if not isinstance(found, type):
            raise ArgumentError(f"{inner} is no class here")
        return found
    raise ArgumentError(f"the saved graph is damaged: {kind!r} is no kind of value")


def _found(module: str, name: str, what: str) -> Any:
    """`module.name`; flowvm's own modules are imported, others must be there."""
    if module not in sys.modules and module.startswith("flowvm."):
        importlib.import_module(module)
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is None:
        raise ArgumentError(
            f"the saved graph needs {what} {name!r} of module {module!r}, which is not there: "
            f"import {module} before loading it"
        )
    return found


# --- operators ----------------------------------------------------------------------------------


def saved_operator(operator: Operator) -> list[Any]:
    """The operator by its name, or its recipe."""
    if operator.recipe is not None:
        where, arguments = operator.recipe
        return ["recipe", where, plain(arguments, f"operator {operator.name}")]
    pattern = operator.form[1] if _is_elementwise(operator) else ""
    return ["declared", operator.name, pattern, operator_mark(operator)]


def _is_elementwise(operator: Operator) -> bool:
    return isinstance(operator.form, tuple) and isinstance(operator.form[0], Elementwise)


def operator_mark(operator: Operator) -> str:
    """What tells operators of one name apart: a hash of their declarations."""
    if _is_elementwise(operator):
        made: Elementwise = operator.form[0]
        found: Any = (made.expr, sorted(made.args.items()), made.types)
    else:
        facts = operator.inputs, operator.outputs, operator.attrs, operator.scalars
        found = (*facts, operator.scalar_kinds, sorted(operator.writes), code_mark(operator.lower))
    return hashlib.sha256(repr(found).encode()).hexdigest()[:16]


def code_mark(function: Any, seen: frozenset[int] = frozenset()) -> str:
    """A hash of a function's bytecode, constants and what it closes over; the same in every process
    of one Python that has the same source.
    """
    if isinstance(function, functools.partial):
        return f"{code_mark(function.func, seen)} {function.args!r}"
    function = getattr(function, "__func__", function)
    code = getattr(function, "__code__", None)
    if code is None or id(function) in seen:
        return type(function).__name__
    seen = seen | {id(function)}
    cells = [_cell_mark(cell, seen) for cell in function.__closure__ or ()]
    called = [] if is_internal(code.co_filename) else _called(code, function, seen)
    return hashlib.sha256(repr((_code_facts(code), cells, called)).encode()).hexdigest()[:16]


def _called(code: CodeType, function: Any, seen: frozenset[int]) -> list[str]:
    """Marks of functions of the same module that it names; flowvm's version stands for its own."""
    found = []
    for name in code.co_names:
        value = function.__globals__.get(name)
        if isinstance(value, FunctionType) and value.__module__ == function.__module__:
            found.append(code_mark(value, seen))
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found += _called(constant, function, seen)
    return found


def _cell_mark(cell: Any, seen: frozenset[int]) -> str:
    try:
        value = cell.cell_contents
    except ValueError:  # no value yet
        return ""
    if callable(value):
        return code_mark(value, seen)
    return repr(value) if isinstance(value, (*_PLAIN, tuple)) else type(value).__name__


def _code_facts(code: CodeType) -> tuple[Any, ...]:
    consts = [_code_facts(c) if isinstance(c, CodeType) else _constant(c) for c in code.co_consts]
    return code.co_code, code.co_names, code.co_varnames, code.co_freevars, consts


def _constant(value: Any) -> str:
    return repr(sorted(map(repr, value))) if isinstance(value, frozenset) else repr(value)


def read_operator(saved: Sequence[Any]) -> Operator:
    """The operator of this process; ArgumentError if it is not there."""
    kind, *rest = saved
    if kind == "recipe":
        made: Any = _made(*rest)
    elif kind == "declared":
        name, pattern, mark = rest
        alike = [o for o in operators if o.name == name and o.recipe is None]
        found = [o for o in alike if operator_mark(o) == mark]
        if not found:
            what = "another one than the saved graph's" if alike else "not declared here"
            raise ArgumentError(
                f"operator {name!r} is {what}: import the module that declares it, as it was when "
                f"the graph was saved, before loading"
            )
        made = found[0].form[0]._variant(pattern) if pattern else found[0]
    else:
        made = None
    if not isinstance(made, Operator):
        raise ArgumentError(f"the saved graph is damaged: {rest[:1]} is no operator")
    return made


def _made(where: str, arguments: Any) -> Any:
    """What a recipe makes; only flowvm's own modules are imported for it."""
    module, _, name = where.partition(":")
    return _found(module, name, "the recipe")(*read_plain(arguments))
