"""Observer: sees each instruction of the user's code while it is captured, and tells `Reads` what
it reads.

It is a trace function (`sys.settrace`), which is told of opcodes.  In front of each instruction it
looks at the operands on the frame's stack (`flowvm.private.stacks`), so it knows of which object an
attribute is read, which container is gone through, what is called with what.  C code that is called
is not seen inside: of what it is given, everything that it may read is taken to be read, and where
its answer depends on something else (a clock, a file), that is said.

What Python calls between two instructions, a signal's handler or a finalizer, is no part of the
user's code: nothing in it is looked at, nor in what it calls.

A debugger's or a coverage tool's trace function that was there before is called as ever.
"""

from __future__ import annotations

import contextvars
import functools
import logging
import operator
import random
import sys
import types
import weakref
from collections.abc import Callable
from itertools import pairwise
from types import CodeType, FrameType
from typing import Any

import numpy as np

from flowvm.nn.graph.guards import MISSING, content_of
from flowvm.nn.graph.reads import CONTAINERS, Reads, is_library, is_seen, is_stdlib
from flowvm.nn.module import Module
from flowvm.private.cpython import HELD, getrefcount
from flowvm.private.stacks import (
    NULL,
    Stack,
    ends,
    instructions_of,
    places,
    traced_by,
    why_no_stack,
)
from flowvm.vm.callers.lines import is_internal

Handler = Callable[["Observer", FrameType, Stack, "Step"], Any]

_METHODS = (types.MethodDescriptorType, types.WrapperDescriptorType)
_BOUND = (types.BuiltinFunctionType, types.MethodWrapperType)
_HARMLESS: frozenset[object] = frozenset({
    isinstance, issubclass, id, type, callable, super, print, object, iter, next, setattr, delattr,
    vars, globals, locals, dir, hash, repr, property, classmethod, staticmethod,
})  # fmt: skip
_SETTINGS = {  # functions of flowvm's whose answer is a setting
    "are_deterministic_algorithms_enabled", "get_deterministic_debug_mode",
    "get_float32_matmul_precision", "get_num_interop_threads", "get_num_threads",
    "is_anomaly_enabled", "is_deterministic_algorithms_warn_only_enabled",
}  # fmt: skip
_ANSWERS = {  # functions of C code without arguments whose answer is a number that may change
    sys.getrecursionlimit, sys.getswitchinterval, sys.get_int_max_str_digits,
}  # fmt: skip
_NUMPYS_SOURCES = (np.random.Generator, np.random.RandomState)
_NUMBERS = {int, float, bool, str}
_MAPPINGS = (dict, types.MappingProxyType)
_KEYED = {"__getitem__": (*_MAPPINGS, list, tuple)}
_BY_KEY = {"get", "__getitem__", "__contains__", "setdefault", "pop"}
# C modules whose answers are not a matter of what they are given
_CLOCKS_AND_FILES = {
    "_io", "_posixsubprocess", "_socket", "_ssl", "_uuid", "gc", "io", "mmap", "nt", "posix",
    "resource", "select", "time",
}  # fmt: skip
_NO_ANSWER = {
    "__enter__", "__exit__", "_path_normpath", "close", "collect", "flush", "fsdecode", "fsencode",
    "fspath", "putenv", "sleep", "unsetenv", "write",
}  # fmt: skip
_CALLING_USERS = tuple(
    f"flowvm.{room}" for room in ("nn", "optim", "autograd", "func", "utils", "amp", "eager")
)
_FINALIZERS = {"remove", "_remove", "_commit_removals", "__call__"}  # of `weakref`
_LOGGING = {
    "critical", "debug", "error", "exception", "info", "log", "warn", "warning",
}  # fmt: skip
_STARTING = {"now", "today", "utcnow"}  # of datetime
_DRAWN = {"random", "getrandbits", "randbytes"}
_LOADERS = {"load", "loadtxt", "genfromtxt", "fromfile", "memmap"}  # of NumPy


