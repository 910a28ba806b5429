"""All ranks, and groups of them: `rank()`, `world_size()`, `Group`, and the handles of a
collective.

    g = Group.of([0, 2])    the one group of these ranks
    g.joined()              its communicator and its rows of the board, made when first asked for
    lane(...)               a stream for what is exchanged, and the tensor that keeps it in order

One rank without MPI is a world, too.  MPI is initialized at the first question in a launched
process, or by `start`.
"""

from __future__ import annotations

import ctypes
import functools
import os
import threading
import time
import zlib
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from flowvm.config import config
from flowvm.errors import ArgumentError, ArgumentTypeError, CommunicationError
from flowvm.guards.forks import Rank, held_at_fork
from flowvm.meta.arrays import Array
from flowvm.meta.device import Device, cpu
from flowvm.profiler.front.ranks import gathering
from flowvm.ranks.clocks import gathered
from flowvm.ranks.launch_env import launched_ranks
from flowvm.ranks.library import handle, mpi
from flowvm.ranks.watcher import LEFT_AFTER, Part, Watcher
from flowvm.ranks.wires import wires
from flowvm.ranks.words import ALERT, BOARD_BYTES, HEADER, ROW
from flowvm.vm.callers.interrupt import protected, waiting
from flowvm.vm.engine.engine import engine

_making = held_at_fork(threading.RLock(), Rank.GRAPH)


