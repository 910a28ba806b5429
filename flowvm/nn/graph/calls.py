"""What a call of a graph looks at first: the function that tests whether the call is of the kind
that what was called last serves, and then does what that is for.

In this order:
- the arguments' structure with the numbers in it, the tensors' metas, that none requires grad;
- what the thread has switched (grad mode; see `thread_settings`), the graph's configuration, the
  optimizers' groups and options, the scaler's;
- modules: at once if nothing has changed in any of them (`interpreter.changed`), else one by
  one;
- that no argument is memory that is changed under another name (`Uses.meet`);
- what else is watched, and guards: the decisions that code made by live numbers.

Written out as Python, because most of what a replay of a small graph costs is this.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from flowvm.eager.autocast import autocast_dtype
from flowvm.eager.calls import generated
from flowvm.eager.live import Leaf, Live, live_lines
from flowvm.eager.modes import grad_enabled
from flowvm.eager.tensor import Tensor
from flowvm.graph.capture.conditions import NO_ANSWER, Conditions
from flowvm.graph.capture.trees import flatten
from flowvm.graph.logical.logical import Uses
from flowvm.meta.dtype import get_default_dtype
from flowvm.meta.meta import TensorMeta
from flowvm.nn.graph.reads import Reads
from flowvm.nn.graph.steps import fixed_options, inlining, is_several
from flowvm.nn.graph.watchers import Others
from flowvm.vm.callers.interrupt import protected
from flowvm.vm.machine.words import OPERAND

if TYPE_CHECKING:
    from flowvm.amp import GradScaler
    from flowvm.optim import Optimizer

MISS: Any = type("Miss", (), {"__repr__": lambda self: "MISS"})()  # this call is of another kind


def thread_settings() -> tuple[Any, ...]:
    """What this thread has switched, and a capture depends on.

    Where nothing is switched, `_DEFAULT`: the calls of a thread that has switched something are
    recognized by `hot["departed"]`, `hot["unrecorded"]` and `hot["autocast"]`.
    """
    return (grad_enabled(), autocast_dtype(), inlining())


_DEFAULT = (True, None, False)


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
    """The lines that look whether a call is one that `made` serves, and so is of the kind `call`.

    uses      what it does with memory that it does not own; `grows`: calls may find that it does
              more
    own       gets what the lines name
    known     names of live numbers that were found on the way
    """

    def __init__(
        self,
        made: Conditions,
        call: Call,
        optimizers: Sequence[tuple[Optimizer, Any]],
        uses: Uses,
        own: dict[str, Any],
        known: dict[int, str],
        grows: bool = False,
    ) -> None:
        self.made, self.call, self.optimizers = made, call, optimizers
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
        guards = [f"    {line}" for line in self._guards()]
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
        made, own, scaler = self.made, self.own, self.call.scaler
        own.update(
            thread_settings=thread_settings,
            settings=thread_settings(),
            seen=made.seen,
            unchanged=made.unchanged,
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
            "    if changed is not seen[0] and not unchanged(): return MISS",
        ]
        if scaler is not None:
            own["scaler"], own["scaling"] = scaler, scaler.key()
            same = "graph._scaler is scaler and scaler.key() == scaling"
            lines.append(f"    if not ({same}): return MISS")
        lines += self._meetings()
        for k, watched in enumerate(one for one in made.watched if not one.gated):
            own[f"watched{k}"] = watched.holds
            lines += [
                f"    try: same_{k} = {_identical(watched, own)}",
                "    except MemoryError: raise",
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

    def _guards(self) -> list[str]:
        own, lines = self.own, []
        for k, (find, outcome) in enumerate(self.made.guards):
            leaf = getattr(find, "__self__", None)
            if isinstance(find, Live):
                found, (name,) = live_lines([find], own, self.known)
                own[f"outcome{k}"] = outcome
                lines += [f"    {line}" for line in found]
                lines.append(f"    if {name} != outcome{k}: return MISS")
            elif isinstance(leaf, Leaf):
                found, (name,) = live_lines([leaf], own, self.known)
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


def _identical(watched: Others | Reads, own: dict[str, Any]) -> str:
    """An expression that is true if all that is watched is the same objects as then: most calls
    need ask no more.
    """

    def name(value: Any) -> str:
        own[f"q{len(own)}"] = value
        return f"q{len(own) - 1}"

    if isinstance(watched, Reads):
        return watched.expression(name)
    if watched.random is not None:
        return "False"
    parts: list[str] = []

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
