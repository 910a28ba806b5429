"""Backward: gradients from the outputs of a graph to its leaves.

A node runs when every gradient that can reach it has: `counts` has how many are still to come.
Nodes that are ready are on a stack, so a branch is followed to its end before the next, in an order
that depends on the graph alone.  Nothing recurses: a graph may be as deep as memory allows.

Invariants
- a node's gradients arrive in the shape and dtype of its outputs: `_fitted` sees to it edge by
  edge;
- a node whose outputs got no gradient at all does not run.  Where only some outputs did, its
  gradient function sees zeros for the others (a custom Function may ask for None instead);
- what a node saved is released when it has run, unless the graph is kept;
- a gradient is changed in place only if this engine holds the one reference to it and to its
  memory, and the gradient's own graph is not wanted;
- an error in a gradient function or hook leaves the thread's modes as they were, and every `.grad`
  as complete as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from operator import setitem
from typing import TYPE_CHECKING, Any

from flowvm.autograd.hooks import NodeHooks, run_hooks
from flowvm.autograd.leaf import AccumulateGrad
from flowvm.eager.autocast import autocasting
from flowvm.eager.global_calls import Globals
from flowvm.eager.modes import Recorder, current_recorder, pinned, recording, user_line
from flowvm.eager.native.functions import backward_loop
from flowvm.eager.native.trace_cache import steady_gradient
from flowvm.eager.nodes import Node, OutputEdge
from flowvm.eager.tensor import Tensor
from flowvm.errors import AutogradError
from flowvm.files.printable import printable
from flowvm.guards.exchange import exchange
from flowvm.guards.regions import reverting
from flowvm.meta.batched_meta import BatchedMeta
from flowvm.meta.formats import is_dense, strided
from flowvm.ops.batched.levels import of_levels
from flowvm.ops.declare.composite import filled_of
from flowvm.ops.declare.core import cast, laid_as, sum_to
from flowvm.ops.updates.accumulate import accumulate_
from flowvm.private.cpython import SOLE, getrefcount
from flowvm.vm.callers.hot import hot
from flowvm.vm.callers.lines import behind
from flowvm.vm.callers.tracebacks import border

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from flowvm.meta.meta import TensorMeta


# A gradient this large is added to in place; a smaller one is quicker to make anew.
_IN_PLACE = 1 << 14


class _Anomaly:
    """Looking for NaN: `check(node, gradients, results)` when on."""

    check: Callable[[Node, Sequence[object], Sequence[object] | None], None] | None = None


anomaly = _Anomaly()


class Watch:
    """Gradients wanted of certain tensors: `slots[node]` has (output, place in `gradients`)."""

    def __init__(self, edges: list[Any], accumulate: bool, stop: bool = False) -> None:
        self.gradients: list[Tensor | None] = [None] * len(edges)
        self.accumulate = accumulate  # leaves get their gradient in .grad, else in `gradients`
        self.stop = stop  # go no further than these tensors, not to one of them through another
        self.slots: dict[object, list[tuple[int, int]]] = {}
        for place, edge in enumerate(edges):
            node = edge.node if edge.__class__ is OutputEdge else edge
            self.slots.setdefault(node, []).append((edge.index, place))

    def see(self, node: object, g: Any) -> None:
        """Keep the wanted ones of the gradients of `node`."""
        for index, place in self.slots.get(node, ()):
            self.gradients[place] = g.get(index) if g.__class__ is dict else g


class BackwardRun:
    """One backward while it runs, for hooks that ask `current_backward()`.

    counts  the nodes that it comes to are the keys
    notes   what hooks keep until it ends, by hook
    ends    called when it has come to every node
    """

    __slots__ = ("counts", "ends", "notes")

    def __init__(self, counts: dict[object, int]) -> None:
        self.counts = counts
        self.notes: dict[object, object] = {}
        self.ends: list[Callable[[], None]] = []


def run(
    roots: list[tuple[object, Tensor]],
    keep_graph: bool,
    create_graph: bool,
    watch: Watch | None = None,
) -> None:
    """Send each root's gradient down its edge, as far as leaves, or as far as `watch` wants."""
    grads: dict[object, object] = {}
    for edge, g in roots:
        _arrive(grads, edge, g, True)
    counts = _counts(list(grads)) if watch is None else _counts_towards(list(grads), watch)
    ready = [node for node in reversed(grads) if counts.get(node, -1) == 0]
    roots.clear()  # of a gradient that nobody else holds, the engine's is the only reference
    edge = g = None  # type: ignore[assignment]
    origin, recorder, backward_run = user_line(), current_recorder(), BackwardRun(counts)
    with recording(create_graph), pinned(origin, backward_run):
        if recorder is None and not hot["autocast"]:
            _run(ready, grads, counts, keep_graph, create_graph, watch, origin)
            for end in backward_run.ends:
                end()
            return
        with autocasting(None), nullcontext() if recorder is None else _back(recorder):
            if recorder is not None:
                recorder.phase = "backward"
            _run(ready, grads, counts, keep_graph, create_graph, watch, origin)
            for end in backward_run.ends:
                end()


