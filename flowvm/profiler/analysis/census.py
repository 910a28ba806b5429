"""A census of memory at this moment: every tensor, and the object that keeps it alive.

Nothing is registered for it, so it costs nothing until somebody asks: the garbage collector knows
every object.  A storage is, the first that is true: a parameter's or buffer's, the gradient of a
leaf, the state of an optimizer, saved by autograd, or something else's.  By what name code keeps
the last two is looked for in the variables of running functions and the globals around, down a few
containers and objects.

Modules and optimizers are above this module, and are found only where they were imported.
"""

from __future__ import annotations

import inspect
import sys
import threading
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from flowvm.eager.nodes import Node
from flowvm.eager.tensor import Tensor
from flowvm.guards.collection import Uncollected, live_objects
from flowvm.private.cpython import LOCALS, getrefcount
from flowvm.profiler.run.run import Run
from flowvm.vm.callers.lines import is_internal, short_position
from flowvm.vm.callers.scopes import call_of
from flowvm.vm.engine.engine import engine
from flowvm.vm.machine.words import CTL, KIND, OPERAND, REC, STO, STR
from flowvm.vm.watch.flight import Snapshot
from flowvm.vm.watch.purposes import purposes

if TYPE_CHECKING:
    from collections.abc import Sequence


MOST_KEPT = 10_000  # storages that a run remembers
MOST_VISITED = 50_000  # objects looked at for names
DEPTH = 4  # containers and objects, one in another
HOST = 0
_CONTAINERS = (list, tuple, set, frozenset, deque)


@dataclass(frozen=True)
class Held:
    """A storage with memory of the VM's.  `kind` is one of `flowvm.profiler.run.kinds.KINDS`;
    `space` says where its memory is, see `space_of`.
    """

    storage: int
    nbytes: int
    kind: str
    keeper: str
    space: int = HOST


class _Census:
    """Storages as they are found; who comes first has them."""

    def __init__(self) -> None:
        self.held: dict[int, tuple[str, str]] = {}
        self.places: dict[int, str] = {}

    def add(self, tensor: object, kind: str, keeper: str) -> None:
        storage = _storage_of(tensor)
        if storage:
            self.held.setdefault(storage, (kind, keeper))

    def add_modules(self, modules: list[Any], base: Any) -> dict[int, str]:
        """Parameters and buffers by the paths of their modules; the paths, by identity."""
        below = {id(child) for m in modules for child in m._modules.values()}
        names: dict[int, str] = {}
        calls = sys.modules.get("flowvm.nn.module_calls")
        known = {} if calls is None else calls.paths.known
        for root in modules:
            if id(root) in below:
                continue
            prefix = known.get(id(root), type(root).__name__)
            for members in (base.named_parameters(root, prefix), base.named_buffers(root, prefix)):
                for path, tensor in members:
                    names.setdefault(id(tensor), path)
                    self.add(tensor, "param", path)
        return names

    def add_optimizers(self, optimizers: list[Any], names: dict[int, str]) -> None:
        for optimizer in optimizers:
            kind = type(optimizer).__name__
            for param, entry in list(optimizer.state.items()):
                if type(entry) is not dict:
                    continue
                of = names.get(id(param), "")
                for name, value in list(entry.items()):
                    self.add(value, "optim", f"{kind} {name}" + (f" of {of}" if of else ""))

    def add_nodes(self, nodes: list[Node], names: Names) -> None:
        for node in nodes:
            saved = getattr(node, "_saved", None)
            if saved.__class__ is tuple and saved:
                root = names.graphs.get(id(node))
                keeper = root or f"{node.operator.name}{self.place(node.seq)}"
                for tensor in saved:
                    self.add(tensor, "activation", f"autograd of {keeper}")

    def place(self, seq: int) -> str:
        """`, model.py:21` of the call that made a node."""
        if seq < 0:
            return ""
        if seq not in self.places:
            flight = engine.flight
            oldest = max(flight.first, flight.lines_end - REC.LENGTH)
            line = short_position(*call_of(flight.codes, flight.lasts, seq, oldest))
            self.places[seq] = f", {line}" if line else ""
        return self.places[seq]


def _storage_of(tensor: Any) -> int:
    """The id of a tensor's storage; 0 for what is no tensor, or not whole yet."""
    if not issubclass(type(tensor), Tensor):
        return 0
    try:
        return int(tensor._ref & OPERAND.STORAGE_MASK)
    except AttributeError:
        return 0


