"""`flow.distributed.algorithms`: ranks with different numbers of inputs (`join`), ways to reduce
the gradients of DistributedDataParallel (`ddp_comm_hooks`).

Not here: the module itself (`flowvm.nn.parallel`).
"""

from flowvm.distributed.algorithms.join import Join, Joinable, JoinHook
from flowvm.loading.listing import listing

__all__ = ["Join", "JoinHook", "Joinable"]
__dir__ = listing(globals())
