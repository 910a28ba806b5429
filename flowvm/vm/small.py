"""flowvm's idea in one file: instructions ordered by the storages that they read and write.

An op is an `Instruction` on operands, each read (`const`) or written (`mut`; `mut2` where only the
kernel finds the shape).  Python issues it and goes on.  The scheduler makes edges to the earlier
instructions that must come first; a stream's worker runs what waits for nothing.  Edges follow from
a list for each storage, its Dependence, the accesses in flight: `[one writer]? readers*`.  An error
poisons what its instruction writes.  A captured program is replayed by *actors*: each acts when its
inputs are there, and when readers of its outputs have given a register back, which is a credit.
Objects stand in the place of words, steps in that of threads; tests hold the VM to this file.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np

CONST, MUT, MUT2 = "const", "mut", "mut2"
DISPATCH = -1  # the scheduler's move; a number is a stream's worker, or an actor
Choice = Callable[[list[int]], int]  # of one of the moves that are possible
Operands = Sequence[tuple["Storage", str]]
Op = Callable[..., "Tensor"]


@dataclass(eq=False)
class Storage:
    """Memory, the accesses in flight to it, and the error that has spoiled it."""

    value: Any = None
    dependence: list[tuple[Instruction, bool]] = field(default_factory=list)  # (which, writes?)
    poison: Exception | None = None


@dataclass(eq=False)
class Instruction:
    """A kernel and its operands: it takes the values that it reads, and returns those it writes."""

    kernel: Callable[..., Any]
    operands: Operands
    stream: int = 0
    state: str = "pending"  # then ready, dispatched, done
    waiting: int = 1  # edges that are not satisfied, and 1 until it has been received
    at_dispatch: list[Instruction] = field(default_factory=list)  # dependents satisfied then
    at_done: list[Instruction] = field(default_factory=list)
    connected: Instruction | None = None  # the dependent of the last edge

    def __post_init__(self) -> None:
        self.reads = [storage for storage, access in self.operands if access == CONST]
        self.writes = [storage for storage, access in self.operands if access != CONST]


class Machine:
    """The scheduler: the list of ready instructions, and the queues of the streams."""

    def __init__(self, streams: int = 2) -> None:
        self.ready: deque[Instruction] = deque()
        self.queues: list[deque[Instruction]] = [deque() for _ in range(streams)]
        self.edges: list[tuple[Instruction, Instruction, str]] = []  # all there ever were

    def receive(self, ins: Instruction) -> None:
        """Take an issued instruction and build its edges; without any it is ready."""
        for storage in ins.writes:  # waits for all in front, and is then the only member
            for other, writes in storage.dependence:
                self.add_edge(other, ins, "WAW" if writes else "WAR")
            storage.dependence = [(ins, True)]
        for storage in ins.reads:  # waits for the writer in front, and joins the readers
            first = storage.dependence[:1]
            if first and first[0][1]:
                self.add_edge(first[0][0], ins, "RAW")
            if first != [(ins, True)]:  # a write of its own stands for both
                storage.dependence.append((ins, False))
        self.satisfy([ins])

    def add_edge(self, source: Instruction, target: Instruction, hazard: str) -> None:
        """Let `target` wait for `source`, once."""
        if source is target or source.connected is target:
            return
        source.connected = target
        self.edges.append((source, target, hazard))
        together = source.stream == target.stream
        if together and source.state != "pending":
            return  # prescheduling: a stream runs in order, and the source is in front
        (source.at_dispatch if together else source.at_done).append(target)
        target.waiting += 1

    def satisfy(self, targets: list[Instruction]) -> None:
        """Take one edge from each target; without any left it is ready, first come first served."""
        while targets:
            target = targets.pop()
            target.waiting -= 1
            if target.waiting == 0:
                target.state = "ready"
                self.ready.append(target)

    def complete(self, ins: Instruction) -> None:
        """Let the dependents of an instruction go, and take its accesses off the lists."""
        ins.state = "done"
        self.satisfy(ins.at_done)
        for storage, _ in ins.operands:
            storage.dependence = [a for a in storage.dependence if a[0] is not ins]

    def step(self, choose: Choice = min) -> bool:
        """Make the move that `choose` takes of all there are; return False if there is none."""
        moves = [DISPATCH] if self.ready else []
        moves += [stream for stream, queue in enumerate(self.queues) if queue]
        if moves and (move := choose(moves)) == DISPATCH:  # hand the first one to its stream
            ins = self.ready.popleft()
            ins.state = "dispatched"
            self.queues[ins.stream].append(ins)
            self.satisfy(ins.at_dispatch)
        elif moves:  # the move of the stream's worker
            ins = self.queues[move].popleft()
            run(ins.kernel, ins.reads, ins.writes)
            self.complete(ins)
        return bool(moves)


def run(kernel: Callable[..., Any], reads: Sequence[Storage], writes: Sequence[Storage]) -> None:
    """Compute what a kernel writes, or poison it: by the kernel's error, or one that it reads."""
    try:
        if (cause := next((s.poison for s in reads if s.poison), None)) is not None:
            raise cause
        values = kernel(*(s.value for s in reads))
        for storage, value in zip(writes, values if len(writes) > 1 else [values], strict=True):
            storage.value, storage.poison = value, None
    except Exception as error:
        for storage in writes:
            storage.poison = error


