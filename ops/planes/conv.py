"""Convolutions and transposed convolutions in one, two and three dimensions: arguments and checks.

The ops are in `conv_ops`, the kernels in `conv_strips`, `conv_weight` and `conv_windows`; integers
go another way, that of `integers`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from flowvm.eager.autocast import lowered
from flowvm.eager.native.trace_cache import steady
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError
from flowvm.meta.dtype import bool_
from flowvm.ops.declare.composite import need_tensor, whole
from flowvm.ops.declare.registry import Sample, samples
from flowvm.ops.planes.cpu.conv_plan import three_of
from flowvm.ops.planes.parts import integers
from flowvm.ops.planes.parts.conv_ops import How, _conv, _conv_bias, _conv_input, _conv_input_bias
from flowvm.vm.callers.hot import hot

if TYPE_CHECKING:
    from flowvm.meta.arrays import Array

Ints = int | Sequence[int]  # one for all dimensions, or one each

# public: flow, F


def _numbers(name: str, what: str, value: object, n: int, least: int) -> tuple[int, ...]:
    """`value`, one int or `n` of them, as a tuple; ArgumentError below `least`."""
    numbers = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    numbers = tuple(v if type(v) is int else whole(name, what, v) for v in numbers)
    if len(numbers) == 1:
        numbers = numbers * n
    if len(numbers) != n or max(numbers) >= 1 << 31:
        raise ArgumentTypeError(f"{name}: {what} is an int or {n} of them, got {value!r}")
    if min(numbers) < least:
        raise ArgumentError(f"{name}: {what} must be at least {least}, got {value!r}")
    return numbers


def _check(
    name: str,
    n: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    groups: int,
    transposed: bool,
) -> Tensor:
    """`input` with a batch dimension, when everything fits."""
    need_tensor(name, "input", input)
    need_tensor(name, "weight", weight)
    x, w = input._meta, weight._meta
    if w.ndim != n + 2 or x.ndim not in (n + 1, n + 2):
        raise ShapeError(
            f"{name}: input has {n + 2} dimensions (or {n + 1} without a batch) and weight "
            f"{n + 2}, got shapes {tuple(x.shape)} and {tuple(w.shape)}"
        )
    if x.dtype is not w.dtype or x.dtype is bool_:
        raise DTypeError(
            f"{name}: input and weight must have one dtype of numbers, got {x.dtype.name} and "
            f"{w.dtype.name}"
        )
    if 0 in w.shape[2:]:
        raise ShapeError(f"{name}: the kernel has no element, weight has shape {tuple(w.shape)}")
    channels = x.shape[-n - 1]
    expected = w.shape[0] if transposed else w.shape[1] * groups
    outputs = w.shape[1] * groups if transposed else w.shape[0]
    if bias is not None:
        need_tensor(name, "bias", bias)
    if groups < 1 or channels != expected or outputs % groups or channels % groups:
        raise ShapeError(
            f"{name}: weight of shape {tuple(w.shape)} with groups={groups} is for {expected} "
            f"input channels, input of shape {tuple(x.shape)} has {channels}"
        )
    if bias is not None and (
        tuple(bias._meta.shape) != (outputs,) or bias._meta.dtype is not x.dtype
    ):
        raise ShapeError(
            f"{name}: bias is {x.dtype.name} with one number for each of {outputs} output "
            f"channels, got {bias._meta.dtype.name} of shape {tuple(bias.shape)}"
        )
    return input if x.ndim == n + 2 else input.unsqueeze(0)


def _padded(
    name: str,
    padding: Ints | str,
    kernel: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Padding in front of and behind each dimension; "same" may need more behind."""
    n = len(kernel)
    if not isinstance(padding, str):
        pads = _numbers(name, "padding", padding, n, 0)
        return pads, pads
    if padding == "valid":
        return (0,) * n, (0,) * n
    if padding != "same":
        raise ArgumentError(f'{name}: padding is a number, "same" or "valid", got {padding!r}')
    if any(s != 1 for s in stride):
        raise ArgumentError(f'{name}: padding="same" is for stride 1, got {tuple(stride)}')
    total = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
    return tuple(t // 2 for t in total), tuple(t - t // 2 for t in total)


def _convolve(
    name: str, n: int, input: Tensor, weight: Tensor, bias: Tensor | None,
    stride: Ints, padding: Ints | str, dilation: Ints, groups: int,
) -> Tensor:  # fmt: skip
    if hot["autocast"]:
        input, weight, bias = lowered(input, weight, bias)
    groups = whole(name, "groups", groups)
    x = _check(name, n, input, weight, bias, groups, False)
    stride = _numbers(name, "stride", stride, n, 1)
    dilation = _numbers(name, "dilation", dilation, n, 1)
    kernel = weight._meta.shape[2:]
    front, behind = _padded(name, padding, kernel, stride, dilation)
    size = []
    for i, k, s, d, a, b in zip(
        x._meta.shape[2:], kernel, stride, dilation, front, behind, strict=True
    ):
        room = i + a + b - d * (k - 1) - 1
        if room < 0:
            raise ShapeError(
                f"{name}: the kernel {tuple(kernel)} with dilation {dilation} is larger than the "
                f"padded input of shape {tuple(input.shape)}"
            )
        size.append(room // s + 1)
    how = How(three_of(stride, 1), three_of(front, 0), three_of(dilation, 1), groups)
    if not x._meta.dtype.is_floating_point:
        options = stride, front, behind, dilation, groups, size
        out = integers.convolved(x, weight, bias, *options)
    elif bias is None:
        out = _conv(x, weight, how, tuple(size))
    else:
        out = _conv_bias(x, weight, bias, how, tuple(size))
    return out if x is input else out.squeeze(0)


def _convolve_back(
    name: str, n: int, input: Tensor, weight: Tensor, bias: Tensor | None,
    stride: Ints, padding: Ints, output_padding: Ints, groups: int, dilation: Ints,
) -> Tensor:  # fmt: skip
    if hot["autocast"]:
        input, weight, bias = lowered(input, weight, bias)
    groups = whole(name, "groups", groups)
    x = _check(name, n, input, weight, bias, groups, True)
    stride = _numbers(name, "stride", stride, n, 1)
    padding = _numbers(name, "padding", padding, n, 0)
    dilation = _numbers(name, "dilation", dilation, n, 1)
    extra = _numbers(name, "output_padding", output_padding, n, 0)
    size = []
    kernel = weight._meta.shape[2:]
    for i, k, s, p, d, e in zip(
        x._meta.shape[2:], kernel, stride, padding, dilation, extra, strict=True
    ):
        if e >= max(s, d):
            raise ArgumentError(
                f"{name}: output_padding must be smaller than stride or dilation, got {e} with "
                f"stride {s} and dilation {d}"
            )
        length = (i - 1) * s - 2 * p + d * (k - 1) + e + 1
        if length < 0:
            raise ShapeError(
                f"{name}: the output would have size {length}, for input of shape "
                f"{tuple(input.shape)}"
            )
        size.append(length)
    how = How(three_of(stride, 1), three_of(padding, 0), three_of(dilation, 1), groups)
    channels = weight._meta.shape[1] * groups
    shape = (x._meta.shape[0], channels, *size)
    if not x._meta.dtype.is_floating_point:
        options = stride, padding, dilation, groups, size
        out = integers.convolved_back(x, weight, bias, *options)
    elif bias is None:
        out = _conv_input(x, weight, how, shape)
    else:
        out = _conv_input_bias(x, weight, bias, how, shape)
    return out if x is input else out.squeeze(0)


@steady
def conv1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] | str = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Tensor:
    """Slide weight (O, C / groups, k) over input (N, C, L), or (C, L): (N, O, L').

    `padding` is a number of zeros at both ends, "same" for an output as long as the input, or
    "valid" for none.

    >>> flow.conv1d(flow.tensor([[[1.0, 2.0, 4.0]]]), flow.tensor([[[1.0, 1.0]]]))
    tensor([[[3., 6.]]])
    """
    return _convolve("conv1d", 1, input, weight, bias, stride, padding, dilation, groups)


@steady
def conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] | str = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Tensor:
    """Slide weight (O, C / groups, kh, kw) over images (N, C, H, W), or (C, H, W): (N, O, H', W').

    Numbers that are given once hold for both directions.  `padding` is a number of zeros at all
    edges, "same" for an output as large as the input, or "valid" for none.

    >>> image = flow.arange(9.0).view(1, 1, 3, 3)
    >>> F.conv2d(image, flow.ones(1, 1, 2, 2))  # sums of 2 by 2
    tensor([[[[ 8., 12.],
              [20., 24.]]]])
    """
    return _convolve("conv2d", 2, input, weight, bias, stride, padding, dilation, groups)


