"""`FullyShardedDataParallel`: a module around a module whose parameters lie cut among ranks; the
older of PyTorch's two ways to say so.  What it does is `flowvm.distributed.fsdp.groups`.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NoReturn

from flowvm.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    loadable,
)
from flowvm.distributed.device_mesh import DeviceMesh, current_mesh
from flowvm.distributed.fsdp.cuts import as_dtype
from flowvm.distributed.fsdp.groups import ParameterGroup, outermost
from flowvm.distributed.fsdp.policies import (
    BackwardPrefetch,
    CPUOffload,
    FullOptimStateDictConfig,
    MixedPrecision,
    MixedPrecisionPolicy,
    ShardingStrategy,
    StateDictConfig,
    StateDictSettings,
    StateDictType,
)
from flowvm.distributed.fsdp.sharding import grouped
from flowvm.distributed.fsdp.states import INNER, rename_loaded, rename_saved, whole_params
from flowvm.distributed.fsdp.wrap import wrapped_below
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, ArgumentTypeError
from flowvm.files.shards import whole_of
from flowvm.nn.module import Module
from flowvm.nn.utils.clip_grad import clip_grad_norm_
from flowvm.ops.collectives.collectives import broadcast_
from flowvm.ops.collectives.texts import broadcast_bytes
from flowvm.optim.optimizer import Optimizer
from flowvm.ranks.world import Group, rank

_RESHARDS = (ShardingStrategy.FULL_SHARD, ShardingStrategy.HYBRID_SHARD)
_HYBRID = (ShardingStrategy.HYBRID_SHARD, ShardingStrategy._HYBRID_SHARD_ZERO2)


# public: distributed.fsdp
class FullyShardedDataParallel(Module):
    """Calls `module` with parameters that lie cut among ranks between uses, as `fully_shard` does;
    `backward` leaves the mean of the ranks' gradients, cut likewise.

    process_group        a group of `flow.distributed.new_group`, None for all ranks
    device_mesh          a mesh in its place; of two dimensions for HYBRID_SHARD
    sharding_strategy    a `ShardingStrategy`, FULL_SHARD by default
    auto_wrap_policy     which modules below are wrapped on their own: a policy of `fsdp.wrap`
    mixed_precision      a `MixedPrecision`
    ignored_modules, ignored_states   modules, or parameters, that each rank keeps as its own
    sync_module_states   parameters and buffers become those of the first rank now
    param_init_fn        called with each module below that has parameters on the "meta" device

    The other arguments are taken: flowvm has one device a rank, issues exchanges ahead of what
    computes, and its parameters are their own.  ArgumentError for arguments that do not fit.

    >>> from flowvm.distributed.fsdp import FullyShardedDataParallel
    >>> model = FullyShardedDataParallel(nn.Linear(2, 1))
    >>> optimizer = flow.optim.SGD(model.parameters(), lr=0.1)
    >>> model(flow.ones(3, 2)).sum().backward()
    >>> optimizer.step()
    >>> {name: x.is_global for name, x in model.state_dict().items()}
    {'weight': False, 'bias': False}
    """

    _fsdp_group: ParameterGroup

    def __init__(
        self,
        module: Module,
        process_group: object = None,
        sharding_strategy: ShardingStrategy | None = None,
        cpu_offload: CPUOffload | None = None,
        auto_wrap_policy: Callable[..., bool] | None = None,
        backward_prefetch: BackwardPrefetch | None = BackwardPrefetch.BACKWARD_PRE,
        mixed_precision: MixedPrecision | None = None,
        ignored_modules: Iterable[Module] | None = None,
        param_init_fn: Callable[[Module], None] | None = None,
        device_id: object = None,
        sync_module_states: bool = False,
        forward_prefetch: bool = False,
        limit_all_gathers: bool = True,
        use_orig_params: bool = False,
        ignored_states: Iterable[object] | None = None,
        device_mesh: DeviceMesh | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(module, Module):
            raise ArgumentTypeError(
                f"FullyShardedDataParallel: expected a Module, got {type(module).__name__}"
            )
        strategy = ShardingStrategy.FULL_SHARD if sharding_strategy is None else sharding_strategy
        mesh = _mesh(process_group, device_mesh, strategy)
        if param_init_fn is not None:
            for inner in module.modules():
                if any(p is not None and p.is_meta for p in inner._parameters.values()):
                    param_init_fn(inner)
        ignored = [*(ignored_modules or ()), *(ignored_states or ())]
        left_out = {id(m) for m in ignored if isinstance(m, Module)}
        params = [p for m in ignored for p in (m.parameters() if isinstance(m, Module) else (m,))]
        if sync_module_states:
            _from_first(module, mesh, {id(p) for p in params})
        if auto_wrap_policy is not None:
            wrapped_below(
                module, auto_wrap_policy, left_out,
                partial(
                    _again, process_group=process_group, sharding_strategy=strategy,
                    mixed_precision=mixed_precision, ignored_states=ignored,
                    device_mesh=device_mesh,
                ),
            )  # fmt: skip
        self.mixed_precision = MixedPrecision() if mixed_precision is None else mixed_precision
        precision = self.mixed_precision
        if precision.buffer_dtype is not None:
            for inner in module.modules():
                for name, buffer in inner._buffers.items():
                    if buffer is not None and buffer.dtype.is_floating_point:
                        inner._put("_buffers", name, buffer.to(precision.buffer_dtype))
        self.sharding_strategy = strategy
        policy = MixedPrecisionPolicy(
            precision.param_dtype, precision.reduce_dtype, None, precision.cast_forward_inputs
        )
        whole = strategy is ShardingStrategy.NO_SHARD
        group = grouped([module], mesh, whole, strategy in _RESHARDS, policy, params)
        self._fsdp_wrapped_module = module
        object.__setattr__(self, "_fsdp_group", group)
        self._state_settings = StateDictSettings(StateDictType.FULL_STATE_DICT, None, None)
        self.register_state_dict_post_hook(rename_saved)
        self.register_load_state_dict_pre_hook(rename_loaded)

    @property
    def module(self) -> Module:
        """The wrapped module."""
        return self._fsdp_wrapped_module

    def forward(self, *args: object, **kwargs: object) -> Any:
        precision = self.mixed_precision
        if precision.param_dtype is not None and precision.cast_root_forward_inputs and outermost():
            args, kwargs = as_dtype((args, kwargs), precision.param_dtype)
        return self._fsdp_group.call(self, self._fsdp_wrapped_module, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        inner = self.__dict__.get("_modules", {}).get(INNER)
        return super().__getattr__(name) if inner is None else getattr(inner, name)  # type: ignore[misc]

    def __getitem__(self, key: int) -> Any:
        return self._fsdp_wrapped_module[key]  # type: ignore[index]

    def __deepcopy__(self, memo: object) -> NoReturn:
        raise ArgumentError(
            "a FullyShardedDataParallel is not copied; copy the module before it is wrapped"
        )

    def _apply(
        self, fn: Callable[[Tensor], Tensor], recurse: bool = True
    ) -> FullyShardedDataParallel:
        for one in self.fsdp_modules(self):
            one._fsdp_group.reshard()
        return super()._apply(fn, recurse)

    @staticmethod
    def fsdp_modules(module: Module, root_only: bool = False) -> list[FullyShardedDataParallel]:
        """Return the modules of this class in `module`, itself too.  `root_only`: only modules
        inside no other one.
        """
        modules = [m for m in module.modules() if isinstance(m, FullyShardedDataParallel)]
        if root_only:
            inner = {id(m) for one in modules for m in one.module.modules()}
            modules = [m for m in modules if id(m) not in inner]
        return modules

    def check_is_root(self) -> bool:
        """Return True if no other such module's forward runs around this one now."""
        return outermost()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Add up whole gradients on each rank inside the with statement.  The first backward after
        it averages them too.
        """
        groups = [one._fsdp_group for one in self.fsdp_modules(self)]
        before = [group.syncs for group in groups]
        for group in groups:
            group.syncs = False
        try:
            yield
        finally:
            for group, value in zip(groups, before, strict=True):
                group.syncs = value

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> Tensor:
        """Scale all gradients so that their norm, of all ranks', is at most `max_norm`; the norm
        before, a local tensor.
        """
        return whole_of(clip_grad_norm_(self.parameters(), max_norm, norm_type))

    @staticmethod
    @contextmanager
    def summon_full_params(
        module: Module,
        recurse: bool = True,
        writeback: bool = True,
        rank0_only: bool = False,
        offload_to_cpu: bool = False,
        with_grads: bool = False,
    ) -> Iterator[None]:
        """Make parameters whole local ones inside the with statement, in `parameters()` too.

        writeback    changes in place are kept: each rank's of its part
        rank0_only   whole on the first rank alone; then without writeback
        with_grads   `.grad` is whole, too

        `offload_to_cpu` is taken: they lie there.
        """
        wrapped = FullyShardedDataParallel.fsdp_modules(module)
        groups = [m._fsdp_group for m in wrapped if recurse or m is module]
        with whole_params(groups, writeback, rank0_only, with_grads):
            yield

    # --- state dicts --------------------------------------------------------------------------

    @staticmethod
    def set_state_dict_type(
        module: Module,
        state_dict_type: StateDictType,
        state_dict_config: StateDictConfig | None = None,
        optim_state_dict_config: object = None,
    ) -> StateDictSettings:
        """Set the kind of state dicts of `module` and of its optimizers.  Return the settings
        before.

        ArgumentError for LOCAL_STATE_DICT: a part means something beside where it lies alone.
        """
        if state_dict_type is StateDictType.LOCAL_STATE_DICT:
            raise ArgumentError(
                "LOCAL_STATE_DICT: flowvm has no flattened parameters; take SHARDED_STATE_DICT"
            )
        wrapped = FullyShardedDataParallel.fsdp_modules(module)
        before = FullyShardedDataParallel.get_state_dict_type(module)
        now = StateDictSettings(state_dict_type, state_dict_config, optim_state_dict_config)
        for one in wrapped:
            one._state_settings = now
        return before

    @staticmethod
    def get_state_dict_type(module: Module) -> StateDictSettings:
        """Return the settings of `set_state_dict_type`; by default, whole tensors."""
        for one in FullyShardedDataParallel.fsdp_modules(module):
            return one._state_settings
        return StateDictSettings(StateDictType.FULL_STATE_DICT, None, None)

    @staticmethod
    @contextmanager
    def state_dict_type(
        module: Module,
        state_dict_type: StateDictType,
        state_dict_config: StateDictConfig | None = None,
        optim_state_dict_config: object = None,
    ) -> Iterator[None]:
        """Apply `set_state_dict_type` inside the with statement."""
        one = FullyShardedDataParallel
        before = one.set_state_dict_type(
            module, state_dict_type, state_dict_config, optim_state_dict_config
        )
        try:
            yield
        finally:
            for wrapped in one.fsdp_modules(module):
                wrapped._state_settings = before

    @staticmethod
    def optim_state_dict(
        model: Module,
        optim: Optimizer,
        optim_state_dict: dict[str, Any] | None = None,
        group: object = None,
    ) -> dict[str, Any]:
        """The state of an optimizer of the model's parameters by their names, whole or cut as
        `set_state_dict_type` says.
        """
        settings = FullyShardedDataParallel.get_state_dict_type(model)
        whole = settings.state_dict_type is StateDictType.FULL_STATE_DICT
        config = settings.optim_state_dict_config
        state_dict = get_optimizer_state_dict(
            model, optim, options=StateDictOptions(full_state_dict=whole)
        )
        return {} if getattr(config, "rank0_only", False) and rank() else state_dict

    @staticmethod
    def optim_state_dict_to_load(
        model: Module,
        optim: Optimizer,
        optim_state_dict: dict[str, Any],
        is_named_optimizer: bool = False,
        load_directly: bool = False,
        group: object = None,
    ) -> dict[str, Any]:
        """Return the argument of `optim.load_state_dict` for a result of `optim_state_dict`, which
        all ranks have.  `load_directly` loads it, too.
        """
        state_dict = loadable(model, optim, optim_state_dict, StateDictOptions())
        if load_directly:
            optim.load_state_dict(state_dict)
        return state_dict

    @staticmethod
    def full_optim_state_dict(
        model: Module,
        optim: Optimizer,
        optim_input: object = None,
        rank0_only: bool = True,
        group: object = None,
    ) -> dict[str, Any]:
        """The state of an optimizer by names of parameters, whole; on the first rank alone with
        `rank0_only`.
        """
        config = FullOptimStateDictConfig(rank0_only=rank0_only)
        kind = StateDictType.FULL_STATE_DICT
        with FullyShardedDataParallel.state_dict_type(model, kind, None, config):
            return FullyShardedDataParallel.optim_state_dict(model, optim)

    @staticmethod
    def scatter_full_optim_state_dict(
        full_optim_state_dict: dict[str, Any] | None,
        model: Module,
        optim_input: object = None,
        optim: Optimizer | None = None,
        group: object = None,
    ) -> dict[str, Any]:
        """The argument of `optim.load_state_dict` for what `full_optim_state_dict` gave the first
        rank.
        """
        if optim is None:
            raise ArgumentError("scatter_full_optim_state_dict: the optimizer is needed: optim=")
        state_dict = pickle.loads(broadcast_bytes(pickle.dumps(full_optim_state_dict), 0))
        return FullyShardedDataParallel.optim_state_dict_to_load(model, optim, state_dict)


def _again(module: Module, **arguments: Any) -> Module:
    return FullyShardedDataParallel(module, **arguments)


def _mesh(group: object, mesh: DeviceMesh | None, strategy: ShardingStrategy) -> DeviceMesh:
    if group is not None and mesh is not None:
        raise ArgumentError("FullyShardedDataParallel: process_group or device_mesh, not both")
    if mesh is None:
        if group is None:
            mesh = current_mesh()
        elif isinstance(group, Group):
            mesh = DeviceMesh.from_group(group, "cpu")
        else:
            raise ArgumentTypeError(
                f"FullyShardedDataParallel: process_group is a group, got {group!r}; of several, "
                f"make a mesh: device_mesh="
            )
    if mesh.ndim != 1 + (strategy in _HYBRID):
        raise ArgumentError(
            f"FullyShardedDataParallel: {strategy.name} wants a device_mesh of "
            f"{1 + (strategy in _HYBRID)} dimensions, got {mesh!r}"
        )
    return mesh


def _from_first(module: Module, mesh: DeviceMesh, ignored: set[int]) -> None:
    ranks = mesh.flow_placement.flat
    group = Group.of(sorted(ranks))
    for t in (*module.parameters(), *module.buffers()):
        if id(t) not in ignored and not t.is_global:
            broadcast_(t.detach(), group.ranks[0], group)
