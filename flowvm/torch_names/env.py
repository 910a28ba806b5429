"""`flow.env`: this process's place among the launched ones, under OneFlow's names.

A program that nobody launched is a world of one.  `flow.distributed` has PyTorch's names.
"""

from __future__ import annotations

from flowvm.loading.listing import listing, own_names
from flowvm.meta.placements import placement
from flowvm.ranks.world import rank, world, world_size

__dir__ = listing(globals())


def get_rank() -> int:
    """The number of this process among all, from 0.

    >>> flow.env.get_rank()
    0
    """
    return rank()


def get_local_rank() -> int:
    """Return the number of this process among the ranks of its host, from 0.

    >>> flow.env.get_local_rank()
    0
    """
    return world().local_rank


def get_world_size() -> int:
    """Return the number of processes launched together.

    >>> flow.env.get_world_size()
    1
    """
    return world_size()


def get_node_size() -> int:
    """Return the number of hosts on which the processes run.

    >>> flow.env.get_node_size()
    1
    """
    return world().hosts


def init() -> None:
    """Do nothing: processes find each other when they first exchange.

    >>> flow.env.init()
    """


def init_rdma() -> None:
    """Do nothing: MPI chooses the network, by its own settings.

    >>> flow.env.init_rdma()
    """


def all_device_placement(device_type: str) -> placement:
    """The placement of all ranks, each with its own device of the type: "cpu" or "cuda".

    >>> flow.env.all_device_placement("cpu")
    flow.placement(type="cpu", ranks=[0])
    """
    return placement.all(device_type)


__all__ = own_names(globals())
