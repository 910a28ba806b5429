"""`fully_shard`, and the methods of a sharded module."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from flowvm.distributed.device_mesh import DeviceMesh, current_mesh
from flowvm.distributed.fsdp.groups import Beside, ParameterGroup
from flowvm.distributed.fsdp.policies import MixedPrecisionPolicy, OffloadPolicy
from flowvm.distributed.tensor.placement_types import Shard
from flowvm.errors import ArgumentError, ArgumentTypeError
from flowvm.meta.placements import Sbps, broadcast, split
from flowvm.nn.module import Module
from flowvm.nn.parameter import Parameter, set_data
from flowvm.ops.placed.boxing import global_of, part_of

if TYPE_CHECKING:
    from flowvm.eager.tensor import Tensor


M = TypeVar("M", bound=Module)


# public: distributed.fsdp
class UnshardHandle:
    """The result of `FSDPModule.unshard(async_op=True)`.

    >>> from flowvm.distributed.fsdp import fully_shard
    >>> fully_shard(nn.Linear(2, 2)).unshard(async_op=True).wait()
    """

    def wait(self) -> None:
        """Do nothing: a reader of a parameter waits for it."""


# public: distributed.fsdp
class FSDPModule(Module):
    """The class that a module has beside its own after `fully_shard`.

    Its parameters are global tensors, cut among the ranks.  While its forward runs, and from the
    beginning of its backward until its gradients are averaged, it has whole local tensors under
    their names.

    >>> from flowvm.distributed.fsdp import FSDPModule, fully_shard
    >>> layer = fully_shard(nn.Linear(2, 2))
    >>> isinstance(layer, FSDPModule), isinstance(layer, nn.Linear), layer.weight.placements
    (True, True, (Shard(dim=0),))
    """

    _fsdp_group: ParameterGroup

    def unshard(self, async_op: bool = False) -> UnshardHandle | None:
        """Gather the parameters of this module's group now.  The exchange is issued and runs beside
        earlier work; nothing waits, with `async_op` or without.
        """
        self._fsdp_group.unshard()
        return UnshardHandle() if async_op else None

    def reshard(self) -> None:
        """Drop gathered parameters."""
        self._fsdp_group.reshard()

    def set_requires_gradient_sync(
        self, requires_gradient_sync: bool, *, recurse: bool = True
    ) -> None:
        """Set if gradients are averaged.  False: whole gradients add up on each rank, and the first
        backward after True averages them too.  `recurse`: for the modules below, too.
        """
        for group in self._groups(recurse):
            group.syncs = bool(requires_gradient_sync)

    def set_reshard_after_forward(
        self, reshard_after_forward: object, recurse: bool = True
    ) -> None:
        """Set if gathered parameters are dropped between forward and backward."""
        if not isinstance(reshard_after_forward, bool):
            kind = type(reshard_after_forward).__name__
            raise ArgumentTypeError(f"set_reshard_after_forward takes a bool, got {kind}")
        for group in self._groups(recurse):
            group.reshard_after_forward = reshard_after_forward

    def set_reshard_after_backward(
        self, reshard_after_backward: bool, *, recurse: bool = True
    ) -> None:
        """Set if gathered parameters are dropped behind backward.  Otherwise they are used until
        the parameters change.
        """
        for group in self._groups(recurse):
            group.reshard_after_backward = bool(reshard_after_backward)

    def set_unshard_in_backward(self, unshard_in_backward: bool) -> None:
        """False: backward gathers no parameters before something asks for them."""
        self._fsdp_group.unshards_in_backward = bool(unshard_in_backward)

    def set_modules_to_forward_prefetch(self, modules: Sequence[FSDPModule]) -> None:
        """Gather the parameters of these modules when this module's forward begins."""
        self._fsdp_group.before_forward = _groups_of("set_modules_to_forward_prefetch", modules)

    def set_modules_to_backward_prefetch(self, modules: Sequence[FSDPModule]) -> None:
        """Gather the parameters of these modules when this module's backward begins."""
        self._fsdp_group.before_backward = _groups_of("set_modules_to_backward_prefetch", modules)

    def set_gradient_divide_factor(self, factor: float) -> None:
        """Divide the sum of gradients by this, and not by the number of ranks."""
        if not factor > 0:
            raise ArgumentError(f"set_gradient_divide_factor: above 0, got {factor}")
        self._fsdp_group.divisor = float(factor)

    set_reduce_scatter_divide_factor = set_gradient_divide_factor

    def set_force_sum_reduction_for_comms(self, enable: bool) -> None:
        """Accept and ignore: gradients are always summed first, and divided afterwards."""

    def set_is_last_backward(self, is_last_backward: bool) -> None:
        """Accept and ignore: each backward leaves its gradients in place."""

    def reset_iter_state(self) -> None:
        """Forget gathered parameters, and gradients that were not averaged; of the modules below,
        too.
        """
        for group in self._groups(True):
            group.pending = {}
            group.reshard()

    def _groups(self, recurse: bool) -> Iterator[ParameterGroup]:
        visited: set[int] = set()
        for module in self.modules() if recurse else (self,):
            group = getattr(module, "_fsdp_group", None)
            if group is not None and id(group) not in visited:
                visited.add(id(group))
                yield group

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        for group in self._groups(True):
            group.reshard()
        return super()._apply(fn, recurse)

    def __deepcopy__(self, memo: object) -> NoReturn:
        raise ArgumentError(
            f"{type(self).__name__}: a sharded module is not copied; copy the module first, and "
            f"shard the copy"
        )


