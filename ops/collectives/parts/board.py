"""A rank's standing on the board, as native code shows it and looks at it: what it begins, and
whether another rank began something else at that place.
"""

from __future__ import annotations

import struct

from flowvm.ops.collectives.exchanges import PRIME
from flowvm.ranks.words import ROW, STEP
from flowvm.vm.machine.lang import load_acquire, load_word, store_release, words_at


def text_words(encoded: bytes) -> tuple[int, ...]:
    """A text as the words of a STEP."""
    padded = encoded.ljust(8 * STEP.TEXT_WORDS, b"\0")
    return struct.unpack(f"{STEP.TEXT_WORDS}q", padded)


def begin(at: int, sign: int, text: int) -> int:
    """Show a begun exchange in the row at address `at`, by its sign and the address of its text.

    Return its number.
    """
    row = words_at(at, ROW.WORDS)
    seq = row[ROW.SEQ] + 1
    row[ROW.HASH] = (row[ROW.HASH] ^ sign) * PRIME
    step = ROW.STEPS + seq % ROW.RING * STEP.WORDS
    store_release(row, step + STEP.SEQ, 0)  # what is there is another's from here on
    store_release(row, step + STEP.HASH, row[ROW.HASH])
    for k in range(STEP.TEXT_WORDS):
        row[step + STEP.TEXT + k] = load_word(text + 8 * k)
    store_release(row, step + STEP.SEQ, seq)
    store_release(row, ROW.SEQ, seq)
    return seq


def different(at: int, rows: int, members: int, seq: int) -> int:
    """The number of a member, + 1, that has begun something else as number `seq`; 0 for none.

    `rows` is the address of the addresses of the others' rows; 0 there: of another host, whose
    board is not here.
    """
    step = ROW.STEPS + seq % ROW.RING * STEP.WORDS
    own = load_word(at + 8 * (step + STEP.HASH))
    for k in range(members):
        row = load_word(rows + 8 * k)
        if row == 0:
            continue
        other = words_at(row, ROW.WORDS)
        if (
            load_acquire(other, step + STEP.SEQ) == seq
            and load_acquire(other, step + STEP.HASH) != own
            and load_acquire(other, step + STEP.SEQ) == seq  # still: it may be far ahead
        ):
            return k + 1
    return 0


def all_begun(rows: int, members: int, seq: int) -> bool:
    """Return True if all members of this host have begun number `seq`."""
    for k in range(members):
        row = load_word(rows + 8 * k)
        if row != 0 and load_acquire(words_at(row, ROW.WORDS), ROW.SEQ) < seq:
            return False
    return True
