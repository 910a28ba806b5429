"""The cache key of compiled code: a text that changes when any source that the code depends on
changes.

`source_key(make)` follows `make` to all objects that it reaches.  It goes through globals,
closures, defaults, attributes of modules, modules imported late (`lazy`) and imports inside
functions.  It follows compiled code and code generators alike, so there is no list of files to
maintain.

- Of a function, the digest of the file it is written in counts, and which function it is.  Code
  that never had a file (a prompt, text that was executed) counts by itself.  A file that cannot be
  read is an error: a key without it would be another's.
- Of a constant, its value counts, wherever it stands: number, text, None, dtype, array, enum, and
  tuples, frozen dataclasses and named tuples of those.
- Lists, dicts, sets and other objects that can change count where they are given to a function
  (closure, default, `partial`), and in a module or class where their name is that of a constant:
  UPPERCASE, with or without underscores in front.  Under any other name they are the process's
  state (caches, locks, settings), and a key must not see them.
- Python's own library, NumPy, SciPy, Numba and llvmlite are not entered: their versions are part
  of every key.  A flowvm module whose first level imports Numba or llvmlite, and which is imported
  late, is not imported for its key: it counts by its file, and so does what it reaches.

Invariants: nothing here imports Numba.  A key is equal in every process, whatever was imported or
compiled before.  Each file is read once a process.  Contents of flowvm's modules are taken not to
change once they were reached, so the parts that they reach are cached.  Users' code is looked at
anew.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import importlib
import importlib.util
import linecache
import re
import sys
import types as pytypes
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from flowvm.errors import CompileError
from flowvm.loading.lazy import Lazy, name_of
from flowvm.private.cpython import CPYTHON, imports_of

if TYPE_CHECKING:
    from collections.abc import Mapping


class Fact(NamedTuple):
    """A fact that a key covers: a file, a function or a constant, with its place and its text."""

    kind: str
    place: str
    text: str


_BETWEEN = "\0"


class _Parts(NamedTuple):
    """The lines that one object contributes to a key, and the objects that it reaches directly."""

    lines: str  # its facts, which are many: a line for each, with _BETWEEN kind, place and text
    reached: list[object]
    digest: str  # of the lines


class _Unimported(NamedTuple):
    """A module that only a compilation imports."""

    name: str


def source_key(*roots: object) -> str:
    """A digest that changes with anything that `roots` reach."""
    CPYTHON.require("imports")
    reached: list[object] = []
    texts = [_text_of(root, reached) for root in roots]
    parts, settled = _walk(reached, True, {})
    return _digest_of([*texts, *_digests(parts), *sorted(map(_settled_key, settled))])


def key_facts(*roots: object) -> frozenset[Fact]:
    """Return all facts that the key of `roots` covers."""
    reached: list[object] = []
    for root in roots:
        _text_of(root, reached)
    reachable, _ = _walk(reached, False, {})
    lines = {line for parts in reachable for line in parts.lines.split("\n") if line}
    return frozenset(Fact(*line.split(_BETWEEN)) for line in lines)


# --- the walk -------------------------------------------------------------------------------

_remembered: dict[object, _Parts] = {}  # the parts that modules of flowvm reach
_settled_keys: dict[object, str] = {}


def _walk(
    todo: list[object], stop: bool, known: dict[object, _Parts]
) -> tuple[list[_Parts], list[object]]:
    """Return the parts of all objects reached from `todo`.  `known` has some of them and gets all.
    With `stop`, settled objects are returned and not entered.
    """
    nodes: list[_Parts] = []
    settled = []
    visited = set()
    while todo:
        item = todo.pop()
        if item in visited:
            continue
        visited.add(item)
        if stop and _is_settled(item):
            settled.append(item)
            continue
        if (parts := known.get(item)) is None:
            parts = known[item] = _parts(item)
        nodes.append(parts)
        todo += parts.reached
    return nodes, settled


def _settled_key(item: object) -> str:
    if item not in _settled_keys:
        parts, _ = _walk([item], False, _remembered)
        _settled_keys[item] = _digest_of(_digests(parts))
    return _settled_keys[item]


def _digests(parts_list: list[_Parts]) -> list[str]:
    return sorted(parts.digest for parts in parts_list)


def _is_settled(item: object) -> bool:
    """Return True if an object belongs to a module of flowvm as long as the process lives."""
    if isinstance(item, pytypes.FunctionType):
        return item.__closure__ is None and _is_flowvms(item.__globals__.get("__name__"))
    if isinstance(item, type):
        return _is_flowvms(item.__module__) and "<locals>" not in item.__qualname__
    return isinstance(item, _Unimported)


def _parts(item: Any) -> _Parts:
    facts: list[str] = []
    reached: list[object] = []
    if isinstance(item, pytypes.FunctionType):
        _of_function(item, facts, reached)
    elif isinstance(item, type):
        _of_class(item, facts, reached)
    else:
        _of_unimported(item, facts, reached)
    facts.sort()
    lines = "\n".join(facts)
    return _Parts(lines, reached, hashlib.sha256(lines.encode()).hexdigest())


def _fact(kind: str, place: str, text: str) -> str:
    return f"{kind}{_BETWEEN}{place}{_BETWEEN}{text}"


def _of_function(function: pytypes.FunctionType, facts: list[str], reached: list[object]) -> None:
    code, scope = function.__code__, function.__globals__
    module = scope.get("__name__") or ""
    place = f"{module}.{function.__qualname__}"
    if not _is_foreign(module):
        facts += _of_code(code, module, place, scope)
        names = _names(code)
        _of_names(names | _MODULE_OPTIONS, scope, module, facts, reached)
        _of_imports(code, names, facts, reached)
    cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
    for name, cell in cells.items():
        facts.append(_fact("given", f"{place}.{name}", _text_of(_in_cell(cell), reached)))
    defaults = (function.__defaults__, function.__kwdefaults__)
    if any(defaults):
        facts.append(_fact("given", f"{place}()", _text_of(defaults, reached)))
    wrapped = getattr(function, "__wrapped__", None)
    if wrapped is not None:
        _text_of(wrapped, reached)


# options that are looked up in the module of a function
_MODULE_OPTIONS = {"INLINE_ALWAYS", "LOOPS_ONLY", "REASSOCIATE", "WORDS_ONLY"}


def _in_cell(cell: pytypes.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # nothing yet
        return ...


def _of_code(
    code: pytypes.CodeType, module: str, place: str, scope: dict[str, object]
) -> Iterator[str]:
    path = code.co_filename
    if path.startswith("<"):
        yield _fact("function", place, _code_digest(code))
        return
    # two lambdas of one line have one name; a user's module may be reloaded, its file edited
    named = _is_flowvms(module) and code.co_name != "<lambda>"
    which = "" if named else _code_digest(code)
    yield _fact("function", place, f"line {code.co_firstlineno} {which}")
    try:
        yield _fact("file", module, file_digest(path))
    except OSError as error:
        lines = linecache.getlines(path, scope)  # a notebook's cell, or a zipped module
        if not lines:
            raise CompileError(
                f"{place} was read from {path}, which cannot be read any more ({error}); "
                f"put it back, or start Python again: the cache could take it for another"
            ) from error
        yield _fact("file", module, _digest_of(lines))


class _Named(NamedTuple):
    """The meaning of a name: its line for the key, the objects it reaches, and its contents if it
    is a module or namespace.
    """

    fact: str
    reached: list[object]
    inner: tuple[str, dict[str, object]] | None


_NO_FACT = _Named("", [], None)
_named_in: dict[str, dict[str, _Named]] = {}  # of the modules of flowvm


def _of_names(
    names: set[str],
    scope: Mapping[str, object],
    module: str,
    facts: list[str],
    reached: list[object],
) -> None:
    """Add the meaning of `names` in a module, and in the modules and namespaces that they name."""
    todo, scopes = [(module, scope)], [scope]
    while todo:
        where, held = todo.pop()
        known: dict[str, _Named] = {}
        if where in sys.modules and vars(sys.modules[where]) is held and _is_flowvms(where):
            known = _named_in.setdefault(where, known)
        for name in names & held.keys():
            named = known.get(name)
            if named is None:
                named = known[name] = _named(where, name, held[name])
            reached += named.reached
            if named.fact:
                facts.append(named.fact)
            elif named.inner and not any(named.inner[1] is other for other in scopes):
                scopes.append(named.inner[1])
                todo.append(named.inner)


def _named(where: str, name: str, value: object) -> _Named:
    if isinstance(value, Lazy):
        inner = name_of(value)
        if _is_foreign(inner):
            return _Named("", [Lazy], None)
        if _is_unimported(inner):
            return _Named("", [Lazy, _Unimported(inner)], None)
        return _Named("", [Lazy], (inner, vars(importlib.import_module(inner))))
    if isinstance(value, pytypes.ModuleType):
        inner = value.__name__
        return _NO_FACT if _is_foreign(inner) else _Named("", [], (inner, vars(value)))
    if isinstance(value, pytypes.SimpleNamespace):
        return _Named("", [], (f"{where}.{name}", vars(value)))
    if name.startswith("__") or not _counts(name, value):
        return _NO_FACT
    reached: list[object] = []
    return _Named(_fact("constant", f"{where}.{name}", _text_of(value, reached)), reached, None)


def _counts(name: str, value: object) -> bool:
    """Return True if a value under `name` in a module or class is no state of the process."""
    return name.isupper() or not _can_change(value)


def _can_change(value: object) -> bool:
    kind = type(value)
    if kind in _PLAINEST or kind is pytypes.FunctionType:
        return False
    if isinstance(value, (_PLAIN, tuple, frozenset, np.ndarray, type, _CODE, functools.partial)):
        return False
    if hasattr(kind, "jit_parts") or _is_frozen(value) or isinstance(value, _ATTRIBUTES):
        return False
    return _wrapped(value) is None


def _of_imports(
    code: pytypes.CodeType, names: set[str], facts: list[str], reached: list[object]
) -> None:
    """Add the modules of flowvm that `code` imports, and the meaning of `names` in them."""
    if not any(map(_is_flowvms, names)):
        return
    for name, members in imports_of(code):
        if not _is_flowvms(name):
            continue
        if _is_unimported(name):
            reached.append(_Unimported(name))
            continue
        held = vars(importlib.import_module(name))
        if not members:
            _of_names(names, held, name, facts, reached)
        for inner in members:
            value = held.get(inner)
            if value is not None and not isinstance(value, pytypes.ModuleType):
                _of_names({inner}, held, name, facts, reached)
                continue
            inner = f"{name}.{inner}" if value is None else value.__name__
            if _is_unimported(inner):
                reached.append(_Unimported(inner))
            elif not _is_foreign(inner):
                _of_names(names, vars(importlib.import_module(inner)), inner, facts, reached)


@functools.cache
def _origin(name: str) -> str:
    """The file of the module `name`, or "" where there is none."""
    if name in sys.modules:
        return getattr(sys.modules[name], "__file__", None) or ""
    spec = importlib.util.find_spec(name)
    return "" if spec is None else spec.origin or ""


_TOP_IMPORT = re.compile(
    rb"^(?:import|from) (?:numba|llvmlite|flowvm\.private\.numba_cuda)\b", re.MULTILINE
)


@functools.cache
def _is_unimported(name: str) -> bool:
    """Return True if module `name` imports Numba, llvmlite or Numba-CUDA: it serves compilation and
    is imported late.
    """
    path = _origin(name)
    return bool(path) and _TOP_IMPORT.search(Path(path).read_bytes()) is not None


def _of_unimported(module: _Unimported, facts: list[str], reached: list[object]) -> None:
    facts.append(_fact("file", module.name, file_digest(_origin(module.name))))
    spec = importlib.util.find_spec(module.name)
    assert spec is not None
    code = spec.loader.get_code(module.name)  # type: ignore[union-attr]
    _of_imports(code, _names(code), facts, reached)


def _of_class(kind: type, facts: list[str], reached: list[object]) -> None:
    """Add all members of a class, since any of them may be called on an instance."""
    place = f"{kind.__module__}.{kind.__qualname__}"
    _text_of(kind.__bases__, reached)
    for name, value in vars(kind).items():
        if name in _OF_EVERY_CLASS or not _counts(name, value):
            continue
        facts.append(_fact("attribute", f"{place}.{name}", _text_of(value, reached)))


_OF_EVERY_CLASS = {
    "__module__", "__qualname__", "__doc__", "__dict__", "__weakref__", "__annotations__",
    "__parameters__", "__orig_bases__", "__abstractmethods__", "__match_args__", "__hash__",
    "__firstlineno__", "__static_attributes__", "__annotate_func__", "__annotations_cache__",
}  # fmt: skip


# --- values as text --------------------------------------------------------------------------

_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...), range, slice, np.generic,
          np.dtype, enum.Enum, re.Pattern)  # fmt: skip
_PLAINEST = {bool, int, float, str, bytes, type(None)}  # most values
_CODE = (pytypes.FunctionType, pytypes.MethodType, pytypes.BuiltinFunctionType, np.ufunc)
_ATTRIBUTES = (property, functools.cached_property, staticmethod, classmethod)


def _text_of(value: Any, reached: list[object]) -> str:
    """`value` as text that is the same in every process; functions and classes that it holds are
    named, and added to `reached`.
    """
    kind = type(value)
    if kind in _PLAINEST:
        return f"{kind.__name__} {value!r}"
    if kind is pytypes.FunctionType:
        reached.append(value)
        return f"function {value.__module__}.{value.__qualname__}"
    if isinstance(value, enum.Enum):
        return f"{kind.__qualname__}.{value.name} = {_text_of(value.value, reached)}"
    if isinstance(value, re.Pattern):
        return f"pattern {value.flags} {value.pattern!r}"
    if isinstance(value, np.generic):
        return f"{value.dtype.str} {value.tobytes().hex()}"
    if isinstance(value, _PLAIN):
        return f"{kind.__name__} {value!r}"
    if isinstance(value, np.ndarray):
        digest = hashlib.sha256(np.ascontiguousarray(value).data).hexdigest()
        return f"array {value.dtype.str} {value.shape} {digest}"
    if isinstance(value, (tuple, list)):
        if kind not in (tuple, list):
            _text_of(kind, reached)  # a named tuple's methods
        return f"{kind.__name__}({', '.join(_text_of(item, reached) for item in value)})"
    if isinstance(value, (dict, pytypes.MappingProxyType)):
        items = (f"{_text_of(k, reached)}: {_text_of(v, reached)}" for k, v in value.items())
        return f"{kind.__name__}({', '.join(items)})"
    if isinstance(value, (set, frozenset)):
        return f"{kind.__name__}({', '.join(sorted(_text_of(item, reached) for item in value))})"
    if isinstance(value, pytypes.CodeType):
        return f"code {_code_digest(value)}"
    if isinstance(value, pytypes.ModuleType):
        return f"module {value.__name__}"
    if isinstance(value, Lazy):
        return f"module {name_of(value)}"
    return _text_of_code(value, reached)


def _text_of_code(value: Any, reached: list[Any]) -> str:
    """Return the line of an object with code: a function in any wrapper, a class or its
    instance.
    """
    kind = type(value)
    if isinstance(value, type):
        # raised exceptions become a status, whatever else their class defines
        if not _is_foreign(value.__module__) and not issubclass(value, BaseException):
            reached.append(value)
        return f"class {value.__module__}.{value.__qualname__}"
    if isinstance(value, functools.partial):
        return f"partial {_text_of((value.func, value.args, value.keywords), reached)}"
    if isinstance(value, pytypes.MethodType):
        return f"method {_text_of((value.__func__, value.__self__), reached)}"
    if isinstance(value, property):
        return f"property {_text_of((value.fget, value.fset), reached)}"
    if isinstance(value, functools.cached_property):
        return f"property {_text_of(value.func, reached)}"
    if (inner := _wrapped(value)) is not None:
        return f"{kind.__name__} {_text_of(inner, reached)}"
    if isinstance(value, (pytypes.BuiltinFunctionType, np.ufunc)):
        return f"function {value.__name__}"
    if _is_foreign(kind.__module__):
        return f"an object of {kind.__module__}.{kind.__qualname__}"
    reached.append(kind)
    held: object = ()
    if hasattr(value, "jit_parts"):
        held = value.jit_parts()
    elif _is_frozen(value):
        held = [(f.name, getattr(value, f.name)) for f in dataclasses.fields(value)]
    return f"an object of {kind.__module__}.{kind.__qualname__} {_text_of(held, reached)}"


def _wrapped(value: object) -> Any:
    """Return the function inside a static method, Numba's dispatcher, or a `functools.cache`."""
    if _is_foreign(type(value).__module__):
        for name in ("__func__", "py_func", "__wrapped__"):
            if hasattr(value, name):
                return getattr(value, name)
    return None


def _is_frozen(value: object) -> bool:
    parameters = getattr(type(value), "__dataclass_params__", None)
    return parameters is not None and parameters.frozen


@functools.cache
def _is_flowvms(module: str | None) -> bool:
    return _package(module) == "flowvm"


def _package(module: str | None) -> str:
    return (module or "").partition(".")[0]


_FOREIGN = {*sys.stdlib_module_names, "numpy", "scipy", "numba", "numba_cuda", "llvmlite"} - {
    "__main__"
}


@functools.cache
def _is_foreign(module: str | None) -> bool:
    """Return True if a module belongs neither to flowvm nor to its user."""
    return _package(module) in _FOREIGN


def _names(code: pytypes.CodeType) -> set[str]:
    """The names of globals, attributes and imports in `code` and the code written inside it."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, pytypes.CodeType):
            names |= _names(constant)
    return names


def _code_digest(code: pytypes.CodeType) -> str:
    constants = [_text_of(c, []) for c in code.co_consts]
    arguments = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    return _digest_of([code.co_code.hex(), repr(arguments), repr(names), *constants])


@functools.cache
def file_digest(path: str) -> str:
    """A digest of the file's text."""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def _digest_of(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
