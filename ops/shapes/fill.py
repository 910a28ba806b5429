"""Tensors filled with one value, or with none: full, zeros, ones, empty and their kin.

Shapes and values are checked, and memory that no machine of this size has is refused, when the
call is made.  The keywords of PyTorch that have no meaning here (`layout`, which is `flow.strided`,
`pin_memory`, `memory_format`) are taken by all of them, and `size=` where sizes are positional.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from flowvm.eager.global_calls import elsewhere, placed_like, takes_placement
from flowvm.eager.live import Live
from flowvm.eager.native.trace_cache import steady
from flowvm.eager.tensor import Tensor, alias, method
from flowvm.errors import ArgumentError, ArgumentTypeError
from flowvm.meta.device import as_device
from flowvm.meta.dtype import DType, as_dtype, bool_, complex_of, get_default_dtype, int64
from flowvm.meta.formats import accept, format_stride
from flowvm.meta.global_meta import GlobalMeta
from flowvm.meta.meta import Size, TensorMeta, as_shape
from flowvm.ops.declare.composite import empty_of, filled_of
from flowvm.ops.declare.outputs import dtype_for, written
from flowvm.ops.declare.registry import Sample, samples

if TYPE_CHECKING:
    from flowvm.meta.device import DeviceLike
    from flowvm.meta.dtype import DTypeLike


Scalar = bool | int | float | complex


# --- arguments --------------------------------------------------------------------------------


def finished(
    t: Tensor, requires_grad: bool, out: Tensor | None = None, name: str = "out"
) -> Tensor:
    """A new tensor as it is given back: in `out` if there is one, a leaf if one is asked for."""
    if out is not None:
        t = written(name, out, t)
    if requires_grad:
        t.requires_grad_(True)
    return t


def size_of(size: Sequence[object], name: str = "", options: dict[str, Any] | None = None) -> Size:
    """The shape in a call's arguments: ints, one tuple or list of them, or the keyword `size`.

    ArgumentTypeError where there is none; the call is `name`'s.
    """
    if options:
        if "size" in options:
            if size:
                raise ArgumentTypeError(f"{name}() got two sizes, {size} and {options['size']!r}")
            size = (options.pop("size"),)
        accept(name, options)
    if not size and name:
        raise ArgumentTypeError(
            f"{name}: a size is needed, ints or a tuple of them; () is that of one element"
        )
    if len(size) == 1 and not isinstance(size[0], (int, np.integer)):
        return as_shape(size[0])
    return as_shape(size)


def dtype_or(dtype: object, default: DType | None = None) -> DType:
    if dtype is None:
        return get_default_dtype() if default is None else default
    return as_dtype(dtype)


def number_for(value: object, dtype: DType) -> Scalar:
    """`value` as the Python number that a fill with `dtype` takes; ArgumentError if an integer
    dtype cannot hold it.
    """
    if isinstance(value, (Tensor, np.generic)):
        value = value.item()
    elif isinstance(value, Live) and dtype.is_floating_point:
        return value  # type: ignore[return-value]
    if not isinstance(value, (bool, int, float, complex)):
        raise ArgumentTypeError(f"expected a number, got {type(value).__name__}")
    if dtype.is_complex:
        number = complex(value)
        plain = number.imag == 0 and math.copysign(1, number.imag) > 0
        return number.real if plain else number
    if isinstance(value, complex):
        raise ArgumentTypeError(f"{value} is complex and cannot fill a {dtype.name} tensor")
    if dtype.is_floating_point:
        return float(value)
    if dtype.is_bool:
        return value != 0
    if not math.isfinite(value):
        raise ArgumentError(f"{value} cannot be a {dtype.name}")
    whole, limits = int(value), np.iinfo(dtype.numpy)
    if not limits.min <= whole <= limits.max:
        raise ArgumentError(
            f"{value} does not fit {dtype.name}, which goes from {limits.min} to {limits.max}"
        )
    # an instruction has words of 64 bits: int64's, which a uint64 has in common
    return whole - (1 << 64) if whole >= 1 << 63 else whole


def filled_with(meta: TensorMeta, number: Scalar) -> Tensor:
    """Return a new dense tensor of `meta`'s shape; every element is `number`, from `number_for`."""
    if isinstance(number, complex):  # no instruction has a word for it
        whole: Tensor = filled_of(meta, 0)
        return whole.fill_(number)
    return filled_of(meta, number)


# --- filled with one value ----------------------------------------------------------------------


