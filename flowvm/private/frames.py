"""Offsets in CPython's memory: a thread's innermost frame, and a frame's code, position and caller.

No offsets are assumed: they are found by comparing words of memory with `sys._getframe`.  Then a
walk by these offsets is compared with the real frames.  Memory that may be no object's is read by
the system (`process_vm_readv` of this very process).  It answers "no such address" where a load
would end the process.  So a running thread may be sampled (`flowvm.vm.watch.sampling`), at worst
with a wrong answer.
"""

from __future__ import annotations

import ctypes
import functools
import os
import struct
import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, NamedTuple

from flowvm.errors import VMError
from flowvm.private.objects import api_function, file_name_place, place_of

FRAME_WORDS = 12  # of a frame, in which its places are looked for
STATE_WORDS = 64  # of a thread's state
TAGS = 7  # low bits of a reference, which may mean something else


class Layout(NamedTuple):
    """Offsets in bytes from the beginning of each structure.

    current  of a thread's state: the address of its innermost frame; or if `through` is not -1,
             that of something that has it, so many bytes into it
    code     of a frame: its code object, but for TAGS
    before   of a frame: the frame that called it
    at       of a frame: an address in its code; `f_lasti` is that less the code's and `shift`
    name     of a code object: its file's name, and `table`: its table of lines; by these two a code
             object is known again
    """

    current: int
    through: int
    code: int
    before: int
    at: int
    shift: int
    name: int
    table: int


class _Span(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("size", ctypes.c_size_t))


@functools.cache
def reader() -> Any:
    """The C function `process_vm_readv`; VMError where there is none."""
    # PyDLL keeps the GIL: no thread goes on while this reads
    function = getattr(ctypes.PyDLL(None, use_errno=True), "process_vm_readv", None)
    if function is None:
        raise VMError("the C library has no process_vm_readv")
    function.restype = ctypes.c_ssize_t
    number = ctypes.c_ulong
    function.argtypes = [ctypes.c_int, ctypes.c_void_p, number, ctypes.c_void_p, number, number]
    return function


def words_of(address: int, count: int) -> tuple[int, ...]:
    """Return `count` words of memory; none if that is no address."""
    buffer = ctypes.create_string_buffer(8 * count)
    to, of = _Span(ctypes.addressof(buffer), 8 * count), _Span(address, 8 * count)
    at = ctypes.addressof
    if reader()(os.getpid(), at(to), 1, at(of), 1, 0) != 8 * count:
        return ()
    return struct.unpack(f"{count}q", buffer.raw)


def thread_state() -> int:
    """The address of the calling thread's state."""
    return int(api_function("PyThreadState_Get", "int64()")())


@functools.cache
def layout() -> Layout:
    """Return the offsets in this CPython.  VMError if they are not found, or fail the check."""
    offsets: Layout = _nested(_looked_for)
    if why := next(
        filter(None, (_nested(_differs(offsets)), next(map(_differs(offsets), "x")))), ""
    ):
        raise VMError(why)
    return offsets


def why_not() -> str:
    """Return the reason why threads cannot be sampled while they run, or ""."""
    try:
        layout()
    except VMError as error:
        return str(error)
    return ""


def _nested(look: Callable[[object], object]) -> Any:
    """Return the result of `look` inside nested frames and a second loop of the interpreter."""

    def outer(x: object) -> object:
        return inner(x)

    def inner(x: object) -> object:
        return [look(x)][0]

    return next(map(outer, "x"))


