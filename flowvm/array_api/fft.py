"""Discrete Fourier transforms along `axis` or `axes`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from flowvm.eager.tensor import Tensor
from flowvm.loading.listing import listing, own_names
from flowvm.meta.device import Device
from flowvm.meta.dtype import DType
from flowvm.ops.fourier import frequencies, transforms

__dir__ = listing(globals())


def _along_one(name: str, doc: str) -> object:
    inner: Callable[..., object] = getattr(transforms, name)

    def call(
        x: Tensor, /, *, n: int | None = None, axis: int = -1, norm: str = "backward"
    ) -> object:
        return inner(x, n, axis, norm)

    call.__name__ = call.__qualname__ = name
    call.__doc__ = doc
    return call


def _along_several(name: str, doc: str) -> object:
    inner: Callable[..., object] = getattr(transforms, name)

    def call(
        x: Tensor,
        /,
        *,
        s: Sequence[int] | None = None,
        axes: Sequence[int] | None = None,
        norm: str = "backward",
    ) -> object:
        return inner(x, s, axes, norm)

    call.__name__ = call.__qualname__ = name
    call.__doc__ = doc
    return call


fft = _along_one("fft", "Frequencies of complex numbers.")
ifft = _along_one("ifft", "The inverse of fft.")
rfft = _along_one("rfft", "Frequencies of real numbers, those that are not negative.")
irfft = _along_one("irfft", "The inverse of rfft: n real numbers, 2 (m - 1) of m frequencies.")
hfft = _along_one("hfft", "The real frequencies of what is Hermitian, of which half is given.")
ihfft = _along_one("ihfft", "The inverse of hfft.")
fftn = _along_several("fftn", "Frequencies of complex numbers, of several dimensions.")
ifftn = _along_several("ifftn", "The inverse of fftn.")
rfftn = _along_several("rfftn", "Frequencies of real numbers: half of them in the last dimension.")
irfftn = _along_several("irfftn", "The inverse of rfftn.")


def fftfreq(
    n: int, /, *, d: float = 1.0, dtype: DType | None = None, device: Device | str | None = None
) -> Tensor:
    """The frequencies of fft for samples `d` apart."""
    return frequencies.fftfreq(n, d, dtype=dtype, device=device)


def rfftfreq(
    n: int, /, *, d: float = 1.0, dtype: DType | None = None, device: Device | str | None = None
) -> Tensor:
    """The frequencies of rfft for samples `d` apart."""
    return frequencies.rfftfreq(n, d, dtype=dtype, device=device)


def fftshift(x: Tensor, /, *, axes: int | Sequence[int] | None = None) -> Tensor:
    """Frequency 0 in the middle."""
    return frequencies.fftshift(x, axes)


def ifftshift(x: Tensor, /, *, axes: int | Sequence[int] | None = None) -> Tensor:
    """The inverse of fftshift."""
    return frequencies.ifftshift(x, axes)


__all__ = own_names(globals())
