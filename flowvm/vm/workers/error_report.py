"""Reporting an error: a row of ERR, which the engine reads when somebody waits."""

from __future__ import annotations

from flowvm.vm.machine.lang import Words, fetch_add, store_release
from flowvm.vm.machine.words import ARG, CTL, ERR


def report(m: Words, stream: int, seq: int, entry: int, status: int, task: int) -> None:
    """Report that instruction `seq` failed, with the details in its stream's ARG."""
    m[ERR.AT + seq % ERR.LENGTH * ERR.WORDS + ERR.POISONED] = 0
    number = fetch_add(m, CTL.ERROR_COUNT, 1)
    at = ERR.AT + number % ERR.LENGTH * ERR.WORDS
    m[at + ERR.SEQ], m[at + ERR.STATUS] = seq, status
    for i in range(ARG.N_DETAILS):
        m[at + ERR.DETAILS + i] = m[ARG.AT + stream * ARG.WORDS + i]
    m[at + ERR.ENTRY] = entry
    m[at + ERR.TASK] = task
    store_release(m, at + ERR.MARK, number + 1)
