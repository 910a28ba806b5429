"""Discrete Fourier transforms by the conventions of `torch.fft`: `flow.fft.rfft`, ...

The functions stand in `ops/fourier`.  They run on the CPU, as complex tensors do.
"""

from __future__ import annotations

from flowvm.loading.listing import listing

# --- public names, by `python -m tools.faces`
# isort: off
# fmt: off
from flowvm.ops.fourier.frequencies import fftfreq, fftshift, ifftshift, rfftfreq
from flowvm.ops.fourier.transforms import (
    fft, fft2, fftn, hfft, hfft2, hfftn, ifft, ifft2, ifftn, ihfft, ihfft2, ihfftn, irfft, irfft2,
    irfftn, rfft, rfft2, rfftn,
)

__all__ = [
    "fft", "fft2", "fftfreq", "fftn", "fftshift", "hfft", "hfft2", "hfftn", "ifft", "ifft2",
    "ifftn", "ifftshift", "ihfft", "ihfft2", "ihfftn", "irfft", "irfft2", "irfftn", "rfft", "rfft2",
    "rfftfreq", "rfftn",
]
# fmt: on
# isort: on
# --- by hand


__dir__ = listing(globals())
