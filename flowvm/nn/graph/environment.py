"""The environment of a capture: all that Python code sees besides its arguments, as it was before
the capture ran it, and the modules that it runs.

A capture runs Python once.  What that code read on the way is frozen in the Plan: attributes of the
graph and of every module called, closures, globals, the optimizers' state.  `Environment` has the
`watchers` that say, at each call, whether it is as it was *before the code ran*.  So code that
changes what it reads (`self.count += 1`) is captured anew at each call, which is slow, said, and
right.

What code reads is recorded while it runs (`flowvm.nn.graph.reads`).  What can be known without
running it is found here before: what modules and optimizers hold, and what names lead to, by which
a Plan's tensors are called, and which a Plan that was loaded from a file is asked for.

What cannot be right is an error, in `settle`: a tensor that the code computed and left in a place
whose tensor it had read, or in a list or dict.  A replay assigns and appends nothing.

How names are found: the bytecode of the user's functions (not of flowvm or installed libraries)
says which globals, closure variables and attributes of those it loads; functions among them are
looked into.

While a thread captures (`capture_environment`), every Module that is called is noted, before it
runs and however the code reached it.  The capture's scope follows it, and its `Environment` looks
at it, so that a Plan holds only as long as each of them is as it was.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Collection, Mapping
from types import FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

from flowvm.eager.tensor import Tensor
from flowvm.errors import CaptureError
from flowvm.graph.capture.trees import parts_of
from flowvm.meta.dtype import get_default_dtype
from flowvm.nn.graph.guards import (
    MISSING,
    Answer,
    Cell,
    Contents,
    Entry,
    Facts,
    Guard,
    Guards,
    Key,
    Length,
    Parts,
    Slot,
    State,
    content_of,
    items_of,
    random_states,
)
from flowvm.nn.graph.reads import Reads, is_library, is_ours, loads_of
from flowvm.nn.module import Module
from flowvm.nn.tables import Table

if TYPE_CHECKING:
    from flowvm.graph.capture.capture import Capture
    from flowvm.optim import Optimizer
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from flowvm.eager.modes import Recorder
from flowvm.guards.regions import Switched, reverting
from flowvm.nn.graph.observer import Observer
from flowvm.nn.module_calls import forget, tell

# --- the environment --------------------------------------------------------------------------


DEPTH = 3  # of containers in containers
ITEMS = 256  # a container of more is watched by its length alone
TABLES = ("_parameters", "_buffers", "_modules")
CONTAINERS = (list, dict, set, deque)


class Environment:
    """Everything remembered for one capture.

    `watchers` are what a Plan asks at each call, three Guards:

    modules  the modules' own attributes and tables, and the facts of tensors, whose changes are
             announced
    others   what else was found before the code ran: attributes of other objects, closures,
             globals, containers, the optimizers' state, random states that the code draws from
    reads    what the code read while it ran
    """

    def __init__(self) -> None:
        self.modules, self.others, self.reads = Guards(gated=True), Guards(), Reads(self)
        self.static = (self.modules, self.others)
        self.watchers = (*self.static, self.reads)
        dtype = Answer("the default dtype", get_default_dtype, (), get_default_dtype())
        self.others.add(("dtype",), dtype)
        self.capture: Any = None  # the one that runs
        self._looked: set[Any] = set()
        self._random = random_states()

    # --- looking, before the code runs --------------------------------------------------------

    def add_graph(self, graph: Any, without: Collection[str]) -> None:
        """A graph's attributes, but for those that all graphs have, and what its build reads."""
        own = vars(graph)
        self.reads.name(graph, graph.name)
        self.reads.hidden[id(graph)] = frozenset(without)
        for name in own:
            if name not in without and not name.startswith("__"):
                self._add(graph.name, own, name)
        self.add_function(type(graph).build, graph, graph.name)

    def add_module(self, module: Module, label: str) -> None:
        """All that a module holds, the hooks on it, what its forward reads, and its children."""
        if id(module) in self._looked:
            return
        self._looked.add(id(module))
        own, modules = module.__dict__, self.modules
        self.reads.name(module, label)
        for name in own:
            if name not in TABLES and name not in ("_transient", "_hooks"):
                self._add(label, own, name)
        for name in TABLES:
            table = own[name]
            if isinstance(table, Table):
                modules.add(("contents", id(table)), Parts(label, table))
            else:  # nobody hears of what is written there
                self.others.add(("contents", id(table)), Contents(label, table))
        for name, text in (
            *((name, f"{label}.{name}") for name in (*TABLES, "forward")),
            ("_hooks", f"the hooks of {label}"),
        ):
            modules.add(("slot", id(own), name), Slot(text, own, name, own.get(name, MISSING)))
        hooks = own.get("_hooks", MISSING)
        for name in () if hooks is MISSING else hooks.__slots__:
            table = getattr(hooks, name)
            if isinstance(table, dict):
                modules.add(("contents", id(table)), Parts(f"the hooks of {label}", table))
        self.reads.read_class(type(module), "forward")
        self.add_function(type(module).forward, module, label)

    def add_optimizer(self, optimizer: Optimizer) -> None:
        """Add an optimizer's parameters, and the tensors of its state."""
        label, state = type(optimizer).__name__, optimizer.state
        self.add_slot(f"{label}.state", vars(optimizer), "state")
        self.reads.leave((state, *state.values(), optimizer.param_groups, *optimizer.param_groups))
        self.reads.hidden[id(optimizer)] = frozenset({"step"})  # a capture's own, for the moment
        self._add_contents(f"{label}.state", state)
        for entry in state.values():
            for name, value in entry.items():
                if isinstance(value, Tensor):
                    self.add_slot(f"{label}.state's {name}", entry, name)
        for group in optimizer.param_groups:
            self._add_contents(f"{label}'s parameters", group["params"])

    def add_function(self, function: object, bound: object = None, label: str = "") -> None:
        """Globals, closure variables and attributes of them that a user's function loads.

        `bound` is the object that its first parameter stands for, `label` what that is called.
        """
        while isinstance(function, (MethodType, functools.partial)):
            if isinstance(function, MethodType):
                bound, label = function.__self__, label or type(function.__self__).__name__
                function = function.__func__
            else:
                function = function.func
        if not isinstance(function, FunctionType) or is_library(function.__code__):
            return
        code = function.__code__
        if (function, id(bound)) in self._looked:
            return
        self._looked.add((function, id(bound)))
        if isinstance(bound, Module):
            self.add_module(bound, label)
        cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
        for kind, name, attributes in loads_of(code):
            if kind == "global":
                if name in function.__globals__:
                    value = self._add("", function.__globals__, name)
                    self._follow(value, name, attributes)
            elif kind == "closure" and name in cells:
                self._follow(self._add_cell(name, cells[name]), name, attributes)
            elif kind == "self" and bound is not None:
                self._follow(bound, label, attributes)

    def _follow(self, value: object, label: str, attributes: tuple[str, ...]) -> None:
        """Attributes of attributes, as far as they are plain: `config.model.scale`."""
        for name in attributes:
            if isinstance(value, Tensor) or value is MISSING or is_ours(value):
                return
            try:
                own = vars(value)
            except TypeError:
                return
            if name not in own:
                self.add_function(getattr(type(value), name, None), value, label)
                return
            value = self._add(label, own, name)
            label = f"{label}.{name}"

    def _add(self, label: str, mapping: Mapping[str, Any], name: str) -> Any:
        """Remember one entry of a mapping; its value."""
        value = mapping[name]
        if isinstance(value, ModuleType):
            return value
        of_module = "_modules" in mapping and "_parameters" in mapping
        guards = self.modules if of_module else self.others
        text = f"{label}.{name}" if label else name
        if guards.add(("entry", id(mapping), name), Entry(text, mapping, name, value)):
            self._look_into(value, text, 0)
        return value

    def _add_cell(self, name: str, cell: object) -> Any:
        value = content_of(cell)
        if self.others.add(("cell", id(cell)), Cell(name, cell, value)):
            self._look_into(value, name, 0)
        return value

    def _add_contents(self, label: str, container: Any) -> bool:
        """Remember what a container holds; False if that is remembered."""
        if len(container) > ITEMS:
            guard = Length(label, container, len(container))
            return self.others.add(("length", id(container)), guard)
        return self.others.add(("contents", id(container)), Contents(label, container))

    def add_slot(self, label: str, owner: dict[str, Any], name: str) -> None:
        """Remember an entry of a dict that flowvm keeps."""
        self.others.add(("slot", id(owner), name), Slot(label, owner, name, owner[name]))

    def _look_into(self, value: Any, label: str, depth: int) -> None:
        if isinstance(value, Tensor):
            for part in parts_of(value):
                self.modules.add(("tensor", id(part)), Facts(label, part))
        elif isinstance(value, Module):
            self.add_module(value, label)
        elif type(value) in CONTAINERS:
            if self._add_contents(label, value) and len(value) <= ITEMS and depth < DEPTH:
                for item in items_of(value):
                    self._look_into(item, label, depth + 1)
        elif isinstance(value, (FunctionType, MethodType, functools.partial)):
            self.add_function(value)

    def look_into(self, value: object, label: str) -> None:
        """A tensor or a module that code has read."""
        if not self.is_computed(value):
            self._look_into(value, label, 0)

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield (label, tensor) for the tensors that code and modules use."""
        for guard in self.modules:
            if isinstance(guard, Facts):
                yield guard.label, guard.owner

    def is_computed(self, value: object) -> bool:
        """Return True if `value` is a tensor that the capture has made."""
        return self.capture is not None and _is_computed(value, self.capture)

    # --- after it ran ------------------------------------------------------------------------

    def settle(self, capture: Capture) -> None:
        """Refuse what the code left behind and no replay can, and be ready to be asked.

        CaptureError for a computed tensor that took the place of one that the code uses, or that
        went into a container; what was there before is put back.
        """
        for guards in self.watchers:
            for key, guard in guards.places():
                self._settle_guard(capture, guards, key, guard)
        if random_states() != self._random:
            self.others.add(("state",), State("Python or NumPy", None, self._random))
        self.reads.settle(self.others.keys())
        self._looked.clear()
        for guards in self.watchers:
            guards.ready()
        self.capture = None

    def _settle_guard(self, capture: Capture, guards: Guards, key: Key, guard: Guard) -> None:
        if isinstance(guard, Contents):
            now = guard.now()
            if now is guard.then or not isinstance(now, tuple):
                return
            known = set(map(id, guard.then))
            new = [i for i in now if id(i) not in known and _is_computed(i, capture)]
            if new and isinstance(guard, Parts):
                guards.drop(key)  # the attribute was looked at
            elif new:
                guard.put(guard.then)
                _refuse_item(guard.label, capture.made_at(new[0]))
        elif guard.by_code and isinstance(guard.then, Tensor):
            now = guard.now()
            in_place = now is guard.then and guards is not self.reads
            if in_place or not _is_computed(now, capture):
                return
            if capture.is_used(guard.then):
                guard.put(guard.then)
                for table in self.modules:
                    if isinstance(table, Parts):
                        table.put(table.then)
                _refuse_assignment(guard.label, capture.made_at(now))
            guards.drop(key)  # left to be looked at, which is an error then


def _at(line: str) -> str:
    return f" ({line})" if line else ""


def _refuse_item(label: str, line: str) -> None:
    raise CaptureError(
        f"build puts a tensor that it computes{_at(line)} into {label}: a replay puts nothing "
        f"there, and the tensor has no value.  Return it from build() instead"
    )


def _refuse_assignment(label: str, line: str) -> None:
    raise CaptureError(
        f"build reads {label} and then puts a tensor there that it computed{_at(line)}: a replay "
        f"assigns nothing, so each call would begin with the old one.  Change it in place "
        f"({label}.copy_(...)), or take it as an argument and return the new one"
    )


def _is_computed(value: Any, capture: Capture) -> bool:
    return isinstance(value, Tensor) and any(map(capture.holds, parts_of(value)))


# --- modules that run -------------------------------------------------------------------------


class _Local(threading.local):
    modules: dict[int, Module] | None = None
    paths: dict[int, str]  # of modules, as the user reaches them
    recorder: Recorder  # told of the module that runs
    environment: Environment  # told of each, before it runs


_local = _Local()


def _noting(inner: Callable[..., object]) -> Callable[..., object]:
    def call(self: Module, *args: Any, **kwargs: Any) -> Any:
        if _local.modules is None:
            return inner(self, *args, **kwargs)
        return _noted(_local.modules, inner, self, args, kwargs)

    return call


def _noted(
    modules: dict[int, Module],
    inner: Callable[..., Any],
    self: Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    paths, recorder = _local.paths, _local.recorder
    if id(self) not in paths:  # nobody's attribute: what is below it goes by its class
        for path, module in self.named_modules(prefix=type(self).__name__):
            paths.setdefault(id(module), path)
    if id(self) not in modules:
        modules[id(self)] = self
        _local.environment.add_module(self, paths[id(self)])
    with reverting(partial(setattr, recorder, "scope", recorder.scope)):
        recorder.scope = paths[id(self)]
        if recorder.checkpoints:
            with recorder.forgetting(self, paths[id(self)]):
                return inner(self, *args, **kwargs)
        return inner(self, *args, **kwargs)


class capture_environment(Switched):  # noqa: N801 - used like a function
    """Note every module that this thread calls inside, by identity; `recorder.scope` is the path of
    the one that runs, by `paths` (identity to path), which grows by what is found.
    """

    def __init__(self, recorder: Recorder, paths: dict[int, str], environment: Environment) -> None:
        self.recorder, self.paths, self.environment = recorder, paths, environment
        self.observer = Observer(environment.reads)
        environment.capture = recorder

    def _switch(self) -> dict[int, Module]:
        modules: dict[int, Module] = {}
        _local.paths, _local.recorder = self.paths, self.recorder
        _local.environment = self.environment
        _local.modules = modules
        tell(_noting, self)
        self.observer.start()
        return modules

    def _undo(self) -> None:
        self.observer.stop()
        _local.__dict__.clear()  # they hold the model
        forget(self)


def note_graph(graph: Any, modules: Iterable[tuple[str, Module]], without: Collection[str]) -> None:
    """A graph's build is to run as a part of what this thread captures: its modules go by these
    paths, and what it reads is looked at like what the outer build reads.
    """
    if _local.modules is not None:
        for path, module in modules:
            _local.paths.setdefault(id(module), path)
        _local.environment.add_graph(graph, without)
        _local.environment.add_slot(f"{graph.name}.config", vars(graph.config), "key")