class Observer:
    """A tracer of the instructions that Python runs during one capture, on one thread."""

    def __init__(self, reads: Reads) -> None:
        self.reads = reads
        self._prior: Any = None
        self._places: Any = None
        self._own: Callable[[FrameType, str, Any], Any] | None = (
            None  # the trace function, while it is set
        )
        self._printing = False  # what runs now is how output is made: no state of the program's
        self._code: CodeType | None = None  # of the trace functions of frames
        self._between = False  # what runs now is what Python called between two instructions
        self._lookups: dict[tuple[CodeType, int], Any] = {}

    def start(self) -> None:
        """Look at each frame that this thread enters from now on."""
        why = why_no_stack()
        if why:
            self.reads.note_unwatched(f"Python values that build reads ({why})", ("", 0))
            return
        self._places = places()
        frame, self._prior, self._own = sys._getframe(), sys.gettrace(), self._entered
        before, frame.f_trace_opcodes = frame.f_trace_opcodes, True  # see `traced_by`
        sys.settrace(self._own)
        frame.f_trace_opcodes = before

    def stop(self) -> None:
        """Let the trace function that was there before be there again."""
        if self._own is None:
            return
        now = sys.gettrace()
        if now is self._own or now is None:
            sys.settrace(self._prior)
        if now is not self._own:
            self.reads.note_unwatched(
                "what build reads after another trace function was set, by a debugger", ("", 0)
            )
        self._own = self._prior = None

    # --- the trace function -------------------------------------------------------------------

    def _entered(self, frame: FrameType, event: str, arg: object) -> Any:
        prior = self._prior
        local = None if prior is None else prior(frame, event, arg)
        code = frame.f_code
        known = code, id(frame.f_globals)
        steps = self._lookups.get(known)
        if steps is None:
            steps = self._lookups[known] = _steps_of(code)
        if not steps or self._printing or self._between:
            return local
        if steps is _BETWEEN or self._handles_signal(frame, code):
            return traced_by(frame, self._to_the_end(local, frame.f_trace_opcodes))
        if not _is_users(frame) and not self._leads(frame, frame.f_back):
            return local
        self._enter(frame, code)
        return traced_by(frame, self._inside(steps, local, frame.f_trace_opcodes))

    def _handles_signal(self, frame: FrameType, code: CodeType) -> bool:
        """Return True if Python itself has called the function for a signal: with its number, and
        the frame that it came in.
        """
        stack, count, more = Stack(frame, self._places), code.co_argcount, bool(code.co_flags & 4)
        if count + 2 * more < 2:
            return False
        values = [_content(stack.variable(k)) for k in range(min(count, 3))]
        if more:
            values += _content(stack.variable(count + code.co_kwonlyargcount))[:2]
        came = ((a, b) for a, b in pairwise(values) if type(b) is FrameType and type(a) is int)
        return any(b is frame.f_back for _, b in came)

    def _to_the_end(self, prior: Any, prior_opcodes: bool) -> Callable[[FrameType, str, Any], Any]:
        """Return the trace function of a frame that Python has called between two instructions."""
        self._between = True

        def outside(frame: FrameType, event: str, arg: Any) -> Callable[[FrameType, str, Any], Any]:
            nonlocal prior
            if event == "return":
                self._between = False
            if prior is not None and (event != "opcode" or prior_opcodes):
                prior = prior(frame, event, arg)
            return outside

        return outside

    def _leads(self, frame: FrameType, caller: FrameType | None) -> bool:
        """Return True if a library's frame runs for the user: a user's frame called it, or it
        belongs to an installed package and is called where flowvm calls users.
        """
        if caller is None:
            return False
        if getattr(caller.f_trace, "__code__", None) is self._code:
            return True
        file, name = frame.f_code.co_filename, str(caller.f_globals.get("__name__"))
        package = not is_stdlib(file) and not file.startswith("<")
        return package and name.startswith(_CALLING_USERS)

    def _inside(
        self, steps: list[Any], prior: Any, prior_opcodes: bool
    ) -> Callable[[FrameType, str, Any], Any]:
        """The trace function of one frame; `prior` is what the one before has for it."""
        pushed, where = 0, self._places  # values that the instruction before has left on the stack

        def inside(frame: FrameType, event: str, arg: Any) -> Any:
            nonlocal pushed, prior
            if event == "opcode":
                step = steps[frame.f_lasti >> 1]
                if pushed or step.handler is not None:
                    stack = Stack(frame, where, step.end)
                    if pushed:
                        self._printing = False
                        self._note_results(stack, pushed)
                        pushed = 0
                    if step.handler is not None:
                        pushed = step.handler(self, frame, stack, step) or 0
            elif event == "exception":
                pushed, self._printing = 0, False
            if prior is not None and (event != "opcode" or prior_opcodes):
                prior = prior(frame, event, arg)
            return inside

        self._code = inside.__code__
        return inside

    def _enter(self, frame: FrameType, code: CodeType) -> None:
        """A function begins to run, or a generator goes on."""
        stack, reads = Stack(frame, self._places), self.reads
        function = stack.function
        if type(function) is not types.FunctionType:
            return
        first = _content(stack.variable(0)) if code.co_argcount else MISSING
        if first is not MISSING and code.co_name == "__init__":
            reads.own(first)
        if code.co_flags & 8:  # a dict of its own for `**names`
            named = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4)
            reads.own(_content(stack.variable(named)))
        reads.run(function, first)

    def _note_results(self, stack: Stack, count: int) -> None:
        """Note results of the last instruction as made by the code, where only the stack holds
        them.
        """
        for depth in range(1, count + 1):
            value = stack[depth]
            if value is not NULL and getrefcount(value) == HELD:
                self.reads.own(value)

    # --- calls ----------------------------------------------------------------------------------

    def call(self, frame: FrameType, function: Any, args: tuple[Any, ...]) -> None:
        """`function(*args)` is about to be called; names of arguments do not matter."""
        reads = self.reads
        if isinstance(function, types.MethodType):
            function, args = function.__func__, (function.__self__, *args)
        self._printing = function is print or _logs(function)
        kind = type(function)
        if kind is types.FunctionType:
            if not is_seen(function.__code__.co_filename):
                self._call_unseen(frame, function, args)
        elif kind is functools.partial or isinstance(function, functools.partial):
            reads.read_partial(function)
            named = tuple(function.keywords.values())
            self.call(frame, function.func, (*function.args, *args, *named))
        elif isinstance(function, type):
            if function not in _HARMLESS:
                self._consume(args)
                self._go_through(frame, args)
        elif isinstance(function, _METHODS):
            if args:
                self._call_c(frame, function, function.__name__, args[0], args[1:])
        elif isinstance(function, _BOUND):
            owner = function.__self__
            if owner is None or isinstance(owner, types.ModuleType):
                owner = MISSING
            self._call_c(frame, function, function.__name__, owner, args)
        elif isinstance(function, Module):
            forward = getattr(type(function).forward, "__code__", None)
            if forward is None or is_internal(forward.co_filename):
                self._consume(args)
        elif isinstance(function, (operator.attrgetter, operator.itemgetter)):
            self._call_getter(function, args)
        elif isinstance(function, weakref.ref):
            reads.read_reference(function)
        elif kind.__name__ == "_lru_cache_wrapper":
            self._call_cached(frame, function, args)
        else:
            self._consume(args)
            owner = args[0] if args else getattr(function, "__self__", None)
            if isinstance(owner, _NUMPYS_SOURCES):  # whose methods are of a type of Cython's
                self._draw(frame, owner)

    def _go_through(self, frame: FrameType, args: tuple[object, ...]) -> None:
        """C code may go through what it is given, or keep it to do so later."""
        if self.reads.has_iterators():
            for arg in args:
                self._advance(frame, arg)

    def _consume(self, args: tuple[object, ...]) -> None:
        for arg in args:
            self.reads.consume(arg)

    def _call_unseen(self, frame: FrameType, function: Any, args: tuple[Any, ...]) -> None:
        """A Python function that is not looked into: flowvm's, or of some libraries."""
        self._consume(args)
        module = function.__module__ or ""
        if args and isinstance(args[0], random.Random):
            self._draw(frame, args[0])
        elif module.startswith("numpy") and function.__name__ in _LOADERS:
            self.say(frame, f"np.{function.__name__}()")
        elif module.startswith("flowvm") and function.__name__ in _SETTINGS and not args:
            self.reads.read_answer(f"flow.{function.__name__}()", function, ())

    def _call_c(
        self, frame: FrameType, function: Any, name: str, owner: Any, args: tuple[Any, ...]
    ) -> None:
        """A function of C code, `owner` being what it is a method of, or MISSING."""
        reads = self.reads
        if owner is MISSING:
            if function in (getattr, hasattr):
                if len(args) > 1 and isinstance(args[1], str):
                    reads.read_attribute(args[0], args[1])
            elif function is setattr and len(args) == 3 and isinstance(args[1], str):
                reads.write_attribute(*args)
            elif function is len:
                reads.read_length(args[0])
            elif function is next:
                self._advance(frame, args[0])
            elif function is vars and args:
                reads.own_dict(args[0])
            elif function in (isinstance, issubclass) and len(args) == 2:
                if _is_abstract(args[1]):
                    question = (function, args)
                    if function is isinstance and not reads.is_outside(args[0]):
                        # which the class is asked
                        question = (issubclass, (type(args[0]), args[1]))
                    reads.read_answer(f"{function.__name__}({reads.label(args[1])})", *question)
            elif function in _HARMLESS:
                return
            elif function in _ANSWERS and not args:
                reads.read_answer(f"{function.__module__}.{name}()", function, ())
            else:
                self._consume(args)
                self._go_through(frame, args)
                self._say_if_hidden(frame, function, name)
            return
        if name == "__getattribute__" and args and isinstance(args[0], str):
            reads.read_attribute(owner, args[0])
        elif name == "__setattr__" and len(args) == 2 and isinstance(args[0], str):
            reads.write_attribute(owner, *args)
        elif args and name in _BY_KEY and isinstance(owner, _KEYED.get(name, _MAPPINGS)):
            reads.read_item(owner, args[0])
        elif name in ("__len__", "__bool__"):
            reads.read_length(owner)
        elif name in ("__next__", "send"):
            self._advance(frame, owner)
        elif isinstance(owner, contextvars.ContextVar):
            if name in ("get", "set", "reset"):  # what is set once more must be what it was
                reads.read_answer(f"{owner.name}.get()", owner.get, (MISSING,))
        elif isinstance(owner, (random.Random, *_NUMPYS_SOURCES)):
            self._consume(args)
            self._draw(frame, owner)
        elif isinstance(owner, type):
            self._consume(args)
            self._go_through(frame, args)
            if owner.__module__ == "datetime" and name in _STARTING:
                self.say(frame, f"{owner.__name__}.{name}()")
        else:
            self._consume((owner, *args))
            self._go_through(frame, args)
            if reads.is_outside(owner):
                self._say_if_hidden(frame, type(owner), name)

    def _draw(self, frame: FrameType, source: object) -> None:
        """Random numbers; those that all programs share are watched by the environment."""
        shared = getattr(random, "_inst", None), getattr(np.random.mtrand, "_rand", None)
        if any(source is one for one in shared):
            return
        if isinstance(source, random.SystemRandom):
            self.say(frame, "random.SystemRandom()")
        else:
            self.reads.read_state(source)

    def _call_getter(self, function: object, args: tuple[object, ...]) -> None:
        reads = self.reads
        for names in function.__reduce__()[1]:
            value = args[0] if args else None
            if isinstance(function, operator.itemgetter):
                reads.read_item(value, names)
                continue
            for name in names.split("."):
                reads.read_attribute(value, name)
                value = getattr(value, name, None)

    def _call_cached(self, frame: FrameType, function: object, args: tuple[object, ...]) -> None:
        """A function with a cache (`functools.lru_cache`): it may answer without running."""
        self._consume(args)
        label = self.reads.label(function)
        self.say(frame, f"{label}(), which answers from a cache,")

    def _advance(self, frame: FrameType, iterator: object) -> None:
        """An iterator is asked for its next value."""
        if self.reads.is_outside_iterator(iterator):
            self.say(frame, f"next() of {self.reads.label(iterator)}, which is not made there,")

    def _say_if_hidden(self, frame: FrameType, function: object, name: str) -> None:
        module = (getattr(function, "__module__", None) or "").partition(".")[0]
        if name in _NO_ANSWER:
            return
        if module in _CLOCKS_AND_FILES or function is input:
            shown = "os." if module in ("posix", "nt") else f"{module.lstrip('_')}."
            self.say(frame, f"{'' if shown in ('io.', 'builtins.') else shown}{name}()")
        elif module and module not in sys.stdlib_module_names and not _is_known(module):
            self.say(frame, f"{module}.{name}(), compiled code that cannot be looked into,")

    def say(self, frame: FrameType, call: str) -> None:
        """A call's answer is fixed in the graph: on the line of the user's that leads to it."""
        at: FrameType | None = frame
        while at is not None and (
            is_stdlib(at.f_code.co_filename) or is_internal(at.f_code.co_filename)
        ):
            at = at.f_back
        at = at or frame
        text = f"{call} whose result is fixed in the graph".replace(") whose", "), whose")
        self.reads.note_unwatched(text, (at.f_code.co_filename, at.f_lineno))


