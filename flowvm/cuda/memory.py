"""What the memory of a device is used for: PyTorch's functions, and the VM's numbers.

Memory is taken when an instruction is handed to the device, not when it is issued, so wait
(`flow.cuda.synchronize()`) where exact numbers matter.
"""

from __future__ import annotations

from typing import Any

from flowvm import vm
from flowvm.cuda.devices import index_of
from flowvm.cuda.runtime import runtime, runtimes
from flowvm.cuda.streams import streams
from flowvm.vm import layout as w
from flowvm.vm.engine import engine

__all__ = [
    "empty_cache",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "memory_summary",
    "reset_max_memory_allocated",
    "reset_peak_memory_stats",
]


def _word(device: Any, place: int) -> int:
    """A counter of the device's memory; 0 before the device is used."""
    index = index_of(device)
    if index not in {made.index for made in runtimes()}:
        return 0
    return int(streams(index).counters[place])


def memory_allocated(device: Any = None) -> int:
    """Bytes that tensors and running instructions hold on the device."""
    return _word(device, w.LIVE_BYTES)


def max_memory_allocated(device: Any = None) -> int:
    """The most that `memory_allocated` has been since the start or `reset_peak_memory_stats`."""
    return _word(device, w.PEAK_BYTES)


def memory_reserved(device: Any = None) -> int:
    """Bytes that the VM holds on the device, in use or kept for reuse."""
    return _word(device, w.RESERVED_BYTES)


def max_memory_reserved(device: Any = None) -> int:
    """As `memory_reserved`: what was given back in between is not remembered."""
    return _word(device, w.RESERVED_BYTES)


def memory_stats(device: Any = None) -> dict[str, int]:
    """The numbers by PyTorch's names."""
    live, peak = memory_allocated(device), max_memory_allocated(device)
    reserved = memory_reserved(device)
    return {
        "allocated_bytes.all.current": live,
        "allocated_bytes.all.peak": peak,
        "reserved_bytes.all.current": reserved,
        "inactive_bytes.all.current": reserved - live,
    }


def memory_summary(device: Any = None) -> str:
    """A few lines on the device's memory, for people."""
    index = index_of(device)
    free, total = mem_get_info(index)
    rows = {
        "in use by tensors": memory_allocated(index),
        "most so far": max_memory_allocated(index),
        "held, with what is kept for reuse": memory_reserved(index),
        "free on the device": free,
        "of": total,
    }
    lines = [f"    {name:34s} {size / 2**20:12,.1f} MiB" for name, size in rows.items()]
    return "\n".join([f"cuda:{index}", *lines])


def reset_peak_memory_stats(device: Any = None) -> None:
    """Let `max_memory_allocated` begin anew, when all that was issued is done."""
    index = index_of(device)
    if index in {made.index for made in runtimes()}:
        vm.sync()
        counters = streams(index).counters
        counters[w.PEAK_BYTES] = counters[w.LIVE_BYTES]


reset_max_memory_allocated = reset_peak_memory_stats


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """(free, total) bytes of the device, whoever uses them."""
    return runtime(index_of(device)).memory()


def empty_cache() -> None:
    """Give memory that the VM keeps for reuse back to the devices: unused blocks over 1 MiB."""
    if runtimes():
        vm.sync()
        engine.trim()
