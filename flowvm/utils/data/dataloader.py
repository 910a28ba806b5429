"""DataLoader: batches of a dataset, in order, made on the spot or ahead of time by threads.

Workers are threads: kernels, NumPy and file reads let go of the GIL, nothing is pickled, and the
batches are tensors of this process. With num_workers=0 each batch is made when it is asked for.
"""

from __future__ import annotations

import multiprocessing.context
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Generic, TypeVar

from flowvm.errors import ArgumentError, ArgumentTypeError
from flowvm.utils.data.collate import default_collate, default_convert
from flowvm.utils.data.dataset import Dataset, IterableDataset, batch_getter
from flowvm.utils.data.prefetch import Prefetcher
from flowvm.utils.data.sampler import BatchSampler, RandomSampler, SequentialSampler

T_co = TypeVar("T_co", covariant=True)


class DataLoader(Generic[T_co]):
    """Iterates over a dataset in batches.

    shuffle draws a new order for each pass, from `generator` if given; num_workers threads keep at
    most num_workers * prefetch_factor batches ready or in the making; an exception in one of them
    is raised here, with the worker's traceback; leaving the loop early ends them.  A dataset that
    has PyTorch's `__getitems__(indices)` is asked for a batch's samples at once.

    Of PyTorch's arguments these choose nothing here: pin_memory and pin_memory_device (batches are
    in this process's memory, and copies to devices are asynchronous as they are),
    persistent_workers (a thread starts in microseconds), multiprocessing_context (workers are
    threads of this process under each of them), in_order=False (batches come in order always).
    A stream (IterableDataset) is read once, by all workers together, so no sample comes twice;
    get_worker_info() is None while it is read, and it need not share itself out.

    >>> for x, y in DataLoader(TensorDataset(xs, ys), batch_size=32, shuffle=True):
    ...     train(x, y)
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
        generator: Any = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
    ) -> None:
        _count("num_workers", num_workers, 0)
        if prefetch_factor is not None:
            _count("prefetch_factor", prefetch_factor, 1)
            if num_workers == 0:
                raise ArgumentError("prefetch_factor needs num_workers of at least 1")
        if persistent_workers and num_workers == 0:
            raise ArgumentError("persistent_workers option needs num_workers > 0")
        if multiprocessing_context is not None:
            check_context(multiprocessing_context, num_workers)
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
        self.multiprocessing_context = multiprocessing_context
        self.prefetch_factor = 2 if prefetch_factor is None else prefetch_factor
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

    def __iter__(self) -> Iterator[Any]:
        jobs = iter(self._jobs())
        if self.num_workers == 0:
            return map(self._maker(), jobs)
        return Prefetcher(
            jobs,
            self._maker(),
            self.num_workers,
            self.num_workers * self.prefetch_factor,
            self.timeout,
            self.dataset,
            self.worker_init_fn,
        )

    def __len__(self) -> int:
        if isinstance(self.dataset, IterableDataset):
            n = len(self.dataset)  # type: ignore[arg-type]
            if self.batch_size is None:
                return n
            return n // self.batch_size if self.drop_last else -(-n // self.batch_size)
        return len(self.sampler if self.batch_sampler is None else self.batch_sampler)  # type: ignore[arg-type]

    def _jobs(self) -> Iterable[Any]:
        """What each batch is made of: indices, an index, or the samples of a stream."""
        if not isinstance(self.dataset, IterableDataset):
            return self.sampler if self.batch_sampler is None else self.batch_sampler  # type: ignore[return-value]
        stream = iter(self.dataset)
        if self.batch_size is None:
            return stream
        return _chunks(stream, self.batch_size, self.drop_last)

    def _maker(self) -> Callable[[Any], Any]:
        """What turns a job into a batch. It must not hold the loader's iterator."""
        dataset: Any = self.dataset
        collate = self.collate_fn
        if isinstance(dataset, IterableDataset):
            return collate
        if self.batch_sampler is None:
            return lambda index: collate(dataset[index])
        whole = batch_getter(dataset) if collate is default_collate else None
        several = getattr(dataset, "__getitems__", None)

        def make(indices: list[int]) -> Any:
            batch = NotImplemented if whole is None else whole(indices)
            if batch is NotImplemented and several is not None:
                return collate(several(indices))
            if batch is NotImplemented:
                return collate([dataset[index] for index in indices])
            return batch

        return make


def _chunks(stream: Iterator[Any], size: int, drop_last: bool) -> Iterator[list[Any]]:
    while chunk := list(islice(stream, size)):
        if len(chunk) == size or not drop_last:
            yield chunk


def check_context(context: Any, num_workers: int) -> None:
    """Refuse what is no way to start processes, as PyTorch does."""
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
