"""The instruction DAG as a picture: a band for each stream, instructions in layers below what they
waited for.

Drawn by the usual method for layered graphs (Sugiyama, Tagawa and Toda 1981): a node's layer is the
length of the longest path to it; an edge over several layers gets a place in each of them, so that
it passes between boxes; orders within layers follow the neighbours' mean, a few times down and up;
so do the places, as far as boxes do not overlap.

Edges that follow from others are left out.  More than MOST instructions are drawn by the user's
lines instead; there an edge may lead back to what an earlier iteration made, and is dashed.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from xml.sax import saxutils

from flowvm.files.printable import printable
from flowvm.profiler.export.drawings import COLOURS, by_instruction, by_line
from flowvm.profiler.grammar import Link, Node, counted, ms
from flowvm.profiler.views.summary.facts import ProfileLike
from flowvm.vm.machine.edges import HAZARDS

MOST = 300  # instructions; more are no picture any more
SWEEPS = 12
HIGH, GAP, SPACE = 38, 30, 14  # of a box, between layers, between boxes
CHARACTER = 7.0  # width of one, in 11.5 px monospace
THIN = 10  # room for an edge that passes a layer
MARGIN, TITLE, PAD = 16, 74, 16


@dataclass
class Box:
    """A place in a layer: a node's, or that of an edge that passes (`node` is None)."""

    node: Node | None
    layer: int
    band: int
    width: float
    x: float = 0.0  # of its middle
    above: list[Box] = field(default_factory=list)
    below: list[Box] = field(default_factory=list)

    @property
    def y(self) -> float:
        """The height of the box's top."""
        return TITLE + self.layer * (HIGH + GAP) + 22


@dataclass
class Drawing:
    """Boxes with their places; `routes` are edges, from a box to a box through thin ones."""

    boxes: list[Box]
    routes: list[tuple[Link, list[Box]]]
    back: list[tuple[Link, Box, Box]]
    bands: list[tuple[str, float, float]]  # stream, left, right
    width: float
    height: float
    left_out: int


def layout(nodes: list[Node], links: list[Link]) -> Drawing:
    """Places for nodes, which come in program order, and edges."""
    number = {node[0]: k for k, node in enumerate(nodes)}
    forward = [link for link in links if number[link[0]] < number[link[1]]]
    backward = [link for link in links if number[link[0]] > number[link[1]]]
    shown = _reduced(len(nodes), number, [link for link in forward if _is_hazard(link)])
    shown += [link for link in forward if not _is_hazard(link)]  # a regst is one, whatever follows
    shown.sort(key=lambda link: (number[link[1]], number[link[0]]))
    layer = [0] * len(nodes)
    for a, b, *_ in sorted(shown, key=lambda link: number[link[1]]):
        layer[number[b]] = max(layer[number[b]], layer[number[a]] + 1)
    streams = list(dict.fromkeys(node[2] for node in nodes))
    boxes = [
        Box(node, layer[k], streams.index(node[2]), _width(node)) for k, node in enumerate(nodes)
    ]
    routes = []
    passing: list[Box] = []
    for link in shown:
        top, bottom = boxes[number[link[0]]], boxes[number[link[1]]]
        thin = [Box(None, at, bottom.band, THIN) for at in range(top.layer + 1, bottom.layer)]
        route = [top, *thin, bottom]
        for one, other in itertools.pairwise(route):
            one.below.append(other)
            other.above.append(one)
        passing += thin
        routes.append((link, route))
    bands = _place(boxes + passing, streams)
    back = [(link, boxes[number[link[0]]], boxes[number[link[1]]]) for link in backward]
    deepest = max(layer, default=0)
    right = bands[-1][2] if bands else 0.0
    if backward:  # they go around at the right
        right = max(
            right,
            *(
                max(a.x + a.width / 2, b.x + b.width / 2) + 20 + 6 * abs(a.layer - b.layer)
                for _, a, b in back
            ),
        )
    height = TITLE + 22 + (deepest + 1) * (HIGH + GAP)
    width = max(right + MARGIN, 560.0)
    return Drawing(boxes, routes, back, bands, width, height, len(forward) - len(shown))


