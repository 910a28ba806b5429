"""The kernel of every collective: it calls one of MPI's functions by address, and tests until done.

What is called with what is data (`Program`): a function's address and its arguments, each a kind
and a word.  The functions are nonblocking and `MPI_Test` is what makes progress, so the worker goes
on testing; when it has failed some times, another thread may have the core.  The worker looks at
the board meanwhile: a rank that has begun something else, or an alert of the watcher, ends the
wait.

Invariant: a failed exchange leaves MPI with the operands, so nothing is exchanged afterwards:
`order`, which every exchange writes, is poisoned, and with it all that follows.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

from flowvm.errors import Status
from flowvm.launch import Launch, View
from flowvm.meta.arrays import Array
from flowvm.meta.dtype import dtype_named
from flowvm.meta.meta import TensorMeta
from flowvm.ops.collectives.exchanges import Exchange
from flowvm.ops.collectives.parts.board import all_begun, begin, different, text_words
from flowvm.ranks.library import STATUS_BYTES, address
from flowvm.ranks.watcher import ALERTED, DIFFERENT, MPI_FAILED
from flowvm.ranks.words import ALERT, ROW
from flowvm.vm.machine.device_words import CALL
from flowvm.vm.machine.lang import (
    call_address,
    copy_bytes,
    futex_wait,
    load_word,
    sched_yield,
    store_word,
    words_at,
)

# kinds of arguments
VALUE, OUT, IN, OWN, CONST = range(5)
# words of a call's own memory: the arguments, then these
REQUEST, FLAG, STATUS = CALL.WORDS, CALL.WORDS + 1, CALL.WORDS + 2
OWN_WORDS = STATUS + STATUS_BYTES // 8
FAILED = int(Status.RANKS_FAILED)
# a nap costs a small message its latency; without naps a wait takes the core from kernels
POLLS, NAP_US = 200, 30
# tests before the first yield: what other ranks have begun ends in some microseconds, and to yield
# on a busy machine is to be away for longer
HASTY = 60


class Argument(NamedTuple):
    """One argument of an MPI function: its kind and its word."""

    kind: int
    word: int


class Sizes(NamedTuple):
    """The numbers that every program needs besides its arguments."""

    function: int
    test: int
    row: int  # of the board: this rank's for the group
    alert: int  # words of the lane's watcher
    sign: int  # hash of what is called
    copied: int  # bytes that go from the input to the output first
    members: int  # rows of the others, in `program` behind the arguments
    text: int  # where in `program` the text is


REQUESTED = Argument(OWN, 8 * REQUEST)


def value(word: int) -> Argument:
    """A number, a handle, or an address that stays."""
    return Argument(VALUE, word)


class Program:
    """One call of one of MPI's functions, as a kernel's constants."""

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.lists: list[int] = []
        self.function, self.copied = 0, 0
        self.arguments: list[Argument] = []

    def numbers(self, values: Sequence[int]) -> Argument:
        """An array of C ints."""
        at = len(self.lists)
        packed = struct.pack(f"{len(values)}i{4 * (len(values) % 2)}x", *values)
        self.lists += struct.unpack(f"{len(packed) // 8}q", packed)
        return Argument(CONST, at)  # `launch` knows what comes before it

    def call(self, function: str, *arguments: Argument) -> None:
        """Set the function to call and its arguments; the request comes last."""
        self.function, self.arguments = address(function), [*arguments, REQUESTED]

    def launch(
        self, body: Any, outputs: Sequence[TensorMeta], operands: Sequence[TensorMeta]
    ) -> Launch:
        """Return the Launch; `operands` are all operands except `order`, outputs first."""
        exchange, rows = self.exchange, self.exchange.rows
        text = text_words(exchange.encoded)
        head = 2 * CALL.WORDS + len(rows) + len(text)
        words: list[int] = []
        for kind, word in self.arguments:
            words += [kind, 8 * (head + word) if kind == CONST else word]
        words += [0] * (2 * CALL.WORDS - len(words))
        sizes = Sizes(
            self.function, address("MPI_Test"), exchange.row, exchange.lane.alert,
            exchange.sign, self.copied, len(rows), 2 * CALL.WORDS + len(rows),
        )  # fmt: skip
        byte = dtype_named("uint8")
        views = [View(byte, (m.nbytes,)) for m in operands] + [View(dtype_named("int64"), (1,))]
        consts = ((*words, *rows, *text, *self.lists), sizes)
        return Launch(
            tuple(outputs), body, tuple(views), consts, 1, 1, 8 * OWN_WORDS,
            stream=exchange.lane.stream.number,
        )  # fmt: skip


# --- the bodies -----------------------------------------------------------------------------------


def fault(row: int, alert: int, members: int, count: int, seq: int, details: Array) -> int:
    """FAILED, and why in `details`, if another rank has begun something else as number `seq`, or
    the watcher has raised the alert; else 0.
    """
    other = different(row, members, count, seq)
    if other != 0:
        details[0], details[1] = DIFFERENT, other - 1
        return FAILED
    if load_word(alert + 8 * ALERT.RAISED) != 0:
        details[0] = ALERTED
        return FAILED
    return 0


def _exchange(out: int, x: int, program: Array, t: Sizes, own: int, details: Array) -> int:
    """Call the function, then test until it is done."""
    alert, words = words_at(t.alert, ALERT.WORDS), words_at(own, OWN_WORDS)
    details[1], details[2] = 0, t.row
    if alert[ALERT.RAISED] != 0:
        details[0] = ALERTED
        return FAILED
    seq = begin(t.row, t.sign, program.ctypes.data + 8 * t.text)
    members = program.ctypes.data + 16 * CALL.WORDS
    details[3] = seq
    if t.copied > 0:
        copy_bytes(out, x, t.copied)
    for k in range(CALL.WORDS):
        kind, word = program[2 * k], program[2 * k + 1]
        if kind == OUT:
            word += out
        elif kind == IN:
            word += x
        elif kind == OWN:
            word += own
        elif kind == CONST:
            word += program.ctypes.data
        words[k] = word
    words[REQUEST] = words[FLAG] = 0
    error = call_address(t.function, own)
    words[0], words[1], words[2] = own + 8 * REQUEST, own + 8 * FLAG, own + 8 * STATUS
    tests, together = 0, t.members == 0
    while error == 0:
        error = call_address(t.test, own)
        if words[FLAG] & 0xFFFFFFFF != 0:
            break
        tests += 1
        if tests & 63 == 0 and fault(t.row, t.alert, members, t.members, seq, details) != 0:
            return FAILED
        if tests > POLLS and not together and all_begun(members, t.members, seq):
            tests, together = 0, True  # what moves now is worth as many tests again
        elif tests > POLLS:
            futex_wait(words, FLAG, 0, NAP_US)
        elif tests > HASTY:
            sched_yield()
    other = different(t.row, members, t.members, seq)
    if other != 0:  # first: of messages of other sizes MPI says less
        details[0], details[1] = DIFFERENT, other - 1
        return FAILED
    if error != 0:
        details[0], details[1] = MPI_FAILED, error
        return FAILED
    store_word(t.row + 8 * ROW.DONE, seq)
    return 0


def both(
    out: Array, x: Array, order: Array, program: Array, t: Any, scratch: Array, lo: int, hi: int,
    details: Array,
) -> int:  # fmt: skip
    """An output made of an input."""
    return _exchange(out.ctypes.data, x.ctypes.data, program, t, scratch.ctypes.data, details)


def one(
    x: Array, order: Array, program: Array, t: Any, scratch: Array, lo: int, hi: int, details: Array
) -> int:
    """Exchange by one buffer: an output without an input, an input, or a changed tensor."""
    return _exchange(x.ctypes.data, x.ctypes.data, program, t, scratch.ctypes.data, details)


def none(
    order: Array, program: Array, t: Any, scratch: Array, lo: int, hi: int, details: Array
) -> int:
    """No buffer."""
    return _exchange(0, 0, program, t, scratch.ctypes.data, details)
