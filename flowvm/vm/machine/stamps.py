"""The flight recorder's clock: its readers, and the moments of reading.

Stamps are `ticks()`, read rarely.  NOW is the scheduler's last reading: once before it collects,
once when it sees new records, then for every eighth that it receives.  A worker that has work
waiting starts it when the last ended.  From level 2 on each event is stamped on its own.
"""

from __future__ import annotations

from flowvm.vm.machine.lang import Words, load_acquire, store_release, ticks, ticks_after
from flowvm.vm.machine.words import CTL, HLP, INS, RAN, REC, RING, SHARE, STR, TSK


def see(m: Words) -> None:
    """Note the time of newly published records; called by the scheduler."""
    seq = max(m[CTL.SEEN], m[CTL.RECEIVED])
    news = load_acquire(m, RING.AT + (seq & RING.SLOT_MASK) * RING.WORDS + RING.MARK) == seq + 1
    if news or seq > m[CTL.RECEIVED]:
        m[CTL.NOW] = ticks()
    while load_acquire(m, RING.AT + (seq & RING.SLOT_MASK) * RING.WORDS + RING.MARK) == seq + 1:
        at = REC.AT + (seq & REC.MASK) * REC.WORDS
        store_release(m, at + REC.SEQ, 0)
        m[at + REC.ISSUED] = m[CTL.NOW]
        seq += 1
    m[CTL.SEEN] = seq


def stamp_start(m: Words, stream: int, slot: int) -> None:
    """Stamp the instruction's start; called by the worker.  If the instruction was waiting already,
    the start is the end of the one before.
    """
    at = STR.AT + stream * STR.WORDS
    m[INS.AT + slot * INS.WORDS + INS.T_START] = (
        ticks_after() if m[at + STR.STAMP] == 0 else m[at + STR.STAMP]
    )
    # checked now: the next one's operands were ready long before the stamp at this one's end
    m[at + STR.STAMP] = 1 if load_acquire(m, at + STR.TAIL) > m[at + STR.DONE] + 1 else 0
    if m[CTL.LEVEL] > 1:
        m[at + STR.LAUNCH], m[at + STR.TASK] = m[RING.AT + slot * RING.WORDS + RING.MARK] - 1, -1


def stamp_open(m: Words, stream: int, slot: int) -> None:
    """Stamp a launch's start, perhaps beside others; called by the worker."""
    m[STR.AT + stream * STR.WORDS + STR.STAMP] = 0
    m[INS.AT + slot * INS.WORDS + INS.T_START] = ticks_after()


def stamp_tasks(m: Words, stream: int, slot: int) -> None:
    """Stamp the beginning of tasks of the launch in `slot`; called by the worker."""
    if m[CTL.LEVEL] > 1:
        at = STR.AT + stream * STR.WORDS
        m[at + STR.LAUNCH] = m[RING.AT + slot * RING.WORDS + RING.MARK] - 1
        m[at + STR.TASK_AT] = ticks_after()


def stamp_task(m: Words, stream: int, repetition: int) -> None:
    """Stamp a task's end; called by the worker."""
    if m[CTL.LEVEL] > 1:
        at, now = STR.AT + stream * STR.WORDS, ticks()
        number = m[TSK.AT + stream * TSK.WORDS]
        row = TSK.AT + stream * TSK.WORDS + TSK.ROWS + (number & TSK.MASK) * RAN.WORDS
        store_release(m, row + RAN.MARK, 0)
        m[row + RAN.LAUNCH], m[row + RAN.TASK] = m[at + STR.LAUNCH], m[at + STR.TASK]
        m[row + RAN.REPETITION] = repetition
        m[row + RAN.STARTED], m[row + RAN.ENDED] = m[at + STR.TASK_AT], now
        m[at + STR.TASK_AT] = now
        store_release(m, row + RAN.MARK, number + 1)
        store_release(m, TSK.AT + stream * TSK.WORDS, number + 1)


def stamp_share(m: Words, stream: int, helper: int, job: int, begun: int, chunks: int) -> None:
    """Stamp a helper's share: it has run some chunks of the stream's unfinished job since
    `begun`.
    """
    at, now = HLP.AT + helper * HLP.WORDS, ticks()
    number = m[at]
    if number > 0 and m[at + HLP.JOB] == job:
        row = at + HLP.ROWS + ((number - 1) & HLP.MASK) * SHARE.WORDS
        m[row + SHARE.ENDED] = now
        m[row + SHARE.CHUNKS] += chunks
        return
    row = at + HLP.ROWS + (number & HLP.MASK) * SHARE.WORDS
    store_release(m, row + SHARE.MARK, 0)
    of = STR.AT + stream * STR.WORDS
    m[row + SHARE.LAUNCH], m[row + SHARE.TASK] = m[of + STR.LAUNCH], m[of + STR.TASK]
    m[row + SHARE.STARTED], m[row + SHARE.ENDED], m[row + SHARE.CHUNKS] = (begun, now, chunks)
    m[at + HLP.JOB] = job
    store_release(m, row + SHARE.MARK, number + 1)
    store_release(m, at, number + 1)


def stamp_end(m: Words, stream: int, slot: int) -> None:
    """Stamp the instruction's end; called by the worker."""
    at, now = STR.AT + stream * STR.WORDS + STR.STAMP, ticks()
    m[INS.AT + slot * INS.WORDS + INS.T_END] = now
    m[at] = now if m[at] != 0 and m[CTL.LEVEL] == 1 else 0
