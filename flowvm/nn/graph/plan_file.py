"""Plans in a file, for another process, which captures nothing and runs no pass.

A file has, for each Plan, the optimized LogicalGraph, the key of the calls that it serves, and what
its code saw: settings of modules, options, globals, as far as they are plain, and hashes of the
code.  The second process builds the same graph object (same classes, same attributes), loads,
and calls.

It is a safetensors file (`flow.save`): tensors for the constants, JSON for the rest.

What is here is held against what is saved: versions, the code of `build` and of the modules,
variables by name, shape, dtype and place, operators by their declarations.  What differs is an
error that says it; a setting that differs is none, for the Plan waits for calls with the saved one.

A file is not trusted: nothing that it names is imported or called, all of it is checked before any
of it is used (`flowvm.graph.logical.saving`), and a graph whose file is
refused has the Plans that it had before.

The parts: the forms that a file must have, from the outside in; saving; loading.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Iterator, Mapping, Sequence
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

import flowvm.graph.passes.passes
import flowvm.ops.places.suppression
import flowvm.ops.planes.deform_conv
import flowvm.ops.planes.regions
import flowvm.ops.random.parts.gamma
import flowvm.ops.sparse.products  # noqa: F401  operators that are declared late
from flowvm.eager.live import Alike, Condition, Decision, Decisions, Leaf, Live
from flowvm.eager.tensor import Tensor, new_tensor
from flowvm.errors import ArgumentError, FlowError
from flowvm.files.schema import Check, anything, integer, read_json, record, row, several, text
from flowvm.graph.capture.capture import Capture
from flowvm.graph.capture.conditions import ReadValue
from flowvm.graph.capture.trees import check_tree
from flowvm.graph.logical.nodes import Buffer
from flowvm.graph.logical.plain import META, code_mark, plain, read_meta, read_plain
from flowvm.graph.logical.saving import Numbers, ReadNumbers, read_graph, saved_graph
from flowvm.graph.plan.plan import compile_plan
from flowvm.meta.dtype import uint8
from flowvm.meta.meta import TensorMeta
from flowvm.nn.graph.build import GraphBuild
from flowvm.nn.graph.compiled import Compiled
from flowvm.nn.graph.environment import Environment
from flowvm.nn.graph.guards import Contents, Guard, Guards, State
from flowvm.nn.graph.steps import Steps, fixed_options
from flowvm.nn.module import Module
from flowvm.ops.random.generator import Generator, default_generator
from flowvm.version import VERSION
from flowvm.vm.engine.engine import engine
from flowvm.vm.machine.words import OPERAND, STO

if TYPE_CHECKING:
    from flowvm.optim.optimizer import Optimizer


# --- the form of a file -----------------------------------------------------------------------


MOST_PLANS = 256
_NAME = text()
_PLACE = integer(0, 1 << 24)
PLAN: Check = record(
    structure=anything,
    settings=several(anything, 1 << 14),
    options=several(row(_NAME, anything)),
    result=anything,
    ends=several(_PLACE, 1 << 14),
    graph=anything,  # flowvm.graph.logical.saving.GRAPH
    draws=several(_NAME, 1 << 10),
    guards=several(row(anything, anything)),
    updates=several(row(row(_PLACE, _PLACE), _NAME, anything)),
    seen=several(row(_NAME, anything)),
    code=anything,
    numbers=several(anything, 1 << 18),
)
STATE: Check = record(
    magic=_NAME, format=_PLACE, flowvm=_NAME, python=_NAME, graph=_NAME, plans=text(1 << 28),
    constants=anything, sha256=text(64),
)  # fmt: skip
VARIABLE: Check = record(names=several(_NAME, 1 << 14, least=1), meta=record(meta=META), at=_PLACE)
# what operators raise of operands, attributes and numbers that are none of theirs
REFUSALS = (
    FlowError, ArithmeticError, AssertionError, AttributeError, LookupError, MemoryError,
    RuntimeError, StopIteration, SyntaxError, TypeError, ValueError,
)  # fmt: skip
CONSTANT: Check = record(constant=_NAME)
OTHERS: Check = record(others=several(row(_PLACE, _PLACE)))


def is_place(value: object) -> bool:
    """Return True if a part of a Leaf's key is an index."""
    return type(value) is int and 0 <= value < 1 << 24