def _bytes_of(storage: int) -> int:
    """Bytes that the VM has allocated for a storage; 0 for none, and for memory of Python's."""
    at = STO.AT + storage * STO.WORDS
    words = engine.words
    return int(words[at + STO.BYTES]) if words[at + STO.POINTER] and words[at + STO.CLASS] else 0


def space_of(stream: int) -> int:
    """The memory that a stream allocates: HOST, or the address of a device's counters."""
    return int(engine.words[STR.AT + stream * STR.WORDS + STR.COUNTERS])


def census() -> list[Held]:
    """All storages that tensors have and that have memory, the largest first.

    Looks at every object of the process: some tens of milliseconds.
    """
    census, bases, kinds = _Census(), dict(_classes()), _living()
    engine.flight.look(int(engine.words[CTL.RECEIVED]))  # so that it has everybody's lines
    whole = [m for m in kinds["module"] if "_modules" in m.__dict__]
    names = census.add_modules(whole, bases.get("module"))
    for tensor in kinds["tensor"]:
        grad = getattr(tensor, "_extra", {}).get("grad")
        if grad is not None:
            of = names.get(id(tensor), "")
            census.add(grad, "grad", f"grad of {of}" if of else "a grad")
    census.add_optimizers([o for o in kinds["optimizer"] if "state" in o.__dict__], names)
    called = Names()
    census.add_nodes(kinds["node"], called)
    parameter = getattr(sys.modules.get("flowvm.nn.parameter"), "Parameter", ())
    for tensor in kinds["tensor"]:
        census.add(tensor, *(("param", "") if isinstance(tensor, parameter) else ("other", "")))
    held = [(s, _bytes_of(s), *known) for s, known in census.held.items()]
    held = sorted((h for h in held if h[1]), key=lambda h: -h[1])
    return [
        Held(s, n, kind, keeper or called.storages.get(s, ""),
             space_of(int(engine.words[STO.AT + s * STO.WORDS + STO.STREAM])))
        for s, n, kind, keeper in held
    ]  # fmt: skip


def held_of(run: Run, snapshot: Snapshot) -> list[list[object]]:
    """List the tensors alive at the end of a run just collected from `snapshot`, the largest first.

    Of each: tensor of the run (-1 where it has none), bytes, kind, what keeps it alive, its memory.
    """
    storages, last = np.unique(snapshot.storage[::-1], return_index=True)
    last = len(snapshot.storage) - 1 - last
    gone = run.kind[run.owner[last]] == KIND.RELEASE
    tensors = np.where(gone, -2, run.tensor[last])
    known = dict(zip(storages.tolist(), tensors.tolist(), strict=True))
    named = {space_of(s): name for s, name in enumerate(run.info["spaces"])}
    holders = [
        [known.get(h.storage, -1), h.nbytes, h.kind, h.keeper, named[h.space]]
        for h in census()[:MOST_KEPT]
    ]
    return [row for row in holders if row[0] != -2]


def purposes_of(run: Run, snapshot: Snapshot) -> list[list[object]]:
    """List the purposes of the tensors of a run just collected from `snapshot`, dead ones too:
    tensor, kind, owner.
    """
    first: dict[int, list[tuple[int, int]]] = {}  # of each storage: instruction, tensor
    seqs = snapshot.seq[run.owner].tolist()
    for storage, seq, tensor in zip(
        snapshot.storage.tolist(), seqs, run.tensor.tolist(), strict=True
    ):
        known = first.setdefault(storage, [])
        if not known or known[-1][1] != tensor:
            known.append((seq, tensor))
    purpose_of: dict[int, tuple[str, str, int]] = {}
    noted = list(purposes)
    for storage, seq, kind, owner, of in noted:
        known = first.get(storage, [])
        if not known:
            continue
        # the tensor that had the storage then: the first one too if that was made before the run
        tensor = known[max(bisect_left(known, (seq, -1)) - 1, 0)][1]
        if kind:
            before = purpose_of.get(tensor, ("", "", 0))
            purpose_of[tensor] = (kind, owner or before[1], of)
        elif seq <= known[0][0]:  # gone before the run: what was told is of another
            purpose_of.pop(tensor, None)
    names = {note.storage: note.owner for note in noted if note.kind == "param"}
    return [
        [tensor, kind, owner + (f" of {names[of]}" if names.get(of) else "")]
        for tensor, (kind, owner, of) in purpose_of.items()
    ]


