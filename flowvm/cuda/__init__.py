"""CUDA devices: `flow.cuda`, with PyTorch's names and meaning.

    flow.cuda.is_available(), device_count(), get_device_name(0)
    with flow.cuda.device(1): ...              "cuda" means "cuda:1" here
    with flow.cuda.stream(flow.cuda.Stream()): ...
    flow.cuda.synchronize(), memory_stats(), empty_cache()

Importing it loads no driver; the first function that must know something of a device does.
`driver`, `compiler` and `simulator` are what it stands on (`docs/how-it-works/devices.md`).
Not here: kernels of ops (the `cuda` folders of `flowvm.ops`), workers (`flowvm.vm.workers`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flowvm.cuda.driver.driver import FAKES, Driver
from flowvm.loading.lazy import lazy, shown
from flowvm.loading.listing import listing

# --- public names, by `python -m tools.faces`
# isort: off
# fmt: off
from flowvm.cuda.devices import (
    can_device_access_peer, current_device, device, device_count, get_device_capability,
    get_device_name, get_device_properties, init, is_available, is_bf16_supported, is_initialized,
    set_device,
)
from flowvm.cuda.events import (
    Event, Stream, StreamContext, current_stream, default_stream, stream, synchronize,
)
from flowvm.cuda.graphs import CUDAGraph, graph
from flowvm.cuda.memory import (
    empty_cache, get_per_process_memory_fraction, max_memory_allocated, max_memory_reserved,
    mem_get_info, memory_allocated, memory_reserved, memory_stats, memory_summary,
    reset_max_memory_allocated, reset_peak_memory_stats, set_per_process_memory_fraction,
)
from flowvm.cuda.random import (
    get_rng_state, get_rng_state_all, initial_seed, manual_seed, manual_seed_all, seed, seed_all,
    set_rng_state, set_rng_state_all,
)
from flowvm.cuda.tensor_classes import (
    BFloat16Tensor, BoolTensor, ByteTensor, CharTensor, DoubleTensor, FloatTensor, HalfTensor,
    IntTensor, LongTensor, ShortTensor,
)

__all__ = [
    "BFloat16Tensor", "BoolTensor", "ByteTensor", "CUDAGraph", "CharTensor", "DoubleTensor",
    "Event", "FloatTensor", "HalfTensor", "IntTensor", "LongTensor", "ShortTensor", "Stream",
    "StreamContext", "can_device_access_peer", "current_device", "current_stream", "default_stream",
    "device", "device_count", "empty_cache", "get_device_capability", "get_device_name",
    "get_device_properties", "get_per_process_memory_fraction", "get_rng_state",
    "get_rng_state_all", "graph", "init", "initial_seed", "is_available", "is_bf16_supported",
    "is_initialized", "manual_seed", "manual_seed_all", "max_memory_allocated",
    "max_memory_reserved", "mem_get_info", "memory_allocated", "memory_reserved", "memory_stats",
    "memory_summary", "reset_max_memory_allocated", "reset_peak_memory_stats", "seed", "seed_all",
    "set_device", "set_per_process_memory_fraction", "set_rng_state", "set_rng_state_all", "stream",
    "synchronize",
]
# fmt: on
# isort: on
# --- by hand


if TYPE_CHECKING:
    from flowvm.cuda.simulator import recorder
    from flowvm.cuda.simulator import simulator as simulated
else:
    recorder = lazy("flowvm.cuda.simulator.recorder")
    simulated = lazy("flowvm.cuda.simulator.simulator")

__dir__ = listing(globals())


def __getattr__(name: str) -> Any:
    if name in shown[__name__]:
        return shown[__name__][name]
    raise AttributeError(f"flowvm.cuda has no {name!r}", name=name, obj=None)


def _simulator(options: str) -> Driver:
    return simulated.Simulator.of(options).driver()


def _recorder(options: str) -> Driver:
    return recorder.Recorder.of(options).driver()


FAKES.update(simulator=_simulator, recorder=_recorder)