def has_number(value: Any, place: tuple[Any, ...]) -> bool:
    """Return True if an option is a number, or has a number at `place`."""
    if place:
        several = isinstance(value, (tuple, list)) and is_place(place[0])
        return several and place[0] < len(value) and has_number(value[place[0]], ())
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def check_call(
    name: str, structure: object, settings: Sequence[object], compiled: Compiled
) -> None:
    """ArgumentError unless a call that the key lets in has the tensors that the Plan takes, and its
    result those that the Plan gives.
    """
    logical, ends = compiled.plan.graph, compiled.ends
    metas = [operand.meta for operand in logical.inputs]
    own = [v for v in settings if isinstance(v, TensorMeta)]
    if list(settings[: len(metas)]) != metas or len(own) != len(metas):
        raise ArgumentError(
            f"{name}: the saved graph is damaged: its key is of other tensors than its inputs are"
        )
    check_tree(structure, len(metas), "the arguments")
    check_tree(compiled.structure, len(logical.outputs), "the result")
    if any(k >= len(logical.outputs) for k in ends) or len(set(ends)) != len(ends):
        raise ArgumentError(
            f"{name}: the saved graph is damaged: outputs that go backward are {ends}, "
            f"of {len(logical.outputs)}"
        )


# --- saving -----------------------------------------------------------------------------------


MAGIC = "flowvm compiled graph"
FORMAT = 3


# --- saving -------------------------------------------------------------------------------------


def runtime_state(graph: GraphBuild, compiled_for: Mapping[Any, Sequence[Any]]) -> dict[str, Any]:
    """Return the result of `Graph.runtime_state_dict`: the compiled Plans of each call key."""
    if graph._scaler is not None:
        raise ArgumentError(f"{graph.name}: a graph with a GradScaler cannot be saved")
    writer = _Writer(graph)
    plans = [writer.plan(key, compiled) for key, same in compiled_for.items() for compiled in same]
    if not plans:
        raise ArgumentError(f"{graph.name} has no plan to save: call it first")
    text = json.dumps(plans, separators=(",", ":"))
    return {
        "magic": MAGIC,
        "format": FORMAT,
        "flowvm": str(VERSION),
        "python": python_version(),
        "graph": graph.name,
        "plans": text,
        "constants": writer.constants,
        "sha256": checksum(text, writer.constants),
    }


def checksum(text: str, constants: Mapping[str, Tensor]) -> str:
    """A hash of all that is saved."""
    digest = hashlib.sha256(text.encode())
    for name in sorted(constants):
        digest.update(name.encode() + constants[name].numpy().tobytes())
    return digest.hexdigest()


