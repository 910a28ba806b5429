"""Writing at positions that are data: `index_add`, `index_copy`, `index_fill`, `scatter` and its
kin, each in a fresh and an in-place form.

A form is one function that writes into a tensor outside the graph; the fresh form gives it a clone,
the in-place form the tensor itself.  Both record the same node.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from flowvm.eager.autocast import widest
from flowvm.eager.tensor import Tensor, alias, method
from flowvm.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError
from flowvm.meta.dtype import bool_
from flowvm.meta.meta import Attrs
from flowvm.ops.declare.composite import Recorded, filled_of, need_tensor, record, wrap_dim
from flowvm.ops.declare.core import clone_for, sum_to
from flowvm.ops.declare.elementwise import record_in_place
from flowvm.ops.declare.outputs import with_out
from flowvm.ops.declare.registry import Sample, samples
from flowvm.ops.places.cpu.index_kernels import ADD, AMAX, AMIN, MULTIPLY, NONE
from flowvm.ops.places.gather import (
    aligned,
    combine_elements,
    combine_slices,
    gather,
    index_select,
    narrowed_to,
    positions_of,
    put_slices,
    scatter_elements,
)
from flowvm.ops.shapes.fill import filled_with, number_for
from flowvm.ops.shapes.padding import pad
from flowvm.ops.shapes.views import reshape
from flowvm.vm.callers.hot import hot
from flowvm.vm.watch.pending import issued

if TYPE_CHECKING:
    from flowvm.eager.nodes import Node
    from flowvm.meta.arrays import Array


Write = Callable[[Tensor], object]


def fresh(op: Recorded, x: Tensor, others: Sequence[Tensor], attrs: Attrs, write: Write) -> Tensor:
    """A clone of `x` that `write` has changed, recorded as `op` of (x, *others)."""
    out = clone_for(x, others, op.c_order)
    write(out)
    named = dict(zip(op.signature.inputs, (x, *others), strict=True))
    return record(op, (x, *others), out, attrs, [named[s] for s in op.saves])


def changed(
    op: Recorded, x: Tensor, others: Sequence[Tensor], attrs: Attrs, write: Write
) -> Tensor:
    """`x`, which `write` has changed, recorded likewise; AutogradError where that cannot be
    recorded.
    """
    pending = record_in_place(op.name, op, x, (x, *others), attrs)  # type: ignore[arg-type]
    write(alias(x, x._meta))
    if pending is not None:
        pending.node.seq = issued() - 1
        pending.finish(x)
    return x


def apart(x: Tensor, source: Tensor) -> Tensor:
    """`source`, or a copy if it shares memory with `x`, which is about to change."""
    need_tensor("scatter", "src", source)
    plain: Tensor = source.detach()
    if source.storage() is x.storage():
        plain = plain.clone()
    return plain


def number_tensor(x: Tensor, value: Any) -> Tensor:
    """A Python number as a 0-d tensor of `x`'s dtype, converted as an assignment does."""
    dtype = x._meta.dtype
    meta = x._meta.with_shape(())
    if dtype.is_complex:
        return filled_with(meta, number_for(value, dtype))
    if isinstance(value, complex):
        raise DTypeError(
            f"{value} is complex and cannot be assigned to elements of a {dtype.name} tensor"
        )
    if isinstance(value, str):
        raise ArgumentTypeError(f"a number or a Tensor is assigned, got str ({value!r})")
    number = (
        float(value) if dtype.is_floating_point else int(bool(value) if dtype.is_bool else value)
    )
    return filled_of(meta, number)


def same_dtype(name: str, x: Tensor, source: Tensor, argument: str) -> None:
    if source._meta.dtype is not x._meta.dtype:
        raise DTypeError(
            f"{name}: {argument} is {source.dtype.name} and the tensor {x.dtype.name}; they must "
            "be equal: "
            f"convert one with .to(dtype)"
        )


# --- with one index for whole slices ------------------------------------------------------------


