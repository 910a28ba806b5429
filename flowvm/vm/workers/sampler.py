"""The sampler's loop: samples of the issuing threads, a thousand times a second, and at first up to
ten times as often: a run of a few milliseconds has some too.

It runs without the GIL and stops no thread.  The memory that it reads changes meanwhile and may be
freed.  So the system reads all of the interpreter's memory, and answers where a load would fault.
The samples are numbers, and `flowvm.vm.watch.sampling` finds their code under the GIL.
"""

from __future__ import annotations

from flowvm.vm.machine.lang import (
    Words,
    call_address,
    clock,
    futex_wait,
    load_acquire,
    store_release,
    words_at,
)
from flowvm.vm.machine.sample_words import SAMPLING, SEEN, WATCHED

WORDS_ONLY = True
SIGNATURE = "int64(int64)"
STACK_SIGNATURE = "int64(int64)"
QUICK_US = 100  # between two looks, at the least
TAGS = 7
STACK_FACTOR = 0x2545F4914F6CDD1D  # of a multiplicative hash: odd
STACK_MOST = 4096  # frames; a deeper stack has no number
FRAME_BYTES = 96  # of a frame, in which its places are


def sampler_loop(base: int) -> int:
    """Run the sampler's thread until STOP."""
    w = words_at(base, SAMPLING.WORDS)
    begun = clock()
    while load_acquire(w, SAMPLING.STOP) == 0:
        for k in range(WATCHED.LENGTH):
            at = SAMPLING.WATCHED + k * WATCHED.WORDS
            state = load_acquire(w, at + WATCHED.STATE)
            if state != 0:
                sample(w, at, state)
        w[SAMPLING.LOOKS] += 1
        futex_wait(w, SAMPLING.STOP, 0, pause((clock() - begun) // 1000, w[SAMPLING.PERIOD]))
    return 0


def pause(since: int, period: int) -> int:
    """Return the microseconds until the next look, `since` microseconds after the first one: a
    sixteenth of these, from QUICK_US to `period`.
    """
    return min(period, max(QUICK_US, since // 16))


def sample(w: Words, at: int, state: int) -> None:
    """Write a sample of the thread of the WATCHED at `at`."""
    number = w[SAMPLING.COUNT]
    place = number % SEEN.LENGTH
    row = words_at(w[SAMPLING.RING] + 8 * SEEN.WORDS * place, SEEN.WORDS)
    store_release(row, SEEN.MARK, 0)
    thread = w[at + WATCHED.THREAD]
    row[SEEN.USED] = used(w, w[at + WATCHED.CLOCK])
    row[SEEN.TIME] = clock()
    row[SEEN.THREAD] = thread
    row[SEEN.DEPTH] = walked(w, row, state)
    names(w, row, w[at + WATCHED.LAST])
    if load_acquire(w, at + WATCHED.STATE) != state:  # it has ended, or is no longer looked at
        return
    store_release(row, SEEN.MARK, number + 1)
    w[at + WATCHED.LAST] = place + 1
    store_release(w, SAMPLING.COUNT, number + 1)


def used(w: Words, number: int) -> int:
    """Return the processor time of the thread whose clock is `number`; 0 if it is over."""
    call = words_at(w[SAMPLING.CALL], 8)
    pair = words_at(w[SAMPLING.WINDOW], 2)
    call[0], call[1] = number, w[SAMPLING.WINDOW]
    if call_address(w[SAMPLING.CLOCK], w[SAMPLING.CALL]) != 0:
        return 0
    return pair[0] * 1_000_000_000 + pair[1]


def read(w: Words, to: int, size: int, spans: int) -> int:
    """Read the `spans` places behind the first of SPANS to `to`, which has `size` bytes.  Return
    the bytes read.
    """
    call = words_at(w[SAMPLING.CALL], 8)
    span = words_at(w[SAMPLING.SPANS], 2)
    span[0], span[1] = to, size
    call[0], call[1], call[2] = w[SAMPLING.PID], w[SAMPLING.SPANS], 1
    call[3], call[4], call[5] = w[SAMPLING.SPANS] + 16, spans, 0
    return call_address(w[SAMPLING.READ], w[SAMPLING.CALL])


def read_some(w: Words, address: int, size: int) -> bool:
    """Read memory to the beginning of WINDOW.  Return True if it is mapped."""
    span = words_at(w[SAMPLING.SPANS] + 16, 2)
    span[0], span[1] = address, size
    return read(w, w[SAMPLING.WINDOW], size, 1) == size


def walked(w: Words, row: Words, state: int) -> int:
    """Write the code and the offset of each frame of a thread, from the innermost on.  Return their
    number.
    """
    window = words_at(w[SAMPLING.WINDOW], SAMPLING.WINDOW_BYTES // 8)
    if not read_some(w, state + w[SAMPLING.CURRENT], 8):
        return 0
    frame = window[0]
    if w[SAMPLING.THROUGH] >= 0:
        if not read_some(w, frame + w[SAMPLING.THROUGH], 8):
            return 0
        frame = window[0]
    low, high = 0, 0  # the part of memory in WINDOW
    depth = 0
    while frame > 0 and frame & 7 == 0 and depth < SEEN.MOST:
        if frame < low or frame + FRAME_BYTES > high:
            # callers lie in front of their callees, most of them close by
            size = SAMPLING.WINDOW_BYTES
            low = frame + SAMPLING.AHEAD - size
            if low < 0 or not read_some(w, low, size):
                low, size = frame, FRAME_BYTES
                if not read_some(w, low, size):
                    return depth
            high = low + size
        slot = (frame - low) // 8
        code = window[slot + w[SAMPLING.CODE] // 8] & ~TAGS
        to = SEEN.FRAMES + 3 * depth
        row[to], row[to + 1] = code, window[slot + w[SAMPLING.AT] // 8]
        depth += 1
        frame = window[slot + w[SAMPLING.BEFORE] // 8]
    return depth


def own_stack(cell: int) -> int:
    """Return a number for the stack of the calling thread: the same for the same code at the same
    places.  Its frames stay meanwhile, so they are read where they are.

    `cell` is the address of two words: SAMPLING's address, and that of the thread's state.
    """
    both = words_at(cell, 2)
    w = words_at(both[0], SAMPLING.WORDS)
    frame = words_at(both[1] + w[SAMPLING.CURRENT], 1)[0]
    if w[SAMPLING.THROUGH] >= 0:
        frame = words_at(frame + w[SAMPLING.THROUGH], 1)[0]
    code, at, before = w[SAMPLING.CODE] // 8, w[SAMPLING.AT] // 8, w[SAMPLING.BEFORE] // 8
    number, budget = 1, STACK_MOST
    while frame > 0 and frame & 7 == 0 and budget > 0:
        words = words_at(frame, FRAME_BYTES // 8)
        number = (number ^ (words[code] & ~TAGS)) * STACK_FACTOR
        number = (number ^ (number >> 29) ^ words[at]) * STACK_FACTOR
        frame = words[before]
        budget -= 1
    return number if budget > 0 else 0


def names(w: Words, row: Words, last: int) -> None:
    """Write the identity of each code object of a sample.  A frame that was at the same depth in
    the thread's `last` sample keeps its identity.
    """
    depth, same = row[SEEN.DEPTH], 0
    if last != 0:
        before = words_at(w[SAMPLING.RING] + 8 * SEEN.WORDS * (last - 1), SEEN.WORDS)
        most = min(depth, before[SEEN.DEPTH])
        if row[SEEN.THREAD] != before[SEEN.THREAD] or depth == SEEN.MOST:
            most = 0
        while same < most:
            to = SEEN.FRAMES + 3 * (depth - 1 - same)
            of = SEEN.FRAMES + 3 * (before[SEEN.DEPTH] - 1 - same)
            if row[to] != before[of]:
                break
            row[to + 2] = before[of + 2]
            same += 1
    news = depth - same
    if news == 0:
        return
    first = min(w[SAMPLING.NAME], w[SAMPLING.TABLE])
    size = max(w[SAMPLING.NAME], w[SAMPLING.TABLE]) - first + 8
    spans = words_at(w[SAMPLING.SPANS] + 16, 2 * SEEN.MOST)
    for k in range(news):
        code = row[SEEN.FRAMES + 3 * k]
        if code == 0:  # a frame of C's: the memory is arbitrary
            code = w[SAMPLING.RING]
        spans[2 * k], spans[2 * k + 1] = code + first, size
    whole = max(read(w, w[SAMPLING.WINDOW], size * news, news), 0) // size
    window = words_at(w[SAMPLING.WINDOW], SAMPLING.WINDOW_BYTES // 8)
    for k in range(news):
        to = SEEN.FRAMES + 3 * k + 2
        row[to] = 0  # unreadable memory is no code object
        if k < whole:
            at = k * size
            row[to] = (
                window[(at + w[SAMPLING.NAME] - first) // 8]
                + window[(at + w[SAMPLING.TABLE] - first) // 8]
            )
