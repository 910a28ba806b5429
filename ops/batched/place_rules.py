"""Elements at places that are data, of all examples at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowvm.eager.interpreter import Operator
from flowvm.meta.batched_meta import example_of
from flowvm.meta.meta import TensorMeta
from flowvm.ops.batched.physical import (
    batched_axes,
    behind,
    folded_meta,
    in_front,
    is_shared,
    unfolded_meta,
)
from flowvm.ops.batched.plans import RULE, STEPS, Plan, laid
from flowvm.ops.places import gather, search
from flowvm.ops.places.cpu.index_kernels import ADD, NONE
from flowvm.ops.pointwise.compare import where

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flowvm.eager.tensor import Tensor
    from flowvm.meta.batched_meta import Axis
    from flowvm.meta.meta import Attrs


def _cut(x: Tensor, shape: Sequence[int], dim: int, along: int | None = None) -> Tensor:
    """Return the part of `x` that an index of `shape` can reach beside dimension `dim`."""
    for d, size in enumerate(shape):
        size_here = size if d != dim else along
        if size_here is not None and x.shape[d] != size_here:
            x = x.narrow(d, 0, size_here)
    return x


@STEPS(gather.gather_elements)
def _gathered(op: Operator, tensors: tuple[Tensor, ...], attrs: Attrs, scalars: object) -> object:
    x, index = tensors
    part = _cut(x, index.shape, attrs[0])
    return None if part is x else op.call(part, index, *attrs)


@STEPS(gather.scatter_elements, gather.combine_elements)
def _scattered(
    op: Operator, tensors: tuple[Tensor, ...], attrs: Attrs, scalars: tuple[object, ...]
) -> tuple[()] | None:
    x, index, source = tensors
    part = _cut(x, index.shape, attrs[0])
    if source.ndim == index.ndim:
        values = _cut(source, index.shape, attrs[0], index.shape[attrs[0]] if index.ndim else None)
    else:
        values = source.expand(index.shape)
    if part is x and values is source:
        return None
    op.call(part, index, values, *attrs)
    return ()


def _take_rule(
    op: Operator,
    metas: Sequence[TensorMeta],
    attrs: Attrs,
    outs: object,
    axes: Sequence[Axis],
    shared: Sequence[Axis],
) -> Plan | None:
    """Slices of one tensor for the indices of all examples."""
    x, index = metas
    if not is_shared(x, axes) or index.ndim != 1:
        return None
    places = folded_meta(index, axes, 0)
    if places is None or not places.contiguous or not x.contiguous:
        return None
    dim, size = attrs[0], index.shape[0]

    def wrap(place: int, out: TensorMeta) -> TensorMeta:
        return unfolded_meta(out, axes, dim, size, shared)

    return Plan((example_of(x), places), attrs, wrap)


RULE.say(_take_rule, gather.take_slices)


@STEPS(gather.take_slices)
def _taken_apart(
    op: Operator, tensors: tuple[Tensor, ...], attrs: Attrs, scalars: object
) -> object:
    """Slices at the indices of each example, of its own tensor: elements at repeated indices."""
    x, index = tensors
    dim, _, _, zero, _ = attrs
    axes = batched_axes([x._meta, index._meta])
    if is_shared(index._meta, axes) or is_shared(x._meta, axes) or index.ndim != 1 or not x.ndim:
        return None
    places = _repeated(index, x.shape, dim)
    out = gather.gather_elements(x, places, dim)
    return out if zero == NONE else out.masked_fill(_along(index, x.ndim, dim) == zero, 0)


def _along(index: Tensor, ndim: int, dim: int) -> Tensor:
    return index.reshape((-1,) + (1,) * (ndim - dim - 1))


def _repeated(index: Tensor, shape: Sequence[int], dim: int) -> Tensor:
    """Return an index of slices as one of elements, from the front."""
    wide = (*shape[:dim], index.shape[0], *shape[dim + 1 :])
    front = where(index < 0, index + shape[dim], index)
    return _along(front, len(shape), dim).expand(wide)


def _put(
    op: Operator,
    metas: Sequence[TensorMeta],
    attrs: Attrs,
    outs: object,
    axes: Sequence[Axis],
    shared: Sequence[Axis],
) -> Plan | None:
    """Slices at places that are the same for all examples."""
    x, index, source = metas
    if not is_shared(index, axes) or not x.ndim:
        return None
    dim = attrs[0]
    shape = (*x.shape[:dim], index.numel, *x.shape[dim + 1 :])
    if source.numel == 1 and tuple(source.shape) != shape:
        source = TensorMeta.of(shape, source.dtype, source.device, (0,) * len(shape))
    whole = in_front(x, axes), example_of(index), in_front(source, axes)
    dense, physical = laid(whole)
    return Plan(physical, (dim + len(axes), *attrs[1:]), behind(axes, shared), dense)


RULE.say(_put, gather.put_slices, gather.combine_slices)


@STEPS(gather.put_slices, gather.combine_slices)
def _put_apart(
    op: Operator, tensors: tuple[Tensor, ...], attrs: Attrs, scalars: tuple[object, ...]
) -> tuple[()] | None:
    """Slices at the indices of each example."""
    x, index, source = tensors
    dim, _, _, *more = attrs
    if (
        is_shared(index._meta, batched_axes([t._meta for t in tensors]))
        or not x.ndim
        or index.ndim != 1
    ):
        return None
    skip, mode = more or (NONE, 0)
    shape = (*x.shape[:dim], index.shape[0], *x.shape[dim + 1 :])
    source = source.expand(shape) if source.numel() == 1 else source.reshape(shape)
    if skip != NONE:
        if mode != ADD:
            return None
        source = source.masked_fill(_along(index, x.ndim, dim) == skip, 0)
    places = _repeated(index, x.shape, dim)
    if mode:
        gather.combine_elements(x, places, source, dim, mode)
    else:
        gather.scatter_elements(x, places, source, dim)
    return ()


@STEPS(search._search)
def _searched(op: Operator, tensors: tuple[Tensor, ...], attrs: Attrs, scalars: object) -> object:
    """Places of all elements in one row of boundaries: as one row as well."""
    boundaries, x = tensors
    if boundaries.ndim != 1 or x.ndim == 1:
        return None
    return op.call(boundaries, x.reshape(-1), *attrs).reshape(x.shape)