class _Writer:
    """One graph's names, while its Plans are written."""

    def __init__(self, graph: GraphBuild) -> None:
        self.graph = graph
        self.constants: dict[str, Tensor] = {}
        self.names = named_tensors(graph, graph._surroundings())
        self.by_storage: dict[int, list[str]] = {}
        for name, t in self.names.items():
            self.by_storage.setdefault(t._ref & OPERAND.STORAGE_MASK, []).append(name)
        self.entries = {id(entry): key for key, entry in state_entries(graph)}

    def plan(self, key: Sequence[Any], compiled: Compiled) -> dict[str, Any]:
        name = self.graph.name
        if type(compiled) is not Compiled:
            raise ArgumentError(
                f"{name}: a graph that runs in segments, or whose calls change .grad of leaves, "
                f"cannot be saved"
            )
        if compiled.leftovers:
            raise ArgumentError(
                f"{name}: a graph that changes how an argument shows its memory, or makes its "
                f"gradient go on, cannot be saved"
            )
        numbers, what = Numbers(), f"{name}: a call's key"
        modules, others, *reads = compiled.watched
        if any(isinstance(guard, State) for guard in others):
            raise ArgumentError(
                f"{name}: build draws from Python's or NumPy's random state, so no Plan serves "
                f"another process"
            )
        changed = reads[0].changed if reads else []
        if changed:
            raise ArgumentError(
                f"{name}: build changes what it reads ({', '.join(changed[:3])}), so no Plan "
                f"serves another process"
            )
        places = list(option_places(self.graph))
        options = key[len(key) - len(places) :]
        settings = key[1 : len(key) - len(places)]
        return {
            "structure": plain(key[0], what),
            "settings": [self._setting(v, what) for v in settings],
            "options": [
                [name, plain(then, what) if is_plain(value) else None]
                for (name, value), then in zip(places, options, strict=True)
            ],
            "result": plain(compiled.structure, f"{name}: a result"),
            "ends": compiled.ends,
            "graph": saved_graph(compiled.plan.graph, numbers, self._variable),
            "draws": [self._generator(g) for g, _ in compiled.draws],
            "guards": [self._guard(g, numbers) for g in compiled.guards],
            "updates": [
                [list(self.entries[id(owner)]), at, numbers.saved(cell, what)]
                for owner, at, cell in compiled.updates
            ],
            "seen": [[*_named_form(guard)] for guard in _named_guards(modules, others)],
            "code": code_marks(self.graph, modules, others),
            "numbers": numbers.table,
        }

    def _setting(self, value: object, what: str) -> Any:
        """Part of a key; modules in the configuration go by their names."""
        if isinstance(value, tuple):
            return {"tuple": [self._setting(v, what) for v in value]}
        if isinstance(value, Module):
            for path, module in self.graph._modules():
                if module is value:
                    return {"module": path}
        return plain(value, what)

    def _variable(self, buffer: Buffer, line: str) -> object:
        names = self.by_storage.get(buffer.held.id)
        if names is not None:
            t = self.names[names[0]]
            return {
                "names": names,
                "meta": plain(t._meta, "a variable"),
                "at": t._ref >> OPERAND.STORAGE_BITS,
            }
        if buffer.name == "constant":  # nobody writes it
            name = f"constant{len(self.constants)}"
            meta = TensorMeta.of((buffer.nbytes,), uint8)
            self.constants[name] = new_tensor(buffer.held.id, meta, buffer.held)
            return {"constant": name}
        raise ArgumentError(
            f"{self.graph.name}: a tensor of {buffer.nbytes} bytes that is used at "
            f"{line or 'build'} has no name in the graph, so another process could not find its "
            f"own: make it a parameter, a buffer or an attribute"
        )

    def _generator(self, generator: object) -> str:
        if generator is default_generator:
            return ""
        if not isinstance(generator, Generator):
            raise ArgumentError(
                f"{self.graph.name}: build seeds a generator, or keeps its state, and such a graph "
                f"cannot be saved: seed before the call"
            )
        for name, value in self.graph.named_attributes():
            if value is generator:
                return str(name)
        raise ArgumentError(
            f"{self.graph.name}: {generator!r} has no name in the graph: make it an attribute"
        )

    def _guard(self, guard: Condition, numbers: Numbers) -> Any:
        what = f"{self.graph.name}: a guard"
        if isinstance(guard, Decision):
            return [numbers.saved(guard.question, what), plain(guard.outcome, what)]
        if isinstance(guard, Alike):
            others = [list(self.entries[id(other)]) for other in guard.leaf.others]
            return [numbers.saved(guard.leaf, what), {"others": others}]
        if isinstance(guard, ReadValue):
            raise ArgumentError(
                f"{self.graph.name}: build reads the values of a tensor and goes by them, so the "
                f"graph is for these values alone, and no Plan serves another process"
            )
        raise ArgumentError(
            f"{self.graph.name}: build decides by {guard!r}, which has no saved form: decide by a "
            f"number that an optimizer or a schedule has"
        )


# --- what both sides ask of a graph -------------------------------------------------------------


def python_version() -> str:
    """Return Python's version as "3.11": hashes of bytecode hold for one such version."""
    return ".".join(platform.python_version_tuple()[:2])


def named_tensors(graph: GraphBuild, around: Environment) -> dict[str, Tensor]:
    """Every tensor that has a name: of modules and optimizers, attributes, closures, globals."""
    tensors = dict(graph._named_tensors())
    for label, t in around.tensors():
        tensors.setdefault(label, t)
    return tensors


def state_entries(graph: GraphBuild) -> Iterator[tuple[tuple[int, int], dict[str, object]]]:
    """((optimizer, parameter), its state) of each parameter that has one."""
    for number, (optimizer, _) in enumerate(graph._optimizers):
        for place, param in enumerate(optimizer._all_params()):
            if param in optimizer.state:
                yield (number, place), optimizer.state[param]


def option_places(graph: GraphBuild) -> Iterator[tuple[str, object]]:
    """Name and value of each option that is part of a key, in the key's order."""
    for number, (optimizer, _) in enumerate(graph._optimizers):
        for place, group in enumerate(optimizer.param_groups):
            for name, value in fixed_options(optimizer, group).items():
                yield f"{number}.{place}.{name}", value


def is_plain(value: object) -> bool:
    """Return True if an option enters a key by its value and not by its identity."""
    return isinstance(value, (bool, int, float, str, tuple))


def _named_guards(modules: Guards, others: Guards) -> Iterator[Guard]:
    """Yield the guard of each value that build and the modules read outside their arguments."""
    return (guard for guard in (*modules, *others) if guard.by_code)


