"""The flight recorder's clock: who reads it, and when.

Stamps are `ticks()`, read rarely.  NOW is the scheduler's last reading: once before it collects,
once when it sees new records, then for every eighth that it receives.  A worker that has work
waiting starts it when the last ended.  From level 2 on each event is stamped on its own.
"""

from __future__ import annotations

from flowvm.vm.machine.lang import Words, load_acquire, store_release, ticks, ticks_after
from flowvm.vm.machine.layout import (
    C_ISSUED,
    C_SEQ,
    HLP,
    HLP_FIRST,
    HLP_JOB,
    HLP_SIZE,
    HLP_WORDS,
    I_T_END,
    I_T_START,
    INS,
    INS_WORDS,
    LEVEL,
    MARK,
    NOW,
    REC,
    REC_WORDS,
    RECEIVED,
    RECORD_MASK,
    RECORD_WORDS,
    RING,
    SEEN,
    SHARE_MASK,
    SLOT_MASK,
    STR,
    STR_WORDS,
    T_DONE,
    T_LAUNCH,
    T_STAMP,
    T_TAIL,
    T_TASK,
    T_TASK_AT,
    TASK_MASK,
    TSK,
    TSK_FIRST,
    TSK_SIZE,
    TSK_WORDS,
    Y_CHUNKS,
    Y_ENDED,
    Y_LAUNCH,
    Y_MARK,
    Y_STARTED,
    Y_TASK,
    Z_ENDED,
    Z_LAUNCH,
    Z_MARK,
    Z_REPETITION,
    Z_STARTED,
    Z_TASK,
)


def see(m: Words) -> None:
    """Scheduler: note when records were published that nobody has seen yet."""
    seq = max(m[SEEN], m[RECEIVED])
    news = load_acquire(m, RING + (seq & SLOT_MASK) * RECORD_WORDS + MARK) == seq + 1
    if news or seq > m[RECEIVED]:
        m[NOW] = ticks()
    while load_acquire(m, RING + (seq & SLOT_MASK) * RECORD_WORDS + MARK) == seq + 1:
        at = REC + (seq & RECORD_MASK) * REC_WORDS
        store_release(m, at + C_SEQ, 0)
        m[at + C_ISSUED] = m[NOW]
        seq += 1
    m[SEEN] = seq


def stamp_start(m: Words, stream: int, slot: int) -> None:
    """Worker: the instruction starts; if it had been waiting already, when the one before ended."""
    at = STR + stream * STR_WORDS
    m[INS + slot * INS_WORDS + I_T_START] = (
        ticks_after() if m[at + T_STAMP] == 0 else m[at + T_STAMP]
    )
    # looked at now: what the next one waits for was over long before the stamp at this one's end
    m[at + T_STAMP] = 1 if load_acquire(m, at + T_TAIL) > m[at + T_DONE] + 1 else 0
    if m[LEVEL] > 1:
        m[at + T_LAUNCH], m[at + T_TASK] = m[RING + slot * RECORD_WORDS + MARK] - 1, -1


def stamp_open(m: Words, stream: int, slot: int) -> None:
    """Worker: a launch starts, perhaps beside others."""
    m[STR + stream * STR_WORDS + T_STAMP] = 0
    m[INS + slot * INS_WORDS + I_T_START] = ticks_after()


def stamp_tasks(m: Words, stream: int, slot: int) -> None:
    """Worker: tasks of the launch in `slot` begin."""
    if m[LEVEL] > 1:
        at = STR + stream * STR_WORDS
        m[at + T_LAUNCH] = m[RING + slot * RECORD_WORDS + MARK] - 1
        m[at + T_TASK_AT] = ticks_after()


def stamp_task(m: Words, stream: int, repetition: int) -> None:
    """Worker: a task ended."""
    if m[LEVEL] > 1:
        at, now = STR + stream * STR_WORDS, ticks()
        number = m[TSK + stream * TSK_SIZE]
        row = TSK + stream * TSK_SIZE + TSK_FIRST + (number & TASK_MASK) * TSK_WORDS
        store_release(m, row + Z_MARK, 0)
        m[row + Z_LAUNCH], m[row + Z_TASK] = m[at + T_LAUNCH], m[at + T_TASK]
        m[row + Z_REPETITION] = repetition
        m[row + Z_STARTED], m[row + Z_ENDED] = m[at + T_TASK_AT], now
        m[at + T_TASK_AT] = now
        store_release(m, row + Z_MARK, number + 1)
        store_release(m, TSK + stream * TSK_SIZE, number + 1)


def stamp_share(m: Words, stream: int, helper: int, job: int, begun: int, chunks: int) -> None:
    """Helper: it has run some chunks of the stream's job, which is not over, since `begun`."""
    at, now = HLP + helper * HLP_SIZE, ticks()
    number = m[at]
    if number > 0 and m[at + HLP_JOB] == job:
        row = at + HLP_FIRST + ((number - 1) & SHARE_MASK) * HLP_WORDS
        m[row + Y_ENDED] = now
        m[row + Y_CHUNKS] += chunks
        return
    row = at + HLP_FIRST + (number & SHARE_MASK) * HLP_WORDS
    store_release(m, row + Y_MARK, 0)
    of = STR + stream * STR_WORDS
    m[row + Y_LAUNCH], m[row + Y_TASK] = m[of + T_LAUNCH], m[of + T_TASK]
    m[row + Y_STARTED], m[row + Y_ENDED], m[row + Y_CHUNKS] = begun, now, chunks
    m[at + HLP_JOB] = job
    store_release(m, row + Y_MARK, number + 1)
    store_release(m, at, number + 1)


def stamp_end(m: Words, stream: int, slot: int) -> None:
    """Worker: the instruction ended."""
    at, now = STR + stream * STR_WORDS + T_STAMP, ticks()
    m[INS + slot * INS_WORDS + I_T_END] = now
    m[at] = now if m[at] != 0 and m[LEVEL] == 1 else 0
