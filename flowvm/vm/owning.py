"""Giving a storage its memory."""

from __future__ import annotations

from flowvm.vm.allocator import allocate, class_of, counters
from flowvm.vm.lang import Words
from flowvm.vm.layout import (
    ARG,
    ARG_WORDS,
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
)

OUT_OF_MEMORY = 3  # flowvm.errors.Status.OUT_OF_MEMORY; a test pins that they agree
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
    """The status, with the details that its message gives: bytes asked for, live and reserved."""
    args, count = ARG + stream * ARG_WORDS, counters(m, STR + stream * STR_WORDS)
    m[args], m[args + 1], m[args + 2] = size, count[LIVE_BYTES], count[RESERVED_BYTES]
    return OUT_OF_MEMORY
