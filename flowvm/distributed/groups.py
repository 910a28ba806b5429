"""Process groups: `init_process_group`, `new_group`, `get_rank`, `ReduceOp`."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from flowvm.config import config
from flowvm.errors import ArgumentError, ArgumentTypeError, FlowError
from flowvm.loading.lazy import lazy
from flowvm.meta.device import as_device
from flowvm.ranks.launch_env import is_launched
from flowvm.ranks.library import is_installed
from flowvm.ranks.world import Group, everybody, rank, world, world_size

# public: distributed

if TYPE_CHECKING:
    from flowvm.cuda.driver import driver as drivers
    from flowvm.meta.device import DeviceLike
else:
    drivers = lazy("flowvm.cuda.driver.driver")

MPI, NCCL = "mpi", "nccl"
# the names for users: MPI exchanges tensors of the CPU and NCCL tensors of CUDA devices, whichever
# is named
BACKENDS = (MPI, NCCL, "cpu:mpi", "cuda:nccl", "cpu:mpi,cuda:nccl")
# not public
default_pg_timeout = timedelta(minutes=30)  # PyTorch's name of the longest wait
ProcessGroup = Group  # public: distributed


class Backend:
    """Names of the exchanging libraries: MPI for tensors of the CPU, NCCL for tensors of CUDA
    devices.
    """

    MPI = MPI
    NCCL = NCCL
    UNDEFINED = "undefined"


class ReduceOp(enum.Enum):
    """The operation of a reduction over ranks.  The values are the names that
    `flowvm.ops.collectives` uses.
    """

    SUM = "sum"
    PRODUCT = "prod"
    MIN = "min"
    MAX = "max"
    AVG = "mean"

    def __init__(self, word: str) -> None:
        self.word = word  # as `value`, whose look-up costs more than the rest of a call


ReduceOp.RedOpType = ReduceOp  # type: ignore[attr-defined]  # PyTorch's name of the type


# not public
def op_of(name: str, op: object) -> str:
    """Return the name of a ReduceOp in `flowvm.ops.collectives`; ArgumentTypeError for other
    objects.
    """
    if not isinstance(op, ReduceOp):
        known = ", ".join(f"ReduceOp.{o.name}" for o in ReduceOp)
        raise ArgumentTypeError(f"{name}: op is one of {known}, got {op!r}")
    return op.word


class _State:
    """The state of the process group."""

    initialized = False
    backend = MPI


def is_available() -> bool:
    """Return True if several processes can compute together: mpi4py and an MPI library are
    installed.

    A group of one process works without.
    """
    return is_installed()


def is_mpi_available() -> bool:
    """Return True if MPI is installed: ranks meet by MPI, whichever library exchanges their
    tensors.
    """
    return is_installed()


def is_initialized() -> bool:
    """Return True if there is a process group."""
    return _State.initialized


def is_nccl_available() -> bool:
    """Return True if NCCL can be used: a CUDA device and NCCL's library exist."""
    try:
        drivers.require("nccl")
    except FlowError:
        return False
    return True


def is_gloo_available() -> bool:
    """Return False: Gloo is not used."""
    return False


def is_ucc_available() -> bool:
    """Return False: UCC is not used."""
    return False


def is_xccl_available() -> bool:
    """Return False: XCCL is not used."""
    return False


def is_backend_available(backend: str) -> bool:
    """Return True if the backend is MPI or NCCL, and can be used."""
    name = str(backend).lower()
    return is_installed() if name == MPI else name == NCCL and is_nccl_available()


def is_torchelastic_launched() -> bool:
    """Return False: torchrun starts no process of flowvm, since its ranks are MPI's."""
    return False


def init_process_group(
    backend: str | None = None,
    init_method: str | None = None,
    timeout: timedelta | float | None = None,
    world_size: int = -1,
    rank: int = -1,
    store: object = None,
    group_name: str = "",
    pg_options: object = None,
    device_id: object = None,
) -> None:
    """Take part in the world of all processes that were launched together; MPI is initialized.

    backend     "mpi", "nccl", "cpu:mpi,cuda:nccl", or None.  Tensors of the CPU are exchanged by
                MPI and those of CUDA devices by NCCL, whichever is named; with "nccl" it is an
                error at once where NCCL cannot be used
    timeout     seconds, or a timedelta, that a rank waits for others before it is an error;
                `flow.config.distributed_timeout`, 30 minutes, where it is not given
    world_size, rank   must be what the launcher says, where they are given

    Where nothing was launched it is a world of one.  `init_method`, `store` and the rest are taken:
    ranks find each other by MPI.  ArgumentError for another backend, and if there is a group;
    DeviceError for "nccl" where it or CUDA is missing.
    """
    exchanges_by = _checked_backend("init_process_group", backend)
    if _State.initialized:
        raise ArgumentError("init_process_group: there is a process group already")
    if timeout is not None:
        config.distributed_timeout = _seconds(timeout)
    place = world()
    for name, value, actual in (("world_size", world_size, place.size), ("rank", rank, place.rank)):
        if value not in (-1, actual):
            hint = "" if is_launched() else "; start ranks with `flowvm launch -n N` or mpiexec"
            raise ArgumentError(f"init_process_group: {name} is {actual}, got {value}{hint}")
    _State.initialized, _State.backend = True, exchanges_by


