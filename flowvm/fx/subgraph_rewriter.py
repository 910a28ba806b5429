"""Replacement of parts of a graph that match a pattern."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, ArgumentTypeError
from flowvm.fx.graph import Graph
from flowvm.fx.graph_module import GraphModule
from flowvm.fx.node import Node
from flowvm.fx.tracer import symbolic_trace
from flowvm.loading.listing import listing, own_names
from flowvm.nn.module import Module

__dir__ = listing(globals())

Form = Callable[..., object] | Graph | GraphModule


class Match(NamedTuple):
    """A place in the graph that matches a pattern.

    anchor     the pattern's node whose value is its result, the first of several
    nodes_map  pattern's node -> the graph's node, or the value that stands for a parameter
    """

    anchor: Node
    nodes_map: dict[Node, Any]


@dataclass
class ReplacedPatterns:
    """A Match, and the nodes that replaced it."""

    anchor: Node
    nodes_map: dict[Node, Any]
    replacements: list[Node]


Filter = Callable[[Match, Graph, Graph], bool]


# public: fx
def replace_pattern(gm: GraphModule, pattern: Form, replacement: Form) -> list[Match]:
    """Replace each match of `pattern` in the graph of `gm`, which is changed; see
    `replace_pattern_with_filters`.

    >>> traced = flow.fx.symbolic_trace(lambda x: flow.relu(x + 1) * 2)
    >>> found = flow.fx.replace_pattern(
    ...     traced, lambda a: flow.relu(a) * 2, lambda a: flow.sigmoid(a))
    >>> len(found), traced(flow.tensor([-1.0]))
    (1, tensor([0.5000]))
    """
    return [
        Match(match.anchor, match.nodes_map)
        for match in replace_pattern_with_filters(gm, pattern, replacement)
    ]


def replace_pattern_with_filters(
    gm: GraphModule,
    pattern: Form,
    replacement: Form | None = None,
    match_filters: Sequence[Filter] | None = None,
    ignore_literals: bool = False,
    replacement_callback: Callable[[Match, Graph, Graph], Form] | None = None,
) -> list[ReplacedPatterns]:
    """Replace each match of `pattern` that all filters accept by `replacement`.

    A function is traced; its parameters stand for any values in their place, and both functions
    have equally many.  A call matches a call of the same function, method or module, whose
    arguments match.  Outside of a match only its results may be used.  Of overlapping matches the
    first is taken.

    match_filters         filter(match, graph, pattern's graph) -> whether it is one
    ignore_literals       numbers and other values that are no nodes match any others
    replacement_callback  makes the replacement of (match, graph, pattern's graph), in the place of
                          `replacement`

    >>> traced = flow.fx.symbolic_trace(lambda x: x * 2 + x * 3)
    >>> found = flow.fx.subgraph_rewriter.replace_pattern_with_filters(
    ...     traced, lambda a: a * 7, lambda a: -a, ignore_literals=True)
    >>> len(found), traced(flow.tensor([1.0]))
    (2, tensor([-2.]))
    """
    if not isinstance(gm, GraphModule):
        raise ArgumentTypeError(
            f"replace_pattern: expected what flow.fx.symbolic_trace gives, got {type(gm).__name__}"
        )
    if (replacement is None) == (replacement_callback is None):
        raise ArgumentError("replace_pattern: give replacement or replacement_callback, not both")
    sought = _graph_of(pattern)
    search = _Search(gm, pattern, sought, ignore_literals)
    moved: dict[Node, Node] = {}
    replacements = []
    for match in list(search.matches()):
        if not all(says(match, gm.graph, sought) for says in match_filters or ()):
            continue
        put: Any = replacement
        if replacement_callback is not None:
            put = replacement_callback(match, gm.graph, sought)
        replacements.append(_replaced(gm, sought, match, _graph_of(put), moved))
        if isinstance(put, Module):
            _adopt(gm, put, _graph_of(put))
    gm.recompile()
    return replacements


def _graph_of(form: Form) -> Graph:
    if isinstance(form, Graph):
        return form
    return (form if isinstance(form, GraphModule) else symbolic_trace(form)).graph


def _inputs(graph: Graph) -> list[Node]:
    return [node for node in graph.nodes if node.op == "placeholder"]


def _results(graph: Graph) -> list[Any]:
    result = graph.output_node().args[0]
    return list(result) if isinstance(result, (tuple, list)) else [result]


class _Search:
    """The search for a pattern in a graph."""

    def __init__(self, gm: GraphModule, pattern: Form, sought: Graph, ignore: bool) -> None:
        self.gm, self.pattern, self.sought, self.ignore = gm, pattern, sought, ignore
        self.results = _results(sought)
        if not all(isinstance(r, Node) and r.op != "placeholder" for r in self.results):
            raise ArgumentError("replace_pattern: the pattern gives something that it computes")

    def matches(self) -> Iterator[Match]:
        """Yield the matches; of overlapping ones only the first.  The graph must not change
        meanwhile.
        """
        matched: set[Node] = set()
        last = self.results[-1]
        for node in self.gm.graph.nodes:
            for pairs in self._from(0, {}, node, last):
                inner = {g for p, g in pairs.items() if p.op != "placeholder"}
                if inner & matched or not self._closed(pairs, inner):
                    continue
                matched |= inner
                yield Match(self.results[0], pairs)
                break

    def _from(
        self, at: int, pairs: dict[Node, Any], node: Node, last: Node
    ) -> Iterator[dict[Node, Any]]:
        """Yield all ways in which the results match; the last result is `node`."""
        order = [last, *(r for r in self.results if r is not last)]
        if at == len(order):
            yield pairs
            return
        if at and order[at] in pairs:
            yield from self._from(at + 1, pairs, node, last)
            return
        for candidate in [node] if at == 0 else self.gm.graph.nodes:
            more = dict(pairs)
            if self._same(order[at], candidate, more):
                yield from self._from(at + 1, more, node, last)

    def _same(self, p: object, g: object, pairs: dict[Node, Any]) -> bool:
        """Return True if a value of the graph matches the pattern's value in its place.  Record the
        match in `pairs`.
        """
        if isinstance(p, Node):
            if p in pairs:
                return pairs[p] is g or (not isinstance(g, Node) and pairs[p] == g)
            if p.op == "placeholder":
                pairs[p] = g
                return True
            if not isinstance(g, Node) or p.op != g.op or not self._alike(p, g):
                return False
            if any(other is g for q, other in pairs.items() if q.op != "placeholder"):
                return False
            pairs[p] = g
            return self._same(list(p.args), list(g.args), pairs) and self._same(
                dict(p.kwargs), dict(g.kwargs), pairs
            )
        if isinstance(g, Node):
            return False
        if isinstance(p, (tuple, list)):
            return (
                isinstance(g, (tuple, list))
                and len(p) == len(g)
                and all(self._same(a, b, pairs) for a, b in zip(p, g, strict=True))
            )
        if isinstance(p, dict):
            return (
                isinstance(g, dict)
                and p.keys() == g.keys()
                and all(self._same(p[k], g[k], pairs) for k in p)
            )
        if isinstance(p, slice):
            if not isinstance(g, slice):
                return False
            own, other = ([s.start, s.stop, s.step] for s in (p, g))
            return self._same(own, other, pairs)
        return self.ignore or (type(p) is type(g) and bool(p == g))

    def _alike(self, p: Node, g: Node) -> bool:
        """Return True if two nodes do the same work: attributes of one shape and dtype, modules of
        one name.
        """
        if p.op == "get_attr" and isinstance(self.pattern, Module):
            ours, theirs = (_reached(m, n.target) for m, n in ((self.gm, g), (self.pattern, p)))
            if isinstance(ours, Tensor) and isinstance(theirs, Tensor):
                return ours.shape == theirs.shape and ours.dtype is theirs.dtype
            return type(ours) is type(theirs)
        return bool(p.target == g.target)

    def _closed(self, pairs: dict[Node, Any], inner: set[Node]) -> bool:
        """Return True if no outside node uses an inner one, except for the results."""
        shown = {pairs[r] for r in self.results}
        return all(g in shown or set(g.users) <= inner for g in inner)


def _reached(module: object, path: str) -> object:
    for name in path.split("."):
        module = getattr(module, name, None)
    return module


def _replaced(
    gm: GraphModule, sought: Graph, match: Match, put: Graph, moved: dict[Node, Node]
) -> ReplacedPatterns:
    """The replacement in the place of a match; `moved` says which nodes stand for erased ones."""
    graph, inputs, own = gm.graph, _inputs(sought), _inputs(put)
    if len(inputs) != len(own):
        raise ArgumentError(
            f"replace_pattern: the pattern has {len(inputs)} parameters, the replacement {len(own)}"
        )
    values: dict[Node, Any] = {}
    for p, q in zip(inputs, own, strict=True):
        if q.users and p not in match.nodes_map:
            raise ArgumentError(f"replace_pattern: the pattern makes nothing of its {p.name}")
        value = match.nodes_map.get(p)
        while isinstance(value, Node) and value in moved:
            value = moved[value]
        values[q] = value
    inner = [g for p, g in match.nodes_map.items() if p.op != "placeholder"]
    shown = [match.nodes_map[r] for r in _results(sought)]
    outside = {user for node in shown for user in node.users} - set(inner)
    place = next((node for node in graph.nodes if node in outside), graph.output_node())
    before = set(values)
    with graph.inserting_before(place):
        copied = graph.graph_copy(put, values)
    results = list(copied) if isinstance(copied, (tuple, list)) else [copied]
    if len(results) != len(shown):
        raise ArgumentError(
            f"replace_pattern: the pattern gives {len(shown)} values, the replacement "
            f"{len(results)}"
        )
    for old, new in zip(shown, results, strict=True):
        old.replace_all_uses_with(new)
        if isinstance(new, Node):
            moved[old] = new
    for node in reversed([n for n in graph.nodes if n in set(inner)]):
        if not node.users:
            graph.erase_node(node)
    news = [node for q, node in values.items() if q not in before]
    return ReplacedPatterns(match.anchor, match.nodes_map, news)


def _adopt(gm: GraphModule, source: Module, graph: Graph) -> None:
    """The attributes that nodes of the replacement name, where the module has none of the name;
    modules that no node names any more go.
    """
    for node in graph.nodes:
        if node.op in ("call_module", "get_attr") and _reached(gm, node.target) is None:
            gm._take(str(node.target), copy.deepcopy(_reached(source, node.target)))
    gm.delete_all_unused_submodules()


__all__ = own_names(globals())
