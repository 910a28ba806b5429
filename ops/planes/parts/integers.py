"""Convolutions and averages of integers, as sums over the taps of a kernel.

Each tap takes a strided view of the padded input.  Sums wrap as the dtype does, in any order, so
they are PyTorch's to the bit.  Integers have no gradients.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np

from flowvm.eager.tensor import Tensor
from flowvm.ops.products.matmul import matmul
from flowvm.ops.shapes.create import tensor
from flowvm.ops.shapes.fill import zeros
from flowvm.ops.shapes.padding import pad

Ints = Sequence[int]


def _sides(front: Ints, behind: Ints) -> list[int]:
    """The argument of `pad`: the last dimension first."""
    return [n for pair in reversed(list(zip(front, behind, strict=True))) for n in pair]


def _reached(tap: Ints, size: Ints, stride: Ints, dilation: Ints) -> tuple[object, ...]:
    """Return the index of a kernel tap's elements for all outputs, in the last dimensions."""
    places = zip(tap, size, stride, dilation, strict=True)
    return (..., *[slice(t * d, t * d + (o - 1) * s + 1, s) for t, o, s, d in places])


def convolved(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Ints, front: Ints, behind: Ints,
    dilation: Ints, groups: int, size: Ints,
) -> Tensor:  # fmt: skip
    """The convolution of x (N, C, ...) with weight (O, C / groups, ...): (N, O, *size)."""
    (n, channels), outputs = x.shape[:2], weight.shape[0]
    padded = pad(x, _sides(front, behind))
    grouped = weight.reshape((groups, outputs // groups, *weight.shape[1:]))
    shape = n, groups, outputs // groups, math.prod(size)
    out: Tensor = zeros(shape, dtype=x.dtype, device=x.device)
    for tap in product(*map(range, weight.shape[2:])):
        part = padded[_reached(tap, size, stride, dilation)]
        out = out + matmul(
            grouped[(..., *tap)], part.reshape((n, groups, channels // groups, out.shape[-1]))
        )
    return _with_bias(out.reshape((n, outputs, *size)), bias)


def convolved_back(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Ints, padding: Ints, dilation: Ints,
    groups: int, size: Ints,
) -> Tensor:  # fmt: skip
    """The transposed convolution of x (N, C, ...) with weight (C, O / groups, ...): (N, O,
    *size).
    """
    (n, channels), space = x.shape[:2], x.shape[2:]
    each, kernel = weight.shape[1], weight.shape[2:]
    whole = [
        max(o + 2 * p, (i - 1) * s + d * (k - 1) + 1)
        for o, p, i, s, d, k in zip(size, padding, space, stride, dilation, kernel, strict=True)
    ]
    out = zeros((n, groups * each, *whole), dtype=x.dtype, device=x.device)
    grouped = weight.reshape((groups, channels // groups, *weight.shape[1:])).transpose(1, 2)
    flat = x.reshape((n, groups, channels // groups, math.prod(space)))
    for tap in product(*map(range, kernel)):
        added = matmul(grouped[(..., *tap)], flat).reshape((n, groups * each, *space))
        out[_reached(tap, space, stride, dilation)] += added
    inside = [slice(p, p + o) for p, o in zip(padding, size, strict=True)]
    return _with_bias(out[(..., *inside)], bias)


def _with_bias(out: Tensor, bias: Tensor | None) -> Tensor:
    if bias is None:
        return out.contiguous()
    return out + bias.reshape((-1,) + (1,) * (out.ndim - 2))


def averaged(x: Tensor, sizes: tuple[Ints, ...], padded: bool, divisor: int) -> Tensor:
    """Average windows of the last dimensions, rounded towards zero.

    `sizes` are the sizes of input, output, kernel, stride and padding.  The divisor is `divisor` if
    it is not 0, or else the number of elements, with the padding's if `padded`.
    """
    n = len(sizes[0])
    behind = [max(0, (o - 1) * s + k - i - p) for i, o, k, s, p, *_ in zip(*sizes, strict=True)]
    out: Tensor = pad(x, _sides(sizes[4], behind))
    counts: Any = np.ones((), np.int64)
    for d, (i, o, k, s, p, *_) in enumerate(zip(*sizes, strict=True), start=x.ndim - n):
        lead = (slice(None),) * d
        taps = [out[(*lead, slice(t, t + (o - 1) * s + 1, s))] for t in range(k)]
        out = sum(taps[1:], taps[0])
        first = np.arange(o) * s - p
        last = np.minimum(first + k, i + p)
        if not padded:
            first, last = np.maximum(first, 0), np.minimum(last, i)
        counts = np.multiply.outer(counts, np.maximum(last - first, 1))
    by = divisor or tensor(counts, dtype=x.dtype, device=x.device)
    return out.div(by, rounding_mode="trunc")
