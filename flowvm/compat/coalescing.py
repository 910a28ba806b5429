"""`torch._utils`: tensors laid one behind the other in one vector, and back, as DDP's and
optimizers' helpers do.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, ShapeError
from flowvm.ops.shapes.join import cat


def _flatten_dense_tensors(tensors: Iterable[Tensor]) -> Tensor:
    """The elements of tensors of one dtype, one behind the other, in a vector.

    ArgumentError where there are none.
    """
    flat = [t.reshape(-1) for t in tensors]
    if not flat:
        raise ArgumentError("_flatten_dense_tensors: at least one tensor is needed")
    vector: Tensor = cat(flat)
    return vector


def _unflatten_dense_tensors(flat: Tensor, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Views of parts of `flat`, in the shapes of `tensors`.  ShapeError where it is too short."""
    sizes = [t.numel() for t in tensors]
    if sum(sizes) > flat.numel():
        raise ShapeError(
            f"_unflatten_dense_tensors: {len(sizes)} tensors of {sum(sizes)} elements, and flat "
            f"has {flat.numel()}"
        )
    parts = flat.reshape(-1)[: sum(sizes)].split(sizes)
    return tuple(p.view(t.shape) for p, t in zip(parts, tensors, strict=True))