def _is_hazard(link: Link) -> bool:
    return link[3].partition("/")[0] in HAZARDS


def _width(node: Node) -> float:
    return max(len(line) for line in node[1].split("\n")) * CHARACTER + 18


def _reduced(count: int, number: dict[str, int], links: list[Link]) -> list[Link]:
    """Links without those that follow from others: sets of ancestors as bits of one integer."""
    into: dict[int, dict[int, Link]] = {}
    for link in links:
        into.setdefault(number[link[1]], {}).setdefault(number[link[0]], link)
    reach = [0] * count
    sources = []
    for k in range(count):
        for source in sorted(into.get(k, ()), reverse=True):
            if not reach[k] >> source & 1:
                sources.append(into[k][source])
            reach[k] |= reach[source] | 1 << source
    return sources


def _place(boxes: list[Box], streams: list[str]) -> list[tuple[str, float, float]]:
    """Give every box its x, and the bands theirs."""
    rows: dict[tuple[int, int], list[Box]] = {}
    for box in boxes:
        rows.setdefault((box.layer, box.band), []).append(box)
    keys = sorted(rows)
    for row in rows.values():
        _pack(row, [float(k) for k in range(len(row))], 0.0)
    for sweep in range(SWEEPS):
        down = sweep % 2 == 0
        for key in keys if down else reversed(keys):
            row = rows[key]
            centres = [_mean(box, down) for box in row]
            if sweep < SWEEPS - 4:  # the last sweeps keep the order
                order = sorted(range(len(row)), key=lambda k: centres[k])
                row[:], centres = [row[k] for k in order], [centres[k] for k in order]
            _pack(row, centres, None)
    bands, left = [], float(MARGIN)
    for k, stream in enumerate(streams):
        own = [box for box in boxes if box.band == k]
        low = min(box.x - box.width / 2 for box in own)
        high = max(box.x + box.width / 2 for box in own)
        least = len(stream) * CHARACTER + 16
        for box in own:
            box.x += left + PAD - low + max(0.0, least - (high - low)) / 2
        right = left + 2 * PAD + max(high - low, least)
        bands.append((stream, left, right))
        left = right + MARGIN
    return bands


def _mean(box: Box, down: bool) -> float:
    """Return the mean place of a box's neighbours in its band; bands are placed one by one."""
    near = [b for b in (box.above if down else box.below) if b.band == box.band]
    return sum(b.x for b in near) / len(near) if near else box.x


def _pack(row: list[Box], centres: list[float], start: float | None) -> None:
    """Boxes of a row in this order, near where they are wanted, without overlap."""
    x = [w if start is None else 0.0 for w in centres]
    for k in range(1, len(row)):
        x[k] = max(x[k], x[k - 1] + (row[k - 1].width + row[k].width) / 2 + SPACE)
    # what was pushed to the right as a whole goes back by half of it
    over = sum(a - b for a, b in zip(x, centres, strict=True)) / max(1, len(row))
    for box, at in zip(row, x, strict=True):
        box.x = at - over if start is None else at


# --- the picture --------------------------------------------------------------------------------

_CSS = """
text { font: 11.5px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; fill: #1f2328 }
.bg { fill: #ffffff } .band { fill: #f6f8fa; stroke: #d1d9e0 } .quiet { fill: #59636e }
.box { fill: #ffffff; stroke: #8c959f } .hot { stroke: #dc2626; stroke-width: 2 }
.count { fill: #a21caf; stroke: #f6f8fa; stroke-width: 4; paint-order: stroke }
.name { font-weight: 600 } path { fill: none; stroke-width: 1.2 } .mut { stroke-width: 2.2 }
.mut2 { stroke-dasharray: 6 3; stroke-width: 1.8 } .back { stroke-dasharray: 2 3 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .bg { fill: #0d1117 } .band { fill: #151b23; stroke: #3d444d }
  .quiet { fill: #9198a1 } .box { fill: #0d1117; stroke: #656c76 }
  .count { fill: #e879f9; stroke: #151b23 } .hot { stroke: #f87171 }
}
"""


