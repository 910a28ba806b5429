"""Times of instructions on devices, as exactly as they are known.

A device's worker *opens* an instruction, which hands it to the device, and *closes* it when it has
seen that the device has passed it.  Its time on the device lies between, and is known in one of
three ways:

    HOST     it ran on the host: started and ended are its worker's own stamps
    SEEN     below level 3: it ended when it was closed, and began, at the earliest, when it was
             opened, what its stream had in front of it was closed, and so was what it read; so it
             seems as long as it and the worker's looking took.  At level 1 up to 16 instructions
             share a look: the first of them seems to have taken all of their time
    DEVICE   the device's own clock, between events (`flowvm.vm.workers.device_times`)

A ReleaseTensor does nothing there: it takes no time.
"""

from __future__ import annotations

import numpy as np

from flowvm.meta.arrays import Array
from flowvm.vm.machine.edges import Edges
from flowvm.vm.machine.words import KIND
from flowvm.vm.watch.flight import TIMES

HOST, SEEN, DEVICE = 0, 1, 2
_STARTED, _ENDED = TIMES.index("started"), TIMES.index("ended")


def place_on_devices(
    times: Array, stream: Array, kind: Array, edges: Edges, devices: int, own: Array
) -> tuple[Array, Array, Array]:
    """Return times with `started` and `ended` as on the devices; the times at which instructions
    were opened, 0 on the host; and the source of each one's times: HOST, SEEN or DEVICE.

    devices  bit s is set if stream s is a device's
    own      began, ended by the device's clock, 0 where it did not say
    """
    on_device = (devices >> stream.astype(np.int64) & 1) == 1
    on_device &= ~np.isin(kind, (KIND.TOUCH, KIND.BARRIER))
    opened = np.where(on_device, times[:, _STARTED], 0)
    clock = np.where(on_device, SEEN, HOST).astype(np.int8)
    if not on_device.any():
        return times, opened, clock
    times = times.copy()
    closed = times[:, _ENDED].copy()
    began = _at_the_earliest(stream, on_device, opened, closed, edges)
    known = on_device & (own[:, 0] > 0) & (closed > 0)
    clock[known] = DEVICE
    began = np.where(known, np.clip(own[:, 0], opened, closed), began)
    over = np.where(known, np.clip(own[:, 1], began, closed), closed)
    over = np.where(kind == KIND.RELEASE, began, over)
    times[on_device, _STARTED] = began[on_device]
    closed_rows = on_device & (closed > 0)
    times[closed_rows, _ENDED] = over[closed_rows]
    return times, opened, clock


def _at_the_earliest(
    stream: Array, on_device: Array, opened: Array, closed: Array, edges: Edges
) -> Array:
    """Return the earliest start of each instruction: it is opened, and all in front of it are
    closed.
    """
    began = opened.copy()
    real = on_device[edges.source] & on_device[edges.target]
    np.maximum.at(began, edges.target[real], closed[edges.source[real]])
    mine = np.flatnonzero(on_device & (opened > 0))
    mine = mine[np.lexsort((mine, opened[mine], stream[mine]))]
    same = stream[mine[1:]] == stream[mine[:-1]]
    behind, front = mine[1:][same], mine[:-1][same]
    began[behind] = np.maximum(began[behind], closed[front])
    return np.where(opened > 0, np.where(closed > 0, np.minimum(began, closed), began), 0)