@steady
def conv3d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] | str = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Tensor:
    """conv2d with one more dimension: weight (O, C / groups, kd, kh, kw), input (N, C, D, H, W).

    >>> F.conv3d(flow.ones(1, 2, 3, 3, 3), flow.ones(4, 2, 2, 2, 2)).shape
    flow.Size([1, 4, 2, 2, 2])
    """
    return _convolve("conv3d", 3, input, weight, bias, stride, padding, dilation, groups)


@steady
def conv_transpose1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    output_padding: int | Sequence[int] = 0,
    groups: int = 1,
    dilation: int | Sequence[int] = 1,
) -> Tensor:
    """The gradient of conv1d by its input, as a layer: (N, C, L) to (N, O, L').

    weight is (C, O / groups, k).

    >>> F.conv_transpose1d(flow.tensor([[[1.0, 2.0]]]), flow.tensor([[[1.0, 10.0]]]))
    tensor([[[ 1., 12., 20.]]])
    """
    return _convolve_back(
        "conv_transpose1d", 1, input, weight, bias, stride, padding, output_padding, groups,
        dilation,
    )  # fmt: skip


@steady
def conv_transpose2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    output_padding: int | Sequence[int] = 0,
    groups: int = 1,
    dilation: int | Sequence[int] = 1,
) -> Tensor:
    """The gradient of conv2d by its input, as a layer: weight (C, O / groups, kh, kw), (N, C, H, W)
    to (N, O, H', W').

    >>> F.conv_transpose2d(flow.ones(1, 1, 2, 2), flow.ones(1, 1, 2, 2))
    tensor([[[[1., 2., 1.],
              [2., 4., 2.],
              [1., 2., 1.]]]])
    """
    return _convolve_back(
        "conv_transpose2d", 2, input, weight, bias, stride, padding, output_padding, groups,
        dilation,
    )  # fmt: skip


