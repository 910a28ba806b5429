"""Reads: the Python values that code read while it was captured, recorded where it read them.

`Observer` (`flowvm.nn.graph.observer`) sees each instruction of the code that runs and says here
what it reads: a global, a closure's variable, an attribute, an item, all of a container.  Each
becomes a *guard* (`flowvm.nn.graph.guards`) on the value that was there.  An attribute is looked up
here as Python does it, without running anybody's code, so that its guard stands where the value was
found; code that runs to find it, a property's or a `__getattr__`'s, is seen itself.

No guard is needed for an object that the code made itself (`fresh`), nor for a place that it wrote
before it read there.  A place that it only wrote is guarded with what it left there: each call of
eager code would leave that.  Where a guard does not hold when the capture ends, the code changes
what it reads, so the Plan serves no other call.

The first part says whose code and whose objects these are, the user's, flowvm's or a library's, and
which names a function loads by its bytecode: globals, closure variables, attributes of those and of
its first parameter.
"""

from __future__ import annotations

import array
import ctypes
import datetime
import decimal
import functools
import os
import sys
import sysconfig
import types
import uuid
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from types import CodeType, ModuleType
from typing import Any, Protocol

import numpy as np

from flowvm.eager.live import Live
from flowvm.eager.tensor import Tensor
from flowvm.nn.graph.guards import (
    MISSING,
    Answer,
    Attribute,
    Bound,
    Bytes,
    Cell,
    Contents,
    Entry,
    Guard,
    Guards,
    Item,
    Key,
    Length,
    Lives,
    Namer,
    Order,
    State,
    state_of,
)
from flowvm.nn.module import Module
from flowvm.private import cpython
from flowvm.private.cpython import CPYTHON
from flowvm.vm.callers.lines import is_internal

# --- names ------------------------------------------------------------------------------------


_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})


def is_library(code: CodeType) -> bool:
    """Return True if code is not a user's: flowvm's own, or an installed package's."""
    name = code.co_filename
    library = name.startswith((*_LIBRARIES, "<frozen")) or bool(_in_packages(name))
    return library or is_internal(name)


@functools.lru_cache(maxsize=4096)
def loads_of(code: CodeType) -> tuple[tuple[str, str, tuple[str, ...]], ...]:
    """(kind, name, attributes behind it) of the names that code loads; kind is "global", "closure"
    or, for the first parameter, "self".
    """
    CPYTHON.require("loads")
    return tuple(dict.fromkeys(cpython.loads_of(code, code.co_varnames[:1])))


_STDLIB = sysconfig.get_path("stdlib") + os.sep
# Of the standard library, what keeps caches and locks of its own: nothing in it is a program's
# state.  Of installed packages, those that flowvm is made of, and those that run programs.
_UNSEEN_STDLIB = (
    "_strptime", "_weakrefset", "abc", "ast", "asyncio", "bdb", "codeop", "copyreg", "ctypes",
    "dis", "doctest", "encodings", "importlib", "inspect", "linecache", "locale",
    "multiprocessing", "pdb", "pickle", "random", "re", "sre_compile", "sre_parse", "threading",
    "token", "tokenize", "traceback", "typing", "unittest", "warnings",
)  # fmt: skip
_UNSEEN_PACKAGES = (
    "IPython", "_pytest", "coverage", "greenlet", "hypothesis", "ipykernel", "llvmlite", "mpi4py",
    "numba", "numba_cuda", "numpy", "pluggy", "pytest", "rich", "safetensors", "scipy", "torch",
    "xdist",
)  # fmt: skip


@functools.lru_cache(maxsize=4096)
def is_seen(filename: str) -> bool:
    """Return True if reads of code in this file are recorded: not flowvm's own, and not libraries'
    whose state is private.
    """
    if is_internal(filename) or filename.startswith("<frozen importlib"):
        return False
    inside = _in_packages(filename)
    if inside:
        return inside.split(os.sep)[0].removesuffix(".py") not in _UNSEEN_PACKAGES
    if is_stdlib(filename):
        rest = filename.removeprefix(_STDLIB)
        return rest.split(os.sep)[0].removesuffix(".py") not in _UNSEEN_STDLIB
    return True


