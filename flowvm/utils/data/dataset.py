"""Datasets, the input of a DataLoader.

A map-style Dataset has __getitem__ and __len__; an IterableDataset has __iter__. A dataset that can
make a whole batch faster than sample by sample also has `get_batch(indices)`, which must return
what collating the single samples would; TensorDataset does it with one indexing per tensor.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from flowvm import ops
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, ArgumentTypeError, AssertedError, OutOfRangeError

if TYPE_CHECKING:
    from flowvm.ops.random.generator import Generator

# public: utils.data

T_co = TypeVar("T_co", covariant=True)


class Dataset(Generic[T_co]):
    """Samples by index. A subclass defines __getitem__ and __len__.

    >>> class Squares(flow.utils.data.Dataset):
    ...     def __len__(self):
    ...         return 4
    ...     def __getitem__(self, i):
    ...         return i * i
    >>> list(flow.utils.data.DataLoader(Squares(), batch_size=2))
    [tensor([0, 1]), tensor([4, 9])]
    """

    def __getitem__(self, index: int) -> T_co:
        raise NotImplementedError(f"{type(self).__name__} must define __getitem__")

    def __add__(self, other: Dataset[T_co]) -> ConcatDataset[T_co]:
        return ConcatDataset([self, other])


class IterableDataset(Dataset[T_co]):
    """Samples in a stream. A subclass defines __iter__, called once for each pass.

    >>> class Count(flow.utils.data.IterableDataset):
    ...     def __iter__(self):
    ...         return iter(range(3))
    >>> list(flow.utils.data.DataLoader(Count(), batch_size=2))
    [tensor([0, 1]), tensor([2])]
    """

    def __iter__(self) -> Iterator[T_co]:
        raise NotImplementedError(f"{type(self).__name__} must define __iter__")

    def __add__(self, other: Dataset[T_co]) -> ChainDataset[T_co]:  # type: ignore[override]
        return ChainDataset([self, other])


class TensorDataset(Dataset[tuple[Tensor, ...]]):
    """Sample i is (tensor[i] for each tensor); all have the same first dimension.

    >>> flow.utils.data.TensorDataset(flow.arange(3), flow.arange(3) * 10)[2]
    (tensor(2), tensor(20))
    """

    def __init__(self, *tensors: Tensor) -> None:
        if not tensors:
            raise ArgumentError("TensorDataset needs at least one tensor")
        lengths = [tensor.shape[0] if tensor.ndim else -1 for tensor in tensors]
        if lengths[0] < 0 or len(set(lengths)) > 1:
            raise AssertedError(
                f"Size mismatch between tensors: first dimensions are {lengths} (-1: a 0-d tensor)"
            )
        self.tensors = tensors

    def __getitem__(self, index: object) -> tuple[Tensor, ...]:
        return tuple(tensor[index] for tensor in self.tensors)

    def get_batch(self, indices: Sequence[int]) -> list[Tensor]:
        """The samples of `indices`, stacked."""
        at = ops.tensor(list(indices))
        return [ops.index_select(tensor, 0, at) for tensor in self.tensors]

    def __len__(self) -> int:
        return int(self.tensors[0].shape[0])


class Subset(Dataset[T_co]):
    """The samples of `dataset` that `indices` name, in that order.

    >>> list(flow.utils.data.Subset([10, 20, 30], [2, 0]))
    [30, 10]
    """

    def __init__(self, dataset: Dataset[T_co], indices: Sequence[int]) -> None:
        self.dataset = dataset
        self.indices = indices

    def __getitem__(self, index: int) -> T_co:
        return self.dataset[self.indices[index]]

    def get_batch(self, indices: Sequence[int]) -> Any:
        """Return the batch that the underlying dataset makes, or NotImplemented if it makes
        none.
        """
        whole = batch_getter(self.dataset)
        return (
            NotImplemented if whole is None else whole([self.indices[index] for index in indices])
        )

    def __len__(self) -> int:
        return len(self.indices)


class ConcatDataset(Dataset[T_co]):
    """The samples of several datasets, one dataset after the other.

    >>> both = flow.utils.data.ConcatDataset([[10, 20], [30]])
    >>> len(both), both[2]
    (3, 30)
    """

    def __init__(self, datasets: Iterable[Dataset[T_co]]) -> None:
        self.datasets = list(datasets)
        if not self.datasets:
            raise AssertedError("datasets should not be an empty iterable")
        for dataset in self.datasets:
            if isinstance(dataset, IterableDataset):
                raise ArgumentError("ConcatDataset does not support IterableDataset")
        self.cumulative_sizes = list(accumulate(len(d) for d in self.datasets))  # type: ignore[arg-type]

    def __getitem__(self, index: int) -> T_co:
        if not -len(self) <= index < len(self):
            raise OutOfRangeError(f"index {index} is out of range for {len(self)} samples")
        index %= len(self)
        which = bisect_right(self.cumulative_sizes, index)
        return self.datasets[which][index - (self.cumulative_sizes[which - 1] if which else 0)]

    def __len__(self) -> int:
        return self.cumulative_sizes[-1]


class ChainDataset(IterableDataset[T_co]):
    """The samples of several streams, one stream after the other.

    >>> class Count(flow.utils.data.IterableDataset):
    ...     def __iter__(self):
    ...         return iter(range(3))
    >>> list(flow.utils.data.ChainDataset([Count(), Count()]))
    [0, 1, 2, 0, 1, 2]
    """

    def __init__(self, datasets: Iterable[Dataset[T_co]]) -> None:
        self.datasets = datasets

    def __iter__(self) -> Iterator[T_co]:
        for dataset in self.datasets:
            if not isinstance(dataset, IterableDataset):
                raise ArgumentTypeError("ChainDataset only supports IterableDataset")
            yield from dataset

    def __len__(self) -> int:
        sized: Any = self.datasets
        return sum(map(len, sized))


class StackDataset(Dataset[Any]):
    """Sample i is sample i of each dataset: a tuple for datasets given by position, a dict for
    datasets given by name.

    >>> flow.utils.data.StackDataset(x=[1, 2], y=[10, 20])[1]
    {'x': 2, 'y': 20}
    """

    def __init__(self, *args: Dataset[Any], **kwargs: Dataset[Any]) -> None:
        if bool(args) == bool(kwargs):
            raise ArgumentError(
                "StackDataset takes datasets by position, for tuples, or by name, for dicts; "
                f"got {len(args)} and {len(kwargs)}"
            )
        self.datasets: tuple[Dataset[Any], ...] | dict[str, Dataset[Any]] = args or kwargs
        sizes = {len(d) for d in (args or tuple(kwargs.values()))}  # type: ignore[arg-type]
        if len(sizes) > 1:
            raise ArgumentError(f"Size mismatch between datasets: {sorted(sizes)}")
        (self._length,) = sizes

    def __getitem__(self, index: int) -> Any:
        if isinstance(self.datasets, dict):
            return {name: dataset[index] for name, dataset in self.datasets.items()}
        return tuple(dataset[index] for dataset in self.datasets)

    def __len__(self) -> int:
        return self._length


# not public
def batch_getter(dataset: Any) -> Callable[[Sequence[int]], Any] | None:
    """dataset.get_batch, unless a subclass redefined __getitem__ and left get_batch behind."""
    for cls in type(dataset).__mro__:
        if "get_batch" in vars(cls):
            getter: Callable[[Sequence[int]], object] = dataset.get_batch
            return getter
        if "__getitem__" in vars(cls):
            return None
    return None


def random_split(
    dataset: Dataset[T_co],
    lengths: Sequence[int] | Sequence[float],
    generator: Generator | None = None,
) -> list[Subset[T_co]]:
    """Split a dataset at random into parts of the given lengths, or fractions that sum to 1.

    >>> a, b = flow.utils.data.random_split(range(10), [7, 3])
    >>> len(a), len(b), sorted([*a, *b]) == list(range(10))
    (7, 3, True)
    """
    total = len(dataset)  # type: ignore[arg-type]
    sizes = _sizes(total, lengths)
    order = ops.randperm(total, generator=generator).tolist()
    ends = list(accumulate(sizes))
    return [Subset(dataset, order[end - size : end]) for size, end in zip(sizes, ends, strict=True)]


def _sizes(total: int, lengths: Sequence[int] | Sequence[float]) -> list[int]:
    if math.isclose(sum(lengths), 1) and sum(lengths) <= 1 and any(0 < f < 1 for f in lengths):
        if any(not 0 <= fraction <= 1 for fraction in lengths):
            raise ArgumentError(f"random_split: fractions must be in [0, 1], got {list(lengths)}")
        sizes = [math.floor(total * fraction) for fraction in lengths]
        for i in range(total - sum(sizes)):  # the rest of rounding goes round robin
            sizes[i % len(sizes)] += 1
        return sizes
    if sum(lengths) != total or any(length != int(length) or length < 0 for length in lengths):
        raise ArgumentError(
            f"Sum of input lengths {list(lengths)} does not equal the length of the input "
            f"dataset, {total}"
        )
    return [int(length) for length in lengths]
