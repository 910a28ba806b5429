"""`DeviceMesh`: PyTorch's name for the ranks of a placement, with names for their dimensions.

>>> from flowvm.distributed.device_mesh import init_device_mesh
>>> init_device_mesh("cpu", (1,), mesh_dim_names=("data",))
DeviceMesh('cpu', [0], mesh_dim_names=('data',))
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import permutations
from typing import TYPE_CHECKING, Any

import numpy as np

from flowvm.distributed.groups import init_process_group, is_initialized
from flowvm.errors import ArgumentError, ArgumentTypeError
from flowvm.guards.regions import Mode, Region, Switch
from flowvm.loading.listing import listing
from flowvm.meta.placements import placement
from flowvm.ops.shapes.create import tensor
from flowvm.ranks.world import Group, rank, world_size

if TYPE_CHECKING:
    from flowvm.meta.arrays import Array


__all__ = ["DeviceMesh", "init_device_mesh"]
__dir__ = listing(globals())


# public: distributed.tensor
class DeviceMesh(Region):
    """An array of ranks: `DeviceMesh("cpu", [[0, 1], [2, 3]], mesh_dim_names=("data", "model"))`.

    device_type      "cpu" or "cuda": each rank's own device
    mesh             the ranks, in nested lists or an integer tensor
    mesh_dim_names   one for each dimension of the array; `mesh["data"]` are then the ranks along it
                     that this rank stands with

    `flow_placement` is this mesh as a `flow.placement`.  ArgumentError for ranks that do not exist
    or a wrong number of names; ArgumentTypeError if `mesh` is no array of ranks.

    >>> from flowvm.distributed.device_mesh import DeviceMesh
    >>> mesh = DeviceMesh("cpu", [[0]], mesh_dim_names=("data", "model"))
    >>> mesh.shape, mesh["model"].size(), mesh.get_coordinate()
    ((1, 1), 1, [0, 0])
    """

    def __init__(
        self,
        device_type: object,
        mesh: object,
        *,
        mesh_dim_names: Sequence[str] | None = None,
        backend_override: object = None,
        _init_backend: bool = True,
    ) -> None:
        ranks = np.asarray(mesh.numpy() if hasattr(mesh, "numpy") else mesh)
        if not isinstance(device_type, str):
            kind = type(device_type).__name__
            raise ArgumentTypeError(f"DeviceMesh: device_type is a str, got {kind}")
        self.flow_placement = placement(device_type, ranks.tolist() if ranks.ndim else [int(ranks)])
        names = None if mesh_dim_names is None else tuple(mesh_dim_names)
        if names is not None and (len(names) != self.ndim or len(set(names)) != len(names)):
            raise ArgumentError(
                f"DeviceMesh: mesh_dim_names are {self.ndim} different names, one for each "
                f"dimension of ranks, got {names}"
            )
        self.mesh_dim_names = names
        if _init_backend and not is_initialized():
            init_process_group()
        self._parent: tuple[DeviceMesh, tuple[int, ...]] | None = None  # cut from it, along these
        _named.setdefault(self.flow_placement, self)

    @staticmethod
    def of(where: placement) -> DeviceMesh:
        """The mesh of a placement: the first that was made for it, else one without names."""
        return _named.get(where) or DeviceMesh(where.type, where.ranks)

    @staticmethod
    def from_group(
        group: object,
        device_type: str,
        mesh: object = None,
        *,
        mesh_dim_names: Sequence[str] | None = None,
    ) -> DeviceMesh:
        """The mesh of a group's ranks, or of `mesh`, whose dimensions the groups in a list are."""
        if mesh is None:
            if not isinstance(group, Group):
                raise ArgumentTypeError("DeviceMesh.from_group: groups in a list need mesh=")
            mesh = list(group.ranks)
        return DeviceMesh(device_type, mesh, mesh_dim_names=mesh_dim_names)

    @property
    def device_type(self) -> str:
        """ "cpu" or "cuda"."""
        return self.flow_placement.type

    @property
    def ndim(self) -> int:
        """The number of dimensions of the array of ranks."""
        return len(self.flow_placement.shape)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array of ranks."""
        return self.flow_placement.shape

    @property
    def mesh(self) -> Any:
        """The ranks as an int64 tensor."""
        return tensor(self.flow_placement.ranks)

    def size(self, mesh_dim: int | str | None = None) -> int:
        """Return the number of ranks, or the number along one dimension."""
        if mesh_dim is None:
            return self.flow_placement.size
        return self.shape[self._axis("size", mesh_dim)]

    def numel(self) -> int:
        """Return the number of ranks."""
        return self.flow_placement.size

    def get_rank(self) -> int:
        """The number of this process among all."""
        return rank()

    def get_coordinate(self) -> list[int] | None:
        """Return this rank's place in the array, None if it is not in it."""
        place = self.flow_placement.place_of(rank())
        return None if place is None else list(place)

    def get_local_rank(self, mesh_dim: int | str | None = None) -> int:
        """Return this rank's place along a dimension.  The dimension may be left out if there is
        only one.
        """
        axis = self._only_axis("get_local_rank", mesh_dim)
        return self._place("get_local_rank")[axis]

    def get_group(self, mesh_dim: int | str | None = None) -> Group:
        """The group of the ranks along a dimension that this one stands with."""
        axis = self._only_axis("get_group", mesh_dim)
        self._place("get_group")
        return Group.of(sorted(self.flow_placement.group(axis, rank())))

    def get_all_groups(self) -> list[Group]:
        """`get_group` of each dimension."""
        return [self.get_group(axis) for axis in range(self.ndim)]

    def __getitem__(self, names: str | tuple[str, ...]) -> DeviceMesh:
        listed = (names,) if isinstance(names, str) else tuple(names)
        axes = [self._axis("DeviceMesh[...]", name) for name in listed]
        if len(axes) == self.ndim and axes == sorted(axes):
            return self
        ranks = self._ranks_along(axes, self._place("DeviceMesh[...]"))
        mesh = DeviceMesh(self.device_type, ranks, mesh_dim_names=listed)
        root, outer = self._origin()
        mesh._parent = root, tuple(outer[a] for a in axes)
        return mesh

    def _origin(self) -> tuple[DeviceMesh, tuple[int, ...]]:
        """Return the root mesh and the dimensions of it that this mesh has."""
        return self._parent or (self, tuple(range(self.ndim)))

    def _behind(self, where: placement) -> DeviceMesh | None:
        """Concatenate `where` and this mesh along dimensions of their common root mesh.  Return
        None if there is no such mesh.
        """
        root, own = self._origin()
        place = root._place("DeviceMesh")
        free = [a for a in range(root.ndim) if a not in own]
        for outer in permutations(free, len(where.shape)):
            line, axes = root._ranks_along(outer, place), (*outer, *own)
            if line.shape == where.shape and tuple(line.ravel().tolist()) == where.flat:
                names = root.mesh_dim_names
                return DeviceMesh(
                    self.device_type, root._ranks_along(axes, place),
                    mesh_dim_names=None if names is None else [names[a] for a in axes],
                )  # fmt: skip
        return None

    def _ranks_along(self, axes: Sequence[int], place: Sequence[int]) -> Array:
        """The ranks along some dimensions, in that order, that the one at `place` stands with."""
        order = sorted(axes)
        at = tuple(slice(None) if a in order else p for a, p in enumerate(place))
        return self.flow_placement.ranks[at].transpose([order.index(a) for a in axes])

    def _flatten(self, mesh_dim_name: str | None = None) -> DeviceMesh:
        """Return all ranks of the mesh in one dimension."""
        names = self.mesh_dim_names or tuple(map(str, range(self.ndim)))
        name = mesh_dim_name or "_".join(names)
        ranks = list(self.flow_placement.flat)
        return DeviceMesh(self.device_type, ranks, mesh_dim_names=(name,))

    def _place(self, what: str) -> tuple[int, ...]:
        place = self.flow_placement.place_of(rank())
        if place is None:
            raise ArgumentError(f"{what}: rank {rank()} is not in {self!r}")
        return place

    def _only_axis(self, what: str, dim: int | str | None) -> int:
        if dim is None and self.ndim > 1:
            raise ArgumentError(f"{what}: {self!r} has {self.ndim} dimensions; say which")
        return self._axis(what, 0 if dim is None else dim)

    def _axis(self, what: str, dim: int | str) -> int:
        if isinstance(dim, str):
            if dim not in (self.mesh_dim_names or ()):
                raise ArgumentError(f"{what}: {self!r} has no dimension {dim!r}")
            return (self.mesh_dim_names or ()).index(dim)
        if not -self.ndim <= dim < self.ndim:
            raise ArgumentError(f"{what}: {self!r} has no dimension {dim}")
        return dim % self.ndim

    def _mode(self) -> Mode[Any]:
        return _current

    def _switch(self) -> Switch:
        return _current, self, self

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DeviceMesh):
            return NotImplemented
        return self.flow_placement is other.flow_placement  # tensors know no names

    def __hash__(self) -> int:
        return hash(self.flow_placement)

    def __repr__(self) -> str:
        names = "" if self.mesh_dim_names is None else f", mesh_dim_names={self.mesh_dim_names}"
        return f"DeviceMesh({self.device_type!r}, {self.flow_placement.ranks.tolist()}{names})"


