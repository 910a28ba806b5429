"""Tensors that become others.

`become` is the one place where a tensor's memory and shape are exchanged for another's; its
identity, by which modules, optimizers and hooks know it, stays.
"""

from __future__ import annotations

import warnings

from flowvm.eager.modes import current_trace_recorder, note_change
from flowvm.eager.tensor import Tensor
from flowvm.meta.formats import is_dense
from flowvm.meta.meta import TensorMeta
from flowvm.ops.declare.composite import empty_of

_PLACE = "_storage", "_ref", "_meta"


def become(tensor: Tensor, data: Tensor) -> Tensor:
    """Let `tensor` be `data` from now on: same object, other storage, shape, dtype or device."""
    if (trace := current_trace_recorder()) is not None:
        trace.refuse()
    # the old memory has an owner that goes when the last alias does, and not before the tensor is
    # whole again: its finalizer may let another thread run
    old = tensor.storage()
    # all or nothing: one call, of C code
    any(map(setattr, (tensor,) * 3, _PLACE, (data.storage(), data._ref, data._meta)))
    del old
    note_change()
    return tensor


def fitted(name: str, out: Tensor, meta: TensorMeta) -> None:
    """Give `out` the shape and order of `meta` and new memory, with a warning unless it was
    empty, as in PyTorch.
    """
    if out._meta.numel:
        warnings.warn(
            f"{name}: out of shape {tuple(out.shape)} is resized to {tuple(meta.shape)}; give an "
            f"empty tensor, or one of that shape",
            stacklevel=4,
        )
    stride = meta.stride if is_dense(meta.shape, meta.stride) else None
    become(out, empty_of(TensorMeta.of(meta.shape, out._meta.dtype, out._meta.device, stride)))