def _back(recorder: Recorder) -> reverting:
    """Inside, the recorder's phase and scope may change."""
    before = recorder.phase, recorder.scope

    def undo() -> None:
        recorder.phase, recorder.scope = before

    return reverting(undo)


def _counts(roots: list[Any]) -> dict[object, int]:
    """Count the gradients for which each node below waits."""
    counts = dict.fromkeys(roots, 0)
    while roots:
        for edge in roots.pop().edges:
            if edge is None:
                continue
            if edge.__class__ is OutputEdge:
                edge = edge.node
            if edge in counts:
                counts[edge] += 1
            else:
                counts[edge] = 1
                roots.append(edge)
    return counts


def _counts_towards(roots: list[Any], watch: Watch) -> dict[object, int]:
    """Count the gradients only of nodes from which a watched tensor can be reached."""
    targets = watch.slots
    above: dict[object, list[object]] = {root: [] for root in roots}
    while roots:
        node = roots.pop()
        if watch.stop and node in targets:
            continue
        if not node.edges and getattr(getattr(node, "operator", None), "blocks", False):
            node.operator.grad(node)  # an error: what is asked for may lie behind it
        for edge in node.edges:
            if edge is None:
                continue
            if edge.__class__ is OutputEdge:
                edge = edge.node
            if edge in above:
                above[edge].append(node)
            else:
                above[edge] = [node]
                roots.append(edge)
    needed = {node: len(above[node]) for node in targets if node in above}
    waiting = list(needed)
    while waiting:
        for node in above[waiting.pop()]:
            if node not in needed:
                needed[node] = len(above[node])
                waiting.append(node)
    return needed


def _run(
    ready: list[Any],
    grads: dict[object, Any],
    counts: dict[object, int],
    keep_graph: bool,
    create_graph: bool,
    watch: Watch | None,
    origin: list[Any],
) -> None:
    captured = current_recorder() is not None
    plain = Node if watch is None and anomaly.check is None and not captured else None
    steal = not create_graph and not captured and (watch is None or watch.accumulate)
    pop, push, waiting = ready.pop, ready.append, counts.get
    usual = plain is not None and steal
    while ready:
        if usual:
            try:
                _run_usual(ready, grads, counts, origin, keep_graph)
            except Exception as error:
                if ready and not ready[-1].is_leaf:
                    _explain(error, ready[-1])
                raise
            if not ready:
                return
        node = pop()
        g = grads.pop(node, None)
        if node.is_leaf:
            if g is not None:
                if steal and getrefcount(g) == SOLE and not node.hooks:
                    _store(node, g)
                else:
                    _leaf(node, g, create_graph, watch)
            continue
        if node.seq >= 0:
            origin[1] = node.seq
        elif origin[1] >= 0:
            origin[1] = behind(origin[1])
        if node.__class__ is plain and g.__class__ is Tensor:
            try:
                results = _gradients(node, g)
            except Exception as error:
                _explain(error, node)
                raise
        else:
            results = _careful(node, g, counts, watch)
        edges = node.edges
        if results is None:
            results = (None,) * len(edges)
        elif len(results) != len(edges):
            raise AutogradError(
                f"the gradient function of {node.operator.name} returned {len(results)} gradients "
                f"for "
                f"{len(edges)} inputs"
            )
        if not keep_graph and node._saved:
            node._saved = None
        for place, edge in enumerate(edges):
            if edge is not None:
                target = edge.node if edge.__class__ is OutputEdge else edge
                count = waiting(target)
                if count is not None:
                    r, meta = results[place], node.metas[place]
                    if r is not None:
                        if r.__class__ is not Tensor or r._meta is not meta:
                            r = _fitted(node, r, meta)
                        if target is edge and target not in grads:
                            grads[target] = r
                        else:
                            _arrive(grads, edge, r, create_graph)
                    if count == 1:
                        push(target)
                    else:
                        counts[target] = count - 1
        g = results = r = None


