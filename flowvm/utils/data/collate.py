"""From a list of samples to a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from flowvm import ops
from flowvm.dtype import float64
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, ArgumentTypeError


def default_collate(batch: Sequence[Any]) -> Any:
    """Stack tensors and arrays, make tensors of numbers, keep strings, go into tuples and dicts."""
    first = batch[0]
    if isinstance(first, Tensor):
        return ops.stack(list(batch), 0)
    if isinstance(first, (np.ndarray, np.generic)):
        return ops.from_numpy(np.stack([np.asarray(item) for item in batch]))
    if isinstance(first, float):
        return ops.tensor(list(batch), dtype=float64)
    if isinstance(first, int):
        return ops.tensor(list(batch))
    if isinstance(first, (str, bytes)):
        return list(batch)
    if isinstance(first, Mapping):
        return {key: default_collate([sample[key] for sample in batch]) for key in first}
    if isinstance(first, Sequence):
        return _transposed(batch, first)
    raise ArgumentTypeError(
        "default_collate: batch must contain tensors, numpy arrays, numbers, strings, dicts or "
        f"lists; found {type(first).__name__}. Pass collate_fn= to the DataLoader for others"
    )


def _transposed(batch: Sequence[Any], first: Sequence[Any]) -> Any:
    lengths = {len(sample) for sample in batch}
    if len(lengths) > 1:
        raise ArgumentError(
            f"each element in list of batch should be of equal size, got {sorted(lengths)}"
        )
    columns = [default_collate(column) for column in zip(*batch, strict=True)]
    return type(first)(*columns) if hasattr(first, "_fields") else columns


def default_convert(data: Any) -> Any:
    """Arrays as tensors, all else as it is; what batch_size=None does to a sample."""
    if isinstance(data, (np.ndarray, np.generic)):
        return ops.tensor(np.asarray(data))
    if isinstance(data, Mapping):
        return {key: default_convert(value) for key, value in data.items()}
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*(default_convert(item) for item in data))
    if isinstance(data, (tuple, list)):
        return type(data)(default_convert(item) for item in data)
    return data
