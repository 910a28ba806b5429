"""The checks of a normalisation's arguments.

The ops' infer functions call them, so a valid call is not checked again.
"""

from __future__ import annotations

import math

from flowvm.errors import ArgumentError, DTypeError, ShapeError
from flowvm.meta.meta import TensorMeta


def check_norm(
    x: TensorMeta, kind: str, size: int | tuple[int, ...], center: bool, **weights: TensorMeta
) -> None:
    """`kind` and `size` as in `norm_launch`, or "fixed" for batch norm by given statistics;
    `weights` have x's dtype.
    """
    name = f"{'batch' if kind == 'fixed' else kind}_norm" if center else "rms_norm"
    if not x.dtype.is_floating_point:
        raise DTypeError(f"{name} needs a floating point input, got {x.dtype.name}")
    if kind == "layer":
        _check_layer(name, x, size, weights)
    else:
        check_channels(name, x, **weights)
        _check_groups(name, x, kind, size)
    for which, w in weights.items():
        if w.dtype is not x.dtype:
            raise ShapeError(
                f"{name}: {which} must be {x.dtype.name} as the input is, got {w.dtype.name}"
            )


def _check_layer(
    name: str, x: TensorMeta, size: int | tuple[int, ...], weights: dict[str, TensorMeta]
) -> None:
    shape = (size,) if isinstance(size, int) else tuple(size)
    have = tuple(x.shape)
    if not shape or have[len(have) - len(shape) :] != shape:
        raise ShapeError(
            f"{name}: normalized_shape {shape} must be the last dimensions of the input's shape "
            f"{have}"
        )
    for which, w in weights.items():
        if tuple(w.shape) != shape:
            raise ShapeError(
                f"{name}: {which} must have normalized_shape {shape}, got {tuple(w.shape)}"
            )


def check_channels(name: str, x: TensorMeta, **per_channel: TensorMeta) -> None:
    """x is (N, C, ...) and the others are (C)."""
    if x.ndim < 2:
        raise ShapeError(f"{name}: input must be (N, C, ...), got shape {tuple(x.shape)}")
    channels = x.shape[1]
    for which, t in per_channel.items():
        if tuple(t.shape) != (channels,):
            raise ShapeError(
                f"{name}: {which} has one number for each of {channels} channels, got shape "
                f"{tuple(t.shape)}"
            )


def _check_groups(name: str, x: TensorMeta, kind: str, size: int | tuple[int, ...]) -> None:
    channels, space = x.shape[1], math.prod(x.shape[2:])
    if kind == "group" and (not isinstance(size, int) or size <= 0 or channels % size):
        raise ShapeError(f"{name}: {channels} channels do not divide into {size} groups")
    if kind == "batch" and x.shape[0] * space == 1:
        raise ArgumentError(
            f"{name}: training needs more than one value per channel, got input of shape "
            f"{tuple(x.shape)}"
        )
    if kind == "instance" and space == 1:
        raise ArgumentError(
            f"{name} needs more than one element per channel, got input of shape {tuple(x.shape)}"
        )
