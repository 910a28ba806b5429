"""Files made from a profile, each in a format that another program reads; by extension.

Not here: a profile's own file, which flowvm reads again (`flowvm.profiler.run.run`).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from flowvm.errors import ArgumentError
from flowvm.files.writer import put
from flowvm.loading.lazy import lazy
from flowvm.loading.listing import listing
from flowvm.profiler.grammar import Link, Node
from flowvm.profiler.views.summary.facts import ProfileLike

if TYPE_CHECKING:
    from flowvm.profiler.export import chrome, drawings, html, speedscope, svg, tabular
    from flowvm.profiler.export.html import PageProfile
else:
    chrome = lazy("flowvm.profiler.export.chrome")
    drawings = lazy("flowvm.profiler.export.drawings")
    html = lazy("flowvm.profiler.export.html")
    speedscope = lazy("flowvm.profiler.export.speedscope")
    svg = lazy("flowvm.profiler.export.svg")
    tabular = lazy("flowvm.profiler.export.tabular")

__all__ = ["FORMATS", "WRITERS", "ending_of", "export"]
__dir__ = listing(globals())


def _chrome(profile: ProfileLike, path: Path, edges: str) -> None:
    chrome.write(profile, path, edges)


def _dot(profile: ProfileLike, path: Path, edges: str) -> None:
    put(path, drawings.dot(profile), "export")


def _mermaid(profile: ProfileLike, path: Path, edges: str) -> None:
    put(path, drawings.mermaid(profile), "export")


def _html(profile: PageProfile, path: Path, edges: str) -> None:
    put(path, html.html(profile), "export")


def _speedscope(profile: ProfileLike, path: Path, edges: str) -> None:
    speedscope.write(profile, path)


def _svg(profile: ProfileLike, path: Path, edges: str) -> None:
    put(path, svg.svg(profile), "export")


def _csv(profile: ProfileLike, path: Path, edges: str) -> None:
    put(path, tabular.table(profile.to_columns()), "export")


def _edges(profile: ProfileLike, path: Path, edges: str) -> None:
    put(path, tabular.table(profile.to_edges()), "export")


def _graphml(profile: ProfileLike, path: Path, edges: str) -> None:
    put(path, tabular.graphml(profile), "export")


def _save(profile: ProfileLike, path: Path, edges: str) -> None:
    profile.save(path)


def _draw_svg(nodes: list[Node], links: list[Link]) -> str:
    return svg.svg_of(nodes, links)


def _draw_dot(nodes: list[Node], links: list[Link]) -> str:
    return drawings.dot_of(nodes, links)


def _draw_mermaid(nodes: list[Node], links: list[Link]) -> str:
    return drawings.mermaid_of(nodes, links)


# of the graph that a view shows (`Drawn.save`)
WRITERS: dict[str, Callable[[list[Node], list[Link]], str]] = {
    ".svg": _draw_svg,
    ".dot": _draw_dot,
    ".mmd": _draw_mermaid,
}
FORMATS: dict[str, tuple[Callable[[PageProfile, Path, str], None], str]] = {
    ".json": (_chrome, "Chrome trace, for Perfetto (ui.perfetto.dev) or chrome://tracing"),
    ".json.gz": (_chrome, "the same, compressed"),
    ".speedscope.json": (_speedscope, "flame graphs by time, bytes and stream, for speedscope.app"),
    ".html": (_html, "one page that shows everything, offline"),
    ".svg": (_svg, "the instruction DAG as a picture"),
    ".dot": (_dot, "the instruction DAG for Graphviz"),
    ".mmd": (_mermaid, "the instruction DAG for Mermaid"),
    ".graphml": (_graphml, "instructions and edges for networkx, igraph, Gephi"),
    ".csv": (_csv, "instructions as a table, with the columns of p.query"),
    ".edges.csv": (_edges, "edges as a table: source, target, hazard, access, tensor, gating"),
    ".flowtrace": (_save, "the run itself, for flow.profiler.load"),
}


def ending_of(path: str | Path) -> str:
    """Return the ending in FORMATS that a name has.  ArgumentError: it has none."""
    name = Path(path).name
    ending = next((e for e in sorted(FORMATS, key=len)[::-1] if name.endswith(e)), "")
    if not ending:
        known = "; ".join(f"{e} ({what})" for e, (_, what) in FORMATS.items())
        raise ArgumentError(f"export({str(path)!r}): the ending says the format: {known}")
    return ending


def export(
    profile: PageProfile,
    path: str | Path,
    edges: str = "gating",
    against: PageProfile | None = None,
) -> Path:
    """Write a Profile in the format that the name's ending says; the path.

    edges   of a Chrome trace: "gating" (for each instruction the one it waited for longest), "all"
            (without those that follow from others), or "none"
    against an earlier Profile, for a page that shows what changed
    ArgumentError: an ending that is none of FORMATS, or another than .html with `against`.
    """
    target, ending = Path(path), ending_of(path)
    if against is not None:
        if ending != ".html":
            raise ArgumentError(f"export({str(path)!r}, against=...): only an .html page shows two")
        put(target, html.html(profile, against), "export")
        return target
    FORMATS[ending][0](profile, target, edges)
    return target
