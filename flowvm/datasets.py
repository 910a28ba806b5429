"""Data that ships with flowvm, so that there is something real to train on without a download.

The digits are 1,797 handwritten 8x8 images from the UCI repository (E. Alpaydin and C. Kaynak,
1998, CC BY 4.0); see `flowvm/data/README.md`.  The split into train and test never changes from one
version to the next, so that accuracies can be compared.
"""

from pathlib import Path
from typing import Any

import numpy as np

from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError
from flowvm.loading.listing import listing, own_names
from flowvm.ops.shapes.create import from_numpy

__dir__ = listing(globals())

TEST_SIZE = 360


def digits_arrays(split: str = "all") -> "tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]":
    """The digits as NumPy arrays: images float32 [n, 1, 8, 8] from 0 to 1, labels int64 [n].

    `split` is "all" (1,797 images in UCI's order), "train" (1,437) or "test" (360).
    """
    with np.load(Path(__file__).parent / "data" / "digits.npz") as archive:
        images, labels = archive["images"], archive["labels"]
    rows = _rows(split, len(labels))
    scaled = images[rows, None].astype(np.float32) / np.float32(16)
    return scaled, labels[rows].astype(np.int64)


def load_digits(split: str = "all") -> "tuple[Tensor, Tensor]":
    """The digits as tensors: images float32 [n, 1, 8, 8] from 0 to 1, labels int64 [n].

    >>> images, labels = flow.datasets.load_digits("train")
    >>> images.shape
    flow.Size([1437, 1, 8, 8])
    """
    images, labels = digits_arrays(split)
    return from_numpy(images), from_numpy(labels)


def _rows(split: str, count: int) -> "np.ndarray[Any, Any]":
    if split == "all":
        return np.arange(count)
    order = np.random.RandomState(1998).permutation(count)  # NumPy promises this stream for good
    if split == "train":
        return order[TEST_SIZE:]
    if split == "test":
        return order[:TEST_SIZE]
    raise ArgumentError(f"split is 'all', 'train' or 'test', got {split!r}")


__all__ = own_names(globals())
