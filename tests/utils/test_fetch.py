"""A recipe of batches: indices, samples and streams, by whatever a dataset can do."""

import numpy as np
import pytest

import flowvm as flow
from flowvm.utils.data import IterableDataset, TensorDataset
from flowvm.utils.data.collate import default_collate
from flowvm.utils.data.fetch import Recipe


class Counted(IterableDataset):
    def __iter__(self):
        return iter(range(7))


class Several(list):
    """A dataset that gives several samples at a time."""

    asked = 0

    def __getitems__(self, indices):
        self.asked += 1
        return [self[k] for k in indices]


def recipe(dataset, collate=list, batched=True, size=None, drop=False):
    return Recipe(dataset, collate, batched, size, drop)


@pytest.mark.parametrize(
    ("size", "drop", "jobs"),
    [
        (None, False, [0, 1, 2, 3, 4, 5, 6]),
        (3, False, [[0, 1, 2], [3, 4, 5], [6]]),
        (3, True, [[0, 1, 2], [3, 4, 5]]),
        (7, True, [[0, 1, 2, 3, 4, 5, 6]]),
        (9, True, []),
    ],
)
def test_streams_are_cut(size, drop, jobs):
    one = recipe(Counted(), size=size, drop=drop)
    assert one.streams
    assert list(one.stream()) == jobs
    assert one.maker() is list  # a job has its samples already


def test_batches_are_of_samples_or_of_one():
    assert recipe("abcdef").maker()([2, 0]) == ["c", "a"]
    assert not recipe("abc").streams
    assert recipe("abc", str.upper, batched=False).maker()(1) == "B"


def test_datasets_give_several_at_a_time():
    data = Several("abcdef")
    assert recipe(data).maker()([4, 1]) == ["e", "b"]
    assert data.asked == 1


def test_tensors_are_taken_by_one_gather():
    x, y = flow.arange(12.0).reshape(4, 3), flow.arange(4)
    data = TensorDataset(x, y)
    ours = recipe(data, default_collate).maker()([3, 1])
    expected = default_collate([data[3], data[1]])
    for a, b in zip(ours, expected, strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())
    mine = recipe(data, lambda samples: len(samples)).maker()
    assert mine([0, 1, 2]) == 3  # another collate gets the samples


def test_errors_of_a_dataset_are_its_own():
    with pytest.raises(IndexError):
        recipe([1, 2]).maker()([5])
