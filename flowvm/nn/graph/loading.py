"""Taking over the Plans that another process saved (`flowvm.nn.graph.saving`).

What is here is held against what is saved: versions, the code of `build` and of the modules,
variables by name, shape, dtype and place, operators by their declarations.  What differs is an
error that says it; a setting that differs is none, for the Plan waits for calls with the saved one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from flowvm.dtype import dtype_named
from flowvm.eager.live import Decisions
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError
from flowvm.graph.capture.capture import Capture
from flowvm.graph.logical.plain import read_plain
from flowvm.graph.logical.saving import ReadNumbers, read_graph
from flowvm.graph.plan.plan import compile_plan
from flowvm.nn.graph.build import GraphBuild
from flowvm.nn.graph.compiled import Compiled
from flowvm.nn.graph.saving import (
    FORMAT,
    MAGIC,
    checksum,
    code_marks,
    is_plain,
    named_tensors,
    option_places,
    python_version,
    seen_form,
    state_entries,
)
from flowvm.nn.graph.steps import Steps
from flowvm.nn.graph.surroundings import Surroundings
from flowvm.ops.random.generator import Generator, default_generator
from flowvm.version import VERSION
from flowvm.vm.machine.words import OPERAND


def loaded_plans(graph: GraphBuild, state: Mapping[str, Any]) -> list[tuple[Any, Compiled]]:
    """What `Graph.load_runtime_state_dict` takes over: what was compiled, each with its key."""
    if not isinstance(state, Mapping) or state.get("magic") != MAGIC:
        raise ArgumentError(
            f"{graph.name}: this is no saved graph; Graph.save and runtime_state_dict make them "
            f"(a checkpoint of values goes to load_state_dict)"
        )
    here = {"format": FORMAT, "flowvm": VERSION, "python": python_version()}
    for name, value in here.items():
        if state.get(name) != value:
            raise ArgumentError(
                f"{graph.name}: the graph was saved with {name} {state.get(name)}, this is {name} "
                f"{value}: capture it anew (call it) and save it again"
            )
    text, constants = state.get("plans", ""), state.get("constants", {})
    if checksum(text, constants) != state.get("sha256"):
        raise ArgumentError(f"{graph.name}: the saved graph is damaged: its checksum differs")
    reader = _Reader(graph, constants)
    return [reader.plan(saved) for saved in json.loads(text)]


class _Reader:
    """One graph's names, while Plans are read."""

    def __init__(self, graph: GraphBuild, constants: Mapping[str, Tensor]) -> None:
        self.graph, self.constants = graph, constants
        self.paths = dict(graph._modules())
        self.entries = dict(state_entries(graph))
        self.held: dict[int, list[str]] = {}  # storages of variables so far

    def plan(self, saved: Mapping[str, Any]) -> tuple[Any, Compiled]:
        graph = self.graph
        around = graph._surroundings()
        self.names = named_tensors(graph, around)
        self.held = {}
        self._check_code(saved["code"], code_marks(graph, *around.watchers))
        capture = Capture(graph.name)
        capture.guards, capture.draws = Decisions(), [(self._generator(g), [(0, 0)])
                                                      for g in saved["draws"]]  # fmt: skip
        self.draws = capture.draws
        numbers = ReadNumbers(saved["numbers"], capture.guards, self._owner)
        logical = read_graph(saved["graph"], numbers, self._variable)
        for asked, outcome in saved["guards"]:
            live = numbers.read(asked)
            if isinstance(outcome, dict) and "others" in outcome:
                live.others += [self._entry(tuple(key)) for key in outcome["others"]]
                capture.guards.append((live.alike, True))
            else:
                capture.guards.append((live, read_plain(outcome)))
        steps = Steps(graph._optimizers, capture)
        steps.updates = [
            (self._entry(tuple(key)), name, numbers.read(cell))
            for key, name, cell in saved["updates"]
        ]
        self._expect(around, saved["seen"], saved["dtype"])
        compiled = Compiled(
            capture, compile_plan(logical), read_plain(saved["result"]), steps, around.watchers
        )
        compiled.ends = saved["ends"]
        settings = [self._setting(v) for v in saved["settings"]]
        return (read_plain(saved["structure"]), *settings, *self._options(saved)), compiled

    # --- what is there ------------------------------------------------------------------------

    def _check_code(self, saved: Mapping[str, str], now: Mapping[str, str]) -> None:
        for name, mark in saved.items():
            if now.get(name) != mark:
                what = "has other code than in" if name in now else "is not there, unlike in"
                raise ArgumentError(
                    f"{self.graph.name}: {name} {what} the graph that was saved: capture it anew"
                )

    def _expect(self, around: Surroundings, saved: Sequence[Any], dtype: str) -> None:
        """Let the Plan ask for what was seen when it was captured."""
        modules, others = around.watchers
        left: dict[str, list[Any]] = {}
        for text, value in saved:
            left.setdefault(text, []).append(value)
        for view in (*modules.views.values(), *others.views.values()):
            for name, value in list(view.then.items()):
                view.then[name] = self._then(left, view.text(name), value)
        for key, (name, cell, value) in list(others.cells.items()):
            others.cells[key] = (name, cell, self._then(left, name, value))
        for label, _, items in others.contents.values():
            self._then(left, f"the contents of {label}", tuple(map(seen_form, items)))
        others.dtype = dtype_named(dtype)
        missing = [text for text, values in left.items() if values]
        if missing:
            raise ArgumentError(
                f"{self.graph.name}: the code that was captured read {', '.join(missing[:3])}, and "
                f"there is no such thing here"
            )
        for watcher in around.watchers:
            watcher.ready()

    def _then(self, left: dict[str, list[Any]], text: str, value: Any) -> Any:
        """The value that the Plan asks for: the saved one, if it is plain."""
        saved = left.get(text)
        if not saved:
            return value
        then, now = saved.pop(0), seen_form(value)
        if then == now:
            return value
        kinds = [isinstance(v, dict) and "kind" in v for v in (then, now)]
        if any(kinds) or text.startswith("the contents of "):
            raise ArgumentError(
                f"{self.graph.name}: {text} is not what it was when the graph was saved: {now} "
                f"here, {then} then"
            )
        return read_plain(then)

    # --- names --------------------------------------------------------------------------------

    def _variable(self, saved: Mapping[str, Any]) -> Any:
        if "constant" in saved:
            return self.constants[saved["constant"]].clone().storage()
        names, meta = saved["names"], read_plain(saved["meta"])
        missing = [name for name in names if name not in self.names]
        if missing:
            raise ArgumentError(
                f"{self.graph.name}: the saved graph uses {missing[0]!r}, which is not there"
                + (
                    "; if it is the state of an optimizer, load that first (load_state_dict), or "
                    "take one step eagerly"
                    if self.graph._optimizers
                    else ""
                )
            )
        tensors = [self.names[name] for name in names]
        t = tensors[0]
        if t._meta is not meta or t._ref >> OPERAND.STORAGE_BITS != saved["at"]:
            raise ArgumentError(
                f"{self.graph.name}: {names[0]!r} is {t._meta!r} here, and the saved graph was "
                f"compiled for {meta!r}"
                + (" at another place in its memory" if t._meta is meta else "")
            )
        storage = t.storage()
        ids = (o._ref & OPERAND.STORAGE_MASK for o in tensors)
        apart = next((n for n, i in zip(names, ids, strict=True) if i != storage.id), "")
        shared = self.held.setdefault(storage.id, names)
        if apart or shared is not names:
            raise ArgumentError(
                f"{self.graph.name}: {names[0]!r} and {apart or shared[0]!r} share memory "
                f"{'in the saved graph and do not here' if apart else 'here and did not then'}"
            )
        return storage

    def _owner(self, key: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
        """Where the number of a Leaf's key is."""
        kind, number, place, name = (*key, None)[:4]
        if kind == "draw":
            return self.draws[number][1], (0, place)
        if kind == "option":
            groups = self._optimizer(number).param_groups
            if place < len(groups) and name in groups[place]:
                return groups[place], (name, *key[4:])
        elif kind == "state":
            return self._entry((number, place)), (name,)
        raise ArgumentError(f"{self.graph.name}: the saved graph needs {key}, which is not there")

    def _optimizer(self, number: int) -> Any:
        if number >= len(self.graph._optimizers):
            raise ArgumentError(
                f"{self.graph.name}: the saved graph steps {number + 1} optimizers, this one has "
                f"{len(self.graph._optimizers)}"
            )
        return self.graph._optimizers[number][0]

    def _entry(self, key: tuple[int, int]) -> dict[str, Any]:
        self._optimizer(key[0])
        if key not in self.entries:
            raise ArgumentError(
                f"{self.graph.name}: optimizer {key[0]} has no state for its parameter {key[1]}: "
                f"load its state first (load_state_dict), or take one step eagerly"
            )
        return self.entries[key]

    def _generator(self, name: str) -> Any:
        found = dict(self.graph.named_attributes()).get(name) if name else default_generator
        if not isinstance(found, Generator):
            raise ArgumentError(
                f"{self.graph.name}: the saved graph draws from {name!r}, which is no generator"
            )
        return found

    def _setting(self, saved: Any) -> Any:
        if isinstance(saved, dict) and "module" in saved:
            return self.paths[saved["module"]]
        if isinstance(saved, dict) and "tuple" in saved:
            return tuple(self._setting(v) for v in saved["tuple"])
        return read_plain(saved)

    def _options(self, saved: Mapping[str, Any]) -> list[Any]:
        there = list(option_places(self.graph))
        if [name for name, _ in there] != [name for name, _ in saved["options"]]:
            raise ArgumentError(
                f"{self.graph.name}: its optimizers have other groups or options than those of the "
                f"saved graph"
            )
        return [
            read_plain(then) if is_plain(value) else id(value)
            for (_, value), (_, then) in zip(there, saved["options"], strict=True)
        ]