def _groups_of(what: str, modules: Iterable[Any]) -> list[ParameterGroup]:
    listed = list(modules)
    for module in listed:
        if not isinstance(module, FSDPModule):
            kind = type(module).__name__
            raise ArgumentError(f"{what} takes modules that fully_shard was given, got a {kind}")
    return [module._fsdp_group for module in listed]


def _called(function: Callable[..., object]) -> Callable[..., object]:
    """Return a method that runs with whole parameters."""

    @functools.wraps(function)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self._fsdp_group.call(self, functools.partial(function, self), args, kwargs)

    return call


@functools.cache
def _class_of(kind: type[Module]) -> type[Module]:
    """The class of a sharded module of class `kind`."""
    body = {
        "forward": _called(kind.forward),
        "__module__": kind.__module__,
        "__doc__": kind.__doc__,
    }
    return type(f"FSDP{kind.__name__}", (FSDPModule, kind), body)


def become(module: Module, group: ParameterGroup) -> None:
    """Let a module's forward run with the whole parameters of `group`."""
    own = module.__dict__.get("forward")
    kind: object = type(module)
    module.__class__ = _class_of(kind)
    object.__setattr__(module, "_fsdp_group", group)
    if own is not None:  # of this module alone

        @functools.wraps(own)
        def forward(*args: object, **kwargs: object) -> Any:
            return group.call(module, own, args, kwargs)

        object.__setattr__(module, "forward", forward)


# public: distributed.fsdp
def register_fsdp_forward_method(module: Module, method_name: str) -> None:
    """Let another method than forward run with whole parameters, as `generate` of a language model.

    Nothing happens to a module that was not sharded.  ArgumentError where there is no such method.

    >>> from flowvm.distributed.fsdp import fully_shard, register_fsdp_forward_method
    >>> class Net(nn.Linear):
    ...     def twice(self, x):
    ...         return self.weight.is_global, self(self(x)).shape
    >>> net = fully_shard(Net(2, 2))
    >>> register_fsdp_forward_method(net, "twice")
    >>> net.twice(flow.ones(2))
    (False, flow.Size([2]))
    """
    method = getattr(module, method_name, None)
    if not callable(method):
        raise ArgumentError(
            f"register_fsdp_forward_method: {type(module).__name__} has no method {method_name!r}"
        )
    if not isinstance(module, FSDPModule):
        return
    group = module._fsdp_group

    @functools.wraps(method)
    def call(*args: object, **kwargs: object) -> Any:
        return group.call(module, method, args, kwargs)

    object.__setattr__(module, method_name, call)


# public: distributed.fsdp
def share_comm_ctx(modules: Sequence[FSDPModule]) -> None:
    """Accept and ignore: all exchanges of a rank are issued in the order of the program.

    >>> from flowvm.distributed.fsdp import fully_shard, share_comm_ctx
    >>> share_comm_ctx([fully_shard(nn.Linear(2, 2))])
    """
    _groups_of("share_comm_ctx", modules)


def grouped(
    modules: Sequence[Module],
    mesh: DeviceMesh,
    whole: bool,
    reshard: bool | None,
    policy: MixedPrecisionPolicy,
    ignored: Iterable[Any],
    cuts: Callable[[Parameter], Any] | None = None,
) -> ParameterGroup:
    """Cut the parameters of modules that no group has yet, and make them a group.

    whole   keep them whole on all ranks
    """
    left_out = {id(p) for p in ignored}
    places: list[tuple[Module, str, int]] = []
    params: list[Parameter] = []
    beside: list[Beside | None] = []
    which: dict[int, int] = {}
    for top in modules:
        for inner in top.modules():
            below: ParameterGroup | None = getattr(inner, "_fsdp_group", None)
            if below is not None:
                left_out |= {id(p) for p in below.params}
    for top in modules:
        for path, inner in top.named_modules():
            for name, p in inner._parameters.items():
                if p is None or id(p) in left_out:
                    continue
                if id(p) not in which:
                    beside.append(_checked(p, f"{path}.{name}" if path else name, mesh, whole))
                    which[id(p)] = len(params)
                    params.append(p)
                place = (inner, name, which[id(p)])
                if place not in places:
                    places.append(place)
    where = mesh.flow_placement
    axis = None if whole else len(where.shape) - 1
    for p, other in zip(params, beside, strict=True):
        held = [broadcast] * len(where.shape)
        if axis is not None:
            held[axis] = split(_dim(cuts, p))
        local = p.detach() if other is None else part_of(p)
        new = local.to_global(where, (broadcast,) * len(held), check_meta=False)
        sbps: Sbps = tuple(held)
        if sbps != new.sbp:
            new = new.to_global(sbp=sbps, copy=True)
        set_data(p, new if other is None else global_of(part_of(new), other.cut(sbps)))
    return ParameterGroup(params, beside, places, where, axis, reshard, policy)


