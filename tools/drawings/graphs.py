"""The way from Python code to a Plan on the workers: each form, and the passes by name."""

from __future__ import annotations

from flowvm.graph.passes.passes import ON_DEVICES, PASSES
from tools.drawings.canvas import Canvas

__all__ = ["plan"]


def plan() -> Canvas:
    """Capture, LogicalGraph, passes, Plan, and the two ways in which workers run it."""
    canvas = Canvas(1000, 470, "Capture, LogicalGraph, passes, Plan, launches")
    canvas.text(20, 32, "From Python code to a Plan", size="title", bold=True)
    canvas.text(20, 52, "once for each kind of call", size="small", colour="dim")
    y, height = 68, 64
    stages = (
        (20, 190, ("build(x, y)", "Python runs once")),
        (260, 210, ("Capture", "notes calls, computes nothing", "graph/capture")),
        (520, 210, ("LogicalGraph", "nodes and buffers", "graph/logical")),
        (780, 200, ("passes", f"{len(PASSES)} functions", "graph/passes")),
    )
    for k, (x, width, lines) in enumerate(stages):
        canvas.labelled(x, y, width, height, lines, rim="blue", colour="blue")
        if k:
            before = stages[k - 1][0] + stages[k - 1][1]
            canvas.arrow([(before, y + 32), (x, y + 32)])

    canvas.box(20, 168, 960, 92, fill="empty", dashed=True)
    canvas.arrow([(880, y + height), (880, 168)])
    canvas.text(34, 188, "in this order, each result checked; * another one on a device",
                size="small", colour="dim")  # fmt: skip
    per_row = (len(PASSES) + 1) // 2
    for k, name in enumerate(PASSES):
        row, column = divmod(k, per_row)
        edge, wide = 34 + column * 934 / per_row, 934 / per_row - 4
        label = name + (" *" if name in ON_DEVICES else "")
        canvas.box(edge, 196 + 30 * row, wide, 24, radius=4)
        canvas.text(
            edge + wide / 2, 212 + 30 * row, label, size="small", anchor="middle", room=wide
        )

    canvas.arrow([(130, 260), (130, 296)])
    canvas.labelled(20, 296, 220, 64, ("Plan", "tasks, offsets in one chunk",
                    "graph/plan, graph/memory"), rim="green", colour="green")  # fmt: skip
    canvas.arrow([(240, 328), (300, 328)])
    canvas.labelled(300, 296, 230, 64, ("LaunchPlan", "one instruction each call",
                    "graph/plan/launch_code.py"), rim="orange", colour="orange")  # fmt: skip
    canvas.text(300, 384, "ordered among eager ones", size="small", colour="dim")
    canvas.text(300, 400, "by its operands", size="small", colour="dim")
    canvas.arrow([(530, 322), (640, 312)])
    canvas.arrow([(530, 334), (640, 410)])
    canvas.labelled(640, 280, 340, 64, ("on one stream: a loop", "its worker runs task after task",
                    "flowvm/vm/workers/launch.py"), rim="purple", colour="purple")  # fmt: skip
    canvas.labelled(640, 378, 340, 74, ("on several: actors", "each acts when inputs are readable",
                    "and outputs writable (credits)", "flowvm/vm/workers/actors.py"),
                    rim="purple", colour="purple")  # fmt: skip
    return canvas
