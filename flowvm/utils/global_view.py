"""`flow.utils.global_view`: all tensors of a structure made global or local, under OneFlow's names.

A structure is what `flow.utils._pytree` knows: tuples, lists, dicts and so on, with other values
left as they are.  Inside `global_mode` functions that make tensors make global ones.
"""

from __future__ import annotations

import inspect
import pickle
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from flowvm.eager.global_calls import made_globally
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError
from flowvm.loading.listing import listing, own_names
from flowvm.loading.missing_names import other_names
from flowvm.meta.placements import rank_and_size
from flowvm.ops.collectives.texts import broadcast_bytes
from flowvm.ops.shapes.fill import empty
from flowvm.utils._pytree import tree_leaves, tree_map

if TYPE_CHECKING:
    from flowvm.meta.dtype import DTypeLike


__dir__ = listing(globals())
__getattr__ = other_names("utils.global_view", lambda: own_names(globals()))


def to_global(
    input: Any, placement: Any = None, sbp: Any = None, *, warn_on_non_tensor_leaf: bool = True
) -> Any:
    """Return the structure with each tensor `t` replaced by `t.to_global(placement, sbp)`, with its
    errors.

    sbp                       one for all tensors, or a function that says it of each: called with
                              the tensor, or if it takes two arguments with `input` and the tensor
    warn_on_non_tensor_leaf   is taken and means nothing: other values are left as they are

    >>> here = flow.placement("cpu", [0])
    >>> batch = {"x": flow.ones(2), "name": "first"}
    >>> batch = flow.utils.global_view.to_global(batch, here, flow.sbp.broadcast)
    >>> batch["x"].is_global, batch["name"]
    (True, 'first')
    """

    if placement is not None and placement.size < rank_and_size()[1]:
        input = _structure_of_first(input, placement)
    is_function = callable(sbp) and not hasattr(sbp, "is_split")
    both = is_function and len(inspect.signature(sbp).parameters) > 1

    def to_placement(leaf: object) -> object:
        if not isinstance(leaf, Tensor):
            return leaf
        held = (sbp(input, leaf) if both else sbp(leaf)) if is_function else sbp
        return leaf.to_global(placement, held)

    return tree_map(to_placement, input)


def _structure_of_first(input: object, placement: Any) -> Any:
    """The structure that the first rank of the placement has, on ranks outside of it: with empty
    tensors in the places of its local ones, which are told what they are when they become global.
    """
    first = placement.flat[0]
    leaves = tree_leaves(input)
    if any(isinstance(t, Tensor) and t.is_global for t in leaves):
        return input
    hollow = tree_map(lambda t: _Hollow(t.dtype) if isinstance(t, Tensor) else t, input)
    message = broadcast_bytes(pickle.dumps(hollow) if rank_and_size()[0] == first else b"", first)
    if rank_and_size()[0] in placement.flat:
        return input
    return tree_map(
        lambda t: empty(0, dtype=t.dtype) if isinstance(t, _Hollow) else t, pickle.loads(message)
    )


class _Hollow:
    """A tensor that another rank has."""

    def __init__(self, dtype: DTypeLike) -> None:
        self.dtype = dtype


def global_mode(
    enabled: bool, placement: object = None, sbp: object = None
) -> AbstractContextManager[None]:
    """A with statement in which functions that make tensors make global ones, of this placement and
    SBP, unless they are given their own; `global_mode(False)`: local ones again.

    ArgumentError for True without both.

    >>> here = flow.placement("cpu", [0])
    >>> with flow.utils.global_view.global_mode(True, placement=here, sbp=flow.sbp.broadcast):
    ...     x = flow.ones(2)
    >>> x.is_global, flow.ones(2).is_global
    (True, False)
    """
    if enabled and (placement is None or sbp is None):
        raise ArgumentError("global_mode: True needs placement and sbp")
    return made_globally.within((placement, sbp) if enabled else None)


class current_global_mode:  # noqa: N801 - OneFlow's name
    """The global_mode that this thread is in: `is_enabled`, `placement` and `sbp`.

    >>> flow.utils.global_view.current_global_mode().is_enabled
    False
    """

    def __init__(self) -> None:
        mode = made_globally.now()
        self.is_enabled = mode is not None
        held: Any
        self.placement: Any
        self.placement, held = (None, None) if mode is None else mode
        self.sbp = held if held is None or isinstance(held, (list, tuple)) else (held,)


def to_local(input: object, *, copy: bool = False) -> Any:
    """The structure with each global tensor as its `to_local()`; others stay, `copy` copies them.

    >>> here = flow.placement("cpu", [0])
    >>> x = flow.ones(2, placement=here, sbp=flow.sbp.broadcast)
    >>> flow.utils.global_view.to_local((x, 3))
    (tensor([1., 1.]), 3)
    """

    def to_placement(leaf: object) -> object:
        if not isinstance(leaf, Tensor):
            return leaf
        own = leaf.to_local() if leaf.is_global else leaf
        return own.clone() if copy else own

    return tree_map(to_placement, input)


__all__ = own_names(globals())
