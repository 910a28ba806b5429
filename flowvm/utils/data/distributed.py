"""PyTorch's place of DistributedSampler."""

from flowvm.loading.listing import listing
from flowvm.utils.data.sampler import DistributedSampler

__all__ = ["DistributedSampler"]
__dir__ = listing(globals())
