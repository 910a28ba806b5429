"""Placements and SBP: the ranks that hold a global tensor, and the part that each holds.

A *placement* is a device type and an array of ranks, of one or several dimensions.  For each
dimension of that array a tensor has one *sbp*: `split(d)` cuts its dimension d among the ranks
there, `broadcast` gives each of them all of it, `partial_sum` gives each a summand of it.

A dimension of n that is cut for k ranks gives the first n % k of them one more than the others;
some may get nothing.  Dimensions of the placement cut one after the other: the second `split(0)`
cuts the part that the first one left.

Nothing here communicates.  `world` has the number of this process.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

import numpy as np

from flowvm.errors import ArgumentError, ArgumentTypeError
from flowvm.meta.arrays import Array
from flowvm.meta.device import Device, _usable, own_number, require


def _alone() -> tuple[int, int]:
    return 0, 1


# a function of this process's rank and the number of ranks; a transport appends its own
world: list[Callable[[], tuple[int, int]]] = [_alone]
# which device of a type is this process's, of all that its host has
own_device: list[Callable[[str], Device]] = [Device]


def rank_and_size() -> tuple[int, int]:
    """This process's rank, and the number of ranks."""
    return world[-1]()


own_number.append(lambda: rank_and_size()[0])


# --- sbp ------------------------------------------------------------------------------------------


# public: sbp
class sbp:  # noqa: N801 - OneFlow's name, which users write
    """The part of a tensor that the ranks along one dimension of a placement hold.
    `flow.sbp.split(d)` makes one; `flow.sbp.broadcast` and `flow.sbp.partial_sum` are the others.
    There is one object for each.
    """

    __slots__ = ("dim",)
    dim: int  # that is split; BROADCAST or PARTIAL

    def __new__(cls, *args: object, **kwargs: object) -> sbp:
        raise ArgumentTypeError(
            "flow.sbp.sbp is the type; write flow.sbp.split(dim), flow.sbp.broadcast or "
            "flow.sbp.partial_sum"
        )

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{self!r} cannot be changed")

    @property
    def is_split(self) -> bool:
        """True if ranks hold parts."""
        return self.dim >= 0

    def __call__(self) -> sbp:
        """Return the object itself: OneFlow has both `flow.sbp.broadcast` and
        `flow.sbp.broadcast()`.
        """
        return self

    def __repr__(self) -> str:
        if self.dim >= 0:
            return f"flow.sbp.split({self.dim})"
        return "flow.sbp.broadcast" if self.dim == BROADCAST else "flow.sbp.partial_sum"

    @property
    def short(self) -> str:
        """The short name: S(0), B or P."""
        return f"S({self.dim})" if self.dim >= 0 else "B" if self.dim == BROADCAST else "P"

    def __reduce__(self) -> tuple[Callable[[int], sbp], tuple[int]]:
        return _sbp_of, (self.dim,)


BROADCAST, PARTIAL = -1, -2
_sbps: dict[int, sbp] = {}


def _sbp_of(dim: int) -> sbp:
    interned = _sbps.get(dim)
    if interned is None:
        interned = object.__new__(sbp)
        object.__setattr__(interned, "dim", dim)
        interned = _sbps.setdefault(dim, interned)  # atomic: two threads agree on one object
    return interned


broadcast = _sbp_of(BROADCAST)  # public: sbp
partial_sum = _sbp_of(PARTIAL)  # public: sbp
Sbps = tuple[sbp, ...]


# public: sbp
def split(dim: int) -> sbp:
    """Dimension `dim` is cut among the ranks.  It counts from the front: it is not negative."""
    try:
        at = operator.index(dim)
    except TypeError:
        kind = type(dim).__name__
        raise ArgumentTypeError(f"sbp.split: a dimension is an int, got {kind}") from None
    if at < 0:
        raise ArgumentError(
            f"sbp.split: a dimension counts from the front, 0 or more, got {at}: an sbp is not "
            f"told how many dimensions its tensor has"
        )
    return _sbp_of(at)