# public: flow
@partial(steady, elsewhere=elsewhere)
@takes_placement
def full(
    size: Any,
    fill_value: Any,
    *,
    out: Tensor | None = None,
    dtype: DTypeLike | None = None,
    device: DeviceLike | None = None,
    requires_grad: bool = False,
    **options: object,
) -> Tensor:
    """A tensor of shape `size` with every element `fill_value`.

    `dtype` defaults to bool, int64 or the default dtype, by the kind of `fill_value`.
    ArgumentError if an integer dtype cannot hold it.

    >>> flow.full((2, 2), 7)
    tensor([[7, 7],
            [7, 7]])
    """
    accept("full", options)
    place = as_device(device)
    dtype = dtype_for("full", out, dtype)
    if dtype is None:
        kind = fill_value.item() if isinstance(fill_value, Tensor) else fill_value
        whole = isinstance(kind, (int, np.integer))
        default = bool_ if isinstance(kind, (bool, np.bool_)) else int64 if whole else None
        if isinstance(kind, (complex, np.complexfloating)):
            default = complex_of(get_default_dtype())
        dtype = dtype_or(None, default)
    dtype = as_dtype(dtype)
    result = filled_with(TensorMeta.of(as_shape(size), dtype, place), number_for(fill_value, dtype))
    return finished(result, requires_grad, out, "full")


# public: flow
@partial(steady, elsewhere=elsewhere)
@takes_placement
def zeros(
    *size: object,
    out: Tensor | None = None,
    dtype: DTypeLike | None = None,
    device: DeviceLike | None = None,
    requires_grad: bool = False,
    **options: object,
) -> Tensor:
    """A tensor of shape `size` (ints, or one tuple of them) filled with 0.

    >>> flow.zeros(2, 3)
    tensor([[0., 0., 0.],
            [0., 0., 0.]])
    """
    shape, kind = size_of(size, "zeros", options), dtype_for("zeros", out, dtype)
    meta = TensorMeta.of(shape, dtype_or(kind), as_device(device))
    return finished(filled_of(meta, 0), requires_grad, out, "zeros")


# public: flow
@partial(steady, elsewhere=elsewhere)
@takes_placement
def ones(
    *size: object,
    out: Tensor | None = None,
    dtype: DTypeLike | None = None,
    device: DeviceLike | None = None,
    requires_grad: bool = False,
    **options: object,
) -> Tensor:
    """A tensor of shape `size` (ints, or one tuple of them) filled with 1.

    >>> flow.ones(2, 3)
    tensor([[1., 1., 1.],
            [1., 1., 1.]])
    """
    shape, kind = size_of(size, "ones", options), dtype_for("ones", out, dtype)
    meta = TensorMeta.of(shape, dtype_or(kind), as_device(device))
    return finished(filled_of(meta, 1), requires_grad, out, "ones")


# public: flow
@partial(steady, elsewhere=elsewhere)
@takes_placement
def empty(
    *size: object,
    out: Tensor | None = None,
    dtype: DTypeLike | None = None,
    device: DeviceLike | None = None,
    requires_grad: bool = False,
    **options: object,
) -> Tensor:
    """A tensor of shape `size` (ints, or one tuple of them) whose values are whatever was in
    memory.

    >>> flow.empty(2, 3).shape
    flow.Size([2, 3])
    """
    shape, kind = size_of(size, "empty", options), dtype_for("empty", out, dtype)
    meta = TensorMeta.of(shape, dtype_or(kind), as_device(device))
    return finished(empty_of(meta), requires_grad, out, "empty")


# public: flow
def empty_strided(
    size: Any,
    stride: Any,
    *,
    dtype: DTypeLike | None = None,
    device: DeviceLike | None = None,
    requires_grad: bool = False,
    **options: object,
) -> Tensor:
    """A tensor of shape `size` whose elements lie `stride` elements apart in each dimension, with
    whatever values; new memory from its first to its last element.

    >>> flow.empty_strided((2, 3), (1, 2)).stride()
    (1, 2)
    """
    accept("empty_strided", options)
    shape, steps = as_shape(size), as_shape(stride)
    if len(shape) != len(steps):
        raise ArgumentError(f"empty_strided: {len(shape)} sizes and {len(steps)} strides")
    span = 1 + sum((n - 1) * s for n, s in zip(shape, steps, strict=True))
    count = span if shape.numel() else 0
    memory: Tensor = empty(count, dtype=dtype, device=device)
    return finished(memory.as_strided(shape, steps), requires_grad)


