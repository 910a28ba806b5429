"""Integrals and slopes of sampled functions: `trapezoid`, `cumulative_trapezoid`, `gradient`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, ArgumentTypeError, ShapeError
from flowvm.ops.declare.composite import need_tensor, wrap_dim, wrap_dims
from flowvm.ops.declare.halves import in_float32
from flowvm.ops.declare.registry import Sample, samples
from flowvm.ops.rows.scan import cumsum
from flowvm.ops.shapes.join import cat

if TYPE_CHECKING:
    from flowvm.meta.arrays import Array


# public: flow


def _widths(name: str, y: Tensor, x: Any, dx: Any, at: int) -> Any:
    """Return the distances of neighbours: a number, or a tensor that broadcasts with the pairs."""
    if x is None:
        if isinstance(dx, bool):
            raise ArgumentTypeError(f"{name}: dx is a number, got {dx}")
        return 1 if dx is None else dx
    if dx is not None:
        raise ArgumentTypeError(f"{name} takes x or dx, not both")
    places = need_tensor(name, "x", x)
    if places._meta.ndim == 1:
        if places._meta.numel != y.shape[at]:
            raise ShapeError(
                f"{name}: x has {places._meta.numel} places, dimension {at} of y "
                f"{y.shape[at]} values"
            )
        steps: Any = places[1:] - places[:-1]
        return steps.reshape([-1 if d == at else 1 for d in range(y.ndim)])
    rank = places._meta.ndim
    along = at - y.ndim + rank
    if not 0 <= along < rank:
        raise ShapeError(f"{name}: x of shape {tuple(x.shape)} has no dimension {at}")
    count = places._meta.shape[along]
    later: object = x.narrow(along, 1, max(count - 1, 0))
    return later - x.narrow(along, 0, max(count - 1, 0))


def _sums(name: str, y: Tensor, at: int) -> Tensor:
    """The sum of each pair of neighbours."""
    count = y.shape[at] - 1
    return y.narrow(at, 0, count) + y.narrow(at, 1, count)


@in_float32
def trapezoid(y: Tensor, x: Any = None, *, dx: Any = None, dim: int = -1) -> Tensor:
    """The integral of `y` along `dim` by the trapezoidal rule: its values at the places `x`, a
    vector or a tensor that broadcasts, or `dx` (1) apart.

    >>> flow.trapezoid(flow.tensor([0.0, 2.0, 4.0]))
    tensor(4.)
    """
    values: Tensor = need_tensor("trapezoid", "y", y)
    at = wrap_dim("trapezoid", dim, values.ndim)
    if values.shape[at] == 0:
        return values.sum(at) * 1.0
    widths = _widths("trapezoid", values, x, dx, at)
    if isinstance(widths, Tensor):
        return (_sums("trapezoid", values, at) * widths).sum(at) / 2
    ends = (values.select(at, 0) + values.select(at, -1)) * 0.5
    return (values.sum(at) - ends) * widths  # type: ignore[no-any-return]


trapz = trapezoid  # public: flow


@in_float32
def cumulative_trapezoid(
    y: Tensor, x: object = None, *, dx: object = None, dim: int = -1
) -> Tensor:
    """The integrals of `trapezoid` up to each value of `y` but the first.

    >>> flow.cumulative_trapezoid(flow.tensor([0.0, 2.0, 4.0]))
    tensor([1., 4.])
    """
    values: Tensor = need_tensor("cumulative_trapezoid", "y", y)
    at = wrap_dim("cumulative_trapezoid", dim, values.ndim)
    widths = _widths("cumulative_trapezoid", values, x, dx, at)
    areas = _sums("cumulative_trapezoid", values, at) * widths
    return cumsum(areas, at) / 2


def _slope(f: Any, at: int, spacing: Any, edge: int) -> Tensor:
    """The slopes along one dimension: between its neighbours, at the ends of `edge` order."""
    n = f.shape[at]
    if n < edge + 1:
        raise ShapeError(
            f"gradient: dimension {at} has {n} values, edge_order {edge} needs {edge + 1}"
        )

    def part(start: int, count: int) -> Any:
        return f.narrow(at, start, count)

    if not isinstance(spacing, Tensor):
        inside = (part(2, n - 2) - part(0, n - 2)) / (2 * spacing)
        if edge == 1:
            first, last = (part(i + 1, 1) - part(i, 1) for i in (0, n - 2))
            return cat([first / spacing, inside, last / spacing], at)
        first = part(0, 1) * -1.5 + part(1, 1) * 2 - part(2, 1) * 0.5
        last = part(n - 3, 1) * 0.5 - part(n - 2, 1) * 2 + part(n - 1, 1) * 1.5
        return cat([first / spacing, inside, last / spacing], at)
    if spacing.ndim != 1 or spacing.numel() != n:
        raise ShapeError(
            f"gradient: dimension {at} has {n} values, its coordinates shape {tuple(spacing.shape)}"
        )
    steps: Any = spacing[1:] - spacing[:-1]
    h = steps.reshape([-1 if d == at else 1 for d in range(f.ndim)])

    def step(i: int, count: int = 1) -> Any:
        return h.narrow(at, i, count)

    before, behind = step(0, n - 2), step(1, n - 2)
    inside = (
        part(0, n - 2) * (-behind / (before * (before + behind)))
        + part(1, n - 2) * ((behind - before) / (before * behind))
        + part(2, n - 2) * (before / (behind * (before + behind)))
    )
    if edge == 1:
        first = (part(1, 1) - part(0, 1)) / step(0)
        last = (part(n - 1, 1) - part(n - 2, 1)) / step(n - 2)
        return cat([first, inside, last], at)
    a, b = step(0), step(1)
    first = (
        part(0, 1) * (-(2 * a + b) / (a * (a + b)))
        + part(1, 1) * ((a + b) / (a * b))
        - part(2, 1) * (a / (b * (a + b)))
    )
    a, b = step(n - 3), step(n - 2)
    last = (
        part(n - 3, 1) * (b / (a * (a + b)))
        - part(n - 2, 1) * ((a + b) / (a * b))
        + part(n - 1, 1) * ((2 * b + a) / (b * (a + b)))
    )
    return cat([first, inside, last], at)


@in_float32
def gradient(
    input: Tensor, *, spacing: object = 1, dim: object = None, edge_order: int = 1
) -> tuple[Tensor, ...]:
    """The slopes of sampled values along each of `dim` (None: all), a tuple of tensors like
    `input`: central differences, one-sided ones of `edge_order` 1 or 2 at the ends.

    spacing   what samples are apart, a number for all dimensions or a list of one for each of
              `dim`; or a list of vectors, the coordinates along each

    >>> flow.gradient(flow.tensor([1.0, 4.0, 9.0, 16.0]))
    (tensor([3., 4., 6., 7.]),)
    """
    f = need_tensor("gradient", "input", input)
    if edge_order not in (1, 2):
        raise ArgumentError(f"gradient: edge_order is 1 or 2, got {edge_order}")
    dims = tuple(range(f.ndim)) if dim is None else wrap_dims("gradient", dim, f.ndim)
    if spacing is None:
        spacing = 1
    if isinstance(spacing, Tensor) and spacing.ndim == 0:
        spacing = spacing.item()
    if isinstance(spacing, (list, tuple)):
        each = list(spacing)
    else:
        each = [spacing] * len(dims)
    if len(each) != len(dims):
        raise ArgumentError(f"gradient: {len(dims)} dimensions and {len(each)} spacings")
    if not f.dtype.is_floating_point:
        f = f * 1.0
    return tuple(_slope(f, at, h, edge_order) for at, h in zip(dims, each, strict=True))


samples(
    trapezoid,
    lambda rng: [
        Sample((rng.standard_normal((3, 4)),)),
        Sample((rng.standard_normal((3, 4)),), {"dx": 0.5, "dim": 0}),
        Sample((rng.standard_normal((3, 4)), np.array([0.0, 0.5, 2.0, 3.0]))),
    ],
    lambda y, x=None, dx=1.0, dim=-1: np.trapezoid(y, x, dx, dim),
    errors=(
        (lambda flow: flow.trapezoid(flow.ones(3), flow.ones(2)), RuntimeError),
        (lambda flow: flow.trapezoid(flow.ones(3), flow.ones(3), dx=1), TypeError),
    ),
)


def _cumulative(y: Any, x: Any = None, dx: float = 1.0, dim: int = -1) -> Array:
    y = np.moveaxis(y, dim, -1)
    widths = dx if x is None else np.diff(x)
    return np.moveaxis(np.cumsum((y[..., 1:] + y[..., :-1]) / 2 * widths, -1), -1, dim)


samples(
    cumulative_trapezoid,
    lambda rng: [
        Sample((rng.standard_normal((3, 4)),), {"dx": 0.5, "dim": 0}),
        Sample((rng.standard_normal((3, 4)), np.array([0.0, 0.5, 2.0, 3.0]))),
    ],
    _cumulative,
)
samples(
    gradient,
    lambda rng: [
        Sample((rng.standard_normal((4, 5)),), {"spacing": 0.5}),
        Sample(
            (rng.standard_normal(5),),
            {"spacing": [np.array([0.0, 1.0, 1.5, 3.0, 3.5])], "edge_order": 2},
        ),
    ],
    lambda x, spacing=1, edge_order=1: np.gradient(
        x, *(spacing if isinstance(spacing, list) else [spacing]), edge_order=edge_order
    ),
    floats=("float64", "float32"),
    errors=(
        (lambda flow: flow.gradient(flow.ones(1)), RuntimeError),
        (lambda flow: flow.gradient(flow.ones(3), edge_order=3), ValueError),
        (lambda flow: flow.gradient(flow.ones(3, 3), spacing=[1.0]), ValueError),
    ),
)
