"""Kernels that copy between the host's memory and a device's, for streams that only copy.

`args`: the address to copy to, the address to copy from; `layout`: how many bytes.

Into a device, through the stream's pinned buffers: the driver copies asynchronously from pinned
memory alone.  A buffer is filled again when the event behind its last use has passed: that is the
stream's credit, and its worker waits for it.  To the host the memory copied to is pinned itself
(the stream's allocator gives no other); where it is not, the driver waits.
"""

from __future__ import annotations

from flowvm.vm.machine.device_words import DEV
from flowvm.vm.machine.lang import Words, address_in, call_address, load_word, words_at
from flowvm.vm.machine.words import ARG
from flowvm.vm.workers.steps import CALL_AREA, DEVICE_FAILED, call_driver

WORDS_ONLY = True


def failed(a: Words, code: int) -> int:
    """Return the status for a driver's answer."""
    a[0], a[1] = code, -1
    return 0 if code == 0 else DEVICE_FAILED


def copy_in(args: int, layout: int, lo: int, hi: int, arena: int) -> int:
    """Copy from the host to the device, by way of the pinned buffers."""
    a = words_at(args, ARG.WORDS)
    block = words_at(a[ARG.BLOCK], DEV.WORDS)
    to, source, remaining = a[ARG.HEADER], a[ARG.HEADER + 1], load_word(layout)
    code = 0
    while remaining > 0 and code == 0:
        count = min(remaining, block[DEV.STAGE_BYTES])
        stage = words_at(block[DEV.STAGES] + 16 * (block[DEV.STAGED] % DEV.STAGE_COUNT), 2)
        if block[DEV.STAGED] >= DEV.STAGE_COUNT:
            code = call_driver(block, DEV.F_SYNCHRONIZE_EVENT, stage[1], 0, 0, 0)
        if code == 0:
            call_driver(block, DEV.F_MEMCPY, stage[0], source, count, 0)  # its answer is an address
            code = call_driver(block, DEV.F_COPY_IN, to, stage[0], count, block[DEV.STREAM])
        if code == 0:
            code = call_driver(block, DEV.F_RECORD, stage[1], block[DEV.STREAM], 0, 0)
        block[DEV.STAGED] += 1
        to, source, remaining = to + count, source + count, remaining - count
    return failed(a, code)


def copy_out(args: int, layout: int, lo: int, hi: int, arena: int) -> int:
    """Copy from the device to the host."""
    a = words_at(args, ARG.WORDS)
    block = words_at(a[ARG.BLOCK], DEV.WORDS)
    to, source, count = a[ARG.HEADER], a[ARG.HEADER + 1], load_word(layout)
    if count == 0:
        return 0
    return failed(a, call_driver(block, DEV.F_COPY_OUT, to, source, count, block[DEV.STREAM]))


def copy_across(args: int, layout: int, lo: int, hi: int, arena: int) -> int:
    """Copy from one device to another; `layout` has their contexts, too: to, from."""
    a = words_at(args, ARG.WORDS)
    block = words_at(a[ARG.BLOCK], DEV.WORDS)
    if load_word(layout) == 0:
        return 0
    call = words_at(block[DEV.CALL], CALL_AREA)
    call[0], call[1] = a[ARG.HEADER], load_word(layout + 8)
    call[2], call[3] = a[ARG.HEADER + 1], load_word(layout + 16)
    call[4], call[5] = load_word(layout), block[DEV.STREAM]
    return failed(a, call_address(block[DEV.F_COPY_PEER], address_in(call, 0)))
