"""Facts about a Plan that outlive it: for messages, traces and the profiler."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from types import CodeType
from typing import TYPE_CHECKING, Any

from flowvm.config import config
from flowvm.graph.logical.nodes import OpNode
from flowvm.graph.plan.parts import PlanParts, TaskDesc
from flowvm.loading.lazy import lazy

if TYPE_CHECKING:
    from flowvm.graph.passes import changes, changes_view
else:
    changes = lazy("flowvm.graph.passes.changes")
    changes_view = lazy("flowvm.graph.passes.changes_view")

MOST_NODES = 3000  # of a graph whose passes are run again unasked: a node takes 0.3 ms


class PlanInfo:
    """The text of messages and traces about a Plan's entry, and the objects its words point to.

    `writers`: the task that writes an operand of the launch last.

    An entry lives as long as the VM, so this holds no tensor and keeps no Plan alive.
    """

    def __init__(self, plan: PlanParts) -> None:
        self.name = plan.name
        self._plan = weakref.ref(plan)
        self._passes: dict[str, object] | None = None
        self.stages: list[list[object]] = []  # known with the passes
        self.flows = flows(plan.tasks)
        self.operands = f"{len(plan.tasks)} tasks"
        self.nodes = [_described(task.node) for task in plan.tasks]
        self.forward = [task.node.forward for task in plan.tasks]
        self.recorded = [_recorded(task.node) for task in plan.tasks]
        self.sizes = [buffer.nbytes for buffer in plan.own_outputs]
        self.writers = {
            r.operand: task.number
            for task in plan.tasks
            for access, _, r in task.registers
            if r.operand >= 0 and access != "const"
        }
        self.accesses = [_shared(task) for task in plan.tasks] if plan.actors else []
        self.references = plan.references
        self.described = {
            "registers": len(plan.registers),
            "chunk": plan.chunk_bytes,
            "regst_num": plan.graph.regst_num,
            "actors": [[a.stream, a.first, a.count, a.inputs, a.credits] for a in plan.actors],
            "tasks": [[node.repeat, node.stream] for node in plan.graph.nodes],
        }

    def passes(self) -> dict[str, Any] | None:
        """Return the changes of the passes to the graph, as plain values.

        The first call finds them.  Return None if the Plan was gone by then, was not optimized
        here, or is too large; and while FLOWVM_DEBUG_PASS prints the changes.
        """
        plan = self._plan()
        if self._passes is None and plan is not None and not config.debug_pass:  # which prints
            captured = plan.graph.captured
            if captured is not None and len(captured[0].nodes) <= MOST_NODES:
                report = changes.changes(plan.graph)
                self._passes = changes_view.passes_record(report, plan.graph.nodes)
                self.stages = changes_view.stages_record(report)
        return self._passes

    def locate(self, task: int) -> tuple[str, CodeType | None, int, str]:
        """(name, code, offset, operands) of the node that a task came from; -1: no task ran."""
        return self.nodes[task] if task >= 0 else ("memory", None, 0, self.operands)


def flows(tasks: Sequence[TaskDesc]) -> list[list[int]]:
    """Return the edges between tasks: from whoever wrote a register last to whoever uses it."""
    edges: list[list[int]] = []
    writers: dict[int, int] = {}
    for task in tasks:
        used = {writers[id(r)] for _, _, r in task.registers if id(r) in writers}
        edges += [[a, task.number] for a in sorted(used)]
        writers |= {id(r): task.number for access, _, r in task.registers if access != "const"}
    return edges


def _described(node: OpNode) -> tuple[str, CodeType | None, int, str]:
    operands = " · ".join(f"{access} {o.meta!r}" for access, o in node.accesses())
    return f"{node.operator.name} (node {node.number})", node.code, node.last, operands


def _shared(task: TaskDesc) -> tuple[tuple[int, bool], ...]:
    """Operands of the launch that a task touches, and whether it writes them."""
    return tuple((r.operand, a != "const") for a, _, r in task.registers if r.operand >= 0)


def _recorded(node: OpNode) -> tuple[str, str, str, tuple[object, ...]]:
    """Return a task's facts for the profiler: operator, module, phase, metas (outputs first)."""
    metas = tuple(o.meta for o in (*node.outputs, *node.inputs))
    return node.operator.name, node.scope, node.phase, metas