def _logs(function: object) -> bool:
    """Return True if a function writes to a log."""
    code = getattr(function, "__code__", None)
    if not isinstance(code, CodeType):
        return False
    return code.co_filename == logging.__file__ and code.co_name in _LOGGING


def _content(variable: object) -> Any:
    """A variable's value, which is in a cell if functions inside use it; MISSING if it has none."""
    if isinstance(variable, types.CellType):
        return content_of(variable)
    return MISSING if variable is NULL else variable


def _is_users(frame: FrameType) -> bool:
    """Return True if a frame runs a user's code, whoever called it."""
    code, names = frame.f_code, frame.f_globals
    if code.co_filename.startswith("<"):  # generated: a named tuple's, a dataclass's methods
        is_namedtuple = str(names.get("__name__", "")).startswith("namedtuple_")
        return not is_namedtuple and not is_internal(str(names.get("__file__") or ""))
    return not is_library(code)


def _is_abstract(kind: object) -> bool:
    """Return True if a class decides itself what its instances are, as those of `abc` do."""
    if isinstance(kind, tuple):
        return any(map(_is_abstract, kind))
    return type(kind) is not type and isinstance(kind, type)


def _is_known(module: str) -> bool:
    return module in ("numpy", "flowvm", "ops", "graph", "autograd", "numba", "llvmlite", "torch")


