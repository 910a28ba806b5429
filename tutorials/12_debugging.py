"""Tutorial 12: debugging: a wrong number, a NaN, an error, a hang, a leak, a slow loader.

Six faults, planted; for each the question to ask, and the line that answers it.
"""

# %% A wrong number. Where does this tensor come from? `flow.explain` shows the instructions that
# made it, back to where its inputs were made, each with its line.
import time
from typing import Any

import flowvm as flow
from flowvm import nn

flow.manual_seed(0)
x = flow.randn(64, 8)
scaled = (x - x.mean(0)) / x.std(0)
scaled.mul_(x)  # meant for a copy
loss = scaled.square().mean()
print(flow.explain(loss))

# %% `mul_` wrote what `div` had made. At a prompt, `with flow.vm.step(op="mul"):` stops the machine
# in front of that instruction and shows its operands; with `storage=scaled` in front of whatever
# uses this tensor.
again = (x - x.mean(0)) / x.std(0)
print((again - scaled).abs().max().item() > 0.1)

# %% A NaN. Anomaly detection names the forward line of the gradient that made it.
w = flow.tensor([4.0, 0.0], requires_grad=True)
try:
    with flow.autograd.detect_anomaly():
        (w.sqrt() * flow.tensor([1.0, 0.0])).sum().backward()
except RuntimeError as error:
    print(f"{type(error).__name__}: {error}")

# %% An error in a step, whose update is already issued. When it is raised, parameters are as they
# were before the step, and so is what else persists: catch it, and go on. Other tensors wait for
# `flow.vm.restore()`, which names what has no whole value.
table = nn.Embedding(10, 4)
sgd = flow.optim.SGD(table.parameters(), lr=0.1)
total = flow.zeros(())
for batch in ([1, 2], [3, 99], [4, 5]):
    sgd.zero_grad()
    cost = table(flow.tensor(batch)).square().mean()
    cost.backward()
    sgd.step()
    total += cost.detach()
    try:
        print(f"{cost.item():.3f}")
    except IndexError as error:
        print(f"{type(error).__name__}: {error}")
        print(flow.vm.restore())
print(table.weight.isfinite().all().item(), total.item() > 0)

# %% A hang. What is pending, on what does it wait? In another terminal `flowvm top PID` shows the
# same of a program that does not answer, and the watchdog prints it by itself when nothing has
# ended for a while. Ctrl-C, and `flow.vm.cancel()`, take back what has not started.
big = flow.randn(1500, 1500)
for _ in range(20):
    big = big @ big / 1500
print(flow.vm.pending()[:2])
flow.vm.cancel()
try:
    print(big[0, 0].item())
except RuntimeError as error:
    print(f"{type(error).__name__}: {str(error).splitlines()[0]}")

# %% A leak. Losses are kept with their history: the screen names the list, and what grows a step.
net = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
history: list[flow.Tensor] = []
with flow.profiler.profile() as p:
    for _ in range(10):
        with flow.profiler.span("step"):
            history.append(net(flow.randn(32, 64)).mean())
print(p.memory())

# %% A slow loader. Python is on the path, and the gaps of the worker name the line.


def batches() -> Any:
    for _ in range(8):
        time.sleep(0.005)  # the disk
        yield flow.randn(32, 64)


with flow.profiler.profile() as p:
    for batch in batches():
        net(batch).mean().item()
print(p.summary())
print(p.timeline())
