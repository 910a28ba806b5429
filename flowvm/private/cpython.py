"""CPython's undocumented behaviour that flowvm relies on: reference counts, bytecode, the points at
which signals are handled.

Public, though CPython's own, are `sys._getframe` and `sys._current_frames`, and the C functions of
capsules.  `CPYTHON` is the table; what it lists is here, and nowhere else.
"""

from __future__ import annotations

import ctypes
import dis
import functools
import itertools
import platform
import sys
from collections.abc import Callable, Iterator
from sys import getrefcount as getrefcount  # counted by `HELD`
from types import CodeType, FrameType
from typing import Any, Final

from flowvm.errors import VMError
from flowvm.private.frames import why_not
from flowvm.private.objects import places_are_found
from flowvm.private.stacks import why_no_stack
from flowvm.private.table import Package, Use

TESTED = ("3.11.7", "3.12.1", "3.13.0", "3.14.10")


# --- reference counts -------------------------------------------------------------------------


def _sole() -> int:
    held = object()
    return getrefcount(held)


def _held() -> int:
    listed = [object()]
    for held in listed:
        return getrefcount(held)
    raise AssertionError


def _locals() -> int:
    def inner() -> int:
        copied = sys._getframe(1).f_locals
        return getrefcount(copied)

    return inner()


_SOLE: Final = _sole()


def _counting() -> str:
    """Return the reason why getrefcount does not count an object's references, or ""."""
    for held in (object(), Package.__new__(Package), []):
        before = getrefcount(held)
        again = [held, held]
        after = getrefcount(held)
        if (before, after) != (_SOLE + 1, _SOLE + 3):
            return (
                f"getrefcount says {before}, and {after} where a list holds it {len(again)} times"
            )
    return ""


# The results of getrefcount for an object that one local variable holds, for one that a list and a
# local variable hold, and for a function's copied variables without other references.  If it counts
# otherwise, the limit is far less: then no object ever counts as held once.
_LESS: Final = -9 if _counting() else 0
SOLE: Final = _SOLE + _LESS
HELD: Final = _held() + _LESS
LOCALS: Final = _locals() + _LESS


# --- counters ---------------------------------------------------------------------------------

if sys.version_info < (3, 12):  # later versions deprecate this quicker way

    def next_of(counter: Any) -> int:
        """Return the number that an `itertools.count` hands out next; it stays the next."""
        number: int = counter.__reduce__()[1][0]
        return number
else:

    def next_of(counter: object) -> int:
        """Return the number that an `itertools.count` hands out next; it stays the next."""
        return int(repr(counter)[6:-1])  # "count(7)"


def _counter() -> str:
    counter = itertools.count(7)
    next(counter)
    try:
        following = next_of(counter)
    except (ValueError, TypeError, AttributeError) as error:
        return f"{counter!r} cannot be read: {error}"
    return "" if following == 8 == next(counter) else f"{counter!r} was read as {following}"


# --- bytecode ---------------------------------------------------------------------------------


def loads_of(code: CodeType, first: tuple[str, ...]) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """(kind, name, attributes behind it) of the names that code loads, and the code in it; kind is
    "global", "closure" or, for the name in `first`, "self".
    """
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
            yield from loads_of(constant, first if inside else ("",))


def _loads() -> str:
    def outer(closure: Any) -> Callable[[object], object]:
        def sample(self: Any) -> Any:
            self.count += 1
            return self.layer.weight + sys.maxsize.real + closure.x

        return sample

    function = outer(None)
    names = dict.fromkeys(loads_of(function.__code__, ("self",)))
    expected = {
        ("self", "self", ("count",)),
        ("self", "self", ("layer", "weight")),
        ("global", "sys", ("maxsize", "real")),
        ("closure", "closure", ("x",)),
    }
    return "" if set(names) == expected else f"a sample loads {sorted(names)}"


_EXTENDED, _IMPORT_NAME, _IMPORT_FROM = (
    dis.opmap.get(name, -1) for name in ("EXTENDED_ARG", "IMPORT_NAME", "IMPORT_FROM")
)


def imports_of(code: CodeType) -> Iterator[tuple[str, list[str]]]:
    """Return the modules that `code` and its nested code import, and the names taken from each."""
    module, names, high = "", list[str](), 0
    steps = code.co_code
    for step, low in zip(steps[::2], steps[1::2], strict=True):
        if step == _EXTENDED:
            high = high << 8 | low
            continue
        if step == _IMPORT_NAME:
            if module:
                yield module, names
            module, names = code.co_names[high << 8 | low], []
        elif step == _IMPORT_FROM:
            names.append(code.co_names[high << 8 | low])
        high = 0
    if module:
        yield module, names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from imports_of(constant)


