"""A copy of a tensor with other values in one part of it: `diagonal_scatter`, `select_scatter`,
`slice_scatter`, `as_strided_scatter`; and views' copies, `narrow_copy` and its kin.

The inverse of a view: what the view would show is replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from flowvm.eager.tensor import Tensor, method
from flowvm.errors import ArgumentError, ShapeError
from flowvm.ops.declare.composite import need_tensor, whole, wrap_dim
from flowvm.ops.declare.outputs import with_out
from flowvm.ops.declare.registry import Sample, samples

if TYPE_CHECKING:
    from flowvm.meta.arrays import Array


# public: flow


def _with(name: str, input: Tensor, src: Any, view: Callable[[Any], Any]) -> Tensor:
    copy = need_tensor(name, "input", input)
    copy = copy.clone()
    part, values = view(copy), need_tensor(name, "src", src)
    if tuple(part.shape) != tuple(values.shape):
        raise ShapeError(
            f"{name}: src has shape {tuple(values.shape)}, what it replaces {tuple(part.shape)}"
        )
    part.copy_(values)
    return copy


@method()
@with_out
def diagonal_scatter(
    input: Tensor, src: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Tensor:
    """A copy of `input` whose `diagonal(offset, dim1, dim2)` is `src`, of that one's shape.

    >>> flow.diagonal_scatter(flow.zeros(2, 2), flow.tensor([1.0, 2.0]))
    tensor([[1., 0.],
            [0., 2.]])
    """
    return _with("diagonal_scatter", input, src, lambda x: x.diagonal(offset, dim1, dim2))


@method()
@with_out
def select_scatter(input: Tensor, src: Tensor, dim: int, index: int) -> Tensor:
    """A copy of `input` whose `select(dim, index)` is `src`, of that one's shape.

    >>> flow.select_scatter(flow.zeros(2, 2), flow.tensor([1.0, 2.0]), 1, 0)
    tensor([[1., 0.],
            [2., 0.]])
    """
    return _with("select_scatter", input, src, lambda x: x.select(dim, index))


def _sliced(
    name: str, x: Tensor, dim: int, start: int | None, end: int | None, step: int
) -> Tensor:
    at = wrap_dim(name, dim, x.ndim)
    if whole(name, "step", step) < 1:
        raise ArgumentError(f"{name}: step is positive, got {step}")
    return x[(slice(None),) * at + (slice(start, end, step),)]


@method()
@with_out
def slice_scatter(
    input: Tensor,
    src: Tensor,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Tensor:
    """A copy of `input` whose elements start:end:step along `dim` are `src`.

    >>> flow.slice_scatter(flow.zeros(4), flow.tensor([1.0, 2.0]), 0, 1, 3)
    tensor([0., 1., 2., 0.])
    """
    return _with(
        "slice_scatter", input, src, lambda x: _sliced("slice_scatter", x, dim, start, end, step)
    )


@method()
@with_out
def as_strided_scatter(
    input: Tensor,
    src: Tensor,
    size: Sequence[int],
    stride: Sequence[int],
    storage_offset: int | None = None,
) -> Tensor:
    """A copy of `input` whose `as_strided(size, stride, storage_offset)` is `src`.

    >>> flow.as_strided_scatter(flow.zeros(4), flow.tensor([1.0, 2.0]), (2,), (2,))
    tensor([1., 0., 2., 0.])
    """
    return _with(
        "as_strided_scatter", input, src, lambda x: x.as_strided(size, stride, storage_offset)
    )


# --- copies of views ------------------------------------------------------------------------------


def _copied(view: str, of: str = "") -> Callable[..., object]:
    """Return the function `<view>_copy`: a copy of the result of the method `view`."""
    name = f"{view}_copy"

    def call(input: Tensor, *args: object, **kwargs: object) -> Any:
        shown = getattr(need_tensor(name, "input", input), of or view)(*args, **kwargs)
        if isinstance(shown, tuple):
            return tuple(part.clone() for part in shown)
        return shown.clone()

    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"A copy of what `{of or view}` with these arguments shows."
    return with_out(call)


as_strided_copy = _copied("as_strided")
diagonal_copy = _copied("diagonal")
expand_copy = _copied("expand")
narrow_copy = _copied("narrow")
permute_copy = _copied("permute")
select_copy = _copied("select")
split_copy = _copied("split")
split_with_sizes_copy = _copied("split_with_sizes")
squeeze_copy = _copied("squeeze")
t_copy = _copied("t")
transpose_copy = _copied("transpose")
unbind_copy = _copied("unbind")
unfold_copy = _copied("unfold")
unsqueeze_copy = _copied("unsqueeze")
view_copy = _copied("view")
alias_copy = _copied("alias", "clone")
detach_copy = _copied("detach")
Tensor.narrow_copy = narrow_copy  # type: ignore[method-assign]


@with_out
def slice_copy(
    input: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Tensor:
    """A copy of the elements start:end:step along `dim`.

    >>> flow.slice_copy(flow.arange(6), 0, 1, 6, 2)
    tensor([1, 3, 5])
    """
    x = need_tensor("slice_copy", "input", input)
    part: Any = _sliced("slice_copy", x, dim, start, end, step)
    return part.clone()  # type: ignore[no-any-return]


def _unsafe(view: str) -> Any:
    """The function `unsafe_<view>`: the parts that the method `view` gives."""

    def call(input: Tensor, *args: object, **kwargs: object) -> tuple[Tensor, ...]:
        x = need_tensor(f"unsafe_{view}", "input", input)
        parts: tuple[Tensor, ...] = getattr(x, view)(*args, **kwargs)
        return parts

    call.__name__ = call.__qualname__ = f"unsafe_{view}"
    call.__doc__ = f"`{view}`; each part may be changed in place, here as there."
    return method()(call)


unsafe_chunk = _unsafe("chunk")
unsafe_split = _unsafe("split")
unsafe_split_with_sizes = _unsafe("split_with_sizes")


def _numpy_with(part: Callable[..., Any]) -> Callable[..., Any]:
    def reference(x: Array, src: Array, *args: Any) -> object:
        out = np.ascontiguousarray(x).copy()
        out[part(out.shape, *args)] = src
        return out

    return reference


samples(
    diagonal_scatter,
    lambda rng: [Sample((rng.standard_normal((3, 3)), rng.standard_normal(2), 1))],
    _numpy_with(lambda shape, k: (np.arange(2), np.arange(2) + k)),
    errors=((lambda flow: flow.diagonal_scatter(flow.ones(2, 2), flow.ones(3)), RuntimeError),),
)
samples(
    select_scatter,
    lambda rng: [Sample((rng.standard_normal((3, 4)), rng.standard_normal(3), 1, -1))],
    _numpy_with(lambda shape, dim, index: (slice(None), index)),
    errors=((lambda flow: flow.select_scatter(flow.ones(2), flow.ones(1), 0, 0), RuntimeError),),
)
samples(
    slice_scatter,
    lambda rng: [Sample((rng.standard_normal((6, 2)), rng.standard_normal((2, 2)), 0, 1, 5, 2))],
    _numpy_with(lambda shape, dim, a, b, step: slice(a, b, step)),
    errors=((lambda flow: flow.slice_scatter(flow.ones(2), flow.ones(1), step=0), ValueError),),
)
samples(
    as_strided_scatter,
    lambda rng: [Sample((rng.standard_normal((2, 3)), rng.standard_normal((2,)), (2,), (3,)))],
    _numpy_with(lambda shape, size, stride: (slice(None), 0)),
)
samples(
    slice_copy,
    lambda rng: [Sample((rng.standard_normal((2, 5)), 1, 1, None, 2))],
    lambda x, dim, a, b, step: x[:, a:b:step],
)
samples(
    narrow_copy,
    lambda rng: [Sample((rng.standard_normal((3, 4)), 1, 1, 2))],
    lambda x, dim, start, length: x[:, start : start + length],
)
samples(
    unsafe_chunk, lambda rng: [Sample((rng.standard_normal(6), 3))], lambda x, n: np.split(x, n)
)
