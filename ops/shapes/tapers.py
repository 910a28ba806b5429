"""Windows of signal processing: `hann_window` and its kin.

Computed in float64 by NumPy, on the host, and rounded once: they are short, and made once.
Formulas: F. J. Harris, "On the use of windows for harmonic analysis with the discrete Fourier
transform" (1978).  A periodic window is that of one more sample without its last one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from flowvm.eager.global_calls import takes_placement
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, DTypeError
from flowvm.meta.arrays import Array
from flowvm.meta.device import as_device
from flowvm.meta.formats import accept
from flowvm.ops.declare.composite import whole
from flowvm.ops.declare.outputs import dtype_for, written
from flowvm.ops.declare.registry import Sample, samples
from flowvm.ops.shapes.create import tensor
from flowvm.ops.shapes.fill import dtype_or


def window_of(
    name: str, length: object, periodic: bool, shape: Callable[[Array, float], Array],
    options: dict[str, Any],
) -> Tensor:  # fmt: skip
    """The window whose values at 0, 1, ... of `last` are `shape(places, last)`."""
    n = whole(name, "window_length", length)
    if n < 0:
        raise ArgumentError(f"{name}: window_length is not negative, got {n}")
    out, device = options.pop("out", None), as_device(options.pop("device", None))
    kind = dtype_or(dtype_for(name, out, options.pop("dtype", None)))
    requires_grad = options.pop("requires_grad", False)
    accept(name, options)
    if not kind.is_floating_point:
        raise DTypeError(f"{name}: a window is of floats, got dtype {kind.name}")
    last = n if periodic else n - 1
    values = np.ones(n) if n <= 1 else shape(np.arange(n, dtype=np.float64), float(last))
    window = written(name, out, tensor(values, dtype=kind, device=device))
    return window.requires_grad_(True) if requires_grad else window


def cosines(*weights: float) -> Callable[[Array, float], Array]:
    """The sum of weights times (-1) ** j cos(2 pi j k / last), j from 0 on."""

    def shape(k: Array, last: float) -> Array:
        turns = 2 * np.pi * k / last
        first, *rest = weights
        start: Array | float = first
        terms = ((-1) ** j * w * np.cos(j * turns) for j, w in enumerate(rest, 1))
        return np.asarray(sum(terms, start))

    return shape


def triangle(k: Array, last: float) -> Array:
    """1 - |2 k / last - 1|."""
    return 1 - np.abs(2 * k / last - 1)


def kaiser(beta: float) -> Callable[[Array, float], Array]:
    """I0(beta sqrt(1 - (2 k / last - 1) ** 2)) / I0(beta)."""

    def shape(k: Array, last: float) -> Array:
        inside = np.maximum(1 - (2 * k / last - 1) ** 2, 0)
        return np.i0(beta * np.sqrt(inside)) / float(np.i0(beta))

    return shape


# public: flow
@takes_placement
def hann_window(window_length: int, periodic: bool = True, **options: object) -> Tensor:
    """sin(pi k / N) ** 2 for k from 0 on: N is `window_length`, or one less unless `periodic`.

    `options` are those of `flow.zeros`: dtype, device, placement and sbp, requires_grad, and so on.

    >>> flow.hann_window(4)
    tensor([0.0000, 0.5000, 1.0000, 0.5000])
    """
    return window_of("hann_window", window_length, periodic, cosines(0.5, 0.5), options)


# public: flow
@takes_placement
def hamming_window(
    window_length: int,
    periodic: bool = True,
    alpha: float = 0.54,
    beta: float = 0.46,
    **options: object,
) -> Tensor:
    """alpha - beta cos(2 pi k / N); N and `options` as `hann_window`.

    >>> flow.hamming_window(4)
    tensor([0.0800, 0.5400, 1.0000, 0.5400])
    """
    return window_of("hamming_window", window_length, periodic, cosines(alpha, beta), options)


# public: flow
@takes_placement
def blackman_window(window_length: int, periodic: bool = True, **options: object) -> Tensor:
    """0.42 - 0.5 cos(2 pi k / N) + 0.08 cos(4 pi k / N); N and `options` as `hann_window`.

    >>> flow.blackman_window(4)[1:]
    tensor([0.3400, 1.0000, 0.3400])
    """
    return window_of("blackman_window", window_length, periodic, cosines(0.42, 0.5, 0.08), options)


# public: flow
@takes_placement
def bartlett_window(window_length: int, periodic: bool = True, **options: object) -> Tensor:
    """The triangle 1 - |2 k / N - 1|; N and `options` as `hann_window`.

    >>> flow.bartlett_window(4)
    tensor([0.0000, 0.5000, 1.0000, 0.5000])
    """
    return window_of("bartlett_window", window_length, periodic, triangle, options)


# public: flow
@takes_placement
def kaiser_window(
    window_length: int, periodic: bool = True, beta: float = 12.0, **options: object
) -> Tensor:
    """I0(beta sqrt(1 - (2 k / N - 1) ** 2)) / I0(beta), I0 being the modified Bessel function; N
    and `options` as `hann_window`.

    >>> flow.kaiser_window(3, periodic=False, beta=1.0)
    tensor([0.7898, 1.0000, 0.7898])
    """
    if not math.isfinite(beta):
        raise ArgumentError(f"kaiser_window: beta is finite, got {beta}")
    return window_of("kaiser_window", window_length, periodic, kaiser(beta), options)


def _symmetric(f: Callable[[int], Array]) -> Callable[..., Array]:
    def reference(n: int, periodic: bool = True) -> Array:
        return f(n + 1)[:-1] if periodic and n > 1 else f(n)

    return reference


for _window, _reference in (
    (hann_window, np.hanning),
    (hamming_window, np.hamming),
    (blackman_window, np.blackman),
    (bartlett_window, np.bartlett),
    (kaiser_window, lambda n: np.kaiser(n, 12.0)),
):
    samples(
        _window,
        lambda rng: [Sample((5,)), Sample((6, False)), Sample((1,)), Sample((0,))],
        _symmetric(_reference),
        grad=False,
        errors=(
            (lambda flow, window=_window: window(-1), ValueError),
            (lambda flow, window=_window: window(3, dtype=flow.int64), RuntimeError),
        ),
    )