_named: dict[placement, DeviceMesh] = {}
_current: Mode[DeviceMesh | None] = Mode(None)  # of the `with` around


def current_mesh() -> DeviceMesh:
    """Return the mesh of the surrounding with statement, or all ranks in one dimension."""
    return _current.now() or DeviceMesh.of(placement.all("cpu"))


# public: distributed.tensor
def init_device_mesh(
    device_type: str,
    mesh_shape: Sequence[int],
    *,
    mesh_dim_names: Sequence[str] | None = None,
    backend_override: object = None,
) -> DeviceMesh:
    """The mesh of all ranks, in an array of `mesh_shape`; there is a process group afterwards.

    ArgumentError if the world has another number of ranks.

    >>> from flowvm.distributed.device_mesh import init_device_mesh
    >>> init_device_mesh("cpu", (1, 1)).ndim
    2
    """
    shape = tuple(int(n) for n in mesh_shape)
    if math.prod(shape) != world_size():
        raise ArgumentError(
            f"init_device_mesh: mesh_shape {shape} has {math.prod(shape)} ranks, and there are "
            f"{world_size()}; start that many: flowvm launch -n {math.prod(shape)}"
        )
    ranks = np.arange(world_size()).reshape(shape)
    return DeviceMesh(device_type, ranks, mesh_dim_names=mesh_dim_names)
