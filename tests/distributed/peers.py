"""DistributedDataParallel beside PyTorch's, on the same ranks: `peers.py FOLDER`."""

import sys
from pathlib import Path

import numpy as np
import torch
import torch.distributed
from torch import nn as theirs

import flowvm as flow
import flowvm.distributed as dist
from flowvm import nn as ours

dist.init_process_group("mpi")
RANK, SIZE = dist.get_rank(), dist.get_world_size()
torch.set_num_threads(1)
store = torch.distributed.FileStore(str(Path(sys.argv[1], "store")), SIZE)
torch.distributed.init_process_group("gloo", store=store, rank=RANK, world_size=SIZE)


def network_of(nn):
    """A small network of either."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 5)
    )


network, other = network_of(ours), network_of(theirs)
network.load_state_dict({k: flow.tensor(v.numpy()) for k, v in other.state_dict().items()})
network = ours.parallel.DistributedDataParallel(network, bucket_cap_mb=0.001)
other = theirs.parallel.DistributedDataParallel(other, bucket_cap_mb=0.001)
first = flow.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
second = torch.optim.SGD(other.parameters(), lr=0.1, momentum=0.9)
rng = np.random.default_rng(RANK)
for _ in range(6):
    x, y = rng.standard_normal((6, 1, 8, 8)).astype("f"), rng.integers(0, 5, 6)
    first.zero_grad()
    second.zero_grad()
    loss = ours.functional.cross_entropy(network(flow.tensor(x)), flow.tensor(y))
    loss.backward()
    first.step()
    expected = theirs.functional.cross_entropy(other(torch.tensor(x)), torch.tensor(y))
    expected.backward()
    second.step()
    np.testing.assert_allclose(loss.item(), expected.item(), rtol=2e-4)
for (name, p), q in zip(network.named_parameters(), other.parameters(), strict=True):
    np.testing.assert_allclose(p.detach().numpy(), q.detach().numpy(), 2e-3, 2e-4, err_msg=name)
for shuffle in (True, False):
    mine = flow.utils.data.DistributedSampler(range(103), shuffle=shuffle, seed=4)
    other = torch.utils.data.DistributedSampler(range(103), shuffle=shuffle, seed=4)
    for epoch in (0, 2):
        mine.set_epoch(epoch)
        other.set_epoch(epoch)
        assert list(mine) == list(other)
torch.distributed.destroy_process_group()
Path(sys.argv[1], f"{RANK}.done").touch()
