"""Files of graphs: WfFormat, the Standard Task Graph Set's, GraphML, DOT.

Readers give `Parts`, of which a Dag is made, and writers take a graph's columns, so nothing here
knows more of a Dag than that it has these.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from xml.etree import ElementTree
from xml.sax.saxutils import quoteattr

import numpy as np

from flowvm.errors import ArgumentError
from flowvm.files.writer import writing
from flowvm.meta.arrays import Array

WFFORMAT = "1.5"
_GRAPHML = "{http://graphml.graphdrawing.org/xmlns}"


class Columns(Protocol):
    """Columns that a writer takes from a graph."""

    cost: Array
    source: Array
    target: Array
    size: Array
    names: list[str]
    op: Array

    def __len__(self) -> int: ...


class Parts(NamedTuple):
    """Parts that a reader has found of a graph."""

    cost: list[float]
    edges: list[tuple[int, int, float]]
    op: list[str]


def write(graph: Columns, path: str | Path) -> None:
    """Write a graph; its name's end says how.  ArgumentError: no such format."""
    end = Path(path).suffix
    writer = WRITERS.get(end)
    if writer is None:
        raise ArgumentError(f"Dag.save: {end!r} is none of {', '.join(WRITERS)}")
    with writing(path, "Dag.save") as file:
        file.write(writer(graph).encode())


def read(path: str | Path) -> Parts:
    """Read what `write` or another program wrote.  ArgumentError: it is none of these formats."""
    end = Path(path).suffix
    reader = READERS.get(end)
    if reader is None:
        raise ArgumentError(f"Dag.load: {end!r} is none of .flowtrace, {', '.join(READERS)}")
    text = Path(path).read_text()
    try:
        return reader(text)
    except (KeyError, IndexError, TypeError, ValueError, ElementTree.ParseError) as error:
        raise ArgumentError(f"Dag.load: {path} is not a graph in {end}: {error}") from error


def _rows(graph: Columns) -> list[tuple[int, int, float]]:
    return list(zip(graph.source.tolist(), graph.target.tolist(), graph.size.tolist(), strict=True))


def to_wfformat(graph: Columns) -> str:
    """WfFormat (WfCommons): a task's edge is a file that its source writes and its target reads."""
    n = len(graph)
    parents: list[list[int]] = [[] for _ in range(n)]
    children: list[list[int]] = [[] for _ in range(n)]
    inputs: list[list[str]] = [[] for _ in range(n)]
    outputs: list[list[str]] = [[] for _ in range(n)]
    files = []
    for s, t, size in _rows(graph):
        parents[t].append(s)
        children[s].append(t)
        name = f"from_{s}_to_{t}"
        files.append({"id": name, "sizeInBytes": size})
        outputs[s].append(name)
        inputs[t].append(name)
    tasks = [
        {
            "name": graph.names[int(graph.op[k])], "id": f"task_{k}",
            "parents": [f"task_{p}" for p in parents[k]],
            "children": [f"task_{c}" for c in children[k]],
            "inputFiles": inputs[k], "outputFiles": outputs[k],
        }
        for k in range(n)
    ]  # fmt: skip
    ran = [
        {"id": f"task_{k}", "runtimeInSeconds": cost} for k, cost in enumerate(graph.cost.tolist())
    ]
    whole = {
        "name": "flowvm", "schemaVersion": WFFORMAT,
        "workflow": {
            "specification": {"tasks": tasks, "files": files},
            "execution": {"makespanInSeconds": float(graph.cost.sum()), "tasks": ran},
        },
    }  # fmt: skip
    return json.dumps(whole, indent=1)


def from_wfformat(text: str) -> Parts:
    """Read WfFormat: version 1.4 and later, and older ones with runtimes and files in the tasks."""
    workflow = json.loads(text)["workflow"]
    specified = workflow.get("specification", workflow)
    tasks = specified["tasks"] if "tasks" in specified else workflow["jobs"]
    ids = {task.get("id", task["name"]): k for k, task in enumerate(tasks)}
    runtimes = {
        row["id"]: float(row["runtimeInSeconds"])
        for row in workflow.get("execution", {}).get("tasks", ())
    }
    sizes = {row["id"]: float(row["sizeInBytes"]) for row in specified.get("files", ())}
    cost, edges = [], []
    written: list[dict[str, float]] = []
    for task in tasks:
        known = runtimes.get(task.get("id", task["name"]))
        if known is None:
            known = float(task.get("runtimeInSeconds", task.get("runtime", 0.0)))
        cost.append(known)
        written.append(
            {name: sizes.get(name, 0.0) for name in task.get("outputFiles", ())}
            | {f.get("name", f.get("id")): float(f.get("sizeInBytes", f.get("size", 0.0)))
               for f in task.get("files", ()) if f.get("link") == "output"}
        )  # fmt: skip
    for k, task in enumerate(tasks):
        read_files = {*task.get("inputFiles", ())}
        read_files |= {
            f.get("name", f.get("id")) for f in task.get("files", ()) if f.get("link") == "input"
        }
        for parent in task.get("parents", ()):
            p = ids[parent]
            edges.append((p, k, sum(v for name, v in written[p].items() if name in read_files)))
    return Parts(cost, edges, [str(task["name"]) for task in tasks])


