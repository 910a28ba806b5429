"""Lanes: a stream for exchanges, and the tensor that keeps them in order.

There is one lane for collectives of a device, and one for messages to and from each other rank.
The entries of `makers` make the lanes of devices other than the CPU.
"""

from __future__ import annotations

import functools
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from flowvm.eager.modes import use_stream
from flowvm.eager.tensor import Tensor, new_tensor
from flowvm.meta.device import Device, cpu
from flowvm.meta.dtype import int64
from flowvm.meta.meta import TensorMeta
from flowvm.ranks.wires import makers
from flowvm.ranks.world import Group, Joined, world
from flowvm.streams import Stream
from flowvm.vm.callers.interrupt import protected
from flowvm.vm.engine.engine import engine
from flowvm.vm.machine.words import CTL

PEERS = 12  # ranks to which, and from which, messages have a stream of their own


class Lane:
    """A stream for exchanges between ranks, which run in the order issued.

    `order` is a tensor that every exchange changes, so that graphs neither drop, merge nor reorder
    them, and a failed or dropped one poisons all that would follow, for good: an exchange that this
    rank took no part in is not made up for.
    """

    order: Tensor
    stream: Any  # the device's class: flow.Stream or flow.cuda.Stream

    def __init__(self, name: str, messages: bool, device: Device) -> None:
        self.name, self.device = name, device
        self._take()
        place = world()
        self.alert = int(place.alert.ctypes.data)
        self.row = place.row_of(place.rank, place.next_row()) if messages else 0
        self.peers: set[int] = set()  # of messages
        place.lanes.append(self)

    def _take(self) -> None:
        """Make the lane's stream and its order tensor."""
        self.stream = Stream(self.name)
        engine.words[CTL.LANES] |= 1 << self.stream.number
        self.memory = np.zeros(1, np.int64)
        storage = engine.storages.adopt(self.memory.ctypes.data, 8, self.memory)
        engine.restorer.leave_alone(storage)
        self.order = new_tensor(storage, TensorMeta.of((1,), int64))

    def within(self) -> AbstractContextManager[None]:
        """Issue the instructions inside the with statement to the lane."""
        return use_stream(self.stream.number, self.stream)

    def joined(self, group: Group, what: str, peer: int | None = None) -> Joined:
        """Return the handles to take part in a collective of `group`, or in a message to or from
        rank `peer`.
        """
        return group.joined(what, self.device)


# makers of lanes by device type, with arguments: name, True for messages, device
makers["cpu"] = Lane


def lane(way: str = "", peer: int = 0, device: Device = cpu) -> Lane:
    """Return the lane of a device's collectives, or of messages to ("send") or from ("recv") a
    rank.

    Messages have their own, so that they wait neither for collectives nor for each other; ranks
    further than PEERS apart share one.
    """
    if not way:
        known = collective.get(device)
        if known is not None:
            return known
    return _lane(way, peer % PEERS, device)


collective: dict[Device, Lane] = {}  # the lanes of collectives, which each call asks for


@functools.cache  # which tells calls apart by how their arguments are written
@protected
def _lane(way: str, peer: int, device: Device) -> Lane:
    with world().lock:
        transport: Lane = makers[device.type](f"{way}{peer}" if way else "comm", bool(way), device)
        if not way:
            collective[device] = transport
        return transport


def lane_for(way: str, peer: int, device: Device = cpu) -> Lane:
    """The lane of messages to or from a rank."""
    own_lane = lane(way, peer, device)
    own_lane.peers.add(peer)
    return own_lane
