"""Images looked up at places that are data: `grid_sample`, and `affine_grid`, which makes places.

Both are put together from other ops, so all their gradients follow: a sample is a sum of elements,
each read by `gather` and weighed by how near it is (Jaderberg et al., Spatial Transformer Networks,
2015).
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from flowvm.eager.autocast import outside, widened
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, DTypeError, ShapeError
from flowvm.meta.dtype import float32, int64
from flowvm.ops.declare.composite import need_tensor, whole
from flowvm.ops.declare.registry import Sample, samples
from flowvm.ops.places.gather import gather
from flowvm.ops.pointwise.compare import lt, where
from flowvm.ops.pointwise.math import floor
from flowvm.ops.pointwise.math import round as rounded
from flowvm.ops.products.matmul import matmul
from flowvm.ops.shapes.create import tensor
from flowvm.vm.callers.hot import hot

if TYPE_CHECKING:
    from flowvm.meta.arrays import Array


_MODES = ("bilinear", "nearest", "bicubic")
_PADDINGS = ("zeros", "border", "reflection")
MOST = 1 << 31  # places of a grid
CUBIC = -0.75  # the free number of the cubic kernel (Keys, 1981), as for interpolate


# --- places -------------------------------------------------------------------------------------


def _warn(name: str, align_corners: bool | None) -> bool:
    if align_corners is None:
        warnings.warn(f"{name}: align_corners is False where it is not given", stacklevel=3)
    return bool(align_corners)


def _line(n: int, corners: bool) -> Array:
    """n places from -1 to 1: with `corners` the ends themselves, else the middles of n parts."""
    if n == 1:
        return np.zeros(1)
    return np.linspace(-1, 1, n) * (1 if corners else (n - 1) / n)


def _counts(size: Sequence[int]) -> tuple[int, ...]:
    counts = tuple(whole("affine_grid", "size", s) for s in size)
    if math.prod(counts[2:]) >= MOST:
        raise ShapeError(f"affine_grid: a grid has less than {MOST} places, got size {counts}")
    return counts


# public: flow, F
def affine_grid(theta: Tensor, size: Sequence[int], align_corners: bool | None = None) -> Tensor:
    """The places that each element of an image of `size` comes from under an affine map.

    theta  (N, 2, 3) for a size (N, C, H, W): the grid is (N, H, W, 2), of x and y; or (N, 3, 4) for
           (N, C, D, H, W): (N, D, H, W, 3), of x, y and z
    align_corners  whether -1 and 1 are the middles of the first and last elements, or their edges

    >>> theta = flow.tensor([[[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]])  # each from where it is
    >>> F.affine_grid(theta, (1, 1, 1, 2), align_corners=True)
    tensor([[[[-1.,  0.],
              [ 1.,  0.]]]])
    """
    meta, size = need_tensor("affine_grid", "theta", theta)._meta, _counts(size)
    n = len(size) - 2
    if n not in (2, 3) or tuple(meta.shape) != (size[0], n, n + 1) or min(size) < 1:
        raise ShapeError(
            f"affine_grid: theta is (N, 2, 3) for a size (N, C, H, W) or (N, 3, 4) for (N, C, D, "
            f"H, W), none of them 0, got {tuple(meta.shape)} and size {size}"
        )
    if not meta.dtype.is_floating_point:
        raise DTypeError(f"affine_grid: theta is floating point, got {meta.dtype.name}")
    corners = _warn("affine_grid", align_corners)
    lines = np.meshgrid(*(_line(s, corners) for s in size[2:]), indexing="ij")
    base = np.stack([*reversed(lines), np.ones(size[2:])], -1).reshape(-1, n + 1)
    places = tensor(base, dtype=meta.dtype, device=meta.device)
    grid: Tensor = outside(matmul, places, theta.transpose(1, 2)).reshape((size[0], *size[2:], n))
    return grid


def _within(x: Tensor, size: int) -> Tensor:
    """Kept between the first and the last element; no gradient from the ends on, as in PyTorch."""
    low = where(x > 0, x, 0.0)
    out: Tensor = where(low < size - 1, low, float(size - 1))
    return out


def _reflected(x: Tensor, size: int, corners: bool) -> Tensor:
    """Turned back at the middles of the end elements, or at their edges, as often as needed."""
    low, span = (0.0, float(size - 1)) if corners else (-0.5, float(size))
    if span == 0:
        return x * 0
    off = x - low
    off = where(off < 0, -off, off)
    turns = floor(off.detach() / span)
    rest = off - turns * span
    odd = turns.remainder(2) != 0
    out: Tensor = where(odd, span - rest, rest) + low
    return out


def _moved(x: Tensor, size: int, padding: str, corners: bool) -> Tensor:
    if padding == "border":
        return _within(x, size)
    if padding == "reflection":
        return _within(_reflected(x, size, corners), size)
    return x


Tap = tuple[Tensor, Tensor | None]  # whole places along a dimension, and their weights


def _taps(x: Tensor, size: int, mode: str, padding: str, corners: bool) -> list[Tap]:
    """Return the taps to read along one dimension for the places x, in elements."""
    if mode == "nearest":
        return [(rounded(_moved(x, size, padding, corners)), None)]
    if mode == "bilinear":
        x = _moved(x, size, padding, corners)
        first = floor(x.detach())
        far = x - first
        return [(first, 1 - far), (first + 1, far)]
    first = floor(x.detach())
    t = x - first
    far = (t + 1, t, 1 - t, 2 - t)
    return [
        (_moved(first + k, size, padding, corners), _cubic(x, k in (0, 1)))
        for k, x in zip((-1, 0, 1, 2), far, strict=True)
    ]


def _cubic(x: Tensor, near: bool) -> Tensor:
    """The weight of an element that is x away: at most 1 if `near`, else from 1 to 2."""
    a = CUBIC
    if near:
        return ((a + 2) * x - (a + 3)) * x * x + 1
    return (((x - 5) * x + 8) * x - 4) * a


# public: flow, F
def grid_sample(
    input: Tensor,
    grid: Tensor,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool | None = None,
) -> Tensor:
    """`input` looked up at the places in `grid`.

    input  (N, C, H, W), and grid (N, H', W', 2), of x and y between -1 and 1: (N, C, H', W');
           or (N, C, D, H, W) and (N, D', H', W', 3), of x, y and z
    mode   "bilinear" (between the 4 or 8 nearest), "nearest", or "bicubic" (for images alone)
    padding_mode   outside there are "zeros", the elements of the "border", or a "reflection"
    align_corners  whether -1 and 1 are the middles of the first and last elements, or their edges

    >>> image = flow.tensor([[[[1.0, 3.0]]]])
    >>> places = flow.tensor([[[[0.0, 0.0], [1.0, 0.0]]]])  # the middle, and the right pixel
    >>> F.grid_sample(image, places, align_corners=True)
    tensor([[[[2., 3.]]]])
    """
    if hot["autocast"]:
        input, grid = widened(input, grid)
    x = need_tensor("grid_sample", "input", input)._meta
    g = need_tensor("grid_sample", "grid", grid)._meta
    n = x.ndim - 2
    if n not in (2, 3) or g.ndim != n + 2 or g.shape[-1] != n or g.shape[0] != x.shape[0]:
        raise ShapeError(
            f"grid_sample: input is (N, C, H, W) and grid (N, H', W', 2), or input (N, C, D, H, W) "
            f"and grid (N, D', H', W', 3), got {tuple(x.shape)} and {tuple(g.shape)}"
        )
    if x.dtype is not g.dtype or not x.dtype.is_floating_point:
        raise DTypeError(
            f"grid_sample: input and grid have one floating point dtype, got {x.dtype.name} and "
            f"{g.dtype.name}"
        )
    if 0 in x.shape[2:]:
        raise ShapeError(f"grid_sample: input of shape {tuple(x.shape)} has no elements to read")
    if mode not in _MODES or (mode == "bicubic" and n == 3):
        raise ArgumentError(
            f'grid_sample: mode is "bilinear", "nearest" or, for four dimensions, "bicubic", got '
            f"{mode!r} for {x.ndim} dimensions"
        )
    if padding_mode not in _PADDINGS:
        raise ArgumentError(
            f"grid_sample: padding_mode is one of {_PADDINGS}, got {padding_mode!r}"
        )
    corners = _warn("grid_sample", align_corners)
    if x.dtype.reduced:  # whose digits are too few for places
        wide: Tensor = grid_sample(input.to(float32), grid.to(float32), mode, padding_mode, corners)
        narrow: Tensor = wide.to(x.dtype)
        return narrow
    space = tuple(x.shape[2:])
    taps = []
    for d, size in enumerate(space):
        place = grid[..., n - 1 - d]
        scaled = (place + 1) * ((size - 1) / 2) if corners else ((place + 1) * size - 1) / 2
        taps.append(_taps(scaled, size, mode, padding_mode, corners))
    flat = input.reshape((x.shape[0], x.shape[1], math.prod(space)))
    total: Tensor | None = None
    for corner in itertools.product(*taps):
        term = _read(flat, space, corner)
        total = term if total is None else total + term
    assert total is not None
    if mode == "nearest" and grid.requires_grad:  # the gradient of steps, which is 0
        nothing = where(lt.call(grid, grid), grid, 0.0)  # also where the grid has no numbers
        total = total + nothing.sum(-1).unsqueeze(1)
    return total


def _read(flat: Tensor, space: Sequence[int], corner: Sequence[Tap]) -> Tensor:
    """The elements at whole places, times the weights; 0 outside."""
    index: Tensor | None = None
    inside: Tensor | None = None
    weight: Tensor | None = None
    for (place, share), size in zip(corner, space, strict=True):
        place = place.detach()
        inside_axis = (place >= 0).logical_and(place <= size - 1)
        own = where(inside_axis, place, 0.0).to(int64)
        index = own if index is None else index * size + own
        inside = inside_axis if inside is None else inside.logical_and(inside_axis)
        if share is not None:
            weight = share if weight is None else weight * share
    assert index is not None
    assert inside is not None
    shape = tuple(index._meta.shape)
    n, c = flat._meta.shape[:2]
    flat_index = index.reshape((n, 1, -1)).expand((n, c, math.prod(shape[1:])))
    values = gather(flat, 2, flat_index).reshape((n, c, *shape[1:]))
    counts = inside.to(flat._meta.dtype)
    scale = counts if weight is None else where(inside, weight, 0.0)
    out: Tensor = values * scale.unsqueeze(1)
    return out


# --- samples ------------------------------------------------------------------------------------


def _grid_reference(theta: object, size: Sequence[int], align_corners: bool = False) -> Array:
    lines = [_line(s, align_corners) for s in size[2:]]
    out = np.empty((size[0], *size[2:], len(lines)))
    for place in np.ndindex(*size[2:]):
        point = [*(line[i] for line, i in zip(lines, place, strict=True))][::-1]
        out[(slice(None), *place)] = theta @ np.array([*point, 1.0])
    return out


def _place_of(u: float, size: int, padding: str, corners: bool) -> float:
    if padding == "border":
        return min(max(u, 0.0), size - 1.0)
    if padding == "reflection":
        low, high = (0.0, size - 1.0) if corners else (-0.5, size - 0.5)
        while not low <= u <= high:
            u = 2 * low - u if u < low else 2 * high - u
        return min(max(u, 0.0), size - 1.0)
    return u


def _sample_reference(
    x: Array, grid: Array, mode: str = "bilinear", padding_mode: str = "zeros",
    align_corners: bool = False,
) -> Array:  # fmt: skip
    """Sample by definition, place by place, in one loop for all modes."""
    space = x.shape[2:]
    kernel, reach = {
        "nearest": (None, (0,)),
        "bilinear": (lambda t: max(0.0, 1 - abs(t)), (0, 1)),
        "bicubic": (_keys, (-1, 0, 1, 2)),
    }[mode]
    out = np.zeros((*x.shape[:2], *grid.shape[1:-1]))
    for at in np.ndindex(*grid.shape[:-1]):
        ways = []
        for size, p in zip(space, grid[at][::-1], strict=True):
            u = (p + 1) / 2 * (size - 1) if align_corners else ((p + 1) * size - 1) / 2
            if kernel is None:
                ways.append([(np.rint(_place_of(u, size, padding_mode, align_corners)), 1.0)])
                continue
            if mode == "bilinear":
                u = _place_of(u, size, padding_mode, align_corners)
            base = np.floor(u)
            places = [(base + k, kernel(u - base - k)) for k in reach]
            if mode == "bicubic":
                moved = (
                    (_place_of(p, size, padding_mode, align_corners), share) for p, share in places
                )
                places = list(moved)
            ways.append(places)
        for corner in itertools.product(*ways):
            place = tuple(int(p) for p, _ in corner)
            if all(0 <= p < size for p, size in zip(place, space, strict=True)):
                share = math.prod(w for _, w in corner)
                out[(at[0], slice(None), *at[1:])] += share * x[(at[0], slice(None), *place)]
    return out


def _keys(t: float) -> float:
    t, a = abs(t), CUBIC
    if t <= 1:
        return (a + 2) * t**3 - (a + 3) * t**2 + 1
    return a * t**3 - 5 * a * t**2 + 8 * a * t - 4 * a if t < 2 else 0.0


samples(
    affine_grid,
    lambda rng: [
        Sample((rng.standard_normal((2, 2, 3)), (2, 1, 3, 4), False)),
        Sample((rng.standard_normal((1, 3, 4)), (1, 2, 2, 1, 3), True)),
    ],
    _grid_reference,
    errors=((lambda flow: flow.affine_grid(flow.ones(1, 2, 2), (1, 1, 2, 2)), RuntimeError),),
)


def _grids(rng: np.random.Generator) -> list[Sample]:
    def one(x: tuple[int, ...], g: tuple[int, ...], *options: object) -> Sample:
        return Sample((rng.standard_normal(x), rng.uniform(-1.4, 1.4, g), *options))

    return [
        one((2, 2, 3, 4), (2, 2, 3, 2), "bilinear", "zeros", False),
        one((1, 1, 3, 4), (1, 2, 3, 2), "bilinear", "reflection", True),
        one((1, 2, 4, 3), (1, 2, 2, 2), "bicubic", "border", False),
        one((1, 1, 2, 3, 4), (1, 2, 1, 3, 3), "bilinear", "border", True),
    ]


samples(
    grid_sample,
    _grids,
    _sample_reference,
    errors=(
        (lambda flow: flow.grid_sample(flow.ones(1, 1, 2, 2), flow.ones(1, 2, 2, 3)), RuntimeError),
        (
            lambda flow: flow.grid_sample(flow.ones(1, 1, 2, 2), flow.ones(1, 2, 2, 2), "cubic"),
            ValueError,
        ),
    ),
)