def unpacked(frame: FrameType) -> int | None:
    """Return the number of values into which the frame unpacks now (`a, b = x`); None if it does
    not.
    """
    for instruction in dis.get_instructions(frame.f_code):
        if instruction.offset == frame.f_lasti and instruction.opname == "UNPACK_SEQUENCE":
            return int(instruction.argval)
    return None


def raises(code: CodeType) -> bool:
    """Return True if code contains a `raise`; code nested in it does not count."""
    return any(i.opname == "RAISE_VARARGS" for i in dis.get_instructions(code))


class _Two:
    def __init__(self) -> None:
        self.count: int | None = 0

    def __iter__(self) -> Iterator[int]:
        self.count = unpacked(sys._getframe(1))
        return iter((1, 2))


def _unpacks() -> str:
    two = _Two()
    _, _ = two
    return "" if two.count == 2 else f"a, b = x is said to unpack {two.count}"


def _raises() -> str:
    def one() -> None:
        raise ValueError

    def none() -> None:
        one()

    answers = raises(one.__code__), raises(none.__code__)
    return (
        "" if answers == (True, False) else f"of two samples, the first of which raises: {answers}"
    )


def _imports() -> str:
    def sample() -> object:
        import os.path
        from sys import path, version

        def inner() -> object:
            from json import dumps

            return dumps

        return os.path, path, version, inner

    names = list(imports_of(sample.__code__))
    expected = [("os.path", []), ("sys", ["path", "version"]), ("json", ["dumps"])]
    return "" if names == expected else f"a sample imports {names}"


# --- signals ----------------------------------------------------------------------------------

# Behind these, CPython runs handlers of signals and may change threads; as of 3.12 also behind
# calls of C functions.
_CHECKING: Final = ("CALL", "JUMP_BACKWARD", "RESUME", "SEND", "YIELD_VALUE")


def checks_for_signals(code: CodeType, first: str, last: str) -> list[str]:
    """Return the instructions at which a signal may come between two points of code.  The first
    stores the variable `first`; the second is the call behind loading `last`, without the call
    itself.
    """
    imports, inside, loaded = list[str](), False, False
    for instruction in dis.get_instructions(code):
        if not inside:
            inside = instruction.opname.startswith("STORE_FAST") and first in _names(instruction)
            continue
        if last in _names(instruction):
            loaded = True
        if instruction.opname.startswith("CALL") and loaded:
            return imports
        if instruction.opname.startswith(_CHECKING):
            imports.append(instruction.opname)
    raise ValueError(f"{code.co_name} does not store {first}, or does not call {last} behind it")


def enters_block(code: CodeType, last: int) -> bool:
    """Return True if the instruction at an offset calls the `__enter__` of a `with`.  As of 3.14
    that call is like any other.  A signal's handler may raise behind it, still outside of the
    block, so nothing would release the lock.
    """
    steps = code.co_code
    return (
        2 <= last < len(steps)
        and dis.opname[steps[last]].startswith("CALL")
        and dis.opname[steps[last - 2]] == "LOAD_SPECIAL"
    )


# These only move references, or the place in the code: no function runs that could wait.
_MOVING: Final = ("JUMP", "RESUME", "LOAD_FAST", "LOAD_CONST", "COPY", "SWAP", "NOP", "PUSH_NULL")


def calls_nothing(code: CodeType, last: int) -> bool:
    """Return True if the instruction at an offset calls nothing.  A thread that stays there without
    running has no core, or waits for the GIL.
    """
    steps = code.co_code
    if not 0 <= last < len(steps):
        return False
    name = dis.opname[steps[last]]
    return name.startswith(_MOVING) and name != "COPY_FREE_VARS"


_STORING: Final = ("STORE_FAST", "STORE_NAME", "STORE_GLOBAL", "STORE_DEREF", "POP_TOP")


def stored_from(code: CodeType, last: int) -> int:
    """Return the offset of the instruction whose result the one at `last` stores or drops; -1 if
    that does something else.  To store a name frees the value that it had.
    """
    before = -1
    for one in dis.get_instructions(code):
        if one.offset >= last:
            return before if one.offset == last and one.opname in _STORING else -1
        before = one.offset
    return -1


