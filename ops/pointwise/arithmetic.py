"""Arithmetic of two tensors, or of a tensor and a number, with broadcasting, and the operators `+ -
* / // % **`.

The operators are native calls of their own, so `x + y` is one call; what those leave comes to a
function that sees to it that a tensor was given (`received`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from flowvm.eager.native.install import fronted
from flowvm.eager.native.trace_cache import steady
from flowvm.eager.tensor import Tensor, method, refused
from flowvm.errors import ArgumentError, ArgumentTypeError, DTypeError
from flowvm.meta.meta import TensorMeta
from flowvm.ops.declare.elementwise import Elementwise, elementwise, fronts_over
from flowvm.ops.declare.halves import wide
from flowvm.ops.declare.registry import Sample, samples
from flowvm.ops.pointwise.parts.unary import attach, back, in_place
from flowvm.ops.shapes.fill import zeros_like

if TYPE_CHECKING:
    from flowvm.eager.nodes import Node


Scalar = bool | int | float


def _sum_grad(c: Node, g: Tensor) -> tuple[object, ...]:
    return back(c, lambda: g, lambda: g)


_add = elementwise("add", "x + y", grad=_sum_grad, complex=True, of_numbers=True)
_sub = elementwise(
    "sub", "x - y", types="number", grad=lambda c, g: back(c, lambda: g, lambda: -g), complex=True,
    of_numbers=True,
)  # fmt: skip

# of floats of one dtype, for one rounding and one instruction; see `_weighted`
_add_scaled = elementwise(
    "add_scaled",
    "x + y * alpha",
    args="x, y, alpha",
    types="number",
    saves="alpha",
    grad=lambda c, g: back(c, lambda: g, lambda: g * c.saved[0], None),
)


def _mul_grad(c: Node, g: Tensor) -> tuple[Tensor | None, ...]:
    x, y = c.saved
    first, second = (m is None or m.shape == g._meta.shape for m in c.metas)

    def by_x() -> Tensor:
        return g * y if first else wide(g) * wide(y)  # which is summed up

    def by_y() -> Tensor:
        return g * x if second else wide(g) * wide(x)

    return back(c, by_x, by_y)


# public: flow
mul = elementwise(
    "mul",
    "x * y",
    of_numbers=True,
    saves="x for y, y for x",
    grad=_mul_grad,
    complex=True,
    minifloats=True,
    doc="""x * y, element by element; bools: and.

    >>> flow.mul(flow.tensor([1, 2, 3]), 10)
    tensor([10, 20, 30])
    """,
)


def _div_grad(c: Node, g: Tensor) -> tuple[Tensor | None, ...]:
    x, y = c.saved

    def by_y() -> Any:
        above, below = wide(x), wide(y)
        return -wide(g) * ((above / below) / below)

    return back(c, lambda: g / y, by_y)


_div = elementwise(
    "div", "x / y", types="float", saves="x for y, y", grad=_div_grad, complex="cdiv(x, y)",
    of_numbers=True, several=False,
)  # fmt: skip


def _flat_grad(c: Node, g: Tensor) -> tuple[Tensor | None, ...]:
    return back(c, lambda: zeros_like(g), lambda: zeros_like(g))


# public: flow
floor_divide = elementwise(
    "floor_divide",
    "floor_divide(x, y)",
    of_numbers=True,
    types="number",
    grad=_flat_grad,
    doc="""x / y rounded down. Integers by 0: DivisionByZeroError at the next sync.

    >>> flow.floor_divide(flow.tensor([7, -7]), 2)
    tensor([ 3, -4])
    """,
)
_trunc_divide_float = elementwise(
    "trunc_divide", "trunc(x / y)", types="number", grad=_flat_grad, of_numbers=True
)
_trunc_divide_int = elementwise(
    "trunc_divide",
    "floor_divide(x - fmod(x, y), y)",
    types="number",
    grad=_flat_grad,
    of_numbers=True,
)


def _remainder_grad(c: Node, g: Tensor) -> tuple[Tensor | None, ...]:
    x, y = c.saved
    return back(c, lambda: g, lambda: -g * floor_divide.call(x, y))


def _fmod_grad(c: Node, g: Tensor) -> tuple[Tensor | None, ...]:
    x, y = c.saved
    return back(c, lambda: g, lambda: -g * div(x, y, rounding_mode="trunc"))


# public: flow
remainder = elementwise(
    "remainder",
    "remainder(x, y)",
    types="number",
    saves="x, y",
    grad=_remainder_grad,
    doc="""The remainder of x / y rounded down: it has the sign of y, as Python's %.

    >>> flow.remainder(flow.tensor([7, -7]), 3)
    tensor([1, 2])
    """,
)
# public: flow
fmod = elementwise(
    "fmod",
    "fmod(x, y)",
    types="number",
    saves="x, y",
    grad=_fmod_grad,
    doc="""The remainder of x / y rounded towards 0: it has the sign of x, as C's fmod.

    >>> flow.fmod(flow.tensor([7, -7]), 3)
    tensor([ 1, -1])
    """,
)


def _scaled(name: str, other: Tensor, alpha: Scalar) -> Any:
    if isinstance(alpha, bool) and getattr(getattr(other, "dtype", None), "is_bool", False):
        return other * alpha
    if isinstance(alpha, bool) or not isinstance(alpha, (int, float, complex, np.number)):
        raise ArgumentTypeError(f"{name}: alpha must be a number, got {type(alpha).__name__}")
    if isinstance(alpha, (float, np.floating)) and not getattr(
        getattr(other, "dtype", None), "inexact", True
    ):
        raise DTypeError(f"{name}: alpha={alpha} is a float and other is {other.dtype.name}")
    if isinstance(alpha, (complex, np.complexfloating)) and not getattr(
        getattr(other, "dtype", None), "is_complex", True
    ):
        raise DTypeError(f"{name}: alpha={alpha} is complex and other is {other.dtype.name}")
    return other * alpha


def _weighted(x: object, other: object, alpha: object) -> bool:
    """Return True if x + alpha * other is one instruction: local tensors of one dtype of floats,
    and a plain number.
    """
    if not isinstance(x, Tensor) or not isinstance(other, Tensor):
        return False
    meta, kind = x._meta, other._meta.dtype
    return (
        type(alpha) in (int, float)
        and meta.dtype is kind
        and kind.is_floating_point
        and meta.__class__ is other._meta.__class__ is TensorMeta
        and meta.device is other._meta.device
    )


def _formerly(name: str, alpha: object, rest: tuple[object, ...]) -> tuple[Any, Any]:
    """(other, alpha) of a call in PyTorch's earlier order, in which alpha is in front of other."""
    if len(rest) != 1 or isinstance(alpha, Tensor):
        raise ArgumentTypeError(
            f"{name} takes (input, other, alpha=1), or (input, number, other); got "
            f"{2 + len(rest)} arguments"
        )
    return rest[0], alpha


