"""Streams that captured operations are issued to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowvm.errors import CaptureError
from flowvm.graph.logical.logical import LogicalGraph
from flowvm.loading.lazy import lazy
from flowvm.meta.device import Device, cpu
from flowvm.streams import current_stream
from flowvm.vm.machine.device_words import DEV

if TYPE_CHECKING:
    from flowvm.cuda import events
    from flowvm.cuda.driver import streams
else:
    events = lazy("flowvm.cuda.events")
    streams = lazy("flowvm.cuda.driver.streams")


def stream_number(graph: LogicalGraph, device: Device, repeat: int) -> int:
    """This thread's stream for a device, by its number, or 0 for the one that it has by default; it
    lives as long as the graph.

    CaptureError where a second one would be on a device, in code that is captured once for `repeat`
    repetitions.
    """
    stream, number = _stream_for(device)
    if device is not cpu and repeat > 1 and number and streams.block_of(number)[DEV.EACH]:
        return 0  # an exchange of ranks: repetitions of a device follow each other on one stream
    if repeat > 1 and device is not cpu and graph.streams and stream != graph.streams[0]:
        raise CaptureError(
            f"{graph.name}: with gradient accumulation, build runs on one stream of a device; "
            f"leave out `with flow.cuda.stream(...)` in it"
        )
    if stream not in graph.streams:
        graph.streams.append(stream)
    return number


def _stream_for(device: Device) -> tuple[object, int]:
    """The stream that this thread issues to, and its number, or 0 for the device's own."""
    if device is cpu:
        stream = current_stream()
        return stream, stream.number
    if device.type == "meta":
        raise CaptureError(
            "graphs compute values, and tensors on the meta device have none; call the module or "
            "the function itself for shapes"
        )
    used = events.current_stream(device)
    return used, 0 if used.number == streams.streams(device.index or 0).compute else used.number
