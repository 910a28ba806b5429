"""Pickle and copy of tensors: values, place in the autograd graph, and the attributes that users
have set, which results of calls do not have.

Tensors that share a storage share one again in a copy.deepcopy, and in a pickle, of an object that
has them; all of the storage goes with each, as in PyTorch: clone a small view first.

Unpickling runs the code in a pickle, beside the tensors: never unpickle data that you do not
trust.  For files of others use `flow.load`, which opens no pickle.
"""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import numpy as np

from flowvm.eager.modes import current_recorder
from flowvm.eager.tensor import Storage, Tensor, alias, method, new_tensor
from flowvm.eager.values import adopt_array, memory_of, wait_for
from flowvm.errors import ArgumentError, ArgumentTypeError, AutogradError
from flowvm.meta.arrays import Array
from flowvm.meta.device import meta as nowhere
from flowvm.meta.dtype import DType, uint8
from flowvm.meta.global_meta import GlobalMeta
from flowvm.meta.meta import TensorMeta
from flowvm.vm.engine.engine import engine
from flowvm.vm.machine.words import OPERAND, STO

if TYPE_CHECKING:
    from collections.abc import Callable


def _whole(t: Tensor) -> Tensor:
    """All bytes of the storage that `t`, which has elements, lies in."""
    at = STO.AT + (t._ref & OPERAND.STORAGE_MASK) * STO.WORDS
    if not engine.words[at + STO.POINTER]:
        wait_for(t)  # its writer allocates the memory
    meta = TensorMeta.of((int(engine.words[at + STO.BYTES]),), uint8, t._meta.device)
    return new_tensor(t._ref & OPERAND.STORAGE_MASK, meta, t.storage())


class _Shared:
    """A storage, for pickles: one object for all tensors on it, so that a pickle has it once."""

    __slots__ = ("__weakref__", "bytes", "storage")

    def __init__(self, t: Tensor) -> None:
        self.storage, self.bytes = t.storage(), _whole(t)

    def __reduce_ex__(
        self, protocol: object
    ) -> tuple[Callable[[Array, str], Tensor], tuple[Array, str]]:
        return _stored, (memory_of(self.bytes).copy(), str(self.bytes._meta.device))


# by id of the storage; a pickler keeps the objects it has written, and so the entry
_shared: WeakValueDictionary[int, _Shared] = WeakValueDictionary()


def _shared_of(t: Tensor) -> _Shared:
    shared = _shared.get(id(t.storage()))
    if shared is None or shared.bytes._meta.device is not t._meta.device:
        shared = _shared[id(t.storage())] = _Shared(t)
    return shared


def _stored(array: Array, device: str) -> Tensor:
    if not array.flags.writeable:  # out-of-band buffers of pickle 5 may be
        array = array.copy()
    moved: Tensor = adopt_array(array).to(device)
    return moved


def _rebuild_on(
    base: Tensor,
    cls: type[Tensor],
    meta: TensorMeta,
    offset_bytes: int,
    requires_grad: bool,
    attributes: dict[str, object],
) -> Tensor:
    meta = TensorMeta.of(meta.shape, meta.dtype, base._meta.device, meta.stride)
    if offset_bytes < 0 or offset_bytes + meta.span > base._meta.nbytes:
        raise ArgumentError(
            f"a pickle has a tensor of {meta.span} bytes at {offset_bytes} of a storage of "
            f"{base._meta.nbytes}: it is damaged"
        )
    return _of_class(cls, alias(base, meta, offset_bytes), requires_grad, attributes)


def _rebuild(
    cls: type[Tensor],
    array: Array,
    requires_grad: bool,
    attributes: dict[str, object],
    device: str = "cpu",
    dtype: DType | None = None,
) -> Tensor:
    if not array.flags.writeable:  # out-of-band buffers of pickle 5 may be
        array = array.copy()
    tensor = adopt_array(array, dtype=dtype).to(device)
    return _of_class(cls, tensor, requires_grad, attributes)


