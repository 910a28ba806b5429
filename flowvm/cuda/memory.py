"""The use of a device's memory: PyTorch's functions, and the VM's numbers.

Memory is taken when an instruction is handed to the device, not when it is issued, so wait
(`flow.cuda.synchronize()`) where exact numbers matter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flowvm import vm
from flowvm.cuda.devices import index_of
from flowvm.cuda.driver.runtime import runtime, runtimes
from flowvm.cuda.driver.streams import streams
from flowvm.errors import ArgumentError, ArgumentTypeError
from flowvm.loading.listing import listing, own_names
from flowvm.vm.engine.engine import engine
from flowvm.vm.machine.words import CTL

if TYPE_CHECKING:
    from flowvm.meta.device import DeviceLike


# public: cuda

__dir__ = listing(globals())


def _word(device: Any, place: int) -> int:
    """A counter of the device's memory; 0 before the device is used."""
    index = index_of(device)
    if index not in {runtime.index for runtime in runtimes()}:
        return 0
    return int(streams(index).counters[place])


def memory_allocated(device: DeviceLike | None = None) -> int:
    """Bytes that tensors and running instructions hold on the device."""
    return _word(device, CTL.LIVE_BYTES)


def max_memory_allocated(device: DeviceLike | None = None) -> int:
    """The most that `memory_allocated` has been since the start or `reset_peak_memory_stats`."""
    return _word(device, CTL.PEAK_BYTES)


def memory_reserved(device: DeviceLike | None = None) -> int:
    """Bytes that the VM holds on the device, in use or kept for reuse."""
    return _word(device, CTL.RESERVED_BYTES)


def max_memory_reserved(device: DeviceLike | None = None) -> int:
    """The most that `memory_reserved` has been since the start or `reset_peak_memory_stats`."""
    return _word(device, CTL.PEAK_RESERVED)


def memory_stats(device: DeviceLike | None = None) -> dict[str, int]:
    """The numbers by PyTorch's names."""
    live, reserved = memory_allocated(device), memory_reserved(device)
    return {
        "allocated_bytes.all.current": live,
        "allocated_bytes.all.peak": max_memory_allocated(device),
        "reserved_bytes.all.current": reserved,
        "reserved_bytes.all.peak": max_memory_reserved(device),
        "inactive_bytes.all.current": reserved - live,
    }


def memory_summary(device: DeviceLike | None = None, abbreviated: bool = False) -> str:
    """A few lines on the device's memory, for people; they are few, `abbreviated` or not."""
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


def reset_peak_memory_stats(device: DeviceLike | None = None) -> None:
    """Let `max_memory_allocated` and `max_memory_reserved` begin anew, when all that was issued is
    done.
    """
    index = index_of(device)
    if index in {runtime.index for runtime in runtimes()}:
        vm.sync()
        counters = streams(index).counters
        counters[CTL.PEAK_BYTES] = counters[CTL.LIVE_BYTES]
        counters[CTL.PEAK_RESERVED] = counters[CTL.RESERVED_BYTES]


reset_max_memory_allocated = reset_peak_memory_stats  # public: cuda


def mem_get_info(device: DeviceLike | None = None) -> tuple[int, int]:
    """(free, total) bytes of the device, whoever uses them."""
    return runtime(index_of(device)).memory()


def set_per_process_memory_fraction(fraction: object, device: DeviceLike | None = None) -> None:
    """Let the VM hold at most this part of a device's memory; more is an OutOfMemoryError, as if
    the device had no more.  What is held already stays.

    ArgumentTypeError unless `fraction` is a float, ArgumentError unless it is from 0 to 1.
    """
    if not isinstance(fraction, float):
        kind = type(fraction).__name__
        raise ArgumentTypeError(f"set_per_process_memory_fraction: expected a float, got {kind}")
    if not 0 <= fraction <= 1:
        raise ArgumentError(
            f"set_per_process_memory_fraction: {fraction} is not a fraction from 0 to 1"
        )
    of = streams(index_of(device))
    total = of.runtime.properties.total_memory
    of.counters[CTL.MOST_BYTES] = max(1, int(fraction * total)) if fraction < 1 else 0


def get_per_process_memory_fraction(device: DeviceLike | None = None) -> float:
    """Return the fraction that `set_per_process_memory_fraction` has set; 1.0 at first."""
    most = _word(device, CTL.MOST_BYTES)
    return most / runtime(index_of(device)).properties.total_memory if most else 1.0


def empty_cache() -> None:
    """Give cached memory back to the devices: unused blocks, and slabs whose blocks are all
    unused.
    """
    if runtimes():
        vm.sync()
        engine.streams.trim()


__all__ = own_names(globals())
