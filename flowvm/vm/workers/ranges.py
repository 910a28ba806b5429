"""Sharing one kernel among a stream's worker and its helpers: phases, and chunks of each."""

from __future__ import annotations

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
from flowvm.vm.machine.layout import (
    ARG,
    ARG_WORDS,
    LEVEL,
    PHASE_BITS,
    SIGNED_OFF,
    STR,
    STR_WORDS,
    T_ARENA,
    T_CHUNKS,
    T_FIRST,
    T_GRAIN,
    T_JOB,
    T_KERNEL,
    T_LAYOUT,
    T_LEFT,
    T_NEWS,
    T_STATUS,
    T_TEAM,
    T_TEAM_SLEEPS,
    T_UNITS,
)
from flowvm.vm.machine.sharing import chunks_of, helpers_for, run_length
from flowvm.vm.machine.stamps import stamp_share

LEADER = -1  # the stream's worker among those that share a kernel


def run_phases(
    m: Words, stream: int, args: int, kernel: int, layout: int, units: int, grain: int,
    phases: int, more: int,
) -> int:  # fmt: skip
    """The first phase, and the `more` whose (units, grain) are at address `phases`."""
    status = run_phase(m, stream, args, kernel, layout, 0, units, grain)
    for k in range(more):
        if status == 0:
            at, first = phases + 16 * k, (k + 1) << PHASE_BITS
            status = run_phase(
                m, stream, args, kernel, layout, first, load_word(at), load_word(at + 8)
            )
    return status


def run_phase(
    m: Words, stream: int, args: int, kernel: int, layout: int, first: int, units: int, grain: int
) -> int:
    """One phase: the units [first, first + units) in chunks of `grain`."""
    chunks = chunks_of(units, grain)
    at = STR + stream * STR_WORDS
    if chunks == 1 or m[at + T_TEAM] == 0:
        arena = m[at + T_ARENA]
        for chunk in range(chunks):
            lo, hi = chunk * grain, min((chunk + 1) * grain, units)
            status = call_kernel(kernel, address_in(m, args), layout, first + lo, first + hi, arena)
            if status != 0:
                return status
        return 0
    job = (m[at + T_JOB] >> 32) + 1
    store_release(m, at + T_JOB, (job << 32) + SIGNED_OFF)
    fetch_add(m, at + T_LEFT, 0)  # fence: no helper may take the old job for the new fields
    m[at + T_KERNEL], m[at + T_LAYOUT] = kernel, layout
    m[at + T_FIRST], m[at + T_UNITS] = first, units
    m[at + T_GRAIN], m[at + T_CHUNKS] = grain, chunks
    m[at + T_STATUS] = 0
    m[at + T_LEFT] = chunks
    store_release(m, at + T_JOB, job << 32)
    fetch_add(m, at + T_NEWS, 1)
    if load_acquire(m, at + T_TEAM_SLEEPS) > 0:
        futex_wake(m, at + T_NEWS, helpers_for(chunks, m[at + T_TEAM]))
    while help_with(m, stream, LEADER, m[at + T_ARENA]):
        pass
    while load_acquire(m, at + T_LEFT) > 0:
        sched_yield()
    return m[at + T_STATUS]


def help_with(m: Words, stream: int, who: int, arena: int) -> bool:
    """Take a run of chunks of the stream's job, if there is one, and run them.  LEADER and helper
    `who` alike, each with an arena of its own.

    The job's fields are read before the chunks are claimed and belong to that job if the claim
    succeeds: a leader makes T_JOB name its new job (chunk SIGNED_OFF, never claimed) before it
    touches them.
    """
    at = STR + stream * STR_WORDS
    word = load_acquire(m, at + T_JOB)
    chunk = word & 0xFFFFFFFF
    if chunk == SIGNED_OFF:
        return False
    kernel, layout = load_acquire(m, at + T_KERNEL), load_acquire(m, at + T_LAYOUT)
    units, grain = load_acquire(m, at + T_UNITS), load_acquire(m, at + T_GRAIN)
    first, left = load_acquire(m, at + T_FIRST), load_acquire(m, at + T_CHUNKS) - chunk
    if left <= 0:
        return False
    taken = run_length(left, load_acquire(m, at + T_TEAM) + 1)
    if not compare_exchange(m, at + T_JOB, word, word + taken):
        return True
    args = address_in(m, ARG + stream * ARG_WORDS)
    recorded = who != LEADER and m[LEVEL] > 1
    begun = ticks() if recorded else 0
    for k in range(chunk, chunk + taken):
        lo, hi = k * grain, min((k + 1) * grain, units)
        status = call_kernel(kernel, args, layout, first + lo, first + hi, arena)
        if status != 0:
            store_release(m, at + T_STATUS, status)
    if recorded:
        stamp_share(m, stream, who, word >> 32, begun, taken)
    fetch_add(m, at + T_LEFT, -taken)
    return True
