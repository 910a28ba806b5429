"""The DAG for programs that read tables and graphs: CSV, GraphML, networkx, pandas.

Instructions have the columns of `flowvm.profiler.views.query`, by those names; edges have EDGES.
"""

from __future__ import annotations

import csv
import importlib
import io
from typing import TYPE_CHECKING, Any
from xml.sax import saxutils

from flowvm.errors import ConfigError
from flowvm.files.printable import printable
from flowvm.meta.arrays import Array
from flowvm.profiler.views.edges import edges_of
from flowvm.profiler.views.query import columns_of
from flowvm.profiler.views.summary.facts import ProfileLike

if TYPE_CHECKING:
    from types import ModuleType


def _instructions(profile: ProfileLike) -> dict[str, Array]:
    """Columns of instructions alone, without the tasks of replays, which have no edges here."""
    return {name: column[: len(profile.run)] for name, column in columns_of(profile).items()}


def table(columns: dict[str, Array]) -> str:
    """Columns as CSV with a line of names."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*(_plain(column) for column in columns.values()), strict=True))
    return out.getvalue()


def _plain(column: Array) -> list[object]:
    if column.dtype == object:
        return [printable(str(value)) for value in column.tolist()]
    if column.dtype.kind == "f":
        return ["" if value != value else round(value, 6) for value in column.tolist()]
    return list(column.tolist())


_TYPES = {"O": "string", "i": "long", "u": "long", "f": "double", "b": "boolean"}


def graphml(profile: ProfileLike) -> str:
    """Instructions and edges as GraphML, for networkx, igraph, Gephi, yEd."""
    nodes, edges = _instructions(profile), edges_of(profile)
    lines = [
        '<?xml version="1.0" encoding="UTF-8"?>',
        '<graphml xmlns="http://graphml.graphdrawing.org/xmlns">',
    ]
    for of, columns in (("node", nodes), ("edge", edges)):
        lines += [
            f'<key id="{of}.{name}" for="{of}" attr.name="{name}" '
            f'attr.type="{_TYPES[column.dtype.kind]}"/>'
            for name, column in columns.items()
        ]
    lines.append('<graph id="run" edgedefault="directed">')
    seqs = nodes["seq"].tolist()
    for seq, data in zip(seqs, _data("node", nodes), strict=True):
        lines.append(f'<node id="{seq}">{data}</node>')
    both = zip(
        edges["source"].tolist(), edges["target"].tolist(), _data("edge", edges), strict=True
    )
    lines += [f'<edge source="{a}" target="{b}">{data}</edge>' for a, b, data in both]
    return "\n".join([*lines, "</graph>", "</graphml>", ""])


def _data(of: str, columns: dict[str, Array]) -> list[str]:
    rows = zip(*(_plain(column) for column in columns.values()), strict=True)
    texts = []
    for row in rows:
        parts = []
        for name, value in zip(columns, row, strict=True):
            if value != "":
                text = (
                    str(value).lower() if isinstance(value, bool) else saxutils.escape(str(value))
                )
                parts.append(f'<data key="{of}.{name}">{text}</data>')
        texts.append("".join(parts))
    return texts


def _needed(name: str, instead: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(
            f"to_{name} needs {name}, which is not installed: pip install {name}; {instead}"
        ) from error


def networkx(profile: ProfileLike) -> Any:
    """A DiGraph of networkx: nodes are numbers of instructions, with their columns; of several
    edges between two the last is kept.  ConfigError where that is not installed.
    """
    library = _needed("networkx", 'p.export("run.graphml") is a file that it reads')
    graph = library.DiGraph()
    nodes, edges = _instructions(profile), edges_of(profile)
    for row in zip(*(column.tolist() for column in nodes.values()), strict=True):
        own = dict(zip(nodes, row, strict=True))
        graph.add_node(own["seq"], **own)
    for row in zip(*(column.tolist() for column in edges.values()), strict=True):
        own = dict(zip(edges, row, strict=True))
        graph.add_edge(own.pop("source"), own.pop("target"), **own)
    return graph


def pandas(profile: ProfileLike, of: str) -> Any:
    """A DataFrame of instructions or edges.  ConfigError where pandas is not installed."""
    library = _needed("pandas", "p.to_columns() and p.to_edges() have the same as NumPy arrays")
    return library.DataFrame(edges_of(profile) if of == "edges" else columns_of(profile))