machine = Machine()
programs: list[list[Instruction]] = []  # the programs being captured


def issue(kernel: Callable[..., object], operands: Operands, at: int = 0) -> None:
    """Hand an instruction for stream `at` to the scheduler, or to the program being captured."""
    ins = Instruction(kernel, operands, at)
    programs[-1].append(ins) if programs else machine.receive(ins)


class Tensor:
    """A storage; `node` is (inputs, the function from the output's gradient to theirs)."""

    node, grad, numbers = None, None, count()  # type: Any, Any, Any

    def __init__(self, value: object = None) -> None:
        self.storage = Storage(None if value is None else np.array(value, np.float64))
        self.number = next(Tensor.numbers)

    def numpy(self) -> Any:
        """Wait, and return the value; raise the error that has poisoned it."""
        while machine.step():
            pass
        if self.storage.poison is not None:
            raise self.storage.poison
        return self.storage.value

    def __del__(self) -> None:
        issue(lambda: None, [(self.storage, MUT)])  # a release waits for all accesses in front

    def backward(self, gradient: Tensor) -> None:
        """Add to `grad` of every tensor without a node that this one was made of."""
        gradients = {self: gradient}
        while gradients:
            g = gradients.pop(x := max(gradients, key=lambda t: t.number))  # it is complete now
            if x.node is None:
                x.grad = g if x.grad is None else add(x.grad, g)
            for y, h in zip(x.node[0], x.node[1](g), strict=True) if x.node else ():
                gradients[y] = add(gradients[y], h) if y in gradients else h


def op(kernel: Callable[..., object], gradient: Any = None, at: int = 0) -> Op:
    """Make a function of tensors; `gradient(*inputs, g)` gives the gradients of its inputs."""

    def call(*inputs: Tensor) -> Tensor:
        out = Tensor()
        issue(kernel, [*((x.storage, CONST) for x in inputs), (out.storage, MUT)], at)
        out.node = gradient and (inputs, lambda g: gradient(*inputs, g))
        return out

    return call


add = op(np.add, lambda x, y, g: (g, g))
mul: Op = op(np.multiply, lambda x, y, g: (mul(g, y), mul(g, x)))
flip: Op = op(np.transpose, lambda x, g: (flip(g),))
matmul: Op = op(np.matmul, lambda x, y, g: (matmul(g, flip(y)), matmul(flip(x), g)), at=1)
relu = op(lambda x: np.maximum(x, 0), lambda x, g: (mul(g, op(lambda x: x > 0)(x)),))


def capture(function: Callable[..., object], *args: object) -> tuple[list[Instruction], Any]:
    """Call a function whose instructions are kept and not run; return them and its result."""
    programs.append([])
    try:
        return programs[-1], function(*args)
    finally:
        programs.pop()


@dataclass(eq=False)
class Actor:
    """An instruction that acts once for each launch, and the actors for which it waits."""

    ins: Instruction
    acted: int = 0  # launches for which it has acted
    waits: list[tuple[Actor, int]] = field(default_factory=list)  # actor, launches before


class Plan:
    """A program's actors.  It has `regst_num` registers for each storage that it writes first; of
    results, and of what it reads first, its *variables*, there is one.
    """

    def __init__(self, program: list[Instruction], results: Any = (), regst_num: int = 2) -> None:
        self.actors, self.regst_num, n = [Actor(i) for i in program], regst_num, len(program)
        outputs, variables, order = set[Storage](), {*results}, list[Instruction]()
        for ins in program:
            variables |= {*ins.reads} - outputs
            outputs |= {*ins.writes}
        self.registers = {(s, k): Storage() for s in outputs - variables for k in range(regst_num)}
        shared, scheduler = {s: Storage() for s in variables}, Machine()
        for _ in range(2):  # launches, as the scheduler would see them: they share variables alone
            own = defaultdict(Storage, shared)
            for ins in program:
                copy = Instruction(ins.kernel, [(own[s], a) for s, a in ins.operands], ins.stream)
                scheduler.receive(copy)
                order.append(copy)
        for source, target, _ in scheduler.edges:
            i, j = order.index(source), order.index(target)
            if j < n:
                self.actors[j].waits.append((self.actors[i], 0))
                self.actors[i].waits.append((self.actors[j], regst_num))
            elif i < n:  # a variable, which exists once
                self.actors[j - n].waits.append((self.actors[i], 1))

    def launch(self, times: int, choose: Choice = min) -> None:
        """Let each actor act `times` times, in an order that `choose` takes of all possible."""
        until = min(actor.acted for actor in self.actors) + times
        while who := [
            k for k, a in enumerate(self.actors)
            if a.acted < until and all(b.acted + n > a.acted for b, n in a.waits)
        ]:  # fmt: skip
            actor = self.actors[choose(who)]
            ins, at, actor.acted = actor.ins, actor.acted % self.regst_num, actor.acted + 1
            reads = [self.registers.get((s, at), s) for s in ins.reads]
            run(ins.kernel, reads, [self.registers.get((s, at), s) for s in ins.writes])
