"""Activation checkpointing: what a function computed is forgotten after forward, and computed again
in backward.

The nodes that forward makes stay, with their edges, hooks and all; what they saved is dropped as
forward goes on, and in its place is a promise (`_Forgotten`).  The first gradient function that
asks for it has the function run again: what the nodes of this second time save is what those of the
first get, node by node in the order in which they were made.  So gradients go wherever they would
go without a checkpoint: to arguments, to parameters, to anything else that the function reaches,
through checkpoints inside one another, with hooks, with `grad`, and twice.

The second time sees the random numbers of the first (the default generator is put back to where it
was) and the same `flow.autocast`.  In a capture it is recorded like everything else, draws the live
numbers of the first time, and is no common subexpression of it (`OpNode.again`).

Invariants
- a node of the first time holds no node of the second, and no promise holds a node, so a graph is
  free of cycles;
- what a node gets is used up by it: with `retain_graph=True` it keeps it, as any node does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

from flowvm.autograd import node_listeners
from flowvm.autograd.function import FunctionCtx
from flowvm.autograd.modes import enable_grad
from flowvm.eager.autocast import autocast_dtype, autocasting_apart
from flowvm.eager.modes import current_recorder, grad_enabled, pinned
from flowvm.eager.nodes import Node
from flowvm.eager.tensor import Tensor, alias
from flowvm.errors import ArgumentError, AutogradError
from flowvm.guards.regions import Switched, reverting
from flowvm.meta.batched_meta import axes_of, example_of
from flowvm.meta.meta import TensorMeta
from flowvm.ops.random.generator import default_generator

if TYPE_CHECKING:
    from collections.abc import Mapping


Contexts = tuple[AbstractContextManager[object], AbstractContextManager[object]]


class _Local(threading.local):
    def __init__(self) -> None:
        self.listeners: list[Listener] = []  # innermost last


_local = _Local()


class Listener:
    """A listener to the nodes of one run, which takes their saved values when they have them.

    That is when the next node is made: an in-place op adds to what its node saved, and a custom
    Function's node gets it when its forward has returned.
    """

    def __init__(self, take: Callable[[int, Node], None]) -> None:
        self.take = take
        self.count = 0
        self._waiting: list[tuple[int, Node]] = []

    def see(self, node: Node) -> None:
        self._settle(everything=False)
        self._waiting.append((self.count, node))
        self.count += 1

    def _settle(self, everything: bool) -> None:
        waiting, self._waiting = self._waiting, []
        for number, node in waiting:
            if everything or not isinstance(node, FunctionCtx):
                self.take(number, node)
            else:
                self._waiting.append((number, node))

    def listening(self, alone: bool) -> Listening:
        """Listen to the nodes of this thread inside; `alone`: other listeners pause."""
        return Listening(self, alone)


class Listening(Switched):
    """See `Listener.listening`."""

    def __init__(self, listener: Listener, alone: bool) -> None:
        self.listener, self.outer = listener, _local.listeners
        self.inner = [listener] if alone else [*self.outer, listener]

    def _switch(self) -> None:
        _local.listeners = self.inner
        node_listeners.tell(_note_checkpoint, self)

    def _on_exit(self, kind: object = None, *error: object) -> None:
        if kind is None:
            self.listener._settle(everything=True)

    def _undo(self) -> None:
        node_listeners.forget(self)
        _local.listeners = self.outer


def _note_checkpoint(node: Node) -> None:
    for listener in reversed(_local.listeners):
        listener.see(node)


class _Call:
    """A checkpoint: a call that can be made again."""

    def __init__(
        self,
        function: Callable[..., object],
        args: Sequence[object],
        kwargs: Mapping[str, object],
        context: AbstractContextManager[object],
        check: bool,
    ) -> None:
        self.function, self.args, self.kwargs = function, args, kwargs
        self.context, self.check = context, check
        self.nodes: dict[int, tuple[str, Any]] = {}  # nodes of the first time: name, inputs' metas
        self.values: dict[
            int, Any
        ] = {}  # what those of the second time saved, until it is asked for
        self.amp = autocast_dtype()
        self.random: Any = None  # what the second time draws: a capture's draws, or a position
        self.complete = False  # the first time has come to its end

    def first_time(self, preserve_rng_state: bool) -> object:
        recorder = current_recorder()
        if recorder is None and preserve_rng_state:
            self.random = default_generator.position()
        before = 0 if recorder is None else len(recorder.drawn)
        listener = Listener(self._forget)
        with autocasting_apart(self.amp), listener.listening(alone=False):
            result = self.function(*self.args, **self.kwargs)
        self.complete = True
        if recorder is not None and preserve_rng_state:
            self.random = recorder.drawn[before:]
        return result

    def _forget(self, number: int, node: Node) -> None:
        self.nodes[number] = node.operator.name, node.metas
        if node._saved:
            node._saved = _Forgotten(self, number, node)

    def again(self) -> None:
        """Make the call again, to get the values that its nodes save."""
        listener = Listener(self._keep)
        with (
            pinned(None),  # what is issued now is the function's, whoever calls backward
            self._as_before(),
            autocasting_apart(self.amp),
            self.context,
            enable_grad(),
            listener.listening(alone=True),
        ):
            self.function(*self.args, **self.kwargs)
        if self.complete and listener.count != len(self.nodes):
            self._differs(f"{len(self.nodes)} operations", f"{listener.count}")

    @contextmanager
    def _as_before(self) -> Iterator[None]:
        recorder = current_recorder()
        if recorder is not None:
            with recorder.repeating(self.random):
                yield
        elif self.random is None:
            yield
        else:
            now = default_generator.position()
            with reverting(partial(default_generator.go_to, now)):
                default_generator.go_to(self.random)
                yield

    def _keep(self, number: int, node: Node) -> None:
        if self.check and number in self.nodes:
            name, metas = self.nodes[number]
            if name != node.operator.name or not _alike(metas, node.metas):
                self._differs(
                    f"{name} of {list(metas)}", f"{node.operator.name} of {list(node.metas)}"
                )
        saved: object = node._saved
        if saved:
            if isinstance(saved, tuple):  # without this time's nodes, which are not needed
                saved = tuple(t if t.is_leaf else placed(t, None) for t in saved)
            self.values[number] = saved, node.versions

    def _differs(self, first: str, second: str) -> None:
        self.values.clear()
        raise AutogradError(
            f"checkpoint: {getattr(self.function, '__qualname__', self.function)!s} did not do the "
            f"same when it was computed again: {first} were recorded in forward, {second} now.  It "
            f"must not depend on anything that changes between forward and backward"
        )


def _alike(metas: Sequence[TensorMeta | None], others: Sequence[TensorMeta | None]) -> bool:
    """Return True if metas are equal but for the numbers of the maps around."""
    if metas == others:
        return True
    return len(metas) == len(others) and all(
        a == b
        or (
            a is not None
            and b is not None
            and example_of(a) == example_of(b)
            and [x[1:] for x in axes_of(a)] == [x[1:] for x in axes_of(b)]
        )
        for a, b in zip(metas, others, strict=True)
    )


class _Forgotten:
    """A promise in the place of a node's saved values: the call that computes them again.

    edges   the places of the tensors in the graph; versions: the versions at that time
    """

    def __init__(self, call: _Call, number: int, node: Node) -> None:
        saved = node._saved
        inner = not isinstance(saved, tuple)  # a promise itself, of a checkpoint or of hooks inside
        self.call, self.number = call, number
        self.edges = saved.edges if inner else tuple(t._node for t in saved)
        self.versions = getattr(saved, "versions", node.versions)

    def recall(self, node: Node) -> tuple[Tensor, ...]:
        """Return the saved values of `node`, whose promise this is; the node now owns them."""
        if self.number not in self.call.values:
            self.call.again()
        result = self.call.values.pop(self.number, None)
        if result is None:
            self.call._differs(f"what {node.operator.name} saved", "nothing")
        saved, versions = result
        if not isinstance(saved, tuple):  # by a checkpoint inside this one, or packed by hooks
            saved = saved.recall(node)
            versions = node.versions
        for t, edge, now, then in zip(saved, self.edges, versions, self.versions, strict=True):
            if edge is not None and edge.is_leaf and now != then:
                raise AutogradError(
                    f"{node.operator.name} needs a parameter of shape {tuple(t.shape)} for its "
                    f"gradient, and it was changed in place since forward (version {now}, then "
                    f"{then}); go backward before the optimizer's step"
                )
        pairs = zip(saved, self.edges, strict=True)
        node._saved = saved = tuple(t if t._node is edge else placed(t, edge) for t, edge in pairs)
        node.versions = versions
        return saved


def placed(tensor: Tensor, edge: object) -> Tensor:
    """The tensor, at another place in the graph."""
    same = alias(tensor, tensor._meta)
    same._node = edge
    return same


# public: autograd
def checkpoint(
    function: Callable[..., object],
    *args: object,
    use_reentrant: bool | None = None,
    context_fn: Callable[[], Contexts] | None = None,
    determinism_check: str = "default",
    preserve_rng_state: bool = True,
    debug: bool = False,
    early_stop: bool = True,
    **kwargs: object,
) -> Any:
    """Call `function(*args, **kwargs)`; backward keeps the arguments and computes the rest again.

    context_fn          returns two context managers: for the call, and for its repetition
    determinism_check   "none": operations and shapes of the second time are not compared with the
                        first
    preserve_rng_state  False saves a little time where nothing is random
    use_reentrant       exists for PyTorch's sake: everything is as with False
    debug, early_stop   likewise: errors name the operation that differs, and the second time goes
                        to the function's end

    The function may return anything.  It runs twice, so its effects beside computing (statistics of
    a batch norm in training) happen twice, as in PyTorch; `graph.config.checkpoint` does it once.
    AutogradError, in backward, if it does not compute the same the second time.

    >>> x = flow.tensor([1.0, 2.0], requires_grad=True)
    >>> y = flow.autograd.checkpoint(lambda x: x * x, x, use_reentrant=False)
    >>> y.sum().backward()
    >>> x.grad
    tensor([2., 4.])
    """
    if determinism_check not in ("default", "none"):
        raise ArgumentError(
            f'determinism_check must be "default" or "none", got {determinism_check!r}'
        )
    first, second = context_fn() if context_fn is not None else (nullcontext(), nullcontext())
    with first:
        if not grad_enabled():
            return function(*args, **kwargs)
        call = _Call(function, args, kwargs, second, determinism_check == "default")
        return call.first_time(preserve_rng_state)


# public: autograd
def checkpoint_sequential(
    functions: Iterable[Callable[..., object]],
    segments: int,
    input: object,
    use_reentrant: bool | None = None,
    preserve_rng_state: bool = True,
) -> Any:
    """Each of `functions` on the result of the one before, in `segments` checkpoints; the last
    segment is not one.

    >>> layers = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    >>> x = flow.ones(4, 2, requires_grad=True)
    >>> y = flow.autograd.checkpoint_sequential(layers, 2, x, use_reentrant=False)
    >>> y.sum().backward()
    >>> x.grad.shape
    flow.Size([4, 2])
    """
    chain = list(functions)
    if not 1 <= segments <= len(chain):
        raise ArgumentError(f"segments must be between 1 and {len(chain)}, got {segments}")
    size = len(chain) // segments
    for start in range(0, size * (segments - 1), size):
        part = _in_turn(chain[start : start + size])
        input = checkpoint(part, input, preserve_rng_state=preserve_rng_state)
    return _in_turn(chain[size * (segments - 1) :])(input)


def _in_turn(functions: Sequence[Callable[..., object]]) -> Callable[[object], object]:
    def run_all(value: object) -> object:
        for function in functions:
            value = function(value)
        return value

    return run_all
