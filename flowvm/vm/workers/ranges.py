"""Division of one kernel among a stream's worker and its helpers: phases, and chunks of each."""

from __future__ import annotations

from flowvm.vm.machine.chunks import chunks_of, helpers_for, run_length
from flowvm.vm.machine.lang import (
    Words,
    address_in,
    call_kernel,
    compare_exchange,
    fetch_add,
    futex_wake,
    load_acquire,
    load_word,
    sched_yield,
    store_release,
    ticks,
)
from flowvm.vm.machine.stamps import stamp_share
from flowvm.vm.machine.words import ARG, CTL, STR
from flowvm.vm.workers.zones import CHECKED, check_arena

LEADER = -1  # the stream's worker among the threads that share a kernel


def run_phases(
    m: Words, stream: int, args: int, kernel: int, layout: int, units: int, grain: int,
    phases: int, more: int,
) -> int:  # fmt: skip
    """Run the first phase, and the `more` phases whose (units, grain) are at address `phases`."""
    status = run_phase(m, stream, args, kernel, layout, 0, units, grain)
    for k in range(more):
        if status == 0:
            at, first = phases + 16 * k, (k + 1) << ARG.PHASE_BITS
            status = run_phase(
                m, stream, args, kernel, layout, first, load_word(at), load_word(at + 8)
            )
    return status


def run_phase(
    m: Words, stream: int, args: int, kernel: int, layout: int, first: int, units: int, grain: int
) -> int:
    """Run one phase: the units [first, first + units) in chunks of `grain`."""
    chunks = chunks_of(units, grain)
    at = STR.AT + stream * STR.WORDS
    if chunks == 1 or m[at + STR.TEAM] == 0:
        arena = m[at + STR.ARENA]
        for chunk in range(chunks):
            if is_stopped(m, at):
                return STR.STOPPED
            lo, hi = chunk * grain, min((chunk + 1) * grain, units)
            status = call_kernel(kernel, address_in(m, args), layout, first + lo, first + hi, arena)
            if status != 0:
                return status
        return 0
    job = (m[at + STR.JOB] >> 32) + 1
    store_release(m, at + STR.JOB, (job << 32) + STR.SIGNED_OFF)
    fetch_add(m, at + STR.LEFT, 0)  # fence: no helper may take the old job for the new fields
    m[at + STR.KERNEL], m[at + STR.LAYOUT] = kernel, layout
    m[at + STR.FIRST], m[at + STR.UNITS] = first, units
    m[at + STR.GRAIN], m[at + STR.CHUNKS] = grain, chunks
    m[at + STR.STATUS] = 0
    m[at + STR.LEFT] = chunks
    store_release(m, at + STR.JOB, job << 32)
    fetch_add(m, at + STR.NEWS, 1)
    if load_acquire(m, at + STR.TEAM_SLEEPS) > 0:
        futex_wake(m, at + STR.NEWS, helpers_for(chunks, m[at + STR.TEAM]))
    while help_with(m, stream, LEADER, m[at + STR.ARENA]):
        pass
    while load_acquire(m, at + STR.LEFT) > 0:
        sched_yield()
    return m[at + STR.STATUS]


def is_stopped(m: Words, at: int) -> bool:
    """Return True if a cancel came while the kernel ran, and the kernel may stop early."""
    return m[at + STR.STOPPABLE] != 0 and load_acquire(m, CTL.CANCEL) > m[at + STR.STOPPABLE]


def help_with(m: Words, stream: int, who: int, arena: int) -> bool:
    """Take a run of chunks of the stream's job, if there is one, and run them.  LEADER and helper
    `who` do so alike, each with its own arena.

    The job's fields are read before the chunks are claimed and belong to that job if the claim
    succeeds: a leader makes STR.JOB name its new job (chunk SIGNED_OFF, never claimed) before it
    touches them.
    """
    at = STR.AT + stream * STR.WORDS
    word = load_acquire(m, at + STR.JOB)
    chunk = word & 0xFFFFFFFF
    if chunk == STR.SIGNED_OFF:
        return False
    kernel, layout = load_acquire(m, at + STR.KERNEL), load_acquire(m, at + STR.LAYOUT)
    units, grain = load_acquire(m, at + STR.UNITS), load_acquire(m, at + STR.GRAIN)
    first, remaining = load_acquire(m, at + STR.FIRST), load_acquire(m, at + STR.CHUNKS) - chunk
    if remaining <= 0:
        return False
    count = run_length(remaining, load_acquire(m, at + STR.TEAM) + 1)
    if not compare_exchange(m, at + STR.JOB, word, word + count):
        return True
    args = address_in(m, ARG.AT + stream * ARG.WORDS)
    recorded = who != LEADER and m[CTL.LEVEL] > 1
    begun = ticks() if recorded else 0
    for k in range(chunk, chunk + count):
        if is_stopped(m, at):
            store_release(m, at + STR.STATUS, STR.STOPPED)
            break
        lo, hi = k * grain, min((k + 1) * grain, units)
        status = call_kernel(kernel, args, layout, first + lo, first + hi, arena)
        if CHECKED and status == 0 and who != LEADER:  # its arena is checked behind the kernel
            status = check_arena(m, stream, arena)
        if status != 0:
            store_release(m, at + STR.STATUS, status)
    if recorded:
        stamp_share(m, stream, who, word >> 32, begun, count)
    fetch_add(m, at + STR.LEFT, -count)
    return True