class World:
    """The ranks that were launched together; made by `world`."""

    def __init__(self) -> None:
        self.rank, self.size, self.hosts = 0, 1, 1
        self.mpi: Any = None
        self.control: Any = None  # a communicator of all, which no collective uses
        self.fault = ""  # why nothing is exchanged any more
        self.boards: dict[int, int] = {}  # rank -> address, for ranks on this host
        self.handles: list[Any] = []
        self.rows = 0
        self.alert = np.zeros(ALERT.WORDS, np.int64)
        self.lock = _making
        self.joined: dict[int, Joined] = {}  # by the address of the row
        # messages without a group belong to this one, for which ranks need not meet
        self.everybody: Joined | None = None
        self.lanes: list[object] = []  # see `flowvm.ranks.lanes`
        self.parts: list[Part] = []
        self.watcher: Watcher | None = None
        if launched_ranks() == 1:
            return
        self.mpi = mpi()
        everybody = self.mpi.COMM_WORLD
        self.rank, self.size = everybody.Get_rank(), everybody.Get_size()
        if launched_ranks() > 1 and self.size != launched_ranks():
            raise CommunicationError(
                f"the launcher started {launched_ranks()} processes, and mpi4py's library sees "
                f"{self.size}: it is not the launcher's MPI; use the mpiexec that belongs to "
                f"{self.mpi.get_vendor()[0]}, or `flowvm launch`"
            )
        if self.size > 1:
            self.control = everybody.Dup()
            self._put_up_board()
            self.everybody = self.join(tuple(range(self.size)), self.control.Dup())
            self._compile()
            self.watcher = Watcher(self)
            gathering.append(functools.partial(gathered, self))

    def _put_up_board(self) -> None:
        node = self.control.Split_type(self.mpi.COMM_TYPE_SHARED)
        window = self.mpi.Win.Allocate_shared(BOARD_BYTES, 1, comm=node)
        self.handles += [node, window]
        ranks = node.allgather(self.rank)
        self.hosts = self.control.allreduce(int(min(ranks) == self.rank))
        for place, number in enumerate(ranks):
            self.boards[number] = window.Shared_query(place)[0].address
        _words(self.boards[self.rank], BOARD_BYTES // 8)[:] = 0
        self.header(self.rank)[HEADER.PID] = os.getpid()
        node.Barrier()

    def _compile(self) -> None:
        """Let one rank of each host compile the VM's threads, where the others find the code."""
        first = min(self.boards) == self.rank
        if first:
            engine.threads.compile_all()
        ready = self.handles[0].Ibarrier()
        while not ready.Test():
            time.sleep(0.002)  # and not in MPI, which would take the core
        if not first:
            engine.threads.compile_all()

    def header(self, number: int) -> Array:
        """The words of a rank's header, of one on this host."""
        return _words(self.boards[number], HEADER.WORDS)

    def row(self, address: int) -> Array:
        """The words of a row of the board."""
        return _words(address, ROW.WORDS)

    def next_row(self) -> int:
        """Return the number of a row of the board that this rank has not used yet."""
        if self.rows == ROW.ROWS:
            raise CommunicationError(f"a rank is in at most {ROW.ROWS} groups")
        self.rows += 1
        return self.rows - 1

    def join(self, ranks: tuple[int, ...], comm: Any) -> Joined:
        """Return the handles to take part in the group of `ranks`.  All of them call it."""
        mine = self.next_row()
        rows = comm.allgather(mine)
        row = self.row_of(self.rank, mine)
        rows_of_ranks = [self.row_of(r, at) for r, at in zip(ranks, rows, strict=True)]
        known = tuple(at for at in rows_of_ranks if at != row)
        others = tuple(number for number in ranks if number != self.rank)
        joined = self.joined[row] = Joined(comm, handle(comm), row, known, others)
        return joined

    def row_of(self, number: int, place: int) -> int:
        """The address of a row of a rank; 0 if that is on another host."""
        board = self.boards.get(number, 0)
        return board + 8 * (HEADER.WORDS + place * ROW.WORDS) if board else 0

    def has_left(self, number: int) -> bool:
        """Return True if a rank of this host has ended its program."""
        return number in self.boards and self.header(number)[HEADER.STATE] == HEADER.LEFT

    @property
    def local_rank(self) -> int:
        """The number of this process among the ranks of its host."""
        return sorted(self.boards or {0: 0}).index(self.rank)

    def raise_fault(self) -> None:
        """Raise CommunicationError if exchanges have ended because of an error."""
        if self.fault:
            raise CommunicationError(self.fault)


def _words(at: int, count: int) -> Array:
    return np.ctypeslib.as_array((ctypes.c_int64 * count).from_address(at))


@functools.cache
@waiting
def _world() -> World:
    return World()


@protected
def world() -> World:
    """Return the one world of this process.  In a launched one, the first call initializes MPI."""
    with _making:
        return _world()


def rank() -> int:
    """Return the number of this process among the launched ones; 0 if it is alone."""
    return world().rank


def world_size() -> int:
    """Return the number of processes launched together."""
    return world().size


# --- groups ---------------------------------------------------------------------------------------


class Joined(NamedTuple):
    """The handles with which a rank takes part in a group."""

    comm: object  # mpi4py's
    handle: int
    row: int  # the address of this rank's row
    rows: tuple[int, ...]  # of the others, 0 for one on another host
    others: tuple[int, ...]  # the owners of these rows, by numbers of the world
    wire: Any = None  # the exchanging object, if it is not MPI

    @property
    def others_rows(self) -> list[tuple[int, int]]:
        """(rank, row) of the others on this host."""
        return [(r, at) for r, at in zip(self.others, self.rows, strict=True) if at]


_groups: dict[tuple[int, ...], Group] = {}  # they stay: a communicator is for good


class Group:
    """Some of the ranks, in an order: rank i of the group is rank `ranks[i]` of the world.

    There is one Group of the same ranks: `Group.of`.
    """

    ranks: tuple[int, ...]

    def __init__(self, ranks: tuple[int, ...]) -> None:
        self.ranks = ranks
        own = world().rank
        self.size = len(ranks)
        self.rank = ranks.index(own) if own in ranks else -1  # of this process; -1: not in it
        self._joined: dict[Device, Joined] = {}

    @staticmethod
    def of(ranks: Group | Iterable[int] | None = None) -> Group:
        """Return the group of these ranks; None: of all ranks.  ArgumentError for a rank that does
        not exist.
        """
        if isinstance(ranks, Group):
            return ranks
        if ranks is None:
            return everybody()
        size = world().size
        key = _checked(ranks, size)
        group = _groups.get(key)
        if group is None:
            group = _groups.setdefault(key, Group(key))
        return group

    def rank_of(self, number: int, what: str) -> int:
        """The number in the group of rank `number` of the world; ArgumentError if it has none."""
        if number not in self.ranks:
            raise ArgumentError(f"{what}: rank {number} is not in the group {self.ranks}")
        return self.ranks.index(number)

    @protected
    def joined(self, what: str = "a collective", device: Device = cpu) -> Joined:
        """Return the group's communicator for tensors of a device.  It is made when all of its
        ranks have asked for it.

        ArgumentError on a rank that is not in it; CommunicationError if a rank does not come.
        """
        place = world()
        place.raise_fault()
        if self.rank < 0:
            raise ArgumentError(f"{what}: rank {place.rank} is not in the group {self.ranks}")
        with place.lock:
            if device not in self._joined:
                self._joined[device] = self._join(place, what, device)
            return self._joined[device]

    def _join(self, place: World, what: str, device: Device) -> Joined:
        everybody = self.ranks == tuple(range(place.size))
        if place.everybody is not None and everybody and device is cpu:
            return place.everybody
        # each rank has devices of its own, so only their number in this group counts
        nth = 0 if device is cpu else 1 + sum(used is not cpu for used in self._joined)
        tag = zlib.crc32(repr((self.ranks, nth)).encode()) % 32749
        others = tuple(number for number in self.ranks if number != place.rank)
        self._meet(place, others, tag, what)
        members = place.mpi.COMM_WORLD.Get_group().Incl(list(self.ranks))
        comm = place.control.Create_group(members, tag)
        joined = place.join(self.ranks, comm)
        if device is not cpu:
            wire = wires[device.type](place, device, self.size, self.rank, comm.bcast)
            joined = place.joined[joined.row] = joined._replace(wire=wire)
        return joined

    @waiting
    def _meet(self, place: World, others: tuple[int, ...], tag: int, what: str) -> None:
        """Wait for the other ranks, so that making a communicator, which nobody could end, is
        short.
        """
        empty = np.zeros(0, np.uint8)
        requests = {other: place.control.Irecv(empty, other, tag) for other in others}
        sent = [place.control.Isend(empty, other, tag) for other in others]
        begun, pause = time.monotonic(), 0.0
        while requests:
            requests = {other: request for other, request in requests.items() if not request.Test()}
            place.raise_fault()
            waited = time.monotonic() - begun
            why = f"rank {place.rank} waited {waited:.1f} s for it in the first {what} of {self!r}"
            for other in requests:
                if place.has_left(other) and waited > LEFT_AFTER:
                    raise CommunicationError(f"rank {other} has left the program: {why}")
                if waited > config.distributed_timeout:
                    raise CommunicationError(f"rank {other} does not come: {why}")
            time.sleep(pause)
            pause = min(0.005, pause + 0.0001)
        place.mpi.Request.Waitall(sent)

    def __repr__(self) -> str:
        return f"<Group of ranks {list(self.ranks)}>"

    def __reduce__(self) -> tuple[object, ...]:
        return Group.of, (self.ranks,)


@functools.cache
def everybody() -> Group:
    """Return the group of all ranks."""
    return Group.of(range(world().size))


def _checked(ranks: Iterable[int], size: int) -> tuple[int, ...]:
    if isinstance(ranks, (str, bytes)) or not isinstance(ranks, Iterable):
        raise ArgumentTypeError(f"a group is ranks, got {type(ranks).__name__}")
    key = tuple(ranks)
    if not all(isinstance(r, int) and 0 <= r < size for r in key) or len({*key}) != len(key):
        raise ArgumentError(f"a group is different ranks from 0 to {size - 1}, got {list(key)}")
    if not key:
        raise ArgumentError("a group has one rank at least")
    return key
