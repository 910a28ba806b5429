"""Providers: functions of higher layers that lower layers call without importing them.  This module
registers each once.

A provider's module is imported at the first call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from flowvm import compiler
from flowvm.eager import overrides as call_overrides
from flowvm.eager.declaration import Invocation
from flowvm.eager.interpreter import Operator, lowerings, on_missing, on_recorded
from flowvm.eager.modes import current_recorder
from flowvm.eager.tensor import Tensor, method
from flowvm.loading.lazy import lazy, shown
from flowvm.meta import device
from flowvm.meta.device import Device
from flowvm.meta.meta import TensorMeta, about_memory
from flowvm.ops.places.embedding import sparse_gradients
from flowvm.ops.sparse import table as sparse_table
from flowvm.ranks.wires import makers, wires
from flowvm.vm.engine.engine import engine
from flowvm.vm.engine.scheduling import Rule, planners
from flowvm.vm.watch.trace import Trace

if TYPE_CHECKING:
    from types import ModuleType

    from flowvm import array_api, memory, overrides
    from flowvm.cuda import amp, lanes
    from flowvm.cuda.driver import runtime
    from flowvm.graph.capture import ahead
    from flowvm.lab import rules
    from flowvm.nn import forecast
    from flowvm.ops.declare import valueless
    from flowvm.ops.declare.cuda import lowering
    from flowvm.ops.sparse import gradients
    from flowvm.ops.sparse import rules as sparse_rules
    from flowvm.profiler.grammar import Screen
    from flowvm.profiler.views import traces
else:
    array_api = lazy("flowvm.array_api")
    memory = lazy("flowvm.memory")
    overrides = lazy("flowvm.overrides")
    amp = lazy("flowvm.cuda.amp")
    lanes = lazy("flowvm.cuda.lanes")
    runtime = lazy("flowvm.cuda.driver.runtime")
    ahead = lazy("flowvm.graph.capture.ahead")
    rules = lazy("flowvm.lab.rules")
    forecast = lazy("flowvm.nn.forecast")
    valueless = lazy("flowvm.ops.declare.valueless")
    lowering = lazy("flowvm.ops.declare.cuda.lowering")
    gradients = lazy("flowvm.ops.sparse.gradients")
    sparse_rules = lazy("flowvm.ops.sparse.rules")
    traces = lazy("flowvm.profiler.views.traces")


def _foretell(
    op: Operator, metas: tuple[TensorMeta, ...], attrs: tuple[object, ...], needs: tuple[bool, ...]
) -> None:
    """Compile kernels of the coming backward of this call ahead of time."""
    ahead.foretell(op, metas, attrs, needs)


def _foretell_layers(thread: int) -> None:
    """Compile kernels of the model that a thread is calling ahead of time."""
    forecast.foretell(thread)


def _why_no_cuda(index: int) -> str:
    """Return the reason why a CUDA device cannot be used, "" if it can."""
    return runtime.why_not(index)


def _lower_for_cuda(
    op: Operator, metas: tuple[TensorMeta, ...], attrs: tuple[object, ...]
) -> Invocation:
    """Return the Invocation of a call on a CUDA device."""
    return lowering.lower(op, metas, attrs)


def _lower_for_meta(
    op: Operator, metas: tuple[TensorMeta, ...], attrs: tuple[object, ...]
) -> Invocation:
    """Return the Invocation of a call on the meta device."""
    return valueless.lower(op, metas, attrs)


def _cuda_lane(name: str, messages: bool, device: Device) -> lanes.CudaLane:
    """A lane of a CUDA device."""
    return lanes.CudaLane(name, messages, device)


def _communicator(*args: Any) -> lanes.Communicator:
    """NCCL's communicator of a group."""
    return lanes.Communicator(*args)


def _about_memory(stream: int) -> str:
    """Return the memory report for an out-of-memory error."""
    return memory.report(stream)


def _holders() -> str:
    """Return lines that name the holders of the host's memory, for an allocation that cannot be
    had.
    """
    text = memory.report(0) if engine.threads.running else ""
    return f"\n{text}" if text else ""


def _give_way() -> None:
    """Let public functions ask for overrides."""
    overrides.surface_gives_way()


def _fill_sparse_table() -> None:
    """Have the rules of sparse tensors entered, by their module's import."""
    sparse_rules.enter()


def _sparse_gradient(g: Tensor, index: Tensor, rows: int, skip: int) -> Tensor:
    """Return the sparse gradient of a table of so many rows."""
    return gradients.of_rows(g, index, rows, skip)


def _rule_of(policy: object, seed: int | None, like: object, streams: Sequence[int]) -> Rule:
    """Return the rule by which the scheduler compares ready instructions."""
    return rules.rule_of(policy, seed, like, streams)


def _trace_screen(trace: Trace, width: int) -> Screen:
    """Return a trace as a coloured screen."""
    return traces.trace_screen(trace, width)


def _captured() -> bool:
    """Return True if this thread's code is being captured."""
    return current_recorder() is not None


@method()
def __array_namespace__(self: Tensor, /, *, api_version: str | None = None) -> ModuleType:  # noqa: N807
    """The module with the array API standard's functions, `flowvm.array_api`."""
    return array_api.named(api_version)


compiler.captured.append(_captured)
call_overrides.on_first.append(_give_way)
sparse_table.on_first.append(_fill_sparse_table)
sparse_gradients.append(_sparse_gradient)
device.backends["cuda"] = _why_no_cuda
lowerings["cuda"] = _lower_for_cuda
on_recorded.append(_foretell)
on_missing.append(_foretell_layers)
lowerings["meta"] = _lower_for_meta
makers["cuda"] = _cuda_lane
wires["cuda"] = _communicator
engine.failures.about_memory = _about_memory
about_memory.append(_holders)
Trace.screen = _trace_screen
planners.append(_rule_of)
shown["flowvm.cuda"]["amp"] = amp
