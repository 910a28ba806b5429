"""A rank's row of the board, as Python reads it: begun exchanges, and differences between ranks."""

from __future__ import annotations

from flowvm.meta.arrays import Array
from flowvm.ranks.words import PLACE, ROW, STEP

Row = Array


def step_text(row: Row, seq: int) -> str:
    """Return the name of a rank's exchange number `seq` of a group, if its row still has it."""
    at = ROW.STEPS + seq % ROW.RING * STEP.WORDS
    if row[at + STEP.SEQ] != seq:
        return f"number {seq}"
    text = row[at + STEP.TEXT : at + STEP.TEXT + STEP.TEXT_WORDS].tobytes()
    return str(text.rstrip(b"\0").decode(errors="replace")).replace(PLACE, " ")


def unlike(mine: Row, theirs: Row) -> int:
    """Return the first number at which the exchanges of two rows differ; 0 if there is none.

    A hash is of all before it as well, so the last one tells whether there is anything.
    """
    last = int(min(mine[ROW.SEQ], theirs[ROW.SEQ]))
    if last == 0 or _differ(mine, theirs, last) is False:
        return 0
    numbers = range(max(1, last - ROW.RING + 1), last + 1)
    return next((seq for seq in numbers if _differ(mine, theirs, seq)), 0)


def _differ(mine: Row, theirs: Row, seq: int) -> bool | None:
    """Return True if the exchanges number `seq` of two rows differ; None if a row does not have
    it.
    """
    at = ROW.STEPS + seq % ROW.RING * STEP.WORDS
    if mine[at + STEP.SEQ] != seq or theirs[at + STEP.SEQ] != seq:
        return None
    return bool(mine[at + STEP.HASH] != theirs[at + STEP.HASH])
