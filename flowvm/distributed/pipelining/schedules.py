"""Schedules: in which order a rank goes forward and backward over micro-batches.

A schedule is a number of credits, as the registers of a Plan are: a rank goes forward while it has
one, and gets it back when it goes backward.  With a credit for each micro-batch it goes forward
over all first (GPipe); with as many as stages from there on, it goes forward and backward by turns
(1F1B); a rank with several stages has credits for them together (interleaved).  All ranks know the
order of each, so messages are received in the order in which they are sent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from flowvm.distributed.pipelining.stages import Mail, PipelineStage
from flowvm.eager.modes import recording
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError
from flowvm.ops.shapes.join import cat
from flowvm.ops.shapes.split import tensor_split

if TYPE_CHECKING:
    from collections.abc import Mapping


class Action(NamedTuple):
    """One micro-batch in one stage, forward ("F") or backward ("B")."""

    kind: str
    stage: int
    number: int


# public: distributed.pipelining
class TensorChunkSpec:
    """The dimension along which an argument is cut into micro-batches.

    >>> from flowvm.distributed.pipelining import TensorChunkSpec
    >>> TensorChunkSpec(1).split_dim
    1
    """

    def __init__(self, split_dim: int) -> None:
        self.split_dim = split_dim


def _turns(credits: int, forward: Sequence[Action], back: Sequence[Action]) -> list[Action]:
    """Go forward while there are credits, then backward and forward by turns."""
    order, ahead = list(forward[:credits]), list(forward[credits:])
    for action in back:
        order.append(action)
        if ahead:
            order.append(ahead.pop(0))
    return order


class _Schedule:
    """The base of schedules."""

    def __init__(
        self,
        stages: Sequence[PipelineStage],
        n_microbatches: int,
        loss_fn: Callable[..., Tensor] | None = None,
        args_chunk_spec: Sequence[object] | None = None,
        kwargs_chunk_spec: Mapping[str, object] | None = None,
        output_merge_spec: object = None,
        scale_grads: bool = True,
    ) -> None:
        name = type(self).__name__
        if not stages or not all(isinstance(s, PipelineStage) for s in stages):
            raise ArgumentError(f"{name}: stages are PipelineStages, got {stages!r}")
        if isinstance(n_microbatches, bool) or not isinstance(n_microbatches, int):
            raise ArgumentError(f"{name}: n_microbatches is an int, got {n_microbatches!r}")
        if n_microbatches < 1:
            raise ArgumentError(f"{name}: n_microbatches is at least 1, got {n_microbatches}")
        first = stages[0]
        self.count, self.group = first.num_stages, first.group
        self.each = self.count // self.group.size
        self.stages = {s.stage_index: s for s in stages}
        expected = set(range(self.group.rank, self.count, self.group.size))
        if set(self.stages) != expected:
            raise ArgumentError(
                f"{name}: this rank has the stages {sorted(expected)} of {self.count}, got "
                f"{sorted(self.stages)}"
            )
        self.n, self.loss, self.scales = n_microbatches, loss_fn, scale_grads
        self.args_spec, self.kwargs_spec = args_chunk_spec, kwargs_chunk_spec or {}
        self.merge = output_merge_spec
        self.check()
        self.orders = [self.order(place) for place in range(self.group.size)]
        self.mail = {back: Mail(self.group, first.device) for back in (True, False)}

    def check(self) -> None:
        """Raise ArgumentError where stages and micro-batches do not fit the schedule."""
        if self.each != 1:
            raise ArgumentError(
                f"{type(self).__name__}: one stage on each rank, got {self.count} stages on "
                f"{self.group.size}; ScheduleInterleaved1F1B takes more"
            )

    def credits(self, place: int) -> int:
        """Micro-batches that a rank has gone forward over and not backward, at most."""
        raise NotImplementedError

    def order(self, place: int) -> list[Action]:
        """Return the steps of a rank, in their order."""
        forward = [Action("F", place, k) for k in range(self.n)]
        back = [Action("B", place, k) for k in range(self.n)]
        return _turns(min(self.credits(place), self.n), forward, back)

    def _comes(self, trains: bool) -> dict[int, list[Action]]:
        """Messages for this rank, by the rank that sends them, in its order: actions whose result
        a stage here wants.
        """
        own, size, comes = self.group.rank, self.group.size, {}
        for place, order in enumerate(self.orders):
            comes[place] = [
                a for a in order
                if (to := a.stage + (1 if a.kind == "F" else -1)) % size == own
                and 0 <= to < self.count and (trains or a.kind == "F")
            ]  # fmt: skip
        return comes

    # --- a step -------------------------------------------------------------------------------

    def step(
        self,
        *args: Any,
        target: Any = None,
        losses: list[Tensor] | None = None,
        return_outputs: bool = True,
        loss_kwargs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Go over a batch: forward, and backward if there is a loss.  Every rank calls it.

        args    of the first stage, on its rank; kwargs go to the stages here
        target  the second argument of the loss, on the rank of the last stage
        losses  a list that becomes the losses of the micro-batches, on that rank

        Return the last stage's outputs on its rank, None on the others.  Gradients are those of the
        mean over micro-batches, with `scale_grads=False` of the sum.
        """
        return self._run(args, kwargs, target, losses, return_outputs, loss_kwargs or {}, True)

    def eval(
        self,
        *args: object,
        target: object = None,
        losses: list[Tensor] | None = None,
        **kwargs: object,
    ) -> Any:
        """Go forward alone over a batch, without gradients."""
        return self._run(args, kwargs, target, losses, True, {}, False)

    def _run(
        self,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        target: object,
        losses: list[Tensor] | None,
        returns: bool,
        loss_kwargs: dict[str, object],
        trains: bool,
    ) -> Any:
        trains = trains and self.loss is not None
        first, last = 0 in self.stages, self.count - 1 in self.stages
        name = type(self).__name__
        if bool(args) != first and self.count > 1:
            raise ArgumentError(
                f"{name}: arguments are given on the rank of the first stage, and there alone; "
                f"this rank has the stages {sorted(self.stages)} and got {len(args)} arguments"
            )
        if last and self.loss is not None and trains and target is None:
            raise ArgumentError(f"{name}: the rank of the last stage needs target=")
        batches = self._cut(args, kwargs)
        targets = [None] * self.n if target is None else self._parts(target, 0, "target")
        mail = self.mail[trains]
        mail.expect(self._comes(trains))
        outputs: dict[int, Any] = {}
        by_number: dict[int, Tensor] = {}
        for action in self.orders[self.group.rank]:
            kind, number, stage = action.kind, action.number, self.stages[action.stage]
            if kind == "F":
                arguments, named = batches[number]
                if not stage.is_first:
                    source = Action("F", action.stage - 1, number)
                    arguments = tuple(mail.receive(self._place(action.stage - 1), source))
                out = stage.forward(number, arguments, named, trains)
                if not stage.is_last:
                    parts = tuple(out) if isinstance(out, (tuple, list)) else (out,)
                    mail.send(self._place(action.stage + 1), action, parts)
                    continue
                outputs[number] = out
                if self.loss is not None and target is not None:
                    with recording(trains):
                        by_number[number] = self.loss(out, targets[number], **loss_kwargs)
            elif trains:
                loss, grads = None, []
                if stage.is_last:
                    loss = by_number[number] / self.n if self.scales else by_number[number]
                else:
                    source = Action("B", action.stage + 1, number)
                    grads = mail.receive(self._place(action.stage + 1), source)
                back = stage.backward(number, loss, grads)
                if not stage.is_first:
                    mail.send(self._place(action.stage - 1), action, back)
        if losses is not None and last:
            losses[:] = [by_number[k].detach() for k in sorted(by_number)]
        return self._merged([outputs[k] for k in range(self.n)]) if last and returns else None

    def _place(self, stage: int) -> int:
        return stage % self.group.size

    # --- micro-batches ------------------------------------------------------------------------

    def _parts(self, value: Any, dim: Any, what: str) -> list[Any]:
        if not isinstance(value, Tensor):
            return [value] * self.n
        dim = getattr(dim, "split_dim", dim)
        rows = value.shape[dim] if value.ndim else 0
        if rows < self.n:
            raise ArgumentError(
                f"{type(self).__name__}: {what} of shape {tuple(value.shape)} has {rows} rows for "
                f"{self.n} micro-batches"
            )
        return list(tensor_split(value, self.n, dim))

    def _cut(
        self, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> list[tuple[tuple[object, ...], dict[str, object]]]:
        dims = [0] * len(args) if self.args_spec is None else list(self.args_spec)
        if len(dims) != len(args):
            raise ArgumentError(
                f"{type(self).__name__}: args_chunk_spec is for {len(dims)} arguments, got "
                f"{len(args)}"
            )
        cut = [self._parts(a, d, f"argument {k}")
               for k, (a, d) in enumerate(zip(args, dims, strict=True))]  # fmt: skip
        named = {k: self._parts(v, self.kwargs_spec.get(k, 0), k) for k, v in kwargs.items()}
        return [
            (tuple(parts[k] for parts in cut), {name: parts[k] for name, parts in named.items()})
            for k in range(self.n)
        ]

    def _merged(self, outputs: list[Any]) -> Any:
        first = outputs[0]
        if isinstance(first, Tensor):
            dim = self.merge[0] if isinstance(self.merge, (tuple, list)) else self.merge or 0
            return cat(outputs, getattr(dim, "split_dim", dim)) if first.ndim else outputs
        if isinstance(first, dict):
            return {k: self._merged([o[k] for o in outputs]) for k in first}
        if isinstance(first, (tuple, list)):
            parts = [self._merged(list(one)) for one in zip(*outputs, strict=True)]
            make = getattr(first, "_make", type(first))  # of a NamedTuple, which takes them apart
            return make(parts)
        return outputs


class _OneStage(_Schedule):
    """The base of schedules for ranks with one stage each."""

    def __init__(
        self,
        stage: PipelineStage,
        n_microbatches: int,
        loss_fn: Callable[..., Tensor] | None = None,
        args_chunk_spec: Sequence[object] | None = None,
        kwargs_chunk_spec: Mapping[str, object] | None = None,
        output_merge_spec: object = None,
        scale_grads: bool = True,
    ) -> None:
        super().__init__(
            [stage], n_microbatches, loss_fn, args_chunk_spec, kwargs_chunk_spec,
            output_merge_spec, scale_grads,
        )  # fmt: skip


# public: distributed.pipelining
class ScheduleGPipe(_OneStage):
    """Each rank goes forward over all micro-batches, then backward.

    >>> from flowvm.distributed.pipelining import PipelineStage, ScheduleGPipe
    >>> stage = PipelineStage(nn.Linear(2, 1), 0, 1)
    >>> schedule = ScheduleGPipe(stage, 2, loss_fn=F.mse_loss)
    >>> schedule.step(flow.ones(4, 2), target=flow.ones(4, 1)).shape
    flow.Size([4, 1])
    """

    def credits(self, place: int) -> int:
        """As many as micro-batches."""
        return self.n


# public: distributed.pipelining
class Schedule1F1B(_OneStage):
    """Each rank goes forward over as many micro-batches as there are stages from it on, then
    backward and forward by turns.

    >>> from flowvm.distributed.pipelining import PipelineStage, Schedule1F1B
    >>> stage = PipelineStage(nn.Linear(2, 1), 0, 1)
    >>> schedule = Schedule1F1B(stage, 2, loss_fn=F.mse_loss)
    >>> schedule.step(flow.ones(4, 2), target=flow.ones(4, 1)).shape
    flow.Size([4, 1])
    """

    def credits(self, place: int) -> int:
        """As many as stages from here on."""
        return self.count - place


class _ManyStages(_Schedule):
    """The base of schedules for ranks with several stages each."""

    def check(self) -> None:
        """Any number of stages will do."""


# public: distributed.pipelining
class ScheduleInterleaved1F1B(_ManyStages):
    """Each rank has several stages: rounds of as many micro-batches as ranks go through the first
    stage here, then the next, forward and backward by turns.  Micro-batches are a multiple of the
    ranks.

    >>> from flowvm.distributed.pipelining import PipelineStage, ScheduleInterleaved1F1B
    >>> stages = [PipelineStage(nn.Linear(2, 2), k, 2) for k in range(2)]
    >>> schedule = ScheduleInterleaved1F1B(stages, 2, loss_fn=F.mse_loss)
    >>> schedule.step(flow.ones(4, 2), target=flow.ones(4, 2)).shape
    flow.Size([4, 2])
    """

    def check(self) -> None:
        """Micro-batches go in rounds of as many as ranks."""
        if self.n % self.group.size:
            raise ArgumentError(
                f"ScheduleInterleaved1F1B: {self.n} micro-batches are no multiple of "
                f"{self.group.size} ranks"
            )

    def credits(self, place: int) -> int:
        """All but the last stage of a round, and two for each rank behind."""
        size = self.group.size
        return (self.each - 1) * size + 2 * (size - place - 1) + 1

    def order(self, place: int) -> list[Action]:
        """Return the steps of a rank, in their order."""
        size, forward, back = self.group.size, [], []
        for k in range(self.n * self.each):
            turn, number = k // size, k // (size * self.each) * size + k % size
            forward.append(Action("F", turn % self.each * size + place, number))
            last = self.each - 1 - turn % self.each
            back.append(Action("B", last * size + place, number))
        return _turns(min(self.credits(place), len(forward)), forward, back)


# public: distributed.pipelining
class ScheduleLoopedBFS(_ManyStages):
    """Each rank has several stages: all micro-batches go through the first stage here, then the
    next; backward likewise.

    >>> from flowvm.distributed.pipelining import PipelineStage, ScheduleLoopedBFS
    >>> stages = [PipelineStage(nn.Linear(2, 2), k, 2) for k in range(2)]
    >>> schedule = ScheduleLoopedBFS(stages, 2, loss_fn=F.mse_loss)
    >>> schedule.step(flow.ones(4, 2), target=flow.ones(4, 2)).shape
    flow.Size([4, 2])
    """

    def credits(self, place: int) -> int:
        """As many as micro-batches, in each stage."""
        return self.n * self.each

    def order(self, place: int) -> list[Action]:
        """Return the steps of a rank, in their order."""
        stages = range(place, self.count, self.group.size)
        forward = [Action("F", s, k) for s in stages for k in range(self.n)]
        back = [Action("B", s, k) for s in reversed(stages) for k in reversed(range(self.n))]
        return _turns(self.credits(place), forward, back)