@steady_gradient
def _gradients(node: Node, g: Tensor) -> Any:
    """Return the gradients of a node's inputs, from the gradient of its one output."""
    return node.operator.grad(node, g)


def _run_usual(
    ready: Sequence[object],
    grads: Mapping[object, object],
    counts: dict[object, int],
    origin: Sequence[object],
    keep_graph: bool,
) -> None:
    """Run usual nodes as `_run` does, until none is left, or one that `_run` must run.

    This Python version runs none; compiled code runs all usual ones.
    """


_run_usual = backward_loop(_run_usual, _gradients)
natively_run = _gradients  # what that replays the traces of


@border
def _go_on(
    ready: list[object],
    grads: dict[object, object],
    counts: dict[object, int],
    origin: list[object],
    keep_graph: bool,
    backward_run: BackwardRun,
) -> None:
    """Run the nodes that native backward has left, in its regions."""
    _run(ready, grads, counts, bool(keep_graph), False, None, origin)
    for end in backward_run.ends:
        end()


def _arrive(grads: dict[object, object], edge: object, g: Tensor, create_graph: bool) -> None:
    """Add `g` to the edge's gradient so far."""
    node: object = edge
    among: Any = grads
    if edge.__class__ is OutputEdge:
        node = edge.index
        among = grads.get(edge.node)
        if among is None:
            among = grads[edge.node] = dict.fromkeys(range(len(edge.node.out_metas)))
    old = among.get(node)
    if old is None:
        among[node] = g
    elif (
        old._meta.numel >= _IN_PLACE
        and not create_graph
        and getrefcount(old) == SOLE + 1
        and _own_memory(old)
    ):
        _add_in_place(old, g)
    else:
        among[node] = old + g


def _careful(node: Node, g: Any, counts: dict[object, int], watch: Watch | None) -> Any:
    """Run a node that has hooks or several outputs, or that more is wanted of; or a capture's."""
    recorder = current_recorder()
    if recorder is not None:
        recorder.enter(node)
    hooks: NodeHooks | None = getattr(node, "extra", None)
    if g is not None and hooks is not None:
        g = _tensor_hooks(hooks, g)
    if watch is not None:
        watch.see(node, g)
        if watch.stop and node in watch.slots:
            return None
    if g is None:
        return None
    needs = [
        e is not None and (e.node if e.__class__ is OutputEdge else e) in counts for e in node.edges
    ]
    if not any(needs):
        return None
    several = g.__class__ is dict
    gradients = tuple(g.values()) if several else (g,)
    if hooks is not None:
        for hook in list(hooks.before.values()):
            gradients = _replaced(hook(gradients), gradients, "pre-hook", node)
    if several and getattr(node, "_materialize", True):
        gradients = tuple(
            _zeros(m) if v is None and m is not None else v
            for v, m in zip(gradients, node.out_metas, strict=True)
        )
    pruned = any(e is not None and not w for e, w in zip(node.edges, needs, strict=True))
    try:
        results = node.operator.grad(_Pruned(node, tuple(needs)) if pruned else node, *gradients)
    except Exception as error:
        _explain(error, node)
        raise
    if anomaly.check is not None:
        anomaly.check(node, gradients, results)
    if hooks is not None:
        for hook in list(hooks.after.values()):
            results = _replaced(hook(results, gradients), results, "hook", node)
    return results


