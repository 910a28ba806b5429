"""Collation: a batch from a list of samples."""

from __future__ import annotations

import re
from collections.abc import Mapping, MutableMapping, MutableSequence, Sequence
from copy import copy
from typing import Any

import numpy as np

from flowvm import ops
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, ArgumentTypeError
from flowvm.meta.arrays import Array
from flowvm.meta.dtype import float64

np_str_obj_array_pattern = re.compile("[SaUO]")  # dtypes that stay as they are, as in PyTorch


# public: utils.data
def default_collate(batch: Sequence[Any]) -> Any:
    """Combine samples to a batch: stack tensors and arrays, make tensors of numbers, keep strings,
    go into containers.

    Mappings, lists and named tuples become ones of their own kind, where those can be made so;
    tuples become lists, as in PyTorch.

    >>> flow.utils.data.default_collate([{"x": 1.0, "y": "a"}, {"x": 2.0, "y": "b"}])
    {'x': tensor([1., 2.], dtype=float64), 'y': ['a', 'b']}
    """
    first = batch[0]
    if isinstance(first, Tensor):
        return ops.stack(list(batch), 0)
    if isinstance(first, (np.ndarray, np.generic)) and not _of_text(first):
        return ops.from_numpy(np.stack([np.asarray(item) for item in batch]))
    if isinstance(first, float):
        return ops.tensor(list(batch), dtype=float64)
    if isinstance(first, int):
        return ops.tensor(list(batch))
    if isinstance(first, (str, bytes)):
        return batch
    if isinstance(first, Mapping):
        return _like(first, {key: default_collate([one[key] for one in batch]) for key in first})
    if isinstance(first, Sequence):
        return _transposed(batch, first)
    what = f"a NumPy array of {first.dtype}" if hasattr(first, "dtype") else type(first).__name__
    raise ArgumentTypeError(
        "default_collate: batch must contain tensors, numpy arrays, numbers, strings, dicts or "
        f"lists; found {what}. Pass collate_fn= to the DataLoader for others"
    )


def _transposed(batch: Sequence[Any], first: Sequence[object]) -> Any:
    lengths = {len(sample) for sample in batch}
    if len(lengths) > 1:
        raise ArgumentError(
            f"each element in list of batch should be of equal size, got {sorted(lengths)}"
        )
    columns = [default_collate(column) for column in zip(*batch, strict=True)]
    if hasattr(first, "_fields"):
        return type(first)(*columns)
    return columns if isinstance(first, tuple) else _like(first, columns)


# public: utils.data
def default_convert(data: object) -> Any:
    """Convert arrays to tensors and keep all else; batch_size=None does so to a sample.

    >>> flow.utils.data.default_convert({"x": np.array([1, 2]), "y": "a"})
    {'x': tensor([1, 2]), 'y': 'a'}
    """
    if isinstance(data, (np.ndarray, np.generic)):
        return data if _of_text(data) else ops.tensor(np.asarray(data))
    if isinstance(data, Mapping):
        return _like(data, {key: default_convert(value) for key, value in data.items()})
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*(default_convert(item) for item in data))
    if isinstance(data, tuple):
        return [default_convert(item) for item in data]
    if isinstance(data, Sequence) and not isinstance(data, (str, bytes)):
        return _like(data, [default_convert(item) for item in data])
    return data


def _of_text(array: Array | np.generic) -> bool:
    """Return True if an array has no numbers: strings, bytes, objects."""
    return array.dtype.kind in "SUO"


def _like(model: Any, plain: Any) -> Any:
    """Return the items of a dict or list in a container of `model`'s class, with its other state
    (the factory of a defaultdict).  Return the dict or list itself if the class does not allow
    that.
    """
    kind = type(model)
    if kind in (dict, list):
        return plain
    try:
        if not isinstance(model, (MutableMapping, MutableSequence)):
            return kind(plain)
        container = copy(model)
        for key, value in plain.items() if isinstance(plain, dict) else enumerate(plain):
            container[key] = value
    except TypeError:
        return plain
    return container
