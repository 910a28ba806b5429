"""Creation of arrays: from nothing, from numbers, from other libraries' arrays."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any

from flowvm import ops
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError
from flowvm.interop import protocols as interop
from flowvm.loading.listing import listing, own_names
from flowvm.meta.device import Device
from flowvm.meta.dtype import DType, get_default_dtype

__dir__ = listing(globals())

Shape = int | Sequence[int]
Where = Device | str | None


def _shape(shape: Shape) -> tuple[int, ...]:
    return (shape,) if isinstance(shape, int) else tuple(shape)


def arange(
    start: float,
    /,
    stop: float | None = None,
    step: float = 1,
    *,
    dtype: DType | None = None,
    device: Where = None,
) -> Tensor:
    """Numbers from `start` up to and without `stop`, `step` apart; with one, from 0 up to it.  None
    where the step leads away from `stop`.
    """
    if stop is None:
        start, stop = 0, start
    if (stop - start) * step < 0:  # PyTorch's arange turns that down
        whole = all(isinstance(n, Integral) for n in (start, stop, step))
        start = stop = start if whole else float(start)
    return ops.arange(start, stop, step, dtype=dtype, device=device)


def asarray(
    obj: object, /, *, dtype: DType | None = None, device: Where = None, copy: Any = None
) -> Tensor:
    """Return an array of a number, of nested sequences, or of an object with a buffer, DLPack or
    NumPy's interface.  Copy it if necessary (None), always (True) or never (False; ArgumentError if
    necessary).
    """
    if copy is False and isinstance(obj, (bool, int, float, complex, list, tuple)):
        raise ArgumentError("asarray: numbers and sequences have no memory to share; copy=None")
    return ops.asarray(obj, dtype=dtype, device=device, copy=copy)


def from_dlpack(x: object, /, *, device: Where = None, copy: bool | None = None) -> Tensor:
    """An array on the memory of another library's, which has `__dlpack__`."""
    tensor = interop.from_dlpack(x, copy=copy)
    return tensor if device is None else tensor.to(device)


def empty(shape: Shape, *, dtype: DType | None = None, device: Where = None) -> Tensor:
    """Return an array of this shape with arbitrary values."""
    return ops.empty(_shape(shape), dtype=dtype, device=device)


def empty_like(x: Tensor, /, *, dtype: DType | None = None, device: Where = None) -> Tensor:
    """Return an array of `x`'s shape and dtype with arbitrary values."""
    return ops.empty_like(x, dtype=dtype, device=device)


def zeros(shape: Shape, *, dtype: DType | None = None, device: Where = None) -> Tensor:
    """Zeros."""
    return ops.zeros(_shape(shape), dtype=dtype, device=device)


def zeros_like(x: Tensor, /, *, dtype: DType | None = None, device: Where = None) -> Tensor:
    """Return zeros of `x`'s shape and dtype."""
    return ops.zeros_like(x, dtype=dtype, device=device)


def ones(shape: Shape, *, dtype: DType | None = None, device: Where = None) -> Tensor:
    """Ones."""
    return ops.ones(_shape(shape), dtype=dtype, device=device)


def ones_like(x: Tensor, /, *, dtype: DType | None = None, device: Where = None) -> Tensor:
    """Return ones of `x`'s shape and dtype."""
    return ops.ones_like(x, dtype=dtype, device=device)


def full(
    shape: Shape, fill_value: complex, *, dtype: DType | None = None, device: Where = None
) -> Tensor:
    """Return an array of one number; without `dtype`, of the default dtype of its kind."""
    return ops.full(_shape(shape), fill_value, dtype=dtype, device=device)


def full_like(
    x: Tensor, /, fill_value: complex, *, dtype: DType | None = None, device: Where = None
) -> Tensor:
    """Return an array of one number, of `x`'s shape and dtype."""
    return ops.full_like(x, fill_value, dtype=dtype, device=device)


def eye(
    n_rows: int,
    n_cols: int | None = None,
    /,
    *,
    k: int = 0,
    dtype: DType | None = None,
    device: Where = None,
) -> Tensor:
    """A matrix with ones on its k-th diagonal (above the main one if positive), else zeros."""
    columns = n_rows if n_cols is None else n_cols
    down, right = ops.arange(n_rows, device=device), ops.arange(columns, device=device)
    k = min(max(k, -n_rows), columns)  # diagonals further away are empty, too
    on = down.unsqueeze(1) + k == right
    matrix: Tensor = on.to(get_default_dtype() if dtype is None else dtype)
    return matrix


def linspace(
    start: complex,
    stop: complex,
    /,
    num: int,
    *,
    dtype: DType | None = None,
    device: Where = None,
    endpoint: bool = True,
) -> Tensor:
    """`num` numbers, evenly spaced, from `start` to `stop`, which is the last one or, with
    endpoint=False, would be the next.
    """
    steps = num if endpoint else num + 1
    ends = start, stop
    if any(isinstance(end, complex) for end in ends):
        first, last = map(complex, ends)
        parts = [
            ops.linspace(a, b, steps, dtype=dtype.real if dtype else None, device=device)
            for a, b in ((first.real, last.real), (first.imag, last.imag))
        ]
        points = ops.complex(*parts)
    else:
        points = ops.linspace(*ends, steps, dtype=dtype, device=device)
    result: Tensor = points if endpoint else points[:num]
    return result


def meshgrid(*arrays: Tensor, indexing: str = "xy") -> list[Tensor]:
    """Return the coordinates of a grid: each array along its own dimension ("ij"). "xy" exchanges
    the first two dimensions.
    """
    return list(ops.meshgrid(*arrays, indexing=indexing)) if arrays else []


def tril(x: Tensor, /, *, k: int = 0) -> Tensor:
    """Matrices with zeros above their k-th diagonal."""
    return ops.tril(x, k)


def triu(x: Tensor, /, *, k: int = 0) -> Tensor:
    """Matrices with zeros below their k-th diagonal."""
    return ops.triu(x, k)


__all__ = own_names(globals())
