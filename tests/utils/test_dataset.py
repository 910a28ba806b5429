"""Datasets, samplers and collation."""

from collections import OrderedDict, UserList, defaultdict, deque, namedtuple
from collections.abc import Iterator, Mapping
from itertools import islice
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

import flowvm as flow
from flowvm.utils import data
from flowvm.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
    default_convert,
    random_split,
)
from flowvm.utils.data.distributed import DistributedSampler


class Squares(Dataset[int]):
    def __init__(self, n: int = 10) -> None:
        self.n = n

    def __getitem__(self, index: int) -> int:
        return index * index

    def __len__(self) -> int:
        return self.n


def tensors(n: int = 10) -> TensorDataset:
    return TensorDataset(flow.arange(n), flow.arange(n * 2).reshape(n, 2))


def test_tensor_dataset_by_sample_and_by_batch() -> None:
    data = tensors()
    x, y = data[3]
    assert x.item() == 3
    assert y.tolist() == [6, 7]
    x, y = data.get_batch([4, 1])
    assert x.tolist() == [4, 1]
    assert y.tolist() == [[8, 9], [2, 3]]
    assert len(data) == 10


@pytest.mark.parametrize("make", [lambda: TensorDataset(), lambda: ConcatDataset([])])
def test_empty_ones_are_refused(make: Any) -> None:
    with pytest.raises(ValueError, match=r"at least one|empty"):
        make()


def test_tensors_of_different_lengths_are_refused() -> None:
    with pytest.raises(RuntimeError, match=r"first dimensions are \[3, 4\]"):
        TensorDataset(flow.ones(3), flow.ones(4))


def test_subset_and_concat() -> None:
    part = Subset(Squares(), [5, 2])
    assert [part[i] for i in range(len(part))] == [25, 4]
    both = Squares(3) + Squares(2)
    assert [both[i] for i in range(len(both))] == [0, 1, 4, 0, 1]
    assert both[-1] == 1
    with pytest.raises(IndexError, match="index 5 is out of range for 5 samples"):
        both[5]


def test_a_subclass_of_tensor_dataset_keeps_its_own_getitem() -> None:
    class Negative(TensorDataset):
        def __getitem__(self, index: int) -> Any:
            return -super().__getitem__(index)[0]

    data = Negative(flow.arange(4))
    assert next(iter(DataLoader(data, 4))).tolist() == [0, -1, -2, -3]
    assert next(iter(DataLoader(Subset(data, [3, 1]), 2))).tolist() == [-3, -1]


@pytest.mark.parametrize(
    ("lengths", "sizes"),
    [([6, 4], [6, 4]), ([0.5, 0.5], [5, 5]), ([0.25, 0.25, 0.5], [3, 2, 5]), ([10, 0], [10, 0])],
)
def test_random_split(lengths: list[Any], sizes: list[int]) -> None:
    parts = random_split(Squares(), lengths)
    assert [len(part) for part in parts] == sizes
    assert sorted(i for part in parts for i in part.indices) == list(range(10))


def test_random_split_checks_lengths_and_takes_a_generator() -> None:
    with pytest.raises(ValueError, match="does not equal the length of the input dataset, 10"):
        random_split(Squares(), [5, 6])
    first, second = (
        random_split(Squares(), [7, 3], generator=flow.Generator().manual_seed(3))[0].indices
        for _ in range(2)
    )
    assert first == second


def test_samplers() -> None:
    data = Squares(6)
    assert list(SequentialSampler(data)) == list(range(6))
    assert sorted(RandomSampler(data)) == list(range(6))
    assert len(list(RandomSampler(data, num_samples=14))) == 14
    drawn = list(RandomSampler(data, replacement=True, num_samples=50))
    assert len(drawn) == 50
    assert set(drawn) <= set(range(6))
    assert sorted(SubsetRandomSampler([7, 3, 9])) == [3, 7, 9]
    weighted = list(WeightedRandomSampler([0.0, 1.0, 0.0, 3.0], 200))
    assert set(weighted) == {1, 3}
    assert 110 < weighted.count(3) < 190
    assert sorted(WeightedRandomSampler([1.0, 1.0, 1.0], 3, replacement=False)) == [0, 1, 2]
    with pytest.raises(ValueError, match="nothing to draw"):
        RandomSampler(Squares(0))
    first = [next(iter(WeightedRandomSampler([1.0, 3.0], 1, False))) for _ in range(200)]
    assert 110 < first.count(1) < 190