def _is_function(code: CodeType) -> bool:
    """Return True for the code of a function (not of a module or a class) whose reads are
    recorded.
    """
    return bool(code.co_flags & 1) and is_seen(code.co_filename)


_BETWEEN: list[object] = [None]  # of a function that runs when nobody has chosen to


def _steps_of(code: CodeType) -> Any:
    """Return the steps of a function's code, () for code that is not looked at, or _BETWEEN.

    Nothing is looked up for a finalizer: what came in here meanwhile would be ignored with it.
    """
    if code.co_name == "__del__" or (
        code.co_filename == weakref.__file__ and code.co_name in _FINALIZERS
    ):
        return _BETWEEN
    return _steps(code) if _is_function(code) else ()


# --- what each instruction reads ------------------------------------------------------------------


def _global(observer: Observer, frame: FrameType, stack: Stack, step: Step) -> None:
    observer.reads.read_global(frame.f_globals, frame.f_builtins, step.arg)
    step.handler = None  # its place is known from now on


def _closure(observer: Observer, frame: FrameType, stack: Stack, step: Step) -> None:
    observer.reads.read_cell(stack.function, step.arg)


def _attribute(observer: Observer, frame: FrameType, stack: Stack, step: Step) -> bool:
    observer.reads.read_attribute(stack[1], step.arg)
    return True