def _slices(
    name: str, x: Tensor, dim: int, index: Tensor, source: Tensor | None
) -> tuple[int, Tensor]:
    meta = need_tensor(name, "input", x)._meta
    at = wrap_dim(name, dim, meta.ndim)
    positions = positions_of(name, "index", index)
    if positions._meta.ndim > 1:
        raise ShapeError(f"{name}: index must be 1-d, got shape {tuple(index.shape)}")
    if source is not None:
        same_dtype(name, x, need_tensor(name, "source", source), "source")
        count = (positions._meta.numel,)
        shape = (*meta.shape[:at], *count, *meta.shape[at + 1 :]) if meta.ndim else ()
        have = tuple(source._meta.shape)
        if have != shape and not (len(shape) <= 1 and source.numel() == positions.numel()):
            raise ShapeError(
                f"{name}: source has shape {have}; with {count[0]} indices in dimension {at} of "
                "shape "
                f"{tuple(meta.shape)} it must be {shape}"
            )
    return at, reshape(positions, (-1,))


def _flat(t: Tensor) -> Tensor:
    return t if t._meta.ndim else reshape(t, (1,))


def _index_add_grad(c: Node, g: Tensor) -> tuple[Tensor | None, ...]:
    dim, alpha = c.attrs
    (index,) = c.saved
    if not c.needs[2]:
        return g, None, None
    picked = index_select(g, dim, index)
    picked = reshape(picked, c.metas[2].shape)
    return g, None, picked if alpha == 1 else picked * alpha


_index_add_op = Recorded(
    "index_add", _index_add_grad, ("x", "index", "source"), "index", c_order=True
)


def _index_add(
    apply: Any, x: Tensor, dim: int, index: Tensor, source: Tensor, alpha: float
) -> Tensor:
    at, positions = _slices("index_add", x, dim, index, source)
    plain = apart(x, source)
    scaled = plain if alpha == 1 else plain * alpha

    def write(out: Tensor) -> None:
        combine_slices(_flat(out), positions, scaled, at, 0, at, NONE, ADD)

    out: Tensor = apply(_index_add_op, x, (positions, source), (at, alpha), write)
    return out


# public: flow
@method()
@with_out
def index_add(
    input: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1
) -> Tensor:
    """A copy of `input` with `alpha` times the slices of `source` added at `index` of dimension
    `dim`.

    Slices with the same index add up, in order.

    >>> flow.index_add(flow.zeros(3), 0, flow.tensor([0, 2, 0]), flow.tensor([1.0, 2.0, 3.0]))
    tensor([4., 0., 2.])
    """
    if hot["autocast"]:
        input, source = widest(input, source)
    return _index_add(fresh, input, dim, index, source, alpha)


@method()
def index_add_(x: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1) -> Tensor:
    """`index_add` in place."""
    return _index_add(changed, x, dim, index, source, alpha)


def _index_copy_grad(c: Node, g: Tensor) -> tuple[Tensor | None, None, Tensor | None]:
    (dim,) = c.attrs
    (index,) = c.saved
    gx = index_fill(g, dim, index, 0) if c.needs[0] else None
    gs = reshape(index_select(g, dim, index), c.metas[2].shape) if c.needs[2] else None
    return gx, None, gs


_index_copy_op = Recorded(
    "index_copy", _index_copy_grad, ("x", "index", "source"), "index", c_order=True
)


