"""The value stack of a traced frame: the operands of its next instruction, and the function that
the frame runs.

Nothing is assumed of where CPython keeps them: a sample function is traced, and its locals, its
stack and its function are looked for in its frame.  A frame may be looked at only while a trace
function is called for it: then it stands still, and its stack is written back.
"""

from __future__ import annotations

import ctypes
import dis
import functools
import itertools
import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, Final, NamedTuple

from flowvm.errors import VMError
from flowvm.private.frames import words_of

NULL: Final[object] = type("Null", (), {"__repr__": lambda self: "NULL"})()
FRAME_BYTES = 160  # of a frame, in which its places are looked for
TAGS = 3  # low bits of a reference, which may mean something else

_word = ctypes.c_size_t.from_address
_object = ctypes.py_object.from_address
_tagged = ctypes.py_object.from_buffer
_JUMPS = {*dis.hasjrel, *dis.hasjabs}
_ENDING = {  # nothing follows them in their frame
    "RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE", "JUMP_FORWARD", "JUMP_BACKWARD",
    "JUMP_BACKWARD_NO_INTERRUPT", "INTERPRETER_EXIT",
}  # fmt: skip


instructions_of = dis.get_instructions


class Places(NamedTuple):
    """Offsets in bytes from the beginning of each structure.

    inside    of a frame object: the address of the frame
    function  of a frame: its function
    locals    of a frame: its variables, behind which its stack lies
    """

    inside: int
    function: int
    locals: int


def _value_at(address: int) -> object:
    """The object that a word of a frame refers to."""
    word = _word(address).value
    if not word & TAGS:
        return _object(address).value if word else NULL
    word &= ~TAGS
    return _tagged(ctypes.c_size_t(word)).value if word else NULL


class Stack:
    """The operands of a traced frame's next instruction, counted from the top of its stack.

    `end` is where the stack ends, from the frame's beginning: see `ends`.
    """

    __slots__ = ("_frame", "_places", "end")

    def __init__(self, frame: FrameType, places: Places, end: int = 0) -> None:
        self._frame, self._places, self.end = _word(id(frame) + places.inside).value, places, end

    def __getitem__(self, depth: int) -> Any:
        """Return the operand at a depth, 1 at the top; NULL if there is none."""
        return _value_at(self._frame + self.end - 8 * depth)

    def variable(self, number: int) -> object:
        """Return a local variable by its number; NULL if it has no value."""
        return _value_at(self._frame + self._places.locals + 8 * number)

    @property
    def function(self) -> object:
        """Return the function that the frame runs."""
        return _value_at(self._frame + self._places.function)


@functools.lru_cache(maxsize=4096)
def _variables(code: CodeType) -> int:
    """The number of variables that lie in front of the stack."""
    own = set(code.co_varnames)
    cells = sum(name not in own for name in code.co_cellvars)
    return code.co_nlocals + cells + len(code.co_freevars)


@functools.lru_cache(maxsize=4096)
def depths(code: CodeType) -> dict[int, int]:
    """The number of values on the stack in front of each instruction that code can come to, by its
    offset.
    """
    steps = {i.offset: i for i in dis.get_instructions(code)}
    following = dict(itertools.pairwise(steps))
    depth_of: dict[int, int] = {}
    pending = [(0, 0)]
    bytecode: Any = dis.Bytecode(code)
    for entry in bytecode.exception_entries:
        pending.append((entry.target, entry.depth + 1 + entry.lasti))
    while pending:
        at, depth = pending.pop()
        if at in depth_of or at not in steps:
            continue
        depth_of[at] = depth
        step = steps[at]
        if step.opname not in _ENDING and at in following:
            pending.append((following[at], depth + _effect(step)))
        if step.opcode in _JUMPS:
            effect = dis.stack_effect(step.opcode, step.arg, jump=True)
            pending.append((step.argval, depth + effect))
    return depth_of


def _effect(step: dis.Instruction) -> int:
    """Return the number of values by which an instruction makes the stack longer, if it does not
    jump.
    """
    if step.opname == "RETURN_GENERATOR":  # the value sent to it is on the stack when it goes on
        return 1
    if sys.version_info < (3, 12) and step.opname in ("PRECALL", "CALL"):  # the former does nothing
        return 0 if step.opname == "PRECALL" else -1 - (step.arg or 0)
    return dis.stack_effect(step.opcode, step.arg, jump=False)


