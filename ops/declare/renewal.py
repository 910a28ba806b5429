"""Tensors that become others.

`become` is the one place where a tensor's memory and shape are exchanged for another's; its
identity, by which modules, optimizers and hooks know it, stays.
"""

from __future__ import annotations

import warnings

from flowvm.eager.modes import current_trace_recorder, note_change
from flowvm.eager.tensor import Tensor, renew
from flowvm.meta.formats import is_dense
from flowvm.meta.meta import TensorMeta
from flowvm.ops.declare.composite import empty_of


def become(tensor: Tensor, data: Tensor) -> Tensor:
    """Let `tensor` be `data` from now on: same object, other storage, shape, dtype or device."""
    if (trace := current_trace_recorder()) is not None:
        trace.refuse()
    tensor.storage(), data.storage()  # the memory of each has an owner beside the tensor
    meta, storage, ref = map(getattr, (data,) * 3, ("_meta", "_storage", "_ref"))  # in one call
    renew(tensor, storage, ref, meta)
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
