"""The instruction DAG as text for programs that draw graphs: Graphviz's DOT, and Mermaid.

Mermaid refuses more than 500 edges and 50,000 characters, and the limit cannot be raised from
inside a diagram; what is larger is drawn by the user's lines instead of by instructions, and what
is still larger is an error.
"""

from __future__ import annotations

import numpy as np

from flowvm.errors import ArgumentError
from flowvm.files.printable import printable
from flowvm.profiler.grammar import ACCESS, Link, Node, ms
from flowvm.profiler.run.run import Run
from flowvm.profiler.views.summary.facts import ProfileLike
from flowvm.vm.machine.edges import HAZARDS
from flowvm.vm.machine.words import KIND

MERMAID_EDGES, MERMAID_CHARACTERS = 500, 50_000
COLOURS = {"const": "#0e7490", "mut": "#b45309", "mut2": "#a21caf"}
_STYLES = {"const": "solid", "mut": "bold", "mut2": "dashed"}


def by_instruction(profile: ProfileLike) -> tuple[list[Node], list[Link]]:
    """Instructions and edges, without releases."""
    run: Run = profile.run
    shown = np.flatnonzero(~np.isin(run.kind, (KIND.RELEASE, KIND.BARRIER)))
    on_path = {s.instruction for s in profile.observed if s.cause == "run"}
    lasted = run.time("ended") - run.time("started")
    nodes = [
        (
            f"i{run.seq[i]}",
            f"#{run.seq[i]} {run.names[run.op[i]]}\n{ms(max(0, int(lasted[i])))} ms  "
            f"{run.lines[run.line[i]]}",
            run.streams[run.stream[i]],
            int(i) in on_path,
        )
        for i in shown
    ]
    inside = set(shown.tolist())
    links = [
        (
            f"i{run.seq[a]}",
            f"i{run.seq[b]}",
            ACCESS[int(run.access[k]) & 3][2],
            HAZARDS[h],
        )
        for a, b, k, h in zip(
            run.source.tolist(), run.target.tolist(), run.operand.tolist(), run.hazard.tolist(),
            strict=True,
        )
        if a in inside and b in inside
    ]  # fmt: skip
    return nodes, links


def by_line(profile: ProfileLike) -> tuple[list[Node], list[Link]]:
    """The user's lines instead: instructions of a line and a stream are one."""
    run: Run = profile.run
    groups: dict[tuple[str, str], list[int]] = {}
    group_of: dict[int, tuple[str, str]] = {}
    for i in np.flatnonzero(~np.isin(run.kind, (KIND.RELEASE, KIND.BARRIER))).tolist():
        key = run.lines[run.line[i]], run.streams[run.stream[i]]
        groups.setdefault(key, []).append(i)
        group_of[i] = key
    names = {key: f"g{k}" for k, key in enumerate(groups)}
    on_path = {s.instruction for s in profile.observed if s.cause == "run"}
    nodes = [
        (names[key], f"{key[0] or 'flowvm'}\n{len(own)} instructions", key[1],
         any(i in on_path for i in own))
        for key, own in groups.items()
    ]  # fmt: skip
    links = {
        (names[group_of[a]], names[group_of[b]], ACCESS[int(run.access[k]) & 3][2], HAZARDS[h])
        for a, b, k, h in zip(
            run.source.tolist(), run.target.tolist(), run.operand.tolist(), run.hazard.tolist(),
            strict=True,
        )
        if a in group_of and b in group_of and group_of[a] != group_of[b]
    }  # fmt: skip
    return nodes, sorted(links)


def dot(profile: ProfileLike) -> str:
    """The DAG of a Profile for Graphviz: a cluster for each stream."""
    return dot_of(*by_instruction(profile))


def dot_of(nodes: list[Node], links: list[Link]) -> str:
    """A graph for Graphviz."""
    lines = ["digraph instructions {", "  rankdir=TB; node [shape=box, fontname=monospace];"]
    for k, stream in enumerate(dict.fromkeys(n[2] for n in nodes)):
        lines += [f"  subgraph cluster_{k} {{", f"    label={_quoted(stream)};"]
        for name, text, own, critical in nodes:
            if own == stream:
                red = ', color="#dc2626", penwidth=2' if critical else ""
                lines.append(f"    {name} [label={_quoted(text)}{red}];")
        lines.append("  }")
    for a, b, access, hazard in links:
        lines.append(
            f'  {a} -> {b} [color="{COLOURS[access]}", style={_STYLES[access]}, '
            f"tooltip={_quoted(f'{access} {hazard}')}];"
        )
    return "\n".join([*lines, "}", ""])


def _quoted(text: str) -> str:
    escaped = (
        printable(text, lines=True).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    )
    return f'"{escaped}"'


def mermaid(profile: ProfileLike) -> str:
    """The DAG of a Profile for Mermaid, by lines where it is too large by instructions.

    ArgumentError if it is too large even so.
    """
    for nodes, links in (by_instruction(profile), by_line(profile)):
        text = mermaid_text(nodes, links)
        if len(links) <= MERMAID_EDGES and len(text) <= MERMAID_CHARACTERS:
            return text
    raise ArgumentError(
        f"{len(links)} edges and {len(text):,} characters, by lines: Mermaid draws at most "
        f"{MERMAID_EDGES} and {MERMAID_CHARACTERS:,}; profile less, or export .dot or .json"
    )


def mermaid_of(nodes: list[Node], links: list[Link]) -> str:
    """A graph for Mermaid.  ArgumentError if it is too large."""
    text = mermaid_text(nodes, links)
    if len(links) > MERMAID_EDGES or len(text) > MERMAID_CHARACTERS:
        raise ArgumentError(
            f"{len(links)} edges and {len(text):,} characters: Mermaid draws at most "
            f"{MERMAID_EDGES} and {MERMAID_CHARACTERS:,}; show less, or save .dot or .svg"
        )
    return text


def mermaid_text(nodes: list[Node], links: list[Link]) -> str:
    arrows = {"const": "-->", "mut": "==>", "mut2": "-.->"}
    lines = ["flowchart TD"]
    for k, stream in enumerate(dict.fromkeys(n[2] for n in nodes)):
        lines.append(f"  subgraph s{k}[{_escaped(stream)}]")
        lines += [f"    {n}[{_escaped(t)}]" for n, t, own, _ in nodes if own == stream]
        lines.append("  end")
    lines += [f"  {a} {arrows[access]}|{hazard}| {b}" for a, b, access, hazard in links]
    critical = [n for n, _, _, c in nodes if c]
    if critical:
        lines += ["  classDef critical stroke:#dc2626,stroke-width:2px",
                  f"  class {','.join(critical)} critical"]  # fmt: skip
    return "\n".join([*lines, ""])


def _escaped(text: str) -> str:
    plain = (
        printable(text, lines=True)
        .replace("&", "#amp;")
        .replace('"', "#quot;")
        .replace("<", "#lt;")
    )
    return '"' + plain.replace(">", "#gt;").replace("\n", "<br/>") + '"'
