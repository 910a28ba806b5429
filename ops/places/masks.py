"""Elements chosen by a boolean mask: `masked_fill` keeps the shape, `masked_select` takes them out,
`masked_scatter` puts them back.  How many there are is known only when the instruction has run:
`masked_select` gives a tensor whose shape waits for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from flowvm.eager.tensor import Tensor, method
from flowvm.errors import DTypeError, InvalidValueError, ShapeError, declare_status
from flowvm.launch import Launch, View, bits
from flowvm.meta.arrays import Array
from flowvm.meta.batched_meta import made_for
from flowvm.meta.dtype import bool_, result_type_of
from flowvm.meta.meta import TensorMeta
from flowvm.ops.declare.composite import Recorded, filled_of, need_tensor
from flowvm.ops.declare.core import sum_to
from flowvm.ops.declare.elementwise import elementwise
from flowvm.ops.declare.kinds import Count
from flowvm.ops.declare.letters import unsplit
from flowvm.ops.declare.outputs import with_out
from flowvm.ops.declare.registry import Sample, broadcast_shapes, op, samples
from flowvm.ops.places.scatter import apart, changed, fresh
from flowvm.ops.shapes.views import expand, reshape

if TYPE_CHECKING:
    from flowvm.eager.nodes import Node


TOO_FEW = declare_status(
    64,
    InvalidValueError,
    "masked_scatter: the mask has more than {0} true elements, source only {0}",
)


def mask_of(name: str, mask: Any) -> Tensor:
    """A mask, or an error unless it is a bool tensor."""
    meta = need_tensor(name, "mask", mask)._meta
    if meta.dtype is not bool_:
        raise DTypeError(
            f"{name}: mask must be a bool tensor, got {meta.dtype.name}; write mask != 0"
        )
    return mask  # type: ignore[no-any-return]


# --- masked_fill --------------------------------------------------------------------------------


def _fill_grad(c: Node, g: Tensor) -> tuple[Tensor | None, None, Tensor | None]:
    (mask,) = c.saved
    gx = sum_to(_masked_fill.call(g, mask, 0), c.metas[0].shape) if c.needs[0] else None
    gv = None
    if c.needs[2]:
        gv = sum_to(_masked_fill.call(g, mask.logical_not(), 0), c.metas[2].shape)
    return gx, None, gv


_masked_fill = elementwise(
    "masked_fill",
    "value if mask else x",
    args="x, mask: bool, value",
    saves="mask",
    grad=_fill_grad,
    complex=True,
    minifloats=True,
    c_order=True,
)


def _fill_value(x: Tensor, mask: object, value: float | Tensor) -> Any:
    mask_of("masked_fill", mask)
    dtype = need_tensor("masked_fill", "input", x)._meta.dtype
    if isinstance(value, Tensor):
        if value._meta.ndim:
            raise ShapeError(f"masked_fill: value must be 0-d, got shape {tuple(value.shape)}")
        category = value._meta.dtype.category
    else:
        category = result_type_of(value.__class__).category
    if category > dtype.category and not (dtype.is_bool and not isinstance(value, Tensor)):
        raise DTypeError(
            f"masked_fill: value {value if not isinstance(value, Tensor) else value.dtype} "
            "cannot go into a "
            f"{dtype.name} tensor; convert one of them"
        )
    if isinstance(value, Tensor) and value._meta.dtype is not dtype:
        return value.to(dtype)
    return bool(value) if dtype.is_bool and not isinstance(value, Tensor) else value


# public: flow
@method()
def masked_fill(input: Tensor, mask: Tensor, value: float | Tensor) -> Tensor:
    """`input` with `value` (a number or 0-d tensor) where `mask`, a bool tensor, is true; both
    broadcast.

    >>> x = flow.tensor([1, 5, 2])
    >>> flow.masked_fill(x, x > 1, 0)
    tensor([1, 0, 0])
    """
    out: Tensor = _masked_fill.call(input, mask, _fill_value(input, mask, value))
    return out


@method()
def masked_fill_(x: Tensor, mask: Tensor, value: float | Tensor) -> Tensor:
    """`masked_fill` in place; `mask` must broadcast to `x`'s shape.

    >>> x = flow.tensor([1, 5, 2])
    >>> x.masked_fill_(x > 1, 0)
    tensor([1, 0, 0])
    """
    return _masked_fill.into(x, x, mask, _fill_value(x, mask, value))


# --- masked_select and masked_scatter -----------------------------------------------------------


def _select_body(out: Array, x: Array, mask: Array, lo: int, hi: int, details: Array) -> None:
    count = 0
    if lo < 0:
        for i in range(len(mask)):
            count += mask[i] != 0
    else:
        for i in range(len(x)):
            if mask[i] != 0:
                out[count] = x[i]
                count += 1
    details[0] = count


def _select_grad(c: Node, g: Tensor) -> tuple[Tensor, None]:
    (mask,) = c.saved
    zeros = filled_of(made_for(c.metas[0], g._meta), 0, g._meta.dtype)
    return masked_scatter(zeros, mask, g), None


@op(
    "x, mask -> out?",
    name="masked_select",
    saves="mask",
    grad=_select_grad,
    half="bits",
    complex=True,
    cuda="compaction:masked_select",
    letters=unsplit,
)
def _select(x: TensorMeta, mask: TensorMeta) -> Launch:
    n = x.numel
    views = (bits(x, (n,)), bits(x, (n,)), bits(mask, (n,)))
    return Launch((x.with_shape((n,)),), _select_body, views)


# public: flow
@method()
@with_out
def masked_select(input: Tensor, mask: Tensor) -> Tensor:
    """The elements of `input` where `mask` is true, 1-d; both broadcast.  Asking for the shape
    waits for it.

    >>> x = flow.tensor([1, 5, 2])
    >>> flow.masked_select(x, x > 1)
    tensor([5, 2])
    """
    x = need_tensor("masked_select", "input", input)
    shape = mask_of("masked_select", mask)._meta.shape
    if shape != x._meta.shape:
        shape = broadcast_shapes(x._meta.shape, shape)  # type: ignore[assignment]
        x, mask = expand(x, shape), expand(mask, shape)
    out: Tensor = _select(x, mask)
    return out


def _place_body(
    x: Array, mask: Array, source: Array, available: int, lo: int, hi: int, details: Array
) -> int:
    count = 0
    for i in range(len(mask)):
        if mask[i] != 0:
            if count == available:
                details[0] = available
                return 64  # TOO_FEW
            x[i] = source[count]
            count += 1
    return 0


@op(
    "x!, mask, source -> ",
    name="masked_scatter_",
    half="bits",
    complex=True,
    cuda="compaction:masked_scatter",
    letters=unsplit,
)
def _place(x: TensorMeta, mask: TensorMeta, source: TensorMeta) -> Launch:
    n, available = x.numel, source.numel
    views = (bits(x, (n,)), bits(mask, (n,)), bits(source, (available,)))
    return Launch((), _place_body, views, (available,))


def _collect_body(out: Array, g: Array, mask: Array, lo: int, hi: int) -> None:
    count, n = 0, len(out)
    for i in range(len(mask)):
        if mask[i] != 0 and count < n:
            out[count] = g[i]
            count += 1
    for i in range(count, n):
        out[i] = 0


def _collect_grad(c: Node, g: Tensor) -> tuple[Tensor, None]:
    (mask,) = c.saved
    zeros = filled_of(made_for(c.metas[0], g._meta), 0, g._meta.dtype)
    return masked_scatter(zeros, mask, g), None


@op(
    "g, mask -> out",
    name="masked_collect",
    saves="mask",
    grad=_collect_grad,
    half="bits",
    complex=True,
    cuda="compaction:masked_collect",
    letters=unsplit,
)
def _collect(g: TensorMeta, mask: TensorMeta, total: Count) -> Launch:
    n = g.numel
    out = g.with_shape((total,))
    views = (bits(out, (total,)), bits(g, (n,)), View(mask.dtype, (n,)))
    return Launch((out,), _collect_body, views)


def _scatter_grad(c: Node, g: Tensor) -> tuple[Any, ...]:
    (mask,) = c.saved
    gx = masked_fill(g, mask, 0) if c.needs[0] else None
    if not c.needs[2]:
        return gx, None, None
    meta = c.metas[2]
    return gx, None, reshape(_collect(g, expand(mask, g._meta.shape), meta.numel), meta.shape)


_scatter_op = Recorded(
    "masked_scatter", _scatter_grad, ("x", "mask", "source"), "mask", c_order=True
)


def _masked_scatter(apply: Any, x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    shape = need_tensor("masked_scatter", "input", x)._meta.shape
    mask_of("masked_scatter", mask)
    if need_tensor("masked_scatter", "source", source)._meta.dtype is not x._meta.dtype:
        raise DTypeError(
            f"masked_scatter: source is {source.dtype.name} and the tensor {x.dtype.name}; they "
            "must be equal"
        )
    if apply is fresh and mask._meta.shape != shape:
        shape = broadcast_shapes(shape, mask._meta.shape)  # type: ignore[assignment]
        x = expand(x, shape)
    whole = expand(mask, shape)
    plain = apart(x, source)

    def write(out: Tensor) -> None:
        _place(out, whole, plain)

    out: Tensor = apply(_scatter_op, x, (mask, source), (), write)
    return out


# public: flow
@method()
def masked_scatter(input: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """A copy of `input` with the elements of `source`, in order, where `mask` is true.

    InvalidValueError when the result is read, if `source` has too few.

    >>> mask = flow.tensor([True, False, True])
    >>> flow.masked_scatter(flow.zeros(3), mask, flow.tensor([1.0, 2.0]))
    tensor([1., 0., 2.])
    """
    return _masked_scatter(fresh, input, mask, source)


@method()
def masked_scatter_(x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """`masked_scatter` in place."""
    return _masked_scatter(changed, x, mask, source)


# --- samples ------------------------------------------------------------------------------------


def _masked(rng: np.random.Generator, *shapes: tuple[Any, Any]) -> list[tuple[Any, Any]]:
    return [
        (np.asarray(rng.standard_normal(a)), np.asarray(rng.random(b) < 0.6)) for a, b in shapes
    ]


samples(
    masked_fill,
    lambda rng: [
        *(
            Sample((x, mask, 1.5))
            for x, mask in _masked(
                rng, ((2, 3), (2, 3)), ((2, 3), (3,)), ((2, 1), (1, 3)), ((), ())
            )
        ),
        *(Sample((x, mask, np.array(0.5))) for x, mask in _masked(rng, ((2, 3), (2, 1)))),
        Sample((np.arange(4), np.array([True, False, True, True]), -1)),
    ],
    lambda x, mask, value: np.where(mask, value, x),
    errors=(
        (lambda flow: flow.masked_fill(flow.ones(2), flow.ones(2), 0), RuntimeError),
        (lambda flow: flow.masked_fill(flow.tensor([1]), flow.tensor([True]), 0.5), RuntimeError),
        (
            lambda flow: flow.masked_fill(flow.ones(2), flow.tensor([True]), flow.ones(2)),
            RuntimeError,
        ),
        (lambda flow: flow.ones(1).masked_fill_(flow.tensor([True, True]), 0), RuntimeError),
    ),
)
samples(
    masked_select,
    lambda rng: [
        *map(
            Sample, _masked(rng, ((2, 3), (2, 3)), ((2, 3), (3,)), ((3,), (2, 1)), ((0, 2), (0, 2)))
        ),
        Sample((np.array(0.5), np.array(True))),
        Sample((rng.standard_normal(3), np.zeros(3, bool))),
    ],
    lambda x, mask: np.broadcast_to(x, np.broadcast_shapes(x.shape, mask.shape))[
        np.broadcast_to(mask, np.broadcast_shapes(x.shape, mask.shape))
    ],
    errors=((lambda flow: flow.masked_select(flow.ones(2), flow.tensor([0, 1])), RuntimeError),),
)


def _numpy_masked_scatter(x: Array, mask: Array, source: Array) -> Array:
    shape = np.broadcast_shapes(x.shape, mask.shape)
    out = np.array(np.broadcast_to(x, shape))
    chosen = np.broadcast_to(mask, shape)
    out[chosen] = source.reshape(-1)[: chosen.sum()]
    return out


samples(
    masked_scatter,
    lambda rng: [
        Sample((x, mask, rng.standard_normal((2, 4))))
        for x, mask in _masked(rng, ((2, 3), (2, 3)), ((2, 3), (3,)), ((3,), (2, 1)))
    ],
    _numpy_masked_scatter,
    errors=(
        (
            lambda flow: flow.masked_scatter(
                flow.ones(2), flow.tensor([True, True]), flow.ones(1)
            ).numpy(),
            ValueError,
        ),
    ),
)
