"""Pickle and copy of tensors: values, place in the autograd graph, and the attributes that users
have set, which results of calls do not have.

Unpickling runs what a pickle says, whatever is in it besides tensors: never unpickle what you do
not trust.  Files of others are for `flow.load`, which opens no pickle.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np

from flowvm.eager.reading import adopt_array, memory_of
from flowvm.eager.tensor import Tensor, alias, method
from flowvm.errors import ArgumentTypeError, AutogradError
from flowvm.meta.device import meta as nowhere
from flowvm.meta.dtype import DType
from flowvm.meta.global_meta import GlobalMeta
from flowvm.meta.meta import TensorMeta


def _rebuild(
    cls: type[Tensor],
    array: np.ndarray[Any, Any],
    requires_grad: bool,
    attributes: dict[str, Any],
    device: str = "cpu",
    dtype: DType | None = None,
) -> Tensor:
    if not array.flags.writeable:  # out-of-band buffers of pickle 5 may be
        array = array.copy()
    made = adopt_array(array, dtype=dtype).to(device)
    return _of_class(cls, made, requires_grad, attributes)


def _rebuild_valueless(
    cls: type[Tensor], meta: TensorMeta, requires_grad: bool, attributes: dict[str, Any]
) -> Tensor:
    there: Any = adopt_array(np.empty(0, np.float32)).to(device=nowhere)
    made = there.new_empty_strided(meta.shape, meta.stride, dtype=meta.dtype)
    return _of_class(cls, made, requires_grad, attributes)


def _of_class(
    cls: type[Tensor], data: Tensor, requires_grad: bool, attributes: dict[str, Any]
) -> Tensor:
    out = data if cls is Tensor else alias(data, data._meta, 0, cls)
    if attributes:
        out.__dict__.update(attributes)
    if requires_grad:
        out.requires_grad_(True)
    return out


def _attributes(t: Tensor) -> dict[str, Any]:
    """Attributes that users have set on a tensor."""
    return dict(t.__dict__)


@method("__reduce_ex__")
def _reduce(t: Tensor, protocol: Any) -> tuple[Any, ...]:
    """By value: tensors that share memory come back apart, and a tensor outside the graph.

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
    return reduced(t, memory_of(t).copy())


def reduced(t: Tensor, values: np.ndarray[Any, Any]) -> tuple[Any, ...]:
    """What pickle makes a tensor like `t` of, on the memory of `values`."""
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
    """A leaf with values, gradient and attributes of its own; no two copies share memory."""
    if id(t) in memo:
        found: Tensor = memo[id(t)]
        return found
    if not t.is_leaf:
        raise AutogradError(
            "Only Tensors created explicitly by the user (graph leaves) support the deepcopy "
            "protocol; use t.detach().clone() for the values"
        )
    values = t.detach().clone()
    out = _of_class(type(t), values, t.requires_grad, {})
    memo[id(t)] = out
    if _attributes(t):
        out.__dict__.update(deepcopy(_attributes(t), memo))
    if t.grad is not None:
        out.grad = deepcopy(t.grad, memo)
    return out