# public: flow
def empty_permuted(
    size: object,
    physical_layout: Any,
    *,
    dtype: DTypeLike | None = None,
    device: DeviceLike | None = None,
    requires_grad: bool = False,
    **options: object,
) -> Tensor:
    """A tensor of shape `size` without gaps, with whatever values, whose dimensions lie in memory
    in the order `physical_layout`, that with the largest stride first.

    >>> flow.empty_permuted((2, 3), (1, 0)).stride()
    (1, 2)
    """
    accept("empty_permuted", options)
    shape, order = as_shape(size), tuple(physical_layout)
    if sorted(order) != list(range(len(shape))):
        raise ArgumentError(f"empty_permuted: {order} is not an order of {len(shape)} dimensions")
    memory: Tensor = empty([shape[d] for d in order], dtype=dtype, device=device)
    back = sorted(range(len(order)), key=lambda d: order[d])
    return finished(memory.permute(back), requires_grad)


# public: flow
@steady
@placed_like
def full_like(
    input: Tensor,
    fill_value: Any,
    *,
    dtype: DTypeLike | None = None,
    device: DeviceLike | None = None,
    requires_grad: bool = False,
    **options: Any,
) -> Tensor:
    """A tensor of `input`'s shape, and dtype unless one is given, filled with `fill_value`.

    >>> flow.full_like(flow.zeros(2), 7)
    tensor([7., 7.])
    """
    meta, form = _meta("full_like", input), options.pop("memory_format", None)
    kind, place = dtype_or(dtype, meta.dtype), meta.device if device is None else device
    result = full(meta.shape, fill_value, dtype=kind, device=place, **options)
    return finished(_laid_like("full_like", result, meta, form), requires_grad)


# public: flow
@steady
@placed_like
def zeros_like(
    input: Tensor,
    *,
    dtype: DTypeLike | None = None,
    device: DeviceLike | None = None,
    requires_grad: bool = False,
    **options: Any,
) -> Tensor:
    """A tensor of `input`'s shape, and dtype unless one is given, filled with 0.

    >>> flow.zeros_like(flow.tensor([3, 4]))
    tensor([0, 0])
    """
    meta, form = _meta("zeros_like", input), options.pop("memory_format", None)
    kind, place = dtype_or(dtype, meta.dtype), meta.device if device is None else device
    result = zeros(meta.shape, dtype=kind, device=place, **options)
    return finished(_laid_like("zeros_like", result, meta, form), requires_grad)


# public: flow
@steady
@placed_like
def ones_like(
    input: Tensor,
    *,
    dtype: DTypeLike | None = None,
    device: DeviceLike | None = None,
    requires_grad: bool = False,
    **options: Any,
) -> Tensor:
    """A tensor of `input`'s shape, and dtype unless one is given, filled with 1.

    >>> flow.ones_like(flow.tensor([3, 4]))
    tensor([1, 1])
    """
    meta, form = _meta("ones_like", input), options.pop("memory_format", None)
    kind, place = dtype_or(dtype, meta.dtype), meta.device if device is None else device
    result = ones(meta.shape, dtype=kind, device=place, **options)
    return finished(_laid_like("ones_like", result, meta, form), requires_grad)


# public: flow
@steady
@placed_like
def empty_like(
    input: Tensor,
    *,
    dtype: DTypeLike | None = None,
    device: DeviceLike | None = None,
    requires_grad: bool = False,
    **options: Any,
) -> Tensor:
    """A tensor of `input`'s shape, and dtype unless one is given, with whatever values.

    >>> flow.empty_like(flow.ones(2, 3), dtype=flow.int64).dtype
    flow.int64
    """
    meta, form = _meta("empty_like", input), options.pop("memory_format", None)
    kind, place = dtype_or(dtype, meta.dtype), meta.device if device is None else device
    result = empty(meta.shape, dtype=kind, device=place, **options)
    return finished(_laid_like("empty_like", result, meta, form), requires_grad)


def _laid_like(name: str, result: Tensor, meta: TensorMeta, memory_format: object) -> Tensor:
    """A new tensor in C order, whose elements are all alike, with the strides of a copy of
    `meta`.
    """
    stride = format_stride(name, meta, memory_format)
    own = result._meta
    if stride is None or own.numel == 0:
        return result
    return alias(result, TensorMeta.of(own.shape, own.dtype, own.device, stride))


