"""Reading of a pass, and the making of a batch: the same code in all kinds of workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, NamedTuple

from flowvm.utils.data.collate import default_collate
from flowvm.utils.data.dataset import IterableDataset, batch_getter


class Recipe(NamedTuple):
    """A dataset and how its samples become batches.  It is pickled for workers that are started
    anew, and holds nothing of the loader.
    """

    dataset: Any
    collate: Callable[[Any], object]
    batched: bool  # a job is several samples
    batch_size: int | None  # of a stream
    drop_last: bool

    @property
    def streams(self) -> bool:
        """True if the dataset itself yields the next sample."""
        return isinstance(self.dataset, IterableDataset)

    def stream(self) -> Iterator[Any]:
        """The jobs of a pass over an IterableDataset: its samples, one or several at a time."""
        samples: Iterator[object] = iter(self.dataset)
        if self.batch_size is None:
            return samples
        return _chunks(samples, self.batch_size, self.drop_last)

    def maker(self) -> Callable[[Any], Any]:
        """Return a function that makes a batch of a job; a job is a sample or an index, or a list
        of them.
        """
        dataset, collate = self.dataset, self.collate
        if self.streams:
            return collate
        if not self.batched:
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


def _chunks(stream: Iterator[object], size: int, drop_last: bool) -> Iterator[list[object]]:
    while chunk := list(islice(stream, size)):
        if len(chunk) == size or not drop_last:
            yield chunk