def _moving() -> str:
    """Return the reason why `calls_nothing` is wrong about loops or calls, or ""."""

    def loop() -> None:
        for _ in range(3):
            pass

    def called() -> int:
        return sys._getframe().f_lasti

    jumps = [i.offset for i in dis.get_instructions(loop) if i.opname == "JUMP_BACKWARD"]
    if not jumps or not all(calls_nothing(loop.__code__, at) for at in jumps):
        return f"a loop has no jump backward that is known for one: {jumps}"
    return "a call is said to call nothing" if calls_nothing(called.__code__, called()) else ""


def _names(instruction: dis.Instruction) -> tuple[object, ...]:
    value = instruction.argval
    return value if isinstance(value, tuple) else (value,)


def _signals() -> str:
    """Return the reason why a signal may come between the taking of a number and the writing of its
    record, or "".  The code is as in generated calls.
    """

    def sample(counter: Any, codes: Any, code: object, write: Any) -> None:
        for seq in counter:  # noqa: B007
            break
        at = seq & 3
        codes[at] = code
        write(codes, (at << 8) + 64, code, seq + 1)

    between = checks_for_signals(sample.__code__, "seq", "write")
    return f"a signal may come at {', '.join(between)}" if between else ""


# --- tracebacks and capsules ------------------------------------------------------------------


def traceback_slot() -> Any:
    """The descriptor behind `__traceback__`, which a property of a subclass may stand in front of:
    C code that raises and catches looks past it.
    """
    CPYTHON.require("traceback")
    return BaseException.__dict__["__traceback__"]


def _traceback() -> str:
    slot: Any = BaseException.__dict__.get("__traceback__")
    if not hasattr(slot, "__get__") or not hasattr(slot, "__set__"):
        return f"BaseException.__traceback__ is {slot!r}"

    class Quiet(Exception):  # noqa: N818
        __traceback__ = property(lambda self: None, slot.__set__)

    try:
        raise Quiet
    except Quiet as error:
        whole = slot.__get__(error)
        traceback = error.__traceback__
    return (
        "" if whole is not None and traceback is None else "a property of a subclass is not asked"
    )


def capsule_pointer(capsule: object) -> tuple[bytes, int]:
    """The name of a capsule, and the address in it."""
    name_of, pointer_of = _capsule_functions()
    name: bytes = name_of(capsule)
    return name, int(pointer_of(capsule, name))


@functools.cache
def _capsule_functions() -> tuple[Any, Any]:
    name_of = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)
    pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
    api = ctypes.pythonapi
    return name_of(("PyCapsule_GetName", api)), pointer_of(("PyCapsule_GetPointer", api))


def never_freed(value: object) -> None:
    """Let `value` outlive the interpreter."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))


CPYTHON = Package(
    "python",
    TESTED,
    (
        Use(
            "refcounts",
            "sys:getrefcount",
            "lets a gradient be stored or added to where nobody else holds it",
            probe=_counting,
            optional=True,
        ),
        Use("counter", "itertools:count", "says how much was issued", probe=_counter),
        Use("loads", "dis:get_instructions", "says which names a graph depends on", probe=_loads),
        Use(
            "stack",
            "sys:settrace",
            "sees which Python values a graph depends on",
            probe=why_no_stack,
            optional=True,
        ),
        Use("moving", "dis:opname", "says what keeps a thread from running", probe=_moving),
        Use("raises", "dis:get_instructions", "says which kernels may fail", probe=_raises),
        Use("unpacks", "dis:get_instructions", "traces what is unpacked", probe=_unpacks),
        Use("imports", "dis:opmap", "says what compiled code imports", probe=_imports),
        Use(
            "signals",
            "dis:get_instructions",
            "must let no signal come between a sequence number and its record",
            probe=_signals,
        ),
        Use(
            "traceback",
            "builtins:BaseException.__traceback__",
            "shows errors without flowvm's frames",
            probe=_traceback,
        ),
        Use("frames", "sys:_getframe", "finds the user's line of a call"),
        Use("running", "sys:_current_frames", "sees running threads", probe=why_not, optional=True),
        Use(
            "places",
            "builtins:id",
            "lets native calls read and write slots",
            probe=places_are_found,
            optional=True,
        ),
        Use(
            "capsules",
            "ctypes:pythonapi",
            "reads addresses out of capsules, and keeps what a running kernel looks at",
            ("PyCapsule_GetName", "PyCapsule_GetPointer", "Py_IncRef"),
        ),
    ),
    error=VMError,
    version=platform.python_version,
)
