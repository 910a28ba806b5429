"""Feeding data: datasets, samplers and the DataLoader.

Not here: data itself (`flowvm.datasets`).
"""

from flowvm.loading.listing import listing
from flowvm.utils.data import distributed as distributed

# --- public names, by `python -m tools.faces`
# isort: off
# fmt: off
from flowvm.utils.data.collate import default_collate, default_convert
from flowvm.utils.data.dataloader import DataLoader
from flowvm.utils.data.dataset import (
    ChainDataset, ConcatDataset, Dataset, IterableDataset, StackDataset, Subset, TensorDataset,
    random_split,
)
from flowvm.utils.data.sampler import (
    BatchSampler, DistributedSampler, RandomSampler, Sampler, SequentialSampler,
    SubsetRandomSampler, WeightedRandomSampler,
)
from flowvm.utils.data.worker_info import WorkerInfo, get_worker_info

__all__ = [
    "BatchSampler", "ChainDataset", "ConcatDataset", "DataLoader", "Dataset", "DistributedSampler",
    "IterableDataset", "RandomSampler", "Sampler", "SequentialSampler", "StackDataset", "Subset",
    "SubsetRandomSampler", "TensorDataset", "WeightedRandomSampler", "WorkerInfo",
    "default_collate", "default_convert", "distributed", "get_worker_info", "random_split",
]
# fmt: on
# isort: on
# --- by hand


__dir__ = listing(globals())
