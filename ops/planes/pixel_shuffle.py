"""Channels and space exchanged: views and one copy each; no kernel of its own."""

from __future__ import annotations

from typing import Any

from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, ShapeError
from flowvm.ops.declare.composite import need_tensor
from flowvm.ops.declare.registry import Sample, samples

# public: flow, F


def _factor(name: str, what: str, value: int) -> int:
    if not isinstance(value, int) or value < 1:
        raise ArgumentError(f"{name}: {what} must be a positive int, got {value!r}")
    return value


def _image(name: str, input: Tensor) -> tuple[tuple[int, ...], int, int, int]:
    """Leading dimensions, channels, height and width."""
    shape = tuple(need_tensor(name, "input", input)._meta.shape)
    if len(shape) < 3:
        raise ShapeError(f"{name}: input has at least 3 dimensions, got shape {shape}")
    return shape[:-3], shape[-3], shape[-2], shape[-1]


def pixel_shuffle(input: Tensor, upscale_factor: int | tuple[int, int]) -> Tensor:
    """(..., C * r * r, H, W) to (..., C, H * r, W * r); r * r channels become pixels.  A pair has
    the factors of H and W.

    >>> flow.pixel_shuffle(flow.arange(4).view(1, 4, 1, 1), 2)
    tensor([[[[0, 1],
              [2, 3]]]])
    """
    lead, c, h, w = _image("pixel_shuffle", input)
    pair = upscale_factor if isinstance(upscale_factor, tuple) else (upscale_factor,) * 2
    if len(pair) != 2:
        raise ArgumentError(f"pixel_shuffle: upscale_factor is one or a pair, got {pair}")
    down, across = (_factor("pixel_shuffle", "upscale_factor", r) for r in pair)
    if c % (down * across):
        raise ShapeError(f"pixel_shuffle: {c} channels cannot be divided by {down} * {across}")
    n = len(lead)
    parts = input.reshape(*lead, c // (down * across), down, across, h, w)
    moved = parts.permute(*range(n), n, n + 3, n + 1, n + 4, n + 2)
    out: Tensor = moved.reshape(*lead, c // (down * across), h * down, w * across)
    return out


def pixel_unshuffle(input: Tensor, downscale_factor: int) -> Tensor:
    """(..., C, H * r, W * r) to (..., C * r * r, H, W); pixels become channels.

    >>> flow.pixel_unshuffle(flow.arange(4).view(1, 1, 2, 2), 2).flatten()
    tensor([0, 1, 2, 3])
    """
    lead, c, h, w = _image("pixel_unshuffle", input)
    r = _factor("pixel_unshuffle", "downscale_factor", downscale_factor)
    if h % r or w % r:
        raise ShapeError(f"pixel_unshuffle: {h} x {w} pixels cannot be divided by {r}")
    n = len(lead)
    parts = input.reshape(*lead, c, h // r, r, w // r, r)
    moved = parts.permute(*range(n), n, n + 2, n + 4, n + 1, n + 3)
    out: Tensor = moved.reshape(*lead, c * r * r, h // r, w // r)
    return out


def channel_shuffle(input: Tensor, groups: int) -> Tensor:
    """(N, C, *): the channels of `groups` groups dealt in turn, the first of each group first.

    >>> flow.channel_shuffle(flow.arange(4).view(1, 4, 1), 2).flatten()
    tensor([0, 2, 1, 3])
    """
    shape = tuple(need_tensor("channel_shuffle", "input", input)._meta.shape)
    if len(shape) < 3:
        raise ShapeError(f"channel_shuffle: input has at least 3 dimensions, got shape {shape}")
    g = _factor("channel_shuffle", "groups", groups)
    if shape[1] % g:
        raise ShapeError(f"channel_shuffle: {shape[1]} channels cannot be divided by {g} groups")
    parts = input.reshape(shape[0], g, shape[1] // g, *shape[2:])
    out: Tensor = parts.transpose(1, 2).reshape(shape)
    return out


# --- samples ------------------------------------------------------------------------------------


def _shuffled(x: Any, r: int) -> object:
    c, h, w = x.shape[-3:]
    parts = x.reshape(-1, c // (r * r), r, r, h, w).transpose(0, 1, 4, 2, 5, 3)
    return parts.reshape(*x.shape[:-3], c // (r * r), h * r, w * r)


def _unshuffled(x: Any, r: int) -> object:
    c, h, w = x.shape[-3:]
    parts = x.reshape(-1, c, h // r, r, w // r, r).transpose(0, 1, 3, 5, 2, 4)
    return parts.reshape(*x.shape[:-3], c * r * r, h // r, w // r)


samples(
    pixel_shuffle,
    lambda rng: [
        Sample((rng.standard_normal((2, 8, 2, 3)), 2)),
        Sample((rng.standard_normal((9, 2, 1)), 3)),
        Sample((rng.integers(0, 9, (2, 1, 4, 1, 2)), 2)),
    ],
    _shuffled,
    errors=(
        (lambda flow: flow.pixel_shuffle(flow.ones(3, 2, 2), 2), RuntimeError),
        (lambda flow: flow.pixel_shuffle(flow.ones(4, 2), 2), RuntimeError),
        (lambda flow: flow.pixel_shuffle(flow.ones(4, 2, 2), 0), ValueError),
    ),
)
samples(
    pixel_unshuffle,
    lambda rng: [
        Sample((rng.standard_normal((2, 2, 4, 6)), 2)),
        Sample((rng.standard_normal((1, 3, 6)), 3)),
    ],
    _unshuffled,
    errors=((lambda flow: flow.pixel_unshuffle(flow.ones(1, 3, 2), 2), RuntimeError),),
)
samples(
    channel_shuffle,
    lambda rng: [
        Sample((rng.standard_normal((2, 6, 2, 3)), 2)),
        Sample((rng.standard_normal((1, 6, 4)), 3)),
    ],
    lambda x, g: x.reshape(len(x), g, -1, *x.shape[2:]).swapaxes(1, 2).reshape(x.shape),
    errors=(
        (lambda flow: flow.channel_shuffle(flow.ones(1, 5, 2), 2), RuntimeError),
        (lambda flow: flow.channel_shuffle(flow.ones(4, 2), 2), RuntimeError),
    ),
)