def _living() -> dict[str, list[Any]]:
    """All objects of `_classes`, by their names there."""
    kinds: dict[str, list[object]] = {"tensor": [], "node": [], "module": [], "optimizer": []}
    lists = {}

    def is_known(cls: type) -> bool:
        for name, base in _classes():
            if issubclass(cls, base):
                lists[cls] = kinds[name]
        return cls in lists

    for thing in live_objects(is_known):
        lists[type(thing)].append(thing)
    return kinds


def _classes() -> Iterator[tuple[str, type]]:
    yield "tensor", Tensor
    yield "node", Node
    for name, module, cls in (
        ("module", "flowvm.nn.module", "Module"),
        ("optimizer", "flowvm.optim.optimizer", "Optimizer"),
    ):
        if module in sys.modules:
            yield name, getattr(sys.modules[module], cls)


# --- by what name ---------------------------------------------------------------------------------


class Names:
    """By what names code keeps storages, and nodes of autograd through the tensors that they made;
    the nearest name is first.
    """

    def __init__(self) -> None:
        self.storages: dict[int, str] = {}
        self.graphs: dict[int, str] = {}  # by the identity of nodes
        visited: set[int] = set()
        for variable in _variables():  # one function's after another's: the user's are the first
            self._visit([(value, name) for name, value in variable], visited)

    def _visit(self, near: Sequence[tuple[object, str]], visited: set[int]) -> None:
        """Look for tensors in variables and in what they hold."""
        for _ in range(DEPTH):
            below = []
            for value, name in near:
                if id(value) in visited or len(visited) > MOST_VISITED:
                    continue
                visited.add(id(value))
                if storage := _storage_of(value):
                    self.storages.setdefault(storage, name)
                    self._follow(getattr(value, "_node", None), name)
                else:
                    below += [(v, name) for v in _inside(value)]
            near = below

    def _follow(self, node: Any, name: str) -> None:
        """All that a tensor's graph keeps alive."""
        waiting = [node]
        while waiting:
            node = waiting.pop()
            node = getattr(node, "node", node)  # an OutputEdge leads to its node
            if node is not None and not node.is_leaf and id(node) not in self.graphs:
                self.graphs[id(node)] = name
                waiting += node.edges


def _variables() -> Iterator[list[tuple[str, object]]]:
    """The variables of each running function, innermost first, and the globals of each module."""
    frames: list[FrameType] = []
    mine = threading.get_ident()  # whose frames include this one: no cycle may come of it
    with Uncollected():
        others = [f for thread, f in sys._current_frames().items() if thread != mine]
        for top in [sys._getframe(1), *others]:
            frame: FrameType | None = top
            while frame is not None:
                if not is_internal(frame.f_code.co_filename) and frame not in frames:
                    frames.append(frame)
                frame = frame.f_back
    for frame in frames:
        code = frame.f_code
        if code.co_name != "<module>":
            with Uncollected():
                named = _locals(frame)
            yield [(f"{_named(name, value)} in {code.co_name}()", value) for name, value in named]
    for space in {id(f.f_globals): f.f_globals for f in frames}.values():
        module, held = space.get("__name__", "?"), list(space.items())
        yield [(f"{_named(n, v)} in {module}", v) for n, v in held if not n.startswith("__")]


def _locals(frame: FrameType) -> list[tuple[str, object]]:
    """The variables of a running function.

    Up to Python 3.12 they are copied to a dict that lives as long as the function runs, and would
    keep every tensor among them alive: it is emptied, unless somebody else has it (`locals()`), or
    a debugger may write it back.
    """
    if not frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        return []  # of a class body: no copy
    copied = frame.f_locals
    # what is no identifier is Python's own, or made by a tool
    variables = [(name, value) for name, value in copied.items() if name.isidentifier()]
    ours = sys.version_info < (3, 13) and sys.gettrace() is None
    if ours and getrefcount(copied) <= LOCALS:
        copied.clear()
    return variables


def _named(name: str, value: Any) -> str:
    if type(value) in (*_CONTAINERS, dict):
        return f"{type(value).__name__} {name} ({len(value)})"
    return name


def _inside(value: Any) -> Iterable[Any]:
    """Return the values in a container or in an object of the user's."""
    if type(value) in _CONTAINERS:
        return list(value)
    if type(value) is dict:
        return list(value.values())
    if issubclass(type(value), (type, ModuleType)) or type(value).__module__ == "builtins":
        return ()
    try:
        own = object.__getattribute__(value, "__dict__")  # runs no code of the user's
    except (AttributeError, TypeError):
        return ()
    return list(own.values()) if type(own) is dict else ()