@pytest.mark.parametrize(
    ("weights", "options", "message"),
    [
        ([[1.0]], {}, "1-d sequence, got 2-d"),
        ([1.0, -1.0], {}, "not negative"),
        ([0.0, 0.0], {}, "from 0 non-zero weights"),
        ([1.0, 0.0], {"replacement": False}, "2 samples from 1 non-zero weights without"),
    ],
)
def test_bad_weights(weights: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        WeightedRandomSampler(weights, 2, **options)


def test_batch_sampler() -> None:
    sampler = BatchSampler(SequentialSampler(Squares(5)), 2)
    assert list(sampler) == [[0, 1], [2, 3], [4]]
    assert len(sampler) == 3
    dropping = BatchSampler(range(5), 2, drop_last=True)
    assert list(dropping) == [[0, 1], [2, 3]]
    assert len(dropping) == 2


Point = namedtuple("Point", ["x", "y"])


def test_collate() -> None:
    batch = default_collate(
        [
            {"t": flow.ones(2), "n": 1, "f": 0.5, "s": "a", "p": Point(1, (2, np.zeros(3)))},
            {"t": flow.zeros(2), "n": 2, "f": 1.5, "s": "b", "p": Point(3, (4, np.ones(3)))},
        ]
    )
    assert batch["t"].tolist() == [[1.0, 1.0], [0.0, 0.0]]
    assert batch["n"].tolist() == [1, 2]
    assert batch["f"].dtype == flow.float64
    assert batch["s"] == ["a", "b"]
    assert isinstance(batch["p"], Point)
    assert batch["p"].x.tolist() == [1, 3]
    assert batch["p"].y[1].shape == (2, 3)
    assert default_collate([True, False]).dtype == flow.bool
    assert default_collate([np.float32(1), np.float32(2)]).dtype == flow.float32


class Strings(UserList[Any]):
    """A sequence of a class of its own."""


SAMPLES = [
    {"a": 1, "b": (2.0, "x")}, OrderedDict(a=1), defaultdict(list, a=True),
    MappingProxyType({"a": 1}), [1, 2.5], (1, 2), Point(1, "s"), Strings([1, 2]), range(3),
    "abc", b"x", np.float32(2), np.zeros((0, 2)), np.array("s"), np.array([{}], object), None,
    deque([1, 2]), {1, 2}, [], (),
]  # fmt: skip


def shown(value: Any) -> Any:
    """A batch in words that are the same for both libraries."""
    if hasattr(value, "tolist") and not isinstance(value, np.ndarray):
        return str(value.dtype).partition(".")[2], tuple(value.shape), value.tolist()
    if isinstance(value, Mapping):
        return type(value), {key: shown(value) for key, value in value.items()}
    if isinstance(value, (list, tuple, Strings)):
        return type(value), [shown(value) for value in value]
    return type(value), repr(value)


@pytest.mark.parametrize("sample", SAMPLES, ids=repr)
def test_collating_and_converting_as_pytorch_does(sample: Any) -> None:
    """Results have PyTorch's classes and dtypes, and errors come where PyTorch has them."""
    theirs = pytest.importorskip("torch.utils.data")
    for name, argument in (("default_collate", [sample, sample]), ("default_convert", sample)):
        try:
            expected = getattr(theirs, name)(argument)
        except Exception as error:
            with pytest.raises(type(error)):
                getattr(data, name)(argument)
        else:
            assert shown(getattr(data, name)(argument)) == shown(expected), name


def test_collate_refuses_what_it_cannot() -> None:
    with pytest.raises(TypeError, match=r"found object. Pass collate_fn="):
        default_collate([object()])
    with pytest.raises(ValueError, match=r"equal size, got \[1, 2\]"):
        default_collate([[1], [1, 2]])


def test_convert() -> None:
    result = default_convert({"a": np.ones(2), "b": [np.zeros(1), "x"], "c": Point(np.ones(1), 2)})
    assert isinstance(result["a"], flow.Tensor)
    assert isinstance(result["b"][0], flow.Tensor)
    assert result["b"][1] == "x"
    assert isinstance(result["c"].x, flow.Tensor)


def test_the_base_classes_say_what_to_define() -> None:
    with pytest.raises(NotImplementedError, match="must define __getitem__"):
        Dataset()[0]
    with pytest.raises(NotImplementedError, match="must define __iter__"):
        iter(IterableDataset())

    class Stream(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(range(3))

    with pytest.raises(ValueError, match="IterableDataset"):
        ConcatDataset([Stream()])


class Stream(IterableDataset[int]):
    """A few numbers."""

    def __init__(self, *numbers: int) -> None:
        self.numbers = numbers

    def __iter__(self) -> Any:
        return iter(self.numbers)

    def __len__(self) -> int:
        return len(self.numbers)


def test_streams_are_chained() -> None:
    chained = Stream(1, 2) + Stream(3)
    assert isinstance(chained, data.ChainDataset)
    assert list(chained) == [1, 2, 3]
    assert len(chained) == 3
    with pytest.raises(TypeError, match="only supports IterableDataset"):
        list(data.ChainDataset([[1]]))  # type: ignore[list-item]


def test_datasets_are_stacked() -> None:
    pairs = data.StackDataset([1, 2], ["a", "b"])  # type: ignore[arg-type]
    assert pairs[1] == (2, "b")
    named = data.StackDataset(x=[1, 2], y=["a", "b"])  # type: ignore[arg-type]
    assert (named[0], len(named)) == ({"x": 1, "y": "a"}, 2)
    with pytest.raises(ValueError, match="Size mismatch"):
        data.StackDataset([1], [1, 2])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="by position"):
        data.StackDataset()


def test_shares_of_ranks() -> None:
    numbers = list(range(7))
    assert data.distributed.DistributedSampler is data.DistributedSampler  # PyTorch's place
    shares = [list(data.DistributedSampler(numbers, 3, r, shuffle=False)) for r in range(3)]
    assert shares == [[0, 3, 6], [1, 4, 0], [2, 5, 1]]
    dropped = [
        list(data.DistributedSampler(numbers, 3, r, shuffle=False, drop_last=True))
        for r in range(3)
    ]
    assert dropped == [[0, 3], [1, 4], [2, 5]]
    sampler = data.DistributedSampler(numbers)
    first = list(sampler)
    sampler.set_epoch(1)
    assert sorted(first) == numbers == sorted(sampler)
    assert list(sampler) != first
    with pytest.raises(ValueError, match="Invalid rank 3"):
        data.DistributedSampler(numbers, 3, 3)


def test_pytorchs_arguments_of_loaders() -> None:
    class Several(Dataset[int]):
        def __len__(self) -> int:
            return 4

        def __getitems__(self, indices: list[int]) -> list[int]:
            return [10 * i for i in indices]

    loader = data.DataLoader(
        Several(), 2, num_workers=1, pin_memory=True, persistent_workers=True, in_order=False,
        multiprocessing_context="fork",
    )  # fmt: skip
    assert [batch.tolist() for batch in loader] == [[0, 10], [20, 30]]
    for options, message in (
        ({"persistent_workers": True}, "num_workers > 0"),
        ({"multiprocessing_context": "fork"}, "num_workers > 0"),
        ({"multiprocessing_context": "threads", "num_workers": 1}, "valid start method"),
    ):
        with pytest.raises(ValueError, match=message):
            data.DataLoader(Several(), **options)  # type: ignore[arg-type]


# --- as much as is asked for ----------------------------------------------------------------------

HUGE = 10**10
LAZY = {
    "with replacement": lambda g: RandomSampler(range(100), True, HUGE, g),
    "again and again": lambda g: RandomSampler(range(7), False, HUGE, g),
    "weighted": lambda g: WeightedRandomSampler([1.0, 2.0, 3.0], HUGE, True, g),
    "in batches": lambda g: BatchSampler(RandomSampler(range(100), True, HUGE, g), 4),
    "of a rank": lambda g: DistributedSampler(range(HUGE), 3, 1, shuffle=False),
    "in order": lambda g: SequentialSampler(range(HUGE)),
}


@pytest.mark.parametrize("kind", LAZY)
def test_samplers_draw_what_is_asked_for(kind):
    sampler = LAZY[kind](flow.Generator())
    assert len(list(islice(sampler, 70_000))) == 70_000
    how = "batch_sampler" if isinstance(sampler, BatchSampler) else "sampler"
    loader = DataLoader(range(HUGE), **{how: sampler})
    assert next(iter(loader)) is not None


def test_what_is_drawn_later_is_what_would_be_drawn_now():
    g = flow.Generator().manual_seed(3)
    early = [*RandomSampler(range(9), True, 150_000, g), *RandomSampler(range(9), False, 50, g)]
    after = flow.rand(3, generator=g).tolist()
    g.manual_seed(3)
    first = iter(RandomSampler(range(9), True, 150_000, g))
    head = list(islice(first, 10))
    second = iter(RandomSampler(range(9), False, 50, g))
    assert flow.rand(3, generator=g).tolist() == after
    tail = list(second)
    assert [*head, *first, *tail] == early


def test_short_passes_have_the_numbers_of_one_call():
    g = flow.Generator().manual_seed(3)
    drawn = list(RandomSampler(range(1000), True, 500, g))
    weighted = list(WeightedRandomSampler([1.0, 2.0], 500, True, g))
    g.manual_seed(3)
    assert drawn == flow.randint(0, 1000, (500,), generator=g).tolist()
    weights = flow.tensor([1.0, 2.0], dtype=flow.float64)
    assert weighted == flow.multinomial(weights, 500, True, generator=g).tolist()
