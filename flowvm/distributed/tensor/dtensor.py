"""`DTensor`: PyTorch's names for operations on global tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import flowvm.ops as _ops
from flowvm.distributed.device_mesh import DeviceMesh, current_mesh
from flowvm.distributed.tensor.placement_types import Placement, as_placements
from flowvm.eager.tensor import Tensor, refused
from flowvm.errors import ArgumentError, ArgumentTypeError
from flowvm.meta.placements import Sbps, as_sbps, broadcast, cut, placement, rank_and_size
from flowvm.nn.module import Module
from flowvm.nn.parameter import Parameter
from flowvm.ops.placed.tensors import global_of_local

# public: distributed.tensor


def _sbps(placements: Sequence[Placement] | None, where: placement, ndim: int) -> Sbps:
    """Return one sbp for each dimension of the ranks; None: all replicated."""
    if placements is None:
        return (broadcast,) * len(where.shape)
    return as_sbps(placements, where, ndim)


class _Kind(type):
    def __instancecheck__(cls, x: object) -> bool:
        return isinstance(x, Tensor) and x.is_global


class DTensor(metaclass=_Kind):
    """A global tensor: `isinstance(x, DTensor)` is `x.is_global`.

    All of flowvm's tensors are of one class; those on several ranks have `device_mesh`,
    `placements`, `full_tensor()` and `redistribute()` beside OneFlow's `placement`, `sbp`,
    `to_global` and `to_local`.

    >>> import flowvm.distributed.tensor as dt
    >>> mesh = dt.init_device_mesh("cpu", (1,))
    >>> x = dt.distribute_tensor(flow.ones(2), mesh, [dt.Shard(0)])
    >>> isinstance(x, dt.DTensor), isinstance(flow.ones(2), dt.DTensor)
    (True, False)
    >>> x.placements, x.full_tensor()
    ((Shard(dim=0),), tensor([1., 1.]))
    """

    def __new__(cls, *args: object, **kwargs: object) -> DTensor:
        raise ArgumentTypeError("DTensor: made by DTensor.from_local or distribute_tensor")

    @staticmethod
    def from_local(
        local_tensor: Tensor,
        device_mesh: DeviceMesh | None = None,
        placements: Sequence[Placement] | None = None,
        *,
        run_check: bool = False,
        shape: Sequence[int] | None = None,
        stride: Sequence[int] | None = None,
        grad_placements: Sequence[Placement] | None = None,
    ) -> Tensor:
        """Return the global tensor made from each rank's local tensor: its part, or its summand.

        run_check   sizes of parts are compared, and what is replicated is sent by the first rank;
                    without, ranks are trusted to have the same shape and, where it is replicated,
                    the same values.  Parts of several sizes need it, or `shape`
        shape       of the whole; ArgumentError if this rank's part is of another size.  Its
                    `stride` is taken: parts are of C order
        """
        mesh = current_mesh() if device_mesh is None else device_mesh
        where = mesh.flow_placement
        held = _sbps(placements, where, local_tensor.ndim)
        uneven = False
        if shape is not None:
            even = list(local_tensor.shape)
            for s, n in zip(held, mesh.shape, strict=True):
                if s.is_split:
                    even[s.dim] *= n
            uneven = tuple(even) != tuple(shape)
        if local_tensor.is_global:
            raise ArgumentError(f"DTensor.from_local: {local_tensor._meta!r} is global already")
        out = global_of_local(
            local_tensor, where, held, grad_placements,
            check_meta=run_check or uneven, tell_others=False,
        )  # fmt: skip
        if shape is not None and tuple(out.shape) != tuple(shape):
            raise ArgumentError(
                f"DTensor.from_local: the ranks' parts make a tensor of shape {tuple(out.shape)}, "
                f"and shape={tuple(shape)}"
            )
        return out


def _mesh(x: Tensor) -> DeviceMesh:
    """The mesh that holds a global tensor.  A local one has no such attribute.

    >>> import flowvm.distributed.tensor as dt
    >>> dt.ones(2, device_mesh=dt.init_device_mesh("cpu", (1,))).device_mesh.shape
    (1,)
    """
    return DeviceMesh.of(_placed(x, "device_mesh").placement)


def _placements(x: Tensor) -> tuple[Placement, ...]:
    """Return the placements of a global tensor, one for each dimension of the mesh.  A local tensor
    has no such attribute.

    >>> import flowvm.distributed.tensor as dt
    >>> mesh = dt.init_device_mesh("cpu", (1,))
    >>> dt.ones(2, device_mesh=mesh, placements=[dt.Shard(0)]).placements
    (Shard(dim=0),)
    """
    return as_placements(_placed(x, "placements").sbp)


def _placed(x: Tensor, what: str) -> Any:
    if not isinstance(x, Tensor):
        raise refused(what, x)
    if not x.is_global:
        raise AttributeError(f"{what}: this tensor is local; see flowvm.distributed.tensor")
    return x._meta


def _redistribute(
    x: Tensor,
    device_mesh: DeviceMesh | None = None,
    placements: Sequence[Placement] | None = None,
    *,
    async_op: bool = False,
    forward_dtype: object = None,
    backward_dtype: object = None,
) -> Tensor:
    """Return a tensor of equal values with other placements; `to_global` by PyTorch's names.

    `async_op` is accepted and ignored: a reader waits.  ArgumentTypeError for a local tensor.

    >>> import flowvm.distributed.tensor as dt
    >>> x = dt.ones(2, device_mesh=dt.init_device_mesh("cpu", (1,)))
    >>> x.redistribute(placements=[dt.Shard(0)]).placements
    (Shard(dim=0),)
    """
    meta = _global_meta(x, "redistribute")
    mesh = DeviceMesh.of(meta.placement) if device_mesh is None else device_mesh
    held = _sbps(placements, mesh.flow_placement, x.ndim)
    for name, dtype in (("forward_dtype", forward_dtype), ("backward_dtype", backward_dtype)):
        if dtype is not None and dtype is not meta.dtype:
            raise ArgumentError(f"redistribute: {name} is the tensor's, {meta.dtype}, got {dtype}")
    return x.to_global(mesh.flow_placement, held)


def _full_tensor(x: Tensor, *, grad_placements: Sequence[Placement] | None = None) -> Tensor:
    """Return the whole of a global tensor as a local one.  All of its ranks call this.

    grad_placements   how each rank's gradient is held, replicated by default

    ArgumentTypeError for a local tensor.

    >>> import flowvm.distributed.tensor as dt
    >>> x = dt.ones(2, device_mesh=dt.init_device_mesh("cpu", (1,)), placements=[dt.Shard(0)])
    >>> x.full_tensor().tolist()
    [1.0, 1.0]
    """
    whole = (broadcast,) * len(_global_meta(x, "full_tensor").sbp)
    return x.to_global(sbp=whole).to_local(grad_sbp=grad_placements)


def _global_meta(x: Tensor, what: str) -> Any:
    if not isinstance(x, Tensor):
        raise refused(what, x)
    if not x.is_global:
        raise ArgumentTypeError(
            f"{what}: this tensor is local; make it global by distribute_tensor or "
            f"DTensor.from_local"
        )
    return x._meta


setattr(Tensor, "device_mesh", property(_mesh))  # noqa: B010 - mypy knows no such attribute
setattr(Tensor, "placements", property(_placements))  # noqa: B010
setattr(Tensor, "redistribute", _redistribute)  # noqa: B010
setattr(Tensor, "full_tensor", _full_tensor)  # noqa: B010


def distribute_tensor(
    tensor: Tensor,
    device_mesh: DeviceMesh | None = None,
    placements: Sequence[Placement] | None = None,
    *,
    src_data_rank: int | None = 0,
) -> Tensor:
    """A tensor that all ranks have, on the ranks of a mesh, held as `placements` say.

    src_data_rank   0: the first rank's values count, and are sent; None: all ranks are trusted to
                    have the same

    A Parameter stays one.  ArgumentError if it is global already on other ranks, or for `Partial`.

    >>> import flowvm.distributed.tensor as dt
    >>> dt.distribute_tensor(flow.ones(2), dt.init_device_mesh("cpu", (1,)), [dt.Shard(0)]).sbp
    (flow.sbp.split(0),)
    """
    mesh = current_mesh() if device_mesh is None else device_mesh
    where = mesh.flow_placement
    held = _sbps(placements, where, tensor.ndim)
    if any(s.short == "P" for s in held):
        raise ArgumentError("distribute_tensor: Partial is what ops leave, and cannot be asked for")
    x = tensor.detach() if tensor.is_leaf else tensor
    if x.is_global:
        if x.placement is not where:
            raise ArgumentError(f"distribute_tensor: the tensor is on {x.placement!r} already")
    else:
        every, checked = (broadcast,) * mesh.ndim, src_data_rank is not None
        x = global_of_local(x, where, every, check_meta=checked, tell_others=False)
    out = x if x.sbp == held else x.to_global(sbp=held)
    if isinstance(tensor, Parameter):
        return Parameter(out, requires_grad=tensor.requires_grad)
    return out.requires_grad_(tensor.requires_grad) if tensor.is_leaf else out


def distribute_module(
    module: Module,
    device_mesh: DeviceMesh | None = None,
    partition_fn: Callable[[str, Module, DeviceMesh], None] | None = None,
    input_fn: Callable[..., object] | None = None,
    output_fn: Callable[..., object] | None = None,
) -> Module:
    """Make the parameters and buffers of a module global.

    partition_fn(name, module, mesh)   for each module inside: it may replace parameters by global
                                       ones; those that it leaves are replicated
    input_fn(module, inputs, mesh)     before forward: the positional inputs to take
    output_fn(module, outputs, mesh)   behind forward: the output

    >>> import flowvm.distributed.tensor as dt
    >>> m = dt.distribute_module(flow.nn.Linear(2, 2), dt.init_device_mesh("cpu", (1,)))
    >>> m.weight.placements
    (Replicate(),)
    """
    mesh = current_mesh() if device_mesh is None else device_mesh
    for name, inner in module.named_modules():
        if partition_fn is not None:
            partition_fn(name, inner, mesh)
        for held in (inner._parameters, inner._buffers):
            for key, value in list(held.items()):
                if value is not None and not value.is_global:
                    setattr(inner, key, distribute_tensor(value, mesh))
    if input_fn is not None:
        module.register_forward_pre_hook(lambda m, inputs: input_fn(m, inputs, mesh))
    if output_fn is not None:
        module.register_forward_hook(lambda m, inputs, outputs: output_fn(m, outputs, mesh))
    return module


def _maker(name: str) -> Callable[..., Tensor]:
    function = getattr(_ops, name)

    def make(
        *size: Any,
        device_mesh: DeviceMesh | None = None,
        placements: Sequence[Placement] | None = None,
        layout: object = None,
        **kwargs: object,
    ) -> Tensor:
        mesh = current_mesh() if device_mesh is None else device_mesh
        shape = np.ravel(size[0] if name == "full" or len(size) == 1 else size)
        held = _sbps(placements, mesh.flow_placement, len(shape))
        tensor: Tensor = function(*size, placement=mesh.flow_placement, sbp=held, **kwargs)
        return tensor

    make.__name__ = make.__qualname__ = name
    make.__doc__ = f"""`flow.{name}` on the ranks of `device_mesh`, held as `placements` say.

    The same numbers as on one rank, whatever the mesh.

    >>> import flowvm.distributed.tensor as dt
    >>> dt.{name}({"(2,), 0.5" if name == "full" else "2"}, placements=[dt.Shard(0)]).shape
    flow.Size([2])
    """
    return make


zeros, ones, empty, full, rand, randn = map(
    _maker, ("zeros", "ones", "empty", "full", "rand", "randn")
)


# not public
def compute_local_shape_and_global_offset(
    global_shape: Sequence[int], mesh: DeviceMesh, placements: Sequence[Placement]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shape of this rank's part of a tensor, and where it begins in each dimension.

    Both are () on a rank that is not in the mesh, as in PyTorch.
    """
    place = mesh.flow_placement.place_of(rank_and_size()[0])
    if place is None:
        return (), ()
    shape, offset = [int(n) for n in global_shape], [0] * len(global_shape)
    held = _sbps(placements, mesh.flow_placement, len(shape))
    for s, n, k in zip(held, mesh.shape, place, strict=True):
        if s.is_split:
            begin, end = cut(shape[s.dim], n, k)
            offset[s.dim] += begin
            shape[s.dim] = end - begin
    return tuple(shape), tuple(offset)
