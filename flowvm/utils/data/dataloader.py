"""DataLoader: batches of a dataset, in order, made on the spot or ahead of time by workers.

Workers are processes, as in PyTorch (`flowvm.utils.data.passes`), or with threads=True threads
(`flowvm.utils.data.threads`).  With num_workers=0 each batch is made when it is asked for.
"""

from __future__ import annotations

import multiprocessing.context
from abc import ABC
from collections.abc import Callable, Iterable, Iterator
from itertools import repeat
from typing import Any, Generic, TypeVar

import numpy as np

from flowvm.errors import ArgumentError, ArgumentTypeError
from flowvm.ops import Generator, default_generator
from flowvm.utils.data.collate import default_collate, default_convert
from flowvm.utils.data.dataset import Dataset, IterableDataset
from flowvm.utils.data.fetch import Recipe
from flowvm.utils.data.passes import Pass
from flowvm.utils.data.pool import Pool, context_of
from flowvm.utils.data.sampler import BatchSampler, RandomSampler, SequentialSampler
from flowvm.utils.data.threads import Prefetcher
from flowvm.utils.data.worker_info import WorkerInfo

T_co = TypeVar("T_co", covariant=True)


_MADE_OF = frozenset(
    ("batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers")
)


# public: utils.data
class DataLoader(Generic[T_co]):
    """Iterates over a dataset in batches.

    shuffle draws a new order for each pass, from `generator` if given.  A dataset that has
    PyTorch's `__getitems__(indices)` is asked for a batch's samples at once.

    num_workers         processes that make batches, each with its own copy of the dataset; an
                        exception in one is raised here with its traceback, and a worker that dies
                        is a LoaderError (a RuntimeError).  They end with the loop, however that is
                        left.  Tensors and arrays of a batch come through shared memory
    prefetch_factor     batches that each worker makes ahead (2)
    persistent_workers  keep them from one pass to the next; what the dataset is then, stays
    multiprocessing_context  "fork", "spawn", "forkserver" or a context; without it what
                        `set_start_method` says, or else a fork.  What is not forked is pickled
    worker_init_fn      called in each worker with its number.  `random`, NumPy and flowvm are
                        seeded there: with `generator`'s next number, and the worker's
    timeout             seconds after which a batch that is not there is a LoaderError; 0: none
    in_order            False: batches come as they are ready
    threads             workers are threads of this process instead: nothing is pickled or copied,
                        batches may be on devices, and Python code takes turns.  A stream
                        (IterableDataset) is then read once, by all of them together; in processes
                        each worker reads it, and shares it out by `get_worker_info()`

    pin_memory and pin_memory_device choose nothing here: copies to devices are asynchronous as they
    are.  Of threads, persistent_workers and in_order=False choose nothing either.

    >>> from flowvm.utils.data import DataLoader, TensorDataset
    >>> xs, ys = flow.arange(5), flow.arange(5) * 10
    >>> for x, y in DataLoader(TensorDataset(xs, ys), batch_size=2):
    ...     print(x.tolist(), y.tolist())
    [0, 1] [0, 10]
    [2, 3] [20, 30]
    [4] [40]
    """

    def __init__(
        self,
        dataset: Dataset[T_co],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Iterable[int] | None = None,
        batch_sampler: Iterable[list[int]] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], Any] | None = None,
        multiprocessing_context: Any = None,
        generator: Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        threads: bool = False,
    ) -> None:
        _count("num_workers", num_workers, 0)
        if prefetch_factor is not None:
            _count("prefetch_factor", prefetch_factor, 1)
            if num_workers == 0:
                raise ArgumentError("prefetch_factor needs num_workers of at least 1")
        if persistent_workers and num_workers == 0:
            raise ArgumentError("persistent_workers option needs num_workers > 0")
        if multiprocessing_context is not None:
            check_context(multiprocessing_context, num_workers, threads)
        if timeout < 0:
            raise ArgumentError(f"timeout must not be negative, got {timeout}")
        iterable = isinstance(dataset, IterableDataset)
        if not iterable and not hasattr(dataset, "__getitem__"):
            raise ArgumentTypeError(
                f"dataset must have __getitem__ or be an IterableDataset, got "
                f"{type(dataset).__name__}"
            )
        if iterable and (shuffle or sampler is not None or batch_sampler is not None):
            raise ArgumentError(
                "an IterableDataset decides its order itself: no shuffle or sampler"
            )
        if sampler is not None and shuffle:
            raise ArgumentError("sampler option is mutually exclusive with shuffle")
        if batch_sampler is not None and (
            batch_size != 1 or shuffle or sampler is not None or drop_last
        ):
            raise ArgumentError(
                "batch_sampler option is mutually exclusive with batch_size, shuffle, sampler, and "
                "drop_last"
            )
        if batch_size is None and drop_last:
            raise ArgumentError("batch_size=None disables batching: there is no last batch to drop")
        if batch_size is not None:
            _count("batch_size", batch_size, 1)
        self.dataset = dataset
        self.num_workers = num_workers
        self.pin_memory, self.pin_memory_device = pin_memory, pin_memory_device
        self.persistent_workers, self.in_order = persistent_workers, in_order
        self.multiprocessing_context, self.threads = multiprocessing_context, threads
        self.prefetch_factor = 2 if num_workers and prefetch_factor is None else prefetch_factor
        self.timeout = timeout
        self.worker_init_fn = worker_init_fn
        self.generator = generator
        self.drop_last = drop_last
        self.batch_size = None if batch_sampler is not None else batch_size
        if sampler is None and not iterable:
            sampler = (
                RandomSampler(dataset, generator=generator)  # type: ignore[arg-type]
                if shuffle
                else SequentialSampler(dataset)  # type: ignore[arg-type]
            )
        if batch_sampler is None and batch_size is not None and sampler is not None:
            batch_sampler = BatchSampler(sampler, batch_size, drop_last)
        self.sampler = sampler
        self.batch_sampler = batch_sampler
        batched = batch_size is not None or batch_sampler is not None
        self.collate_fn = collate_fn or (default_collate if batched else default_convert)
        self._recipe = Recipe(dataset, self.collate_fn, batched, self.batch_size, drop_last)
        self._pool: Pool | None = None  # of persistent workers

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _MADE_OF and "_pool" in self.__dict__:
            raise ArgumentError(
                f"{name} attribute should not be set after DataLoader is initialized; make another"
            )
        object.__setattr__(self, name, value)

    def __iter__(self) -> Iterator[Any]:
        recipe, count, ahead = self._recipe, self.num_workers, self.prefetch_factor or 0
        jobs: Iterator[object]
        if not recipe.streams:  # draws its order here, whatever workers do
            jobs = iter(self.sampler if self.batch_sampler is None else self.batch_sampler)  # type: ignore[arg-type]
        elif count and not self.threads:
            jobs = repeat(None)
        else:
            jobs = recipe.stream()
        seed = _base_seed(self.generator)  # also without workers, or the next order would differ
        if count == 0:
            return map(recipe.maker(), jobs)
        if self.threads:
            infos = [WorkerInfo(i, count, seed + i, self.dataset) for i in range(count)]
            make, init = recipe.maker(), self.worker_init_fn
            return Prefetcher(jobs, make, infos, count * ahead, self.timeout, init)
        pool = self._pool
        if pool is None or not pool.usable:
            context = context_of(self.multiprocessing_context)
            pool = Pool(recipe, count, ahead, context, seed, self.worker_init_fn)
        if self.persistent_workers:
            self._pool = pool
        return Pass(pool, jobs, self.timeout, self.in_order, self.persistent_workers)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_pool": None}  # a copy has workers of its own

    def __len__(self) -> int:
        if isinstance(self.dataset, IterableDataset):
            n = len(self.dataset)  # type: ignore[arg-type]
            if self.batch_size is None:
                return n
            return n // self.batch_size if self.drop_last else -(-n // self.batch_size)
        return len(self.sampler if self.batch_sampler is None else self.batch_sampler)  # type: ignore[arg-type]