def _meta(name: str, input: Tensor) -> TensorMeta:
    if not isinstance(input, Tensor):
        raise ArgumentTypeError(f"{name}: input must be a Tensor, got {type(input).__name__}")
    return input._meta


# public: flow
def scalar_tensor(
    s: Scalar,
    *,
    dtype: DTypeLike | None = None,
    device: DeviceLike | None = None,
    requires_grad: bool = False,
    **options: Any,
) -> Tensor:
    """A 0-d tensor of the number `s`, of the default dtype unless one is given.

    >>> flow.scalar_tensor(3)
    tensor(3.)
    """
    return full((), s, dtype=dtype_or(dtype), device=device, requires_grad=requires_grad, **options)


# --- methods ----------------------------------------------------------------------------------


def device_like(x: Tensor, device: object, options: dict[str, Any], size: Any = None) -> Any:
    """The device of a tensor that is made like `x`; None where `placement` says it, which `options`
    are given if `x` is a global tensor of this `size`.
    """
    if device is not None or "placement" in options:
        return device
    meta = x._meta
    size = size or (options.get("size", ()),)
    if not isinstance(meta, GlobalMeta):
        return meta.device
    if as_shape(size[0] if len(size) == 1 else size) != meta.shape:
        return meta.device
    options.update(placement=meta.placement, sbp=meta.dense().sbp)
    return None


@method()
def new_full(
    x: Tensor,
    size: Any,
    fill_value: Any,
    *,
    dtype: DTypeLike | None = None,
    device: DeviceLike | None = None,
    requires_grad: bool = False,
    **options: Any,
) -> Tensor:
    """A tensor of shape `size` filled with `fill_value`, of `x`'s dtype and device unless
    others are given.

    >>> flow.tensor([1, 2]).new_full((3,), 7)
    tensor([7, 7, 7])
    """
    dtype, place = dtype_or(dtype, x._meta.dtype), device_like(x, device, options, (size,))
    return full(size, fill_value, dtype=dtype, device=place, requires_grad=requires_grad, **options)


@method()
def new_zeros(
    x: Tensor,
    *size: Any,
    dtype: DTypeLike | None = None,
    device: DeviceLike | None = None,
    requires_grad: bool = False,
    **options: Any,
) -> Tensor:
    """A tensor of shape `size` filled with 0, of `x`'s dtype and device unless others are
    given.

    >>> flow.tensor([1, 2]).new_zeros(3)
    tensor([0, 0, 0])
    """
    kind, place = dtype_or(dtype, x._meta.dtype), device_like(x, device, options, size)
    return zeros(*size, dtype=kind, device=place, requires_grad=requires_grad, **options)


@method()
def new_ones(
    x: Tensor,
    *size: Any,
    dtype: DTypeLike | None = None,
    device: DeviceLike | None = None,
    requires_grad: bool = False,
    **options: Any,
) -> Tensor:
    """A tensor of shape `size` filled with 1, of `x`'s dtype and device unless others are
    given.

    >>> flow.tensor([1, 2]).new_ones(3)
    tensor([1, 1, 1])
    """
    kind, place = dtype_or(dtype, x._meta.dtype), device_like(x, device, options, size)
    return ones(*size, dtype=kind, device=place, requires_grad=requires_grad, **options)


@method()
def new_empty(
    x: Tensor,
    *size: Any,
    dtype: DTypeLike | None = None,
    device: DeviceLike | None = None,
    requires_grad: bool = False,
    **options: Any,
) -> Tensor:
    """A tensor of shape `size` with whatever values, of `x`'s dtype and device unless others are
    given.

    >>> flow.ones(2, dtype=flow.float64).new_empty(3).dtype
    flow.float64
    """
    kind, place = dtype_or(dtype, x._meta.dtype), device_like(x, device, options, size)
    return empty(*size, dtype=kind, device=place, requires_grad=requires_grad, **options)


@method()
def new_empty_strided(
    x: Tensor,
    size: Any,
    stride: Any,
    *,
    dtype: DTypeLike | None = None,
    device: DeviceLike | None = None,
    **options: Any,
) -> Tensor:
    """`empty_strided`, of `x`'s dtype and device unless others are given.

    >>> flow.tensor([1, 2]).new_empty_strided((2, 3), (1, 2)).stride()
    (1, 2)
    """
    kind, place = dtype_or(dtype, x._meta.dtype), device_like(x, device, options)
    return empty_strided(size, stride, dtype=kind, device=place, **options)


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
