"""Fusion: chains of elementwise nodes become one node with one generated kernel.

Every elementwise op is declared by a scalar expression, so a group of them is a small program of
assignments; the kernel reads each input once, keeps intermediate values in registers and writes
what is needed outside.  What does not change from layer to layer compiles once: the program names
its inputs by position.

A group is run at one place: behind everything that makes or changes what it reads, before anything
that reads what it makes or changes what it read.  All of a group have one shape; inputs may be
broadcast to it.

Results may differ from eager ones in the last place: within one kernel a product and a sum may
become a fused multiply-add.
"""

from __future__ import annotations

import ast
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from flowvm.graph.logical import Buffer, BufferKind, LogicalGraph, Operand, OpNode
from flowvm.graph.rewriting import is_pure, rebuilt, writers_of
from flowvm.interpreter import Invocation, Operator
from flowvm.live import Live
from flowvm.meta import TensorMeta
from flowvm.ops import codegen
from flowvm.ops.elementwise import broadcast_stride
from flowvm.ops.plan import plan_of

__all__ = ["fuse_elementwise"]

MOST_OPERANDS = 24  # of a fused kernel: an instruction record holds 28 words
MOST_NODES = 64  # of a group
REAL = ("float32", "float64")


@dataclass(eq=False)
class _Group:
    """Nodes to be fused, by their places in the graph."""

    places: list[int] = field(default_factory=list)
    at: int = -1  # the place in front of which it runs


def fuse_elementwise(graph: LogicalGraph) -> LogicalGraph:
    """Fuse every group of at least two nodes that may be one."""
    facts = _Facts(graph)
    for place, node in enumerate(graph.nodes):
        if not facts.fusible(place):
            continue
        group = _Group([place])
        for before in facts.producers(node):
            candidate = _Group(sorted({*before.places, *group.places}))
            if facts.allowed(candidate):
                group = candidate
        for p in group.places:
            facts.group_of[p] = group
    made: dict[int, list[OpNode]] = {}
    gone: set[int] = set()
    for group in {id(g): g for g in facts.group_of.values()}.values():
        if len(group.places) > 1:
            made.setdefault(group.at, []).append(_fused(facts, group))
            gone.update(group.places)
    nodes = []
    for place, node in enumerate(graph.nodes):
        nodes += _in_order(made.get(place, []))
        if place not in gone:
            nodes.append(node)
    return rebuilt(graph, [*nodes, *_in_order(made.get(len(graph.nodes), []))])


def _in_order(nodes: list[OpNode]) -> list[OpNode]:
    """Fused nodes of one place, those that make something in front of those that read it."""
    left, ordered = list(nodes), []
    while left:
        made = {operand.buffer for node in left for operand in node.outputs}
        ready = next(n for n in left if not any(o.buffer in made for o in n.inputs))
        ordered.append(ready)
        left.remove(ready)
    return ordered


class _Facts:
    """What the search asks of a graph, computed once."""

    def __init__(self, graph: LogicalGraph) -> None:
        self.graph = graph
        self.group_of: dict[int, _Group] = {}
        self.writers = writers_of(graph)
        self.shown = {operand.buffer for operand in graph.outputs}
        self.made_at: dict[Buffer, int] = {}
        self.reads: dict[Buffer, list[int]] = {}
        self.writes: dict[Buffer, list[int]] = {}
        for place, node in enumerate(graph.nodes):
            for operand in node.inputs:
                self.reads.setdefault(operand.buffer, []).append(place)
            for operand in node.written():
                self.writes.setdefault(operand.buffer, []).append(place)
                self.made_at.setdefault(operand.buffer, place)

    def _runs_at(self, place: int, behind: int) -> int:
        """Where the node at `place` runs, if it is in a group by now; `behind` is -1 for the place
        after which something may run that needs it.
        """
        group = self.group_of.get(place)
        if group is None or len(group.places) == 1:
            return place
        return group.at + behind if behind else min(place, group.at)

    def fusible(self, place: int) -> bool:
        """Whether a node is elementwise arithmetic on one floating-point dtype."""
        node = self.graph.nodes[place]
        form = node.operator.form
        if form is None or not is_pure(node):
            return False
        if any(not isinstance(s, Live) and not math.isfinite(s) for s in node.scalars):
            return False  # no literal of Python says it
        (out,) = node.outputs
        stable = out.buffer.kind is BufferKind.TEMPORARY and self.writers[out.buffer] == 1
        return stable and out.offset == 0 and real_of(node) is not None

    def producers(self, node: OpNode) -> list[_Group]:
        """The groups that make what a node reads, each once."""
        found: dict[int, _Group] = {}
        for operand in node.inputs:
            place = self.made_at.get(operand.buffer, -1)
            if place in self.group_of:
                group = self.group_of[place]
                found[id(group)] = group
        return list(found.values())

    def allowed(self, group: _Group) -> bool:
        """Whether the nodes may run together where the last of them stands."""
        nodes, places = self.graph.nodes, set(group.places)
        members = [nodes[p] for p in group.places]
        if len(members) > MOST_NODES:
            return False
        if len({real_of(m) for m in members} - {""}) > 1:
            return False
        if len({tuple(m.outputs[0].meta.shape) for m in members}) > 1:
            return False
        inside = {m.outputs[0].buffer: m.outputs[0] for m in members}
        behind, before = -1, group.places[-1] + 1  # it runs behind one place, before the other
        for place, member in zip(group.places, members, strict=True):
            for operand in member.inputs:
                made = inside.get(operand.buffer)
                if made is not None:
                    if operand != made:  # a view of what the group itself makes
                        return False
                    continue
                for write in self.writes.get(operand.buffer, ()):
                    if write < place:
                        behind = max(behind, self._runs_at(write, -1))
                    else:
                        before = min(before, write)
            readers = self.reads.get(member.outputs[0].buffer, ())
            before = min([before, *(self._runs_at(r, 0) for r in readers if r not in places)])
        group.at = before
        if behind >= before:
            return False
        inputs, outputs = _interface(self, members)
        lives = sum(isinstance(s, Live) for m in members for s in m.scalars)
        return len(inputs) + len(outputs) + lives <= MOST_OPERANDS


