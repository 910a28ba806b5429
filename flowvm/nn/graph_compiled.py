"""Compiled: a Plan with what Python does around each replay, and the one function that is a call.

A call of a graph asks `replay` of the Plan that was called last: a function written for this kind
of call, which looks whether everything is as it was at the capture and, if so, launches.  Else it
answers MISS, and `Graph` looks the call up by its key, or captures.

What `replay` looks at, in this order:
- the arguments' structure with the numbers in it, the tensors' metas, that none requires grad;
- what the thread has switched (grad mode; see `thread_settings`), the graph's configuration, the
  optimizers' groups and options;
- that no argument is memory of a variable that the Plan changes (`LogicalGraph.changed_storages`);
- modules: at once if nothing has changed in any of them (`flowvm.interpreter.changed`), else one by
  one; and what else is watched;
- guards: the decisions that code made by live numbers.

A Plan whose conditions are more than that (`Segmented`, `Landed`) has no such function.

Long because the function that is a call is written in one piece.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any

from flowvm.autocasting import autocast_dtype
from flowvm.dtype import get_default_dtype
from flowvm.errors import AutogradError
from flowvm.graph.capture import Capture
from flowvm.graph.plan import Plan
from flowvm.graph.trees import flatten, tree_text
from flowvm.interpreter import Node, generated, grad_enabled
from flowvm.live import Guard, Leaf, Live, live_lines
from flowvm.nn.graph_steps import LIVE_OPTIONS, Steps, inlining
from flowvm.nn.watchers import Others
from flowvm.ops.recording import Recorded
from flowvm.tensor import Tensor
from flowvm.vm import layout as w
from flowvm.vm.engine import hot

__all__ = ["MISS", "Compiled", "storages_of", "thread_settings"]

MISS: Any = type("Miss", (), {"__repr__": lambda self: "MISS"})()  # this call is of another kind


def thread_settings() -> tuple[Any, ...]:
    """What this thread has switched, and a capture depends on.

    Where nothing is switched, `_DEFAULT`: the calls of a thread that has switched something are
    recognized by `hot["departed"]`, `hot["unrecorded"]` and `hot["autocast"]`.
    """
    return (grad_enabled(), autocast_dtype(), inlining())


_DEFAULT = (True, None, False)


class Compiled:
    """A Plan with what Python does around each replay.

    `ends` are the outputs that eager code could have gone backward from.  `kind` is what calls of
    its kind have in common, (structure, metas), with what was switched; unset where that is not all
    that matters.
    """

    def __init__(
        self,
        capture: Capture,
        plan: Plan,
        structure: Any,
        steps: Steps,
        watched: Sequence[Any],
    ) -> None:
        self.plan, self.structure = plan, structure
        self.optimizers, self.updates = steps.optimizers, steps.updates
        self.guards: list[Guard] = capture.guards
        self.draws = capture.draws
        self.watched = list(watched)
        self.ends: list[int] = []
        self.plans = [plan]
        self._seen: list[Any] = [None]
        self._replay: Any = None
        self._run: Any = None

    def holds(self) -> bool:
        """Whether the modules are as they were, and every decision would be made again."""
        return (
            self._unchanged()
            and all(watched.holds() for watched in self.watched if not watched.gated)
            and all(find() == outcome for find, outcome in self.guards)
        )

    def _unchanged(self) -> bool:
        """Whether what is gated is as it was; remembers when that was found."""
        before = hot["changed"]
        if before is self._seen[0]:
            return True
        if not all(watched.holds() for watched in self.watched if watched.gated):
            return False
        self._seen[0] = before
        return True

    def run(self, inputs: Sequence[Tensor]) -> Any:
        """Replay with these tensors: the outputs."""
        if self._run is None:
            body = _Body(self)
            names = [f"x{k}" for k in range(len(self.plan.graph.inputs))]
            lines = [f"def run_plan({', '.join(names)}):", *body.lines(1)]
            source = "\n".join(lines) + "\n"
            self._run = generated(source, f"<flowvm run {self.plan.name}>", body.own)
        return self._run(*inputs)

    def replay_for(self, structure: Any, key: Any) -> Callable[..., Any]:
        """`replay_plan(graph, args, kwargs)`: the outputs, or MISS if the call is of another kind.

        structure is that of the call's (args, kwargs); `key` the graph's configuration.
        """
        if self._replay is None:
            body = _Body(self)
            lines = _Conditions(self, body, structure, key).lines()
            self._replay = generated(
                "\n".join(["def replay_plan(graph, args, kwargs):", *lines]) + "\n",
                f"<flowvm replay {self.plan.name}>",
                body.own,
            )
        made: Callable[..., Any] = self._replay
        return made


def storages_of(tensors: Iterable[Tensor]) -> frozenset[int]:
    """The storages that tensors are in."""
    return frozenset(t._ref & w.STORAGE_MASK for t in tensors)


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
        made, own, lines = self.compiled, self.own, []
        live, updates = made.plan.live, made.updates
        lines += self._draws(max(made.plan.turns, default=0) + 1)
        numbers: list[str] = []
        for number, time in zip(live, made.plan.turns, strict=True):
            found, (name,) = live_lines([number], own, self._known_at(time))
            lines += found
            numbers.append(name)
        found, values = live_lines([cell for _, _, cell in updates], own, self.known)
        lines += found
        lines += [line[4:] for line in made.plan.launching.lines(numbers, depth)]
        for k in made.ends:
            meta = made.plan.graph.outputs[k].meta
            own[f"end{k}"] = Node(_NO_GRADIENT, (), (), (), (), (), (meta,))
            lines.append(f"o{k}._node = end{k}")
        for k, ((owner, name, _), value) in enumerate(zip(updates, values, strict=True)):
            own[f"owner{k}"], own[f"name{k}"] = owner, name
            lines.append(f"owner{k}[name{k}] = {value}")
        for k, (_, schedule) in enumerate(made.optimizers):
            if schedule is not None:
                own[f"schedule{k}"] = schedule
                lines.append(f"schedule{k}.step()")
        outputs = [f"o{k}" for k in range(len(made.plan.graph.outputs))]
        tree = tree_text(made.structure, iter(outputs), own)
        return [f"    {line}" for line in (*lines, f"return {tree}")]

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
    found: dict[int, Leaf] = {}
    left, seen = list(values), set()
    while left:
        value = left.pop()
        if isinstance(value, Leaf):
            found[id(value)] = value
        elif isinstance(value, Live) and id(value) not in seen:
            seen.add(id(value))
            left += value.operands
    return list(found.values())


class _Conditions:
    """The lines that look whether a call is one for a Plan."""

    def __init__(self, compiled: Compiled, body: _Body, structure: Any, key: Any) -> None:
        self.compiled, self.body, self.own = compiled, body, body.own
        self.structure, self.key = structure, key
        self.inputs: list[str] = []
        self.own.update(MISS=MISS, key=key, same=_same_constant)

    def lines(self) -> list[str]:
        made, own = self.compiled, self.own
        own.update(
            thread_settings=thread_settings,
            settings=thread_settings(),
            seen=made._seen,
            unchanged=made._unchanged,
        )
        for k, operand in enumerate(made.plan.graph.inputs):
            own[f"m{k}"] = operand.meta
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
            "    if changed is not seen[0] and not unchanged(): return MISS",
        ]
        own["written"] = made.plan.changed
        if own["written"] and self.inputs:
            shared = " or ".join(f"{x}._ref & {w.STORAGE_MASK} in written" for x in self.inputs)
            lines.append(f"    if {shared}: return MISS")
        for k, watched in enumerate(one for one in made.watched if not one.gated):
            own[f"watched{k}"] = watched.holds
            lines += [
                f"    try: same_{k} = {_identical(watched, own)}",
                f"    except (KeyError, ValueError): same_{k} = False",
                f"    if not same_{k} and not watched{k}(): return MISS",
            ]
        body = [*self._guards(), *self.body.lines(2)]
        if made.optimizers:  # their numbers are read, and written after it
            lines.append("    with graph._lock:")
            body = [f"    {line}" for line in body]
        return [*lines, *body]

    def _arguments(self) -> list[str]:
        """Lines that take the call's arguments apart, or find them of another structure."""
        lines: list[str] = []
        _, positional, named = self.structure
        self._items("args", positional[1:], lines)
        named = named[1:]
        lines.append(f"    if len(kwargs) != {len(named)}: return MISS" if named
                     else "    if kwargs: return MISS")  # fmt: skip
        for name, structure in named:
            self._take(f"kwargs[{name!r}]", structure, lines)
        return lines

    def _items(self, name: str, structures: Sequence[Any], lines: list[str]) -> None:
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
        for i, (optimizer, _) in enumerate(self.compiled.optimizers):
            groups = optimizer.param_groups
            own[f"optimizer{i}"] = optimizer
            lines += [
                f"    groups = optimizer{i}.param_groups",
                f"    if len(groups) != {len(groups)}: return MISS",
            ]
            for j, group in enumerate(groups):
                names = [n for n in group if n not in LIVE_OPTIONS and n != "params"]
                plain = [n for n in names if _is_plain(group[n])]
                at = f"{i}_{j}"
                own[f"options{at}"] = operator.itemgetter(*plain, "params", "params")
                own[f"group{at}"] = group
                own[f"values{at}"] = own[f"options{at}"](group)
                lines.append(
                    f"    if groups[{j}] is not group{at} or len(group{at}) != {len(group)} or "
                    f"options{at}(group{at}) != values{at}: return MISS"
                )
                for n in names:
                    if n not in plain:
                        own[f"option{at}_{n}"] = group[n]
                        lines.append(f"    if group{at}[{n!r}] is not option{at}_{n}: return MISS")
        return lines

    def _guards(self) -> list[str]:
        own, lines = self.own, []
        for k, (find, outcome) in enumerate(self.compiled.guards):
            leaf = getattr(find, "__self__", None)
            if isinstance(find, Live):
                found, (name,) = live_lines([find], own, self.body.known)
                own[f"outcome{k}"] = outcome
                lines += [f"    {line}" for line in found]
                lines.append(f"    if {name} != outcome{k}: return MISS")
            elif isinstance(leaf, Leaf):
                found, (name,) = live_lines([leaf], own, self.body.known)
                own[f"others{k}"] = leaf.others
                lines += [
                    *(f"    {line}" for line in found),
                    f"    for other in others{k}:",
                    f"        if other[{leaf.names[0]!r}] != {name}: return MISS",
                ]
            else:
                own[f"outcome{k}"], own[f"find{k}"] = outcome, find
                lines.append(f"    if find{k}() != outcome{k}: return MISS")
        return lines


