"""Tutorial 07: profiling a training step.

A loop with two stalls planted in it: what it looks like, how the profiler names them, what mending
each one brings.
"""

# %% The loop.  Reading a batch takes 4 ms, as from a disk; the step is a network's, and the loss is
# printed, or could be, after each one.
import time
from typing import Any

import numpy as np

import flowvm as flow
from flowvm import nn
from flowvm.utils.data import DataLoader, Dataset

BATCHES, BATCH = 16, 128
rng = np.random.default_rng(0)
pixels = rng.standard_normal((BATCHES, BATCH, 256), np.float32)
digits = rng.integers(0, 10, (BATCHES, BATCH))


class Files(Dataset[tuple[np.ndarray, np.ndarray]]):
    """A batch a file."""

    def __len__(self) -> int:
        return BATCHES

    def __getitem__(self, k: int) -> tuple[np.ndarray, np.ndarray]:
        time.sleep(0.004)  # the disk
        return pixels[k], digits[k]


flow.manual_seed(0)
layers = nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)
model = nn.Sequential(*layers)
optimizer = flow.optim.SGD(model.parameters(), lr=0.01)
loss_of = nn.CrossEntropyLoss()


def step(x: flow.Tensor, y: flow.Tensor) -> flow.Tensor:
    loss: flow.Tensor = loss_of(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    detached: flow.Tensor = loss.detach()
    return detached


def slow_epoch(loader: DataLoader[Any]) -> float:
    total = 0.0
    for x, y in loader:
        with flow.profiler.span("step"):  # a name for what is issued inside
            total += step(x, y).item()
    return total / len(loader)


loader = DataLoader(Files(), batch_size=None)
slow_epoch(loader)  # compiles, or loads, the kernels

# %% Record one epoch.  A profile is a value: print it, save it, ask it things.  The first lines say
# what bound the run: the shares of a path through time that sum to the wall time.
with flow.profiler.profile() as before:
    slow_epoch(loader)
print(before)

# %% The same as lanes: Python, the scheduler, the worker.  Python reads (`·`) while the worker has
# nothing to do, and waits for a value (`╳`) while the worker runs: they take turns.
print(before.timeline(t=(0, 30)))

# %% One instruction, here the product that waited longest: why did it start when it did?  What is
# marked as gating is what it waited for to the end; anything else had been there before.
print(before.why("linear"))

# %% One of the steps alone, by line.
print(before.part("step", 3).summary(by="line"))

# %% The first mend: nobody needs the loss of each step at once.  Add up on the device and read the
# sum at the end; then Python reads the next batch while the worker computes.


def epoch(loader: DataLoader[Any]) -> float:
    total = flow.zeros(())
    for x, y in loader:
        with flow.profiler.span("step"):
            total += step(x, y)
    return float(total.item()) / len(loader)


with flow.profiler.profile() as unsynced:
    epoch(loader)
print(unsynced)
print(before.diff(unsynced))

# %% The second: read ahead, with worker processes, which stay from one epoch to the next.
ahead = DataLoader(Files(), batch_size=None, num_workers=2, persistent_workers=True)
epoch(ahead)
with flow.profiler.profile() as mended:
    epoch(ahead)
print(mended.timeline(t=(0, 30)))

# %% What it brought.
for name, p in (("before", before), ("no item()", unsynced), ("and read ahead", mended)):
    shares = ", ".join(f"{cause} {share:.0%}" for cause, share in list(p.bound.items())[:3])
    print(f"{name:15s} {p.run.wall / BATCHES / 1e6:5.2f} ms a step, worker busy "
          f"{p.busy['cpu']:4.0%}, path: {shares}")  # fmt: skip

# %% Where the memory was.
print(mended.memory())

# %% A run is kept by `mended.save("mended.flowtrace")`, and `flowvm view mended.flowtrace` shows it
# again; `mended.export("mended.html")` makes one page for a browser, offline, and a name that ends
# in .json a trace for Perfetto.  What was not recorded on purpose is there too: the last 65,536
# instructions always are.
print(flow.profiler.last(200).timeline())
