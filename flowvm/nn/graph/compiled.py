"""Compiled: a Plan with what Python does around each replay, and the one function that is a call.

A call of a graph asks `replay` of what was called last: a function written for this kind of call,
which looks whether everything is as it was at the capture and, if so,
launches.  Else it answers MISS, and `Graph` looks the call up by its key, or captures.

The test of a call (`CallTest`) asks in this order:
- the arguments' structure with the numbers in it, the tensors' metas, that none requires grad;
- what the thread has switched (grad mode; see `thread_settings`), the graph's configuration, the
  optimizers' groups and options, the scaler's;
- modules: at once if nothing has changed in any of them (`interpreter.changed`), else one by
  one;
- that no argument is memory that is changed under another name (`Uses.meet`);
- what else is watched, and guards: the decisions that code made by live numbers.

Written out as Python, because most of what a replay of a small graph costs is this.

`Segmented` stands where a `Compiled` stands otherwise, when the graph is not one Plan.  The way
through its segments is found anew by each call; a way that no call has taken yet is captured during
it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flowvm.eager.autocast import autocast_dtype
from flowvm.eager.calls import generated
from flowvm.eager.live import NO_ANSWER, Condition, Leaf, Live, live_lines
from flowvm.eager.modes import grad_enabled
from flowvm.eager.tensor import Tensor, renew
from flowvm.graph.capture.conditions import Conditions
from flowvm.graph.capture.trees import flatten
from flowvm.graph.logical.logical import Uses
from flowvm.meta.meta import TensorMeta
from flowvm.nn.graph.steps import fixed_options, inlining, is_several
from flowvm.ops.sequences.attention import around
from flowvm.vm.callers.interrupt import protected
from flowvm.vm.machine.words import OPERAND

if TYPE_CHECKING:
    from flowvm.amp import GradScaler
    from flowvm.optim import Optimizer
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, NamedTuple

from flowvm.eager.modes import note_change
from flowvm.eager.nodes import Node
from flowvm.errors import AutogradError, CaptureError
from flowvm.graph.capture.breaks import Breaks
from flowvm.graph.capture.capture import Capture
from flowvm.graph.capture.segments import MAX_FOLLOWING, Outcome, Run, Segment
from flowvm.graph.capture.trees import tree_text
from flowvm.graph.plan.plan import Plan
from flowvm.nn.graph.explain import say
from flowvm.nn.graph.steps import Steps
from flowvm.nn.parameter import Parameter
from flowvm.ops.declare.composite import Recorded

if TYPE_CHECKING:
    from flowvm.optim import Optimizer


# --- the test of a call -----------------------------------------------------------------------


MISS = type("Miss", (), {"__repr__": lambda self: "MISS"})()  # this call is of another kind


def thread_settings() -> tuple[object, ...]:
    """Return the settings of this thread on which a capture depends.

    Where nothing is switched, `_DEFAULT`: the calls of a thread that has switched something are
    recognized by `hot["departed"]`, `hot["unrecorded"]` and `hot["autocast"]`.
    """
    return (grad_enabled(), autocast_dtype(), inlining(), around.now())


_DEFAULT = (True, None, False, None)


@dataclass
class Call:
    """A kind of call: the structure of its (args, kwargs), metas of the tensors in it, the graph's
    configuration and its GradScaler.
    """

    structure: Any
    metas: Sequence[TensorMeta]
    config: Any
    scaler: GradScaler | None = None


class CallTest:
    """The lines that look whether a call is one that `conditions` serve, and of the kind `call`.

    uses      what it does with memory that it does not own; `grows`: calls may find that it does
              more
    own       gets what the lines name
    known     names of live numbers that were found on the way
    """

    def __init__(
        self,
        conditions: Conditions,
        call: Call,
        optimizers: Sequence[tuple[Optimizer, object]],
        uses: Uses,
        own: dict[str, Any],
        known: dict[int, str],
        grows: bool = False,
    ) -> None:
        self.conditions, self.call, self.optimizers = conditions, call, optimizers
        self.uses, self.own, self.known, self.grows = uses, own, known, grows
        self.inputs: list[str] = []
        self.own.update(MISS=MISS, key=call.config, same=_same_constant)

    def before(
        self, body: Callable[[int], list[str]], name: str, *, alone: bool
    ) -> Callable[..., Any]:
        """`replay_plan(graph, args, kwargs)`, which answers MISS, or does what `body` says, if
        `alone` under the graph's lock.

        `body` is called, when what is tested is known, with how far up the user's frame is; the
        call's tensors are x0, x1, ...
        """
        test = self.lines()
        guards = [
            f"        {line}"
            for guard in self.conditions.guards
            for line in guard.lines(self.own, self.known)
        ]
        if guards:
            self.own["no_answer"] = NO_ANSWER
            guards = ["    try:", *guards, "    except no_answer: return MISS"]
        does = [*guards, *body(2)]
        if alone:
            test.append("    with graph._lock:")
            does = [f"    {line}" for line in does]
        source = "\n".join(["def replay_plan(graph, args, kwargs):", *test, *does]) + "\n"
        return protected(generated(source, f"<flowvm replay {name}>", self.own))

    def lines(self) -> list[str]:
        conditions, own, scaler = self.conditions, self.own, self.call.scaler
        own.update(
            thread_settings=thread_settings,
            settings=thread_settings(),
            last_check=conditions.last_check,
            unchanged=conditions.unchanged,
        )
        for k, meta in enumerate(self.call.metas):
            own[f"m{k}"] = meta
        arguments = self._arguments()
        metas = [
            f"    if {x}._meta is not m{k} or {x}._node is not None or not "
            f"({x}.__class__ is Tensor or isinstance({x}, Tensor)): return MISS"
            for k, x in enumerate(self.inputs)
        ]
        lines = ["    try:", *[f"    {line}" for line in (*arguments, *metas)]] if metas else [
            "    try:", *[f"    {line}" for line in (*arguments, "    pass")]
        ]  # fmt: skip
        lines += [
            "    except (AttributeError, KeyError): return MISS",  # no tensor; no such argument
            "    if departed or unrecorded or autocast:",
            "        if thread_settings() != settings: return MISS",
        ]
        if thread_settings() != _DEFAULT:
            lines.append("    else: return MISS")
        lines += [
            "    if graph.config.key is not key and graph.config.key != key: return MISS",
            *self._options(),
            "    if changed is not last_check[0] and not unchanged(): return MISS",
        ]
        if scaler is not None:
            own["scaler"], own["scaling"] = scaler, scaler.key()
            same = "graph._scaler is scaler and scaler.key() == scaling"
            lines.append(f"    if not ({same}): return MISS")
        lines += self._meetings()
        known: dict[int, str] = {}

        def name(value: object) -> str:
            own[known.setdefault(id(value), f"q{len(own)}")] = value
            return known[id(value)]

        for k, watched in enumerate(one for one in conditions.watched if not one.gated):
            own[f"watched{k}"] = watched.holds
            lines += [
                f"    try: same_{k} = {watched.expression(name)}",
                "    except (MemoryError, RecursionError): raise",
                f"    except Exception: same_{k} = False",
                f"    if not same_{k} and not watched{k}(): return MISS",
            ]
        return lines

    def _meetings(self) -> list[str]:
        """Lines that look whether memory that is changed has another name in this call."""
        uses, storages = self.uses, [f"{x}._ref & {OPERAND.STORAGE_MASK}" for x in self.inputs]
        if not storages:
            return []
        self.own.update(meet=uses.meet, written=uses.changed)
        if self.grows or (uses.inputs and (uses.held or len(storages) > 1)):
            return [f"    if meet(({', '.join(storages)},)): return MISS"]
        if not uses.changed:
            return []
        return [
            f"    if {' or '.join(f'{storage} in written' for storage in storages)}: return MISS"
        ]

    def _arguments(self) -> list[str]:
        """Lines that take the call's arguments apart, or find them of another structure."""
        lines: list[str] = []
        _, positional, named = self.call.structure
        self._items("args", positional[1:], lines)
        named = named[1:]
        lines.append(f"    if len(kwargs) != {len(named)}: return MISS" if named
                     else "    if kwargs: return MISS")  # fmt: skip
        for name, structure in named:
            self._take(f"kwargs[{name!r}]", structure, lines)
        return lines

    def _items(self, name: str, structures: Sequence[object], lines: list[str]) -> None:
        lines.append(f"    if len({name}) != {len(structures)}: return MISS")
        for k, structure in enumerate(structures):
            self._take(f"{name}[{k}]", structure, lines)

    def _take(self, place: str, structure: Any, lines: list[str]) -> None:
        own, kind = self.own, structure[0]
        name = f"a{len(lines)}"
        if kind == "tensor":
            name = f"x{len(self.inputs)}"
            self.inputs.append(name)
            lines.append(f"    {name} = {place}")
            return
        lines.append(f"    {name} = {place}")
        if kind == "constant":
            own[f"k{len(own)}"] = structure
            lines.append(f"    if not same({name}, k{len(own) - 1}): return MISS")
        elif kind == "composed":
            own[f"k{len(own)}"] = structure[1]
            own[f"k{len(own)}"] = structure[2]
            lines += [
                f"    if {name}.__class__ is not k{len(own) - 2}: return MISS",
                f"    {name}_key, {name}_parts = {name}.composed_of()",
                f"    if {name}_key != k{len(own) - 1}: return MISS",
            ]
            self._items(f"{name}_parts", structure[3:], lines)
        elif kind == "dict":
            own[f"k{len(own)}"] = [key for key, _ in structure[1:]]
            test = f"not isinstance({name}, dict) or [*{name}] != k{len(own) - 1}"
            lines.append(f"    if {test}: return MISS")
            for key, inner in structure[1:]:
                own[f"k{len(own)}"] = key
                self._take(f"{name}[k{len(own) - 1}]", inner, lines)
        else:
            sequence = kind == "sequence"
            own[f"k{len(own)}"] = structure[1] if sequence else {"tuple": tuple, "list": list}[kind]
            lines.append(f"    if {name}.__class__ is not k{len(own) - 1}: return MISS")
            self._items(name, structure[1 + sequence :], lines)

    def _options(self) -> list[str]:
        """Lines that look whether groups and options are those of the key."""
        own, lines = self.own, []
        for i, (optimizer, _) in enumerate(self.optimizers):
            groups = optimizer.param_groups
            own[f"optimizer{i}"] = optimizer
            lines += [
                f"    groups = optimizer{i}.param_groups",
                f"    if len(groups) != {len(groups)}: return MISS",
            ]
            for j, group in enumerate(groups):
                names = [n for n in fixed_options(optimizer, group) if n != "params"]
                several = [n for n in names if is_several(optimizer, n, group[n])]
                plain = [n for n in names if _is_plain(group[n]) and n not in several]
                at = f"{i}_{j}"
                own[f"options{at}"] = operator.itemgetter(*plain, "params", "params")
                own[f"group{at}"] = group
                own[f"values{at}"] = own[f"options{at}"](group)
                lines.append(
                    f"    if groups[{j}] is not group{at} or len(group{at}) != {len(group)} or "
                    f"options{at}(group{at}) != values{at}: return MISS"
                )
                for n in several:
                    own[f"kind{at}_{n}"] = type(group[n])
                    lines.append(
                        f"    if group{at}[{n!r}].__class__ is not kind{at}_{n} or "
                        f"len(group{at}[{n!r}]) != {len(group[n])}: return MISS"
                    )
                for n in names:
                    if n not in plain and n not in several:
                        own[f"option{at}_{n}"] = group[n]
                        lines.append(f"    if group{at}[{n!r}] is not option{at}_{n}: return MISS")
        return lines


