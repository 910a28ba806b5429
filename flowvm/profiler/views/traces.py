"""A recorded trace (`flow.vm.trace`) as a screen: lanes on the left, a row for each instruction."""

from __future__ import annotations

from flowvm.profiler.grammar import Column, Line, Screen, table
from flowvm.vm.watch.lanes import encodable
from flowvm.vm.watch.trace import Trace


def trace_screen(trace: Trace, width: int) -> Screen:
    """The rows of a trace in so many columns."""
    columns = {
        "id": Column("id", style="id"),
        "op": Column("op"),
        "reads": Column(encodable("reads (const)"), style="const", drop=2, grow=True),
        "writes": Column(encodable("writes (━ mut ═ mut2)"), style="mut", drop=1, grow=True),
        "waits for": Column("waits for", style="head", grow=True),
        "stream": Column("stream", drop=4),
        "us": Column("us", right=True, drop=3),
        "line": Column("line", style="line", grow=True, where=True),
    }
    lanes = trace.lanes()
    drawn = max((sum(len(text) for text, _ in line) for line in lanes), default=0)
    rows = [list(map(encodable, row)) for row in trace.rows()]
    shown = table([columns[head] for head in trace.heads()], rows, width - drawn - 2, indent=0)
    screen = Screen([[(" " * (drawn + 2), ""), *shown[0]]])
    for line, cells in zip(lanes, shown[1:], strict=True):
        art: Line = [(encodable(text), style) for text, style in line]
        pad = " " * (drawn + 2 - sum(len(text) for text, _ in line))
        screen.lines.append([*art, (pad, ""), *cells])
    return screen
