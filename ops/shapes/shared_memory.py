"""Memory that several processes have: `share_memory_`, and how such tensors are sent.

The memory is a file without a name, mapped by each process that has it (memfd_create(2)); it goes
with the last of them.  A child that was forked has the same mapping; through the queues of
`flow.multiprocessing` and the arguments of its processes a tensor on such memory goes as the file,
and every other tensor by its values.  Calls that access such memory are done when they return; what
processes do to it at one time is theirs to order.
"""

from __future__ import annotations

import mmap
import os
import weakref
from typing import Any

import numpy as np

from flowvm.eager.tensor import Tensor, alias, method
from flowvm.eager.values import adopt_array, memory_of
from flowvm.errors import ArgumentError, AutogradError, DeviceError
from flowvm.loading.lazy import lazy
from flowvm.meta.device import cpu
from flowvm.meta.dtype import DType
from flowvm.meta.meta import TensorMeta
from flowvm.ops.declare.renewal import become
from flowvm.vm.engine.engine import engine

reduction = lazy("multiprocessing.reduction")
_sent_as: list[object] = []  # the picklers of multiprocessing that know of shared tensors


class Shared:
    """A mapping of memory that other processes may have; it keeps `file` open for later ones."""

    def __init__(self, file: int, nbytes: int) -> None:
        self.file, self.nbytes = file, nbytes
        self.memory = mmap.mmap(file, max(1, nbytes))
        self._end = weakref.finalize(self, os.close, file)


def _shared_by(t: Tensor) -> Shared | None:
    owner = engine.storages.adopted.get(t.storage().id) if t._meta.device is cpu else None
    return owner if isinstance(owner, Shared) else None


def _on(memory: Shared, dtype: DType, shape: tuple[int]) -> Tensor:
    count = memory.nbytes // dtype.itemsize
    array = np.frombuffer(memory.memory, dtype.storage, count).reshape(shape)
    return adopt_array(array, memory, dtype=dtype, shared=True)


@method()
def share_memory_(x: Tensor) -> Tensor:
    """Move `x` to memory that other processes can have; `x` itself.

    Tensors that shared its memory before, such as views, stay where they are.  DeviceError for a
    tensor that is not on the CPU; AutogradError for one that was computed and requires grad.

    >>> x = flow.ones(2)
    >>> x.share_memory_().is_shared()
    True
    """
    if x._meta.device is not cpu:
        raise DeviceError(
            f"share_memory_: only tensors on the CPU are shared, this is on {x.device}"
        )
    if not x.is_leaf:
        raise AutogradError("share_memory_: only leaves are shared; detach() the tensor first")
    if _shared_by(x) is not None:
        return x
    values = memory_of(x)
    dtype = x._meta.dtype
    file = os.memfd_create("flowvm")
    try:
        os.ftruncate(file, max(1, values.size * dtype.itemsize))
        memory = Shared(file, values.size * dtype.itemsize)
    except BaseException:
        os.close(file)
        raise
    moved = _on(memory, dtype, values.shape)
    memory_of(moved)[...] = values
    if not _sent_as:
        _register()
    return become(x, moved)


@method()
def is_shared(x: Tensor) -> bool:
    """Return True if other processes may have the memory, as after `share_memory_`.

    >>> flow.ones(2).is_shared()
    False
    """
    return _shared_by(x) is not None


# --- sending --------------------------------------------------------------------------------------


def _register() -> None:
    kinds = {Tensor, *_subclasses(Tensor)}
    for kind in kinds:
        reduction.ForkingPickler.register(kind, _sent)
    _sent_as.append(reduction.ForkingPickler)


def _subclasses(kind: type) -> set[type]:
    return set(kind.__subclasses__()).union(*map(_subclasses, kind.__subclasses__()))


def _sent(t: Tensor) -> object:
    """Return the pickled form of a tensor for multiprocessing."""
    memory = _shared_by(t)
    if memory is None or (t.requires_grad and not t.is_leaf):
        return t.__reduce_ex__(4)
    meta = t._meta
    return _received, (
        reduction.DupFd(memory.file), memory.nbytes, meta.dtype, tuple(meta.shape),
        tuple(meta.stride), t.storage_offset() * meta.dtype.itemsize, type(t), t.requires_grad,
        dict(getattr(t, "__dict__", ())),
    )  # fmt: skip


def _received(
    sent: Any, nbytes: int, dtype: DType, shape: tuple[int, ...], stride: tuple[int, ...],
    offset: int, kind: type[Tensor], requires_grad: bool, attributes: dict[str, Any],
) -> Tensor:  # fmt: skip
    file = sent.detach()
    if os.fstat(file).st_size < nbytes:
        os.close(file)
        raise ArgumentError(f"shared memory of {nbytes} bytes came as a file that is shorter")
    whole = _on(Shared(file, nbytes), dtype, (nbytes // dtype.itemsize,))
    meta = TensorMeta.of(shape, dtype, cpu, stride)
    tensor = alias(whole, meta, offset, kind)
    if not _sent_as:  # it may go on from here
        _register()
    if attributes:
        tensor.__dict__.update(attributes)
    tensor.requires_grad_(requires_grad)
    return tensor
