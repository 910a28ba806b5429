"""Elements moved about whole: flipped, rolled, rotated, padded.  Views, copies, and tensors put
together of pieces (`ops/declare/assembly.py`); no kernel of its own.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from flowvm.eager.declaration import Invocation, Kernel, Rules, Signature
from flowvm.eager.interpreter import Operator
from flowvm.eager.native.trace_cache import steady
from flowvm.eager.tensor import Tensor, alias, method
from flowvm.errors import ArgumentError, ArgumentTypeError, ModeError, OutOfRangeError, ShapeError
from flowvm.meta.formats import Strides, format_stride
from flowvm.meta.meta import Attrs, Size, TensorMeta
from flowvm.ops.declare.assembly import NUMBER, Assembly, Piece, rectangles
from flowvm.ops.declare.composite import Recorded, need_tensor, record, whole, wrap_dim, wrap_dims
from flowvm.ops.declare.core import arranged, clone
from flowvm.ops.declare.kinds import is_int
from flowvm.ops.declare.letters import unsplit
from flowvm.ops.declare.registry import samples
from flowvm.ops.shapes.complex_parts import complex, imag, real
from flowvm.ops.shapes.slices import _slice, basic_view
from flowvm.ops.shapes.views import _dims_of, _xs, flatten, reshape

if TYPE_CHECKING:
    from flowvm.eager.nodes import Node
    from flowvm.meta.arrays import Array


# public: flow

_flip_op = Recorded("flip", lambda c, g: (flip(g, c.attrs[0]),))


@method("flip")
def _flip_method(x: Tensor, *args: object, dims: int | None = None) -> Tensor:
    """A copy in which the order of `dims` is reversed.

    >>> flow.tensor([[1, 2], [3, 4]]).flip(0, 1)
    tensor([[4, 3],
            [2, 1]])
    """
    return flip(x, _dims_of(args if dims is None else (dims,)))


def flip(input: Tensor, dims: int | Sequence[int]) -> Tensor:
    """A copy in which the elements along `dims` come in reverse order.

    >>> flow.flip(flow.tensor([[1, 2], [3, 4]]), (1,))
    tensor([[2, 1],
            [4, 3]])
    """
    meta = need_tensor("flip", "input", input)._meta
    turned = wrap_dims("flip", dims, meta.ndim)
    out = _arranged(input, turned, tuple(range(meta.ndim)), format_stride("flip", meta, None))
    return record(_flip_op, (input,), out, (turned,))


def _arranged(
    x: Tensor, turned: Sequence[int], order: Sequence[int], lies: Strides | None = None
) -> Tensor:
    """A copy with the dimensions `turned` reversed and then all in this order, not recorded, with
    the strides `lies`; None is C order.

    It reads backwards: negative strides, from the last element; no such view leaves this function.
    """
    meta = x._meta
    stride = [-s if d in turned else s for d, s in enumerate(meta.stride)]
    last = sum((meta.shape[d] - 1) * meta.stride[d] for d in turned) if meta.numel else 0
    shape = Size(meta.shape[d] for d in order)
    view = TensorMeta.of(shape, meta.dtype, meta.device, tuple(stride[d] for d in order))
    if lies == TensorMeta.of(shape, meta.dtype, meta.device).stride:
        lies = None  # a cast, which passes join with what reads it
    return arranged(alias(x, view, last * meta.dtype.itemsize), meta.dtype, lies)


@method()
def fliplr(input: Tensor) -> Tensor:
    """Left to right: dimension 1 reversed.

    >>> flow.fliplr(flow.tensor([[1, 2], [3, 4]]))
    tensor([[2, 1],
            [4, 3]])
    """
    if need_tensor("fliplr", "input", input)._meta.ndim < 2:
        raise ShapeError(f"fliplr: needs at least 2 dimensions, got shape {tuple(input.shape)}")
    return flip(input, (1,))


@method()
def flipud(input: Tensor) -> Tensor:
    """Upside down: dimension 0 reversed.

    >>> flow.flipud(flow.tensor([[1, 2], [3, 4]]))
    tensor([[3, 4],
            [1, 2]])
    """
    if need_tensor("flipud", "input", input)._meta.ndim < 1:
        raise ShapeError("flipud: needs at least 1 dimension, got a 0-d tensor")
    return flip(input, (0,))


def _roll_infer(metas: tuple[TensorMeta, ...], attrs: Attrs) -> Assembly:
    (x,) = metas
    sizes = attrs[0]
    if len(sizes) != x.ndim or not all(
        is_int(cut, 0, max(0, size - 1)) for cut, size in zip(sizes, x.shape, strict=True)
    ):
        raise ArgumentError(f"roll: {sizes} are not places in the dimensions of {x!r}")
    out = x.dense()
    cuts = [
        [(0, size - cut, cut, 1), (size - cut, cut, 0, 1)] if cut else [(0, size, 0, 1)]
        for size, cut in zip(x.shape, sizes, strict=True)
    ]
    pieces, planes, _ = rectangles(out, x, cuts)
    return Assembly(out, tuple(pieces), 0, planes)


def _roll_grad(c: Node, g: Tensor) -> tuple[Tensor]:
    back = tuple(-cut % size for cut, size in zip(c.attrs[0], g._meta.shape, strict=True))
    return (_roll.call(g, back),)


def _put_together(
    name: str, infer: Callable[..., Assembly], attrs: tuple[str, ...], grad: Callable[..., object]
) -> Operator:
    def lower(metas: tuple[TensorMeta, ...], attrs: Attrs) -> Invocation:
        return infer(metas, attrs).on_cpu()

    return Operator(
        name,
        Signature(("x",), ("out",), attrs=attrs),
        Kernel(lower, infer, complex=True, minifloats=True),
        grad=grad,
        rules=Rules(letters=unsplit),
    )


_roll = _put_together("roll", _roll_infer, ("cuts",), _roll_grad)


@method()
def roll(
    input: Tensor, shifts: int | Sequence[int], dims: int | Sequence[int] | None = None
) -> Tensor:
    """Return a copy shifted by `shifts` along `dims`; elements leave one end and enter the other.

    Without `dims` the flattened tensor is rolled, and has its shape again.

    >>> flow.roll(flow.tensor([1, 2, 3]), 1)
    tensor([3, 1, 2])
    """
    x = need_tensor("roll", "input", input)
    by = _dims_of((shifts,))
    if dims is not None and x._meta.ndim == 0:
        raise OutOfRangeError(f"roll: a 0-d tensor has no dimension {dims}")
    if dims is None:
        if len(by) != 1:
            raise ArgumentError(f"roll: without dims there is one shift, got {by}")
        return reshape(roll(flatten(x), by, 0), x._meta.shape)
    along = [wrap_dim("roll", d, x._meta.ndim) for d in _dims_of((dims,))]
    if len(along) != len(by):
        raise ArgumentError(f"roll: shifts {by} and dims {tuple(along)} have different lengths")
    if x._meta.numel == 0 or x._meta.ndim == 0:
        return clone(x)
    cuts = [0] * x._meta.ndim
    for shift, d in zip(by, along, strict=True):
        cuts[d] = (cuts[d] - shift) % x._meta.shape[d]
    rolled: Tensor = _roll.call(x, tuple(cuts))
    return rolled


@method()
def rot90(input: Tensor, k: int = 1, dims: Sequence[int] = (0, 1)) -> Tensor:
    """A copy turned `k` times by 90 degrees from the first of `dims` towards the second.

    >>> flow.rot90(flow.tensor([[1, 2], [3, 4]]))
    tensor([[2, 4],
            [1, 3]])
    """
    x = need_tensor("rot90", "input", input)
    turned = wrap_dims("rot90", tuple(dims), x._meta.ndim)
    if len(turned) != 2:
        raise ArgumentError(f"rot90: needs two dimensions to turn, got {tuple(dims)}")
    a, b = turned
    order = list(range(x._meta.ndim))
    k = whole("rot90", "k", k)
    if k % 2:
        order[a], order[b] = b, a
    flips = ((), (b,), turned, (a,))[k % 4]
    lies = None
    if k % 4:
        strides = format_stride("rot90", x._meta, None) or x._meta.dense().stride
        lies = tuple(strides[d] for d in order)
    return record(_rot90_op, (x,), _arranged(x, flips, order, lies), (k, turned))


_rot90_op = Recorded("rot90", lambda c, g: (rot90(g, -c.attrs[0], c.attrs[1]),))

# --- padding ------------------------------------------------------------------------------------


# before and after of every dimension
_Sides = tuple[tuple[int, int], ...]


WIDEST = 1 << 40  # elements that a side has
_BEYOND = {"reflect": -1, "replicate": WIDEST, "circular": 0}  # than elements, a side may have


def _check_sides(x: TensorMeta, sides: Any, beyond: int, empty: bool = True) -> None:
    """ArgumentError unless `sides` has two sizes for each dimension, at most so many beyond its
    own; none around an empty one, unless `empty`.
    """
    if type(sides) is not tuple or len(sides) != x.ndim or not all(
        type(side) is tuple
        and len(side) == 2
        and all(is_int(s, 0, max(0, min(size + beyond, WIDEST))) for s in side)
        and (empty or size > 0 or side == (0, 0))
        for side, size in zip(sides, x.shape, strict=True)
    ):  # fmt: skip
        raise ArgumentError(f"pad: {sides} are not sizes to add around {x!r}")


def _constant_infer(metas: tuple[TensorMeta, ...], attrs: Attrs) -> Assembly:
    (x,) = metas
    sides, value = attrs
    _check_sides(x, sides, WIDEST)
    if not isinstance(value, (bool, int, float)) and not x.dtype.is_complex:
        raise ArgumentTypeError(f"pad: value must be a number, got {value!r}")
    out = x.with_shape([n + a + b for n, (a, b) in zip(x.shape, sides, strict=True)]).dense()
    pairs = list(zip(x.shape, sides, strict=True))
    pieces, planes, lead = rectangles(out, x, [[(a, n, 0, 1)] for n, (a, _) in pairs])
    shape, offset, to = list(out.shape[lead:]), 0, out.stride[lead:]
    for d, (n, (a, b)) in enumerate(pairs[lead:]):
        for start, length in ((0, a), (a + n, b)):  # inside the borders of the dimensions before
            shape[d] = length
            zeros = (0,) * len(shape)
            pieces.append(Piece(NUMBER, tuple(shape), to, offset + start * to[d], 0, zeros))
        shape[d] = n
        offset += a * to[d]
    return Assembly(out, tuple(pieces), value, planes)


def _constant_grad(c: Node, g: Tensor) -> tuple[Tensor]:
    sides = c.attrs[0]
    inner = tuple((a, n, 1) for n, (a, _) in zip(c.metas[0].shape, sides, strict=True))
    return (basic_view(g, inner),)


_constant = _put_together("pad", _constant_infer, ("sides", "value"), _constant_grad)


def _border_cuts(n: int, a: int, b: int, mode: str) -> list[tuple[int, int, int, int]]:
    """Before, the dimension itself, and behind it: as `rectangles` takes them."""
    before, after, step = {
        "reflect": (a, n - 2, -1),
        "circular": (n - a, 0, 1),
        "replicate": (0, n - 1, 0),
    }[mode]
    cuts = [(0, a, before, step), (a, n, 0, 1), (a + n, b, after, step)]
    return [cut for cut in cuts if cut[1]]


def _border_infer(metas: tuple[TensorMeta, ...], attrs: Attrs) -> Assembly:
    (x,) = metas
    sides, mode = attrs
    if mode not in _BEYOND:
        raise ArgumentError(f"pad: mode must be one of {', '.join(_BEYOND)}, got {mode!r}")
    _check_sides(x, sides, _BEYOND[mode], empty=False)
    pairs = list(zip(x.shape, sides, strict=True))
    out = x.with_shape([n + a + b for n, (a, b) in pairs]).dense()
    cuts = [_border_cuts(n, a, b, mode) for n, (a, b) in pairs]
    if x.numel == 0:
        return Assembly(out, ())
    pieces, planes, _ = rectangles(out, x, cuts)
    return Assembly(out, tuple(pieces), 0, planes)


def _border_grad(c: Node, g: Tensor) -> tuple[Tensor]:
    return (_folded(g, *c.attrs),)


_border = _put_together("pad", _border_infer, ("sides", "mode"), _border_grad)
_folded_op = Recorded("pad_backward", lambda c, g: (_border.call(g, *c.attrs),))


def _folded(g: Tensor, sides: _Sides, mode: str) -> Tensor:
    """The gradient of a border of the tensor's own elements: each adds to where it came from."""
    out = g.detach()
    for d, (a, b) in enumerate(sides):
        if a == b == 0:
            continue
        whole, n = out, out._meta.shape[d] - a - b
        out = clone(_slice(whole, d, a, n, 1))
        for width, start in ((a, 0), (b, a + n)):
            if width == 0:
                continue
            border = _slice(whole, d, start, width, 1)
            if mode == "reflect":
                border = flip(border, (d,))
                at = 1 if start == 0 else n - 1 - width
            elif mode == "circular":
                at = n - width if start == 0 else 0
            else:
                border = border.sum(d, keepdim=True)
                at, width = (0 if start == 0 else n - 1), 1
            _slice(out, d, at, width, 1).add_(border)
    return record(_folded_op, (g,), out, (sides, mode))