def _in_packages(filename: str) -> str:
    """The part of a path that is inside of a folder of installed packages, or ""."""
    for folder in ("site-packages", "dist-packages"):
        _, separator, inside = filename.rpartition(f"{os.sep}{folder}{os.sep}")
        if separator:
            return inside
    return ""


@functools.lru_cache(maxsize=4096)
def is_stdlib(filename: str) -> bool:
    """Return True if a file belongs to the standard library."""
    if filename.startswith("<frozen"):
        return True
    return filename.startswith(_STDLIB) and not _in_packages(filename)


def is_internal_module(module: Module) -> bool:
    """Return True if a layer's forward is flowvm's own code."""
    code = getattr(type(module).forward, "__code__", None)
    return code is None or is_internal(code.co_filename)


def is_ours(value: object) -> bool:
    """Return True if an object is flowvm's and no module: an optimizer, a generator, a graph."""
    if isinstance(value, (Module, ModuleType)):
        return False
    module = sys.modules.get(type(value).__module__)
    return is_internal(getattr(module, "__file__", None) or "")


# --- reads ------------------------------------------------------------------------------------


ITEMS = 1024  # of a larger container only the length is watched, which is said
BYTES = 1 << 16  # of a larger array nothing is watched, which is said
DEPTH = 3  # of containers in containers

# of a dict, as the code was given them; pairs are new ones each time
VIEWS: tuple[type, type] = (type({}.keys()), type({}.values()))
PAIRS: type = type({}.items())
CONTAINERS = (list, dict, set, deque, *VIEWS)
COUNTED: Any = (*CONTAINERS, PAIRS)
_C_DATA = (ctypes.Array, ctypes.Structure, ctypes.Union)
ARRAYS = (np.ndarray, bytearray, memoryview, array.array, *_C_DATA)
_ATOMS = (
    type(None), bool, int, float, complex, str, bytes, type(...), type(NotImplemented), range,
    slice, frozenset, np.generic, decimal.Decimal, datetime.date, datetime.time, uuid.UUID,
    datetime.timedelta, types.CodeType,
)  # fmt: skip
# a run's own: no other run has them, and a frame keeps what is in its variables alive
_RUNNING = (
    types.FrameType, types.TracebackType, types.GeneratorType, types.CoroutineType,
    types.AsyncGeneratorType,
)  # fmt: skip
_VERSIONS = ("version", "_version")
_KEYS = (str, int, float, bool, bytes, type(None), complex)
_PLAIN_GETTERS = (property, types.FunctionType, functools.cached_property)
_C_GETTERS = (types.MemberDescriptorType, types.GetSetDescriptorType)
_C_METHODS = (
    types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType,
    types.BuiltinFunctionType,
)  # fmt: skip
_HEAP, _IMMUTABLE = 1 << 9, 1 << 8


class Around(Protocol):
    """The environment of a capture, which know tensors and modules."""

    def look_into(self, value: Any, label: str) -> None:
        """Watch a tensor or a module that was read."""

    def is_computed(self, value: object) -> bool:
        """Return True if `value` is a tensor that the capture has made."""


