"""Reductions of few bytes among the ranks of one host, and their barriers, by the board.

Each rank puts its numbers into its row of the board and reads those of the others: no message is
made, and MPI is not called.  All ranks add in the order of ranks, so they have the same bits.

A row has two places for numbers, for even and odd reductions.  That is enough: a rank begins a
reduction when it has done the one before, which all ranks had begun; so they had done the one
before that, whose place is written again.

What a wait looks at is what an exchange by MPI looks at (`flowvm.ops.collectives.cpu.exchange`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from flowvm.launch import Launch, View
from flowvm.meta.arrays import Array
from flowvm.meta.dtype import dtype_named
from flowvm.meta.meta import TensorMeta
from flowvm.ops.collectives.cpu.exchange import FAILED, NAP_US, POLLS, fault
from flowvm.ops.collectives.exchanges import Exchange
from flowvm.ops.collectives.parts.board import begin, text_words
from flowvm.ranks.watcher import ALERTED, DIFFERENT
from flowvm.ranks.words import ALERT, PART, ROW
from flowvm.vm.machine.lang import (
    copy_bytes,
    futex_wait,
    load_acquire,
    load_word,
    sched_yield,
    store_release,
    store_word,
    words_at,
)

HOWS = ("sum", "prod", "min", "max")
# of losses, norms and counts: a kernel of each is compiled, and MPI's serves all others
DTYPES = ("float32", "float64", "int64")
# looks at another rank's place before the first yield, some microseconds as HASTY tests are
PEEKS = 1000


class Terms(NamedTuple):
    """The numbers of a reduction by the board."""

    row: int  # of the board: this rank's for the group
    alert: int  # words of the lane's watcher
    sign: int  # hash of what is called
    members: int  # rows of the others, in the first const; behind them the text
    own: int  # this rank's number in the group
    how: int  # which of HOWS
    size: int  # bytes


def is_nearby(e: Exchange) -> bool:
    """Return True for a barrier, and an all-reduce for whose numbers the board has room, if all
    ranks see the board.
    """
    fits = e.dtype.name in DTYPES and 0 < e.elements * e.dtype.itemsize <= PART.BYTES
    return (e.kind == "barrier" or (e.kind == "all_reduce" and fits)) and all(e.rows)


def launched(e: Exchange, outputs: Sequence[TensorMeta], operands: Sequence[TensorMeta]) -> Launch:
    """Return the Launch; `operands`: the output and the input, one that is both, or none."""
    text = text_words(e.encoded)
    size = e.elements * e.dtype.itemsize
    how = HOWS.index(e.how) if operands else 0
    terms = Terms(e.row, e.lane.alert, e.sign, len(e.rows), e.own, how, size)
    views = [View(e.dtype, (e.elements,)) for _ in operands] + [View(dtype_named("int64"), (1,))]
    return Launch(
        tuple(outputs), (none, one, both)[len(operands)], tuple(views),
        ((*e.rows, *text), terms), 1, 1, PART.BYTES + 8, stream=e.lane.stream.number,
    )  # fmt: skip


# --- the bodies -----------------------------------------------------------------------------------


def _combine(out: Array, part: Array, how: int) -> None:
    """Take another rank's numbers into `out`; NaN stays, whichever rank has it."""
    if how == 0:
        for i in range(out.size):
            out[i] = out[i] + part[i]
    elif how == 1:
        for i in range(out.size):
            out[i] = out[i] * part[i]
    elif how == 2:
        for i in range(out.size):
            out[i] = out[i] if out[i] < part[i] or out[i] != out[i] else part[i]
    else:
        for i in range(out.size):
            out[i] = out[i] if out[i] > part[i] or out[i] != out[i] else part[i]


def _reduce(out: Array, x: Array, program: Array, t: Any, scratch: Array, details: Array) -> int:
    """Show this rank's numbers, then take those of each rank in turn."""
    details[1], details[2] = 0, t.row
    if load_word(t.alert + 8 * ALERT.RAISED) != 0:
        details[0] = ALERTED
        return FAILED
    members = program.ctypes.data
    seq = begin(t.row, t.sign, members + 8 * t.members)
    details[3] = seq
    row = words_at(t.row, ROW.WORDS)
    row[ROW.REDUCED] += 1
    at = ROW.PARTS + (row[ROW.REDUCED] & 1) * PART.WORDS
    sign = row[ROW.HASH]
    row[at + PART.HASH] = sign
    copy_bytes(t.row + 8 * (at + PART.DATA), x.ctypes.data, t.size)
    store_release(row, at + PART.SEQ, seq)
    nap = words_at(scratch.ctypes.data + PART.BYTES, 1)
    nap[0] = 0
    part = scratch[: t.size].view(x.dtype)
    peeks = 0
    for k in range(t.members + 1):
        source = t.row
        if k != t.own:
            source = load_word(members + 8 * (k - int(k > t.own)))
            other = words_at(source, ROW.WORDS)
            while load_acquire(other, at + PART.SEQ) != seq:
                peeks += 1
                if peeks & 63 == 0 and fault(t.row, t.alert, members, t.members, seq, details) != 0:
                    return FAILED
                if peeks > PEEKS + POLLS:
                    futex_wait(nap, 0, 0, NAP_US)
                elif peeks > PEEKS:
                    sched_yield()
            if other[at + PART.HASH] != sign:
                details[0], details[1] = DIFFERENT, k - int(k > t.own)
                return FAILED
        copy_bytes(scratch.ctypes.data, source + 8 * (at + PART.DATA), t.size)
        if k == 0:
            for i in range(out.size):  # no slice, which copies a part that may overlap
                out[i] = part[i]
        else:
            _combine(out, part, t.how)
    store_word(t.row + 8 * ROW.DONE, seq)
    return 0


def both(
    out: Array, x: Array, order: Array, program: Array, t: Any, scratch: Array, lo: int, hi: int,
    details: Array,
) -> int:  # fmt: skip
    """A reduction into a new tensor."""
    return _reduce(out, x, program, t, scratch, details)


def one(
    x: Array, order: Array, program: Array, t: Any, scratch: Array, lo: int, hi: int, details: Array
) -> int:
    """A reduction in its place."""
    return _reduce(x, x, program, t, scratch, details)


def none(
    order: Array, program: Array, t: object, scratch: Array, lo: int, hi: int, details: Array
) -> int:
    """A barrier: a reduction of no numbers."""
    return _reduce(order[:0], order[:0], program, t, scratch, details)
