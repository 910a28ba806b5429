"""Making tensors: from Python data, from NumPy, and by formula.

Data that comes from Python is copied, except by `from_numpy`, which shares memory where it can.
Shapes and values are checked, and memory that no machine of this size has is refused, when the call
is made.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from flowvm import dtype as dtypes
from flowvm.device import Device, as_device
from flowvm.dtype import DType, as_dtype, float16, float32, float64, get_default_dtype, int64
from flowvm.errors import ArgumentError, ArgumentTypeError
from flowvm.meta import Size, TensorMeta, as_shape
from flowvm.ops.core import cast
from flowvm.ops.recording import empty_of, filled_of
from flowvm.ops.registry import GRAIN, Launch, Sample, op, samples
from flowvm.reading import adopt_array
from flowvm.tensor import Tensor, method

__all__ = [
    "arange",
    "as_tensor",
    "empty",
    "empty_like",
    "from_numpy",
    "full",
    "full_like",
    "linspace",
    "logspace",
    "ones",
    "ones_like",
    "scalar_tensor",
    "tensor",
    "zeros",
    "zeros_like",
]

Array = Any
Scalar = bool | int | float


# --- kernels ----------------------------------------------------------------------------------


def _count_body(out: Array, start: int, step: int, lo: int, hi: int) -> None:
    for i in range(lo, hi):
        out[i] = start + i * step


@op(" -> out", name="arange", scalars="start: int, step: int")
def _count(n: int) -> Launch:
    return Launch((TensorMeta.of((n,), int64),), _count_body, units=n, grain=GRAIN)


def _ramp_body(
    out: Array, middle: int, start: float, end: float, step: float, lo: int, hi: int
) -> None:
    last = len(out) - 1
    for i in range(lo, hi):
        out[i] = start + i * step if i < middle else end - (last - i) * step


@op(" -> out", name="linspace", scalars="start: float, end: float, step: float")
def _ramp(n: int, middle: int, dtype: DType) -> Launch:
    return Launch((TensorMeta.of((n,), dtype),), _ramp_body, consts=(middle,), units=n, grain=GRAIN)


# --- arguments --------------------------------------------------------------------------------


def _finished(t: Tensor, requires_grad: bool) -> Tensor:
    if requires_grad:
        t.requires_grad_(True)
    return t


def size_of(size: Sequence[Any]) -> Size:
    """The shape in a call's positional arguments: ints, or one tuple or list of them."""
    if len(size) == 1 and not isinstance(size[0], (int, np.integer)):
        return as_shape(size[0])
    return as_shape(size)


def _dtype(dtype: Any, default: DType | None = None) -> DType:
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
    as_device(device)
    if dtype is None:
        kind = fill_value.item() if isinstance(fill_value, Tensor) else fill_value
        whole = isinstance(kind, (int, np.integer))
        default = dtypes.bool_ if isinstance(kind, (bool, np.bool_)) else int64 if whole else None
        dtype = _dtype(None, default)
    dtype = as_dtype(dtype)
    out = filled_of(TensorMeta.of(as_shape(size), dtype), number_for(fill_value, dtype))
    return _finished(out, requires_grad)


