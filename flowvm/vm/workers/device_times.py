"""Times of a device's instructions by its own clock, from level 3 of the recorder on.

An instruction that does anything there has an event in front of it and one behind it.  Its worker
records the second anyhow, so it costs one event more.  Both have happened when the worker closes
the instruction, and only then are they read: nothing waits for a device.

The driver tells the time between two events, in ms as a float; its grain is finer for shorter
times.  Times count from the stream's base, an event.  If the last event is FRESH ns later it
becomes the base, and DEV.BASE_NS goes on by as much.  The reader converts the times to the host's
clock (`flowvm.cuda.driver.clocks`); it also makes the events and the ring.
"""

from __future__ import annotations

from flowvm.vm.machine.device_words import DEV, EVENT, TIME
from flowvm.vm.machine.lang import Words, load_word, store_release, words_at
from flowvm.vm.machine.words import CTL, KIND, REC
from flowvm.vm.workers.steps import call_driver, result_of

FRESH = 2_000_000_000  # ns from which on another event is the base


def events_of(block: Words, number: int) -> Words:
    """The `number`-th of the stream's places for events."""
    return words_at(block[DEV.EVENTS] + 8 * EVENT.WORDS * (number % EVENT.LENGTH), EVENT.WORDS)


def begin_time(m: Words, block: Words, kind: int) -> int:
    """Record an event in front of an instruction, at its own place.  Return the driver's answer."""
    events = events_of(block, block[DEV.RECORDED])
    timed = m[CTL.LEVEL] > 2 and block[DEV.TIMES] != 0 and kind != KIND.RELEASE
    events[EVENT.TIMED] = 1 if timed else 0
    return (
        call_driver(block, DEV.F_RECORD, events[EVENT.BEGIN], block[DEV.STREAM], 0, 0)
        if timed
        else 0
    )


def note_time(block: Words, events: Words, seq: int) -> None:
    """Keep the times of an instruction whose two events the device has passed."""
    began = elapsed(block, block[DEV.BASE], events[EVENT.BEGIN])
    length = elapsed(block, events[EVENT.BEGIN], events[EVENT.END])
    if began < 0 or length < 0:
        return  # the driver did not say: the instruction has its worker's times alone
    row = words_at(block[DEV.TIMES], REC.LENGTH * TIME.WORDS)
    at = (seq & REC.MASK) * TIME.WORDS
    store_release(row, at + TIME.MARK, 0)
    row[at + TIME.BEGAN] = block[DEV.BASE_NS] + began
    row[at + TIME.ENDED] = block[DEV.BASE_NS] + began + length
    store_release(row, at + TIME.MARK, seq + 1)
    if began + length > FRESH:
        block[DEV.BASE], events[EVENT.END] = events[EVENT.END], block[DEV.BASE]
        block[DEV.BASE_NS] += began + length


def elapsed(block: Words, first: int, last: int) -> int:
    """Nanoseconds between two events; -1 where the driver does not say, or says less than 0."""
    result = result_of(block)
    if call_driver(block, DEV.F_ELAPSED, result, first, last, 0) != 0:
        return -1
    bits = load_word(result) & 0xFFFFFFFF
    # a float, in integers alone: (2^23 + fraction) * 2^(exponent - 150) ms
    exponent, fraction = (bits >> 23) - 150, (bits & 0x7FFFFF | 0x800000) * 1_000_000
    if exponent < -44:  # and 0, whose exponent is 0
        return 0
    if exponent > 18:  # years, or less than 0: the sign is above the exponent
        return -1
    if exponent >= 0:
        return fraction << exponent
    return (fraction + (1 << (-exponent - 1))) >> -exponent
