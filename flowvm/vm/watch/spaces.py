"""The memories that a VM's streams allocate from: the host's, and one of each device.

Page-locked memory that copies to the host are written to is the host's.
"""

from __future__ import annotations

from typing import NamedTuple

from flowvm.vm.machine.lang import Words, words_at
from flowvm.vm.machine.words import CTL, STR
from flowvm.vm.watch.protocol import VM

HOST = "cpu"


class Space(NamedTuple):
    """A memory: the bytes of tensors and running instructions, their peak, and the bytes that the
    VM holds.
    """

    name: str
    live: int
    peak: int
    reserved: int


def space_of(vm: VM, stream: int) -> str:
    """Return the memory in which a stream's tensors are: HOST, or the device's name, with which the
    names of its streams begin.
    """
    if vm.words[STR.AT + stream * STR.WORDS + STR.MEMORY] != STR.DEVICE_MEMORY:
        return HOST
    return vm.streams.name(stream).partition(" ")[0]


def spaces(vm: VM) -> list[Space]:
    """All memories, the host's first.  The host's peak counts each kind of its memory apart."""
    counters: dict[int, tuple[str, Words]] = {0: (HOST, vm.words)}
    for stream in range(vm.streams.count):
        address = int(vm.words[STR.AT + stream * STR.WORDS + STR.COUNTERS])
        if address not in counters:
            counters[address] = space_of(vm, stream), words_at(address, CTL.WORDS)
    space_names: dict[str, Space] = {}
    for name, words in counters.values():
        before = space_names.get(name, Space(name, 0, 0, 0))
        now = (int(words[k]) for k in (CTL.LIVE_BYTES, CTL.PEAK_BYTES, CTL.RESERVED_BYTES))
        space_names[name] = Space(name, *(a + b for a, b in zip(before[1:], now, strict=True)))
    return list(space_names.values())
