"""The number of a DataLoader's worker and the count of workers, for a dataset's code."""

from __future__ import annotations

import threading


# public: utils.data
class WorkerInfo:
    """The record of a worker: its number, the count of workers and the seed of its random numbers.
    `dataset` is the dataset; in a process, the worker's own copy.

    >>> def number(sample):
    ...     return flow.utils.data.get_worker_info().num_workers
    >>> loader = flow.utils.data.DataLoader([1, 2], num_workers=2, threads=True, collate_fn=number)
    >>> list(loader)
    [2, 2]
    """

    def __init__(self, id: int, num_workers: int, seed: int, dataset: object) -> None:
        self.id = id
        self.num_workers = num_workers
        self.seed = seed
        self.dataset = dataset

    def __repr__(self) -> str:
        return (
            f"WorkerInfo(id={self.id}, num_workers={self.num_workers}, seed={self.seed}, "
            f"dataset={self.dataset!r})"
        )


class _Here(threading.local):
    info: WorkerInfo | None = None  # a worker thread's own; or else, of all threads:


_local = _Here()


# public: utils.data
def get_worker_info() -> WorkerInfo | None:
    """The WorkerInfo of the calling worker, or None outside a DataLoader's workers.

    >>> flow.utils.data.get_worker_info() is None  # outside of workers
    True
    """
    return _local.info


def begin_thread(info: WorkerInfo) -> None:
    """Mark the calling thread as a worker."""
    _local.info = info


def begin_process(info: WorkerInfo) -> None:
    """Mark this process as a worker, with all its present and future threads."""
    _Here.info = info
    _local.info = info
