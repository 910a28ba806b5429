"""Tutorial 02: instructions and edges.

What an op becomes, why one waits for another, and how to see it.
"""

# %% `flow.vm.trace` calls a function and returns the instructions that it issued.
import flowvm as flow


def step(x: flow.Tensor, w: flow.Tensor) -> flow.Tensor:
    h = x @ w
    r = flow.relu(h)
    total: flow.Tensor = r.sum()
    return total


x, w = flow.rand(4, 8), flow.rand(8, 3)
run = flow.vm.trace(step, x, w)
print(run)

# %% Every operand is read (const) or written (mut).  A const access waits for the last writer: RAW.
# A mut access waits for everybody in front: WAR for readers, WAW for a writer.  That is all the
# scheduler knows, and all it needs.
for edge in run.edges:
    source, target = run.instructions[edge.source], run.instructions[edge.target]
    print(f"{target.name:8s} waits for {source.name:8s} {edge.hazard}  tensor t{edge.tensor}")

# %% In-place changes are mut accesses to the same storage.  A view shares its base's storage, so it
# takes part.


def in_place(x: flow.Tensor) -> flow.Tensor:
    row = x[0]  # a view: no instruction
    y = x * 2  # reads x
    row.add_(1)  # writes x: must wait until y has been computed (WAR)
    return y + x  # reads what row wrote (RAW)


print(flow.vm.trace(in_place, flow.ones(2, 3)))

# %% `mut2` is written with a shape that only the kernel finds.  The tensor exists at once; asking
# for its shape waits.


def positive(x: flow.Tensor) -> flow.Tensor:
    picked: flow.Tensor = flow.masked_select(x, x > 0)
    return picked


run = flow.vm.trace(positive, flow.tensor([-1.0, 2.0, -3.0, 4.0]))
print(run)
print(run.result)

# %% Two streams: an in-order queue and a worker each.  What crosses from one to the other is
# ordered by edges alone.
side = flow.Stream("side")


def two_streams(a: flow.Tensor) -> flow.Tensor:
    left = (a @ a) @ a
    with flow.stream(side):
        right = (a * 2) @ a
    return left + right


run = flow.vm.trace(two_streams, flow.rand(256, 256))
print(run)

# %% Was every conflicting pair kept in order?  `verify` does not look at the engine's edges: it
# checks, from the recorded starts and ends, that no two conflicting accesses overlapped.
print(flow.vm.verify(run))