def _identical(watched: Others, own: dict[str, Any]) -> str:
    """An expression that is true if all that is watched is the same objects as then: most calls
    need ask no more.
    """
    if watched.random is not None:
        return "False"
    parts: list[str] = []

    def name(value: Any) -> str:
        own[f"q{len(own)}"] = value
        return f"q{len(own) - 1}"

    parts.append(f"{name(get_default_dtype)}() is {name(watched.dtype)}")
    for view in watched.views.values():
        mapping = name(view.mapping)
        parts += [f"{mapping}[{key!r}] is {name(then)}" for key, then in view.then.items()]
    parts += [f"{name(c)}.cell_contents is {name(then)}" for _, c, then in watched.cells.values()]
    parts += [f"{name(e)}[{key!r}] is {name(then)}" for e, key, then, _ in watched.entries]
    for _, container, items in watched.contents.values():
        is_dict = isinstance(container, dict)
        if len(container) << is_dict != len(items):  # a large one, of which only the length counts
            return "False"
        own["is_"], own["chain"] = operator.is_, chain
        held = name(container)
        now = f"chain({held}.values(), {held})" if is_dict else held
        parts.append(f"len({held}) == {len(container)} and all(map(is_, {now}, {name(items)}))")
    return " and ".join(parts) or "True"


def _is_plain(value: Any) -> bool:
    return isinstance(value, (bool, int, float, str, tuple))


def _same_constant(value: Any, structure: Any) -> bool:
    """Whether `value` is the plain value of a structure."""
    leaves: list[Tensor] = []
    return not isinstance(value, Tensor) and flatten(value, leaves) == structure
