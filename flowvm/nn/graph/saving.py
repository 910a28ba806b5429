"""Saving a graph's Plans for another process, which captures nothing and runs no pass.

A file has, for each Plan, the optimized LogicalGraph, the key of the calls that it serves, and what
its code saw: settings of modules, options, globals, as far as they are plain, and hashes of the
code.  The second process builds the same graph object (same classes, same attributes), loads
(`flowvm.nn.graph.loading`), and calls.

It is a safetensors file (`flow.save`): tensors for the constants, JSON for the rest.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Iterator, Mapping, Sequence
from types import FunctionType, MethodType
from typing import Any

from flowvm.eager.live import Leaf, Live
from flowvm.eager.tensor import Tensor, new_tensor
from flowvm.errors import ArgumentError
from flowvm.graph.capture.conditions import ReadValue
from flowvm.graph.logical.nodes import Buffer
from flowvm.graph.logical.plain import code_mark, plain
from flowvm.graph.logical.saving import Numbers, saved_graph
from flowvm.meta.dtype import uint8
from flowvm.meta.meta import TensorMeta
from flowvm.nn.graph.build import GraphBuild
from flowvm.nn.graph.compiled import Compiled
from flowvm.nn.graph.steps import fixed_options
from flowvm.nn.graph.surroundings import Surroundings
from flowvm.nn.module import Module
from flowvm.ops.random.generator import Generator, default_generator
from flowvm.version import VERSION
from flowvm.vm.machine.words import OPERAND

MAGIC = "flowvm compiled graph"
FORMAT = 2


# --- saving -------------------------------------------------------------------------------------


def runtime_state(graph: GraphBuild, compiled_for: Mapping[Any, Sequence[Any]]) -> dict[str, Any]:
    """What `Graph.runtime_state_dict` gives: what was compiled for each key of calls."""
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

    def plan(self, key: Sequence[Any], compiled: Any) -> dict[str, Any]:
        name = self.graph.name
        if type(compiled) is not Compiled:
            raise ArgumentError(
                f"{name}: a graph that runs in segments, or whose calls change .grad of leaves, "
                f"cannot be saved"
            )
        if compiled.left:
            raise ArgumentError(
                f"{name}: a graph that changes how an argument shows its memory, or makes its "
                f"gradient go on, cannot be saved"
            )
        numbers, what = Numbers(), f"{name}: a call's key"
        modules, others, *reads = compiled.watched
        if others.random is not None:
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
            "seen": [[text, seen_form(value)] for text, value in _all_seen(modules, others)],
            "code": code_marks(self.graph, modules, others),
            "numbers": numbers.table,
            "dtype": others.dtype.name,
        }

    def _setting(self, value: Any, what: str) -> Any:
        """Part of a key; modules in the configuration go by their names."""
        if isinstance(value, tuple):
            return {"tuple": [self._setting(v, what) for v in value]}
        if isinstance(value, Module):
            for path, module in self.graph._modules():
                if module is value:
                    return {"module": path}
        return plain(value, what)

    def _variable(self, buffer: Buffer, line: str) -> Any:
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

    def _generator(self, generator: Any) -> str:
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

    def _guard(self, guard: Any, numbers: Numbers) -> Any:
        find, outcome = guard
        leaf = getattr(find, "__self__", None)
        what = f"{self.graph.name}: a guard"
        if isinstance(find, Live):
            return [numbers.saved(find, what), plain(outcome, what)]
        if isinstance(leaf, Leaf):
            others = [list(self.entries[id(other)]) for other in leaf.others]
            return [numbers.saved(leaf, what), {"others": others}]
        if isinstance(leaf, ReadValue):
            raise ArgumentError(
                f"{self.graph.name}: build reads the values of a tensor and goes by them, so the "
                f"graph is for these values alone, and no Plan serves another process"
            )
        raise ArgumentError(f"{what} by {find!r} cannot be saved")


# --- what both sides ask of a graph -------------------------------------------------------------


def python_version() -> str:
    """Such as 3.11: hashes of bytecode hold for one of them."""
    return ".".join(platform.python_version_tuple()[:2])


def named_tensors(graph: GraphBuild, around: Surroundings) -> dict[str, Tensor]:
    """Every tensor that has a name: of modules and optimizers, attributes, closures, globals."""
    tensors = dict(graph._named_tensors())
    for label, t, *_ in around.modules.tensors.values():
        tensors.setdefault(label, t)
    return tensors


def state_entries(graph: GraphBuild) -> Iterator[tuple[tuple[int, int], dict[str, Any]]]:
    """((optimizer, parameter), its state) of each parameter that has one."""
    for number, (optimizer, _) in enumerate(graph._optimizers):
        for place, param in enumerate(optimizer._all_params()):
            if param in optimizer.state:
                yield (number, place), optimizer.state[param]


def option_places(graph: GraphBuild) -> Iterator[tuple[str, Any]]:
    """Name and value of each option that is part of a key, in the key's order."""
    for number, (optimizer, _) in enumerate(graph._optimizers):
        for place, group in enumerate(optimizer.param_groups):
            for name, value in fixed_options(optimizer, group).items():
                yield f"{number}.{place}.{name}", value


def is_plain(value: Any) -> bool:
    """Whether an option is part of a key by its value, and not by its identity."""
    return isinstance(value, (bool, int, float, str, tuple))


def _all_seen(modules: Any, others: Any) -> Iterator[tuple[str, Any]]:
    """What build and the modules saw outside their arguments: (what it is called, value)."""
    for view in (*modules.views.values(), *others.views.values()):
        for name, then in view.then.items():
            yield view.text(name), then
    for name, _, then in others.cells.values():
        yield name, then
    for label, _, items in others.contents.values():
        yield f"the contents of {label}", tuple(map(seen_form, items))


def seen_form(value: Any) -> Any:
    """What is saved of a value that was seen: plain ones whole, of others what kind they are."""
    if isinstance(value, (FunctionType, MethodType)):
        return {"kind": f"function {code_mark(value)}"}
    try:
        return plain(value, "")
    except TypeError:
        return {"kind": type(value).__qualname__}


def code_marks(graph: GraphBuild, modules: Any, others: Any) -> dict[str, str]:
    """Hashes of the code of build, and of the forward of modules that it reaches."""
    marks = {"build": code_mark(type(graph).build)}
    for view in (*modules.views.values(), *others.views.values()):
        for name, value in view.then.items():
            if isinstance(value, Module):
                marks[view.text(name)] = code_mark(value.forward)
    for name, _, value in others.cells.values():
        if isinstance(value, Module):
            marks[name] = code_mark(value.forward)
    return marks
