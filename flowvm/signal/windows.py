"""`flow.signal.windows`: windows with SciPy's names and numbers.

    flow.signal.windows.hann(M, *, sym=True, dtype=None, layout=None, device=None,
                             requires_grad=False)

M points (M,), float32 or float64, computed in float64 and rounded once.  With `sym` a window is
symmetric, for the design of filters; without it periodic, which is the symmetric one of M + 1
points without its last, for spectra.  N below is M - 1 with `sym`, else M, and k is 0, 1, ...
A window that requires a gradient is a leaf.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, ArgumentTypeError
from flowvm.loading.listing import listing, own_names
from flowvm.meta.device import as_device
from flowvm.meta.dtype import float32, float64
from flowvm.meta.formats import accept
from flowvm.ops.declare.composite import whole
from flowvm.ops.shapes import tapers
from flowvm.ops.shapes.create import tensor
from flowvm.ops.shapes.fill import dtype_or

__dir__ = listing(globals())

Shape = Callable[[Any, float], Any]  # values at places k, by k and N


def _window(
    name: str, M: object, shape: Shape, options: dict[str, Any], one: float = 1.0
) -> Tensor:
    """Return the window of that shape; `one` is the value of a window of one point."""
    sym, device = options.pop("sym", True), as_device(options.pop("device", None))
    kind = dtype_or(options.pop("dtype", None))
    requires_grad = options.pop("requires_grad", False)
    accept(name, options)
    n = whole(name, "M", M)
    if n < 0:
        raise ArgumentError(f"{name}: a window has M points, not negative, got M={n}")
    if kind not in (float32, float64):
        raise ArgumentError(f"{name}: a window is float32 or float64, got dtype {kind.name}")
    places = np.arange(n, dtype=np.float64)
    values = np.full(n, one) if n <= 1 else shape(places, float(n - 1 if sym else n))
    window: Tensor = tensor(values, dtype=kind, device=device)
    return window.requires_grad_(True) if requires_grad else window


def _need_positive(name: str, argument: str, value: float) -> None:
    if not value > 0:
        raise ArgumentError(f"{name}: {argument} must be positive, got {value}")


def exponential(
    M: int, *, center: float | None = None, tau: float = 1.0, **options: object
) -> Tensor:
    """exp(-|k - center| / tau); center is N / 2 unless given, which `sym` forbids.

    >>> flow.signal.windows.exponential(3)
    tensor([0.3679, 1.0000, 0.3679])
    """
    _need_positive("exponential", "tau", tau)
    if center is not None and options.get("sym", True):
        raise ArgumentError(
            f"exponential: a symmetric window has its center in the middle; leave center={center} "
            "away, or pass sym=False"
        )

    def shape(k: Any, last: float) -> Any:
        return np.exp(-np.abs(k - (last / 2 if center is None else center)) / tau)

    return _window("exponential", M, shape, options, math.exp(-abs(center or 0.0) / tau))


def cosine(M: int, **options: object) -> Tensor:
    """sin(pi (k + 0.5) / (N + 1)).

    >>> flow.signal.windows.cosine(3)
    tensor([0.5000, 1.0000, 0.5000])
    """
    return _window("cosine", M, lambda k, last: np.sin(np.pi * (k + 0.5) / (last + 1)), options)


def gaussian(M: int, *, std: float = 1.0, **options: object) -> Tensor:
    """exp(-((k - N / 2) / std) ** 2 / 2).

    >>> flow.signal.windows.gaussian(3)
    tensor([0.6065, 1.0000, 0.6065])
    """
    _need_positive("gaussian", "std", std)
    return _window(
        "gaussian", M, lambda k, last: np.exp(-(((k - last / 2) / std) ** 2) / 2), options
    )


def kaiser(M: int, *, beta: float = 12.0, **options: object) -> Tensor:
    """I0(beta sqrt(1 - (2 k / N - 1) ** 2)) / I0(beta), I0 being the modified Bessel function.

    >>> flow.signal.windows.kaiser(3, beta=1.0)
    tensor([0.7898, 1.0000, 0.7898])
    """
    if beta < 0:
        raise ArgumentError(f"kaiser: beta is not negative, got {beta}")
    return _window("kaiser", M, tapers.kaiser(beta), options)


def bartlett(M: int, **options: object) -> Tensor:
    """The triangle 1 - |2 k / N - 1|.

    >>> flow.signal.windows.bartlett(5)
    tensor([0.0000, 0.5000, 1.0000, 0.5000, 0.0000])
    """
    return _window("bartlett", M, tapers.triangle, options)


def _cosines(name: str, M: int, a: Iterable[float], options: dict[str, object]) -> Tensor:
    if not isinstance(a, Iterable):
        raise ArgumentTypeError(f"{name}: a is a list of coefficients, got {type(a).__name__}")
    weights = [float(w) for w in a]
    if not weights:
        raise ArgumentError(f"{name}: a has one coefficient or more, got none")
    return _window(name, M, tapers.cosines(*weights), options)


def general_cosine(M: int, *, a: Iterable[float], **options: object) -> Tensor:
    """a[0] - a[1] cos(2 pi k / N) + a[2] cos(4 pi k / N) - ...

    >>> flow.signal.windows.general_cosine(3, a=[0.5, 0.5])
    tensor([0., 1., 0.])
    """
    return _cosines("general_cosine", M, a, options)


def general_hamming(M: int, *, alpha: float = 0.54, **options: object) -> Tensor:
    """alpha - (1 - alpha) cos(2 pi k / N).

    >>> flow.signal.windows.general_hamming(3, alpha=0.75)
    tensor([0.5000, 1.0000, 0.5000])
    """
    return _cosines("general_hamming", M, (alpha, 1.0 - alpha), options)


def hamming(M: int, **options: object) -> Tensor:
    """0.54 - 0.46 cos(2 pi k / N).

    >>> flow.signal.windows.hamming(3)
    tensor([0.0800, 1.0000, 0.0800])
    """
    return _cosines("hamming", M, (0.54, 0.46), options)


def hann(M: int, **options: object) -> Tensor:
    """sin(pi k / N) ** 2.

    >>> flow.signal.windows.hann(5)
    tensor([0.0000, 0.5000, 1.0000, 0.5000, 0.0000])
    """
    return _cosines("hann", M, (0.5, 0.5), options)


def blackman(M: int, **options: object) -> Tensor:
    """0.42 - 0.5 cos(2 pi k / N) + 0.08 cos(4 pi k / N).

    >>> flow.signal.windows.blackman(5)[1:4]
    tensor([0.3400, 1.0000, 0.3400])
    """
    return _cosines("blackman", M, (0.42, 0.5, 0.08), options)


def nuttall(M: int, **options: object) -> Tensor:
    """Four cosines, with side lobes 93 dB down (Nuttall, "Some windows with very good sidelobe
    behavior", 1981).

    >>> flow.signal.windows.nuttall(3)
    tensor([3.6280e-04, 1.0000e+00, 3.6280e-04])
    """
    return _cosines("nuttall", M, (0.3635819, 0.4891775, 0.1365995, 0.0106411), options)


__all__ = own_names(globals())