def zeros(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A tensor of shape `size` (ints, or one tuple of them) filled with 0."""
    as_device(device)
    return _finished(filled_of(TensorMeta.of(size_of(size), _dtype(dtype)), 0), requires_grad)


def ones(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A tensor of shape `size` (ints, or one tuple of them) filled with 1."""
    as_device(device)
    return _finished(filled_of(TensorMeta.of(size_of(size), _dtype(dtype)), 1), requires_grad)


def empty(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A tensor of shape `size` (ints, or one tuple of them) whose values are whatever was in
    memory.
    """
    as_device(device)
    return _finished(empty_of(TensorMeta.of(size_of(size), _dtype(dtype))), requires_grad)


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
        dtype=_dtype(dtype, meta.dtype),
        device=device,
        requires_grad=requires_grad,
    )


def zeros_like(
    input: Tensor, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """A tensor of `input`'s shape, and dtype unless one is given, filled with 0."""
    meta = _meta("zeros_like", input)
    return zeros(
        meta.shape, dtype=_dtype(dtype, meta.dtype), device=device, requires_grad=requires_grad
    )


def ones_like(
    input: Tensor, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """A tensor of `input`'s shape, and dtype unless one is given, filled with 1."""
    meta = _meta("ones_like", input)
    return ones(
        meta.shape, dtype=_dtype(dtype, meta.dtype), device=device, requires_grad=requires_grad
    )


def empty_like(
    input: Tensor, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """A tensor of `input`'s shape, and dtype unless one is given, with whatever values."""
    meta = _meta("empty_like", input)
    return empty(
        meta.shape, dtype=_dtype(dtype, meta.dtype), device=device, requires_grad=requires_grad
    )


def _meta(name: str, input: Any) -> TensorMeta:
    if not isinstance(input, Tensor):
        raise ArgumentTypeError(f"{name}: input must be a Tensor, got {type(input).__name__}")
    return input._meta


# --- from data --------------------------------------------------------------------------------


def tensor(
    data: Any,
    *,
    dtype: Any = None,
    device: Device | str | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """A tensor with a copy of `data`: numbers in nested lists or tuples, a NumPy array, or a
    tensor.

    Without `dtype`: floats take the default dtype, ints int64, bools bool; NumPy arrays and tensors
    keep theirs. ArgumentError for ragged lists and for ints that do not fit; ArgumentTypeError for
    what are no numbers.

    >>> flow.tensor([[1.0, 2.0], [3.0, 4.0]])
    tensor([[1., 2.],
            [3., 4.]])
    """
    as_device(device)
    if isinstance(data, Tensor):
        chosen = _dtype(dtype, data._meta.dtype)
        copied: Tensor = data.detach().to(chosen, copy=True)
        return _finished(copied, requires_grad)
    array = _array(data, None if dtype is None else as_dtype(dtype))
    return _finished(adopt_array(array), requires_grad)


def _array(data: Any, dtype: DType | None) -> np.ndarray[Any, Any]:
    """`data` as a fresh C-contiguous array of `dtype`, or of the dtype that it means."""
    if isinstance(data, (np.ndarray, np.generic)):
        kept = dtypes.from_numpy(data.dtype) if dtype is None else dtype
        return np.array(data, kept.numpy, order="C", copy=True)
    plain = _plain(data)
    try:
        array = np.array(plain)
    except ValueError:
        raise ArgumentError(
            "tensor: the nested lists are ragged: every list at one depth must have the same length"
        ) from None
    if array.dtype.kind not in "biuf":
        if array.dtype == object and all(isinstance(v, int) for v in array.ravel().tolist()):
            raise ArgumentError("tensor: an integer does not fit int64")
        raise ArgumentTypeError(
            f"tensor: data must be numbers in nested lists, an array or a tensor, "
            f"got {_example(plain)}"
        )
    if dtype is None:
        dtype = _meant(array, plain)
    if array.dtype.kind in "iu" and dtype.category == 1 and array.size:
        limits = np.iinfo(dtype.numpy)
        for extreme in (int(array.min()), int(array.max())):
            if not limits.min <= extreme <= limits.max:
                raise ArgumentError(
                    f"tensor: {extreme} does not fit {dtype.name}, "
                    f"which goes from {limits.min} to {limits.max}"
                )
    with np.errstate(over="ignore", invalid="ignore"):
        return np.array(array, dtype.numpy, order="C", copy=True)


def _plain(data: Any) -> Any:
    """`data` with the tensors in it as numbers or lists."""
    if isinstance(data, (list, tuple)):
        return [_plain(d) for d in data]
    return data.tolist() if isinstance(data, Tensor) else data


def _first(data: Any) -> Any:
    while isinstance(data, (list, tuple)) and data:
        data = data[0]
    return data


def _example(data: Any) -> str:
    first = _first(data)
    return f"{type(first).__name__} ({str(first)[:40]!r})"


def _meant(array: np.ndarray[Any, Any], plain: Any) -> DType:
    if array.dtype == np.float64 and not isinstance(_first(plain), (np.float64, np.ndarray)):
        return get_default_dtype()
    return dtypes.from_numpy(array.dtype)


def scalar_tensor(
    s: Scalar, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """A 0-d tensor of the number `s`, of the default dtype unless one is given."""
    return full((), s, dtype=_dtype(dtype), device=device, requires_grad=requires_grad)


def as_tensor(data: Any, dtype: Any = None, device: Any = None) -> Tensor:
    """`data` as a tensor: itself if it is one of that dtype, shared memory for a NumPy array, else
    a copy.
    """
    if isinstance(data, Tensor):
        return data if dtype is None else data.to(as_dtype(dtype))
    if isinstance(data, np.ndarray) and (dtype is None or data.dtype == as_dtype(dtype).numpy):
        as_device(device)
        return from_numpy(data)
    return tensor(data, dtype=dtype, device=device)


class _Lent:
    """An array whose memory a tensor uses: read-only until the storage is gone."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array
        array.flags.writeable = False

    def __del__(self) -> None:
        self.array.flags.writeable = True


def from_numpy(ndarray: np.ndarray[Any, Any]) -> Tensor:
    """A tensor on the memory of `ndarray`, without a copy where that is safe.

    The VM works behind Python's back, so a shared array must not change under it: `ndarray` becomes
    read-only until the last tensor on its memory is gone.  (Other NumPy views of that memory stay
    writeable; leave them alone.) In-place ops on the tensor do change the array.  It is copied if
    it is read-only already, has negative strides, is not aligned, or if two elements may share
    memory.
    """
    if not isinstance(ndarray, np.ndarray):
        raise ArgumentTypeError(f"from_numpy: expected a NumPy array, got {type(ndarray).__name__}")
    dtypes.from_numpy(ndarray.dtype.newbyteorder("="))
    if not ndarray.dtype.isnative or not _shareable(ndarray):
        return adopt_array(np.array(ndarray, ndarray.dtype.newbyteorder("="), order="C", copy=True))
    # a view of exactly this class and shape, so that the owner can be an ndarray subclass
    return adopt_array(ndarray, _Lent(ndarray))


def _shareable(array: np.ndarray[Any, Any]) -> bool:
    if not (array.flags.writeable and array.flags.aligned and array.size):
        return False
    if any(s % array.itemsize for s in array.strides):
        return False
    step = 0  # bytes that the dimensions so far span
    for stride, size in sorted(zip(array.strides, array.shape, strict=True)):
        if size != 1 and stride <= step:
            return False
        step += (size - 1) * stride
    return True


# --- by formula -------------------------------------------------------------------------------


def arange(
    start: Scalar,
    end: Scalar | None = None,
    step: Scalar = 1,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """The numbers from `start` (0 if only one bound is given) up to, not including, `end`, `step`
    apart.

    int64 when all are ints, else the default dtype.  ArgumentError if `step` is 0 or leads away
    from `end`.
    """
    as_device(device)
    if end is None:
        start, end = 0, start
    numbers = [_number("arange", n) for n in (start, end, step)]
    start, end, step = numbers
    whole = all(isinstance(n, int) for n in numbers)
    dtype = _dtype(dtype, int64 if whole else None)
    if step == 0:
        raise ArgumentError("arange: step must not be 0")
    if not all(math.isfinite(n) for n in numbers):
        raise ArgumentError(f"arange: bounds and step must be finite, got {start}, {end}, {step}")
    if (end - start) * (1 if step > 0 else -1) < 0:
        raise ArgumentError(
            f"arange: from {start} to {end} with step {step} never arrives; "
            f"the step's sign is wrong"
        )
    n = -((start - end) // step) if whole else math.ceil((end - start) / step)
    if not dtype.is_floating_point:
        counted: Tensor = _count(int(n), int(start), int(step))
        return counted if dtype is int64 else cast(counted, dtype)
    return _finished(_ramped(int(n), int(n), start, end, step, dtype), requires_grad)


def _number(name: str, value: Any) -> Any:
    value = value.item() if isinstance(value, (Tensor, np.generic)) else value
    if not isinstance(value, (int, float)):
        raise ArgumentTypeError(f"{name}: expected a number, got {type(value).__name__}")
    return int(value) if isinstance(value, bool) else value


def _ramped(n: int, middle: int, start: Any, end: Any, step: Any, dtype: DType) -> Tensor:
    compute = float32 if dtype is float16 else dtype
    out: Tensor = _ramp(n, middle, compute, float(start), float(end), float(step))
    return out if dtype is compute else cast(out, dtype)


def linspace(
    start: Scalar,
    end: Scalar,
    steps: int,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """`steps` numbers from `start` to `end`, both included, evenly apart."""
    as_device(device)
    steps = _steps("linspace", steps)
    first, last = _number("linspace", start), _number("linspace", end)
    dtype = _dtype(dtype)
    step = (last - first) / (steps - 1) if steps > 1 else 0.0
    middle = steps if steps == 1 else steps // 2
    compute = dtype if dtype.is_floating_point else float64
    out = _ramped(steps, middle, first, last, step, compute)
    return _finished(out.to(dtype), requires_grad)


def logspace(
    start: Scalar,
    end: Scalar,
    steps: int,
    base: float = 10.0,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """`base` to the power of `steps` evenly spaced exponents from `start` to `end`, both included.
    """
    exponents = linspace(start, end, steps, dtype=float64, device=device)
    return _finished((float(base) ** exponents).to(_dtype(dtype)), requires_grad)


def _steps(name: str, steps: Any) -> int:
    if not isinstance(steps, (int, np.integer)) or isinstance(steps, bool):
        raise ArgumentTypeError(f"{name}: steps must be an int, got {type(steps).__name__}")
    if steps < 0:
        raise ArgumentError(f"{name}: steps must not be negative, got {steps}")
    return int(steps)


# --- methods ----------------------------------------------------------------------------------


@method()
def new_tensor(
    x: Tensor, data: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """A tensor with a copy of `data`, in `x`'s dtype unless another is given."""
    return tensor(
        data, dtype=_dtype(dtype, x._meta.dtype), device=device, requires_grad=requires_grad
    )


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
    """A tensor of shape `size` filled with `fill_value`, in `x`'s dtype unless another is given."""
    dtype = _dtype(dtype, x._meta.dtype)
    return full(size, fill_value, dtype=dtype, device=device, requires_grad=requires_grad)


@method()
def new_zeros(x: Tensor, *size: Any, dtype: Any = None, **options: Any) -> Tensor:
    """A tensor of shape `size` filled with 0, in `x`'s dtype unless another is given."""
    return zeros(*size, dtype=_dtype(dtype, x._meta.dtype), **options)


@method()
def new_ones(x: Tensor, *size: Any, dtype: Any = None, **options: Any) -> Tensor:
    """A tensor of shape `size` filled with 1, in `x`'s dtype unless another is given."""
    return ones(*size, dtype=_dtype(dtype, x._meta.dtype), **options)


@method()
def new_empty(x: Tensor, *size: Any, dtype: Any = None, **options: Any) -> Tensor:
    """A tensor of shape `size` with whatever values, in `x`'s dtype unless another is given."""
    return empty(*size, dtype=_dtype(dtype, x._meta.dtype), **options)


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
        (lambda flow: flow.tensor([[1], [2, 3]]), ValueError),
        (lambda flow: flow.tensor("text"), TypeError),
        (lambda flow: flow.tensor([300], dtype=flow.uint8), ValueError),
        (lambda flow: flow.tensor([1 << 70]), ValueError),
        (lambda flow: flow.arange(0, 3, 0), ValueError),
        (lambda flow: flow.arange(3, 0), ValueError),
        (lambda flow: flow.linspace(0, 1, -1), ValueError),
        (lambda flow: flow.from_numpy([1.0]), TypeError),
    ),
)