def svg(profile: ProfileLike) -> str:
    """The DAG of a Profile as an SVG picture, by lines where there are more than MOST of them."""
    nodes, links = by_instruction(profile)
    what = "instructions"
    if len(nodes) > MOST:
        nodes, links = by_line(profile)
        what = "lines"
    return svg_of(nodes, links, f"{len(nodes)} {what}, {ms(profile.run.wall)} ms")


def svg_of(nodes: list[Node], links: list[Link], title: str = "", hot: str = "critical") -> str:
    """A graph as an SVG picture, as it is, however large; `hot` says what its red boxes are."""
    title = title or f"{len(nodes)} nodes"
    drawing = layout(nodes, links)
    width, height = drawing.width, drawing.height
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" role="img">',
        f"<title>flowvm: {escape(title)}</title><style>{_CSS}</style>",
        f"<defs>{''.join(_marker(name, colour) for name, colour in COLOURS.items())}</defs>",
        f'<rect class="bg" width="{width:.0f}" height="{height:.0f}"/>',
        f'<text class="name" x="{MARGIN}" y="22">{escape(title)}</text>',
        *_legend(_kinds(links), hot * any(node[3] for node in nodes), drawing.left_out),
    ]
    for stream, left, right in drawing.bands:
        out.append(
            f'<rect class="band" x="{left:.1f}" y="{TITLE - 18}" width="{right - left:.1f}" '
            f'height="{height - TITLE + 6:.1f}" rx="8"/>'
            f'<text class="quiet" x="{left + 10:.1f}" y="{TITLE - 2}">{escape(stream)}</text>'
        )
    ports = _ports([(route[-2].x, route[-1]) for _, route in drawing.routes])
    out += [
        _edge(link, route, (at - 0.5) * min(route[-1].width - 16, 14 * many))
        for (link, route), (at, many) in zip(drawing.routes, ports, strict=True)
    ]
    ports = _ports([(-a.y, b) for _, a, b in drawing.back])
    out += [
        _back(link, a, b, at * HIGH)
        for (link, a, b), (at, _) in zip(drawing.back, ports, strict=True)
    ]
    out += [_box(box) for box in drawing.boxes]
    return "\n".join([*out, "</svg>", ""])


def _marker(name: str, colour: str) -> str:
    return (
        f'<marker id="to-{name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" '
        f'markerHeight="8" markerUnits="userSpaceOnUse" orient="auto">'
        f'<polygon points="0,1 8,4 0,7" fill="{colour}"/></marker>'
    )


def _kinds(links: list[Link]) -> dict[str, str]:
    """Map each access among the links to the text of its line: a hazard, or for a regst the
    access.
    """
    names: dict[str, str] = {}
    for _, _, access, hazard in links:
        word = hazard.partition(",")[0]
        names.setdefault(access, access if word.partition("/")[0] in HAZARDS else word)
    return {access: names[access] for access in COLOURS if access in names}


def _legend(kinds: dict[str, str], hot: str, left_out: int) -> list[str]:
    """Return the legend of the lines."""
    parts, x = [], float(MARGIN)
    for name, word in kinds.items():
        parts.append(
            f'<path class="{name}" stroke="{COLOURS[name]}" d="M{x:.0f} 38h26"/>'
            f'<text x="{x + 32:.0f}" y="42">{escape(word)}</text>'
        )
        x += 46 + len(word) * CHARACTER
    if hot:
        parts.append(
            f'<rect class="box hot" x="{x:.0f}" y="32" width="22" height="12" rx="3"/>'
            f'<text x="{x + 28:.0f}" y="42">{hot}</text>'
        )
        x += 42 + len(hot) * CHARACTER
    if left_out:
        text = f"{counted(left_out, 'edge')} left out, implied by others"
        parts.append(f'<text class="quiet" x="{x:.0f}" y="42">{text}</text>')
    return parts


