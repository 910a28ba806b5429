"""Policies that are compiled, asked by the scheduler itself; those in Python have a thread
(`flowvm.vm.engine.scheduling`).

A compiled policy is a function of (state, what, task or worker, the worker whose task ended last,
nanoseconds since it began), at POL.NATIVE.  It answers 0, and -1 where Python would raise; what it
picks is the first word of its state.
"""

from __future__ import annotations

from flowvm.vm.machine.lang import Words, call_kernel, clock, load_word
from flowvm.vm.machine.policy import has_room, is_shared, is_still, news, take
from flowvm.vm.machine.words import CTL, INS, POL, PRI, RING


def ended(m: Words, slot: int, stream: int) -> None:
    """An instruction of a stream is about to be completed; a compiled policy hears of it."""
    m[POL.ENDED_ON] = stream
    number = m[PRI.AT + slot * PRI.WORDS + PRI.NUMBER]
    if m[POL.NATIVE] == 0 or number < 0:
        return
    worker = worker_of(m, stream)
    if call_kernel(m[POL.NATIVE], m[POL.STATE], POL.END, number, worker, since(m)) != 0:
        give_up(m, POL.RAISED, number)


def since(m: Words) -> int:
    """Nanoseconds since the policy began."""
    return clock() - m[POL.BEGUN]


def worker_of(m: Words, stream: int) -> int:
    """The place of a stream in the table of ASKED, its number as a worker; -1: it has none."""
    for k in range(m[POL.ROWS]):
        if load_word(m[POL.TABLE] + 16 * k) == stream:
            return k
    return -1


def give_up(m: Words, why: int, number: int) -> int:
    """A compiled policy is wrong: from here on first come, first served.  -1."""
    m[POL.FAILED], m[POL.WRONG] = why, number
    m[POL.KIND] = POL.ARRIVAL
    return -1


def choose_compiled(m: Words) -> int:
    """Take what a compiled policy chooses off the ready list: its slot, or -1.

    It hears of what became ready, and each stream of its table that has room is a worker to it.
    """
    native, state, now = m[POL.NATIVE], m[POL.STATE], since(m)
    slot = m[CTL.READY_FIRST] if m[POL.HEARD] != m[POL.ARRIVED] else -1
    m[POL.HEARD] = m[POL.ARRIVED]
    while slot >= 0:
        at = PRI.AT + slot * PRI.WORDS
        if m[at + PRI.NUMBER] >= 0 and m[at + PRI.HEARD] == 0:
            m[at + PRI.HEARD] = 1
            by = worker_of(m, m[at + PRI.AFTER])
            if call_kernel(native, state, POL.HEAR, m[at + PRI.NUMBER], by, now) != 0:
                return give_up(m, POL.RAISED, m[at + PRI.NUMBER])
        slot = m[INS.AT + slot * INS.WORDS + INS.NEXT]
    for worker in range(m[POL.ROWS]):
        stream = load_word(m[POL.TABLE] + 16 * worker)
        if not has_room(m, stream):
            continue
        if call_kernel(native, state, POL.PICK, worker, -1, now) != 0:
            return give_up(m, POL.RAISED, -1)
        number = load_word(state)
        if number < 0:
            continue
        # numbers in flight are fewer than slots
        slot = m[PRI.AT + (number & RING.SLOT_MASK) * PRI.WORDS + PRI.SLOT]
        own = m[INS.AT + slot * INS.WORDS + INS.STREAM]
        is_it = m[PRI.AT + slot * PRI.WORDS + PRI.NUMBER] == number
        slot = take(m, slot, stream if is_shared(m, own) else own) if is_it else -1
        return slot if slot >= 0 else give_up(m, POL.UNREADY, number)
    if is_still(m) and m[POL.WAITERS] != 0:
        return give_up(m, POL.IDLE, -1)
    m[POL.TOLD] = news(m)
    return -1