def _shrunk(x: Tensor, sides: dict[int, tuple[int, int]]) -> Tensor:
    """Return `x` without the elements that negative padding takes away."""
    for d, (before, after) in sides.items():
        if before < 0 or after < 0:
            start, end = max(0, -before), x._meta.shape[d] + min(0, after)
            x = _slice(x, d, start, end - start, 1)
    return x


def _check_borders(x: Tensor, sides: _Sides, mode: str) -> None:
    for d, ((before, after), size) in enumerate(zip(sides, x._meta.shape, strict=True)):
        if d == 0 and before == after == 0:
            continue  # a batch may be empty
        most = {"reflect": size - 1, "circular": size}.get(mode, before + after if size else 0)
        if max(before, after) > most:
            raise ShapeError(
                f"pad: mode {mode!r} can add at most {most} to dimension {d} of size {size}, got "
                f"({before}, {after})"
            )


def _padded(x: Tensor, widths: tuple[int, ...], value: float) -> Tensor:
    return pad(x, widths, "constant", value)


# public: flow, F
@steady
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

    >>> F.pad(flow.tensor([[1, 2]]), (1, 2), value=7)
    tensor([[7, 1, 2, 7, 7]])
    """
    x = need_tensor("pad", "input", input)
    widths = _dims_of((pad,))
    if len(widths) % 2 or len(widths) > 2 * x._meta.ndim:
        raise ArgumentError(
            f"pad: {widths} needs two numbers for each padded dimension, at most "
            f"{2 * x._meta.ndim} for "
            f"shape {tuple(x.shape)}"
        )
    if mode not in ("constant", "reflect", "replicate", "circular"):
        raise ModeError(
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
    if mode == "constant" and x._meta.dtype.is_complex:
        filling = builtins.complex(0 if value is None else value)
        parts = (real(x), filling.real), (imag(x), filling.imag)
        both: Tensor = complex(*(_padded(part, widths, number) for part, number in parts))
        return both
    if mode == "constant":
        x = _shrunk(x, sides)
        around = _around(x, sides)
        padded: Tensor = _constant.call(x, around, 0 if value is None else value)
        return padded
    if value is not None and value != 0:
        raise ArgumentError(f"pad: mode {mode!r} takes no value, got {value}")
    if x._meta.ndim - len(sides) not in (1, 2):
        raise ArgumentError(
            f"pad: mode {mode!r} pads all dimensions but the first one or two, got {widths} for "
            f"shape {tuple(x.shape)}"
        )
    if mode == "replicate":
        sides = {d: _edge_kept(x._meta.shape[d], *pair) for d, pair in sides.items()}
    x = _shrunk(x, sides)
    around = _around(x, sides)
    _check_borders(x, around, mode)
    bordered: Tensor = _border.call(x, around, mode)
    return bordered


def _edge_kept(n: int, before: int, after: int) -> tuple[int, int]:
    """Adjust padding if one side removes all `n` elements: the other side keeps the last one."""
    if n and before == -n and after > 0:
        return before + 1, after - 1
    return (before - 1, after + 1) if n and after == -n and before > 0 else (before, after)


def _around(x: Tensor, sides: dict[int, tuple[int, int]]) -> _Sides:
    """Return the elements to add before and after each dimension of `x`."""
    pairs = (sides.get(d, (0, 0)) for d in range(x._meta.ndim))
    return tuple((max(0, a), max(0, b)) for a, b in pairs)


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
    x: Array, widths: Sequence[int], mode: str = "constant", value: float | None = None
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
        ((1, 2, 3), (-1, 2), "replicate"),
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