class _Pruned:
    """A node of whose gradients some are not wanted this time: `needs` says so to the gradient
    function.
    """

    def __init__(self, node: object, needs: tuple[bool, ...]) -> None:
        self._node = node
        self.needs = self.needs_input_grad = needs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._node, name)


def _tensor_hooks(hooks: NodeHooks, g: Any) -> Any:
    several = g.__class__ is dict
    for index, table in hooks.tensor.items():
        gradient = g.get(index) if several else g
        if gradient is None:
            continue
        gradient = run_hooks(table, gradient)
        if several:
            g[index] = gradient
        else:
            g = gradient
    for index, reference in hooks.retain.items():
        tensor, value = reference(), g.get(index) if several else g
        if tensor is not None and value is not None:
            add_to_grad(tensor, value, value._node is not None)
    return g


def _replaced(before: object, values: Any, what: str, node: Node) -> Any:
    if before is None:
        return values
    new = tuple(before) if isinstance(before, (tuple, list)) else (before,)
    if len(new) != len(values):
        raise AutogradError(
            f"a {what} of {node.name()} returned {len(new)} gradients in place of {len(values)}"
        )
    return new


# --- leaves -----------------------------------------------------------------------------------


def _leaf(node: AccumulateGrad, g: Tensor, create_graph: bool, watch: Watch | None) -> None:
    """A leaf's whole gradient has arrived, and somebody else may hold it too."""
    if node.hooks:
        g = run_hooks(node.hooks, g)
    if watch is not None:
        watch.see(node, g)
        if not watch.accumulate:
            return
    tensor = node.tensor()
    if tensor is None or tensor._node is None:
        return
    recorder = current_recorder()
    if recorder is not None:
        recorder.reach(tensor)
    alone = not create_graph and not node.after
    if alone and tensor._meta.parted and Globals.postponed(tensor, g, _keep):
        return
    add_to_grad(tensor, g, create_graph)
    for hook in list(node.after.values()):
        hook(tensor)


def _store(node: AccumulateGrad, g: Tensor) -> None:
    """Store a gradient that nobody else holds: it may become `.grad` as it is."""
    tensor = node.tensor()
    if tensor is None or tensor._node is None:
        return
    if tensor._meta.parted:
        if not node.after and Globals.postponed(tensor, g, _keep):
            return
        g = Globals.landed(tensor, g)
    _keep(tensor, g, g._node is None and _own_memory(g))
    if node.after:
        for hook in list(node.after.values()):
            hook(tensor)


def _keep(tensor: Tensor, g: Tensor, own: bool = True) -> None:
    """Store a gradient in `.grad`, a copy unless it is `own` memory, or add it to the one there."""
    extra = tensor.extra()
    old = extra.get("grad")
    if _is_sparse(g) or (old is not None and _is_sparse(old)):
        add_to_grad(tensor, g, False)
        return
    if old is None:
        first = g if own else g.detach().clone()
        if not (g._meta.contiguous and tensor._meta.contiguous):
            first = _lying_as(first, tensor)
        old = None if _exchange_grad(extra, None, first) else extra.get("grad")
    if old is not None:
        _add_in_place(old, g)


def _lying_as(g: Tensor, tensor: Tensor) -> Tensor:
    """Return a first gradient with the strides of its tensor, if that is dense, or in C order."""
    meta = tensor._meta
    if _is_sparse(g) or meta.parted or g._meta.shape != meta.shape or g._meta.stride == meta.stride:
        return g
    return laid_as(g, tensor) if is_dense(meta.shape, meta.stride) else g.contiguous()


