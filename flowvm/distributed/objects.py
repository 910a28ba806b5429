"""Python objects exchanged, as pickles.  These wait: an object is there when the call returns.

Objects of other ranks are unpickled, which runs their code: it is code of the same program.
"""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import numpy as np

from flowvm.distributed.groups import members, peer
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError
from flowvm.meta.arrays import Array
from flowvm.ops.collectives import collectives
from flowvm.ops.shapes.create import tensor as new_tensor
from flowvm.ranks.world import Group

if TYPE_CHECKING:
    from flowvm.meta.device import DeviceLike


# public: distributed


def _pickled(value: object) -> Tensor:
    return new_tensor(np.frombuffer(pickle.dumps(value), np.uint8).copy())


def _unpickled(data: Array) -> Any:
    return pickle.loads(data.tobytes())


def _gathered(value: object, among: Group) -> list[object]:
    data = _pickled(value)
    sizes = collectives.all_gather(new_tensor([data.numel()]), among).tolist()
    flat = collectives.all_gather(data, among, sizes).numpy()
    ends = np.cumsum(sizes)
    return [_unpickled(flat[end - size : end]) for size, end in zip(sizes, ends, strict=True)]


def all_gather_object(object_list: list[Any], obj: object, group: object = None) -> None:
    """The ranks' objects in `object_list`, in the order of ranks."""
    among = members("all_gather_object", group)
    if len(object_list) != among.size:
        raise ArgumentError(f"all_gather_object: object_list has {among.size} places for objects")
    object_list[:] = _gathered(obj, among)


def gather_object(
    obj: object,
    object_gather_list: list[Any] | None = None,
    dst: int | None = None,
    group: object = None,
    group_dst: int | None = None,
) -> None:
    """The ranks' objects in `object_gather_list` of rank `dst`."""
    among = members("gather_object", group)
    none = dst is None and group_dst is None
    root = peer("gather_object", "dst", among, 0 if none else dst, group_dst)
    mine = among.ranks[among.rank] == root
    if mine and (object_gather_list is None or len(object_gather_list) != among.size):
        raise ArgumentError(f"gather_object: rank {root} has a list with {among.size} places")
    objects = _gathered(obj, among)
    if mine and object_gather_list is not None:
        object_gather_list[:] = objects


def broadcast_object_list(
    object_list: list[Any],
    src: int | None = None,
    group: object = None,
    device: DeviceLike | None = None,
    group_src: int | None = None,
) -> None:
    """The objects of rank `src`, in every rank's list, which is as long."""
    among = members("broadcast_object_list", group)
    none = src is None and group_src is None
    root = peer("broadcast_object_list", "src", among, 0 if none else src, group_src)
    mine = among.ranks[among.rank] == root
    data = _pickled(list(object_list)) if mine else None
    count = new_tensor([0 if data is None else data.numel()])
    size = int(collectives.broadcast(count, root, among).item())
    meta = count._meta.with_shape((size,), _pickled(None).dtype)
    objects = _unpickled(collectives.broadcast(data, root, among, meta).numpy())
    if len(objects) != len(object_list):
        raise ArgumentError(
            f"broadcast_object_list: rank {root} sends {len(objects)} objects, and the list here "
            f"has {len(object_list)}"
        )
    object_list[:] = objects


def scatter_object_list(
    scatter_object_output_list: list[Any],
    scatter_object_input_list: list[Any] | None = None,
    src: int | None = None,
    group: object = None,
    group_src: int | None = None,
) -> None:
    """Object i of rank `src`'s list, at the first place of the output list of rank i."""
    among = members("scatter_object_list", group)
    none = src is None and group_src is None
    root = peer("scatter_object_list", "src", among, 0 if none else src, group_src)
    mine = among.ranks[among.rank] == root
    objects = scatter_object_input_list or []
    if mine and len(objects) != among.size:
        raise ArgumentError(f"scatter_object_list: rank {root} has a list of {among.size} objects")
    if not scatter_object_output_list:
        raise ArgumentError("scatter_object_list: the output list has a place")
    held = list(objects) if mine else [None] * among.size
    broadcast_object_list(held, root, among)
    scatter_object_output_list[0] = held[among.rank]