class _BaseDataLoaderIter(ABC):  # noqa: B024 - PyTorch's name of what programs ask an iterator for
    """The base class of iterators over a DataLoader."""


_MultiProcessingDataLoaderIter = Pass
_SingleProcessDataLoaderIter = map
for _kind in (Pass, Prefetcher, map):
    _BaseDataLoaderIter.register(_kind)


def _base_seed(generator: Generator | None) -> int:
    """A number for a pass, of the generator's seed and how often it has drawn."""
    if not isinstance(generator, (Generator, type(None))):
        raise ArgumentTypeError(
            f"generator must be a flow.Generator, got {type(generator).__name__}"
        )
    seed, call = (generator or default_generator).draw_now()
    words = np.random.SeedSequence((seed % (1 << 64), call)).generate_state(1, np.uint64)
    return int(words[0] >> 1)


def check_context(context: object, num_workers: int, threads: bool) -> None:
    """Refuse a `context` that cannot start processes, as PyTorch does."""
    if threads:
        raise ArgumentError(
            f"threads=True starts no processes, so multiprocessing_context={context!r} has no "
            "meaning; leave one of them out"
        )
    if num_workers == 0:
        raise ArgumentError(
            "multiprocessing_context can only be used with multi-process loading (num_workers > 0)"
        )
    methods = multiprocessing.get_all_start_methods()
    if isinstance(context, str) and context not in methods:
        raise ArgumentError(
            f"multiprocessing_context option should specify a valid start method in {methods!r}, "
            f"but got multiprocessing_context={context!r}"
        )
    if not isinstance(context, (str, multiprocessing.context.BaseContext)):
        raise ArgumentTypeError(
            f"multiprocessing_context is a start method's name or a context, got {context!r}"
        )


def _count(name: str, value: int, minimum: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
        raise ArgumentError(f"{name} must be an int of at least {minimum}, got {value!r}")