@steady
def conv_transpose3d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    output_padding: int | Sequence[int] = 0,
    groups: int = 1,
    dilation: int | Sequence[int] = 1,
) -> Tensor:
    """The gradient of conv3d by its input, as a layer: weight (C, O / groups, kd, kh, kw).

    >>> F.conv_transpose3d(flow.ones(1, 2, 3, 3, 3), flow.ones(2, 4, 2, 2, 2), stride=2).shape
    flow.Size([1, 4, 6, 6, 6])
    """
    return _convolve_back(
        "conv_transpose3d", 3, input, weight, bias, stride, padding, output_padding, groups,
        dilation,
    )  # fmt: skip


# --- samples ------------------------------------------------------------------------------------


def _conv_reference(
    x: Array,
    weight: Array,
    bias: Array | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Array:
    """A convolution by its definition, one output position at a time."""
    n = weight.ndim - 2
    batched = x.ndim == n + 2
    x = x if batched else x[None]
    kernel = weight.shape[2:]
    stride, dilation = (v if isinstance(v, tuple) else (v,) * n for v in (stride, dilation))
    front, behind = _padded("conv", padding, kernel, stride, dilation)
    x = np.pad(x, [(0, 0), (0, 0), *zip(front, behind, strict=True)])
    size = [
        (i - d * (k - 1) - 1) // s + 1
        for i, k, s, d in zip(x.shape[2:], kernel, stride, dilation, strict=True)
    ]
    out = np.zeros((x.shape[0], weight.shape[0], *size))
    each, outputs = weight.shape[1], weight.shape[0] // groups
    for place in np.ndindex(*size):
        window = tuple(
            slice(p * s, p * s + d * (k - 1) + 1, d)
            for p, s, d, k in zip(place, stride, dilation, kernel, strict=True)
        )
        for g in range(groups):
            part = x[(slice(None), slice(g * each, (g + 1) * each), *window)]
            taps = weight[g * outputs : (g + 1) * outputs]
            axes = tuple(range(1, n + 2))
            out[(slice(None), slice(g * outputs, (g + 1) * outputs), *place)] = np.tensordot(
                part, taps, (axes, axes)
            )
    if bias is not None:
        out += bias.reshape((-1,) + (1,) * n)
    return out if batched else out[0]


def _transposed_reference(
    x: Array, weight: Array, bias: Array | None = None, stride: Any = 1, padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1, dilation: Any = 1,
) -> Array:  # fmt: skip
    """Every input element adds its kernel to the output."""
    n = weight.ndim - 2
    stride, padding, extra, dilation = (
        v if isinstance(v, tuple) else (v,) * n for v in (stride, padding, output_padding, dilation)
    )
    kernel = weight.shape[2:]
    full = [
        (i - 1) * s + d * (k - 1) + 1 + e + p
        for i, s, d, k, e, p in zip(
            x.shape[2:], stride, dilation, kernel, extra, padding, strict=True
        )
    ]
    each, outputs = weight.shape[0] // groups, weight.shape[1]
    out = np.zeros((x.shape[0], outputs * groups, *full))
    for place in np.ndindex(*x.shape[2:]):
        window = tuple(
            slice(p * s, p * s + d * (k - 1) + 1, d)
            for p, s, d, k in zip(place, stride, dilation, kernel, strict=True)
        )
        for g in range(groups):
            part = x[(slice(None), slice(g * each, (g + 1) * each), *place)]
            added = np.tensordot(part, weight[g * each : (g + 1) * each], ((1,), (0,)))
            out[(slice(None), slice(g * outputs, (g + 1) * outputs), *window)] += added
    sizes = [
        (i - 1) * s - 2 * p + d * (k - 1) + e + 1
        for i, s, p, d, k, e in zip(
            x.shape[2:], stride, padding, dilation, kernel, extra, strict=True
        )
    ]
    crop = tuple(slice(p, p + size) for p, size in zip(padding, sizes, strict=True))
    out = out[(slice(None), slice(None), *crop)]
    return out if bias is None else out + bias.reshape((-1,) + (1,) * n)


# function: (shapes of input, weight and bias, options) of each sample
_CASES: dict[Any, list[tuple[Any, ...]]] = {
    conv1d: [
        ((2, 2, 5), (3, 2, 3), (3,), {}),
        ((2, 5), (2, 2, 2), (2,), {"padding": "same"}),
        ((1, 4, 6), (4, 2, 2), None, {"stride": 2, "padding": 1, "dilation": 2, "groups": 2}),
        ((0, 2, 5), (3, 2, 3), (3,), {}),
    ],
    conv2d: [
        ((2, 2, 3, 3), (2, 2, 2, 2), (2,), {"padding": 1}),
        ((1, 2, 3, 2), (2, 2, 1, 1), (2,), {}),
        ((1, 2, 4, 3), (2, 1, 3, 2), None, {"stride": (2, 1), "padding": (1, 0), "groups": 2}),
    ],
    conv3d: [((1, 1, 2, 3, 2), (2, 1, 2, 2, 2), (2,), {"padding": (0, 1, 0)})],
    conv_transpose1d: [
        ((2, 2, 3), (2, 3, 3), (3,), {"stride": 2, "padding": 1, "output_padding": 1}),
        ((1, 2, 3), (2, 1, 2), None, {"groups": 2, "dilation": 2}),
    ],
    conv_transpose2d: [((1, 2, 2, 3), (2, 1, 2, 2), (1,), {"stride": (1, 2)})],
    conv_transpose3d: [((1, 1, 2, 2, 1), (1, 2, 1, 2, 2), (2,), {})],
}


# function: (shapes of input and weight, options, what they raise)
_REFUSED: dict[Any, list[tuple[Any, ...]]] = {
    conv1d: [
        ((1, 2, 5), (1, 3, 2), {}, RuntimeError),
        ((1, 2, 2), (1, 2, 3), {}, RuntimeError),
        ((1, 2, 5), (1, 2, 3), {"stride": 0}, ValueError),
        ((1, 2, 5), (1, 2, 3), {"stride": 2, "padding": "same"}, ValueError),
    ],
    conv_transpose1d: [((1, 2, 3), (2, 1, 2), {"output_padding": 1}, ValueError)],
}


def _register() -> None:
    def generator(cases: list[tuple[Any, ...]]) -> Any:
        def generate(rng: np.random.Generator) -> list[Sample]:
            return [
                Sample(tuple(s if s is None else rng.standard_normal(s) for s in shapes), {**more})
                for *shapes, more in cases
            ]

        return generate

    def refused(name: str, input: Any, weight: Any, options: Any) -> Callable[[Any], Any]:
        return lambda flow: getattr(flow, name)(flow.ones(input), flow.ones(weight), **options)

    for function, cases in _CASES.items():
        name = function.__name__
        reference = _transposed_reference if "transpose" in name else _conv_reference
        errors = [(refused(name, *call), error) for *call, error in _REFUSED.get(function, [])]
        samples(function, generator(cases), reference, errors=tuple(errors))


_register()
