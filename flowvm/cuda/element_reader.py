"""Reading of some elements of a tensor on a device, for printing.  Nothing is issued to the VM.  Of
a large tensor only the wanted elements, and small gaps between them, are copied.

The caller knows that the tensor's writer is done.  The copies go through a stream of their own.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Final

import numpy as np

from flowvm.cuda.driver.runtime import Runtime, runtime
from flowvm.eager.tensor import Tensor
from flowvm.meta.arrays import Array
from flowvm.vm.engine.engine import engine

GAP: Final = 1024  # bytes between two wanted elements that are copied along


@functools.cache
def _stream_of(used: Runtime) -> int:
    return used.stream()


def own_stream(index: int) -> int:
    """A stream of the device on which the VM puts nothing."""
    return _stream_of(runtime(index))


def elements(t: Tensor, positions: Sequence[Sequence[int]]) -> Array:
    """Return the elements at `positions` of each dimension, as they are stored."""
    meta = t._meta
    if not all(positions):
        return np.empty([len(k) for k in positions], meta.dtype.storage)
    itemsize = meta.dtype.itemsize
    steps = [
        np.array(k, np.int64) * s * itemsize for k, s in zip(positions, meta.stride, strict=True)
    ]
    offsets = functools.reduce(np.add.outer, steps, np.zeros((), np.int64))
    flat = np.unique(offsets)
    breaks = np.flatnonzero(np.diff(flat) > GAP) + 1
    copied = np.empty(flat.shape, meta.dtype.storage)
    used = runtime(meta.device.index or 0)
    for run, out in zip(np.split(flat, breaks), np.split(copied, breaks), strict=True):
        part = _bytes(
            used, engine.storages.pointer(t._ref) + int(run[0]), int(run[-1] - run[0]) + itemsize
        )
        at = (run - run[0])[:, None] + np.arange(itemsize)
        out[:] = part[at].view(meta.dtype.storage)[:, 0]
    return copied[np.searchsorted(flat, offsets)]


def _bytes(used: Runtime, address: int, count: int) -> Array:
    out, stream = np.empty(count, np.uint8), own_stream(used.index)
    used.enter()
    used.driver.call("cuMemcpyDtoHAsync_v2", out.ctypes.data, address, count, stream)
    used.driver.call("cuStreamSynchronize", stream)
    return out
