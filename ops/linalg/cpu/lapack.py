"""LAPACK's routines on batches of matrices, called by address from one kernel.

A `Program` says what is done with each matrix of a batch: operands are copied, routines are called.
It is data, a const of the launch, and it moves bytes, so three compiled bodies (by the number of
outputs) serve every routine and every dtype.  LAPACK's columns are our rows: whoever makes a
program gives it transposed matrices, or solves the transposed problem.

    p = Program(outputs=(lu, pivots, info), inputs=(a,), batch=(3,))
    p.copy(p.input(0), p.out(0))
    p.call("dgetrf", Int(m), Int(n), p.out(0), Int(m), p.out(1), INFO)
    return p.launch(flags=2)

Memory of a unit: the words of a call, the constants that LAPACK takes by reference, then what
`work` has given out.

Invariant: a routine that takes fewer words than a call has does not look at the others: the caller
clears the stack (see `flowvm.vm.machine.lang.call_address`).
"""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

from flowvm.errors import DTypeError, Status
from flowvm.launch import Launch, View
from flowvm.meta.arrays import Array
from flowvm.meta.dtype import DType, dtype_named
from flowvm.meta.meta import TensorMeta
from flowvm.ops.linalg.cpu.blas import enter, leave, threads
from flowvm.private.scipy import lapack_routine
from flowvm.vm.machine.device_words import CALL
from flowvm.vm.machine.lang import call_address, copy_bytes, store_word, words_at

UNITS = 16  # parts that a batch is cut into at most: each has memory of its own
OPERANDS = 8  # of a program at most
HEAD = OPERANDS + 2  # words in front of the steps: bytes of each operand's matrix, status, flags
STEP = 1 + 2 * CALL.WORDS  # words of a step: the routine (or one of these), then the arguments
COPY, CLEAR, FINITE, BLOCKS = 0, 1, 2, 3
EXPONENT = {4: 0x7F800000, 8: 0x7FF0000000000000}  # of infinities and NaN, by the bytes of a number
# kinds of arguments
VALUE, CONSTANT, OPERAND, WORK = range(4)
CONSTANTS = 8 * CALL.WORDS  # where they begin in a unit's memory; an argument's is 16 bytes
WORKING = CONSTANTS + 16 * CALL.WORDS
SINGULAR, OUTSIDE = int(Status.SINGULAR_MATRIX), int(Status.INDEX_OUT_OF_RANGE)
NO_BLOCKS = -(1 << 30)  # an info that no routine gives: see `Program.blocks`
INFO_AT = WORKING + 8 * OPERANDS  # of a unit: where info is; before it, operands' addresses
WORK_AT = (INFO_AT + 8 + 63) // 64 * 64
PREFIX = {"float32": "s", "float64": "d", "complex64": "c", "complex128": "z"}


class Argument(NamedTuple):
    """One argument of a LAPACK routine: its kind and its word."""

    kind: int
    word: int


class Sizes(NamedTuple):
    """The numbers that every program needs besides its steps."""

    library: int  # `threads` of the library that has the routines
    matrices: int
    units: int  # parts that they are cut into
    each: int  # bytes of memory of a unit


def Int(value: int) -> Argument:  # noqa: N802 - reads as the kind that it is
    """An integer by reference."""
    return Argument(CONSTANT, int(value))


def Char(letter: str) -> Argument:  # noqa: N802
    """Return a character by reference; nobody looks at the argument for its length, 1."""
    return Argument(CONSTANT, ord(letter))


def Real(value: float, dtype: DType) -> Argument:  # noqa: N802
    """Return a number by reference, of the real type that `dtype` computes with."""
    single = dtype.name in ("float32", "complex64")
    packed = struct.pack("<f4x" if single else "<d", value)
    return Argument(CONSTANT, struct.unpack("<q", packed)[0])


INFO = Argument(WORK, INFO_AT)


