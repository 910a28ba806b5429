"""Conversion of whole tensors to cut ones, and the first rank's values on all ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flowvm.distributed.groups import init_process_group, is_initialized
from flowvm.distributed.objects import broadcast_object_list
from flowvm.eager.tensor import Tensor
from flowvm.meta.dtype import dtype_named
from flowvm.meta.placements import broadcast as whole_on_each
from flowvm.ops.collectives.collectives import broadcast
from flowvm.ops.shapes.fill import zeros
from flowvm.ranks.world import rank


def held_as(value: object, like: Tensor) -> Any:
    """Return a whole local tensor, which all ranks have, with the layout of `like`; return anything
    else as it is.
    """
    if not isinstance(value, Tensor) or not like.is_global or value.is_global:
        return value
    if value.shape != like.shape:
        return value
    where, sbps = like.placement, like.sbp
    every = value.detach().to_global(where, [whole_on_each] * len(sbps), check_meta=False)
    return every.to_global(sbp=sbps)


def from_first(state: Mapping[str, object]) -> dict[str, Any]:
    """The first rank's nested dict on all ranks; tensors are sent as they are."""
    tensors: list[Tensor] = []

    def shown(value: Any) -> Any:
        if isinstance(value, Tensor):
            tensors.append(value.contiguous())
            return _Sent(tuple(value.shape), value.dtype.name)
        if isinstance(value, Mapping):
            return {k: shown(v) for k, v in value.items()}
        return [shown(v) for v in value] if isinstance(value, list) else value

    if not is_initialized():
        init_process_group()
    texts = [shown(state) if rank() == 0 else None]
    broadcast_object_list(texts, 0)
    waiting = iter(tensors)

    def rebuild(value: object) -> Any:
        if isinstance(value, _Sent):
            own = (
                next(waiting)
                if rank() == 0
                else zeros(*value.shape, dtype=dtype_named(value.dtype))
            )
            return broadcast(own, 0)
        if isinstance(value, Mapping):
            return {k: rebuild(v) for k, v in value.items()}
        return [rebuild(v) for v in value] if isinstance(value, list) else value

    result: dict[str, Any] = rebuild(texts[0])
    return result


@dataclass(frozen=True)
class _Sent:
    shape: tuple[int, ...]
    dtype: str
