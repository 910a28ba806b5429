"""Taking over the Plans that another process saved (`flowvm.nn.graph.saving`).

What is here is held against what is saved: versions, the code of `build` and of the modules,
variables by name, shape, dtype and place, operators by their declarations.  What differs is an
error that says it; a setting that differs is none, for the Plan waits for calls with the saved one.

A file is not trusted: nothing that it names is imported or called, all of it is checked before any
of it is used (`flowvm.nn.graph.saved`, `flowvm.graph.logical.saving`), and a graph whose file is
refused has the Plans that it had before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import flowvm.graph.passes.passes
import flowvm.ops.places.suppression
import flowvm.ops.planes.deform_conv
import flowvm.ops.planes.regions
import flowvm.ops.random.parts.gamma  # noqa: F401  operators that are declared late
from flowvm.eager.live import Decisions, Leaf, Live
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError
from flowvm.files.schema import read_json, several
from flowvm.graph.capture.capture import Capture
from flowvm.graph.logical.plain import read_meta, read_plain
from flowvm.graph.logical.saving import ReadNumbers, read_graph
from flowvm.graph.plan.plan import compile_plan
from flowvm.meta.dtype import dtype_named
from flowvm.nn.graph.build import GraphBuild
from flowvm.nn.graph.compiled import Compiled
from flowvm.nn.graph.saved import (
    CONSTANT,
    MOST_PLANS,
    OTHERS,
    PLAN,
    REFUSALS,
    STATE,
    VARIABLE,
    check_call,
    has_number,
    is_place,
)
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
from flowvm.vm.engine.engine import engine
from flowvm.vm.machine.words import OPERAND, STO


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
    STATE(dict(state), f"{graph.name}: the saved graph")
    plans, constants = state["plans"], state["constants"]
    if not isinstance(constants, dict) or not all(
        isinstance(name, str) and isinstance(t, Tensor) for name, t in constants.items()
    ):
        raise ArgumentError(f"{graph.name}: the saved graph is damaged: its constants are none")
    if checksum(plans, constants) != state["sha256"]:
        raise ArgumentError(f"{graph.name}: the saved graph is damaged: its checksum differs")
    saved = read_json(plans, f"{graph.name}: the saved graph")
    several(PLAN, MOST_PLANS)(saved, f"{graph.name}: plans")
    reader = _Reader(graph, constants)
    return [reader.checked_plan(one) for one in saved]


class _Reader:
    """One graph's names, while Plans are read."""

    def __init__(self, graph: GraphBuild, constants: Mapping[str, Tensor]) -> None:
        self.graph, self.constants = graph, constants
        self.paths = dict(graph._modules())
        self.entries = dict(state_entries(graph))
        self.held: dict[int, list[str]] = {}  # storages of variables so far

    def checked_plan(self, saved: Mapping[str, Any]) -> tuple[Any, Compiled]:
        """`plan`; whatever else an operator says of operands that are none of its own is that the
        file is damaged.
        """
        try:
            key, compiled = self.plan(saved)
            hash(key)
            return key, compiled
        except ArgumentError:
            raise
        except REFUSALS as error:
            reason = str(error).split("\n")[0][:300]
            raise ArgumentError(
                f"{self.graph.name}: the saved graph cannot be taken over "
                f"({type(error).__name__}: {reason}): capture it anew (call it) and save it again"
            ) from error

    def plan(self, saved: Mapping[str, Any]) -> tuple[Any, Compiled]:
        graph = self.graph
        around = graph._surroundings()
        self.names = named_tensors(graph, around)
        self.held = {}
        self._check_code(saved["code"], code_marks(graph, around.modules, around.others))
        capture = Capture(graph.name)
        capture.guards, capture.draws = Decisions(), [(self._generator(g), [(0, 0)])
                                                      for g in saved["draws"]]  # fmt: skip
        self.draws = capture.draws
        numbers = ReadNumbers(saved["numbers"], capture.guards, self._owner)
        logical = read_graph(saved["graph"], numbers, self._variable)
        for asked, outcome in saved["guards"]:
            live = numbers.read(asked)
            if isinstance(outcome, dict) and "others" in outcome:
                OTHERS(outcome, "a guard")
                if not isinstance(live, Leaf) or len(live.names) != 1:
                    raise ArgumentError(f"{graph.name}: a guard of {live!r} has no others")
                live.others += [self._number_at(key, live.names[0]) for key in outcome["others"]]
                capture.guards.append((live.alike, True))
            elif isinstance(live, Live):
                capture.guards.append((live, read_plain(outcome)))
            else:
                raise ArgumentError(f"{graph.name}: a guard by {live!r}, which never changes")
        steps = Steps(graph._optimizers, capture)
        steps.updates = [
            (self._number_at(key, name), name, numbers.read(cell))
            for key, name, cell in saved["updates"]
        ]
        self._expect(around, saved["seen"], saved["dtype"])
        compiled = Compiled(
            capture, compile_plan(logical), read_plain(saved["result"]), steps, around.static
        )
        compiled.ends = saved["ends"]
        settings = [self._setting(v) for v in saved["settings"]]
        structure = read_plain(saved["structure"])
        check_call(graph.name, structure, settings, compiled)
        return (structure, *settings, *self._options(saved)), compiled

    # --- what is there ------------------------------------------------------------------------

    def _check_code(self, saved: Any, now: Mapping[str, str]) -> None:
        if not isinstance(saved, dict) or "build" not in saved:
            raise ArgumentError(f"{self.graph.name}: the saved graph does not say of what code")
        for name, mark in saved.items():
            if now.get(name) != mark:
                what = "has other code than in" if name in now else "is not there, unlike in"
                raise ArgumentError(
                    f"{self.graph.name}: {name} {what} the graph that was saved: capture it anew"
                )

    def _expect(self, around: Surroundings, saved: Sequence[Any], dtype: str) -> None:
        """Let the Plan ask for what was seen when it was captured."""
        modules, others = around.static
        left: dict[str, list[Any]] = {}
        for seen, value in saved:
            left.setdefault(seen, []).append(value)
        for view in (*modules.views.values(), *others.views.values()):
            for name, value in list(view.then.items()):
                view.then[name] = self._then(left, view.text(name), value)
        for key, (name, cell, value) in list(others.cells.items()):
            others.cells[key] = (name, cell, self._then(left, name, value))
        for label, _, items in others.contents.values():
            self._then(left, f"the contents of {label}", tuple(map(seen_form, items)))
        others.dtype = dtype_named(dtype)
        missing = [seen for seen, values in left.items() if values]
        if missing:
            raise ArgumentError(
                f"{self.graph.name}: the code that was captured read {', '.join(missing[:3])}, and "
                f"there is no such thing here"
            )
        for watcher in around.static:
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

    def _variable(self, saved: Any, nbytes: int) -> Any:
        if isinstance(saved, dict) and "constant" in saved:
            CONSTANT(saved, "a variable")
            there = self.constants.get(saved["constant"])
            if there is None or there._meta.nbytes < nbytes or not there._meta.contiguous:
                raise ArgumentError(
                    f"{self.graph.name}: the saved graph is damaged: its constant "
                    f"{saved['constant']!r} does not have {nbytes} bytes"
                )
            return there.clone().storage()
        VARIABLE(saved, "a variable")
        names, meta = saved["names"], read_meta(saved["meta"]["meta"])
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
        if nbytes > max((o._ref >> OPERAND.STORAGE_BITS) + o._meta.span for o in tensors):
            engine.wait_for([t._ref])  # memory has a size when there is some
            if nbytes > int(engine.words[STO.AT + storage.id * STO.WORDS + STO.BYTES]):
                raise ArgumentError(
                    f"{self.graph.name}: the saved graph uses {nbytes} bytes of the memory of "
                    f"{names[0]!r}, which has fewer"
                )
        return storage

    def _owner(self, key: Any) -> tuple[Any, tuple[Any, ...]]:
        """Where the number of a Leaf's key is."""
        if type(key) is not tuple or not 3 <= len(key) <= 5 or not all(map(is_place, key[1:3])):
            raise ArgumentError(f"{self.graph.name}: the saved graph needs {key!r}, which is none")
        kind, number, place, name = (*key, None)[:4]
        if kind == "draw" and len(key) == 3:
            if number < len(self.draws) and place < 2:
                return self.draws[number][1], (0, place)
        elif kind == "option" and isinstance(name, str):
            groups = self._optimizer(number).param_groups
            if place < len(groups) and has_number(groups[place].get(name), key[4:]):
                return groups[place], (name, *key[4:])
        elif kind == "state" and isinstance(name, str) and len(key) == 4:
            entry = self._entry((number, place))
            if has_number(entry.get(name), ()):
                return entry, (name,)
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

    def _number_at(self, key: Sequence[int], name: str) -> dict[str, Any]:
        """The state of a parameter in which a step changes the number of this name."""
        entry = self._entry((key[0], key[1]))
        if not has_number(entry.get(name), ()):
            raise ArgumentError(
                f"{self.graph.name}: the saved graph changes the number {name!r} of an optimizer's "
                f"state, which is not there"
            )
        return entry

    def _generator(self, name: str) -> Any:
        value = dict(self.graph.named_attributes()).get(name) if name else default_generator
        if not isinstance(value, Generator):
            raise ArgumentError(
                f"{self.graph.name}: the saved graph draws from {name!r}, which is no generator"
            )
        return value

    def _setting(self, saved: Any) -> Any:
        if isinstance(saved, dict) and "module" in saved:
            if saved.keys() != {"module"} or saved["module"] not in self.paths:
                raise ArgumentError(
                    f"{self.graph.name}: the saved graph has the module {saved['module']!r} in its "
                    f"configuration, which is not there"
                )
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