def _named_form(guard: Guard) -> tuple[str, Any]:
    """Return the name of a value that was read, and its saved form."""
    if isinstance(guard, Contents):
        return f"the contents of {guard.label}", seen_form(tuple(map(seen_form, guard.then)))
    return guard.label, seen_form(guard.then)


def seen_form(value: object) -> Any:
    """Return the saved form of a value that was read: plain values as they are, others as their
    type's name.
    """
    if isinstance(value, (FunctionType, MethodType)):
        return {"kind": f"function {code_mark(value)}"}
    try:
        return plain(value, "")
    except TypeError:
        return {"kind": type(value).__qualname__}


def code_marks(graph: GraphBuild, modules: Guards, others: Guards) -> dict[str, str]:
    """Hashes of the code of build, and of the forward of modules that it reaches."""
    marks = {"build": code_mark(type(graph).build)}
    for guard in _named_guards(modules, others):
        if isinstance(guard.then, Module):
            marks[guard.label] = code_mark(guard.then.forward)
    return marks


# --- loading ----------------------------------------------------------------------------------


def loaded_plans(graph: GraphBuild, state: Mapping[str, Any]) -> list[tuple[Any, Compiled]]:
    """Return the Plans of a saved state, each with its call key, for
    `Graph.load_runtime_state_dict`.
    """
    if not isinstance(state, Mapping) or state.get("magic") != MAGIC:
        raise ArgumentError(
            f"{graph.name}: this is not a saved graph, as Graph.save and runtime_state_dict make; "
            f"a checkpoint of values goes to load_state_dict"
        )
    versions = {"format": FORMAT, "flowvm": VERSION, "python": python_version()}
    for name, value in versions.items():
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
        raise ArgumentError(
            f"{graph.name}: the saved graph is damaged: its constants have the wrong form"
        )
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

    def checked_plan(self, saved: Mapping[str, object]) -> tuple[object, Compiled]:
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
        for question, outcome in saved["guards"]:
            live = numbers.read(question)
            if isinstance(outcome, dict) and "others" in outcome:
                OTHERS(outcome, "a guard")
                if not isinstance(live, Leaf) or len(live.names) != 1:
                    raise ArgumentError(
                        f"{graph.name}: the saved graph is damaged: it compares {live!r} with "
                        f"options, and that is not an option"
                    )
                live.others += [self._number_at(key, live.names[0]) for key in outcome["others"]]
                capture.guards.append(Alike(live))
            elif isinstance(live, Live):
                capture.guards.append(Decision(live, read_plain(outcome)))
            else:
                raise ArgumentError(
                    f"{graph.name}: the saved graph is damaged: it checks {live!r}, a constant"
                )
        steps = Steps(graph._optimizers, capture)
        steps.updates = [
            (self._number_at(key, name), name, numbers.read(cell))
            for key, name, cell in saved["updates"]
        ]
        self._expect(around, saved["seen"])
        compiled = Compiled(
            capture, compile_plan(logical), read_plain(saved["result"]), steps, around.static
        )
        compiled.ends = saved["ends"]
        settings = [self._setting(v) for v in saved["settings"]]
        structure = read_plain(saved["structure"])
        check_call(graph.name, structure, settings, compiled)
        return (structure, *settings, *self._options(saved)), compiled

    # --- what is there ------------------------------------------------------------------------

    def _check_code(self, saved: object, now: Mapping[str, str]) -> None:
        if not isinstance(saved, dict) or "build" not in saved:
            raise ArgumentError(f"{self.graph.name}: the saved graph does not name its code")
        for name, mark in saved.items():
            if now.get(name) != mark:
                what = "has other code than in" if name in now else "is missing, unlike in"
                raise ArgumentError(
                    f"{self.graph.name}: {name} {what} the graph that was saved: capture it anew"
                )

    def _expect(self, around: Environment, saved: Sequence[Any]) -> None:
        """Let the Plan ask for what was seen when it was captured: a saved value that is plain."""
        expected: dict[str, list[Any]] = {}
        for source, value in saved:
            expected.setdefault(source, []).append(value)
        for guard in _named_guards(*around.static):
            text, now = _named_form(guard)
            if not expected.get(text):
                continue
            then = expected[text].pop(0)
            if then == now:
                continue
            kinds = [isinstance(v, dict) and "kind" in v for v in (then, now)]
            if any(kinds) or isinstance(guard, Contents):
                raise ArgumentError(
                    f"{self.graph.name}: {text} is not what it was when the graph was saved: {now} "
                    f"here, {then} then"
                )
            guard.then = read_plain(then)
        missing = [source for source, values in expected.items() if values]
        if missing:
            raise ArgumentError(
                f"{self.graph.name}: the captured code read {', '.join(missing[:3])}, which this "
                f"program lacks"
            )
        for watcher in around.static:
            watcher.ready()

    # --- names --------------------------------------------------------------------------------

    def _variable(self, saved: Any, nbytes: int) -> Any:
        if isinstance(saved, dict) and "constant" in saved:
            CONSTANT(saved, "a variable")
            constant = self.constants.get(saved["constant"])
            if constant is None or constant._meta.nbytes < nbytes or not constant._meta.contiguous:
                raise ArgumentError(
                    f"{self.graph.name}: the saved graph is damaged: its constant "
                    f"{saved['constant']!r} does not have {nbytes} bytes"
                )
            return constant.clone().storage()
        VARIABLE(saved, "a variable")
        names, meta = saved["names"], read_meta(saved["meta"]["meta"])
        missing = [name for name in names if name not in self.names]
        if missing:
            raise ArgumentError(
                f"{self.graph.name}: the saved graph uses {missing[0]!r}, which this graph lacks"
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
            engine.waits.wait_for([t._ref])  # memory has a size when there is some
            if nbytes > int(engine.words[STO.AT + storage.id * STO.WORDS + STO.BYTES]):
                raise ArgumentError(
                    f"{self.graph.name}: the saved graph uses {nbytes} bytes of the memory of "
                    f"{names[0]!r}, which has fewer"
                )
        return storage

    def _owner(self, key: object) -> tuple[object, tuple[object, ...]]:
        """Return the object that holds the number of a Leaf's key, and the path to the number in
        it.
        """
        if type(key) is not tuple or not 3 <= len(key) <= 5 or not all(map(is_place, key[1:3])):
            raise ArgumentError(
                f"{self.graph.name}: the saved graph needs the number {key!r}, which is not a "
                "number's key"
            )
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
        raise ArgumentError(
            f"{self.graph.name}: the saved graph needs the number {key}, which this graph lacks"
        )

    def _optimizer(self, number: int) -> Optimizer:
        if number >= len(self.graph._optimizers):
            raise ArgumentError(
                f"{self.graph.name}: the saved graph steps {number + 1} optimizers, this one has "
                f"{len(self.graph._optimizers)}"
            )
        return self.graph._optimizers[number][0]

    def _entry(self, key: tuple[int, int]) -> dict[str, object]:
        self._optimizer(key[0])
        if key not in self.entries:
            raise ArgumentError(
                f"{self.graph.name}: optimizer {key[0]} has no state for its parameter {key[1]}: "
                f"load its state first (load_state_dict), or take one step eagerly"
            )
        return self.entries[key]

    def _number_at(self, key: Sequence[int], name: str) -> dict[str, object]:
        """The state of a parameter in which a step changes the number of this name."""
        entry = self._entry((key[0], key[1]))
        if not has_number(entry.get(name), ()):
            raise ArgumentError(
                f"{self.graph.name}: the saved graph changes the number {name!r} of an optimizer's "
                f"state, which the optimizer lacks"
            )
        return entry

    def _generator(self, name: str) -> Generator:
        value = dict(self.graph.named_attributes()).get(name) if name else default_generator
        if not isinstance(value, Generator):
            raise ArgumentError(
                f"{self.graph.name}: the saved graph draws from {name!r}, which is not a generator"
            )
        return value

    def _setting(self, saved: object) -> Any:
        if isinstance(saved, dict) and "module" in saved:
            if saved.keys() != {"module"} or saved["module"] not in self.paths:
                raise ArgumentError(
                    f"{self.graph.name}: the saved graph has the module {saved['module']!r} in its "
                    f"configuration, which this graph lacks"
                )
            return self.paths[saved["module"]]
        if isinstance(saved, dict) and "tuple" in saved:
            return tuple(self._setting(v) for v in saved["tuple"])
        return read_plain(saved)

    def _options(self, saved: Mapping[str, Any]) -> list[Any]:
        options = list(option_places(self.graph))
        if [name for name, _ in options] != [name for name, _ in saved["options"]]:
            raise ArgumentError(
                f"{self.graph.name}: its optimizers have other groups or options than those of the "
                f"saved graph"
            )
        return [
            read_plain(then) if is_plain(value) else id(value)
            for (_, value), (_, then) in zip(options, saved["options"], strict=True)
        ]