def _index_copy(apply: Any, x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    at, positions = _slices("index_copy", x, dim, index, source)
    plain = apart(x, source)

    def write(out: Tensor) -> None:
        put_slices(_flat(out), positions, plain, at, 0, at)

    out: Tensor = apply(_index_copy_op, x, (positions, source), (at,), write)
    return out


# public: flow
@method()
@with_out
def index_copy(input: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """Return a copy of `input` with the slices at `index` of dimension `dim` from `source`.

    >>> flow.index_copy(flow.zeros(3), 0, flow.tensor([2, 0]), flow.tensor([1.0, 2.0]))
    tensor([2., 0., 1.])
    """
    if hot["autocast"]:
        input, source = widest(input, source)
    return _index_copy(fresh, input, dim, index, source)


@method()
def index_copy_(x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """`index_copy` in place."""
    return _index_copy(changed, x, dim, index, source)


def _index_fill_grad(c: Node, g: Tensor) -> tuple[Tensor | None, ...]:
    (dim,) = c.attrs
    (index,) = c.saved
    gx = index_fill(g, dim, index, 0) if c.needs[0] else None
    if not c.needs[2]:
        return gx, None, None
    mask = index_fill(filled_of(g._meta, 1, bool_), dim, index, 0)
    return gx, None, g.masked_fill(mask, 0).sum()


_index_fill_op = Recorded("index_fill", _index_fill_grad, ("x", "index", "value"), "index")


def _index_fill(apply: Any, x: Tensor, dim: int, index: Tensor, value: Tensor | float) -> Tensor:
    at, positions = _slices("index_fill", x, dim, index, None)
    if isinstance(value, Tensor):
        if value._meta.ndim:
            raise ShapeError(f"index_fill: value must be 0-d, got shape {tuple(value.shape)}")
        source = value.to(x._meta.dtype)
    else:
        source = number_tensor(x, value)

    def write(out: Tensor) -> None:
        put_slices(_flat(out), positions, source.detach(), at, -split_size(x, at), at)

    out: Tensor = apply(_index_fill_op, x, (positions, source), (at,), write)
    return out


def split_size(x: Tensor, dim: int) -> int:
    """The size of a dimension; 1 of a 0-d tensor."""
    return x._meta.shape[dim] if x._meta.ndim else 1


# public: flow
@method()
@with_out
def index_fill(input: Tensor, dim: int, index: Tensor, value: float | Tensor) -> Tensor:
    """A copy of `input` in which the slices at `index` of dimension `dim` are all `value`.

    >>> flow.index_fill(flow.zeros(3), 0, flow.tensor([0, 2]), 5)
    tensor([5., 0., 5.])
    """
    return _index_fill(fresh, input, dim, index, value)


@method()
def index_fill_(x: Tensor, dim: int, index: Tensor, value: float | Tensor) -> Tensor:
    """`index_fill` in place."""
    return _index_fill(changed, x, dim, index, value)


# --- with an index for each element -------------------------------------------------------------


def _back_to_source(g: Tensor, dim: int, index: Tensor, meta: Any) -> Tensor:
    """The gradient of a src that `index` took the front corner of."""
    picked = gather(g, dim, index)
    if meta.ndim == 0 or picked._meta.shape == meta.shape:
        return reshape(picked, meta.shape)
    widths = [
        w for d in reversed(range(meta.ndim)) for w in (0, meta.shape[d] - picked._meta.shape[d])
    ]
    return pad(picked, widths)


def _scatter_grad(c: Node, g: Tensor) -> tuple[object, ...]:
    (dim, single) = c.attrs
    (index,) = c.saved
    gx = scatter(g, dim, index, 0) if c.needs[0] else None
    if not c.needs[2]:
        return gx, None, None
    gs = (
        sum_to(gather(g, dim, index), c.metas[2].shape)
        if single
        else _back_to_source(g, dim, index, c.metas[2])
    )
    return gx, None, gs


def _scatter_add_grad(c: Node, g: Tensor) -> tuple[object, ...]:
    dim, _ = c.attrs
    (index,) = c.saved
    return g, None, _back_to_source(g, dim, index, c.metas[2]) if c.needs[2] else None


_scatter_op = Recorded("scatter", _scatter_grad, ("x", "index", "src"), "index", c_order=True)
_scatter_add_op = Recorded(
    "scatter_add", _scatter_add_grad, ("x", "index", "src"), "index", c_order=True
)
MODES = {"add": ADD, "sum": ADD, "multiply": MULTIPLY, "prod": MULTIPLY, "amax": AMAX, "amin": AMIN}


def write_elements(out: Tensor, dim: int, index: Tensor, source: Tensor, mode: int | None) -> None:
    """Write `source` into `out`, which is outside the graph, at `index`; `mode` None replaces."""
    if index._meta.numel == 0:
        return
    corner = _flat(narrowed_to(out, index._meta.shape, dim)) if out._meta.ndim else _flat(out)
    if source._meta.numel != 1:
        source = narrowed_to(source, index._meta.shape, None)
    if mode is None:
        scatter_elements(corner, _flat(index), source, dim)
    else:
        combine_elements(corner, _flat(index), source, dim, mode)


def _scatter(
    apply: Any, name: str, x: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str | None
) -> Tensor:
    single = not isinstance(src, Tensor)
    if not single:
        same_dtype(name, need_tensor(name, "input", x), src, "src")
    at, positions = aligned(name, x, dim, index, None if single else src)
    source = number_tensor(x, src) if single else src
    if reduce not in (None, "add", "multiply"):
        raise ArgumentError(f"{name}: reduce is 'add' or 'multiply', not {reduce!r}")
    if reduce == "multiply" and (x._node is not None or source._node is not None):
        raise ArgumentError(
            f"{name}: reduce='multiply' has no gradient; use scatter_reduce with 'prod'"
        )
    plain = apart(x, source)

    def write(out: Tensor) -> None:
        write_elements(out, at, positions, plain, None if reduce is None else MODES[reduce])

    op = _scatter_op if reduce is None else _scatter_add_op
    out: Tensor = apply(op, x, (positions, source), (at, single), write)
    return out


def _source(name: str, src: Tensor | float | None, value: float | None) -> Any:
    if (src is None) == (value is None):
        raise ArgumentError(f"{name}: needs either src (a Tensor) or value (a number)")
    return value if src is None else src


# public: flow
@method()
@with_out
def scatter(
    input: Tensor,
    dim: int,
    index: Tensor,
    src: Tensor | float | None = None,
    *,
    value: float | None = None,
    reduce: str | None = None,
) -> Tensor:
    """A copy of `input` with the elements of `src` (or a number) written at the positions `index`
    of `dim`.

    reduce   None replaces (of several for one place the last stays), "add" adds, "multiply"
             multiplies

    >>> flow.scatter(flow.zeros(2, 2), 1, flow.tensor([[1], [0]]), flow.tensor([[5.0], [6.0]]))
    tensor([[0., 5.],
            [6., 0.]])
    """
    return _scatter(fresh, "scatter", input, dim, index, _source("scatter", src, value), reduce)


@method()
def scatter_(
    x: Tensor,
    dim: int,
    index: Tensor,
    src: Tensor | float | None = None,
    *,
    value: float | None = None,
    reduce: str | None = None,
) -> Tensor:
    """`scatter` in place."""
    return _scatter(changed, "scatter_", x, dim, index, _source("scatter_", src, value), reduce)


# public: flow
@method()
@with_out
def scatter_add(input: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    """A copy of `input` with the elements of `src` added at the positions `index` of `dim`;
    `gather` backwards.

    >>> flow.scatter_add(flow.zeros(3), 0, flow.tensor([0, 2, 0]), flow.tensor([1.0, 2.0, 3.0]))
    tensor([4., 0., 2.])
    """
    if hot["autocast"]:
        input, src = widest(input, src)
    return _scatter(
        fresh, "scatter_add", input, dim, index, need_tensor("scatter_add", "src", src), "add"
    )


@method()
def scatter_add_(x: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    """`scatter_add` in place."""
    return _scatter(
        changed, "scatter_add_", x, dim, index, need_tensor("scatter_add_", "src", src), "add"
    )


# --- samples ------------------------------------------------------------------------------------


def _normal(rng: np.random.Generator, shape: Sequence[int]) -> Array:
    return np.asarray(rng.standard_normal(shape))


def _with_source(*calls: tuple[Any, ...]) -> Callable[[Any], list[Sample]]:
    """For each (shape, dim, indices, shape of the source) a sample."""
    return lambda rng: [
        Sample((_normal(rng, shape), dim, np.array(index, np.int64), _normal(rng, source)))
        for shape, dim, index, source in calls
    ]


_SLICES: tuple[tuple[object, ...], ...] = (
    ((3, 2), 0, [2, 0], (2, 2)),
    ((2, 3, 2), 1, [1], (2, 1, 2)),
    ((4,), -1, [3, 1, 0], (3,)),
    ((2, 2), 0, [], (0, 2)),
)


def _numpy_index(change: Callable[..., object]) -> Callable[..., object]:
    def reference(x: Array, dim: int, index: Array, source: Array, **options: Any) -> object:
        out = np.moveaxis(np.array(x), dim, 0)
        change(out, index, np.moveaxis(source, dim, 0) if np.ndim(source) else source, **options)
        return np.moveaxis(out, 0, dim)

    return reference


def _numpy_add(out: Array, index: Array, source: Array, alpha: float = 1) -> None:
    np.add.at(out, index, alpha * source)


samples(
    index_add,
    lambda rng: [
        *_with_source(*_SLICES, ((3, 2), 0, [1, 1, 0, 1], (4, 2)))(rng),
        Sample(
            (rng.standard_normal(3), 0, np.array([2, 2]), rng.standard_normal(2)), {"alpha": -0.5}
        ),
    ],
    _numpy_index(_numpy_add),
    errors=(
        (
            lambda flow: flow.index_add(flow.ones(2), 0, flow.tensor([0]), flow.ones(2)),
            RuntimeError,
        ),
        (
            lambda flow: flow.index_add(flow.ones(2), 0, flow.tensor([0]), flow.tensor([1])),
            RuntimeError,
        ),
        (
            lambda flow: flow.index_add(flow.ones(2), 0, flow.tensor([2]), flow.ones(1)).numpy(),
            IndexError,
        ),
    ),
)
samples(
    index_copy,
    _with_source(*_SLICES),
    _numpy_index(lambda out, index, source: out.__setitem__(index, source)),
    errors=(
        (lambda flow: flow.index_copy(flow.ones(2), 1, flow.tensor([0]), flow.ones(1)), IndexError),
    ),
)
samples(
    index_fill,
    lambda rng: [
        Sample((rng.standard_normal((3, 2)), 0, np.array([2, 0]), 1.5)),
        Sample((rng.standard_normal((2, 3)), 1, np.array([-1, -1]), np.array(0.5))),
    ],
    _numpy_index(lambda out, index, source: out.__setitem__(index, source)),
    errors=(
        (
            lambda flow: flow.index_fill(flow.ones(2), 0, flow.tensor([0]), flow.ones(2)),
            RuntimeError,
        ),
    ),
)
_ELEMENTS: tuple[tuple[object, ...], ...] = (
    ((3, 2), 0, [[2, 0], [0, 1]], (2, 2)),
    ((2, 3, 2), 1, [[[1, 0]], [[2, 2]]], (2, 2, 2)),
    ((3, 4), -1, [[3], [0]], (3, 1)),
    ((3,), 0, [], (2,)),
)


def _numpy_scatter(
    out: Array, dim: int, index: Array, source: Array, change: Callable[..., object]
) -> Any:
    """`change(place, value)` for each element of the index, in C order."""
    out = np.array(out)
    for at in np.ndindex(*index.shape):
        to = list(at)
        to[dim] = index[at]
        place = tuple(to)
        out[place] = change(out[place], source if np.ndim(source) == 0 else source[at])
    return out


def _scatter_reference(
    x: Array, dim: int, index: Array, src: Array, reduce: str | None = None
) -> Any:
    changes = {None: lambda a, b: b, "add": lambda a, b: a + b, "multiply": lambda a, b: a * b}
    return _numpy_scatter(x, dim, index, src, changes[reduce])


samples(
    scatter,
    lambda rng: [
        *_with_source(*_ELEMENTS)(rng),
        Sample((rng.standard_normal((3, 2)), 0, np.array([[2, 0]]), 1.5)),
        Sample((rng.standard_normal((3, 2)), 0, np.array([[1, 1]]), 1.5), {"reduce": "add"}),
    ],
    _scatter_reference,
    errors=(
        (lambda flow: flow.scatter(flow.ones(2), 0, flow.tensor([2]), 1.0).numpy(), IndexError),
        (
            lambda flow: flow.scatter(flow.ones(2), 0, flow.tensor([0, 1]), flow.ones(1)),
            RuntimeError,
        ),
        (
            lambda flow: flow.scatter(flow.ones(2), 0, flow.tensor([0]), 1.0, reduce="max"),
            ValueError,
        ),
        (lambda flow: flow.scatter(flow.ones(2), 0, flow.tensor([0])), ValueError),
    ),
)
samples(
    scatter_add,
    _with_source(*_ELEMENTS, ((3,), 0, [1, 1, 1], (3,)), ((), 0, 0, ())),
    lambda x, dim, index, src: (
        x + src if x.ndim == 0 else _scatter_reference(x, dim, index, src, "add")
    ),
    errors=((lambda flow: flow.scatter_add(flow.ones(2), 0, flow.tensor([0]), 1.0), TypeError),),
)