# public: flow
@steady
def add(
    input: object, other: Any, *former: object, alpha: Scalar = 1, out: Tensor | None = None
) -> Tensor:
    """`input + alpha * other`, broadcast and promoted; bools: or.

    >>> flow.add(flow.ones(2), flow.ones(2), alpha=2)
    tensor([3., 3.])
    """
    if former:
        other, alpha = _formerly("add", other, former)
    if alpha != 1:
        if _weighted(input, other, alpha):
            weighted: Tensor = _add_scaled(input, other, alpha, out=out)
            return weighted
        other = _scaled("add", other, alpha)
    total: Tensor = _add.call(input, other) if out is None else _add(input, other, out=out)
    return total


# public: flow
@steady
def sub(
    input: object, other: Any, *former: object, alpha: Scalar = 1, out: Tensor | None = None
) -> Tensor:
    """`input - alpha * other`, broadcast and promoted.  DTypeError for bool tensors.

    >>> flow.sub(flow.tensor([5, 6]), flow.tensor([1, 2]), alpha=2)
    tensor([3, 2])
    """
    if former:
        other, alpha = _formerly("sub", other, former)
    if alpha != 1:
        if _weighted(input, other, alpha):
            weighted: Tensor = _add_scaled(input, other, -alpha, out=out)
            return weighted
        other = _scaled("sub", other, alpha)
    rest: Tensor = _sub.call(input, other) if out is None else _sub(input, other, out=out)
    return rest


# public: flow
@steady
def rsub(input: Tensor, other: object, alpha: Scalar = 1) -> Tensor:
    """`other - alpha * input`.

    >>> flow.rsub(flow.tensor([1, 2]), 10)
    tensor([9, 8])
    """
    return sub(other, input, alpha=alpha)