def _rebuild_valueless(
    cls: type[Tensor], meta: TensorMeta, requires_grad: bool, attributes: dict[str, object]
) -> Tensor:
    empty: Any = adopt_array(np.empty(0, np.float32)).to(device=nowhere)
    tensor = empty.new_empty_strided(meta.shape, meta.stride, dtype=meta.dtype)
    return _of_class(cls, tensor, requires_grad, attributes)


def _of_class(
    cls: type[Tensor], data: Tensor, requires_grad: bool, attributes: dict[str, object]
) -> Tensor:
    out = data if cls is Tensor else alias(data, data._meta, 0, cls)
    if attributes:
        out.__dict__.update(attributes)
    if requires_grad:
        out.requires_grad_(True)
    return out


def _attributes(t: Tensor) -> dict[str, object]:
    """Return the attributes that users have set on a tensor."""
    return dict(t.__dict__)


@method("__reduce_ex__")
def _reduce(t: Tensor, protocol: object) -> tuple[object, ...]:
    """By value, outside the graph; tensors of one pickle that share a storage share one again.

    It comes back on the device that it was on, which must be there.
    """
    if isinstance(t._meta, GlobalMeta):
        raise ArgumentTypeError(
            "a global tensor cannot be pickled: other processes hold parts of it; use flow.save, "
            "or pickle its to_local() on each rank"
        )
    if t._meta.device is nowhere:
        facts = type(t), t._meta, t.requires_grad and t.is_leaf, _attributes(t)
        return _rebuild_valueless, facts
    if t._meta.numel == 0:
        return reduced(t, memory_of(t))
    wait_for(t)
    leaf, offset = t.requires_grad and t.is_leaf, t._ref >> OPERAND.STORAGE_BITS
    return _rebuild_on, (_shared_of(t), type(t), t._meta, offset, leaf, _attributes(t))


def reduced(t: Tensor, values: Array) -> tuple[object, ...]:
    """Return pickle's call that makes a tensor like `t`, on the memory of `values` alone."""
    facts = type(t), values, t.requires_grad and t.is_leaf, _attributes(t)
    return _rebuild, (*facts, str(t._meta.device), t._meta.dtype)


@method("__copy__")
def _copy(t: Tensor) -> Tensor:
    """Another tensor on the same memory, at the same place in the autograd graph."""
    if not t.is_leaf:
        again: Tensor = t.view_as(t)
        return again
    return _of_class(type(t), alias(t, t._meta), t.requires_grad, _attributes(t))


@method("__deepcopy__")
def _deepcopy(t: Tensor, memo: dict[int, Any]) -> Tensor:
    """A leaf with values, gradient and attributes of its own; copies share a storage where the
    originals of one deepcopy do.
    """
    if id(t) in memo:
        copied: Tensor = memo[id(t)]
        return copied
    if not t.is_leaf:
        raise AutogradError(
            "Only Tensors created explicitly by the user (graph leaves) support the deepcopy "
            "protocol; use t.detach().clone() for the values"
        )
    values = _copied(t, memo)
    out = _of_class(type(t), values, t.requires_grad, {})
    memo[id(t)] = out
    if _attributes(t):
        out.__dict__.update(deepcopy(_attributes(t), memo))
    if t.grad is not None:
        out.grad = deepcopy(t.grad, memo)
    return out


def _copied(t: Tensor, memo: dict[int, Any]) -> Tensor:
    """The values of `t` on the copy of its storage that this deepcopy makes."""
    meta = t._meta
    alone = t._storage is None or isinstance(meta, GlobalMeta) or meta.numel == 0
    if alone or meta.device is nowhere or current_recorder() is not None:
        cloned: Tensor = t.detach().clone()
        return cloned
    storage = t.storage()
    known: tuple[Storage, Tensor] | None = memo.get(id(storage))
    if known is None:
        whole: Tensor = _whole(t)
        if meta.contiguous and meta.nbytes == whole._meta.nbytes:
            whole = new_tensor(t._ref, meta, storage)  # its dtype's kernel exists already
        known = memo[id(storage)] = storage, whole.clone()  # kept: its id is its own
    return alias(known[1], meta, t._ref >> OPERAND.STORAGE_BITS)
