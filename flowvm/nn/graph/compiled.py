"""Compiled: a Plan with what Python does around each replay, and the one function that is a call.

A call of a graph asks `replay` of what was called last: a function written for this kind of call,
which looks whether everything is as it was at the capture (`flowvm.nn.graph.calls`) and, if so,
launches.  Else it answers MISS, and `Graph` looks the call up by its key, or captures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from flowvm.eager.calls import generated
from flowvm.eager.live import Guard, Leaf, Live, live_lines
from flowvm.eager.modes import note_change
from flowvm.eager.nodes import Node
from flowvm.eager.tensor import Tensor
from flowvm.errors import AutogradError, CaptureError
from flowvm.graph.capture.capture import Capture
from flowvm.graph.capture.conditions import Conditions
from flowvm.graph.capture.trees import tree_text
from flowvm.graph.plan.plan import Plan
from flowvm.meta.meta import TensorMeta
from flowvm.nn.graph.calls import Call, CallTest
from flowvm.nn.graph.steps import Steps
from flowvm.ops.declare.composite import Recorded
from flowvm.vm.callers.interrupt import protected
from flowvm.vm.machine.words import OPERAND


class Compiled(Conditions):
    """A Plan with what Python does around each replay.

    `ends` are the outputs that eager code could have gone backward from, `left` what becomes of
    arguments.  `kind` is what calls of
    its kind have in common, (structure, metas), with what was switched; unset where that is not all
    that matters.
    """

    def __init__(
        self, capture: Capture, plan: Plan, structure: Any, steps: Steps, watched: Sequence[Any]
    ) -> None:
        self.plan, self.structure = plan, structure
        self.optimizers, self.updates = steps.optimizers, steps.updates
        self.guards: list[Guard] = capture.guards
        capture.guards.open = False
        self.draws = capture.draws
        self.watched = list(watched)
        self.ends: list[int] = []
        self.left: list[LeftBehind] = []
        self.cleared: frozenset[int] = frozenset()  # leaves: see `Gradients.cleared`
        self.plans = [plan]
        self.seen: list[Any] = [None]
        self._replay: Any = None
        self._run: Any = None

    def run(self, inputs: Sequence[Tensor]) -> Any:
        """Replay with these tensors: the outputs."""
        if self._run is None:
            body = _Body(self)
            names = [f"x{k}" for k in range(len(self.plan.graph.inputs))]
            lines = [f"def run_plan({', '.join(names)}):", *body.lines(1)]
            source = "\n".join(lines) + "\n"
            self._run = protected(generated(source, f"<flowvm run {self.plan.name}>", body.own))
        return self._run(*inputs)

    def replay_for(self, call: Call) -> Callable[..., Any]:
        """`replay_plan(graph, args, kwargs)`: the outputs, or MISS if the call is of another kind
        than `call`.
        """
        if self._replay is None:
            body = _Body(self)
            test = CallTest(self, call, self.optimizers, self.plan.uses, body.own, body.known)
            reads = bool(self.optimizers)  # their numbers, which are written after it
            self._replay = test.before(body.lines, self.plan.name, alone=reads)
        replay: Callable[..., Any] = self._replay
        return replay


class LeftBehind(NamedTuple):
    """What becomes of an argument that code shows otherwise (`x.t_()`), or whose gradient goes on.

    place, meta   which one, and its meta behind a call
    moved         by how much its reference to memory is another one
    flows         eager code could go backward from it
    """

    place: int
    meta: TensorMeta
    moved: int
    flows: bool


def left_behind(inputs: Sequence[Tensor], shown: Sequence[tuple[Any, int]]) -> list[LeftBehind]:
    """Return what code made of the tensors that stand for arguments, which were `shown` so before.

    CaptureError for one that has other memory.
    """
    left = []
    for k, (t, (meta, ref)) in enumerate(zip(inputs, shown, strict=True)):
        moved, flows = t._ref - ref, t._node is not None and not t._node.is_leaf
        if (t._ref ^ ref) & OPERAND.STORAGE_MASK:
            raise CaptureError(
                f"build gives argument {k} other memory (x.data = ..., set_, resize_), which no "
                f"replay does: write into it with copy_(), or return the new tensor"
            )
        if moved or t._meta is not meta or flows:
            left.append(LeftBehind(k, t._meta, moved, flows))
    return left


def storages_of(tensors: Iterable[Tensor]) -> list[int]:
    """Return the storage of each tensor."""
    return [t._ref & OPERAND.STORAGE_MASK for t in tensors]


def _no_gradient(c: Any, *gradients: Any) -> Any:
    raise AutogradError(
        "backward through the output of a graph: what led to it was replayed, not recorded.  Call "
        "backward() inside build, or call the graph under flow.no_grad() if no gradient is wanted"
    )


_NO_GRADIENT = Recorded("graph", _no_gradient)


# --- the generated functions --------------------------------------------------------------------


class _Body:
    """The lines that replay, and what they name."""

    def __init__(self, compiled: Compiled) -> None:
        self.compiled = compiled
        self.own: dict[str, Any] = dict(compiled.plan.launching.own)
        self.known: dict[int, str] = {}  # names of live numbers
        self._at: dict[int, dict[int, str]] = {}  # the same, in each repetition

    def lines(self, depth: int) -> list[str]:
        """Draw, find the numbers, launch, and do what a step does to Python's numbers.

        The user's frame is looked for from `depth` frames up.
        """
        compiled, own, lines = self.compiled, self.own, []
        live, updates = compiled.plan.live, compiled.updates
        lines += self._draws(max(compiled.plan.turns, default=0) + 1)
        numbers: list[str] = []
        for number, time in zip(live, compiled.plan.turns, strict=True):
            rows, (name,) = live_lines([number], own, self._known_at(time))
            lines += rows
            numbers.append(name)
        rows, values = live_lines([cell for _, _, cell in updates], own, self.known)
        lines += rows
        lines += [line[4:] for line in compiled.plan.launching.lines(numbers, depth)]
        for k in compiled.ends:
            meta = compiled.plan.graph.outputs[k].meta
            own[f"end{k}"] = Node(_NO_GRADIENT, (), (), (), (), (), (meta,))
            lines.append(f"o{k}._node = end{k}")
        for k, one in enumerate(compiled.left):
            lines += self._leave(k, one)
        for k, ((owner, name, _), value) in enumerate(zip(updates, values, strict=True)):
            own[f"owner{k}"], own[f"name{k}"] = owner, name
            lines.append(f"owner{k}[name{k}] = {value}")
        for k, (_, schedule) in enumerate(compiled.optimizers):
            if schedule is not None:
                own[f"schedule{k}"] = schedule
                lines.append(f"schedule{k}.step()")
        outputs = [f"o{k}" for k in range(len(compiled.plan.graph.outputs))]
        tree = tree_text(compiled.structure, iter(outputs), own)
        return [f"    {line}" for line in (*lines, f"return {tree}")]

    def _leave(self, k: int, one: LeftBehind) -> list[str]:
        """Lines that make of an argument what the code made of it, beside writing to it."""
        own, x = self.own, f"x{one.place}"
        own[f"left{k}"], own["note_change"] = one.meta, note_change
        lines = [f"{x}._ref += {one.moved}; {x}._meta = left{k}; note_change()"]
        if one.flows:
            own[f"left_end{k}"] = Node(_NO_GRADIENT, (), (), (), (), (), (one.meta,))
            lines.append(f"{x}._node = left_end{k}")
        return lines

    def _draws(self, times: int) -> list[str]:
        """Lines that draw, in the order of eager code: all draws of a repetition, then the next."""
        lines = []
        for time in range(times):
            for k, (generator, _) in enumerate(self.compiled.draws):
                self.own[f"generator{k}"] = generator
                lines.append(f"d{k}_{time} = generator{k}.draw_now()")
        return lines

    def _known_at(self, time: int) -> dict[int, str]:
        """The names of live numbers in this repetition."""
        if time in self._at:
            return self._at[time]
        known = self._at[time] = self.known if time == 0 else {}
        for k, (_, drawn) in enumerate(self.compiled.draws):
            for leaf in _leaves(self.compiled.plan.live):
                if leaf.owner is drawn:
                    known[id(leaf)] = f"d{k}_{time}[{leaf.names[1]}]"
        return known


def _leaves(values: Sequence[Any]) -> list[Leaf]:
    leaves: dict[int, Leaf] = {}
    left, seen = list(values), set()
    while left:
        value = left.pop()
        if isinstance(value, Leaf):
            leaves[id(value)] = value
        elif isinstance(value, Live) and id(value) not in seen:
            seen.add(id(value))
            left += value.operands
    return list(leaves.values())
