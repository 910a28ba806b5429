"""Changes in place and views: after one, every tensor on the memory leads to it in the graph.

A view and its base are one memory and two places in the graph. A change through a view becomes a
change of the base, `copy_slices`, of which the view is then a view again; and after any change, the
other views that are still alive are made views of the base as it is now. Each is described by what
it shows of the base's memory, `as_strided`, however it came about.

A base knows its views by weak references, in its `_kin`. Views of a leaf that requires
grad are left out: it cannot be changed in place while gradients are recorded.

Gradients here are written with ops that are declared later, which tensors know by name: methods.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from flowvm.eager.nodes import Node
from flowvm.eager.tensor import Fields, Tensor, base_of, forget_gone
from flowvm.eager.values import adopt_array
from flowvm.errors import AutogradError
from flowvm.guards.exchange import first_of
from flowvm.meta.batched_meta import made_for
from flowvm.meta.meta import Attrs, TensorMeta
from flowvm.ops.declare.composite import filled_of
from flowvm.vm.machine.words import OPERAND

if TYPE_CHECKING:
    from flowvm.eager.nodes import Node
    from flowvm.meta.arrays import Array


def remember_view(base: Tensor, view: Tensor) -> None:
    """Let `base` know of a view of it."""
    try:
        views = base._kin
    except AttributeError:
        views = first_of(base, Fields, "_kin", [])
    count = len(views)
    if count >= 16 and not count & (count - 1):  # at 16, 32, 64, ... those that are gone go
        forget_gone(views)
    views.append(weakref.ref(view))


def check_base(name: str, out: Tensor, recorded: bool) -> None:
    """AutogradError unless a change of `out` in place can be recorded for all on its memory.

    `recorded`: it will be; else it is of numbers alone, and must not need to.
    """
    base = base_of(out)
    if base._node is not None and any(
        v._meta.dtype is not base._meta.dtype for v in (out, *_living(base, out))
    ):
        raise AutogradError(
            f"{name}: a change in place of a complex tensor whose parts are views is not recorded; "
            f"work on .real and .imag apart, and put them together with complex()"
        )
    if base is not out:
        if base._node is not None and base._node.is_leaf:
            raise AutogradError(
                f"{name}: a view of a leaf tensor that requires grad cannot be changed in place; "
                f"do "
                f"it under flow.no_grad(), or on a clone()"
            )
        if out._node is None and base._node is not None:
            raise AutogradError(
                f"{name}: this view was made under no_grad, its base requires grad, and it is to "
                f"be "
                f"changed in place outside; make the view where gradients are recorded, or detach()"
            )
    if recorded and _overlaps(base._meta) and (base is not out or _living(base, out)):
        raise AutogradError(
            f"{name}: a change in place of memory that views share is not recorded where elements "
            f"lie on each other, and the base has shape {tuple(base._meta.shape)} and strides "
            f"{base._meta.stride}; work on a clone()"
        )
    if base is not out and out._node is not None and out._node.name() == "AsStridedBackward":
        _show(out, base)  # it may show memory that is the base's, and not what it was made of


def rebase(out: Tensor, node: object) -> None:
    """Give `out`, which was changed in place, its new node, and all on its memory theirs."""
    base = base_of(out)
    if base is out:
        out._node = node
    else:
        attrs = _shown(out, base)
        base._node = Node(
            _copy_slices, (base._node, node), (), (), (base._meta, out._meta), attrs, (base._meta,)
        )
        _show(out, base)
    for view in _living(base, out):
        _show(view, base)


def _living(base: Tensor, out: Tensor) -> list[Tensor]:
    views = [r() for r in tuple(getattr(base, "_kin", ()))]
    return [v for v in views if v is not None and v is not out]


def _shown(view: Tensor, base: Tensor) -> tuple[object, ...]:
    """Return the geometry of a view on its base: sizes, strides, and the offset in elements.

    For a global tensor, return the geometry of each view between the base and this one.
    """
    if base._meta.parted:  # a global tensor's: of its parts refs say nothing
        return (view.extra()["links"],)
    offset = ((view._ref - base._ref) >> OPERAND.STORAGE_BITS) // base._meta.dtype.itemsize
    return tuple(view._meta.shape), view._meta.stride, offset


def _show(view: Tensor, base: Tensor) -> None:
    attrs = _shown(view, base)
    view._node = Node(_as_strided, (base._node,), (), (), (base._meta,), attrs, (view._meta,))


def _memory(size: Sequence[int], stride: Sequence[int], offset: int) -> Any:
    """Return the position of each element of a geometry, in elements: int64, flat, in C order."""
    places = np.full(tuple(size), offset, np.int64)
    for d, (length, step) in enumerate(zip(size, stride, strict=True)):
        places += (np.arange(length) * step).reshape(-1, *(1 for _ in size[d + 1 :]))
    return places.reshape(-1)


def _overlaps(meta: TensorMeta) -> bool:
    """Return True if some elements share memory."""
    if meta.contiguous:
        return False
    at = _memory(meta.shape, meta.stride, 0)
    return len(np.unique(at)) < len(at)


def _elements(meta: TensorMeta, attrs: Attrs) -> Any:
    """Return, for each element of the view, its index in the base, or -1 if it lies outside."""
    if len(attrs) == 1:  # a global tensor's: one view behind the other, each of a tensor in C order
        elements = np.arange(meta.numel)
        for link in attrs[0]:
            elements = elements[_memory(*link)]
        return elements
    at = _memory(*attrs)
    if meta.contiguous:
        return np.where((at >= 0) & (at < meta.numel), at, -1)
    own = _memory(meta.shape, meta.stride, 0)
    order = np.argsort(own, kind="stable")
    elements = order[np.minimum(np.searchsorted(own, at, sorter=order), len(own) - 1)]
    return np.where(own[elements] == at, elements, -1) if len(own) else np.full_like(at, -1)


def strided_grad(c: Node, g: Tensor) -> tuple[Tensor]:
    """Return the gradient of the base of an `as_strided` view: the view's, at its elements.

    `c.attrs` are the view's sizes, strides, and the elements before its first, counted from the
    first of the base.  What the view shows of memory beside the base's elements has no gradient;
    where several of the base's lie on one place, each has its share (as PyTorch has it:
    `as_strided_backward`).
    """
    (meta,) = c.metas
    at = _elements(meta, c.attrs)
    g = g.reshape(-1)
    if (at < 0).any():
        g = g.index_select(0, _indices(np.flatnonzero(at >= 0), meta))
        at = at[at >= 0]
    flat = made_for(meta.with_shape((meta.numel,)), g._meta)
    zeros = filled_of(flat, 0, g._meta.dtype)
    whole: Tensor = zeros.index_add(0, _indices(at, meta), g)
    if _overlaps(meta):
        own = _memory(meta.shape, meta.stride, 0)
        _, first, back, counts = np.unique(
            own, return_index=True, return_inverse=True, return_counts=True
        )
        shares = whole.index_select(0, _indices(first[back], meta))
        whole = shares / adopt_array(counts[back]).to(device=meta.device, dtype=g._meta.dtype)
    grad: Tensor = whole.reshape(meta.shape)
    return (grad,)


def replaced_grad(meta: TensorMeta, g: Tensor) -> Tensor:
    """Return the gradient of what a write in place has replaced: zeros, and not None, as
    PyTorch's.  An optimizer steps on a parameter with the one, and passes by the other.
    """
    zeros: Tensor = filled_of(made_for(meta, g._meta), 0, g._meta.dtype)
    return zeros


def _indices(places: Array, meta: TensorMeta) -> Tensor:
    at: Tensor = adopt_array(np.array(places)).to(device=meta.device)
    return at


def _copy_slices_grad(c: Node, g: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """The base keeps its gradient outside the view, and the view gets its part."""
    meta, part = c.metas
    at = _elements(meta, c.attrs)
    outside_grad = inside_grad = None
    if c.needs[0]:
        mask = np.zeros(meta.numel, np.bool_)
        mask[at[at >= 0]] = True
        outside = adopt_array(mask.reshape(meta.shape)).to(device=meta.device)
        outside_grad = g.masked_fill(outside, 0)
    if c.needs[1]:
        inside_grad = g.reshape(-1).index_select(0, _indices(np.maximum(at, 0), meta))
        if (at < 0).any():
            inside_grad = inside_grad.masked_fill(adopt_array(at < 0).to(device=meta.device), 0)
        inside_grad = inside_grad.reshape(part.shape)
    return outside_grad, inside_grad


class _Slices:
    """Stands for an operator in nodes; no instruction belongs to it."""

    outputs = saves = ()

    def __init__(self, name: str, grad: object) -> None:
        self.name, self.grad = name, grad


_as_strided = _Slices("as_strided", strided_grad)
_copy_slices = _Slices("copy_slices", _copy_slices_grad)
