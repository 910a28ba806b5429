"""Question 1: which instruction waits for which, all of it?

Every edge is logged when an instruction is issued, with the operand and the hazard it is for; none
is guessed from times.
"""

# %% A step on two streams: batches are scaled on one, the model runs on the other.
import flowvm as flow

scaling = flow.Stream("scaling")
w = flow.randn(64, 64)


def step(x: flow.Tensor) -> flow.Tensor:
    with flow.stream(scaling):
        scaled = x / 255
    y = (scaled @ w).relu()
    w.mul_(0.99)  # reads w, and writes it: behind the product that reads it, too
    return y.sum()


step(flow.rand(32, 64)).item()
with flow.profiler.profile() as p:
    step(flow.rand(32, 64)).item()

# %% Streams as lanes, `──` const (read), `━━` mut (written): a line that comes in from another lane
# is an edge between streams.
print(p.graph())

# %% One instruction: what gated it, what it blocks. `RAW` is read after write, `WAR` write after
# read, `WAW` write after write.
print(p.why("mul"))

# %% Whether the run kept to its edges is checked from the records alone.
print(p.verify())
