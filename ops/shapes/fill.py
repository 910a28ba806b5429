"""Tensors filled with one value, or with none: full, zeros, ones, empty and their kin.

Shapes and values are checked, and memory that no machine of this size has is refused, when the
call is made.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from flowvm.device import as_device
from flowvm.dtype import DType, as_dtype, bool_, get_default_dtype, int64
from flowvm.eager.tensor import Tensor, method
from flowvm.errors import ArgumentError, ArgumentTypeError
from flowvm.meta import Size, TensorMeta, as_shape
from flowvm.ops.declare.recording import empty_of, filled_of
from flowvm.ops.declare.registry import Sample, samples

__all__ = [
    "empty",
    "empty_like",
    "full",
    "full_like",
    "ones",
    "ones_like",
    "scalar_tensor",
    "zeros",
    "zeros_like",
]

Scalar = bool | int | float


# --- arguments --------------------------------------------------------------------------------


def finished(t: Tensor, requires_grad: bool) -> Tensor:
    if requires_grad:
        t.requires_grad_(True)
    return t


def size_of(size: Sequence[Any]) -> Size:
    """The shape in a call's positional arguments: ints, or one tuple or list of them."""
    if len(size) == 1 and not isinstance(size[0], (int, np.integer)):
        return as_shape(size[0])
    return as_shape(size)


def dtype_or(dtype: Any, default: DType | None = None) -> DType:
    if dtype is None:
        return get_default_dtype() if default is None else default
    return as_dtype(dtype)


def number_for(value: Any, dtype: DType) -> Scalar:
    """`value` as the Python number that a fill with `dtype` takes; ArgumentError if an integer
    dtype cannot hold it.
    """
    if isinstance(value, (Tensor, np.generic)):
        value = value.item()
    if not isinstance(value, (bool, int, float)):
        raise ArgumentTypeError(f"expected a number, got {type(value).__name__}")
    if dtype.is_floating_point:
        return float(value)
    if dtype.is_bool:
        return value != 0
    if not math.isfinite(value):
        raise ArgumentError(f"{value} is no {dtype.name}")
    whole, limits = int(value), np.iinfo(dtype.numpy)
    if not limits.min <= whole <= limits.max:
        raise ArgumentError(
            f"{value} does not fit {dtype.name}, which goes from {limits.min} to {limits.max}"
        )
    return whole


# --- filled with one value ----------------------------------------------------------------------


