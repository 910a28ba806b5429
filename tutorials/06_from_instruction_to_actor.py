"""Tutorial 06: from instruction to actor.

What becomes of an op's instruction on its way into a replayed graph: node, task, register, actor;
and how actors that wait for nothing but their registers make one batch overlap with the next.
"""

# %% A computation with two parts: one prepares a batch, the other uses it.  Each is on a stream of
# its own.  Eager, every op is an instruction, and edges alone order them.
import time

import flowvm as flow
from flowvm import nn
from flowvm.graph.plan.actors import ActorDesc

preparing = flow.Stream("preparing")
weight = flow.randn(64, 64) / 8
row_count = flow.zeros(1)


def step(x: flow.Tensor) -> flow.Tensor:
    with flow.stream(preparing):
        row_count.add_(x.shape[0])
        centred = x - x.mean(0)
        batch = centred / (centred * centred).mean(0).sqrt()
    hidden = flow.relu(batch @ weight)
    result: flow.Tensor = (hidden @ weight).sum(1)
    return result


x = flow.randn(256, 64)
print(flow.vm.trace(step, x))

# %% Captured, the same instructions are nodes of a LogicalGraph: operator, operands, the line that
# issued it.  No kernel has run for it.  `without` passes it is what was issued.
plain = flow.compile(step)
plain.config.disable(*plain.config.passes)
plain(x)
print(plain.plans[0].graph)

# %% Passes rewrite it, and say so when asked (FLOWVM_DEBUG_PASS=all): here a chain of elementwise
# ops becomes one kernel.  Nodes of different streams are never joined.
graph = flow.compile(step)
graph(x)
plan = graph.plans[0]
print(f"{len(plain.plans[0].graph.nodes)} nodes became {len(plan.graph.nodes)}")

# %% A Plan makes a task of every node (kernel, layout, the addresses of its operands), and a
# register of every buffer: an operand of the launch (inputs, outputs, variables), or a place in its
# chunk.  Registers share bytes of the chunk where their lives do not meet.  Tasks that follow each
# other on one stream are one actor.
print(plan.dump())

# %% An actor acts when its inputs are readable, and its outputs writable.  Written out: for launch
# n, all actors that it waits for have acted, and whoever uses what it makes has acted for launch
# n - regst_num, which is the credit that it has returned.  There is no other rule, so anybody can
# play.


def play(actors: list[ActorDesc], launches: int, regst_num: int) -> list[str]:
    """Return the actors that act at each tick, if every actor acts that may."""
    acted = [0 for _ in actors]
    ticks = []
    while min(acted) < launches:
        ready = []
        for actor in actors:
            n = acted[actor.number]
            open_now = n < min(launches, min(acted) + regst_num)
            readable = all(acted[other] > n for other in actor.inputs)
            writable = all(acted[user] > n - min(c, regst_num) for user, c in actor.credits)
            if open_now and readable and writable:
                ready.append(actor.number)
        ticks.append(" ".join(f"{k}.{acted[k]}" for k in ready))
        for k in ready:
            acted[k] += 1
    return ticks


for regst_num in (1, 2):
    ticks = play(plan.actors, 4, regst_num)
    print(f"regst_num {regst_num}: {len(ticks)} ticks; actor.launch at each: {' | '.join(ticks)}")

# %% `graph.config.regst_num` says how many copies of the registers there are, which is how many
# calls may be in flight at one time.  More overlap costs memory, and never more than was set: that
# is back-pressure.  The results are the same.
big, factor = flow.randn(2048, 64), flow.randn(64, 64) / 8


def busy(x: flow.Tensor) -> flow.Tensor:
    with flow.stream(preparing):
        for _ in range(20):
            x = flow.sin(x) + 1
    for _ in range(10):
        x = flow.tanh(x @ factor)
    return x


for regst_num in (1, 2):
    overlapping = flow.compile(busy)
    overlapping.config.regst_num = regst_num
    overlapping(big)
    flow.vm.sync()
    began = time.perf_counter()
    results = [overlapping(big) for _ in range(30)]
    flow.vm.sync()
    milliseconds = (time.perf_counter() - began) / 30 * 1e3
    print(f"regst_num {regst_num}: {milliseconds:.2f} ms a call, two cores permitting")
    assert (results[-1] - busy(big)).abs().max().item() < 1e-5

# %% For the VM a launch is one instruction.  Eager code around it, and other graphs, are ordered by
# its operands: `row_count` is written by the launch, so reading it waits.
before = row_count.item()
graph(x)
assert row_count.item() == before + 256


# %% Actors that act more than once a launch: gradient accumulation.  A call takes a batch of 12;
# `build` sees 3 rows at a time, four times.  Inputs are unpacked (an operand moves on by some bytes
# each time), parameters are repeated, gradients are accumulated, losses are packed.
class TrainStep(nn.Graph):
    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Linear(4, 2)
        self.add_optimizer(flow.optim.SGD(self.model.parameters(), lr=0.1))
        self.config.set_gradient_accumulation_steps(4)

    def build(self, x: flow.Tensor, y: flow.Tensor) -> flow.Tensor:
        loss = nn.functional.mse_loss(self.model(x), y)
        loss.backward()
        return loss


train = TrainStep()
rows, targets = flow.randn(12, 4), flow.zeros(12, 2)
for _ in range(3):
    losses = train(rows, targets)
print("a loss for each micro-batch:", losses)
for line in train.plans[0].dump().splitlines():
    if line.startswith("  task"):
        print(line)

# %% When a graph goes, its actors are told that no more data will come: Eord, from the sources on.
# What is in flight finishes first.
late = graph(x)
del graph, plan
print("the last result:", late.sum())
