"""Transforms of the frames of a signal (`stft`), and the signal of such transforms (`istft`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flowvm.eager.tensor import Tensor, method
from flowvm.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError
from flowvm.meta.dtype import int64
from flowvm.ops.declare.composite import need_tensor, whole
from flowvm.ops.fourier.transforms import fft, ifft, irfft, rfft
from flowvm.ops.shapes.complex_parts import view_as_real
from flowvm.ops.shapes.fill import ones, zeros
from flowvm.ops.shapes.padding import pad
from flowvm.ops.shapes.ranges import arange
from flowvm.ops.shapes.views import unsqueeze

LEAST = 1e-11  # of the windows' squares at any place of a signal that is to be found again


def _sizes(name: str, n_fft: Any, hop_length: Any, win_length: Any) -> tuple[int, int, int]:
    n = whole(name, "n_fft", n_fft)
    hop = n // 4 if hop_length is None else whole(name, "hop_length", hop_length)
    wide = n if win_length is None else whole(name, "win_length", win_length)
    if n < 1 or hop < 1 or not 0 < wide <= n:
        raise ArgumentError(
            f"{name}: n_fft and hop_length are at least 1 and win_length is from 1 to n_fft, got "
            f"{n}, {hop} and {wide}"
        )
    return n, hop, wide


def _window(name: str, window: Tensor | None, wide: int, n: int, like: Any) -> Tensor:
    """The window of `wide` elements, in the middle of n."""
    if window is None:
        window = ones(wide, dtype=like.dtype.real, device=like.device)
    w: Tensor = need_tensor(name, "window", window)
    if tuple(w.shape) != (wide,):
        raise ShapeError(f"{name}: window has {wide} elements, got shape {tuple(w.shape)}")
    margin = (n - wide) // 2
    return pad(w, (margin, n - wide - margin)) if wide < n else w


# public: flow
@method()
def stft(
    input: Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Tensor | None = None,
    center: bool = True,
    pad_mode: str = "reflect",
    normalized: bool = False,
    onesided: bool | None = None,
    return_complex: bool | None = None,
    align_to_window: bool | None = None,
) -> Tensor:
    """The transforms of the frames of a signal (samples) or of several (signals, samples):
    (signals, frequencies, frames).

    n_fft, hop_length     samples of a frame, and from one to the next (default n_fft // 4)
    win_length, window    what a frame is multiplied with, of win_length (n_fft) elements, by
                          default ones
    center, pad_mode      whether a frame's middle is its place: the signal is padded
    normalized            over the root of n_fft
    onesided              half of the frequencies; default: for real numbers
    return_complex        False: pairs of real numbers; must be given for real numbers

    >>> x = flow.arange(8.0)
    >>> flow.stft(x, 4, window=flow.ones(4), return_complex=True).shape  # (frequencies, frames)
    flow.Size([3, 9])
    """
    x: Any = need_tensor("stft", "input", input)
    n, hop, wide = _sizes("stft", n_fft, hop_length, win_length)
    if x.ndim not in (1, 2) or not x.dtype.inexact:
        raise ShapeError(
            f"stft takes floats (samples) or (signals, samples), got {x.dtype.name} of shape "
            f"{tuple(x.shape)}"
        )
    plain = not x.dtype.is_complex and not (window is not None and window._meta.dtype.is_complex)
    if return_complex is None:
        if plain:
            raise ArgumentTypeError("stft: say return_complex=True, or False for pairs of numbers")
        return_complex = True
    if align_to_window is not None and center:
        raise ArgumentError("stft: align_to_window has no meaning with center=True")
    half = plain if onesided is None else bool(onesided)
    if half and not plain:
        raise DTypeError("stft: complex numbers have no half of frequencies; use onesided=False")
    one = x.ndim == 1
    x = unsqueeze(x, 0) if one else x
    if center:
        x = unsqueeze(x, 1) if pad_mode != "constant" else x
        x = pad(x, (n // 2, n // 2), pad_mode)
        x = x.reshape((x.shape[0], -1))
    used = wide if align_to_window else n
    if x.shape[-1] < used:
        raise ShapeError(f"stft: {x.shape[-1]} samples are less than a frame of {used}")
    if align_to_window:
        margin = (n - wide) // 2
        x = pad(x, (margin, n - wide - margin))
    frames = x.unfold(-1, n, hop) * _window("stft", window, wide, n, x)
    norm = "ortho" if normalized else "backward"
    spectrum: Tensor = (rfft if half else fft)(frames, n, -1, norm)
    spectrum = spectrum.transpose(1, 2)
    spectrum = spectrum[0] if one else spectrum
    return spectrum if return_complex else view_as_real(spectrum)


# public: flow
@method()
def istft(
    input: Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Tensor | None = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    length: int | None = None,
    return_complex: bool = False,
) -> Tensor:
    """The signal whose frames have these transforms, (frequencies, frames) or (signals,
    frequencies, frames), best by least squares: the inverse of `stft` with the same arguments.

    length   samples of the signal, by default as many as the frames reach.  ArgumentError where
             the windows leave a sample out.

    >>> x = flow.arange(8.0)
    >>> frames = flow.stft(x, 4, window=flow.ones(4), return_complex=True)
    >>> flow.allclose(flow.istft(frames, 4, window=flow.ones(4)), x, atol=1e-5)
    True
    """
    x: Any = need_tensor("istft", "input", input)
    n, hop, wide = _sizes("istft", n_fft, hop_length, win_length)
    if not x.dtype.is_complex or x.ndim not in (2, 3) or x.numel() == 0:
        raise ShapeError(
            f"istft takes complex numbers (*, frequencies, frames), got {x.dtype.name} of shape "
            f"{tuple(x.shape)}"
        )
    half = n // 2 + 1 == x.shape[-2] if onesided is None else bool(onesided)
    if x.shape[-2] != (n // 2 + 1 if half else n):
        raise ShapeError(
            f"istft: {x.shape[-2]} frequencies are not those of frames of {n}, "
            f"{'half' if half else 'all'} of them"
        )
    if half and return_complex:
        raise DTypeError("istft: half of the frequencies give real numbers; use onesided=False")
    one = x.ndim == 2
    x = unsqueeze(x, 0) if one else x
    norm = "ortho" if normalized else "backward"
    w = _window("istft", window, wide, n, x)
    back: Callable[..., Tensor] = (
        ifft if return_complex else irfft
    )  # which reads the half that says all
    x = x.transpose(1, 2)
    frames = back(x if return_complex else x[..., : n // 2 + 1], n, -1, norm) * w
    signals, count = frames.shape[0], frames.shape[1]
    whole_ = n + hop * (count - 1)
    starts = arange(count, dtype=int64, device=x.device) * hop
    places = (unsqueeze(starts, 1) + arange(n, dtype=int64, device=x.device)).reshape((-1,))

    def added(values: Any) -> Any:
        empty: Tensor = zeros(values.shape[0], whole_, dtype=values.dtype, device=values.device)
        return empty.index_add(1, places, values.reshape((values.shape[0], -1)))

    begin = n // 2 if center else 0
    end = whole_ - begin if length is None else begin + whole("istft", "length", length)
    squares = added((w * w).expand((1, count, n)))[:, begin:end]
    if squares.numel() == 0 or squares.abs().min().item() <= LEAST:
        raise ArgumentError("istft: the windows leave samples out; their squares add up to 0 there")
    signal = added(frames)[:, begin:end] / squares
    if end > whole_:
        signal = pad(signal, (0, end - whole_))
    waves: Tensor = signal[0] if one else signal.reshape((signals, -1))
    return waves