def full(
    size: Any,
    fill_value: Any,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """A tensor of shape `size` with every element `fill_value`.

    `dtype` defaults to bool, int64 or the default dtype, by the kind of `fill_value`.
    ArgumentError if an integer dtype cannot hold it.

    >>> flow.full((2, 2), 7)
    tensor([[7, 7],
            [7, 7]])
    """
    place = as_device(device)
    if dtype is None:
        kind = fill_value.item() if isinstance(fill_value, Tensor) else fill_value
        whole = isinstance(kind, (int, np.integer))
        default = bool_ if isinstance(kind, (bool, np.bool_)) else int64 if whole else None
        dtype = dtype_or(None, default)
    dtype = as_dtype(dtype)
    out = filled_of(TensorMeta.of(as_shape(size), dtype, place), number_for(fill_value, dtype))
    return finished(out, requires_grad)


def zeros(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A tensor of shape `size` (ints, or one tuple of them) filled with 0."""
    meta = TensorMeta.of(size_of(size), dtype_or(dtype), as_device(device))
    return finished(filled_of(meta, 0), requires_grad)


def ones(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A tensor of shape `size` (ints, or one tuple of them) filled with 1."""
    meta = TensorMeta.of(size_of(size), dtype_or(dtype), as_device(device))
    return finished(filled_of(meta, 1), requires_grad)


def empty(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A tensor of shape `size` (ints, or one tuple of them) whose values are whatever was in
    memory.
    """
    meta = TensorMeta.of(size_of(size), dtype_or(dtype), as_device(device))
    return finished(empty_of(meta), requires_grad)


def full_like(
    input: Tensor,
    fill_value: Any,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """A tensor of `input`'s shape, and dtype unless one is given, filled with `fill_value`."""
    meta = _meta("full_like", input)
    return full(
        meta.shape,
        fill_value,
        dtype=dtype_or(dtype, meta.dtype),
        device=meta.device if device is None else device,
        requires_grad=requires_grad,
    )


def zeros_like(
    input: Tensor, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """A tensor of `input`'s shape, and dtype unless one is given, filled with 0."""
    meta = _meta("zeros_like", input)
    kind, place = dtype_or(dtype, meta.dtype), meta.device if device is None else device
    return zeros(meta.shape, dtype=kind, device=place, requires_grad=requires_grad)


def ones_like(
    input: Tensor, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """A tensor of `input`'s shape, and dtype unless one is given, filled with 1."""
    meta = _meta("ones_like", input)
    kind, place = dtype_or(dtype, meta.dtype), meta.device if device is None else device
    return ones(meta.shape, dtype=kind, device=place, requires_grad=requires_grad)


def empty_like(
    input: Tensor, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """A tensor of `input`'s shape, and dtype unless one is given, with whatever values."""
    meta = _meta("empty_like", input)
    kind, place = dtype_or(dtype, meta.dtype), meta.device if device is None else device
    return empty(meta.shape, dtype=kind, device=place, requires_grad=requires_grad)


def _meta(name: str, input: Any) -> TensorMeta:
    if not isinstance(input, Tensor):
        raise ArgumentTypeError(f"{name}: input must be a Tensor, got {type(input).__name__}")
    return input._meta


def scalar_tensor(
    s: Scalar, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """A 0-d tensor of the number `s`, of the default dtype unless one is given."""
    return full((), s, dtype=dtype_or(dtype), device=device, requires_grad=requires_grad)


# --- methods ----------------------------------------------------------------------------------


@method()
def new_full(
    x: Tensor,
    size: Any,
    fill_value: Any,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """A tensor of shape `size` filled with `fill_value`, of `x`'s dtype and device unless
    others are given.
    """
    dtype, place = dtype_or(dtype, x._meta.dtype), x._meta.device if device is None else device
    return full(size, fill_value, dtype=dtype, device=place, requires_grad=requires_grad)


@method()
def new_zeros(
    x: Tensor, *size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """A tensor of shape `size` filled with 0, of `x`'s dtype and device unless others are
    given.
    """
    kind, place = dtype_or(dtype, x._meta.dtype), x._meta.device if device is None else device
    return zeros(*size, dtype=kind, device=place, requires_grad=requires_grad)


@method()
def new_ones(
    x: Tensor, *size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """A tensor of shape `size` filled with 1, of `x`'s dtype and device unless others are
    given.
    """
    kind, place = dtype_or(dtype, x._meta.dtype), x._meta.device if device is None else device
    return ones(*size, dtype=kind, device=place, requires_grad=requires_grad)


@method()
def new_empty(
    x: Tensor, *size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """A tensor of shape `size` with whatever values, of `x`'s dtype and device unless others are
    given.
    """
    kind, place = dtype_or(dtype, x._meta.dtype), x._meta.device if device is None else device
    return empty(*size, dtype=kind, device=place, requires_grad=requires_grad)


samples(
    zeros_like,
    lambda rng: [Sample((rng.standard_normal((2, 3)),)), Sample((rng.standard_normal(()),))],
    np.zeros_like,
    grad=False,
)
samples(
    ones_like,
    lambda rng: [Sample((rng.standard_normal((2, 0)),)), Sample((rng.standard_normal((3,)),))],
    np.ones_like,
    grad=False,
)
samples(
    full_like,
    lambda rng: [Sample((rng.standard_normal((2, 3)), 2.5))],
    np.full_like,
    grad=False,
    errors=(
        (lambda flow: flow.full((2,), 300, dtype=flow.uint8), ValueError),
        (lambda flow: flow.zeros(-1), ValueError),
        (lambda flow: flow.zeros(1 << 40, 1 << 10), MemoryError),
        (lambda flow: flow.zeros("a"), TypeError),
    ),
)
