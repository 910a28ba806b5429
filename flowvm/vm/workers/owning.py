"""Giving a storage its memory."""

from __future__ import annotations

from flowvm.vm.machine.lang import Words, words_at
from flowvm.vm.machine.layout import (
    ARG,
    ARG_WORDS,
    B_REFUSED,
    B_WORDS,
    LIVE_BYTES,
    RESERVED_BYTES,
    S_BYTES,
    S_CLASS,
    S_POINTER,
    S_STREAM,
    STO,
    STO_WORDS,
    STR,
    STR_WORDS,
    T_BLOCK,
)
from flowvm.vm.workers.allocator import allocate, class_of, counters
from flowvm.vm.workers.steps import DEVICE_FAILED

OUT_OF_MEMORY = 3  # flowvm.errors.Status.OUT_OF_MEMORY; a test pins that they agree
DEVICE_IS_FULL = 2  # CUDA_ERROR_OUT_OF_MEMORY
OWNED = 1 << 40  # S_CLASS of memory that came from the allocator; adopted memory has no class


def own(m: Words, stream: int, storage: int, size: int) -> bool:
    """Give a storage memory of its own; whether there was any."""
    at = STO + storage * STO_WORDS
    pointer = allocate(m, stream, size)
    if pointer == 0:
        return False
    m[at + S_POINTER] = pointer
    m[at + S_BYTES] = size
    m[at + S_CLASS] = OWNED + class_of(size)
    m[at + S_STREAM] = stream
    return True


def out_of_memory(m: Words, stream: int, size: int) -> int:
    """The status, with the details that its message gives: bytes asked for, live and reserved; or
    what the device answered if it is another reason.
    """
    at, args = STR + stream * STR_WORDS, ARG + stream * ARG_WORDS
    if m[at + T_BLOCK] != 0:
        code = words_at(m[at + T_BLOCK], B_WORDS)[B_REFUSED]
        if code not in (0, DEVICE_IS_FULL):
            m[args], m[args + 1] = code, -1
            return DEVICE_FAILED
    count = counters(m, at)
    m[args], m[args + 1], m[args + 2] = size, count[LIVE_BYTES], count[RESERVED_BYTES]
    return OUT_OF_MEMORY
