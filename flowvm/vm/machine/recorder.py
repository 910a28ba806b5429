"""The flight recorder's native half: what is kept of every instruction.

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

Operands are kept as storage ids, three to a word; those of instructions with more than INLINE, or
whose accesses are no matter of the entry, are in the ring SPL, a word each.  Edges are not kept:
they follow from the operands by the rule itself (`flowvm.vm.machine.edges`), so they are complete,
also where the producer had finished long before.

A record is valid if C_SEQ is the same before and after it was read: it is 0 while being written.

The functions here are as pure as the machine that calls them: the time is given, m[NOW].
"""

from __future__ import annotations

from flowvm.vm.machine.lang import Words, load_word, store_release
from flowvm.vm.machine.layout import (
    ACCESS_BITS,
    C_COUNT,
    C_DISPATCHED,
    C_ENDED,
    C_ISSUED,
    C_OPERANDS,
    C_READY,
    C_RECEIVED,
    C_RELEASED,
    C_SEQ,
    C_STARTED,
    C_STATUS,
    C_WHAT,
    E_OUTLINE,
    ENTRY,
    I_SEQ,
    I_STATUS,
    I_T_DISPATCHED,
    I_T_END,
    I_T_READY,
    I_T_START,
    INS,
    INS_WORDS,
    NOW,
    OPERANDS,
    PER_WORD,
    REC,
    REC_WORDS,
    RECORD_MASK,
    RECORD_WORDS,
    RING,
    SEEN,
    SPILL_MASK,
    SPILLED,
    SPL,
    STORAGE_BITS,
    STORAGE_MASK,
)

INLINE = 15  # operands that fit into a record


def begin(m: Words, slot: int, seq: int, entry: int, count: int) -> None:
    """Scheduler: an instruction was received, and its edges are built."""
    at = REC + (seq & RECORD_MASK) * REC_WORDS
    record = RING + slot * RECORD_WORDS
    store_release(m, at + C_SEQ, 0)
    if m[SEEN] <= seq:
        m[SEEN] = seq + 1
        m[at + C_ISSUED] = m[NOW]
    m[at + C_WHAT] = m[record + ENTRY]
    m[at + C_COUNT] = count
    m[at + C_RECEIVED] = m[NOW]
    m[at + C_READY] = m[at + C_DISPATCHED] = m[at + C_STARTED] = 0
    m[at + C_ENDED] = m[at + C_RELEASED] = m[at + C_STATUS] = 0
    if m[entry + E_OUTLINE] != 0:
        spill_outline(m, at, m[record + OPERANDS], count)
    elif count > INLINE:
        m[at + C_OPERANDS] = m[SPILLED]
        for k in range(count):
            m[SPL + (m[SPILLED] & SPILL_MASK)] = m[record + OPERANDS - k] & STORAGE_MASK
            m[SPILLED] += 1
    else:
        word, k = 0, 0
        while k < count:
            word |= (m[record + OPERANDS - k] & STORAGE_MASK) << (k % PER_WORD * STORAGE_BITS)
            k += 1
            if k % PER_WORD == 0 or k == count:
                m[at + C_OPERANDS + (k - 1) // PER_WORD] = word
                word = 0
    store_release(m, at + C_SEQ, seq + 1)


def spill_outline(m: Words, at: int, block: int, count: int) -> None:
    """Keep operands and accesses that are in a block of the issuer's."""
    m[at + C_OPERANDS] = m[SPILLED]
    for k in range(count):
        storage = load_word(block + 8 * k) & STORAGE_MASK
        access = load_word(block + 8 * (count + k))
        m[SPL + (m[SPILLED] & SPILL_MASK)] = storage << ACCESS_BITS | access
        m[SPILLED] += 1


def end(m: Words, slot: int) -> None:
    """Scheduler: an instruction is completed."""
    ins = INS + slot * INS_WORDS
    seq = m[ins + I_SEQ]
    at = REC + (seq & RECORD_MASK) * REC_WORDS
    if m[at + C_SEQ] != seq + 1:
        return  # it was received while recording was off
    m[at + C_READY], m[at + C_DISPATCHED] = m[ins + I_T_READY], m[ins + I_T_DISPATCHED]
    m[at + C_STARTED], m[at + C_ENDED] = m[ins + I_T_START], m[ins + I_T_END]
    m[at + C_STATUS] = m[ins + I_STATUS]
    store_release(m, at + C_RELEASED, m[NOW])