def get_default_backend_for_device(device: DeviceLike) -> str:
    """The backend by which tensors of a device are exchanged: "nccl" for CUDA's, else "mpi"."""
    return NCCL if as_device(device).type == "cuda" else MPI


def _checked_backend(caller: str, backend: str | None) -> str:
    """The backend's name in lower case; an error where it cannot be used."""
    name = MPI if backend is None else str(backend).lower()
    if name not in BACKENDS:
        raise ArgumentError(
            f"{caller}: flowvm exchanges by MPI and NCCL, so backend is one of "
            f"{', '.join(map(repr, BACKENDS))}, got {backend!r}"
        )
    if NCCL in name:
        drivers.require("nccl")
    return name


def _seconds(timeout: timedelta | float) -> float:
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or seconds <= 0:
        raise ArgumentError(f"timeout is a timedelta or seconds above 0, got {timeout!r}")
    return float(seconds)


def destroy_process_group(group: Group | None = None) -> None:
    """Forget the process group.  MPI ends with the process, and groups keep their communicators,
    so one may be initialized again.
    """
    if group is None:
        needed("destroy_process_group")
        _State.initialized = False


# not public
def needed(name: str) -> None:
    """ArgumentError if there is no process group."""
    if not _State.initialized:
        raise ArgumentError(
            f"{name}: there is no process group; call flow.distributed.init_process_group() first"
        )


# not public
def members(name: str, group: object) -> Group:
    """Return the Group for a collective of this name."""
    if not _State.initialized:
        needed(name)
    if group is not None and not isinstance(group, Group):
        raise ArgumentTypeError(
            f"{name}: group is what new_group gives, or None, got {type(group).__name__}"
        )
    ranks: Group = everybody() if group is None else group
    if ranks.rank < 0:
        raise ArgumentError(f"{name}: rank {rank()} is not in the group {ranks.ranks}")
    return ranks


def new_group(
    ranks: Sequence[int] | None = None,
    timeout: timedelta | float | None = None,
    backend: str | None = None,
    pg_options: object = None,
    use_local_synchronization: bool = False,
    group_desc: str | None = None,
    device_id: object = None,
    sort_ranks: bool = True,
) -> Group:
    """Return the group of these ranks, in rising order; None: of all ranks.  ArgumentError where
    `sort_ranks` is False and they are in another order.

    Its communicator is made when its ranks first exchange, so ranks outside of it need not call
    this.  `timeout` is the process's, see `init_process_group`.
    """
    needed("new_group")
    _checked_backend("new_group", backend)
    if not sort_ranks and list(ranks or ()) != sorted(ranks or ()):
        raise ArgumentError(f"new_group: ranks of a group are in rising order, got {ranks}")
    return Group.of(None if ranks is None else sorted(ranks))


def get_rank(group: Group | None = None) -> int:
    """The number of this process in the group, -1 if it is not in it."""
    needed("get_rank")
    return rank() if group is None else Group.of(group).rank


def get_world_size(group: Group | None = None) -> int:
    """Return the number of processes in the group, -1 if this process is not in it."""
    needed("get_world_size")
    ranks = Group.of(group)
    return ranks.size if ranks.rank >= 0 else -1


def get_node_local_rank(fallback_rank: int | None = None) -> int:
    """Return the number of this process among the ranks of its host."""
    return world().local_rank


def get_backend(group: Group | None = None) -> str:
    """Return the backend named to `init_process_group`, "mpi" if none was."""
    needed("get_backend")
    return _State.backend


def get_process_group_ranks(group: Group | None = None) -> list[int]:
    """The numbers of the group's processes among all."""
    needed("get_process_group_ranks")
    return list(Group.of(group).ranks)


def get_group_rank(group: Group, global_rank: int) -> int:
    """The number in the group of a rank; ArgumentError if it is not in it."""
    return Group.of(group).rank_of(global_rank, "get_group_rank")


def get_global_rank(group: Group, group_rank: int) -> int:
    """The number among all of the group's process `group_rank`."""
    ranks = Group.of(group).ranks
    if not 0 <= group_rank < len(ranks):
        raise ArgumentError(f"get_global_rank: the group has ranks 0 to {len(ranks) - 1}")
    return ranks[group_rank]


# not public
def peer(name: str, what: str, among: Group, number: int | None, in_group: int | None) -> int:
    """Return the rank that a call names, by its number among all ranks or in the group."""
    if (number is None) == (in_group is None):
        raise ArgumentError(f"{name}: give {what} or group_{what}, and not both")
    if in_group is not None:
        return get_global_rank(among, in_group)
    if isinstance(number, bool) or not isinstance(number, int):
        raise ArgumentTypeError(f"{name}: {what} is a rank, got {type(number).__name__}")
    if not 0 <= number < world_size():
        raise ArgumentError(f"{name}: ranks are 0 to {world_size() - 1}, got {what} {number}")
    among.rank_of(number, name)
    return number


class _GroupMember(type):
    @property
    def WORLD(cls) -> Group | None:  # noqa: N802 - PyTorch's name
        """The group of all, None where there is no process group."""
        return Group.of() if _State.initialized else None


class GroupMember(metaclass=_GroupMember):
    """`GroupMember.WORLD` is the group of all."""

    NON_GROUP_MEMBER = -100


group = GroupMember  # public: distributed
