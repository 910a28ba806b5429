"""Values and operators of a graph as plain data, without code: JSON's values, and names.

    value       numbers, strings, None, lists as they are; {"float": "inf"} of those that JSON has
                not; {"tuple": [...]}, {"size": [...]}, {"dtype": name}, {"device": name},
                {"meta": [shape, dtype, device, stride]}, {"type": a name of TYPES},
                {"namedtuple": "module:name"}, {"record": [a name of RECORDS, fields]},
                {"operator": operator}
    operator    ["declared", name, pattern of tensors and numbers, mark] or ["recipe", name, value]

An operator that was declared is found again by its name and a hash of its declaration, one that was
made at run time is made again by a maker of `flowvm.ops.declare.recipes`.  Reading imports nothing
and calls nothing that the data names: an operator or a named tuple of the user's has to be there
already, and what is there under that name is used only if it is one.
"""

from __future__ import annotations

import functools
import hashlib
import math
import sys
from types import CodeType, FunctionType, NoneType
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from flowvm import return_types
from flowvm.eager.interpreter import Operator, operators
from flowvm.errors import ArgumentError, ArgumentTypeError, OutOfMemoryError
from flowvm.files.schema import Check, integer, number, one_of, row, several, text, wrong
from flowvm.meta.device import Device, as_device
from flowvm.meta.dtype import ALL_DTYPES, DType, dtype_named
from flowvm.meta.meta import Size, TensorMeta
from flowvm.ops.declare.core import COPIES
from flowvm.ops.declare.elementwise import Elementwise
from flowvm.ops.declare.recipes import made_by
from flowvm.ops.planes.cpu.pool_kernels import Windows
from flowvm.ops.planes.cpu.region_kernels import Regions
from flowvm.ops.planes.cpu.resize_kernels import Sizes
from flowvm.ops.planes.parts.conv_ops import How
from flowvm.ops.rows.cpu.ctc_kernels import Labels
from flowvm.vm.callers.lines import is_internal

if TYPE_CHECKING:
    from collections.abc import Sequence


_PLAIN = (bool, int, float, str, type(None))
# the classes of numbers, and of values in a call's arguments
TYPES: dict[str, type] = {
    kind.__name__: kind for kind in (bool, int, float, str, NoneType, type, DType, Device, Size)
}
# the named tuples of numbers that are attributes of flowvm's own operators
RECORDS: dict[str, type[tuple[object, ...]]] = {
    kind.__name__: kind for kind in (How, Labels, Regions, Sizes, Windows)
}
MOST_DIMS = 64
MOST_ELEMENTS = 1 << 48


# --- values -------------------------------------------------------------------------------------


def plain(value: object, what: str) -> object:
    """Return `value` in JSON's terms; ArgumentTypeError, naming `what`, if it has no such form."""
    if type(value) is float and not math.isfinite(value):
        return {"float": repr(value)}
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
    if isinstance(value, type):
        return _saved_type(value, what)
    if RECORDS.get(type(value).__name__) is type(value):
        return {"record": [type(value).__name__, [plain(v, what) for v in value]]}
    raise ArgumentTypeError(
        f"{what} has a {type(value).__name__} ({value!r}), which has no saved form"
    )


def _saved_type(kind: type, what: str) -> dict[str, str]:
    if TYPES.get(kind.__name__) is kind:
        return {"type": kind.__name__}
    if _is_namedtuple(kind):
        return {"namedtuple": f"{kind.__module__}:{kind.__qualname__}"}
    raise ArgumentTypeError(
        f"{what} has the class {kind.__qualname__}, which has no saved form: of the classes of "
        f"tuples and lists only those of typing.NamedTuple and collections.namedtuple have one"
    )


def _is_namedtuple(kind: object) -> bool:
    """Return True if making one runs no code but `namedtuple`'s own, or flowvm's."""
    if kind in return_types.all_return_types:
        return True
    if not isinstance(kind, type) or any("__init__" in vars(k) for k in kind.__mro__[:-1]):
        return False
    owner = next((k for k in kind.__mro__ if "__new__" in vars(k)), object)
    space = getattr(owner.__new__, "__globals__", {})
    generated = space.get("__name__") == f"namedtuple_{owner.__name__}"
    return generated and issubclass(owner, tuple) and type(kind) is type


