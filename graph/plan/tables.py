"""A Plan as the profiler's screen: its parts, and the present state of its actors.

The actors' words are read while workers write them; each is one word and only grows, so what is
shown was true at some moment, though not all of it at the same one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from flowvm.graph.logical.nodes import Operand
from flowvm.graph.logical.printer import size_text
from flowvm.graph.memory.offsets import MemoryReport
from flowvm.graph.plan.actors import ActorDesc
from flowvm.graph.plan.parts import PlanParts, RegstDesc, TaskDesc
from flowvm.graph.plan.plan_info import flows
from flowvm.graph.plan.words import ActorWords
from flowvm.profiler import markup
from flowvm.profiler.views.plan import ActorRow, PlanView, TaskRow, label
from flowvm.vm.callers.lines import short_position
from flowvm.vm.engine.engine import engine
from flowvm.vm.machine.plan_words import ACTOR, RUNTIME


def plan_table(plan: PlanParts, report: MemoryReport) -> PlanView:
    """The view of a Plan as it stands; `report` says what a launch allocates."""
    words = next((k for k in plan.references if isinstance(k, ActorWords)), None)
    streams = dict.fromkeys(engine.streams.name(a.stream) for a in plan.actors)
    notes = [f"a launch takes {size_text(report.chunk + report.outputs)}; plan.dump() has it all"]
    return PlanView(
        name=plan.name,
        streams=tuple(streams),
        regst_num=plan.graph.regst_num,
        registers=len(plan.registers),
        chunk=plan.chunk_bytes,
        launches=0,
        each=0.0,
        between=0.0,
        actors=() if words is None else _actors(plan, words),
        tasks=tuple(_task(task) for task in plan.tasks),
        notes=tuple(notes),
        flows=tuple((a, b) for a, b in flows(plan.tasks)),
    )


def _task(task: TaskDesc) -> TaskRow:
    node = task.node
    return TaskRow(
        number=task.number,
        op=node.operator.name,
        repeat=node.repeat,
        stream=engine.streams.name(node.stream),
        reads=_places(task, lambda access: access == "const"),
        writes=_places(task, lambda access: access != "const"),
        module=node.scope,
        line=short_position(node.code, node.last) if node.code is not None else "",
    )


def _places(task: TaskDesc, accepts: Callable[[str], bool]) -> str:
    return ", ".join(_place(o, r) for access, o, r in task.registers if accepts(access))


def _place(operand: Operand, register: RegstDesc) -> str:
    """A variable's name, or where the register is."""
    return operand.buffer.name or register.text


def _actors(plan: PlanParts, words: ActorWords) -> tuple[ActorRow, ...]:
    first = int(words.words[RUNTIME.FIRST])
    opened = int(words.words[RUNTIME.STARTED])
    acted = [
        int(words.words[first + k * ACTOR.WORDS + ACTOR.ACTED]) for k in range(len(plan.actors))
    ]
    names = [task.node.operator.name for task in plan.tasks]
    rows = []
    for actor in plan.actors:
        k = actor.number
        most = actor.copies if actor.times > 1 else words.regst_num
        own = [j for j, n in actor.credits if n == most and plan.actors[j].times == actor.times]
        used = max([acted[k] - acted[j] for j in own], default=0)
        rows.append(
            ActorRow(
                number=k,
                label=label(names[actor.first : actor.first + actor.count]),
                stream=engine.streams.name(actor.stream),
                tasks=actor.count,
                inputs=tuple(actor.inputs),
                credits=tuple(actor.credits),
                free=min(most, max(0, most - used)),
                acts=acted[k],
                busy=0.0,
                each=0.0,
                state=_state(plan.actors, actor, acted, opened),
            )
        )
    return tuple(rows)


def _state(actors: Sequence[ActorDesc], actor: ActorDesc, acted: list[int], opened: int) -> str:
    """Return an actor's state, from the number of times each actor has acted."""
    mine = acted[actor.number]
    if mine >= opened * actor.times:
        return "IDLE"

    def is_late(j: int, before: int) -> bool:  # as `has_acted` of flowvm.vm.workers.actors
        if actors[j].times == actor.times:
            return (
                acted[j]
                < min(mine - before, mine // actor.times * actor.times + actor.times - 1) + 1
            )
        return acted[j] < (mine // actor.times - before + 1) * actors[j].times

    late = [j for j in actor.inputs if is_late(j, 0)]
    if late:
        return "WAIT ← " + " ".join(f"a{j:02}" for j in late)
    owed = [j for j, n in actor.credits if is_late(j, n)]
    if owed:
        return "CREDIT ← " + " ".join(f"a{j:02}" for j in owed)
    return f"ACT {mine + 1}"


def plan_html(plan: PlanParts, dump: str) -> str:
    """Return `plan.dump()` as a tree: registers and tasks under a head of their own."""
    rows: list[str] = []
    heads = {"regst": f"  {len(plan.registers)} registers", "task": f"  {len(plan.tasks)} tasks"}
    heads["actor"] = heads["task"]
    for line in dump.split("\n"):
        head = heads.get(line.split()[0], "")
        if head and head not in rows:
            rows.append(head)
        rows.append(f"  {line}" if head else line)
    return markup.indented(rows)