def _is_plain(value: object) -> bool:
    return isinstance(value, (bool, int, float, str, tuple))


def _same_constant(value: Any, structure: Any) -> bool:
    """Return True if `value` is the plain value of a structure."""
    leaves: list[Tensor] = []
    return not isinstance(value, Tensor) and flatten(value, leaves) == structure


# --- compiled ---------------------------------------------------------------------------------


class Compiled(Conditions):
    """A Plan with what Python does around each replay.

    `ends` are the outputs that eager code could have gone backward from, `leftovers` what becomes
    of arguments, `known` the outputs that are objects which were there before: see `known_objects`.
    `kind` is what calls of its kind have in common, (structure, metas), with what was switched;
    unset where that is not all that matters.
    """

    def __init__(
        self,
        capture: Capture,
        plan: Plan,
        structure: object,
        steps: Steps,
        watched: Sequence[object],
    ) -> None:
        self.plan, self.structure = plan, structure
        self.optimizers, self.updates = steps.optimizers, steps.updates
        self.guards: list[Condition] = capture.guards
        capture.guards.open = False
        self.draws = capture.draws
        self.watched = list(watched)
        self.ends: list[int] = []
        self.leftovers: list[LeftBehind] = []
        self.known: dict[int, int | Tensor] = {}
        self.cleared: frozenset[int] = frozenset()  # leaves: see `Gradients.cleared`
        self.plans = [plan]
        self.last_check: list[Any] = [None]
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

    def replay_for(self, call: Call) -> Callable[..., object]:
        """`replay_plan(graph, args, kwargs)`: the outputs, or MISS if the call is of another kind
        than `call`.
        """
        if self._replay is None:
            body = _Body(self)
            test = CallTest(self, call, self.optimizers, self.plan.uses, body.own, body.known)
            reads = bool(self.optimizers)  # their numbers, which are written after it
            self._replay = test.before(body.lines, self.plan.name, alone=reads)
        replay: Callable[..., object] = self._replay
        return replay