def to_stg(graph: Columns) -> str:
    """The Standard Task Graph Set's: a line a task with its cost and whom it waits for, between two
    tasks that cost nothing.  It has no sizes of edges and no names.
    """
    n = len(graph)
    front: list[list[int]] = [[] for _ in range(n)]
    leads = np.zeros(n, bool)
    for s, t, _ in _rows(graph):
        front[t].append(s + 1)
        leads[s] = True
    lines = [f"{n}", "0 0 0"]
    for k in range(n):
        waits = front[k] or [0]
        lines.append(f"{k + 1} {graph.cost[k]:.17g} {len(waits)} {' '.join(map(str, waits))}")
    ends = (np.flatnonzero(~leads) + 1).tolist()
    lines.append(f"{n + 1} 0 {len(ends)} {' '.join(map(str, ends))}".rstrip())
    return "\n".join(lines) + "\n"


def from_stg(text: str) -> Parts:
    """The two tasks that cost nothing, at the head and the end, are left out."""
    rows = [line.split("#")[0].split() for line in text.splitlines()]
    rows = [row for row in rows if row]
    n = int(rows[0][0])
    tasks = rows[1 : n + 3]
    if len(tasks) != n + 2 or float(tasks[0][1]) or float(tasks[-1][1]):
        raise ValueError(f"{n} tasks between two of cost 0 were announced")
    number = {int(row[0]): k - 1 for k, row in enumerate(tasks)}
    edges = []
    for k, row in enumerate(tasks[1:-1]):
        sources = [number[int(s)] for s in row[3 : 3 + int(row[2])]]
        edges += [(s, k, 0.0) for s in sources if s >= 0]
    return Parts([float(row[1]) for row in tasks[1:-1]], edges, ["task"] * n)


def to_graphml(graph: Columns) -> str:
    """GraphML with the attributes cost and op of nodes, size of edges."""
    kinds = (("cost", "node", "double"), ("op", "node", "string"), ("size", "edge", "double"))
    lines = ['<?xml version="1.0" encoding="utf-8"?>',
             '<graphml xmlns="http://graphml.graphdrawing.org/xmlns">']  # fmt: skip
    lines += [f'<key id="{n}" for="{of}" attr.name="{n}" attr.type="{t}"/>' for n, of, t in kinds]
    lines.append('<graph edgedefault="directed">')
    for k, cost in enumerate(graph.cost.tolist()):
        name = quoteattr(graph.names[int(graph.op[k])])[1:-1]
        lines.append(
            f'<node id="n{k}"><data key="cost">{cost!r}</data><data key="op">{name}</data></node>'
        )
    for s, t, size in _rows(graph):
        lines.append(f'<edge source="n{s}" target="n{t}"><data key="size">{size!r}</data></edge>')
    return "\n".join([*lines, "</graph>", "</graphml>"]) + "\n"


def from_graphml(text: str) -> Parts:
    """Node attribute cost (or weight), edge attribute size (or weight)."""
    if "<!ENTITY" in text:
        raise ValueError("entities")
    root = ElementTree.fromstring(text)
    keys = {key.get("id"): key.get("attr.name") for key in root.iter(f"{_GRAPHML}key")}

    def data(element: Any) -> dict[str, str]:
        return {
            str(keys.get(d.get("key"), d.get("key"))): d.text or ""
            for d in element.iter(f"{_GRAPHML}data")
        }

    ids = {}
    cost: list[float] = []
    op: list[str] = []
    edges = []
    for node in root.iter(f"{_GRAPHML}node"):
        has = data(node)
        ids[node.get("id")] = len(cost)
        cost.append(float(has.get("cost", has.get("weight", 1.0))))
        op.append(has.get("op", str(node.get("id"))))
    for edge in root.iter(f"{_GRAPHML}edge"):
        has = data(edge)
        size = float(has.get("size", has.get("weight", 0.0)))
        edges.append((ids[edge.get("source")], ids[edge.get("target")], size))
    return Parts(cost, edges, op)


def to_dot(graph: Columns) -> str:
    """For Graphviz."""
    lines = ["digraph work {", "  rankdir=LR"]
    for k, cost in enumerate(graph.cost.tolist()):
        name = graph.names[int(graph.op[k])].replace("\\", "\\\\").replace('"', '\\"')
        lines.append(f'  {k} [label="{name}\\n{cost:.3g}"]')
    for s, t, size in _rows(graph):
        lines.append(f"  {s} -> {t}" + (f' [label="{size:.3g}"]' if size else ""))
    return "\n".join([*lines, "}"]) + "\n"


WRITERS = {".json": to_wfformat, ".stg": to_stg, ".graphml": to_graphml, ".dot": to_dot}
READERS = {".json": from_wfformat, ".stg": from_stg, ".graphml": from_graphml}
