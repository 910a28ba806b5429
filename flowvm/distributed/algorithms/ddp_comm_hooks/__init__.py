"""Hooks for `DistributedDataParallel.register_comm_hook`, by PyTorch's names: `default_hooks`.

Not here: how a module calls them (`flowvm.nn.parallel.distributed`).
"""

from flowvm.distributed.algorithms.ddp_comm_hooks import default_hooks
from flowvm.loading.listing import listing

__all__ = ["default_hooks"]
__dir__ = listing(globals())
