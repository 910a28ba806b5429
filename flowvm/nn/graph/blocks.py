"""`module.to(nn.graph.GraphModule)`: what a graph is told of one of its modules, as OneFlow has it.

Modules of a graph are the user's own here, so such a block is a view of one: it says and sets what
`module.config` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flowvm.nn.parameter import Parameter
from flowvm.nn.stages import ModuleConfig

if TYPE_CHECKING:
    from flowvm.meta.placements import placement


class GraphModule:
    """A module as a graph's settings see it; `to_module()`, or `.to(nn.Module)`, is the module.

    >>> layer = nn.Linear(2, 2)
    >>> layer.to(nn.graph.GraphModule).activation_checkpointing = True
    >>> layer.config.activation_checkpointing
    True
    """

    type = "MODULE"

    def __init__(self, module: Any) -> None:
        self._module = module

    @classmethod
    def of_module(cls, module: object) -> GraphModule:
        """The block of a module: what `module.to(GraphModule)` asks."""
        return cls(module)

    @property
    def origin(self) -> Any:
        """The module."""
        return self._module

    @property
    def activation_checkpointing(self) -> bool:
        """True if a graph computes the module's activations again in backward."""
        return ModuleConfig(self._module).activation_checkpointing

    @activation_checkpointing.setter
    def activation_checkpointing(self, mode: bool) -> None:
        ModuleConfig(self._module).activation_checkpointing = mode

    @property
    def stage_id(self) -> int | None:
        """The number of the module's pipeline stage; None without one."""
        stage = ModuleConfig(self._module).stage
        return None if stage is None else stage.number

    @stage_id.setter
    def stage_id(self, number: int) -> None:
        ModuleConfig(self._module).set_stage(number)

    @property
    def stage_placement(self) -> placement | None:
        """The placement of the module's pipeline stage; None without one."""
        stage = ModuleConfig(self._module).stage
        return None if stage is None else stage.placement

    def set_stage(self, stage_id: int, placement: object = None) -> None:
        """See `ModuleConfig.set_stage`."""
        ModuleConfig(self._module).set_stage(stage_id, placement)

    def to(self, kind: Any) -> Any:
        """The module for `nn.Module`, this block for GraphModule."""
        return self if isinstance(self, kind) else self._module.to(kind)

    def __repr__(self) -> str:
        return f"GraphModule({type(self._module).__name__})"


class GraphTensor:
    """A parameter or buffer as a graph sees it: `tensor.to(nn.graph.GraphTensor)`.

    >>> nn.Linear(2, 2).weight.to(nn.graph.GraphTensor).type
    'PARAMETER'
    """

    def __init__(self, tensor: object) -> None:
        self._tensor = tensor

    @classmethod
    def of_tensor(cls, tensor: object) -> GraphTensor:
        """The block of a tensor: what `tensor.to(GraphTensor)` asks."""
        return cls(tensor)

    @property
    def origin(self) -> Any:
        """The tensor."""
        return self._tensor

    @property
    def type(self) -> str:
        """ "PARAMETER" or "BUFFER"."""
        return "PARAMETER" if isinstance(self._tensor, Parameter) else "BUFFER"
