"""The flight recorder's native half: the record of every instruction.

Always on (level 1): the last RECORDS instructions are in the ring REC, two cache lines each, at the
place that their sequence number says.  Only the scheduler writes there.  A worker's stamps wait in
INS, in the line that it writes its status to anyhow, until the scheduler completes the instruction;
so recording moves no cache line between threads that did not move before, and needs no atomic.

    see          (`stamps`) the scheduler looks how far records are published: `issued`.  An issuing
                 thread pays nothing; the stamp is late by at most one pass of the scheduler, or by
                 its wake-up
    begin        the record was taken and its edges are built: `received`, entry, operands
    stamp_start, stamp_end  (`stamps`) a worker's
    end          the instruction is completed: all other stamps

Operands are kept as storage ids, three to a word.  Instructions with more than INLINE operands, or
with accesses outside of the entry, have theirs in the ring SPL, a word each.  Edges are not kept:
they follow from the operands by the rule itself (`flowvm.vm.machine.edges`).  So they are complete,
also if the producer had finished long before.

A record is valid if REC.SEQ is the same before and after it was read: it is 0 while being written.

The functions here are as pure as the machine that calls them: the time is given, m[NOW].
"""

from __future__ import annotations

from flowvm.vm.machine.lang import Words, load_word, store_release
from flowvm.vm.machine.words import CTL, ENT, INS, OPERAND, REC, RING, SPL

INLINE = 15  # operands that fit into a record


def begin(m: Words, slot: int, seq: int, entry: int, count: int) -> None:
    """Record a received instruction, whose edges are built; called by the scheduler."""
    at = REC.AT + (seq & REC.MASK) * REC.WORDS
    record = RING.AT + slot * RING.WORDS
    store_release(m, at + REC.SEQ, 0)
    if m[CTL.SEEN] <= seq:
        m[CTL.SEEN] = seq + 1
        m[at + REC.ISSUED] = m[CTL.NOW]
    m[at + REC.WHAT] = m[record + RING.ENTRY]
    m[at + REC.COUNT] = count
    m[at + REC.RECEIVED] = m[CTL.NOW]
    m[at + REC.READY] = m[at + REC.DISPATCHED] = m[at + REC.STARTED] = 0
    m[at + REC.ENDED] = m[at + REC.RELEASED] = m[at + REC.STATUS] = 0
    if m[entry + ENT.OUTLINE] != 0:
        spill_outline(m, at, m[record + RING.OPERANDS], count)
    elif count > INLINE:
        m[at + REC.OPERANDS] = m[CTL.SPILLED]
        for k in range(count):
            m[SPL.AT + (m[CTL.SPILLED] & SPL.MASK)] = (
                m[record + RING.OPERANDS - k] & OPERAND.STORAGE_MASK
            )
            m[CTL.SPILLED] += 1
    else:
        word, k = 0, 0
        while k < count:
            word |= (m[record + RING.OPERANDS - k] & OPERAND.STORAGE_MASK) << (
                k % REC.PER_WORD * OPERAND.STORAGE_BITS
            )
            k += 1
            if k % REC.PER_WORD == 0 or k == count:
                m[at + REC.OPERANDS + (k - 1) // REC.PER_WORD] = word
                word = 0
    store_release(m, at + REC.SEQ, seq + 1)


def spill_outline(m: Words, at: int, block: int, count: int) -> None:
    """Copy operands and accesses from a block of the issuer's."""
    m[at + REC.OPERANDS] = m[CTL.SPILLED]
    for k in range(count):
        storage = load_word(block + 8 * k) & OPERAND.STORAGE_MASK
        access = load_word(block + 8 * (count + k))
        m[SPL.AT + (m[CTL.SPILLED] & SPL.MASK)] = storage << OPERAND.ACCESS_BITS | access
        m[CTL.SPILLED] += 1


def end(m: Words, slot: int) -> None:
    """Record a completed instruction; called by the scheduler."""
    ins = INS.AT + slot * INS.WORDS
    seq = m[ins + INS.SEQ]
    at = REC.AT + (seq & REC.MASK) * REC.WORDS
    if m[at + REC.SEQ] != seq + 1:
        return  # it was received while recording was off
    m[at + REC.READY], m[at + REC.DISPATCHED] = m[ins + INS.T_READY], m[ins + INS.T_DISPATCHED]
    m[at + REC.STARTED], m[at + REC.ENDED] = m[ins + INS.T_START], m[ins + INS.T_END]
    m[at + REC.STATUS] = m[ins + INS.STATUS]
    store_release(m, at + REC.RELEASED, m[CTL.NOW])