class Program:
    """The steps for each of `count` matrices; operands are the outputs, then the inputs."""

    def __init__(
        self, outputs: Sequence[TensorMeta], inputs: Sequence[TensorMeta], batch: Sequence[int]
    ) -> None:
        self.outputs, self.inputs = tuple(outputs), tuple(inputs)
        self.count = math.prod(batch)
        self.bytes = [m.nbytes // max(1, self.count) for m in (*outputs, *inputs)]
        self.steps: list[int] = []
        self.top = WORK_AT

    def out(self, k: int) -> Argument:
        """Return the argument for output k's matrix."""
        return Argument(OPERAND, k)

    def input(self, k: int) -> Argument:
        """Return the argument for input k's matrix."""
        return Argument(OPERAND, len(self.outputs) + k)

    def work(self, size: int) -> Argument:
        """Reserve `size` bytes of the unit's memory."""
        at, self.top = self.top, self.top + (max(size, 1) + 63) // 64 * 64
        return Argument(WORK, at)

    def copy(self, source: Argument, target: Argument, size: int | None = None) -> None:
        """Add a step that copies the bytes of `source`, an operand, to `target`."""
        size = self.bytes[source.word] if size is None else size
        self._step(COPY, (source, target, Argument(VALUE, size)))

    def clear(self, target: Argument, words: int) -> None:
        """Add a step that sets int64 words of the unit's memory to 0."""
        self._step(CLEAR, (target, Argument(VALUE, words)))

    def finite(self, place: Argument, size: int, dtype: DType) -> None:
        """Add a step that fails if bytes of the unit's memory hold infinities or NaN.

        Routines for eigenvalues give wrong values for these, and print lines.
        """
        exponent = EXPONENT[dtype.real.itemsize]
        self._step(FINITE, (place, Argument(VALUE, size), Argument(VALUE, exponent)))

    def blocks(self, pivots: Argument, n: int) -> None:
        """Add a step that fails if the exchanges of an n x n matrix's LDL factors are invalid.

        A block of one row has a row of 1 to n; a block of two has twice the negative of such.
        LAPACK goes where they say.
        """
        self._step(BLOCKS, (pivots, Argument(VALUE, n)))

    def call(self, routine: str, *arguments: Argument) -> None:
        """Add a step that calls LAPACK's `routine`, with the letter of its dtype."""
        self._step(lapack_address(routine), arguments)

    def _step(self, what: int, arguments: Sequence[Argument]) -> None:
        words = [word for a in arguments for word in a]
        self.steps += [what, *words, *[0] * (STEP - 1 - len(words))]

    def launch(self, failure: Status = Status.NOT_CONVERGED, flags: int = -1) -> Launch:
        """Return the Launch of this program.

        failure   the Status of the instruction when a routine's info is not 0
        flags     or the output that gets the info, which ends the matrix's steps
        """
        sizes = self.bytes + [0] * (OPERANDS - len(self.bytes))
        program = (*sizes, int(failure), flags, *self.steps)
        units, each = min(UNITS, self.count), (self.top + 63) // 64 * 64
        views_of_operands = [
            View(dtype_named("uint8"), (m.nbytes,)) for m in (*self.outputs, *self.inputs)
        ]
        last = len(self.outputs) + 1  # inputs behind the first may be missing
        byte = dtype_named("uint8")
        rest = [*views_of_operands[last:], *[None] * (2 - len(views_of_operands[last:]))]
        views = (*views_of_operands[:last], *[View.optional(v, byte) for v in rest])
        consts = (program, Sizes(threads(), self.count, units, each))
        body = (_one, _two, _three)[len(self.outputs) - 1]
        return Launch(self.outputs, body, views, consts, units, 1, max(64, units * each))


@functools.cache
def lapack_address(routine: str) -> int:
    """Return the address of a routine, by its whole name."""
    return lapack_routine(routine)


def named(name: str, meta: TensorMeta, routine: str, unitary: str = "") -> str:
    """Return LAPACK's name of `routine` for the dtype of `meta`; DTypeError if it has none.

    `unitary`: its name for complex numbers, if it is another one.
    """
    letter = PREFIX.get(meta.dtype.name)
    if letter is None:
        raise DTypeError(
            f"{name} needs a float32, float64, complex64 or complex128 tensor, got "
            f"{meta.dtype.name}"
        )
    return letter + (unitary if unitary and meta.dtype.is_complex else routine)


# --- the bodies -----------------------------------------------------------------------------------


def _argument(own: int, at: int, item: int, program: Array, k: int) -> int:
    """The word that argument k of the step at `at` of the program is passed as."""
    kind, word = program[at + 1 + 2 * k], program[at + 2 + 2 * k]
    if kind == CONSTANT:
        place = own + CONSTANTS + 16 * k
        store_word(place, word)
        store_word(place + 8, 0)  # a complex number's imaginary part
        return place
    if kind == OPERAND:
        addresses = words_at(own + WORKING, OPERANDS)
        return addresses[word] + item * program[word]  # type: ignore[no-any-return]
    return own + word if kind == WORK else word  # type: ignore[no-any-return]


def _finite(at: int, size: int, exponent: int) -> bool:
    """Return True if no float in `size` bytes has this exponent: floats of 8 bytes, or pairs of
    4.
    """
    count, pairs = (size + 7) // 8, exponent >> 32 == 0
    words = words_at(at, count)
    for k in range(count):
        if words[k] & exponent == exponent:
            return False
        if pairs and 8 * k + 4 < size and (words[k] >> 32) & exponent == exponent:
            return False
    return True


def _wrong_pivot(at: int, n: int) -> int:
    """Return the index of the first invalid pivot among n int32 words; n if all are valid."""
    k = 0
    while k < n:
        pivot = _int32(at, k)
        if pivot == 0 or abs(pivot) > n:
            return k
        if pivot < 0:
            if k + 1 == n or _int32(at, k + 1) >= 0 or -_int32(at, k + 1) > n:
                return k
            k += 1
        k += 1
    return n


def _int32(at: int, k: int) -> int:
    word = words_at(at + k // 2 * 8, 1)[0]
    return (word if k % 2 == 1 else word << 32) >> 32


def _matrix(own: int, item: int, program: Array) -> int:
    """All steps for a matrix; the info of the last routine that was called."""
    words, info = words_at(own, CALL.WORDS), words_at(own + INFO_AT, 1)
    info[0] = 0
    for at in range(HEAD, len(program), STEP):
        for k in range(CALL.WORDS):
            words[k] = _argument(own, at, item, program, k)
        if program[at] == COPY:
            copy_bytes(words[1], words[0], words[2])
        elif program[at] == CLEAR:
            for k in range(words[1]):
                store_word(words[0] + 8 * k, 0)
        elif program[at] == FINITE:
            if not _finite(words[0], words[1], words[2]):
                info[0] = 1
                break
        elif program[at] == BLOCKS:
            wrong = _wrong_pivot(words[0], words[1])
            if wrong < words[1]:
                words[0], info[0] = _int32(words[0], wrong), NO_BLOCKS
                break
        else:
            call_address(program[at], own)
            if info[0] != 0:
                break
    return (info[0] << 32) >> 32


def _run(
    outputs: tuple[int, ...], inputs: tuple[int, ...], program: Array, t: Any, scratch: Array,
    lo: int, hi: int, details: Array,
) -> int:  # fmt: skip
    """The matrices of the units from `lo` to `hi`."""
    status, failure, flags = 0, program[OPERANDS], program[OPERANDS + 1]
    count, units, each, library = t.matrices, t.units, t.each, t.library
    enter(library)
    for unit in range(lo, hi):
        own = scratch.ctypes.data + unit * each
        addresses = words_at(own + WORKING, OPERANDS)
        outputs_count = len(outputs)
        for k in range(outputs_count):
            addresses[k] = outputs[k]
        for k in range(len(inputs)):
            addresses[outputs_count + k] = inputs[k]
        for item in range(unit * count // units, (unit + 1) * count // units):
            info = _matrix(own, item, program)
            if flags >= 0:
                copy_bytes(addresses[flags] + 4 * item, own + INFO_AT, 4)
            elif info != 0:
                details[0], details[1] = item, info - (failure == SINGULAR)
                status = failure
                if info == NO_BLOCKS:
                    words = words_at(own, 2)
                    details[0], details[1], details[2] = words[0], words[1] + 1, -1
                    status = OUTSIDE
                break
        if status != 0:
            break
    leave(library)
    return status


def _inputs(a: Array, b: Array, c: Array) -> tuple[int, int, int]:
    return a.ctypes.data, b.ctypes.data, c.ctypes.data


def _one(
    x: Array, a: Array, b: Array, c: Array, program: Array, t: object,
    scratch: Array, lo: int, hi: int, details: Array,
) -> int:  # fmt: skip
    outputs = (x.ctypes.data,)
    return _run(outputs, _inputs(a, b, c), program, t, scratch, lo, hi, details)


def _two(
    x: Array, y: Array, a: Array, b: Array, c: Array, program: Array, t: object,
    scratch: Array, lo: int, hi: int, details: Array,
) -> int:  # fmt: skip
    outputs = (x.ctypes.data, y.ctypes.data)
    return _run(outputs, _inputs(a, b, c), program, t, scratch, lo, hi, details)


def _three(
    x: Array, y: Array, z: Array, a: Array, b: Array, c: Array, program: Array, t: object,
    scratch: Array, lo: int, hi: int, details: Array,
) -> int:  # fmt: skip
    outputs = (x.ctypes.data, y.ctypes.data, z.ctypes.data)
    return _run(outputs, _inputs(a, b, c), program, t, scratch, lo, hi, details)
