"""Question 3: why is this not running, and why is that worker idle?"""

# %% A long product, and what stands behind it.
import time

import flowvm as flow

a = flow.randn(1200, 1200)
(a @ a).relu().sum().item()  # compiled, or loaded

b = a @ a
c = b.relu()
total = c.sum()

# %% While it runs: what is pending, and on what it waits. (It may be done by the time you look.)
print(flow.vm.pending())
print(total.item())

# %% Afterwards: the recorder is always on, so nothing had to be prepared.
p = flow.profiler.last(40)
print(p.why("relu"))

# %% An idle worker is not a slow VM: the lanes say who had nothing to do, and the gaps name why.
with flow.profiler.profile() as p:
    for _ in range(3):
        time.sleep(0.01)  # Python is busy elsewhere
        (a[:100, :100] @ a[:100, :100]).sum().item()
print(p.timeline())
