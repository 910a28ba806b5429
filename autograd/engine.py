"""Backward: gradients from the outputs of a graph to its leaves.

A node runs when every gradient that can reach it has: `counts` has how many are still to come.  Nodes that are ready are on
a stack, so a branch is followed to its end before the next, in an order that depends on the graph alone.  Nothing recurses:
a graph may be as deep as memory allows.

Invariants
- a node's gradients arrive in the shape and dtype of its outputs: `_fitted` sees to it edge by edge;
- a node whose outputs got no gradient at all does not run.  Where only some outputs did, its gradient function sees zeros
  for the others (a custom Function may ask for None instead);
- what a node saved is released when it has run, unless the graph is kept;
- a gradient is changed in place only if this engine holds the one reference to it and to its memory, and the gradient's
  own graph is not wanted;
- an error in a gradient function or hook leaves the thread's modes as they were, and every `.grad` as complete as it was.
"""

from __future__ import annotations

from collections.abc import Callable
from sys import getrefcount
from typing import Any

from flowvm.autograd.hooks import NodeHooks, run_hooks
from flowvm.autograd.leaf import AccumulateGrad
from flowvm.errors import AutogradError
from flowvm.interpreter import Node, OutputEdge, set_grad_enabled
from flowvm.tensor import Tensor

__all__ = ["Watch", "add_to_grad", "anomaly", "run"]

# A gradient this large is added to in place; a smaller one is quicker to make anew.
_IN_PLACE = 1 << 14


class _Anomaly:
    """Looking for NaN: `check(node, gradients, results)` when on."""

    check: Callable[[Any, Any, Any], None] | None = None


anomaly = _Anomaly()


class Watch:
    """Gradients wanted of certain tensors: `slots[node]` has (output, place in `found`)."""

    def __init__(self, edges: list[Any], accumulate: bool) -> None:
        self.found: list[Tensor | None] = [None] * len(edges)
        self.accumulate = accumulate  # leaves get their gradient in .grad, else in `found`
        self.slots: dict[Any, list[tuple[int, int]]] = {}
        for place, edge in enumerate(edges):
            node = edge.node if edge.__class__ is OutputEdge else edge
            self.slots.setdefault(node, []).append((edge.index, place))

    def see(self, node: Any, g: Any) -> None:
        """Keep what is wanted of the gradients of `node`."""
        for index, place in self.slots.get(node, ()):
            self.found[place] = g[index] if g.__class__ is list else g


def run(
    roots: list[tuple[Any, Tensor]],
    keep_graph: bool,
    create_graph: bool,
    watch: Watch | None = None,
) -> None:
    """Send each root's gradient down its edge, as far as leaves, or as far as `watch` wants."""
    grads: dict[Any, Any] = {}
    for edge, g in roots:
        _arrive(grads, edge, g)
    counts = _counts(list(grads)) if watch is None else _counts_towards(list(grads), watch.slots)
    ready = [node for node in reversed(grads) if counts.get(node, -1) == 0]
    del roots, g
    before = set_grad_enabled(create_graph)
    try:
        _run(ready, grads, counts, keep_graph, create_graph, watch)
    finally:
        set_grad_enabled(before)


def _counts(roots: list[Any]) -> dict[Any, int]:
    """How many gradients each node below waits for."""
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


def _counts_towards(roots: list[Any], targets: dict[Any, Any]) -> dict[Any, int]:
    """The same for those nodes only from which a target can be reached."""
    above: dict[Any, list[Any]] = {root: [] for root in roots}
    while roots:
        node = roots.pop()
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
    grads: dict[Any, Any],
    counts: dict[Any, int],
    keep_graph: bool,
    create_graph: bool,
    watch: Watch | None,
) -> None:
    plain = Node if watch is None and anomaly.check is None else None
    while ready:
        node = ready.pop()
        g = grads.pop(node, None)
        if node.is_leaf:
            if g is not None and getrefcount(g) == _SOLE and not create_graph and not node.hooks:
                if watch is None or watch.accumulate:
                    _store(node, g)
                    continue
            if g is not None:
                _leaf(node, g, create_graph, watch)
            continue
        results: Any
        if node.__class__ is plain and g.__class__ is Tensor:
            try:
                results = node.operator.grad(node, g)
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
                f"the gradient of {node.operator.name} has {len(results)} entries for {len(edges)} inputs"
            )
        if not keep_graph and node._saved:
            node._saved = None
        for edge, r, meta in zip(edges, results, node.metas, strict=True):
            if edge is None:
                continue
            if r is not None:
                if r.__class__ is not Tensor or r._meta is not meta:
                    r = _fitted(node, r, meta)
                if edge.__class__ is OutputEdge or edge in grads:
                    _arrive(grads, edge, r, create_graph)
                elif edge in counts:
                    grads[edge] = r
            if edge.__class__ is OutputEdge:
                edge = edge.node
            left = counts.get(edge)
            if left is None:
                continue
            if left == 1:
                ready.append(edge)
            counts[edge] = left - 1
        g = results = r = None


def _arrive(grads: dict[Any, Any], edge: Any, g: Any, create_graph: bool = True) -> None:
    """Add a gradient to what an edge has got so far."""
