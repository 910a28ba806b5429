"""Pipeline stages: `module.config.set_stage(i, placement)`.

A stage is a forward pre-hook of its module: global tensors that the module is called with are moved
to the stage's placement, eagerly and in graphs alike, and their gradients go back the same way.  A
graph asks how many micro-batches a rank may have in flight (`in_flight`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, ArgumentTypeError, CaptureError
from flowvm.meta.global_meta import GlobalMeta
from flowvm.meta.placements import placement, rank_and_size
from flowvm.nn.hooks import Hooks
from flowvm.ops.collectives.exchanges import TRAFFIC

CHECKPOINTED = "_checkpointed"  # in a module's own attributes, where graphs are to do that


class Stage:
    """The number of a stage, and where it is."""

    def __init__(self, number: int, where: placement) -> None:
        self.number, self.placement = number, where

    def __call__(self, module: object, args: object, kwargs: object) -> Any:
        """The hook: arguments on the stage's placement."""
        return self._moved(args), self._moved(kwargs)

    def _moved(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            meta = value._meta
            if not isinstance(meta, GlobalMeta) or meta.placement is self.placement:
                return value
            return value.to_global(placement=self.placement)
        if isinstance(value, dict):
            return {k: self._moved(v) for k, v in value.items()}
        if type(value) in (list, tuple):
            return type(value)(map(self._moved, value))
        return value

    def __deepcopy__(self, memo: object) -> Stage:
        return self

    def __repr__(self) -> str:
        return f"stage {self.number} on {self.placement!r}"


class ModuleConfig:
    """Settings of one module in graphs: `module.config`."""

    def __init__(self, module: Any) -> None:
        self._module = module

    @property
    def stage(self) -> Stage | None:
        """The module's stage: its `number` and `placement`; None where it has none."""
        hooks: Hooks | None = self._module._hooks
        pre_hooks = () if hooks is None else hooks.forward_pre.values()
        return next((hook for hook in pre_hooks if isinstance(hook, Stage)), None)

    @property
    def activation_checkpointing(self) -> bool:
        """True if graphs free the module's activations and compute them again in backward: set it
        before a graph's first call.

        >>> layer = nn.Linear(2, 2)
        >>> layer.config.activation_checkpointing = True
        >>> layer.config.activation_checkpointing
        True
        """
        return CHECKPOINTED in vars(self._module)

    @activation_checkpointing.setter
    def activation_checkpointing(self, mode: bool) -> None:
        if mode:
            vars(self._module)[CHECKPOINTED] = True
        else:
            vars(self._module).pop(CHECKPOINTED, None)

    def set_stage(self, stage_id: int, placement: Any = None) -> None:
        """Make the module a pipeline stage, or a part of one: numbers count from 0, in the order in
        which data passes.  Global tensors that it is called with are moved to `placement`, by
        default that of its parameters, which have to be there.

        In a graph with `config.set_gradient_accumulation_steps(n)`, a rank of stage i of p may have
        p - i micro-batches in flight.

        ArgumentTypeError unless the number is an int and `placement` a flow.placement;
        ArgumentError for a negative number, or a parameter that is elsewhere.

        >>> layer = nn.Linear(2, 2).to_global(flow.placement("cpu", [0]), flow.sbp.broadcast)
        >>> layer.config.set_stage(0)
        >>> layer.config.stage
        stage 0 on flow.placement(type="cpu", ranks=[0])
        """
        if isinstance(stage_id, bool) or not isinstance(stage_id, int):
            raise ArgumentTypeError(f"set_stage: stage_id is an int, got {stage_id!r}")
        if stage_id < 0:
            raise ArgumentError(f"set_stage: stages count from 0, got {stage_id}")
        where = self._place(placement)
        for key, hook in list(self._module._own_hooks().forward_pre.items()):
            if isinstance(hook, Stage):
                del self._module._hooks.forward_pre[key]
        stage = Stage(stage_id, where)
        self._module.register_forward_pre_hook(stage, prepend=True, with_kwargs=True)

    def _place(self, where: Any) -> placement:
        name = type(self._module).__name__
        if where is not None and not isinstance(where, placement):
            raise ArgumentTypeError(f"set_stage: placement is a flow.placement, got {where!r}")
        for path, p in self._module.named_parameters():
            meta: object = p._meta
            if not isinstance(meta, GlobalMeta):
                raise ArgumentError(
                    f"set_stage: parameter {path} of {name} is local; make the module global "
                    f"first, by module.to_global(placement, flow.sbp.broadcast)"
                )
            where = meta.placement if where is None else where
            if meta.placement is not where:
                raise ArgumentError(
                    f"set_stage: parameter {path} of {name} is on {meta.placement!r}, and the "
                    f"stage on {where!r}; move it by to_global, or give the stage the other one"
                )
        if where is None:
            raise ArgumentError(f"set_stage: {name} has no parameters that say where: placement=")
        place: placement = where
        return place


class Configured:
    """`Module.config`.  A module's own attribute of that name comes first."""

    def __get__(self, module: object, owner: object = None) -> Any:
        return self if module is None else ModuleConfig(module)


def in_flight(modules: Iterable[object], name: str, every: int = 0) -> int:
    """Return the number of micro-batches that this rank may have in flight, by the stages of a
    graph's modules; where there are stages, `every` if it is not 0.

    CaptureError if a stage is left out.
    """
    stages = [stage for m in modules if (stage := ModuleConfig(m).stage) is not None]
    numbers = {stage.number for stage in stages}
    count = max(numbers, default=0) + 1
    missing = sorted({*range(count)} - numbers) if stages else []
    if missing:
        raise CaptureError(
            f"{name}: stages {sorted(numbers)} are set, and {missing} are not: stages count from 0 "
            f"without a gap, in the order in which data passes"
        )
    if stages and every:
        return every
    own = rank_and_size()[0]
    mine = [stage.number for stage in stages if own in stage.placement.flat]
    return count - min(mine, default=count - 1)


def stays_in_stage(nodes: Iterable[Any], modules: Iterable[Any]) -> bool:
    """Return True if collectives of repeated nodes stay among ranks of this rank's one stage: then
    all members have as many micro-batches in flight.
    """
    stages = [stage for m in modules if (stage := ModuleConfig(m).stage) is not None]
    own = rank_and_size()[0]
    mine = {stage.number: stage.placement.flat for stage in stages if own in stage.placement.flat}
    if len(mine) != 1:
        return False
    ((number, ranks),) = mine.items()
    alike = all(set(s.placement.flat) == set(ranks) for s in stages if s.number == number)
    alone = not any(set(s.placement.flat) & set(ranks) for s in stages if s.number != number)
    return (
        alike
        and alone
        and all(
            set(node.attrs[-1]) <= set(ranks)
            for node in nodes
            if node.repeat > 1
            and "order" in node.operator.signature.inputs
            and not ((traffic := TRAFFIC.of(node.operator)) and traffic.paired)
        )
    )