class Reads(Guards):
    """The values that one capture read, with a guard for each.

    unwatched  what cannot be watched, in words, and the line: (text, file, number)
    """

    def __init__(self, around: Around) -> None:
        super().__init__()
        self._around: Around = weakref.proxy(around)  # which has this one
        self._written: dict[Key, Guard] = {}
        self._fresh: set[int] = set()
        self._ours: set[int] = set()
        self._labels: dict[int, str] = {}
        self._iterators: set[int] = set()
        self._cells: dict[int, Any] = {}
        self.hidden: dict[int, frozenset[str]] = {}  # names of an object that are no user's
        self.changed: list[str] = []  # what the code changes itself
        self.unwatched: dict[str, tuple[str, int]] = {}

    # --- what is known of objects -------------------------------------------------------------

    def own(self, value: Any) -> None:
        """Code has made this object: whoever reads it reads what the code says."""
        self._fresh.add(id(value))

    def own_all(self, tree: object) -> None:
        """The containers of a call's arguments are made for this call."""
        if isinstance(tree, (tuple, list)):
            self._fresh.add(id(tree))
            for item in tree:
                self.own_all(item)
        elif isinstance(tree, dict):
            self._fresh.add(id(tree))
            for item in tree.values():
                self.own_all(item)

    def own_dict(self, thing: object) -> None:
        """The dict of an object that code has made is its own, too."""
        if id(thing) in self._fresh:
            own = instance_dict(thing)
            if own is not None:
                self._fresh.add(id(own))

    def leave(self, changing: Iterable[object]) -> None:
        """Do not look at these: they change from call to call, and a replay knows."""
        self._ours.update(map(id, changing))

    def name(self, thing: object, label: str) -> None:
        """Call an object by this name."""
        self._labels.setdefault(id(thing), label)

    def label(self, thing: Any) -> str:
        """The name of an object, as the user reaches it."""
        known = self._labels.get(id(thing))
        if known is not None:
            return known
        if isinstance(thing, type):
            return thing.__qualname__.rpartition("<locals>.")[2]
        if type(thing) in (types.FunctionType, types.ModuleType):
            return str(thing.__name__)
        return type(thing).__name__

    def has_iterators(self) -> bool:
        """True if the code read an iterator that it did not make."""
        return bool(self._iterators)

    def is_outside_iterator(self, thing: object) -> bool:
        """Return True if `thing` is an iterator that the code read and did not make."""
        return id(thing) in self._iterators and id(thing) not in self._fresh

    def note_unwatched(self, text: str, place: tuple[str, int]) -> None:
        """Something at a place cannot be watched."""
        self.unwatched.setdefault(text, place)

    # --- reads ----------------------------------------------------------------------------------

    def read_global(self, names: dict[str, Any], builtin: dict[str, Any], name: str) -> None:
        """A global, or a builtin of that name."""
        then = names.get(name, MISSING)
        self._record(("entry", id(names), name), Entry(name, names, name, then))
        if then is not MISSING:
            return
        if name in builtin:
            guard = Entry(f"builtins.{name}", builtin, name, builtin[name])
            self._record(("entry", id(builtin), name), guard)

    def read_cell(self, function: object, name: str) -> None:
        """A variable of a closure; not one of a function around that the capture runs itself."""
        cell = self._cell(function, name)
        if cell is not None and ("cell", id(cell)) not in self._guards:
            try:
                then = cell.cell_contents
            except ValueError:
                then = MISSING
            self._record(("cell", id(cell)), Cell(name, cell, then))

    def _cell(self, function: Any, name: str) -> Any:
        code = function.__code__
        if name not in code.co_freevars:
            return None
        cell = function.__closure__[code.co_freevars.index(name)]
        return cell if id(cell) in self._cells else None

    def run(self, function: Any, first: object) -> None:
        """A function begins to run, for the first argument `first`, or MISSING."""
        code = function.__code__
        if first is not MISSING and not isinstance(first, _ATOMS):
            self._read_method(type(first), function)
        if id(function) in self._fresh:
            return
        for cell in function.__closure__ or ():
            self._cells[id(cell)] = cell
        label = function.__qualname__.rpartition("<locals>.")[2]
        key = ("attribute", id(function))
        self._record((*key, "__code__"), Attribute(f"{label}.__code__", function, "__code__", code))
        for name in ("__defaults__", "__kwdefaults__"):
            values = getattr(function, name)
            if values is None:
                continue
            self._record((*key, name), Attribute(f"{label}.{name}", function, name, values))
            named = values.items() if isinstance(values, dict) else _defaults(code, values)
            for argument, value in named:
                self._value(value, f"{label}'s {argument}")
            if isinstance(values, dict):
                self.consume(values)

    def _read_method(self, kind: type, function: Any) -> None:
        """A method runs, however it was looked up: by an operator, a `with`, a call."""
        if issubclass(kind, Tensor):
            return
        name = function.__code__.co_name
        if _in_class(kind, name)[0] is not MISSING:
            self.read_class(kind, name)
            return
        for base in kind.__mro__ if not issubclass(kind, type) else ():
            for name, raw in base.__dict__.items():
                if raw is function:
                    self.read_class(kind, name)

    def read_attribute(self, thing: object, name: str) -> None:
        """`thing.name`: a guard where Python finds it."""
        kind = type(thing)
        if name == "__dict__":
            self.own_dict(thing)
        if isinstance(thing, (Live, *_ATOMS)) or name in self.hidden.get(id(thing), ()):
            return
        if isinstance(thing, Tensor):
            own = instance_dict(thing)
            if name in _VERSIONS and not self._around.is_computed(thing):
                self.note_unwatched(f"{self.label(thing)}.{name}, which writing counts", ("", 0))
            if name == "retains_grad" and not self._around.is_computed(thing):
                guard = Attribute(_join(self.label(thing), name), thing, name, thing.retains_grad)
                self._record(("entry", id(thing), name), guard)
            if own is not None and name in own and not self._around.is_computed(thing):
                self._read_own(thing, own, name)
            return
        if kind is types.ModuleType or isinstance(thing, types.ModuleType):
            self._read_module(thing, name)
        elif isinstance(thing, type):
            self.read_class(thing, name)
        elif kind is super:
            self._read_super(thing, name)
        elif isinstance(thing, types.MethodType) and name not in ("__func__", "__self__"):
            self.read_attribute(thing.__func__, name)
        elif isinstance(thing, ARRAYS):
            self.consume(thing)
        elif getattr(kind, "_has_watched_state", False) and self.is_outside(thing):
            self._read_state_of(thing)
        elif not (is_ours(thing) and not isinstance(thing, Module)):
            self._read_instance(thing, name)

    def _read_state_of(self, thing: object) -> None:
        """An object of flowvm's with state of the user's, such as a schedule or a distribution: its
        methods, whose code is not seen, read its numbers, lists and tensors.
        """
        own = vars(thing)
        for name, value in list(own.items()):
            if isinstance(value, (*_ATOMS, list, Tensor)) and not self._around.is_computed(value):
                self._read_own(thing, own, name)
                self.consume(value)

    def _read_module(self, thing: object, name: str) -> None:
        own = vars(thing)
        label = f"{self.label(thing)}.{name}"
        if name in own or not _is_lazy(own):
            then = own.get(name, MISSING)
            self._record(("entry", id(own), name), Entry(label, own, name, then))

    def _read_super(self, thing: Any, name: str) -> None:
        start, owner = thing.__thisclass__, thing.__self_class__
        if owner is None:
            return
        order = owner.__mro__
        for kind in order[order.index(start) + 1 :]:
            if name in kind.__dict__:
                self._class_entry(kind, name)
                return
            self._class_entry(kind, name)

    def _read_instance(self, thing: object, name: str) -> None:
        kind = type(thing)
        if type(_in_class(kind, "__getattribute__")[0]) is types.FunctionType:
            return  # whose code says what it reads
        fresh = id(thing) in self._fresh
        raw, _ = _in_class(kind, name)
        if raw is not MISSING and _is_data(raw):
            if not isinstance(raw, _C_GETTERS):
                self.read_class(kind, name)
            elif not fresh:
                self._read_opaque(thing, name)
            return
        own = instance_dict(thing)
        if own is not None and name in own:
            if not fresh:
                self._read_own(thing, own, name)
        elif raw is MISSING:
            self._read_absent(thing, own, name, fresh)
        elif fresh:
            self.read_class(kind, name)
        else:
            self._read_inherited(thing, own, name, raw)

    def _read_own(self, thing: object, own: dict[str, Any], name: str) -> None:
        """An attribute in an object's own dict."""
        if ("entry", id(own), name) in self._guards:
            return
        then, label = own[name], _join(self.label(thing), name)
        plain = not isinstance(thing, Module) and not _hooks_lookup(type(thing))
        guard = Attribute(label, thing, name, then) if plain else Entry(label, own, name, then)
        self._record(("entry", id(own), name), guard)

    def _read_inherited(self, thing: object, own: object, name: str, raw: object) -> None:
        """An attribute of an object's class, that the object has not itself."""
        kind, label = type(thing), _join(self.label(thing), name)
        key = ("entry", id(thing if own is None else own), name)
        if not _hooks_lookup(kind):
            if type(raw) is types.FunctionType:
                self._record(key, Bound(label, thing, name, raw))
                return
            if isinstance(raw, staticmethod):
                self._record(key, Attribute(label, thing, name, raw.__func__))
                return
            if not hasattr(type(raw), "__get__"):
                self._record(key, Attribute(label, thing, name, raw))
                return
        if own is not None and _changes(kind) and type(raw) not in _C_METHODS:
            self._record(key, Entry(label, own, name, MISSING))
            self._record(("class", id(thing)), Order(f"the class of {label}", thing, kind))
        self.read_class(kind, name, self.label(thing))

    def _read_absent(self, thing: object, own: object, name: str, fresh: bool) -> None:
        """An attribute that nobody has; perhaps a `__getattr__` says what it is."""
        kind, label = type(thing), _join(self.label(thing), name)
        hook, _ = _in_class(kind, "__getattr__")
        if hook is not MISSING and type(hook) is not types.FunctionType:
            if isinstance(thing, dict) and hook is dict.__getitem__:
                self.read_item(thing, name)
            elif not fresh:
                self._read_opaque(thing, name)
            return
        if own is not None and not fresh:
            self._record(("entry", id(own), name), Entry(label, own, name, MISSING))
        self._record(("lacks", id(kind), name), Attribute(label, kind, name, MISSING))

    def _read_opaque(self, thing: object, name: str) -> None:
        """An attribute that C code finds: a slot, a partial's `func`, a thread's own."""
        if name in ("__class__", "__dict__", "__doc__"):
            return
        try:
            then = object.__getattribute__(thing, name)
        except AttributeError:
            try:
                then = getattr(thing, name)
            except (MemoryError, RecursionError):
                raise
            except Exception:
                return
        label = f"{self.label(thing)}.{name}"
        self._record(("entry", id(thing), name), Attribute(label, thing, name, then))

    def read_class(self, kind: type, name: str, label: str = "") -> None:
        """An attribute that a class has, or one of its bases."""
        raw, owner = _in_class(kind, name)
        meta, _ = _in_class(type(kind), name)
        if meta is not MISSING and (raw is MISSING or _is_data(meta)):
            if name not in type.__dict__:
                self.read_class(type(kind), name)
            return
        if raw is MISSING or owner is None:
            if not _hooks_lookup(type(kind)):
                guard = Attribute(f"{self.label(kind)}.{name}", kind, name, MISSING)
                self._record(("lacks", id(kind), name), guard)
            return
        if not _changes(owner) and all(not _changes(k) for k in kind.__mro__[:-1]):
            return  # C code's
        label = f"{label or self.label(kind)}.{name}"
        key = ("class attribute", id(kind), name)
        plain = type(kind) is type or _in_class(type(kind), name)[0] is MISSING
        if plain and not _hooks_lookup(type(kind), "__getattribute__"):
            if isinstance(raw, classmethod):
                self._record(key, Bound(label, kind, name, raw.__func__))
                return
            if isinstance(raw, staticmethod):
                self._record(key, Attribute(label, kind, name, raw.__func__))
                return
            if not hasattr(type(raw), "__get__") or isinstance(raw, (*_PLAIN_GETTERS, *_C_GETTERS)):
                self._record(key, Attribute(label, kind, name, raw))
                return
        for base in kind.__mro__:
            self._class_entry(base, name)
            if base is owner:
                return

    def _class_entry(self, kind: type, name: str) -> None:
        if _changes(kind):
            own = kind.__dict__
            then = own.get(name, MISSING)
            label = f"{self.label(kind)}.{name}"
            self._record(("class entry", id(kind), name), Entry(label, own, name, then))

    def read_item(self, container: object, key: object) -> None:
        """`container[key]`."""
        kind = type(container)
        if isinstance(container, (Tensor, Live, *_ATOMS)) or id(container) in self._ours:
            return
        if id(container) in self._fresh:
            return
        text = f"{self.label(container)}[{key!r:.40}]" if type(key) in _KEYS else ""
        if isinstance(container, dict):
            if not text or _in_class(kind, "__getitem__")[0] is not dict.__getitem__:
                self.consume(container)
                return
            then = dict.get(container, key, MISSING)
            self._record(("entry", id(container), key), Entry(text, container, key, then))
        elif isinstance(container, types.MappingProxyType) and text:
            then = container.get(key, MISSING)
            self._record(("entry", id(container), key), Entry(text, container, key, then))
        elif isinstance(container, tuple):
            if type(key) is int and -len(container) <= key < len(container):
                self._value(container[key], text)
        elif isinstance(container, (list, deque)) and type(key) is int:
            if -len(container) <= key < len(container):
                guard = Item(text, container, key, container[key])
                self._record(("item", id(container), key), guard)
            else:
                self.read_length(container)
        else:
            self.consume(container)

    def read_length(self, container: object) -> None:
        """`len(container)`, or whether it is empty."""
        if isinstance(container, COUNTED) and self.is_outside(container):
            guard = Length(self.label(container), container, len(container))
            self._record(("length", id(container)), guard)
        elif isinstance(container, ARRAYS):
            self.consume(container)

    def read_answer(self, label: str, function: Any, args: tuple[Any, ...]) -> None:
        """Record the answer of a function without effects, with a guard on it."""
        is_fresh = any(id(one) in self._fresh for one in (function, *args))
        if is_fresh or (args and isinstance(args[0], (Tensor, *_ATOMS))):
            return
        key = ("answer", id(getattr(function, "__self__", function)), *map(id, args))
        self._record(key, Answer(label, function, args, function(*args)))

    def read_reference(self, reference: Any) -> None:
        """A weak reference is asked for its object."""
        if id(reference) not in self._fresh:
            label = f"{self.label(reference)}()"
            self._value(reference(), label)
            guard = Lives(f"{label} is there", reference, reference() is not None)
            self._record(("answer", id(reference)), guard)

    def read_partial(self, partial: functools.partial[Any]) -> None:
        """A `functools.partial` is called."""
        if id(partial) in self._fresh:
            return
        label = self.label(partial)
        for name in ("func", "args", "keywords"):
            guard = Attribute(f"{label}.{name}", partial, name, getattr(partial, name))
            self._record(("entry", id(partial), name), guard)
        if isinstance(partial.func, functools.partial):
            self.read_partial(partial.func)
        for number, value in enumerate(partial.args):
            self._value(value, f"{label}.args[{number}]")
        for name in partial.keywords:
            self.read_item(partial.keywords, name)

    def read_state(self, source: object) -> None:
        """Code draws from a generator of random numbers of its own."""
        if self.is_outside(source):
            guard = State(self.label(source), source, state_of(source))
            self._record(("state", id(source)), guard)

    def consume(self, thing: object, depth: int = 0) -> None:
        """All of a container, or of an array, is read."""
        if isinstance(thing, (Tensor, Live, *_ATOMS)) or id(thing) in self._ours:
            return
        if isinstance(thing, ARRAYS):
            self._consume_array(thing)
        elif isinstance(thing, tuple):
            for item in thing if depth < DEPTH else ():
                self.consume(item, depth + 1)
        elif isinstance(thing, CONTAINERS):
            self._consume_container(thing, depth)
        elif isinstance(thing, PAIRS) and self.is_outside(thing):
            self.read_length(thing)
            self.note_unwatched(f"the pairs of {self.label(thing)}, a view of a dict", ("", 0))
        elif isinstance(thing, functools.partial):
            self.read_partial(thing)

    def _consume_container(self, thing: Any, depth: int) -> None:
        label, large = self.label(thing), len(thing) > ITEMS
        if id(thing) not in self._fresh:
            if large:
                self.read_length(thing)
                self.note_unwatched(f"of {label}, of {len(thing)} items, the length alone", ("", 0))
                return
            self._record(("contents", id(thing)), Contents(label, thing))
        items = thing.values() if isinstance(thing, dict) else thing
        for number, item in enumerate(items if depth < DEPTH and not large else ()):
            if not isinstance(item, _ATOMS):
                if id(thing) not in self._fresh:
                    self._value(item, f"{label}[{number}]")
                self.consume(item, depth + 1)

    def _consume_array(self, thing: Any) -> None:
        if not self.is_outside(thing):
            return
        label = self.label(thing)
        is_c = isinstance(thing, _C_DATA)
        size = ctypes.sizeof(thing) if is_c else getattr(thing, "nbytes", None) or len(thing)
        if size > BYTES:
            self.note_unwatched(f"the values of {label}, an array of {size} bytes", ("", 0))
            return
        guard = Bytes(label, thing, None)
        guard.then = guard._read()
        self._record(("bytes", id(thing)), guard)

    # --- writes ---------------------------------------------------------------------------------

    def write_attribute(self, thing: object, name: str, value: object) -> None:
        """`thing.name = value` is about to be done."""
        if isinstance(thing, (Tensor, Live)) or id(thing) in self._fresh:
            return
        if name in self.hidden.get(id(thing), ()) or (
            is_ours(thing) and not isinstance(thing, Module)
        ):
            return
        own = vars(thing) if isinstance(thing, types.ModuleType) else instance_dict(thing)
        raw, _ = _in_class(type(thing), name)
        if raw is not MISSING and _is_data(raw):
            if not isinstance(raw, _C_GETTERS):
                return  # its code says what it writes
            own = None
        key = ("entry", id(thing if own is None else own), name)
        label = _join(self.label(thing), name)
        if isinstance(thing, type):
            key = ("class attribute", id(thing), name)
        self._write(key, Attribute(label, thing, name, None), value)

    def write_global(self, names: dict[str, Any], name: str, value: object) -> None:
        """A global is about to be assigned."""
        self._write(("entry", id(names), name), Entry(name, names, name, None), value)

    def write_cell(self, function: object, name: str, value: object) -> None:
        """A closure's variable is about to be assigned."""
        cell = self._cell(function, name)
        if cell is not None:
            self._write(("cell", id(cell)), Cell(name, cell, None), value)

    def write_item(self, container: object, key: object, value: object) -> None:
        """`container[key] = value` is about to be done."""
        if id(container) in self._ours or not self.is_outside(container):
            return
        if isinstance(container, ARRAYS) or isinstance(value, Tensor) or type(key) not in _KEYS:
            self.consume(container)
            return
        text = f"{self.label(container)}[{key!r:.40}]"
        if isinstance(container, dict):
            self._write(("entry", id(container), key), Entry(text, container, key, None), value)
        elif isinstance(container, (list, deque)) and type(key) is int:
            self._write(("item", id(container), key), Item(text, container, key, None), value)

    def _write(self, key: Key, guard: Guard, value: object) -> None:
        if key not in self._guards and not isinstance(value, (Tensor, Live)):
            self._written[key] = guard

    # --- recording ------------------------------------------------------------------------------

    def is_outside(self, thing: object) -> bool:
        """Return True if an object existed before the code ran, and is none of flowvm's."""
        return id(thing) not in self._fresh and id(thing) not in self._ours

    def _record(self, key: Key, guard: Guard) -> None:
        if key in self._guards:
            return
        if key in self._written or isinstance(guard.then, Live) or id(guard.owner) in self._ours:
            return
        if self._around.is_computed(guard.then) or self._is_of_run(guard):
            return
        self._guards[key] = guard
        if not isinstance(guard.then, _ATOMS):
            self._value(guard.then, guard.label)

    def _is_of_run(self, guard: Guard) -> bool:
        """Return True if a value belongs to this run alone: a frame, or part of an error that was
        raised in it and has no name.
        """
        owner = guard.owner
        if isinstance(owner, BaseException):
            return id(owner) not in self._labels or isinstance(guard.then, _RUNNING)
        return isinstance(owner, _RUNNING) or isinstance(guard.then, _RUNNING[:2])

    def _value(self, value: object, label: str) -> None:
        """A value that was read, by the name of where it was."""
        if isinstance(value, _ATOMS) or value is MISSING:
            return
        if isinstance(value, (Tensor, Module)):
            self._around.look_into(value, label)
            return
        if id(value) in self._fresh:
            return
        if not isinstance(value, (type, types.FunctionType, types.ModuleType)):
            self._labels.setdefault(id(value), label)
        if isinstance(value, Iterator):
            self._iterators.add(id(value))

    # --- when the capture is over ---------------------------------------------------------------

    def settle(self, known: set[Key]) -> None:
        """Note what the capture left, and what it changed itself; do not ask for the places
        `known`, which others ask for.
        """
        for key, guard in self._written.items():
            guard.then = guard.now()
            if not isinstance(guard.then, (Tensor, Live)) and guard.then is not MISSING:
                self._guards[key] = guard
        self.changed = [g.label for g in self if not g.holds()]
        for key in (known & self.keys()) - self._written.keys():
            self.drop(key)
        for own in (self._written, self._fresh, self._iterators, self._labels):
            own.clear()
        self._cells.clear()
        self.hidden.clear()

    def holds(self) -> bool:
        """Return True if all values that the capture read are as they were."""
        return not self.changed and super().holds()

    def difference(self) -> list[str]:
        """List the changes since the capture as text; empty if the guards hold."""
        differences = super().difference()
        if not differences and self.changed:
            return [f"{', '.join(self.changed[:3])}, which build changes itself"]
        return differences

    def expression(self, name: Namer) -> str:
        """Source that is true if everything is the very object that it was."""
        return "False" if self.changed else super().expression(name)