def _of_super(observer: Observer, frame: FrameType, stack: Stack, step: Step) -> None:
    observer.reads.read_attribute(super(stack[2], stack[1]), step.arg)


def _subscript(observer: Observer, frame: FrameType, stack: Stack, step: Step) -> bool:
    observer.reads.read_item(stack[2], stack[1])
    return True


def _contains(observer: Observer, frame: FrameType, stack: Stack, step: Step) -> None:
    if isinstance(stack[1], dict):
        observer.reads.read_item(stack[1], stack[2])
    else:
        _spread(observer, frame, stack, step)


def _spread(observer: Observer, frame: FrameType, stack: Stack, step: Step) -> bool:
    if observer.reads.has_iterators():
        observer._advance(frame, stack[1])
    return _one(observer, frame, stack, step)


def _slice(observer: Observer, frame: FrameType, stack: Stack, step: Step) -> bool:
    observer.reads.consume(stack[3])
    return True


def _one(observer: Observer, frame: FrameType, stack: Stack, step: Step) -> bool:
    observer.reads.consume(stack[1])
    return True


def _two(observer: Observer, frame: FrameType, stack: Stack, step: Step) -> bool:
    first, second = stack[1], stack[2]
    if type(first) in _NUMBERS and type(second) in _NUMBERS:
        return False
    observer.reads.consume(first)
    observer.reads.consume(second)
    return True


