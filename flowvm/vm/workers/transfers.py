"""Kernels that copy between the host's memory and a device's, for the streams that do nothing else.

`args`: the address to copy to, the address to copy from; `layout`: how many bytes.

Into a device, through the stream's pinned buffers: the driver copies asynchronously from pinned
memory alone.  A buffer is filled again when the event behind its last use has passed: that is the
stream's credit, and its worker waits for it.  To the host the memory copied to is pinned itself
(the stream's allocator gives no other); where it is not, the driver waits.
"""

from __future__ import annotations

from flowvm.vm.machine.lang import Words, address_in, call_address, load_word, words_at
from flowvm.vm.machine.layout import (
    A_BLOCK,
    ARG_HEADER,
    ARG_WORDS,
    B_CALL,
    B_STAGE_BYTES,
    B_STAGED,
    B_STAGES,
    B_STREAM,
    B_WORDS,
    BF_COPY_IN,
    BF_COPY_OUT,
    BF_COPY_PEER,
    BF_MEMCPY,
    BF_RECORD,
    BF_SYNCHRONIZE_EVENT,
    STAGES,
)
from flowvm.vm.workers.steps import CALL_AREA, DEVICE_FAILED, call_driver


def failed(a: Words, code: int) -> int:
    """The status for a driver's answer."""
    a[0], a[1] = code, -1
    return 0 if code == 0 else DEVICE_FAILED


def copy_in(args: int, layout: int, lo: int, hi: int, arena: int) -> int:
    """From the host to the device, by way of the pinned buffers."""
    a = words_at(args, ARG_WORDS)
    block = words_at(a[A_BLOCK], B_WORDS)
    to, source, left = a[ARG_HEADER], a[ARG_HEADER + 1], load_word(layout)
    code = 0
    while left > 0 and code == 0:
        count = min(left, block[B_STAGE_BYTES])
        stage = words_at(block[B_STAGES] + 16 * (block[B_STAGED] % STAGES), 2)
        if block[B_STAGED] >= STAGES:
            code = call_driver(block, BF_SYNCHRONIZE_EVENT, stage[1], 0, 0, 0)
        if code == 0:
            call_driver(block, BF_MEMCPY, stage[0], source, count, 0)  # its answer is an address
            code = call_driver(block, BF_COPY_IN, to, stage[0], count, block[B_STREAM])
        if code == 0:
            code = call_driver(block, BF_RECORD, stage[1], block[B_STREAM], 0, 0)
        block[B_STAGED] += 1
        to, source, left = to + count, source + count, left - count
    return failed(a, code)


def copy_out(args: int, layout: int, lo: int, hi: int, arena: int) -> int:
    """From the device to the host."""
    a = words_at(args, ARG_WORDS)
    block = words_at(a[A_BLOCK], B_WORDS)
    to, source, count = a[ARG_HEADER], a[ARG_HEADER + 1], load_word(layout)
    if count == 0:
        return 0
    return failed(a, call_driver(block, BF_COPY_OUT, to, source, count, block[B_STREAM]))


def copy_across(args: int, layout: int, lo: int, hi: int, arena: int) -> int:
    """From one device to another; `layout` has their contexts, too: to, from."""
    a = words_at(args, ARG_WORDS)
    block = words_at(a[A_BLOCK], B_WORDS)
    if load_word(layout) == 0:
        return 0
    call = words_at(block[B_CALL], CALL_AREA)
    call[0], call[1] = a[ARG_HEADER], load_word(layout + 8)
    call[2], call[3] = a[ARG_HEADER + 1], load_word(layout + 16)
    call[4], call[5] = load_word(layout), block[B_STREAM]
    return failed(a, call_address(block[BF_COPY_PEER], address_in(call, 0)))
