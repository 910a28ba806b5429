"""Question 11: where did the memory go, and who keeps it?"""

# %% A leak as people write it: each step's loss is kept, and with it all that its gradient needs.
import flowvm as flow
from flowvm import nn

net = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1))
x = flow.randn(64, 256)
kept = []
with flow.profiler.profile() as p:
    for _ in range(20):
        with flow.profiler.span("step"):
            loss = net(x).mean()
            kept.append(loss)  # not loss.detach(), not loss.item()

# %% What was alive at the peak: by kind, line and owner, and what grew with each step.
print(p.memory())

# %% Now, without a profile: what is alive, and who holds it.
print(flow.memory.summary())

# %% Mended: without its history a loss is four bytes.
kept = [loss.detach() for loss in kept]
del loss
flow.vm.sync()
print(f"{flow.memory.allocated() / 2**20:.1f} MiB")

# %% Too much memory is an error with the same table in it, and the VM goes on.
try:
    flow.empty(1 << 50).sum().item()
except flow.errors.OutOfMemoryError as error:
    print(str(error).splitlines()[0])
print((flow.ones(2) + 1).tolist())
