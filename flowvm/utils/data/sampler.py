"""Samplers: the order in which a DataLoader reads.

Random samplers draw from the generator in `__iter__` itself, on the thread that starts the pass.
So the order depends on the seed and on nothing that runs at the same time.  They draw only the
numbers needed: the first part at once, each further one when the pass gets there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from itertools import chain
from typing import Generic, TypeVar

import numpy as np

from flowvm import ops
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError
from flowvm.ops import Generator, default_generator
from flowvm.ranks.world import rank as own_rank
from flowvm.ranks.world import world_size

# public: utils.data

T_co = TypeVar("T_co", covariant=True)

AT_ONCE = 1 << 16  # independent draws


def _drawn(
    count: int, most: int, draw: Callable[[int, Generator], list[int]], generator: Generator | None
) -> Iterator[int]:
    """Return `count` indices from calls of `draw(count, generator)`, of `most` each; the last call
    draws the rest.  The first call is made now, the others when they are needed.  All of them draw
    the numbers that they would draw now.
    """
    calls = -(-count // most)
    reserved = (default_generator if generator is None else generator).reserve(calls)
    first = draw(min(most, count), reserved)
    rest = (draw(min(most, count - k * most), reserved) for k in range(1, calls))
    return chain(first, chain.from_iterable(rest))


class Sampler(Generic[T_co]):
    """The base: a subclass defines __iter__ and, where it can, __len__.  `data_source` is taken.

    >>> class Backwards(flow.utils.data.Sampler):
    ...     def __init__(self, data):
    ...         self.data = data
    ...     def __iter__(self):
    ...         return iter(range(len(self.data))[::-1])
    >>> list(flow.utils.data.DataLoader([10, 20], sampler=Backwards([10, 20]), batch_size=None))
    [20, 10]
    """

    _has_watched_state = True  # captured code that uses it depends on its attributes

    def __init__(self, data_source: object = None) -> None:
        """Ignore the argument."""

    def __iter__(self) -> Iterator[T_co]:
        raise NotImplementedError(f"{type(self).__name__} must define __iter__")


class SequentialSampler(Sampler[int]):
    """0, 1, 2, ...

    >>> list(flow.utils.data.SequentialSampler([10, 20, 30]))
    [0, 1, 2]
    """

    def __init__(self, data_source: Sized) -> None:
        self.data_source = data_source

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.data_source)))

    def __len__(self) -> int:
        return len(self.data_source)


class RandomSampler(Sampler[int]):
    """A permutation or, with replacement, independent draws.

    >>> sorted(flow.utils.data.RandomSampler([10, 20, 30]))
    [0, 1, 2]
    """

    def __init__(
        self,
        data_source: Sized,
        replacement: bool = False,
        num_samples: int | None = None,
        generator: Generator | None = None,
    ) -> None:
        if num_samples is not None and (not isinstance(num_samples, int) or num_samples <= 0):
            raise ArgumentError(f"num_samples should be a positive integer, got {num_samples!r}")
        if num_samples is None and len(data_source) == 0:
            raise ArgumentError("RandomSampler: data_source is empty, there is nothing to draw")
        self.data_source = data_source
        self.replacement = replacement
        self.generator = generator
        self._num_samples = num_samples

    @property
    def num_samples(self) -> int:
        """The number of indices of one pass."""
        return len(self.data_source) if self._num_samples is None else self._num_samples

    def __iter__(self) -> Iterator[int]:
        n, requested = len(self.data_source), self.num_samples
        if n == 0:
            return iter(())
        if self.replacement:
            return _drawn(
                requested,
                AT_ONCE,
                lambda count, g: ops.randint(0, n, (count,), generator=g).tolist(),
                self.generator,
            )
        return _drawn(
            requested,
            n,
            lambda count, g: ops.randperm(n, generator=g)[:count].tolist(),
            self.generator,
        )

    def __len__(self) -> int:
        return self.num_samples


class SubsetRandomSampler(Sampler[int]):
    """The given indices in random order.

    >>> sorted(flow.utils.data.SubsetRandomSampler([4, 7, 9]))
    [4, 7, 9]
    """

    def __init__(self, indices: Sequence[int], generator: Generator | None = None) -> None:
        self.indices = indices
        self.generator = generator

    def __iter__(self) -> Iterator[int]:
        order = ops.randperm(len(self.indices), generator=self.generator).tolist()
        return (self.indices[i] for i in order)

    def __len__(self) -> int:
        return len(self.indices)


class WeightedRandomSampler(Sampler[int]):
    """Index i with probability in proportion to weights[i].

    >>> list(flow.utils.data.WeightedRandomSampler([0.0, 1.0], num_samples=3))
    [1, 1, 1]
    """

    def __init__(
        self,
        weights: Sequence[float] | Tensor,
        num_samples: int,
        replacement: bool = True,
        generator: Generator | None = None,
    ) -> None:
        if not isinstance(num_samples, int) or num_samples <= 0:
            raise ArgumentError(f"num_samples should be a positive integer, got {num_samples!r}")
        self.weights = np.array(
            weights.detach().numpy() if isinstance(weights, Tensor) else weights, dtype=np.float64
        )
        if self.weights.ndim != 1:
            raise ArgumentError(f"weights should be a 1-d sequence, got {self.weights.ndim}-d")
        if not isinstance(replacement, bool):
            raise ArgumentError(f"replacement should be a boolean, got {replacement!r}")
        if not (np.isfinite(self.weights).all() and (self.weights >= 0).all()):
            raise ArgumentError("weights must be finite and not negative")
        possible = np.count_nonzero(self.weights)
        if possible < (1 if replacement else num_samples):
            raise ArgumentError(
                f"cannot draw {num_samples} samples from {possible} non-zero weights"
                f"{'' if replacement else ' without replacement'}"
            )
        self.num_samples = num_samples
        self.replacement = replacement
        self.generator = generator

    def __iter__(self) -> Iterator[int]:
        weights = ops.tensor(self.weights)
        return _drawn(
            self.num_samples,
            AT_ONCE if self.replacement else self.num_samples,
            lambda n, g: ops.multinomial(weights, n, self.replacement, generator=g).tolist(),
            self.generator,
        )

    def __len__(self) -> int:
        return self.num_samples


class BatchSampler(Sampler[list[int]]):
    """Lists of batch_size indices from another sampler; the last may be shorter, or dropped.

    >>> from flowvm.utils.data import BatchSampler, SequentialSampler
    >>> list(BatchSampler(SequentialSampler(range(5)), batch_size=2))
    [[0, 1], [2, 3], [4]]
    """

    def __init__(self, sampler: Iterable[int], batch_size: int, drop_last: bool = False) -> None:
        if not isinstance(batch_size, int) or isinstance(batch_size, bool) or batch_size <= 0:
            raise ArgumentError(f"batch_size should be a positive integer, got {batch_size!r}")
        self.sampler = sampler
        self.batch_size = batch_size
        self.drop_last = bool(drop_last)

    def __iter__(self) -> Iterator[list[int]]:
        return self._batches(iter(self.sampler))  # draws now, not at the first next()

    def _batches(self, indices: Iterator[int]) -> Iterator[list[int]]:
        batch: list[int] = []
        for index in indices:
            batch.append(index)
            if len(batch) == self.batch_size:
                yield batch
                batch = []
        if batch and not self.drop_last:
            yield batch

    def __len__(self) -> int:
        n = len(self.sampler)  # type: ignore[arg-type]
        return n // self.batch_size if self.drop_last else -(-n // self.batch_size)


class DistributedSampler(Sampler[int]):
    """The share of one rank: every num_replicas-th index from `rank` on.  `seed` and `set_epoch`
    give the order of a shuffle: PyTorch's order, index by index.

    By default num_replicas and rank are the launched ranks'.  The shares are of one size: the first
    indices come again to fill them, or with drop_last the last are left out.

    >>> DistributedSampler = flow.utils.data.distributed.DistributedSampler
    >>> list(DistributedSampler(range(6), num_replicas=2, rank=1, shuffle=False))
    [1, 3, 5]
    """

    def __init__(
        self,
        dataset: Sized,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        self.dataset = dataset
        self.num_replicas = world_size() if num_replicas is None else num_replicas
        self.rank = own_rank() if rank is None else rank
        if not 0 <= self.rank < self.num_replicas:
            raise ArgumentError(
                f"Invalid rank {self.rank}, rank should be in the interval "
                f"[0, {self.num_replicas - 1}]"
            )
        self.epoch, self.shuffle, self.seed, self.drop_last = 0, shuffle, seed, drop_last
        n = len(dataset)
        whole = n // self.num_replicas
        self.num_samples = whole if drop_last or n % self.num_replicas == 0 else whole + 1
        self.total_size = self.num_samples * self.num_replicas

    def __iter__(self) -> Iterator[int]:
        n = len(self.dataset)
        if not n:
            return iter(())
        order = _pytorch_permutation(n, self.seed + self.epoch) if self.shuffle else range(n)
        places = range(self.rank, self.total_size, self.num_replicas)
        return (order[place % n] for place in places)  # past the end they come again

    def __len__(self) -> int:
        return self.num_samples

    def set_epoch(self, epoch: int) -> None:
        """Give the next pass another order."""
        self.epoch = epoch


def _pytorch_permutation(n: int, seed: int) -> list[int]:
    """Return `torch.randperm(n, generator=torch.Generator().manual_seed(seed))`.  Each number of
    the Mersenne Twister says which element comes to the next place.
    """
    order = list(range(n))
    drawn = np.random.RandomState(seed & 0xFFFFFFFF).randint(0, 1 << 32, max(0, n - 1), np.uint32)
    for place, number in enumerate(drawn.tolist()):
        other = place + number % (n - place)
        order[place], order[other] = order[other], order[place]
    return order