def ends(code: CodeType, places: Places) -> dict[int, int]:
    """Return the end of the stack in front of each instruction, by its offset: bytes from the
    beginning of the frame.
    """
    bottom = places.locals + 8 * _variables(code)
    return {at: bottom + 8 * depth for at, depth in depths(code).items()}


@functools.cache
def places() -> Places:
    """Return the offsets in this CPython's frames; VMError if they are not found."""
    candidates: list[Places] = _traced(_sample, _places_in)
    if not candidates:
        raise VMError("flowvm does not find the value stack in this CPython's frames")
    if any(_traced(sample, _differs(candidates[0])) for sample in (_sample, _other)):
        raise VMError(
            "the value stack of this CPython's frames is in another place than a test found"
        )
    return candidates[0]


def why_no_stack() -> str:
    """Return the reason why the value stack cannot be read, or ""."""
    try:
        places()
    except VMError as error:
        return str(error)
    return ""


def traced_by(frame: FrameType, local: Callable[..., object]) -> Callable[..., object]:
    """Return `local` for a trace function to return at a "call", with events of opcodes switched
    on.

    CPython 3.12 looks once, when a trace function is set, whether any frame wants them, so the one
    that sets it has `f_trace_opcodes` on then; 3.13 asks for `f_trace` to be set first.
    """
    frame.f_trace = local
    frame.f_trace_opcodes = True
    return local


class _Marks:
    """Objects that nobody else has, to be looked for."""

    def __init__(self) -> None:
        self.first, self.second, self.third = object(), object(), object()

    def called(self, *values: object) -> int:
        return len(values)


def _sample(a: object, b: object, c: object, marks: _Marks) -> int:
    return marks.called(a, b, c)


def _other(a: object, b: object, c: object, marks: _Marks) -> list[int]:
    d = marks
    return [1, d.called(a, b, c)]


def _traced(sample: Callable[..., object], look: Callable[..., object]) -> list[Any]:
    """Return the results of `look` at the point where the sample is about to make a call, with
    three marks on its stack.
    """
    marks, answers = _Marks(), list[Any]()
    own, before = sys._getframe(), sys.gettrace()
    at = _call_offset(sample.__code__)

    def inside(frame: FrameType, event: str, arg: object) -> object:
        if event == "opcode" and frame.f_lasti == at:
            answer = look(frame, sample, marks)
            if answer is not None:
                answers.append(answer)
        return inside

    def entered(frame: FrameType, event: str, arg: object) -> Callable[..., Any] | None:
        if frame.f_code is not sample.__code__:
            return None
        return traced_by(frame, inside)

    own.f_trace_opcodes = True
    sys.settrace(entered)
    try:
        sample(marks.first, marks.second, marks.third, marks)
    finally:
        sys.settrace(before)
        own.f_trace_opcodes = False
    return answers


def _call_offset(code: CodeType) -> int:
    return next(i.offset for i in dis.get_instructions(code) if i.opname == "CALL")


def _places_in(frame: FrameType, sample: object, marks: _Marks) -> Places | None:
    addresses = [id(mark) for mark in (marks.first, marks.second, marks.third)]
    for inside in range(16, 64, 8):
        base = _word(id(frame) + inside).value
        if base % 8 or not 1 << 12 < base < 1 << 48:
            continue
        words = [word & ~TAGS for word in words_of(base, FRAME_BYTES // 8)]
        for k in range(len(words) - 3):
            if words[k : k + 3] == addresses:
                function = [8 * j for j in range(k) if words[j] == id(sample)]
                if len(function) == 1:
                    return Places(inside, function[0], 8 * k)
                break
    return None


def _differs(places: Places) -> Callable[..., object]:
    def look(frame: FrameType, sample: object, marks: _Marks) -> bool | None:
        stack = Stack(frame, places, ends(frame.f_code, places)[frame.f_lasti])
        own = marks.third, marks.second, marks.first
        right = all(stack[k + 1] is mark for k, mark in enumerate(own))
        right = right and stack.variable(1) is marks.second and stack.function is sample
        return None if right else True

    return look
