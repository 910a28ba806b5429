"""The words of the board, on which a rank shows its progress to the others of its host.

Each rank has a header and a table of rows, one for each group that it has joined; it alone writes
them.  The memory is a shared window of MPI.
"""

from __future__ import annotations

from flowvm.vm.machine.record import Record, field, record

PLACE = "\t"  # in the text of an exchange: behind it a rank's own line
_TEXT = 14  # words of a text in a row: 112 bytes
_RING = 64
_PART = 64  # words of a rank's numbers for a reduction by the board: 512 bytes


@record(words=512, by="the rank")
class HEADER(Record):
    """The header of a rank's part of the board: its state, process and error text."""

    STATE = field("RUNNING, FAILED or LEFT")
    PID = field("number of its process")
    LENGTH = field("bytes of TEXT")
    TEXT = field("why it has failed, in UTF-8", at=8)

    RUNNING, FAILED, LEFT = 0, 1, 2
    MOST = 4000  # bytes of TEXT


@record(words=16, by="the rank's worker")
class STEP(Record):
    """One collective of a group, as a rank has begun it."""

    SEQ = field("its number in the group, from 1 on; stored last")
    HASH = field("of it and of all before it")
    TEXT = field("what it is, in UTF-8", words=_TEXT)

    TEXT_WORDS = _TEXT


@record(words=8 + _PART, by="the rank's worker")
class PART(Record):
    """A rank's numbers for a reduction of few bytes among ranks of one host."""

    SEQ = field("the reduction's number in the group; stored last")
    HASH = field("of it and of all before it")
    DATA = field("the numbers: some share the line of SEQ", words=_PART)

    BYTES = 8 * _PART


@record(words=8 + _RING * STEP.WORDS + 2 * PART.WORDS, by="the rank's worker")
class ROW(Record):
    """A group that a rank has joined."""

    SEQ = field("collectives that it has begun")
    DONE = field("collectives that it has done")
    HASH = field("of all that it has begun")
    MARK = field("on a device: what TALLY.PASSED will be when the last one is done")
    REDUCED = field("reductions by the board that it has begun")
    STEPS = field("the last of them, number n at place n modulo RING", at=8)
    PARTS = field(
        "its PARTs of the last two reductions, number n at place n modulo 2",
        at=8 + _RING * STEP.WORDS,
    )

    RING = _RING
    ROWS = 64  # groups that a rank may join


@record(words=8, by="the watcher")
class ALERT(Record):
    """A word that workers poll while they wait for other ranks."""

    RAISED = field("1: do not wait any longer, `World.fault` says why")


@record(words=8, by="the device")
class TALLY(Record):
    """The order of a device's lane, in memory that the host and the device reach."""

    PASSED = field("exchanges that the device has passed")
    RAISED = field("1: those that are under way have failed", by="the watcher")
    BEGUN = field("exchanges that were handed to the device", by="the lane's worker")


BOARD_BYTES = 8 * (HEADER.WORDS + ROW.ROWS * ROW.WORDS)
