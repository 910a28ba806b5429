"""PyTorch's place of DistributedSampler."""

from flowvm.utils.data.sampler import DistributedSampler

__all__ = ["DistributedSampler"]