def read_plain(saved: object, where: str = "a value of the saved graph") -> Any:
    """Return the value from which `plain` made `saved`; ArgumentError for other data."""
    if isinstance(saved, list):
        return [read_plain(v, where) for v in saved]
    if not isinstance(saved, dict):
        if type(saved) in (int, float):
            number(saved, where)
        return saved
    if len(saved) != 1:
        wrong(where, saved, "one kind of value")
    ((kind, inner),) = saved.items()
    if kind not in _FORMS:
        raise ArgumentError(f"{where} is damaged: {kind!r} is not a kind of value")
    _FORMS[kind](inner, f"{where}: {kind}")
    if kind == "tuple":
        return tuple([read_plain(v, where) for v in inner])
    if kind == "size":
        return Size(inner)
    if kind == "float":
        return float(inner)
    if kind == "dtype":
        return dtype_named(inner)
    if kind == "device":
        return as_device(inner)
    if kind == "operator":
        return read_operator(inner)
    if kind == "type":
        return TYPES[inner]
    if kind == "record":
        return _read_record(inner[0], inner[1], where)
    return read_meta(inner) if kind == "meta" else _namedtuple_called(inner)


def read_meta(saved: list[Any]) -> TensorMeta:
    """The meta of a list that is of the right form."""
    shape, dtype, device, stride = saved
    if len(shape) != len(stride):
        wrong("a meta's strides", stride, f"as many as it has dimensions, {len(shape)}")
    try:
        return TensorMeta.of(shape, dtype_named(dtype), as_device(device), tuple(stride))
    except OutOfMemoryError as error:
        raise ArgumentError(f"the saved graph is damaged: {error}") from None


_NAMES = text(1000, r"[\w.<>]+:[\w.<>]+")
_SIZES = several(integer(0, MOST_ELEMENTS), most=MOST_DIMS)
_DTYPE = one_of(*(dtype.name for dtype in ALL_DTYPES))
_DEVICE = text(20, r"cpu|cuda:\d{1,4}")
_STRIDES = several(integer(-MOST_ELEMENTS, MOST_ELEMENTS), most=MOST_DIMS)
META: Check = row(_SIZES, _DTYPE, _DEVICE, _SIZES)
OPERAND_META: Check = row(_SIZES, _DTYPE, _DEVICE, _STRIDES)  # see reads_backwards
_FORMS: dict[str, Check] = {
    "tuple": several(lambda value, where: None),
    "size": _SIZES,
    "float": one_of("inf", "-inf", "nan"),
    "dtype": _DTYPE,
    "device": _DEVICE,
    "operator": several(lambda value, where: None, most=4, least=1),
    "type": one_of(*TYPES),
    "meta": META,
    "namedtuple": _NAMES,
    "record": row(one_of(*RECORDS), several(lambda value, where: None, most=64)),
}


def _read_record(name: str, saved: Sequence[object], where: str) -> tuple[object, ...]:
    """A named tuple of RECORDS, when each field is of the kind that its class says."""
    kinds = _kinds_of(name)
    if len(saved) != len(kinds):
        wrong(f"{where}: {name}", saved, f"{len(kinds)} fields")
    fields = [read_plain(v, f"{where}: {name}") for v in saved]
    for (field, kind), value in zip(kinds.items(), fields, strict=True):
        of_several = get_args(kind)
        several_of_them = type(value) is tuple and tuple(map(type, value)) == of_several
        if not (several_of_them if of_several else type(value) is kind):
            wrong(f"{where}: {name}.{field}", value, f"of {kind}")
    return RECORDS[name](*fields)


@functools.cache
def _kinds_of(record: str) -> dict[str, object]:
    return get_type_hints(RECORDS[record])


def _namedtuple_called(name: str) -> object:
    """The class of named tuples of this process that is called "module:name"."""
    module, _, path = name.partition(":")
    value = sys.modules.get(module)
    for part in path.split("."):
        value = vars(value).get(part) if hasattr(value, "__dict__") else None
    if not _is_namedtuple(value):
        raise ArgumentError(
            f"the saved graph returns the named tuple {name}, which this program has not imported: "
            f"import {module} before loading the graph"
        )
    return value


# --- operators ----------------------------------------------------------------------------------


def saved_operator(operator: Operator) -> list[object]:
    """The operator by its name, or its recipe."""
    if operator.origin.recipe is not None:
        name, arguments = operator.origin.recipe
        return ["recipe", name, plain(arguments, f"operator {operator.name}")]
    pattern = operator.origin.form[1] if _is_elementwise(operator) else ""
    return ["declared", operator.name, pattern, operator_mark(operator)]


def _is_elementwise(operator: Operator) -> bool:
    return isinstance(operator.origin.form, tuple) and isinstance(
        operator.origin.form[0], Elementwise
    )


def reads_backwards(operator: Operator) -> bool:
    """Return True if the operator's inputs may have negative strides.

    `flip` is a copy of such a view; passes join it with its reader.
    """
    if operator.origin.recipe is not None:
        return operator.origin.recipe[0] in ("fused", "assemble")
    return operator in COPIES or _is_elementwise(operator)