def _quotient(name: str, rounding_mode: str | None, *args: object) -> Elementwise:
    if rounding_mode is None:
        return _div
    if rounding_mode == "floor":
        return floor_divide
    if rounding_mode != "trunc":
        raise ArgumentError(
            f"{name}: rounding_mode must be None, 'trunc' or 'floor', got {rounding_mode!r}"
        )
    floats = any(
        a._meta.dtype.is_floating_point if isinstance(a, Tensor) else isinstance(a, float)
        for a in args
    )
    return _trunc_divide_float if floats else _trunc_divide_int


# public: flow
def div(
    input: object, other: object, *, rounding_mode: str | None = None, out: Tensor | None = None
) -> Tensor:
    """`input / other`, broadcast; integers give floats unless rounded.

    `rounding_mode`: None, "trunc" (towards 0) or "floor" (down); these keep integers integers, and
    dividing them by 0 raises DivisionByZeroError at the next sync.

    >>> flow.div(flow.tensor([7, -7]), 2), flow.div(flow.tensor([7, -7]), 2, rounding_mode="floor")
    (tensor([ 3.5000, -3.5000]), tensor([ 3, -4]))
    """
    quotient: Tensor = _quotient("div", rounding_mode, input, other)(input, other, out=out)
    return quotient


# public: flow
def true_divide(input: object, other: object, *, out: Tensor | None = None) -> Tensor:
    """`input / other`; integers give floats.

    >>> flow.true_divide(flow.tensor([7, 8]), 2)
    tensor([3.5000, 4.0000])
    """
    return div(input, other, out=out)


multiply, subtract, divide = mul, sub, div  # public: flow


# --- methods and operators ----------------------------------------------------------------------


@method()
@fronts_over(_add)
def add_(x: Tensor, other: Any, *former: object, alpha: Scalar = 1) -> Tensor:
    """In-place `add`."""
    if former:
        other, alpha = _formerly("add_", other, former)
    if alpha != 1 and _weighted(x, other, alpha):
        return _add_scaled.into(x, x, other, alpha)
    return _add.into(x, x, other if alpha == 1 else _scaled("add_", other, alpha))


@method()
@fronts_over(_sub)
def sub_(x: Tensor, other: Any, *former: object, alpha: Scalar = 1) -> Tensor:
    """In-place `sub`."""
    if former:
        other, alpha = _formerly("sub_", other, former)
    if alpha != 1 and _weighted(x, other, alpha):
        return _add_scaled.into(x, x, other, -alpha)
    return _sub.into(x, x, other if alpha == 1 else _scaled("sub_", other, alpha))


@method()
@steady
def div_(x: Tensor, other: object, *, rounding_mode: str | None = None) -> Tensor:
    """In-place `div`."""
    return _quotient("div_", rounding_mode, x, other).into(x, x, other)


def received(
    f: Elementwise | None, name: str, function: Callable[..., object]
) -> Callable[..., Any]:
    """The method for `function`, which takes numbers alone, too; native as calls of `f` are."""

    def method(x: Tensor, *args: object, **kwargs: object) -> Any:
        if not isinstance(x, Tensor):
            raise refused(name, x)
        return function(x, *args, **kwargs)

    functools.update_wrapper(method, function, ("__doc__", "__annotations__"))
    method.__name__ = method.__qualname__ = name
    method = steady(method)
    return method if f is None else fronted(method, lambda: f.operator)


def reversed_operator(f: Callable[..., object], name: str) -> Callable[..., Any]:
    def operator(x: Tensor, other: object) -> Any:
        if not isinstance(x, Tensor):
            raise refused(name, x)
        return f(other, x)

    operator.__name__ = operator.__qualname__ = name
    return steady(operator)


for _f in (mul, floor_divide, remainder, fmod):
    attach(_f, _f.name)
attach(mul, "multiply")
for _name, _own, _g, _h in (
    ("add", _add, add, add_), ("sub", _sub, sub, sub_), ("subtract", _sub, sub, sub_),
    ("div", _div, div, div_), ("divide", _div, div, div_), ("true_divide", _div, true_divide, div_),
    ("rsub", None, rsub, None), ("mul", mul, mul.call, None), ("multiply", mul, mul.call, None),
    ("floor_divide", floor_divide, floor_divide.call, None),
):  # fmt: skip
    setattr(Tensor, _name, received(_own, _name, _g))
    if _h is not None:
        setattr(Tensor, _name + "_", _h)