def _checked(p: Parameter, name: str, mesh: DeviceMesh, whole: bool) -> Beside | None:
    """Check a parameter.  If it is global already, return its present state: it is cut further."""
    if p.ndim == 0 and not whole:
        raise ArgumentError(
            f"fully_shard doesn't support scalar parameters. Change {name} to a 1D tensor with "
            f"numel equal to 1."
        )
    if p.grad is not None:
        raise ArgumentError(f"fully_shard: parameter {name} has a gradient; shard before backward")
    if not p.is_global:
        return None
    meta: Any = p._meta
    both = mesh._behind(meta.placement)
    if both is None or meta.has_partial:
        raise ArgumentError(
            f"fully_shard: parameter {name} is global already, on {p.placement!r} as {p.sbp}; "
            f"what tensor parallel modules have is cut further along another dimension of one "
            f'mesh: mesh=pair["data"] where they were made parallel on pair["model"]'
        )
    return Beside(meta.with_sbp(meta.sbp), both.flow_placement)


def _dim(cuts: Callable[[Parameter], object] | None, p: Parameter) -> int:
    cut = None if cuts is None else cuts(p)
    if cut is None:
        return 0
    if not isinstance(cut, Shard):
        raise ArgumentTypeError(f"shard_placement_fn gives a Shard or None, got {cut!r}")
    dim: int = cut.as_sbp(p.ndim).dim
    return dim


# public: distributed.fsdp
def fully_shard(
    module: Any,
    *,
    mesh: DeviceMesh | None = None,
    reshard_after_forward: bool | int | None = None,
    shard_placement_fn: Callable[[Parameter], Any] | None = None,
    mp_policy: MixedPrecisionPolicy | None = None,
    offload_policy: Any = None,
    ignored_params: Iterable[Parameter] | None = None,
) -> Any:
    """Cut a module's parameters among ranks.  Return the module, which is an `FSDPModule` then.

    Parameters of inner modules that are sharded already are left out.  So call it for the layers
    first and for the whole model last.  One exchange gathers the parameters of one call, and one
    averages their gradients.  All ranks have equal values in the beginning, and each trains on
    inputs of its own: gradients are the mean of the ranks'.  Optimizers, gradient clipping and
    state dicts see global tensors.

    module                 a module, or several that are used together
    mesh                   ranks in one dimension, all by default; of two dimensions, parameters are
                           cut along the second, and are the same along the first
    reshard_after_forward  True: gathered parameters are forgotten behind forward, and gathered
                           again in backward; False: they are kept; None: kept of the outermost
                           module alone.  A number counts as True: they are gathered among all ranks
    shard_placement_fn     of a parameter: the `Shard` by which it is cut, None for `Shard(0)`
    mp_policy              a `MixedPrecisionPolicy`
    offload_policy         is taken: the parameters of a mesh of CPUs lie in their memory
    ignored_params         parameters that stay as they are: each rank's own

    `parallelize_module` may have made parameters global on another dimension of the same mesh.
    They are cut further; their placement then has that dimension first.  While the module runs they
    have the layout of `parallelize_module`.

    ArgumentError for a module that is sharded already, a mesh of three dimensions, parameters that
    are global on other ranks, have gradients or are 0-d.  Zhao et al., "PyTorch FSDP", 2023.

    >>> from flowvm.distributed.fsdp import fully_shard
    >>> model = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 1))
    >>> for layer in (model[0], model[2], model):
    ...     _ = fully_shard(layer)
    >>> optimizer = flow.optim.SGD(model.parameters(), lr=0.1)
    >>> model(flow.ones(3, 2)).sum().backward()
    >>> optimizer.step()
    >>> model[0].weight.grad.placements
    (Shard(dim=0),)
    """
    several = isinstance(module, (list, tuple))
    modules = list(module) if several else [module]
    for one in modules:
        if not isinstance(one, Module):
            raise ArgumentTypeError(f"fully_shard: expected a Module, got {type(one).__name__}")
        if isinstance(one, FSDPModule):
            raise ArgumentError(f"fully_shard: {type(one).__name__} is sharded already")
    where = current_mesh() if mesh is None else mesh
    if where.ndim > 2:
        raise ArgumentError(
            f"fully_shard: a mesh has one dimension, or two, rows of ranks with the same; got "
            f"{where!r}"
        )
    if offload_policy is not None and not isinstance(offload_policy, OffloadPolicy):
        kind = type(offload_policy).__name__
        raise ArgumentTypeError(f"fully_shard: offload_policy is an OffloadPolicy, got {kind}")
    reshard = None if reshard_after_forward is None else bool(reshard_after_forward)
    policy = MixedPrecisionPolicy() if mp_policy is None else mp_policy
    group = grouped(
        modules, where, False, reshard, policy, ignored_params or (), shard_placement_fn
    )
    for one in modules:
        become(one, group)
    return modules if several else module
