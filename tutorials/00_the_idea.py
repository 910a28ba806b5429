"""Tutorial 00: the idea.

A virtual machine in 250 lines, `flowvm/vm/small.py`: what flowvm does, with objects in the place of
words and steps in that of threads.  Read the file beside this tutorial.
"""

# %% An op issues an instruction and returns at once.  Nothing has run yet: the instruction waits in
# the list of what is ready.
import random

import numpy as np

from flowvm.vm import small
from flowvm.vm.small import CONST, MUT, Instruction, Machine, Plan, Storage, Tensor, machine

x, w = Tensor([[1.0, -2.0]]), Tensor([[1.0, 2.0], [-3.0, 4.0]])
h = small.matmul(x, w)
y = small.relu(h)
print(
    len(machine.ready),
    "ready,",
    [hazard for _, _, hazard in machine.edges],
    "edges,",
    h.storage.value,
)

# %% Reading a value waits: the scheduler dispatches, workers run, until nothing is left.
print(y.numpy())

# %% Edges follow from what is read and written, from nothing else.  Each storage has a list of
# accesses in flight, one writer and then readers.  A reader waits for the writer in front (RAW), a
# writer for everybody in front (WAR, WAW).
a, b, c = (Storage(value) for value in (1.0, 2.0, 3.0))
steps = {
    "b = a + 1": Instruction(lambda a: a + 1, [(a, CONST), (b, MUT)]),
    "c = a + b": Instruction(lambda a, b: a + b, [(a, CONST), (b, CONST), (c, MUT)], stream=1),
    "a = 10": Instruction(lambda: 10.0, [(a, MUT)]),
}
two_streams = Machine()
for ins in steps.values():
    two_streams.receive(ins)
names = {ins: name for name, ins in steps.items()}
for source, target, hazard in two_streams.edges:
    print(f"{names[target]:10s} waits for {names[source]:10s} {hazard}")

# %% Whoever chooses the next move decides the schedule; edges make all schedules give the same.


def values_by(seed: int) -> tuple[float, ...]:
    a, b, c = (Storage(value) for value in (1.0, 2.0, 3.0))
    vm = Machine()
    vm.receive(Instruction(lambda a: a + 1, [(a, CONST), (b, MUT)]))
    vm.receive(Instruction(lambda a, b: a + b, [(a, CONST), (b, CONST), (c, MUT)], stream=1))
    vm.receive(Instruction(lambda: 10.0, [(a, MUT)]))
    choose = random.Random(seed).choice
    while vm.step(choose):
        pass
    return a.value, b.value, c.value


print({values_by(seed) for seed in range(100)})

# %% Prescheduling: within a stream it is enough that the source stands in front in the queue.  So a
# chain of instructions is handed to its stream before the first of them has run.
chain, vm = Storage(0.0), Machine()
for _ in range(5):
    vm.receive(Instruction(lambda v: v + 1, [(chain, CONST), (chain, MUT)]))
while vm.ready:
    vm.step()  # the least move is the scheduler's, to dispatch
print(len(vm.queues[0]), "in the queue, value", chain.value)
while vm.step():
    pass
print("value", chain.value)

# %% An error poisons what its instruction writes, and what depends on that.  All else goes on, and
# who reads a poisoned value gets the error.
wrong = small.relu(small.matmul(x, Tensor(np.ones((3, 3)))))
fine = small.relu(x)
try:
    wrong.numpy()
except ValueError as error:
    print("poisoned:", str(error)[:42])
print(fine.numpy())

# %% Gradients are ops: backward goes over what each output was made of, the latest first, and
# issues instructions like any other.
small.relu(small.matmul(x, w)).backward(Tensor([[1.0, 1.0]]))
print(w.grad.numpy(), x.grad.numpy())

# %% A training step, captured: its instructions are kept and not run.  The last one changes `w` in
# place.
rate = Tensor(-0.1)


def step() -> Tensor:
    w.grad = None
    out = small.relu(small.matmul(x, w))
    out.backward(out)
    change = small.mul(rate, w.grad)
    small.issue(np.add, [(w.storage, CONST), (change.storage, CONST), (w.storage, MUT)])
    return out


before = w.numpy().copy()
for _ in range(3):
    step()
eager = w.numpy().copy()
program, out = small.capture(step)
print(len(program), "instructions, among them releases of what nobody holds any more")

# %% A Plan replays them by actors, one for each instruction here, with nobody who schedules.  An
# actor acts when its inputs have acted for the same launch, and the readers of its output for an
# earlier one: as many launches before as the output has registers.  That is its credit.
w.storage.value = before.copy()
plan = Plan(program, results=[out.storage])
plan.launch(3, random.Random(1).choice)  # in any order that the actors may act in
print(np.array_equal(w.storage.value, eager), "the same as three eager steps")

# %% `flowvm/vm/machine/machine.py` is this Machine on one array of words, compiled, entered by a
# scheduler thread; tutorial 02 shows its instructions and edges, tutorial 06 its actors.
# `tests/vm/test_small.py` plays both machines the same moves and compares them after each.
