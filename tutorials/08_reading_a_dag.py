"""Tutorial 08: reading a DAG.

Which instructions a piece of code became, what each of them waits for, and which of these waits
cost time.
"""

# %% A call's instructions, in the order issued: `flow.vm.trace` needs no profile.
import flowvm as flow
from flowvm import nn

flow.manual_seed(0)
x, w1, w2 = flow.rand(256, 256), flow.rand(256, 256), flow.rand(256, 256)
side = flow.Stream("side")


def two_products(x: flow.Tensor) -> flow.Tensor:
    left = flow.relu(x @ w1)
    with flow.stream(side):
        right = x @ w2  # in a lane of its own: it needs nothing of the left
    result: flow.Tensor = left + right  # has an edge from each
    return result


print(flow.vm.trace(two_products, x))

# %% A profile has the same of all that ran inside, with times.  `p.graph()` draws it: a lane for
# each stream, a row for each instruction, in the order that they started in.
with flow.profiler.profile() as p:
    two_products(x).numpy()
print(p.graph())

# %% How to read a row.  What is read (const) stands under "reads", by the names t0, t1 ... of the
# run's tensors; what is written under "writes", `━` for mut and `═` for mut2.  The mark is `◆` if
# the instruction is on the path that bound the run, else `○`.  A line that comes in from another
# lane is an edge between streams; edges within a lane are its order.  At the right stands what was
# waited for and why, with a `!` at what came last.
#
# An access that writes (mut) waits for all who read what was there before: WAR.  So this update
# waits for the product, though it needs nothing from it:


def update_in_place() -> flow.Tensor:
    y = x @ w1
    w1.mul_(0.5)  # mut: WAR
    result: flow.Tensor = y @ w1  # RAW
    return result


with flow.profiler.profile() as p:
    update_in_place().numpy()
print(p.graph())

# %% mut2: written with a shape that only the kernel finds.  Python goes on with a tensor whose
# shape nobody knows, until somebody asks: the row named `wait`.


def positive(x: flow.Tensor) -> flow.Tensor:
    picked: flow.Tensor = flow.masked_select(x, x > 0.5)
    result: flow.Tensor = picked.sum() / picked.shape[0]
    return result


with flow.profiler.profile() as p:
    positive(x).item()
print(p.graph())

# %% A training step is longer.  `around` shows what is near one instruction, `depth` how near.
layers = nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)
model = nn.Sequential(*layers)
optimizer = flow.optim.SGD(model.parameters(), lr=0.1)
labels = flow.zeros(256, dtype=flow.int64)


def step() -> flow.Tensor:
    loss: flow.Tensor = nn.functional.cross_entropy(model(x), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


step().item()
with flow.profiler.profile() as p:
    step().item()
(first, *_) = [int(n) for n, op in zip(p.run.seq, p.run.op, strict=True)
               if p.run.names[op] == "relu_backward"]  # fmt: skip
print(p.graph(around=first, depth=1))

# %% Of all it waited for, one thing was there last: the gating operand.  `why` follows those back.
print(p.why(first))

# %% The observed path does that from the last instruction to the first, and sums to the wall time.
# The floor is the longest path through the data alone: no number of streams would be faster.
print(p.critical_path())

# %% What if?  The floor, were an operator free: what it is worth to make it faster.
for op in ("linear", "_matmul_tn", "sgd_step_"):
    print(f"floor {p.floor.length / 1e6:.3f} ms, without {op:10s} {p.what_if(op) / 1e6:.3f} ms")

# %% And the other way round: where does a tensor come from?  `flow.explain` needs no profile: the
# last 65,536 instructions are always remembered.
print(flow.explain(two_products(x)))

# %% All of it was in order: `verify` holds what was recorded to the rule itself.
print(p.verify())
