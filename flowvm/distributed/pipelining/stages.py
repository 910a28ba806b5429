"""`PipelineStage`: a part of a model on one rank, and the tensors that pass between parts.

Shapes are not known before: with the first step each message has a header in front of it.  Later
steps send the tensors alone, and a sender whose shapes have changed says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from flowvm.autograd.backward import backward
from flowvm.eager.modes import recording
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, ShapeError
from flowvm.meta.device import cpu
from flowvm.meta.dtype import ALL_DTYPES, int64
from flowvm.meta.meta import TensorMeta
from flowvm.nn.module import Module
from flowvm.ops.collectives.collectives import recv, send
from flowvm.ops.shapes.create import tensor as new_tensor
from flowvm.ops.shapes.fill import zeros_like
from flowvm.ranks.world import Group

if TYPE_CHECKING:
    from flowvm.meta.device import Device

HEADER = 64  # numbers: how many tensors, then of each a dtype, if it has a gradient, a shape


def _header(tensors: Sequence[Tensor], what: str) -> Tensor:
    numbers = [len(tensors)]
    for t in tensors:
        numbers += [ALL_DTYPES.index(t.dtype), int(t.requires_grad), t.ndim, *t.shape]
    if len(numbers) > HEADER:
        raise ArgumentError(f"{what}: {len(tensors)} tensors are too many for one message")
    return new_tensor(numbers + [0] * (HEADER - len(numbers)), dtype=int64)


def _metas(header: Tensor, device: Device) -> list[tuple[TensorMeta, bool]]:
    numbers = iter(header.tolist())
    metas = []
    for _ in range(next(numbers)):
        dtype, needs_grad, ndim = ALL_DTYPES[next(numbers)], bool(next(numbers)), next(numbers)
        shape = tuple(next(numbers) for _ in range(ndim))
        metas.append((TensorMeta.of(shape, dtype, device), needs_grad))
    return metas


def _tensors(value: object, what: str) -> tuple[Tensor, ...]:
    listed = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    if not all(isinstance(t, Tensor) for t in listed):
        kinds = ", ".join(type(t).__name__ for t in listed)
        raise ArgumentError(f"{what} gives tensors to the next stage, got {kinds}")
    return listed


# public: distributed.pipelining
class PipelineStage:
    """A part of a model on this rank: stage k of a pipeline is on rank k of the group, and on from
    there by turns where there are more stages than ranks.

    submodule     takes what the stage before gives, a tensor or several, and gives likewise
    stage_index   the number of the stage, from 0
    num_stages    how many there are, a multiple of the ranks
    device        of what the stage receives
    group         the ranks, None for all

    Shapes are found by the first step, so `input_args` and `output_args` are taken and not needed.
    ArgumentError for a number of stages that is no multiple of the ranks, or a stage of another
    rank.

    >>> from flowvm.distributed.pipelining import PipelineStage
    >>> PipelineStage(nn.Linear(2, 2), 0, 1, "cpu").is_last
    True
    """

    def __init__(
        self,
        submodule: Module,
        stage_index: int,
        num_stages: int,
        device: object = None,
        input_args: object = None,
        output_args: object = None,
        group: Any = None,
        dw_builder: object = None,
    ) -> None:
        if not isinstance(submodule, Module):
            raise ArgumentError(f"PipelineStage: submodule is a Module, got {submodule!r}")
        members = Group.of(group)
        if num_stages < 1 or num_stages % members.size:
            raise ArgumentError(
                f"PipelineStage: {num_stages} stages are no multiple of {members.size} ranks"
            )
        if not 0 <= stage_index < num_stages or stage_index % members.size != members.rank:
            raise ArgumentError(
                f"PipelineStage: stage {stage_index} of {num_stages} is not on this rank, which is "
                f"{members.rank} of {members.size}; it has the stages k with k % {members.size} == "
                f"{members.rank}"
            )
        self.submod, self.stage_index, self.num_stages = submodule, stage_index, num_stages
        self.device, self.group = device, members
        self._inputs: dict[int, tuple[Tensor, ...]] = {}
        self._outputs: dict[int, tuple[Tensor, ...]] = {}

    @property
    def is_first(self) -> bool:
        """True if the stage gets the step's arguments."""
        return self.stage_index == 0

    @property
    def is_last(self) -> bool:
        """True if the stage's outputs are the step's."""
        return self.stage_index == self.num_stages - 1

    @property
    def name(self) -> str:
        """The name in errors."""
        return f"stage {self.stage_index} of {self.num_stages}"

    def forward(self, number: int, args: Sequence[Any], kwargs: dict[str, Any], keeps: bool) -> Any:
        """The outputs of a micro-batch.  `keeps`: backward will ask for them."""
        inputs = tuple(args)
        if not self.is_first:
            inputs = tuple(t.detach().requires_grad_(keeps and t.requires_grad) for t in args)
        with recording(keeps):
            out = self.submod(*inputs, **kwargs)
        if keeps:
            self._inputs[number] = inputs
            self._outputs[number] = () if self.is_last else _tensors(out, self.name)
        return out

    def backward(self, number: int, loss: Tensor | None, grads: Sequence[Tensor]) -> list[Tensor]:
        """Go backward over a micro-batch, from its loss or from the gradients that the next stage
        sends.  Return the gradients for the stage before.
        """
        inputs, outputs = self._inputs.pop(number), self._outputs.pop(number)
        if loss is not None:
            backward(loss)
        else:
            targets = [t for t in outputs if t.requires_grad]
            if targets:
                backward(targets, list(grads))
        if self.is_first:
            return []
        return [
            zeros_like(t) if t.grad is None else t.grad.detach() for t in inputs if t.requires_grad
        ]