class LeftBehind(NamedTuple):
    """An argument that code leaves with another view (`x.t_()`) or with a gradient that goes on.

    place, meta   which one, and its meta behind a call
    moved         by how much its reference to memory is another one
    flows         eager code could go backward from it
    """

    place: int
    meta: TensorMeta
    moved: int
    flows: bool


def left_behind(inputs: Sequence[Tensor], shown: Sequence[tuple[object, int]]) -> list[LeftBehind]:
    """Return what code made of the tensors that stand for arguments, which were `shown` so before.

    CaptureError for one that has other memory.
    """
    behind = []
    for k, (t, (meta, ref)) in enumerate(zip(inputs, shown, strict=True)):
        moved, flows = t._ref - ref, t._node is not None and not t._node.is_leaf
        if (t._ref ^ ref) & OPERAND.STORAGE_MASK:
            raise CaptureError(
                f"build gives argument {k} other memory (x.data = ..., set_, resize_), which no "
                f"replay does: write into it with copy_(), or return the new tensor"
            )
        if moved or t._meta is not meta or flows:
            behind.append(LeftBehind(k, t._meta, moved, flows))
    return behind


def _move(x: Tensor, offset: int, meta: TensorMeta) -> None:
    """Show other elements of its memory in an argument, `offset` further on in its operand word."""
    x.storage()
    storage, ref = map(getattr, (x,) * 2, ("_storage", "_ref"))  # in one call
    renew(x, storage, ref + offset, meta)
    note_change()