def as_sbps(value: object, placement: placement, ndim: int | None = None) -> Sbps:
    """Return `value` as a tuple of sbp, one for each dimension of `placement`; a single sbp stands
    for a tuple of one.  An object with a method `as_sbp(ndim)` counts as an sbp, as PyTorch's
    `Shard` of `flowvm.distributed.tensor`.

    ArgumentError for too many, or for a split dimension that a tensor of `ndim` does not have.
    """
    listed = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    listed = tuple(one.as_sbp(ndim) if hasattr(one, "as_sbp") else one for one in listed)
    for one in listed:
        if not isinstance(one, sbp):
            raise ArgumentTypeError(
                f"an sbp is flow.sbp.split(dim), flow.sbp.broadcast or flow.sbp.partial_sum, got "
                f"{one!r}"
            )
    if len(listed) != len(placement.shape):
        raise ArgumentError(
            f"a placement of {len(placement.shape)} dimensions takes as many sbp, got {listed}"
        )
    for one in listed if ndim is not None else ():
        if one.dim >= (ndim or 0):
            raise ArgumentError(f"{one!r} of a tensor with {ndim} dimensions")
    return listed


# --- placements -----------------------------------------------------------------------------------


def _ranks_of(device_ids: object) -> object:
    """The ranks that OneFlow's `device_ids` name."""
    if not isinstance(device_ids, dict):
        return device_ids
    hosts = {int(k): [v] if isinstance(v, int) else list(v) for k, v in device_ids.items()}
    each, rest = divmod(rank_and_size()[1], max(hosts) + 1)
    if rest or any(number >= each for ids in hosts.values() for number in ids):
        raise ArgumentError(
            f"placement: device_ids {device_ids} do not fit {rank_and_size()[1]} ranks"
        )
    return [host * each + number for host, ids in sorted(hosts.items()) for number in ids]


# public: flow
class placement:  # noqa: N801 - OneFlow's name, which users write
    """Ranks that hold a tensor: `flow.placement("cpu", ranks=[0, 1])`, or nested lists for ranks of
    several dimensions, `[[0, 1], [2, 3]]`.  One object for each combination.

    type    "cpu" or "cuda": each rank's own device; rank k of a host has its k-th CUDA device
    shape   of the array of ranks
    flat    the ranks in C order

    ArgumentError for another type, or if `ranks` is no array of ranks.  OneFlow's earlier
    `device_type`, `device_ids` and `hierarchy` are taken, too: ranks, or a dict of those of each
    host, and the shape.

    >>> flow.placement("cpu", ranks=[0])
    flow.placement(type="cpu", ranks=[0])
    """

    __slots__ = ("_groups", "devices", "flat", "shape", "type")
    type: str
    shape: tuple[int, ...]
    flat: tuple[int, ...]
    _groups: dict[tuple[int, int], tuple[int, ...]]
    devices: dict[object, PlacedDevice]  # by rank, and by (rank, sbp)

    def __new__(
        cls,
        type: str = "",
        ranks: object = None,
        *,
        device_type: str = "",
        device_ids: object = None,
        hierarchy: Any = None,
    ) -> placement:
        if device_ids is not None or device_type:  # OneFlow's earlier names
            if type or ranks is not None:
                raise ArgumentError("placement: give type and ranks, or device_type and device_ids")
            type, ranks = device_type, _ranks_of(device_ids)
        if type not in ("cpu", "cuda"):
            raise ArgumentError(f"placement: type is 'cpu' or 'cuda', got {type!r}")
        array = np.array(ranks)
        if array.dtype.kind not in "iu" or array.size == 0 or array.ndim == 0:
            raise ArgumentError(
                f"placement: ranks are ints in a list, or in nested lists of equal length, got "
                f"{ranks!r}"
            )
        flat = tuple(int(r) for r in array.ravel())
        shape = tuple(array.shape) if hierarchy is None else tuple(hierarchy)
        if math.prod(shape) != len(flat):
            raise ArgumentError(f"placement: hierarchy {shape} is not of {len(flat)} ranks")
        if len(set(flat)) != len(flat):
            raise ArgumentError(f"placement: a rank appears more than once in {array.tolist()}")
        size = rank_and_size()[1]
        if min(flat) < 0 or max(flat) >= size:
            raise ArgumentError(
                f"placement: ranks go from 0 to {size - 1} here, got {array.tolist()}; start more "
                f"processes: flowvm launch -n {max(flat) + 1}, or mpiexec -n {max(flat) + 1}"
            )
        return cls._of(type, shape, flat)

    @classmethod
    def _of(cls, type: str, shape: tuple[int, ...], flat: tuple[int, ...]) -> placement:
        key = type, shape, flat
        interned = _placements.get(key)
        if interned is None:
            interned = object.__new__(cls)
            interned.type, interned.shape, interned.flat = type, shape, flat
            interned.devices, interned._groups = {}, {}
            interned = _placements.setdefault(key, interned)
        return interned

    @staticmethod
    def all(type: str) -> placement:
        """Return the placement of all ranks, in one dimension."""
        return placement(type, list(range(rank_and_size()[1])))

    @property
    def ranks(self) -> Array:
        """The ranks, as an array of `shape`."""
        return np.array(self.flat).reshape(self.shape)

    @property
    def size(self) -> int:
        """The number of ranks."""
        return len(self.flat)

    def place_of(self, rank: int) -> tuple[int, ...] | None:
        """Return the place of `rank` in the array of ranks, None if it is not in it."""
        if rank not in self.flat:
            return None
        return tuple(int(i) for i in np.unravel_index(self.flat.index(rank), self.shape))

    def group(self, axis: int, rank: int) -> tuple[int, ...]:
        """The ranks along `axis` of the array that stand with `rank`, which is one of them."""
        ranks: tuple[int, ...] | None = self._groups.get((axis, rank))
        if ranks is None:
            place: Any = self.place_of(rank)
            line = self.ranks[tuple(slice(None) if a == axis else p for a, p in enumerate(place))]
            ranks = self._groups[axis, rank] = tuple(int(r) for r in line)
        return ranks

    def device(self, rank: int, sbp: Sbps | None = None) -> PlacedDevice:
        """Return the device of metas of this placement, on `rank`.  `sbp` is the layout of tensors
        made on the device.
        """
        key = rank, sbp
        device = self.devices.get(key)
        if device is None:
            device = self.devices.setdefault(key, PlacedDevice._of(self, rank, sbp))
        return device

    def __repr__(self) -> str:
        return f'flow.placement(type="{self.type}", ranks={self.ranks.tolist()})'

    def __reduce__(self) -> tuple[object, ...]:
        return placement, (self.type, self.ranks.tolist())