# --- how Python looks attributes up ---------------------------------------------------------------


def _in_class(kind: type, name: str) -> tuple[Any, type | None]:
    """Return the raw attribute `name` of a class, and the class of its MRO that defines it."""
    for base in kind.__mro__:
        if name in base.__dict__:
            return base.__dict__[name], base
    return MISSING, None


def _is_data(raw: object) -> bool:
    kind = type(raw)
    return hasattr(kind, "__set__") or hasattr(kind, "__delete__")


def _hooks_lookup(kind: type, *names: str) -> bool:
    """Return True if a class defines lookup of missing names, or of all names."""
    for name in names or ("__getattr__", "__getattribute__"):
        raw, _ = _in_class(kind, name)
        if raw is not MISSING and type(raw) is not types.WrapperDescriptorType:
            return True
    return _in_class(kind, "__getattr__")[0] is not MISSING and not names


def _changes(kind: type) -> bool:
    """Return True if a class can be changed, as those written in Python can."""
    return bool(kind.__flags__ & _HEAP) and not kind.__flags__ & _IMMUTABLE


def instance_dict(thing: object) -> dict[str, Any] | None:
    """The dict of an object's own attributes, if it has one."""
    try:
        own = object.__getattribute__(thing, "__dict__")
    except AttributeError:
        return None
    return own if isinstance(own, dict) else None


def _is_lazy(own: dict[str, Any]) -> bool:
    """Return True if a module may define names later, by its `__getattr__`."""
    return "__getattr__" in own


def _defaults(code: types.CodeType, values: tuple[object, ...]) -> Iterator[tuple[str, Any]]:
    names = code.co_varnames[: code.co_argcount]
    return zip(names[len(names) - len(values) :], values, strict=False)


def _join(label: str, name: str) -> str:
    return f"{label}.{name}" if label else name