def _truth(observer: Observer, frame: FrameType, stack: Stack, step: Step) -> None:
    if isinstance(stack[1], CONTAINERS):
        observer.reads.read_length(stack[1])


def _next(observer: Observer, frame: FrameType, stack: Stack, step: Step) -> bool:
    if observer.reads.has_iterators():
        observer._advance(frame, stack[1])
    return False


def _set_attribute(observer: Observer, frame: FrameType, stack: Stack, step: Step) -> None:
    observer.reads.write_attribute(stack[1], step.arg, stack[2])


def _delete_attribute(observer: Observer, frame: FrameType, stack: Stack, step: Step) -> None:
    observer.reads.read_attribute(stack[1], step.arg)


def _set_global(observer: Observer, frame: FrameType, stack: Stack, step: Step) -> None:
    observer.reads.write_global(frame.f_globals, step.arg, stack[1])


def _set_closure(observer: Observer, frame: FrameType, stack: Stack, step: Step) -> None:
    observer.reads.write_cell(stack.function, step.arg, stack[1])


def _set_item(observer: Observer, frame: FrameType, stack: Stack, step: Step) -> None:
    observer.reads.write_item(stack[2], stack[1], stack[3])


def _delete_item(observer: Observer, frame: FrameType, stack: Stack, step: Step) -> None:
    observer.reads.consume(stack[2])


def _build(observer: Observer, frame: FrameType, stack: Stack, step: Step) -> bool:
    return True


def _enter_with(observer: Observer, frame: FrameType, stack: Stack, step: Step) -> int:
    return 2  # its `__exit__`, which nobody else may keep, and what is called or given


def _call(observer: Observer, frame: FrameType, stack: Stack, step: Step) -> bool:
    count = step.arg
    function, first = stack[count + 2], stack[count + 1]
    args = tuple(stack[k] for k in range(count, 0, -1))
    if sys.version_info < (3, 13):  # the other way round, and only of a method
        function, first = (first, NULL) if function is NULL else (function, first)
    observer.call(frame, function, args if first is NULL else (first, *args))
    return True


def _call_named(observer: Observer, frame: FrameType, stack: Stack, step: Step) -> bool:
    count = step.arg
    function, first = stack[count + 3], stack[count + 2]
    args = tuple(stack[k] for k in range(count + 1, 1, -1))
    observer.call(frame, function, args if first is NULL else (first, *args))
    return True