_placements: dict[object, placement] = {}


class PlacedDevice(Device):
    """The device of global tensors: its `placement`, as `rank` sees it.

    A tensor made on it is a global tensor there, which every rank holds whole unless `sbp` says
    how.  So code that makes a tensor on another one's device need not know about global tensors.
    """

    __slots__ = ("local", "placement", "rank", "sbp")
    placement: Any  # a placement
    sbp: Sbps | None
    rank: int
    local: Device  # where this rank's part lies
    maker: Callable[..., object]  # makes metas; see flowvm.meta.global_meta

    @staticmethod
    def _of(where: placement, rank: int, sbp: Sbps | None) -> PlacedDevice:
        device = object.__new__(PlacedDevice)
        local = require(own_device[-1](where.type))
        for name, value in (
            ("type", local.type),
            ("index", local.index),
            ("placement", where),
            ("rank", rank),
            ("sbp", sbp),
            ("local", local),
        ):
            object.__setattr__(device, name, value)
        _usable.add(device)
        return device

    def __repr__(self) -> str:
        return repr(self.placement)

    def __reduce_ex__(self, protocol: object) -> tuple[object, ...]:
        return placed_device, (self.placement,)


def placed_device(where: placement) -> PlacedDevice:
    """The device of `where` on this rank."""
    return where.device(rank_and_size()[0])


# --- parts ----------------------------------------------------------------------------------------


def cut(n: int, parts: int, k: int) -> tuple[int, int]:
    """Return begin and end of part `k` of `n` elements in `parts`; the first parts may have one
    more.
    """
    each, more = divmod(n, parts)
    begin = k * each + min(k, more)
    return begin, begin + each + (k < more)


def sizes(n: int, parts: int) -> tuple[int, ...]:
    """Return the number of elements of each part."""
    return tuple(end - begin for begin, end in (cut(n, parts, k) for k in range(parts)))


def part(
    shape: Sequence[int], where: placement, sbps: Iterable[sbp], place: Sequence[int]
) -> tuple[tuple[int, int], ...]:
    """Return begin and end, in each dimension, of the part of a tensor of `shape` that the rank at
    `place` holds.
    """
    bounds = [(0, d) for d in shape]
    for one, count, k in zip(sbps, where.shape, place, strict=True):
        if one.dim >= 0:
            begin, end = bounds[one.dim]
            low, high = cut(end - begin, count, k)
            bounds[one.dim] = begin + low, begin + high
    return tuple(bounds)


def even(n: int, where: placement, sbps: Sequence[sbp], dim: int) -> bool:
    """Return True if all parts of dimension `dim`, which has `n` elements, are equal."""
    return n % math.prod(c for one, c in zip(sbps, where.shape, strict=True) if one.dim == dim) == 0


def places(where: placement) -> Iterable[tuple[int, ...]]:
    """All places of the array of ranks, in C order."""
    return itertools.product(*(range(n) for n in where.shape))