def _box(box: Box) -> str:
    assert box.node is not None
    name, text, stream, critical = box.node
    first, _, second = text.partition("\n")
    x = box.x - box.width / 2
    return (
        f'<g id="{name}"><title>{escape(f"{first}  {second}  {stream}")}</title>'
        f'<rect class="box{" hot" if critical else ""}" x="{x:.1f}" y="{box.y:.1f}" '
        f'width="{box.width:.1f}" height="{HIGH}" rx="5"/>'
        f'<text class="name" x="{x + 9:.1f}" y="{box.y + 16:.1f}">{escape(first)}</text>'
        f'<text class="quiet" x="{x + 9:.1f}" y="{box.y + 30:.1f}">{escape(second)}</text></g>'
    )


def _ports(arrivals: list[tuple[float, Box]]) -> list[tuple[float, int]]:
    """Return the place of each line along the side of the box that it comes to, from 0 to 1, and
    how many come there: none lies on another.  `arrivals` say where a line comes from.
    """
    ranks: dict[int, list[int]] = {}
    for k, (_, box) in enumerate(arrivals):
        ranks.setdefault(id(box), []).append(k)
    ports = [(0.5, 1)] * len(arrivals)
    for own in ranks.values():
        for n, k in enumerate(sorted(own, key=lambda k: arrivals[k][0])):
            ports[k] = ((n + 1) / (len(own) + 1), len(own))
    return ports


def _edge(link: Link, route: list[Box], port: float) -> str:
    """A line from the bottom of one box to the top of another, through the thin ones between; it
    arrives `port` beside the middle.
    """
    a, b = route[0], route[-1]
    x, y = a.x, a.y + HIGH
    parts = [f"M{x:.1f} {y:.1f}"]
    for k, box in enumerate(route[1:], 1):
        to_x, to_y = box.x + (port if box is b else 0.0), box.y
        middle = (y + to_y) / 2
        parts.append(f"C{x:.1f} {middle:.1f} {to_x:.1f} {middle:.1f} {to_x:.1f} {to_y:.1f}")
        x, y = to_x, to_y
        if k + 1 < len(route):
            y += HIGH
            parts.append(f"V{y:.1f}")
    return _path(link, " ".join(parts), f"{_of(a)} to {_of(b)}", "")


def _back(link: Link, a: Box, b: Box, port: float) -> str:
    """A line from the right of one box up to the right of another, `port` below its top; with its
    number, if it has one.
    """
    x, y = a.x + a.width / 2, a.y + HIGH / 2
    to_x, to_y = b.x + b.width / 2, b.y + port
    out = max(x, to_x) + 14 + 6 * abs(a.layer - b.layer)
    line = _path(link, f"M{x:.1f} {y:.1f}C{out:.1f} {y:.1f} {out:.1f} {to_y:.1f} "
                 f"{to_x:.1f} {to_y:.1f}", f"{_of(a)} back to {_of(b)}", " back")  # fmt: skip
    count = link[3].partition(", ")[2].partition(" ")[0]
    if not count.isdigit():
        return line
    at_x, at_y = (x + to_x + 6 * out) / 8, (y + to_y) / 2  # the curve's middle
    return line + (
        f'<text class="count" text-anchor="middle" x="{at_x:.1f}" y="{at_y + 4:.1f}">{count}</text>'
    )


def _of(box: Box) -> str:
    return box.node[1].partition("\n")[0] if box.node else ""


def _path(link: Link, d: str, text: str, style: str) -> str:
    _, _, access, hazard = link
    return (
        f'<path class="{access}{style}" stroke="{COLOURS[access]}" marker-end="url(#to-{access})" '
        f'd="{d}"><title>{escape(f"{text}: {hazard}, {access}")}</title></path>'
    )


def escape(text: str) -> str:
    """Text as it may stand in XML, which has no control characters."""
    return saxutils.escape(printable(text))