class Mail:
    """The messages of this rank with the others, in the order in which those send them."""

    def __init__(self, group: Group, device: Any) -> None:
        self.group = group
        self.device = cpu if device is None else new_tensor(0, device=device)._meta.device
        self.sent: dict[Any, list[TensorMeta]] = {}  # by message
        self.known: dict[Any, list[tuple[TensorMeta, bool]]] = {}
        self.waiting: dict[int, list[Any]] = {}  # by place: what comes from there, in its order
        self.arrived: dict[Any, list[Tensor]] = {}

    def expect(self, comes: dict[int, list[Any]]) -> None:
        """Begin a step in which these messages come, of each rank in its order."""
        self.waiting, self.arrived = {k: list(v) for k, v in comes.items()}, {}

    def send(self, place: int, message: Any, tensors: Sequence[Tensor]) -> None:
        """Send the tensors of a message, or lay them aside where they stay on this rank."""
        if place == self.group.rank:
            self.arrived[message] = list(tensors)
            return
        to, metas = self.group.ranks[place], [t._meta.dense() for t in tensors]
        if message not in self.sent:
            self.sent[message] = metas
            send(_header(tensors, f"message {message}"), to, self.group)
        elif self.sent[message] != metas:
            raise ShapeError(
                f"stage {message[1]} gives {metas}, and gave {self.sent[message]} before: a "
                f"schedule is for micro-batches of the same shapes; make another one"
            )
        for t in tensors:
            send(t.detach().contiguous(), to, self.group)

    def receive(self, place: int, message: Any) -> list[Tensor]:
        """The tensors of a message; those in front of it come first."""
        while message not in self.arrived:
            following = self.waiting[place].pop(0)
            source = self.group.ranks[place]
            if following not in self.known:
                header = recv(TensorMeta.of((HEADER,), int64, cpu), source, self.group)
                self.known[following] = _metas(header, self.device)
            tensors = []
            for meta, needs_grad in self.known[following]:
                t = recv(meta, source, self.group)
                tensors.append(t.requires_grad_() if needs_grad else t)
            self.arrived[following] = tensors
        return self.arrived.pop(message)
