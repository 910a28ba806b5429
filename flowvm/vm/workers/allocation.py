"""Allocation of a storage's memory."""

from __future__ import annotations

from flowvm.vm.machine.device_words import DEV
from flowvm.vm.machine.lang import Words, words_at
from flowvm.vm.machine.words import ARG, CTL, STO, STR
from flowvm.vm.workers.allocator import allocate_class, class_near, counters, is_beyond
from flowvm.vm.workers.steps import DEVICE_FAILED

OUT_OF_MEMORY = 3  # flowvm.errors.Status.OUT_OF_MEMORY; a test pins that they agree
DEVICE_IS_FULL = 2  # CUDA_ERROR_OUT_OF_MEMORY
MOST_BYTES = 1 << 60  # more than any machine has; larger numbers may overflow a number of bytes
OWNED = 1 << 40  # STO.CLASS of memory that came from the allocator; adopted memory has no class


def own(m: Words, stream: int, storage: int, size: int) -> bool:
    """Give a storage memory of its own.  Return True if there was any."""
    at = STO.AT + storage * STO.WORDS
    size_class = class_near(m, stream, size)
    pointer = allocate_class(m, stream, size_class, size)
    if pointer == 0:
        return False
    m[at + STO.POINTER] = pointer
    m[at + STO.BYTES] = size
    m[at + STO.CLASS] = OWNED + size_class
    m[at + STO.STREAM] = stream
    return True


def out_of_memory(m: Words, stream: int, size: int) -> int:
    """The status, with the details that its message gives: bytes asked for, live and reserved, and
    how many may be if that is why; or what the device answered if it is another reason.
    """
    at, args = STR.AT + stream * STR.WORDS, ARG.AT + stream * ARG.WORDS
    if m[at + STR.BLOCK] != 0:
        code = words_at(m[at + STR.BLOCK], DEV.WORDS)[DEV.REFUSED]
        if code not in (0, DEVICE_IS_FULL):
            m[args], m[args + 1] = code, -1
            return DEVICE_FAILED
    count = counters(m, at)
    m[args], m[args + 1], m[args + 2] = size, count[CTL.LIVE_BYTES], count[CTL.RESERVED_BYTES]
    if m[at + STR.COUNTERS] == 0 and is_beyond(m, size):
        m[args + 3] = m[CTL.MOST_BYTES]
    return OUT_OF_MEMORY