def _call_spread(observer: Observer, frame: FrameType, stack: Stack, step: Step) -> bool:
    named = bool(step.arg & 1) or sys.version_info >= (3, 14)
    args, names = stack[1 + named], stack[1] if named else NULL
    function = stack[2 + named + (sys.version_info >= (3, 13))]
    observer.reads.consume(args, 3)
    observer._go_through(frame, (args,))
    arguments = (*args,) if isinstance(args, (tuple, list)) else ()
    if isinstance(names, dict):
        observer.reads.consume(names, 3)
        arguments += (*names.values(),)
    observer.call(frame, function, arguments)
    return True


def _match_class(observer: Observer, frame: FrameType, stack: Stack, step: Step) -> None:
    names, kind, subject = stack[1], stack[2], stack[3]
    observer.reads.read_attribute(kind, "__match_args__")
    positional = getattr(kind, "__match_args__", ())[: step.arg]
    for name in (*positional, *names):
        observer.reads.read_attribute(subject, name)


def _match_keys(observer: Observer, frame: FrameType, stack: Stack, step: Step) -> None:
    for key in stack[1]:
        observer.reads.read_item(stack[2], key)


_HANDLERS: dict[str, Handler] = {
    "LOAD_GLOBAL": _global, "LOAD_NAME": _global, "LOAD_DEREF": _closure,
    "LOAD_CLASSDEREF": _closure, "LOAD_ATTR": _attribute, "LOAD_METHOD": _attribute,
    "IMPORT_FROM": _attribute, "LOAD_SUPER_ATTR": _of_super, "BINARY_SUBSCR": _subscript,
    "BINARY_SLICE": _slice, "STORE_SLICE": _slice, "CONTAINS_OP": _contains, "BINARY_OP": _two,
    "COMPARE_OP": _two, "UNARY_NOT": _truth, "TO_BOOL": _truth, "GET_ITER": _one,
    "GET_YIELD_FROM_ITER": _one, "UNPACK_SEQUENCE": _spread, "UNPACK_EX": _spread,
    "LIST_EXTEND": _spread, "SET_UPDATE": _spread,
    "DICT_UPDATE": _one, "DICT_MERGE": _one, "FORMAT_VALUE": _one,
    "FORMAT_SIMPLE": _one, "FORMAT_WITH_SPEC": _two, "CONVERT_VALUE": _one, "GET_LEN": _one,
    "MATCH_SEQUENCE": _one, "MATCH_KEYS": _match_keys, "MATCH_CLASS": _match_class,
    "FOR_ITER": _next, "SEND": _next, "STORE_ATTR": _set_attribute,
    "DELETE_ATTR": _delete_attribute, "STORE_GLOBAL": _set_global, "STORE_DEREF": _set_closure,
    "STORE_SUBSCR": _set_item, "DELETE_SUBSCR": _delete_item, "CALL": _call,
    "CALL_KW": _call_named, "CALL_FUNCTION_EX": _call_spread, "BUILD_LIST": _build,
    "BUILD_MAP": _build, "BUILD_SET": _build, "BUILD_CONST_KEY_MAP": _build,
    "MAKE_FUNCTION": _build, "BEFORE_WITH": _enter_with, "BEFORE_ASYNC_WITH": _enter_with,
    "LOAD_SPECIAL": _enter_with,
}  # fmt: skip
_DECIDING = ("POP_JUMP", "JUMP_IF_")


class Step:
    """An instruction: what reads for it, or None, its operand, and where its stack ends."""

    __slots__ = ("arg", "end", "handler")

    def __init__(self, handler: Handler | None, arg: Any, end: int) -> None:
        self.handler, self.arg, self.end = handler, arg, end


def _steps(code: CodeType) -> list[object]:
    """The instructions of code, by their place."""
    steps: list[Any] = [None] * (len(code.co_code) // 2 + 1)
    where = ends(code, places())
    for step in instructions_of(code):
        handler = _HANDLERS.get(step.opname)
        if step.opname == "BINARY_OP" and step.argrepr == "[]":
            handler = _subscript
        if step.opname.startswith(_DECIDING) and "NONE" not in step.opname:
            handler = _truth
        end = where.get(step.offset)
        steps[step.offset // 2] = Step(handler if end else None, step.argval, end or 0)
    return steps