def _looked_for(_: object) -> Layout:
    own = sys._getframe()
    frames = _callers(own)[1:4]  # these stay where they are in their code
    inside, code = _only("a frame and its code", [_frames_and_code(f) for f in frames])
    own_address, *addresses = (words_of(id(f), 16)[inside // 8] for f in (own, *frames))
    pairs = list(zip((own_address, *addresses), addresses, strict=False))[:2]
    before = _only("the calling frame", [_places(a, lambda w, b=b: w == b) for a, b in pairs])  # type: ignore[misc]
    at, shift = _only(
        "the place in the code", [_shifts(f, a) for f, a in zip(frames, addresses, strict=True)]
    )
    elsewhere = _nested(lambda _: _currents(inside))
    current, through = _only("the innermost frame", [_currents(inside), elsewhere])
    name = file_name_place()
    return Layout(current, through, code, before, at, shift, name, _table_place())


def _only(what: str, candidates: list[set[Any]]) -> Any:
    """Return the smallest element common to all of the sets; VMError if there is none."""
    common = set.intersection(*candidates)
    if not common:
        raise VMError(f"flowvm does not find {what} in this CPython's frames")
    return min(common)


def _callers(frame: FrameType | None) -> list[FrameType]:
    callers = []
    while frame is not None:
        callers.append(frame)
        frame = frame.f_back
    return callers


def _places(address: int, holds: Callable[[int], bool]) -> set[int]:
    return {8 * k for k, w in enumerate(words_of(address, FRAME_WORDS)) if holds(w)}


def _frames_and_code(frame: FrameType) -> set[tuple[int, int]]:
    """Return possible offsets of the frame in a frame object, each with the offset of the code in
    the frame.
    """
    address = id(frame.f_code)
    return {
        (8 * k, place)
        for k, word in enumerate(words_of(id(frame), 8))
        if k > 1 and word > 1 << 12
        for place in _places(word, lambda w: w & ~TAGS == address)
    }


def _shifts(frame: FrameType, address: int) -> set[tuple[int, int]]:
    """Return possible offsets of the instruction pointer in a frame, each with the shift to
    subtract.
    """
    code = id(frame.f_code)
    size = sys.getsizeof(frame.f_code)
    return {
        (8 * k, word - code - frame.f_lasti)
        for k, word in enumerate(words_of(address, FRAME_WORDS))
        if 0 < word - code < size
    }


def _currents(inside: int) -> set[tuple[int, int]]:
    """Return possible offsets of the innermost frame in the calling thread's state.  The innermost
    frame is this function's while it calls only C.
    """
    current = ctypes.c_ssize_t.from_address(id(sys._getframe()) + inside).value
    currents = set[tuple[int, int]]()
    state, function, pid = thread_state(), reader(), os.getpid()
    words, few = (ctypes.c_int64 * STATE_WORDS)(), (ctypes.c_int64 * 8)()
    to, of = _Span(ctypes.addressof(words), 8 * STATE_WORDS), _Span(state, 8 * STATE_WORDS)
    at = ctypes.addressof
    if function(pid, at(to), 1, at(of), 1, 0) != 8 * STATE_WORDS:
        return currents
    for k in range(STATE_WORDS):
        if words[k] == current:
            currents.add((8 * k, -1))
        elif words[k] > 1 << 12:
            to, of = _Span(at(few), 64), _Span(words[k], 64)
            if function(pid, at(to), 1, at(of), 1, 0) == 64:
                for j in range(8):
                    if few[j] == current:
                        currents.add((8 * k, 8 * j))
    return currents


def _table_place() -> int:
    code = _nested.__code__
    lines = bytes(bytearray(code.co_linetable))  # no other reference of the code is this object
    code = code.replace(co_linetable=lines)
    return place_of(code, code.co_linetable, CodeType.__basicsize__)


# --- looking --------------------------------------------------------------------------------------


def walk(layout: Layout, state: int, most: int = 64) -> list[tuple[int, int]]:
    """Return the address of the code and the offset in it, for each frame of a thread from the
    innermost on.  Frames that are not Python's give meaningless numbers.
    """
    first = words_of(state + layout.current, 1)
    if first and layout.through >= 0:
        first = words_of(first[0] + layout.through, 1)
    frames = list[tuple[int, int]]()
    address = first[0] if first else 0
    while address and len(frames) < most:
        words = words_of(address, FRAME_WORDS)
        if not words:
            break
        code = words[layout.code // 8] & ~TAGS
        frames.append((code, words[layout.at // 8] - code - layout.shift))
        address = words[layout.before // 8]
    return frames


def _differs(layout: Layout) -> Callable[[object], str]:
    """Return a function that compares `walk`'s result with the real frames, and returns the
    difference or "".
    """

    def look(_: object) -> str:
        state = thread_state()
        own = _callers(sys._getframe())
        frames = walk(layout, state, most=len(own) + 64)
        places = [(id(f.f_code), f.f_lasti) for f in own[1:]]
        codes = {code for code, _ in places}
        frames = [pair for pair in frames if pair[0] in codes]
        return (
            ""
            if frames == places
            else f"{len(places)} frames are seen as {len(frames)}, or elsewhere"
        )

    return look
