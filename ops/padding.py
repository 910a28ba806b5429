"""Elements moved about whole: flipped, rolled, rotated, padded.  Views, `cat` and copies; no kernel
of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flowvm.errors import ArgumentError, ShapeError
from flowvm.interpreter import call_into
from flowvm.meta import TensorMeta
from flowvm.ops.core import _copy, cast, clone
from flowvm.ops.joining import cat
from flowvm.ops.recording import Recorded, filled_of, need_tensor, record, wrap_dim, wrap_dims
from flowvm.ops.registry import samples
from flowvm.ops.slicing import _slice, basic_view
from flowvm.ops.views import _given, _xs, flatten, reshape, transpose
from flowvm.tensor import Tensor, alias, method

__all__ = ["flip", "fliplr", "flipud", "pad", "roll", "rot90"]

_flip_op = Recorded("flip", lambda c, g: (flip(g, c.attrs[0]),))


@method("flip")
def _flip_method(x: Tensor, *dims: Any) -> Tensor:
    """A copy in which the order of `dims` is reversed."""
    return flip(x, _given(dims))


def flip(input: Tensor, dims: int | Sequence[int]) -> Tensor:
    """A copy in which the elements along `dims` come in reverse order."""
    meta = need_tensor("flip", "input", input)._meta
    turned = wrap_dims("flip", dims, meta.ndim)
    if meta.ndim == 0 or meta.numel == 0:
        return clone(input)
    # the copy reads backwards: negative strides, from the last element; no such view leaves this
    # function
    stride = tuple(-s if d in turned else s for d, s in enumerate(meta.stride))
    last = sum((meta.shape[d] - 1) * meta.stride[d] for d in turned)
    backwards = TensorMeta.of(meta.shape, meta.dtype, meta.device, stride)
    out = cast(alias(input, backwards, last * meta.dtype.itemsize), meta.dtype)
    return record(_flip_op, (input,), out, (turned,))


@method()
def fliplr(input: Tensor) -> Tensor:
    """Left to right: dimension 1 reversed."""
    if need_tensor("fliplr", "input", input)._meta.ndim < 2:
        raise ShapeError(f"fliplr: needs at least 2 dimensions, got shape {tuple(input.shape)}")
    return flip(input, (1,))


@method()
def flipud(input: Tensor) -> Tensor:
    """Upside down: dimension 0 reversed."""
    if need_tensor("flipud", "input", input)._meta.ndim < 1:
        raise ShapeError("flipud: needs at least 1 dimension, got a 0-d tensor")
    return flip(input, (0,))


@method()
def roll(
    input: Tensor, shifts: int | Sequence[int], dims: int | Sequence[int] | None = None
) -> Tensor:
    """A copy shifted by `shifts` along `dims`; what leaves at one end comes in at the other.

    Without `dims` the flattened tensor is rolled, and has its shape again.
    """
    x = need_tensor("roll", "input", input)
    by = _given((shifts,))
    if dims is None:
        if len(by) != 1:
            raise ArgumentError(f"roll: without dims there is one shift, got {by}")
        return reshape(roll(flatten(x), by, 0), x._meta.shape)
    along = [wrap_dim("roll", d, x._meta.ndim) for d in _given((dims,))]
    if len(along) != len(by):
        raise ArgumentError(f"roll: shifts {by} and dims {tuple(along)} have different lengths")
    if x._meta.numel == 0 or x._meta.ndim == 0:
        return clone(x)
    out = x
    for shift, d in zip(by, along, strict=True):
        size = x._meta.shape[d]
        cut = -shift % size
        if cut:
            out = cat([_slice(out, d, cut, size - cut, 1), _slice(out, d, 0, cut, 1)], d)
    return clone(out) if out is x else out


@method()
def rot90(input: Tensor, k: int = 1, dims: Sequence[int] = (0, 1)) -> Tensor:
    """A copy turned `k` times by 90 degrees from the first of `dims` towards the second."""
    x = need_tensor("rot90", "input", input)
    turned = wrap_dims("rot90", tuple(dims), x._meta.ndim)
    if len(turned) != 2:
        raise ArgumentError(f"rot90: needs two dimensions to turn, got {tuple(dims)}")
    a, b = turned
    if k % 4 == 1:
        return clone(transpose(flip(x, (b,)), a, b))
    if k % 4 == 2:
        return flip(x, turned)
    if k % 4 == 3:
        return clone(transpose(flip(x, (a,)), a, b))
    return clone(x)


# --- padding ------------------------------------------------------------------------------------


def _constant_grad(c: Any, g: Tensor) -> tuple[Tensor]:
    return (basic_view(g, c.attrs[0]),)


_constant_op = Recorded("pad", _constant_grad)


def _constant(x: Tensor, sides: dict[int, tuple[int, int]], value: float) -> Tensor:
    shape = list(x._meta.shape)
    for d, (before, after) in sides.items():  # negative padding takes away first
        start, end = max(0, -before), shape[d] + min(0, after)
        x = _slice(x, d, start, end - start, 1) if before < 0 or after < 0 else x
        shape[d] += before + after
    out = filled_of(x._meta.with_shape(shape), value)
    inner = tuple(
        (max(0, sides.get(d, (0, 0))[0]), size, 1) for d, size in enumerate(x._meta.shape)
    )
    if x._meta.numel:
        target = basic_view(out, inner)
        call_into(_copy, (target,), (x,))
    return record(_constant_op, (x,), out, (inner,))


def _bordered(x: Tensor, d: int, before: int, after: int, mode: str) -> Tensor:
    """`x` with borders made of its own elements along one dimension."""
    size = x._meta.shape[d]
    if before < 0 or after < 0:
        x = _slice(x, d, max(0, -before), size + min(0, before) + min(0, after), 1)
        before, after, size = max(0, before), max(0, after), x._meta.shape[d]
    most = {"reflect": size - 1, "circular": size, "replicate": before + after if size else 0}[mode]
    if max(before, after) > most:
        raise ShapeError(
            f"pad: mode {mode!r} can add at most {most} to dimension {d} of size {size}, got "
            f"({before}, {after})"
        )
    first, last = x, x
    if mode == "reflect":
        first = flip(_slice(x, d, 1, before, 1), (d,)) if before else x
        last = flip(_slice(x, d, size - 1 - after, after, 1), (d,)) if after else x
    elif mode == "circular":
        first, last = _slice(x, d, size - before, before, 1), _slice(x, d, 0, after, 1)
    else:
        shape = list(x._meta.shape)
        shape[d] = before
        first = _slice(x, d, 0, 1, 1).expand(shape) if before else x
        shape[d] = after
        last = _slice(x, d, size - 1, 1, 1).expand(shape) if after else x
    parts = [*([first] if before else []), x, *([last] if after else [])]
    return cat(parts, d) if len(parts) > 1 else x


def pad(
    input: Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None
) -> Tensor:
    """`input` with a border: `pad` is (before, after) of the last dimension, then of the one before
    it, and so on.

    mode   "constant" fills with `value` (default 0), "reflect" mirrors without repeating the edge,
           "replicate" repeats
           the edge, "circular" wraps around; these three are for 1 to 3 last dimensions of a tensor
           with at
           least one more.
    Negative numbers take elements away.
    """
    x = need_tensor("pad", "input", input)
    widths = _given((pad,))
    if len(widths) % 2 or len(widths) > 2 * x._meta.ndim:
        raise ArgumentError(
            f"pad: {widths} needs two numbers for each padded dimension, at most "
            f"{2 * x._meta.ndim} for "
            f"shape {tuple(x.shape)}"
        )
    if mode not in ("constant", "reflect", "replicate", "circular"):
        raise ArgumentError(
            f"pad: mode is 'constant', 'reflect', 'replicate' or 'circular', not {mode!r}"
        )
    sides = {
        x._meta.ndim - 1 - i: (widths[2 * i], widths[2 * i + 1]) for i in range(len(widths) // 2)
    }
    for d, (before, after) in sides.items():
        if (
            x._meta.shape[d] + before + after < 0
            or min(before, 0) + min(after, 0) < -x._meta.shape[d]
        ):
            raise ShapeError(f"pad: ({before}, {after}) leaves less than nothing of dimension {d}")
    if mode == "constant":
        return _constant(x, sides, 0 if value is None else value)
    if value is not None and value != 0:
        raise ArgumentError(f"pad: mode {mode!r} takes no value, got {value}")
    if x._meta.ndim - len(sides) not in (1, 2):
        raise ArgumentError(
            f"pad: mode {mode!r} pads all dimensions but the first one or two, got {widths} for "
            f"shape {tuple(x.shape)}"
        )
    for d, (before, after) in sorted(sides.items(), reverse=True):
        x = _bordered(x, d, before, after, mode)
    return x if x is not input else clone(x)


# --- samples ------------------------------------------------------------------------------------

samples(
    flip,
    lambda rng: _xs(
        rng, ((2, 3, 2), (0, 2)), ((3,), (0,)), ((2, 3), (-1,)), ((0, 2), (1,)), ((2,), ())
    ),
    np.flip,
    errors=((lambda flow: flow.flip(flow.ones(2), (1,)), IndexError),),
)
samples(fliplr, lambda rng: _xs(rng, ((2, 3),)), np.fliplr)
samples(flipud, lambda rng: _xs(rng, ((3, 2),), ((3,),)), np.flipud)
samples(
    roll,
    lambda rng: _xs(
        rng, ((2, 3), 4), ((2, 3), (1, -1), (0, 1)), ((4,), 2, 0), ((0, 2), 1, 1), ((3,), 3, 0)
    ),
    np.roll,
    errors=((lambda flow: flow.roll(flow.ones(2, 2), (1, 1)), ValueError),),
)
samples(
    rot90,
    lambda rng: _xs(rng, ((2, 3),), ((2, 3), 2), ((2, 3, 2), -1, (1, 2)), ((2, 2), 4)),
    np.rot90,
    errors=((lambda flow: flow.rot90(flow.ones(2, 2), 1, (0,)), ValueError),),
)
_MODES = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}


def _numpy_pad(
    x: Any, widths: Sequence[int], mode: str = "constant", value: float | None = None
) -> Any:
    if not widths:
        return x
    pairs = [(0, 0)] * x.ndim
    for i in range(len(widths) // 2):
        pairs[-1 - i] = (widths[2 * i], widths[2 * i + 1])
    cuts = tuple(
        slice(max(0, -a), n - max(0, -b)) for n, (a, b) in zip(x.shape, pairs, strict=True)
    )
    pairs = [(max(0, a), max(0, b)) for a, b in pairs]
    options = {"constant_values": value or 0} if mode == "constant" else {}
    return np.pad(x[cuts], pairs, _MODES[mode], **options)  # type: ignore[call-overload]


samples(
    pad,
    lambda rng: _xs(
        rng,
        ((2, 3), (1, 2)),
        ((2, 3), (0, 1, 2, 0), "constant", 1.5),
        ((2, 4), (-1, 2)),
        ((), ()),
        ((2, 0), (1, 1)),
        ((1, 2, 4), (2, 1), "reflect"),
        ((1, 2, 3), (1, 2), "replicate"),
        ((1, 1, 3, 3), (1, 2, 2, 0), "circular"),
        ((1, 1, 3, 3), (1, 2, 2, 0), "reflect"),
    ),
    _numpy_pad,
    errors=(
        (lambda flow: flow.pad(flow.ones(2), (1,)), ValueError),
        (lambda flow: flow.pad(flow.ones(2), (1, 1), "mirror"), ValueError),
        (lambda flow: flow.pad(flow.ones(1, 2), (2, 0), "reflect"), RuntimeError),
        (lambda flow: flow.pad(flow.ones(2), (-3, 0)), RuntimeError),
    ),
)
