"""`torch.distributed.algorithms.join` by its path: the classes of `flowvm.nn.parallel.joins`."""

from flowvm.loading.listing import listing
from flowvm.nn.parallel.joins import Join, Joinable, JoinHook

__all__ = ["Join", "JoinHook", "Joinable"]
__dir__ = listing(globals())
