"""Physical metas: all examples of a tensor as one, by where the levels' dimensions are put, and the
metas of one example again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from flowvm.meta.batched_meta import Axis, axes_of, example_of, with_axes
from flowvm.meta.meta import TensorMeta, dense_stride

Wrap = Callable[[int, TensorMeta], TensorMeta]


def batched_axes(metas: Sequence[TensorMeta]) -> tuple[Axis, ...]:
    """Return the levels at which some operand is not shared."""
    by_level = {a.level: a for m in metas for a in axes_of(m) if a.stride}
    return tuple(sorted(by_level.values()))


def steps(meta: TensorMeta, axes: Sequence[Axis]) -> tuple[int, ...]:
    """Return a meta's distances at these levels."""
    own = {a.level: a.stride for a in axes_of(meta)}
    return tuple(own.get(a.level, 0) for a in axes)


def is_shared(meta: TensorMeta, axes: Sequence[Axis]) -> bool:
    """Return True if a meta is one for all examples of these levels."""
    return not any(steps(meta, axes))


def in_front(meta: TensorMeta, axes: Sequence[Axis], rank: int | None = None) -> TensorMeta:
    """Return the physical meta with the levels' dimensions in front, an example's padded with sizes
    of 1 to `rank`.
    """
    ones = 0 if rank is None else rank - meta.ndim
    shape = (*(a.size for a in axes), *(1,) * ones, *meta.shape)
    stride = (*steps(meta, axes), *(0,) * ones, *meta.stride)
    return TensorMeta.of(shape, meta.dtype, example_of(meta).device, stride)


def behind(axes: Sequence[Axis], shared: Sequence[Axis] = ()) -> Wrap:
    """Make the wrap of results that have the levels' dimensions in front."""
    n = len(axes)

    def wrap(place: int, out: TensorMeta) -> TensorMeta:
        local = TensorMeta.of(out.shape[n:], out.dtype, out.device, out.stride[n:])
        own = [a._replace(stride=s) for a, s in zip(axes, out.stride, strict=False)]
        return with_axes(local, (*own, *shared))

    return wrap


def in_front_of_ones(meta: TensorMeta, axes: Sequence[Axis], rank: int) -> TensorMeta:
    """Return `in_front` with sizes of 1 for levels at which the operand is shared."""
    ahead = [(a.size, s) if s else (1, 0) for a, s in zip(axes, steps(meta, axes), strict=True)]
    ones = rank - meta.ndim
    shape = (*(n for n, _ in ahead), *(1,) * ones, *meta.shape)
    stride = (*(s for _, s in ahead), *(0,) * ones, *meta.stride)
    return TensorMeta.of(shape, meta.dtype, example_of(meta).device, stride)


def ahead_of(meta: TensorMeta, axes: Sequence[Axis], at: int) -> TensorMeta:
    """Return the physical meta with the levels' dimensions in front of dimension `at`."""
    shape = (*meta.shape[:at], *(a.size for a in axes), *meta.shape[at:])
    stride = (*meta.stride[:at], *steps(meta, axes), *meta.stride[at:])
    return TensorMeta.of(shape, meta.dtype, example_of(meta).device, stride)


def folded_meta(meta: TensorMeta, axes: Sequence[Axis], at: int) -> TensorMeta | None:
    """Return the physical meta with the levels in dimension `at`, None if memory has it not so."""
    run, step = meta.shape[at], meta.stride[at]
    for axis, s in zip(reversed(axes), reversed(steps(meta, axes)), strict=True):
        if run == 1:
            step = s
        elif s != run * step:
            return None
        run *= axis.size
    shape = (*meta.shape[:at], run, *meta.shape[at + 1 :])
    stride = (*meta.stride[:at], step, *meta.stride[at + 1 :])
    return TensorMeta.of(shape, meta.dtype, example_of(meta).device, stride)


def unfolded_meta(
    out: TensorMeta, axes: Sequence[Axis], at: int, size: int, shared: Sequence[Axis] = ()
) -> TensorMeta:
    """Return the meta of an example whose dimension `at` has `size` elements in a result that has
    the levels in it, too.
    """
    step = out.stride[at]
    within = dense_stride([*(a.size for a in axes), size])
    own = [a._replace(stride=step * w) for a, w in zip(axes, within, strict=False)]
    shape = (*out.shape[:at], size, *out.shape[at + 1 :])
    local = TensorMeta.of(shape, out.dtype, out.device, out.stride)
    return with_axes(local, (*own, *shared))
