"""The view of a graph's passes (`changes`) for the profiler's screen."""

from __future__ import annotations

from collections.abc import Sequence

from flowvm.graph.logical.nodes import OpNode
from flowvm.graph.passes.changes import Changes, matched
from flowvm.profiler.views.passes import NodeText, Pair, PassesView, PassText

MOST_DRAWN = 100


def passes_view(changes: Changes) -> PassesView:
    """Return the view of the passes' changes."""
    names = {id(node): _name(node) for p in changes.passes for node in p.removed}
    texts = [
        PassText(
            p.name, p.before, p.after,
            tuple((_name(node), tuple(_name(part) for part in parts)) for node, parts in p.made),
            tuple(names[id(node)] for node in p.removed), p.moved,
        )
        for p in changes.passes
        if p.changed
    ]  # fmt: skip
    return PassesView(
        changes.after.name, len(changes.before.nodes), len(changes.after.nodes), tuple(texts),
        tuple(p.name for p in changes.passes if not p.changed), changes.left_out,
        tuple(_pairs(changes)),
    )  # fmt: skip


def passes_record(changes: Changes, tasks: Sequence[OpNode]) -> dict[str, object]:
    """Return the passes' changes as plain values.

    A node that runs is named by its place among `tasks`, -1 if this is not known: passes that run
    again make other nodes.
    """
    view = passes_view(changes)
    places = {id(node): k for k, node in enumerate(tasks)}
    into = matched(changes.after.nodes, tasks)
    task = {n.number: places.get(id(into.get(id(n))), -1) for n in changes.after.nodes}
    return {
        "captured": view.before,
        "passes": [[p.name, p.before, p.after, p.did] for p in view.passes],
        "idle": list(view.idle),
        "left_out": list(view.left_out),
        "pairs": [
            [
                [_row(node) for node in pair.before],
                None if pair.after is None else _row(pair.after),
                -1 if pair.after is None else task[pair.after.number],
                pair.why,
            ]
            for pair in view.pairs
        ],
    }


def stages_record(changes: Changes) -> list[list[object]]:
    """Return the graph as captured and behind each pass that changed it, as plain values: a title,
    nodes (operator, result, line, phase, whether this pass made it) and the edges between them;
    nothing of a graph with more than MOST_DRAWN nodes, which is no picture any more.
    """
    if not changes.passes or len(changes.before.nodes) > MOST_DRAWN:
        return []
    stages = [_stage("captured", changes.before.nodes, set())]
    texts = {p.name: p.did for p in passes_view(changes).passes}
    for p in changes.passes:
        if p.changed:
            fresh = {id(node) for node, _ in p.made}
            stages.append(_stage(f"{p.name}: {texts[p.name]}", p.nodes, fresh))
    return stages


def _stage(title: str, nodes: Sequence[OpNode], fresh: set[int]) -> list[object]:
    rows, edges = [], []
    writers: dict[int, int] = {}
    for k, node in enumerate(nodes):
        text = _text(node)
        rows.append([text.op, text.result, text.line, text.phase, int(id(node) in fresh)])
        touched = [id(o.buffer) for _, o in node.accesses()]
        edges += [[a, k] for a in sorted({writers[b] for b in touched if b in writers})]
        writers.update({id(o.buffer): k for o in node.written()})
    return [title, rows, edges]


def _row(node: NodeText) -> list[object]:
    return [node.number, node.op, node.result, node.scope, node.line]


def _pairs(changes: Changes) -> list[Pair]:
    """Return the pairs in the order that nodes run; a removed one is behind its predecessor."""
    parts: dict[int, list[int]] = {}
    for k, into in enumerate(changes.became):
        if not isinstance(into, str):
            parts.setdefault(id(into), []).append(k)
    before = changes.before.nodes
    rows: list[tuple[int, Pair]] = []  # the last captured node in it
    for node in changes.after.nodes:
        own = parts.get(id(node), [])
        last = own[-1] if own else rows[-1][0] if rows else -1
        rows.append((last, Pair(tuple(_text(before[k]) for k in own), _text(node), "")))
    for k, why in enumerate(changes.became):
        if isinstance(why, str):
            at = next((r for r in range(len(rows), 0, -1) if rows[r - 1][0] == k - 1), None)
            if at is None:
                at = next((r for r, (last, _) in enumerate(rows) if last > k), len(rows))
            rows.insert(at, (k, Pair((_text(before[k]),), None, why)))
    return [pair for _, pair in rows]


def _text(node: OpNode) -> NodeText:
    written = node.written()
    result = ", ".join(f"{o.buffer.name or repr(o)} {o.meta!r}" for o in written[:2])
    result += f" and {len(written) - 2} more" if len(written) > 2 else ""
    line = node.line.rsplit("/", 1)[-1]
    return NodeText(node.number, _name(node), result, node.scope, line, node.phase)


def _name(node: OpNode) -> str:
    return node.operator.name