for _name, _f in (
    ("add", _add), ("sub", _sub), ("mul", mul), ("truediv", _div), ("floordiv", floor_divide),
    ("mod", remainder),
):  # fmt: skip
    setattr(Tensor, f"__{_name}__", received(_f, f"__{_name}__", _f.call))
    setattr(Tensor, f"__r{_name}__", reversed_operator(_f.call, f"__r{_name}__"))
    setattr(Tensor, f"__i{_name}__", in_place(_f, f"__i{_name}__"))
Tensor.__array_priority__ = 1000  # type: ignore[attr-defined]  # so that array + tensor asks the tensor


# --- samples ----------------------------------------------------------------------------------


def pairs(low: float, high: float, *more: float) -> Callable[[np.random.Generator], list[Sample]]:
    """Samples of two arguments: equal shapes, broadcast ones, 0-d, empty, numbers.

    The first is from `low` to `high`, the second from the range `more` if that is given.
    """
    second_low, second_high = more or (low, high)

    def generate(rng: np.random.Generator) -> list[Sample]:
        x, y = rng.uniform(low, high, (3, 4)), rng.uniform(second_low, second_high, (3, 4))
        return [
            Sample((x, y)),
            Sample((x, y[:1])),
            Sample((x[0], y[:, :1])),
            Sample((x[0, 0, ...], y)),
            Sample((x, float(y[0, 0]))),
            Sample((float(x[0, 0]), y)),
            Sample((np.zeros((0, 3)), y[0, :3])),
        ]

    return generate


_mismatch = (
    (lambda flow: flow.add(flow.ones(2), flow.ones(3)), RuntimeError),
    (lambda flow: flow.add(flow.ones(2), "x"), TypeError),
    (lambda flow: flow.add(flow.ones(2), flow.ones(2), alpha="x"), TypeError),
    (lambda flow: flow.tensor([1, 2], dtype=flow.uint8) + 300, ValueError),
    (lambda flow: flow.tensor([1, 2]).add_(1.5), RuntimeError),
    (lambda flow: flow.ones(2).add_(flow.ones(2, 2)), RuntimeError),
    (lambda flow: flow.tensor([True]) - flow.tensor([True]), RuntimeError),
    (lambda flow: (flow.tensor([1]) // 0).item(), ZeroDivisionError),
    (lambda flow: (flow.tensor([1]) % flow.tensor([0])).item(), ZeroDivisionError),
    (lambda flow: flow.div(flow.ones(2), 2, rounding_mode="up"), ValueError),
    (lambda flow: flow.ones(2).fill_(flow.ones(2)), RuntimeError),
    (lambda flow: flow.zeros(2, dtype=flow.int8).fill_(200), ValueError),
)
samples(add, pairs(-2, 2), np.add, errors=_mismatch)
samples(
    add,
    lambda rng: [Sample((rng.uniform(-2, 2, 3), rng.uniform(-2, 2, (2, 3))), {"alpha": 2.5})],
    lambda x, y, alpha: x + alpha * y,
    name="add with alpha",
)
samples(
    sub,
    lambda rng: [*pairs(-2, 2)(rng), Sample((rng.uniform(-2, 2, 3),) * 2, {"alpha": 3})],
    lambda x, y, alpha=1: x - alpha * y,
)
samples(rsub, lambda rng: pairs(-2, 2)(rng)[:3], lambda x, y: y - x)
samples(mul, pairs(-2, 2), np.multiply)
samples(div, pairs(-2, 2, 0.5, 2), np.divide)
samples(true_divide, lambda rng: pairs(-2, 2, 0.5, 2)(rng)[:2], np.divide)


def _apart(rng: np.random.Generator) -> list[Sample]:
    """Quotients that are well between integers."""
    y = rng.uniform(1.0, 2.0, (3, 4))
    x = y * (rng.integers(-3, 3, (3, 4)) + rng.uniform(0.25, 0.75, (3, 4)))
    return [Sample((x, y)), Sample((x[0, 0, ...], y[0, 0, ...]))]


samples(floor_divide, _apart, np.floor_divide, grad2=False)
samples(remainder, _apart, np.remainder, atol=1e-2)
samples(fmod, _apart, np.fmod, atol=1e-2)
samples(
    div,
    lambda rng: [
        Sample(s.args, {"rounding_mode": m}) for s in _apart(rng) for m in ("trunc", "floor")
    ],
    lambda x, y, rounding_mode: (np.trunc if rounding_mode == "trunc" else np.floor)(x / y),
    name="div rounded",
    grad2=False,
)