def add_to_grad(tensor: Tensor, g: Tensor, create_graph: bool) -> None:
    """Add `g`, which stays as it is, to the `.grad` of `tensor`."""
    if tensor._meta.parted:
        g = Globals.landed(tensor, g)
    extra = tensor.extra()
    while True:
        old = extra.get("grad")
        if old is not None and not create_graph and (_is_sparse(g) or not _is_sparse(old)):
            _add_in_place(old, g)
            return
        own = g if create_graph else g.detach()
        new = _lying_as(own.clone(), tensor) if old is None else old + own
        if _exchange_grad(extra, old, new):
            return


def _exchange_grad(extra: Mapping[str, object], old: Tensor | None, new: Tensor) -> bool:
    """Set `.grad`, unless another thread's backward has set it since it was `old`."""
    return exchange(map(extra.get, ("grad",)), (old,), ((setitem, (extra, "grad", new)),))


def _add_in_place(t: Tensor, g: Tensor) -> None:
    """`t += g`, by the quick way where both are dense and of one dtype; with a sparse `t`, `g` is
    sparse.
    """
    if t._meta is g._meta and t._meta.contiguous and t._node is None and g._node is None:
        accumulate_(t, g)
    else:
        t.add_(g)


def _is_sparse(t: Tensor) -> bool:
    """Return True if `t` has a sparse layout."""
    return t.__class__ is not Tensor and t.layout is not strided


def _own_memory(t: Tensor) -> bool:
    """Return True if `t` is dense and no other tensor is on its memory.

    Then its Storage has one reference: its own.
    """
    if _is_sparse(t):
        return False
    storage = t._storage
    if storage is None:
        return True
    if t._meta.__class__ is BatchedMeta:
        return False  # it may be shared by all examples
    return getrefcount(storage) == SOLE + 1 and t._meta.contiguous and t._ref == storage.id


# --- gradients that do not fit, and errors
# ----------------------------------------------------------


def _fitted(node: Node, g: Tensor, meta: TensorMeta) -> Tensor:
    """`g` in the shape and dtype of the input it belongs to; summed if the input was broadcast."""
    if not isinstance(g, Tensor):
        raise AutogradError(
            f"the gradient function of {node.operator.name} returned a {type(g).__name__} where a "
            f"Tensor or None is due"
        )
    if g._meta.__class__ is BatchedMeta or meta.__class__ is BatchedMeta:
        g = of_levels(g, meta, node.out_metas)
    if g._meta.shape != meta.shape:
        lead = g._meta.ndim - len(meta.shape)
        tail = g._meta.shape[max(lead, 0) :]
        if lead < 0 or any(d not in (1, n) for d, n in zip(meta.shape, tail, strict=True)):
            raise AutogradError(
                f"the gradient function of {node.operator.name} returned a gradient of shape "
                f"{tuple(g.shape)} for an "
                f"input of shape {tuple(meta.shape)}"
            )
        g = sum_to(g, meta.shape)
    if g._meta.dtype is not meta.dtype:
        g = cast(g, meta.dtype)
    return g


def _zeros(meta: TensorMeta) -> Tensor | None:
    if not meta.dtype.inexact:
        return None
    return filled_of(meta, 0)


def _explain(error: Exception, node: Node) -> None:
    """Add to an error of a gradient function whose gradient it is.

    Of a function that was given a saved tensor that has changed, that is the error.
    """
    if not isinstance(error, AutogradError) and hasattr(node, "refuse_changed"):
        node.refuse_changed()
    trace = getattr(getattr(node, "extra", None), "trace", "")
    text = f"raised by the gradient of {node.operator.name}"
    error.add_note(printable(text + (f", called at\n{trace}" if trace else ""), lines=True))


# for native backward
hot.update(
    {"fitted": _fitted, "arrive": _arrive, "add_in_place": _add_in_place, "explain": _explain}
)
hot.update({"go_on": _go_on, "BackwardRun": BackwardRun})
