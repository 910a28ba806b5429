"""The collectives that global tensors use, and which of them are used now."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from flowvm.eager.tensor import Tensor
from flowvm.ops.collectives import collectives
from flowvm.ranks.world import Group


@dataclass
class Transport:
    """The functional collectives that boxing calls, of `flowvm.ops.collectives`."""

    all_reduce: Callable[..., Tensor]
    all_gather: Callable[..., Tensor]
    reduce_scatter: Callable[..., Tensor]
    all_to_all: Callable[..., Tensor]
    broadcast: Callable[..., Tensor]
    send: Callable[..., object]
    recv: Callable[..., Tensor]
    barrier: Callable[..., None]
    group: Callable[[tuple[int, ...]], Any]


def _by_ranks() -> Transport:
    return Transport(
        collectives.all_reduce, collectives.all_gather, collectives.reduce_scatter,
        collectives.all_to_all, collectives.broadcast, collectives.send, collectives.recv,
        collectives.barrier, Group.of,
    )  # fmt: skip


transport: list[Callable[[], Transport]] = [_by_ranks]  # the last one is used