@functools.lru_cache(maxsize=4096)
def _types(form: Any, metas: tuple[TensorMeta, ...], kinds: tuple[type, ...]) -> Any:
    made, pattern = form
    return made.types_of(pattern, metas, kinds)


def real_of(node: OpNode) -> str | None:
    """The floating-point dtype of all of a node's arithmetic, "" if it is of bools, else None."""
    made, pattern = node.operator.form
    metas = tuple(operand.meta for operand in node.inputs)
    compute, result = _types((made, pattern), metas, node.attrs)
    (out,) = node.outputs
    if out.meta.dtype is not result:
        return None
    tensors = iter(metas)
    for p, c in zip(pattern, compute, strict=True):
        if p == "t" and next(tensors).dtype is not c:
            return None
    names = {c.name for c in (*compute, result)} - {"bool"}
    if not names:
        return ""
    return names.pop() if len(names) == 1 and names <= set(REAL) else None


def _interface(facts: _Facts, members: Sequence[OpNode]) -> tuple[list[Operand], list[Operand]]:
    """What a group reads from outside, and what of its results is needed there."""
    inside = {m.outputs[0].buffer for m in members}
    inputs = [o for m in members for o in m.inputs if o.buffer not in inside]
    numbers = {id(m) for m in members}
    outputs = []
    for member in members:
        (out,) = member.outputs
        readers = [facts.graph.nodes[r] for r in facts.reads.get(out.buffer, ())]
        if out.buffer in facts.shown or any(id(r) not in numbers for r in readers):
            outputs.append(out)
    return list(dict.fromkeys(inputs)), outputs


# --- the fused node -----------------------------------------------------------------------------


class _Renamed(ast.NodeTransformer):
    """An expression with its arguments' names replaced."""

    def __init__(self, names: dict[str, ast.expr]) -> None:
        self.names = names

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return self.names.get(node.id, node)


def _fused(facts: _Facts, group: _Group) -> OpNode:
    members = [facts.graph.nodes[p] for p in group.places]
    inputs, outputs = _interface(facts, members)
    names: dict[Any, str] = {operand: f"x{k}" for k, operand in enumerate(inputs)}
    lives: list[Any] = []
    lines: list[str] = []
    for member in members:
        made, pattern = member.operator.form
        tensors, numbers = iter(member.inputs), iter(member.scalars)
        places: dict[str, ast.expr] = {}
        for argument, p in zip(made.args, pattern, strict=True):
            if p == "t":
                places[argument] = ast.Name(names[next(tensors)], ast.Load())
                continue
            value = next(numbers)
            if isinstance(value, Live):
                if not any(value is v for v in lives):
                    lives.append(value)
                at = next(i for i, v in enumerate(lives) if v is value)
                places[argument] = ast.Name(f"n{at}", ast.Load())
            else:
                places[argument] = ast.Constant(float(value))
        names[member.outputs[0]] = f"t{len(lines)}"
        tree = _Renamed(places).visit(ast.parse(made.expr, mode="eval"))
        lines.append(f"t{len(lines)} = {ast.unparse(ast.fix_missing_locations(tree))}")
    results = ", ".join(names[o] for o in outputs)
    real = max(map(str, map(real_of, members))) or "float64"
    operator = _operator(
        "\n".join([*lines, f"({results})" if len(outputs) > 1 else results]),
        tuple(o.meta.dtype.name for o in inputs),
        len(outputs),
        len(lives),
        real,
    )
    last = members[-1]
    metas = tuple(o.meta for o in outputs)
    return OpNode(
        last.number,
        operator,
        tuple(inputs),
        tuple(outputs),
        (metas,),
        tuple(lives),
        phase=last.phase,
        scope=last.scope,
        code=last.code,
        last=last.last,
    )


@functools.cache
def _operator(
    program: str, dtypes: tuple[str, ...], outputs: int, lives: int, real: str
) -> Operator:
    """The operator of a fused program; layers that are alike share it, and its kernels."""
    names = tuple(f"x{k}" for k in range(len(dtypes)))
    numbers = tuple(f"n{k}" for k in range(lives))

    def lower(metas: tuple[TensorMeta, ...], attrs: tuple[Any, ...]) -> Invocation:
        (outs,) = attrs
        metas = metas[-len(names) :] if names else ()
        kernel = codegen.elementwise_kernel(
            program,
            (*names, *numbers),
            (*dtypes, *["float64"] * lives),
            [m.dtype.name for m in outs],
            (*dtypes, *[real] * lives),
            numbers,
        )
        shape = outs[0].shape
        strides = [m.stride for m in outs] + [broadcast_stride(m, shape) for m in metas]
        plan = plan_of(shape, strides, [m.dtype.itemsize for m in (*outs, *metas)])
        return Invocation(tuple(outs), kernel, *plan, 0, "d" * lives)

    return Operator(
        f"fused_{program.count(chr(10))}",
        names,
        tuple(f"out{k}" for k in range(outputs)),
        lower,
        attrs=("metas",),
        scalars=numbers,
    )