def operator_mark(operator: Operator) -> str:
    """Return a hash of an operator's declaration, which distinguishes operators of one name."""
    if _is_elementwise(operator):
        form: Elementwise = operator.origin.form[0]
        mark: Any = (form.expr, sorted(form.args.items()), form.types)
        mark += ("complex",) * form.complex
    else:
        facts = (
            operator.signature.inputs,
            operator.signature.outputs,
            operator.signature.attrs,
            operator.signature.scalars,
        )
        mark = (
            *facts,
            operator.signature.scalar_kinds,
            sorted(operator.signature.writes),
            code_mark(operator.kernel.lower),
        )
    return hashlib.sha256(repr(mark).encode()).hexdigest()[:16]


def code_mark(function: Any, visited: frozenset[int] = frozenset()) -> str:
    """Return a hash of a function's bytecode, constants and closure.

    It is the same in every process of one Python with the same source.
    """
    if isinstance(function, functools.partial):
        return f"{code_mark(function.func, visited)} {function.args!r}"
    function = getattr(function, "__func__", function)
    if id(function) in visited:
        return type(function).__name__
    visited = visited | {id(function)}
    code = getattr(function, "__code__", None)
    if code is None:
        return f"{type(function).__name__} {_object_marks(function, visited)}"
    cells = [_cell_mark(cell, visited) for cell in function.__closure__ or ()]
    called = [] if is_internal(code.co_filename) else _called(code, function, visited)
    return hashlib.sha256(repr((_code_facts(code), cells, called)).encode()).hexdigest()[:16]


def _called(code: CodeType, function: Any, visited: frozenset[int]) -> list[str]:
    """Marks of functions of the same module that it names; flowvm's version stands for its own."""
    values = []
    for name in code.co_names:
        value = function.__globals__.get(name)
        if isinstance(value, FunctionType) and value.__module__ == function.__module__:
            values.append(code_mark(value, visited))
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            values += _called(constant, function, visited)
    return values


def _object_marks(called: object, visited: frozenset[int]) -> list[str]:
    """Marks of what an object holds that is called, and of its class's `__call__`; without what
    flowvm's own objects only remember.
    """
    method = type(called).__call__ if callable(called) else None
    if not isinstance(method, FunctionType):  # of C: it does what its name says
        return []
    own = is_internal(method.__code__.co_filename)
    held = {k: v for k, v in getattr(called, "__dict__", {}).items() if not (own and k[0] == "_")}
    marks = [f"{name}={_value_mark(value, visited)}" for name, value in sorted(held.items())]
    return marks if own else [code_mark(method, visited), *marks]


def _cell_mark(cell: Any, visited: frozenset[int]) -> str:
    try:
        return _value_mark(cell.cell_contents, visited)
    except ValueError:  # no value yet
        return ""


def _value_mark(value: object, visited: frozenset[int]) -> str:
    if callable(value):
        return code_mark(value, visited)
    return repr(value) if isinstance(value, (*_PLAIN, tuple)) else type(value).__name__


def _code_facts(code: CodeType) -> tuple[object, ...]:
    consts = [_code_facts(c) if isinstance(c, CodeType) else _constant(c) for c in code.co_consts]
    return code.co_code, code.co_names, code.co_varnames, code.co_freevars, consts


def _constant(value: object) -> str:
    return repr(sorted(map(repr, value))) if isinstance(value, frozenset) else repr(value)


def read_operator(saved: list[Any]) -> Operator:
    """The operator of this process; ArgumentError if it is not there."""
    several(lambda value, where: None, most=4, least=1)(saved, "an operator")
    kind, *rest = saved
    if kind == "recipe" and len(rest) == 2:
        return made_by(rest[0], read_plain(rest[1], f"the recipe {rest[0]!r}"))
    if kind != "declared":
        raise ArgumentError(f"the saved graph is damaged: {str(kind)[:80]!r} is not an operator")
    row(text(200), text(64, "[ts]*"), text(64))(rest, "a declared operator")
    name, pattern, mark = rest
    alike = [o for o in operators if o.name == name and o.origin.recipe is None]
    matches = [o for o in alike if operator_mark(o) == mark]
    if not matches:
        what = "another one than the saved graph's" if alike else "not declared here"
        raise ArgumentError(
            f"operator {name!r} is {what}: import the module that declares it, as it was when "
            f"the graph was saved, before loading"
        )
    if not pattern:
        return matches[0]
    if not _is_elementwise(matches[0]) or len(pattern) != len(matches[0].origin.form[0].args):
        raise ArgumentError(f"the saved graph is damaged: {name} has no form {pattern!r}")
    if "t" not in pattern:
        raise ArgumentError(f"the saved graph is damaged: {name} of no tensor")
    operator: Operator = matches[0].origin.form[0]._variant(pattern)
    return operator
