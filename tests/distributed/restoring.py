"""A step of DistributedDataParallel fails on one rank: run by `flowvm launch -n 2 restoring.py`.

Each rank has its parameters and its optimizer's state as they were, and can save them and compute;
nothing is exchanged any more, for ranks that have not done the same would meet the wrong exchange.
"""

import numpy as np

import flowvm as flow
import flowvm.distributed as dist
from flowvm import nn
from flowvm.errors import CommunicationError, OutOfRangeError
from flowvm.ranks.world import rank

RANK = rank()
dist.init_process_group()
flow.manual_seed(3)
model = nn.Sequential(nn.Embedding(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
whole = nn.parallel.DistributedDataParallel(model)
optimizer = flow.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def step(module, places):
    optimizer.zero_grad()
    loss = module(flow.tensor(places)).square().mean()
    loss.backward()
    optimizer.step()
    return loss


def values():
    state = [entry["momentum_buffer"] for entry in optimizer.state.values()]
    return [t.detach().numpy().copy() for t in (*model.parameters(), *state)]


step(whole, [0, 1, 2]).item()
before = values()
loss = step(whole, [0, 1, 9 if RANK == 1 else 2])
try:
    loss.item()
    flow.vm.sync()
except OutOfRangeError:
    assert RANK == 1
except CommunicationError:
    assert RANK == 0
else:
    raise AssertionError("nobody was told")
for was, now in zip(before, values(), strict=True):
    assert np.array_equal(was, now)
restored = flow.vm.restore()
assert not [one for one in restored.lost if one.name], restored
try:
    total = flow.ones(2)
    dist.all_reduce(total)
    total.numpy()
except (CommunicationError, OutOfRangeError):  # the latter where nobody has looked at the board yet
    print("exchanges nothing any more", flush=True)
assert np.isfinite(step(model, [0, 1, 2]).item())
assert not np.array_equal(values()[0], before[0])
print("trains on", flush=True)
