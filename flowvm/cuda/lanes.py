"""Exchanges between ranks on CUDA devices: lanes, which are streams of the device, and NCCL's
communicators.

A lane's order lies in page-locked memory that host and device reach (`TALLY`): the device counts
in it the exchanges that it has passed, and the watcher raises in it what ends those under way.

A communicator is made by a thread of its own, while Python goes on: its handle is 0 until all of
its ranks have come, and the lane's worker waits for it.  Messages have one for each pair of ranks
and direction, so that they wait for nobody else's.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from flowvm.cuda.driver import driver as drivers
from flowvm.cuda.driver.functions import ID_BYTES, UniqueId
from flowvm.cuda.driver.runtime import runtime
from flowvm.cuda.driver.streams import block_of, pinned
from flowvm.cuda.events import Stream, stream
from flowvm.eager.tensor import new_tensor
from flowvm.errors import CommunicationError, FlowError
from flowvm.meta.device import Device
from flowvm.meta.dtype import int64
from flowvm.meta.meta import TensorMeta
from flowvm.ranks.lanes import Lane
from flowvm.ranks.words import ROW, TALLY
from flowvm.ranks.world import Group, Joined, World, world
from flowvm.vm.engine.engine import engine
from flowvm.vm.machine.device_words import DEV
from flowvm.vm.machine.words import CTL

PAIR_TAG = 32760  # of the message with a pair's identifier; groups have tags below 32749
PAUSE = 0.001
IN_PROGRESS = 7  # ncclInProgress

# ncclDataType_t of reduced dtypes
NUMBERS = {
    "int8": 0, "uint8": 1, "int32": 2, "uint32": 3, "int64": 4, "uint64": 5, "float16": 6,
    "float32": 7, "float64": 8, "bfloat16": 9,
}  # fmt: skip


class CudaLane(Lane):
    """A lane of a CUDA device."""

    def __init__(self, name: str, messages: bool, device: Device) -> None:
        self.rows: set[int] = set()  # rows of the board that show its exchanges
        self.pairs: dict[int, Joined] = {}
        self.sends = name.startswith("send")
        super().__init__(name, messages, device)
        world().parts.append(self)

    def _take(self) -> None:
        index = self.device.index or 0
        self.stream = Stream(self.device, name=self.name)
        block_of(self.stream.number)[DEV.EACH] = 1
        engine.words[CTL.LANES] |= 1 << self.stream.number
        self.address = pinned(runtime(index), 8 * TALLY.WORDS)
        self.tally = np.ctypeslib.as_array(
            (ctypes.c_int64 * TALLY.WORDS).from_address(self.address)
        )
        storage = engine.storages.adopt(self.address, 8 * TALLY.WORDS, self.tally)
        engine.restorer.leave_alone(storage)
        self.order = new_tensor(storage, TensorMeta.of((TALLY.WORDS,), int64, self.device))

    def within(self) -> AbstractContextManager[None]:
        """Issue the instructions inside the with statement to the lane."""
        return stream(self.stream)

    def joined(self, group: Group, what: str, peer: int | None = None) -> Joined:
        """Return the handles to take part in a collective of `group`, or in a message to or from
        rank `peer`.
        """
        place = world()
        place.raise_fault()
        if peer is None:
            return group.joined(what, self.device)
        if peer not in self.pairs:
            brings = _sent_to(place, peer) if self.sends else _come_from(place, peer)
            pair = Communicator(place, self.device, 2, 0 if self.sends else 1, brings)
            self.pairs[peer] = Joined(None, 0, self.row, (), (), pair)
        return self.pairs[peer]

    # --- what the watcher asks ------------------------------------------------------------------

    def settle(self) -> None:
        """Show the device's progress on the board."""
        for at in [*self.rows]:
            row = world().row(at)
            begun = int(row[ROW.SEQ])  # first: the mark is set before it
            if self.tally[TALLY.PASSED] >= row[ROW.MARK]:
                row[ROW.DONE] = begun

    def trouble(self) -> str:
        """Return "": the communicators report what is wrong with a lane."""
        return ""

    def stop(self) -> None:
        """Let exchanges that the device reaches from now on fail."""
        self.tally[TALLY.RAISED] = 1

    def close(self) -> None:
        """Do nothing: the communicators free their resources."""


class Communicator:
    """NCCL's communicator of some ranks on a device; this rank is number `rank` of them.

    `brings` sends the first rank's bytes to all ranks: the identifier by which they find each
    other.
    """

    def __init__(
        self, place: World, device: Device, size: int, rank: int,
        brings: Callable[[bytes | None], bytes],
    ) -> None:  # fmt: skip
        drivers.require("nccl")
        self.place, self.size, self.rank, self.brings = place, size, rank, brings
        self.runtime = runtime(device.index or 0)
        self.functions = self.runtime.driver.functions
        self.words = np.zeros(1, np.int64)  # the handle; kept for ever, with this object
        self.address = int(self.words.ctypes.data)
        place.parts.append(self)
        threading.Thread(target=self._connect, name="flowvm-nccl", daemon=True).start()

    def _connect(self) -> None:
        try:
            self.runtime.enter()
            unique = UniqueId()
            if self.rank == 0:
                self._called("ncclGetUniqueId", ctypes.byref(unique))
            shared_id = self.brings(bytes(unique) if self.rank == 0 else None)
            unique = UniqueId.from_buffer_copy(shared_id)
            communicator = ctypes.c_void_p()
            arguments = ctypes.byref(communicator), self.size, unique, self.rank
            self._called("ncclCommInitRank", *arguments)
            self.words[0] = communicator.value or 0
        except FlowError as error:
            if not self.place.fault and self.place.watcher is not None:
                self.place.watcher.fail(CommunicationError(str(error)))

    def _called(self, name: str, *args: object) -> None:
        if result := self.functions[name](*args):
            raise drivers.nccl_error(result, name)

    # --- what the watcher asks ------------------------------------------------------------------

    def settle(self) -> None:
        """Do nothing: the lanes show the progress on the board."""

    def trouble(self) -> str:
        """Return the text of an error of the network or of another rank, "" if there is none."""
        result = ctypes.c_int()
        if not self.words[0]:
            return ""
        code = self.functions["ncclCommGetAsyncError"](int(self.words[0]), ctypes.byref(result))
        if code or result.value in (0, IN_PROGRESS):
            return ""
        return str(drivers.nccl_error(result.value, "an exchange"))

    def stop(self) -> None:
        """End what the device waits for."""
        self._end("ncclCommAbort")

    def close(self) -> None:
        """Free the resources: all ranks are done."""
        self._end("ncclCommDestroy")

    def _end(self, how: str) -> None:
        handle, self.words[0] = int(self.words[0]), 0
        if handle:
            self.runtime.enter()
            self.functions[how](handle)


def _sent_to(place: World, peer: int) -> Callable[[bytes | None], bytes]:
    def brings(own: bytes | None) -> bytes:
        message = own or b""
        _await(place, place.control.Isend(bytearray(message), peer, PAIR_TAG))
        return message

    return brings


def _come_from(place: World, peer: int) -> Callable[[bytes | None], bytes]:
    def brings(own: bytes | None) -> bytes:
        message = bytearray(ID_BYTES)
        _await(place, place.control.Irecv(message, peer, PAIR_TAG))
        return bytes(message)

    return brings


def _await(place: World, request: Any) -> None:
    while not request.Test():
        place.raise_fault()
        time.sleep(PAUSE)  # and not in MPI, which would take the core