def known_objects(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> dict[int, int | Tensor]:
    """Return the places of outputs that are no new objects: by it, the place of the argument, -1
    less the place of an output before it, or the parameter.
    """
    arguments = {id(t): k for k, t in enumerate(inputs)}
    first: dict[int, int] = {}
    known: dict[int, int | Tensor] = {}
    for k, t in enumerate(outputs):
        if id(t) in arguments:
            known[k] = arguments[id(t)]
        elif isinstance(t, Parameter):
            known[k] = t
        elif first.setdefault(id(t), k) != k:
            known[k] = -1 - first[id(t)]
    return known


def storages_of(tensors: Iterable[Tensor]) -> list[int]:
    """Return the storage of each tensor."""
    return [t._ref & OPERAND.STORAGE_MASK for t in tensors]


def _no_gradient(c: object, *gradients: object) -> object:
    raise AutogradError(
        "backward through the output of a graph: what led to it was replayed, not recorded.  Call "
        "backward() inside build, or call the graph under flow.no_grad() if no gradient is wanted"
    )


_NO_GRADIENT = Recorded("graph", _no_gradient)
_NO_GRADIENT.blocks = True


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
            if k in compiled.known:
                continue
            meta = compiled.plan.graph.outputs[k].meta
            own[f"end{k}"] = Node(_NO_GRADIENT, (), (), (), (), (), (meta,))
            lines.append(f"o{k}._node = end{k}")
        for k, one in enumerate(compiled.leftovers):
            lines += self._leave(k, one)
        for k, ((owner, name, _), value) in enumerate(zip(updates, values, strict=True)):
            own[f"owner{k}"], own[f"name{k}"] = owner, name
            lines.append(f"owner{k}[name{k}] = {value}")
        for k, (_, schedule) in enumerate(compiled.optimizers):
            if schedule is not None:
                own[f"schedule{k}"] = schedule
                lines.append(f"schedule{k}.step()")
        outputs = [self._output(k) for k in range(len(compiled.plan.graph.outputs))]
        tree = tree_text(compiled.structure, iter(outputs), own)
        return [f"    {line}" for line in (*lines, f"return {tree}")]

    def _output(self, k: int) -> str:
        """Return the name of output `k`."""
        known = self.compiled.known.get(k)
        if known is None:
            return f"o{k}"
        if isinstance(known, Tensor):
            self.own[f"known{k}"] = known
            return f"known{k}"
        return f"x{known}" if known >= 0 else f"o{-1 - known}"

    def _leave(self, k: int, one: LeftBehind) -> list[str]:
        """Lines that make of an argument what the code made of it, beside writing to it."""
        own, x = self.own, f"x{one.place}"
        own[f"left{k}"], own["move"] = one.meta, _move
        lines = [f"move({x}, {one.moved}, left{k})"]
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


def _leaves(values: Sequence[object]) -> list[Leaf]:
    leaves: dict[int, Leaf] = {}
    pending, visited = list(values), set()
    while pending:
        value = pending.pop()
        if isinstance(value, Leaf):
            leaves[id(value)] = value
        elif isinstance(value, Live) and id(value) not in visited:
            visited.add(id(value))
            pending += value.operands
    return list(leaves.values())


# --- segments ---------------------------------------------------------------------------------


class Segmented:
    """A graph in segments.

    `capture(inputs, breaks)` runs the code again and gives the segment that it ends with, or None.
    `uses` is what its Plans do, those found later too.  `lock` is the graph's, which it is held
    under.
    """

    cleared: frozenset[int] = frozenset()  # what decides between segments may have looked

    def __init__(
        self,
        capture: Callable[[Sequence[Tensor], Breaks], Segment | None],
        breaks: Breaks,
        optimizers: Sequence[tuple[Optimizer, object]],
        lock: AbstractContextManager[object],
    ) -> None:
        self.lock = lock
        self.capture, self.optimize, self.optimizers = capture, breaks.optimize, optimizers
        self.root = breaks.path[0][0]
        self._begun: Run | None = breaks.run  # the call that captured this is on its way
        self._last = breaks.last
        self._replay: Any = None
        self.uses = Uses()
        self._note_uses()

    def _note_uses(self) -> None:
        for plan in self.plans:
            self.uses.add(plan.uses)

    @property
    def segments(self) -> list[Segment]:
        """All of them, each before those that may follow it."""
        return self.root.tree()

    @property
    def plans(self) -> list[Plan]:
        """The Plans of all segments that have one."""
        return [s.plan for s in self.segments if s.plan is not None]

    def holds(self) -> bool:
        """Return True if the first segment's guards hold; the other segments are checked later."""
        return self.root.holds()

    def replay_for(self, call: Call) -> Callable[..., Any]:
        """`replay_plan(graph, args, kwargs)`: the outputs, or MISS if the call is of another kind
        than `call`.
        """
        if self._replay is None:
            own = {"run": self.run}
            test = CallTest(self.root, call, self.optimizers, self.uses, own, {}, grows=True)
            arguments = ", ".join(f"x{k}" for k in range(len(call.metas)))
            lines = [f"    return run([{arguments}])"]
            self._replay = test.before(lambda depth: lines, self.root.name, alone=True)
        replay: Callable[..., object] = self._replay
        return replay

    def run(self, inputs: Sequence[Tensor]) -> Any:
        """Run segments from the first to a last one: the outputs.

        A run that a capture has begun goes on where that left it, told by the object `inputs`.
        """
        run, segment = Run(inputs), self.root
        if self._begun is not None and self._begun.inputs is inputs:
            assert self._last is not None
            run, segment = self._begun, self._last
        self._begun = self._last = None
        path: list[tuple[Segment, Outcome]] = []
        while segment.end is None:
            outcome = run.through(segment)
            path.append((segment, outcome))
            segment = segment.follow(outcome) or self._capture_on(run, path)
        run.enter(segment)
        return segment.end.run(run.arguments(segment))

    def _capture_on(self, run: Run, path: list[tuple[Segment, Outcome]]) -> Segment:
        """Capture what follows this path, running it: the last segment.  Another thread may have
        captured it meanwhile: then the segment that follows.
        """
        with self.lock:
            segment, outcome = path[-1]
            return segment.follow(outcome) or self._captured(run, path)

    def _captured(self, run: Run, path: list[tuple[Segment, Outcome]]) -> Segment:
        segment, outcome = path[-1]
        if len(segment.following) == MAX_FOLLOWING and outcome not in segment.following:
            say(
                f"graph {segment.name} is captured again ({_outcome_text(segment, outcome)}), and "
                f"of {MAX_FOLLOWING} outcomes there the one that did not come for longest is "
                f"forgotten.  Where there are many sizes, run this part eagerly, or give it a "
                f"fixed one"
            )
        breaks = Breaks(run, self.optimize, path)
        last = self.capture(run.inputs, breaks)
        self._note_uses()
        if last is None:
            raise CaptureError(
                f"{segment.name}: the code behind {segment.why} updates a parameter for the first "
                f"time, so the optimizer has no state for it: take one step eagerly in which every "
                f"parameter gets a gradient"
            )
        return last

    def describe(self) -> list[str]:
        """Return the lines of `explain`: the cuts of the graph, and the outcomes that calls had."""
        cuts = list(dict.fromkeys(s.why for s in self.segments if s.end is None))
        depth = 1 + _depth(self.root)
        lines = [f"runs in {depth} segments, because what follows depends on values"]
        lines += [f"  after {why}" for why in cuts]
        for segment in self.segments:
            lines += [
                f"  {_outcome_text(segment, outcome)}: {len(same)} "
                f"continuation{'s' * (len(same) != 1)}"
                for outcome, same in segment.following.items()
            ]
        return lines


def _depth(segment: Segment) -> int:
    """Return the largest number of segments that may follow this one."""
    ways = [s for same in segment.following.values() for s in same]
    return max((1 + _depth(s) for s in ways), default=0)


def _outcome_text(segment: Segment, outcome: Outcome) -> str:
    known = zip(segment.asks, outcome, strict=True)
    parts = [f"{n} row{'s' * (n != 1)}" if kind == "rows" else repr(n) for (kind, _), n in known]
    return f"{', '.join(parts) or 'nothing asked'} at {segment.why}"
