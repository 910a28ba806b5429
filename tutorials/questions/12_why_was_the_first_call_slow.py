"""Question 12: why was the first call slow?

An op's kernel is compiled when it is first used with operands of such a kind, and kept: the next
process loads it in a fraction of a millisecond.
"""

# %% A function of one's own has never been compiled here: time spent so is `jit` in a profile.
import time

import flowvm as flow
from flowvm.ops import elementwise

constant = time.time_ns() % 1_000_000  # a constant that no cache has seen
fresh = elementwise("fresh", f"x * {constant} + 1", types="float", doc="x times a number, plus 1.")
x = flow.ones(1000)
with flow.profiler.profile() as p:
    fresh(x).sum().item()
print({cause: f"{share:.0%}" for cause, share in p.bound.items() if share > 0.01})

# %% The second call.
with flow.profiler.profile() as p:
    fresh(x).sum().item()
print({cause: f"{share:.0%}" for cause, share in p.bound.items() if share > 0.01})

# %% `flowvm warmup` compiles the usual kernels ahead, in a process for each CPU; a wheel made by
# `make wheel` carries them. How large the folder of kept kernels may become:
print(f"cache_dir: {flow.config.cache_bytes / 2**30:g} GiB")
