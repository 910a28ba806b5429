"""Comparisons, logic, bits and choices, element by element; none but `where` has a gradient."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from flowvm.eager.modes import current_trace_recorder
from flowvm.eager.native.functions import value_method
from flowvm.eager.native.trace_cache import steady
from flowvm.eager.native.words import AS_EQUAL
from flowvm.eager.tensor import Tensor, method, refused
from flowvm.errors import ArgumentError, ArgumentTypeError, DTypeError
from flowvm.meta.dtype import bool_, float64
from flowvm.ops.declare.composite import need_tensor
from flowvm.ops.declare.core import cast
from flowvm.ops.declare.elementwise import Elementwise, elementwise
from flowvm.ops.declare.registry import Sample, samples
from flowvm.ops.pointwise.arithmetic import reversed_operator
from flowvm.ops.pointwise.parts.unary import attach, back, in_place

if TYPE_CHECKING:
    from flowvm.eager.nodes import Node


# public: flow


def _predicate(
    name: str, expr: str, doc: str, complex: bool | str = False, minifloats: bool = False
) -> Elementwise:
    return elementwise(name, expr, types="bool", doc=doc, complex=complex, minifloats=minifloats)


eq = _predicate(
    "eq",
    "x == y",
    """Test whether x equals y, element by element.

    >>> flow.eq(flow.tensor([1, 2]), flow.tensor([1, 3]))
    tensor([ True, False])
    """,
    True,
    True,
)
ne = _predicate(
    "ne",
    "x != y",
    """Test whether x differs from y, element by element.

    >>> flow.ne(flow.tensor([1, 2]), flow.tensor([1, 3]))
    tensor([False,  True])
    """,
    True,
    True,
)
lt = _predicate(
    "lt",
    "x < y",
    """Test whether x is less than y, element by element.

    >>> flow.less(flow.tensor([1, 2, 3]), 2)
    tensor([ True, False, False])
    """,
)
le = _predicate(
    "le",
    "x <= y",
    """Test whether x is at most y, element by element.

    >>> flow.le(flow.tensor([1, 2, 3]), 2)
    tensor([ True,  True, False])
    """,
)
gt = _predicate(
    "gt",
    "x > y",
    """Test whether x is greater than y, element by element.

    >>> flow.greater(flow.tensor([1, 2, 3]), 2)
    tensor([False, False,  True])
    """,
)
ge = _predicate(
    "ge",
    "x >= y",
    """Test whether x is at least y, element by element.

    >>> flow.ge(flow.tensor([1, 2, 3]), 2)
    tensor([False,  True,  True])
    """,
)
isnan = _predicate(
    "isnan",
    "x != x",
    """Test whether each element is NaN.

    >>> flow.isnan(flow.tensor([1.0, flow.inf, flow.nan]))
    tensor([False, False,  True])
    """,
    True,
    True,
)
isinf = _predicate(
    "isinf",
    "isinf(x)",
    """Test whether each element is infinite, of either sign.

    >>> flow.isinf(flow.tensor([1.0, -flow.inf, flow.nan]))
    tensor([False,  True, False])
    """,
    "isinf(x.real) or isinf(x.imag)",
)
isfinite = _predicate(
    "isfinite",
    "isfinite(x)",
    """Test whether each element is neither infinite nor NaN.

    >>> flow.isfinite(flow.tensor([1.0, flow.inf, flow.nan]))
    tensor([ True, False, False])
    """,
    "isfinite(x.real) and isfinite(x.imag)",
)
isposinf = _predicate(
    "isposinf",
    "isinf(x) and x > 0",
    """Test whether each element is positive infinity.

    >>> flow.isposinf(flow.tensor([flow.inf, -flow.inf]))
    tensor([ True, False])
    """,
)
isneginf = _predicate(
    "isneginf",
    "isinf(x) and x < 0",
    """Test whether each element is negative infinity.

    >>> flow.isneginf(flow.tensor([flow.inf, -flow.inf]))
    tensor([False,  True])
    """,
)
_signbit = _predicate("signbit", "copysign(1.0, x) < 0", "")
_negative = _predicate("signbit", "x < 0", "")
logical_and = elementwise(
    "logical_and",
    "x and y",
    types="logical",
    complex=True,
    doc="""Test whether both elements are true.

    >>> flow.logical_and(flow.tensor([1, 1, 0]), flow.tensor([5, 0, 0]))
    tensor([ True, False, False])
    """,
)
logical_or = elementwise(
    "logical_or",
    "x or y",
    types="logical",
    complex=True,
    doc="""Test whether at least one of both elements is true.

    >>> flow.logical_or(flow.tensor([1, 1, 0]), flow.tensor([5, 0, 0]))
    tensor([ True,  True, False])
    """,
)
logical_xor = elementwise(
    "logical_xor",
    "x != y",
    types="logical",
    complex=True,
    doc="""Test whether just one of both elements is true.

    >>> flow.logical_xor(flow.tensor([1, 1, 0]), flow.tensor([5, 0, 0]))
    tensor([False,  True, False])
    """,
)
logical_not = elementwise(
    "logical_not",
    "not x",
    types="logical",
    complex=True,
    doc="""Test whether each element is false.

    >>> flow.logical_not(flow.tensor([0, 2]))
    tensor([ True, False])
    """,
)
bitwise_and = elementwise(
    "bitwise_and",
    "x & y",
    types="int",
    doc="""The bits that both have.

    >>> flow.bitwise_and(flow.tensor(0b1100), flow.tensor(0b1010))
    tensor(8)
    """,
)
bitwise_or = elementwise(
    "bitwise_or",
    "x | y",
    types="int",
    doc="""The bits that one has.

    >>> flow.bitwise_or(flow.tensor(0b1100), flow.tensor(0b1010))
    tensor(14)
    """,
)
bitwise_xor = elementwise(
    "bitwise_xor",
    "x ^ y",
    types="int",
    doc="""The bits that just one has.

    >>> flow.bitwise_xor(flow.tensor(0b1100), flow.tensor(0b1010))
    tensor(6)
    """,
)
_invert = elementwise("bitwise_not", "~x", types="int")
bitwise_left_shift = elementwise(
    "bitwise_left_shift",
    "x << y if 0 <= y < 64 else x * 0",
    types="int",
    doc="""x times 2 to the power of y, without the bits that leave the dtype.

    >>> flow.bitwise_left_shift(flow.tensor([1, 3]), 2)
    tensor([ 4, 12])
    """,
)
bitwise_right_shift = elementwise(
    "bitwise_right_shift",
    "x >> (y if 0 <= y < 64 else 63)",
    types="int",
    doc="""x divided by 2 to the power of y, rounded down.

    >>> flow.bitwise_right_shift(flow.tensor([8, -5]), 1)
    tensor([ 4, -3])
    """,
)
greater, greater_equal, less, less_equal, not_equal = gt, ge, lt, le, ne  # public: flow


def bitwise_not(input: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Every bit of the other value; bools: not.

    >>> flow.bitwise_not(flow.tensor([0, 5])), flow.bitwise_not(flow.tensor(True))
    (tensor([-1, -6]), tensor(False))
    """
    flipped = (
        logical_not if need_tensor("bitwise_not", "input", input)._meta.dtype is bool_ else _invert
    )
    bits: Tensor = flipped(input, out=out)
    return bits


def signbit(input: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Test whether the sign bit is set: x < 0, and also -0.0.

    >>> flow.signbit(flow.tensor([-1.0, -0.0, 0.0]))
    tensor([ True,  True, False])
    """
    floating = need_tensor("signbit", "input", input)._meta.dtype.is_floating_point
    signs: Tensor = (_signbit if floating else _negative)(input, out=out)
    return signs


# --- nearly equal -----------------------------------------------------------------------------

# of complex numbers, as which rtol and atol are read too
_NEAR = "isfinite(cabs(x)) and isfinite(cabs(y)) and cabs(x - y) <= atol.real + rtol.real * cabs(y)"
_isclose = elementwise(
    "isclose",
    "x == y or (isfinite(x) and isfinite(y) and abs(x - y) <= atol + rtol * abs(y))",
    args="x, y, rtol, atol",
    types="bool",
    complex=f"x == y or ({_NEAR})",
)
_isclose_nan = elementwise(
    "isclose",
    "x == y or (x != x and y != y) "
    "or (isfinite(x) and isfinite(y) and abs(x - y) <= atol + rtol * abs(y))",
    args="x, y, rtol, atol",
    types="bool",
    complex=f"x == y or (x != x and y != y) or ({_NEAR})",
)


@steady
def isclose(
    input: Tensor, other: Tensor, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False
) -> Tensor:
    """Test whether abs(input - other) <= atol + rtol * abs(other), element by element.

    Equal infinities are close, NaN only with `equal_nan`.

    >>> flow.isclose(flow.tensor([1.0, 2.0]), flow.tensor([1.0, 2.1]))
    tensor([ True, False])
    """
    x, y = need_tensor("isclose", "input", input), need_tensor("isclose", "other", other)
    if x._meta.dtype is not y._meta.dtype:
        raise DTypeError(f"isclose: dtypes differ, {x.dtype.name} and {y.dtype.name}; convert one")
    if rtol < 0 or atol < 0:
        raise ArgumentError(f"isclose: rtol and atol are not negative, got {rtol} and {atol}")
    if not x._meta.dtype.inexact:
        x, y = cast(x, float64), cast(y, float64)
    close: Tensor = (_isclose_nan if equal_nan else _isclose)(x, y, float(rtol), float(atol))
    return close


def allclose(
    input: Tensor, other: Tensor, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False
) -> bool:
    """Return True if `isclose` holds everywhere, as a Python bool.  Waits for the tensors.

    >>> flow.allclose(flow.tensor([1.0, 2.0]), flow.tensor([1.0, 2.000001]))
    True
    """
    return bool(isclose(input, other, rtol, atol, equal_nan).all().item())


@partial(value_method, how=AS_EQUAL)
def equal(input: Tensor, other: Tensor) -> bool:
    """Return True if the two have one shape and equal elements.  Waits for the tensors.

    >>> flow.equal(flow.tensor([1, 2]), flow.tensor([1, 2]))
    True
    """
    x, y = need_tensor("equal", "input", input), need_tensor("equal", "other", other)
    return x._meta.shape == y._meta.shape and bool(eq.call(x, y).all().item())


# --- choices ----------------------------------------------------------------------------------


def _where_grad(c: Node, g: Tensor) -> tuple[Tensor | None, ...]:
    (chosen,) = c.saved
    return back(c, None, lambda: _where.call(chosen, g, 0), lambda: _where.call(chosen, 0, g))


_where = elementwise(
    "where",
    "x if which else y",
    args="which: bool, x, y",
    saves="which",
    grad=_where_grad,
    complex=True,
    minifloats=True,
)


takes_numbers = [False]  # whether `where` takes a condition of any dtype, as OneFlow's does


@steady
def where(
    condition: Tensor, input: object = None, other: object = None, *, out: Tensor | None = None
) -> Any:
    """`input` where `condition` is true, `other` elsewhere; all broadcast, `input` and `other`
    promoted, numbers allowed.

    DTypeError unless `condition` is a bool tensor (uint8 will do).  `where(condition)` is
    `nonzero(condition, as_tuple=True)`.

    >>> x = flow.tensor([-1, 2])
    >>> flow.where(x > 0, x, 0)
    tensor([0, 2])
    """
    need_tensor("where", "condition", condition)
    if input is None and other is None:
        return condition.nonzero(as_tuple=True)
    if input is None or other is None:
        raise ArgumentTypeError("where takes the condition alone, or it and both input and other")
    if takes_numbers[0]:
        if (trace := current_trace_recorder()) is not None:
            trace.refuse()  # an error of calls that are made without OneFlow's names
        condition = condition.to(bool_)
    elif condition._meta.dtype.name not in ("bool", "uint8"):
        raise DTypeError(
            f"where: condition must be a bool tensor, got {condition.dtype.name}; "
            f"write condition != 0"
        )
    if out is None:
        return _where.call(condition, input, other)
    return _where(condition, input, other, out=out)


@method("where")
@steady
def _where_method(x: Tensor, condition: Tensor, other: object) -> Tensor:
    """`x` where `condition` is true, `other` elsewhere.

    >>> x = flow.tensor([-1, 2])
    >>> x.where(x > 0, 0)
    tensor([0, 2])
    """
    chosen: Tensor = where(condition, x, other)
    return chosen


# --- methods and operators ----------------------------------------------------------------------


def _comparison(f: Elementwise) -> Any:
    """Return `==` or `!=`; Python itself answers for other objects than tensors and numbers."""
    call = f.call

    def operator(x: Tensor, other: object) -> Any:
        try:
            return call(x, other)
        except ArgumentTypeError:
            if not isinstance(x, Tensor):
                raise refused(f"__{f.name}__", x) from None
            return NotImplemented

    operator.__name__ = operator.__qualname__ = f"__{f.name}__"
    return operator


Tensor.__eq__ = _comparison(eq)  # type: ignore[method-assign]
Tensor.__ne__ = _comparison(ne)  # type: ignore[method-assign]
for _f in (lt, le, gt, ge):
    setattr(Tensor, f"__{_f.name}__", _f.call)
for _f in (
    eq, ne, lt, le, gt, ge, logical_and, logical_or, logical_xor, logical_not,
    bitwise_and, bitwise_or, bitwise_xor,
    bitwise_left_shift, bitwise_right_shift,
):  # fmt: skip
    attach(_f, _f.name)
for _name, _f in (
    ("greater", gt), ("greater_equal", ge), ("less", lt), ("less_equal", le), ("not_equal", ne),
):  # fmt: skip
    attach(_f, _name)
for _f in (isnan, isinf, isfinite, isposinf, isneginf):
    setattr(Tensor, _f.name, _f.call)
for _g in (bitwise_not, signbit, isclose, allclose, equal):
    method()(_g)
for _name, _f in (
    ("and", bitwise_and), ("or", bitwise_or), ("xor", bitwise_xor), ("lshift", bitwise_left_shift),
    ("rshift", bitwise_right_shift),
):  # fmt: skip
    setattr(Tensor, f"__{_name}__", _f.call)
    setattr(Tensor, f"__r{_name}__", reversed_operator(_f.call, f"__r{_name}__"))
    setattr(Tensor, f"__i{_name}__", in_place(_f, f"__i{_name}__"))


# not public
@method()
def bitwise_not_(x: Tensor) -> Tensor:
    """In-place `bitwise_not`."""
    return (logical_not if x._meta.dtype is bool_ else _invert).into(x, x)


Tensor.__invert__ = bitwise_not  # type: ignore[assignment]


# --- samples ----------------------------------------------------------------------------------


def _comparable(rng: np.random.Generator) -> list[Sample]:
    x, y = rng.integers(-1, 2, (3, 4)) * 1.0, rng.integers(-1, 2, (3, 4)) * 1.0
    return [Sample((x, y)), Sample((x[0], y)), Sample((x, 1)), Sample((x[0, 0, ...], y[0, 0, ...]))]


def _special(rng: np.random.Generator) -> list[Sample]:
    x = np.array([[1.0, np.nan, np.inf], [-np.inf, 0.0, -0.0]])
    return [Sample((x,)), Sample((x[0, 1, ...],)), Sample((np.zeros((0, 2)),))]


def _whole(rng: np.random.Generator) -> list[Sample]:
    x, y = rng.integers(0, 100, (3, 4)), rng.integers(0, 8, (4,))
    return [Sample((x, y)), Sample((x, 3))]


_PAIRS: tuple[tuple[Any, Any], ...] = (
    (eq, np.equal), (ne, np.not_equal), (lt, np.less), (le, np.less_equal), (gt, np.greater),
    (ge, np.greater_equal),
    (logical_and, np.logical_and), (logical_or, np.logical_or), (logical_xor, np.logical_xor),
)  # fmt: skip
_SPECIAL: tuple[tuple[Any, Any], ...] = (
    (isnan, np.isnan), (isinf, np.isinf), (isfinite, np.isfinite), (isposinf, np.isposinf),
    (isneginf, np.isneginf), (signbit, np.signbit), (logical_not, np.logical_not),
)  # fmt: skip
_BITS: tuple[tuple[Any, Any], ...] = (
    (bitwise_and, np.bitwise_and), (bitwise_or, np.bitwise_or), (bitwise_xor, np.bitwise_xor),
    (bitwise_left_shift, np.left_shift), (bitwise_right_shift, np.right_shift),
)  # fmt: skip
for _table, _generate in ((_PAIRS, _comparable), (_SPECIAL, _special), (_BITS, _whole)):
    for _g, _reference in _table:
        samples(_g, _generate, _reference, grad=False)
samples(
    bitwise_not,
    lambda rng: [Sample((rng.integers(-9, 9, 5),)), Sample((np.array([True, False]),))],
    np.invert,
    grad=False,
    errors=((lambda flow: flow.bitwise_not(flow.ones(2)), RuntimeError),),
)
samples(
    isclose,
    lambda rng: [
        Sample((np.array([1.0, 1.0, np.inf, np.nan]), np.array([1.0, 1.5, np.inf, np.nan]))),
        Sample((np.array([1.0, np.nan]), np.array([1.1, np.nan]), 0.2, 0.0, True)),
    ],
    lambda x, y, rtol=1e-5, atol=1e-8, equal_nan=False: np.isclose(x, y, rtol, atol, equal_nan),
    grad=False,
    errors=((lambda flow: flow.isclose(flow.ones(2), flow.arange(2)), RuntimeError),),
)
samples(
    where,
    lambda rng: [
        Sample((rng.uniform(size=(3, 4)) > 0.5, rng.uniform(-1, 1, (3, 4)), rng.uniform(-1, 1, 4))),
        Sample((np.array([True, False]), rng.uniform(-1, 1, (3, 1)), 2.0)),
        Sample((np.array([True, False]), 0.0, rng.uniform(-1, 1, (3, 2)))),
        Sample((np.array(True), np.array(1.0), np.array(2.0))),
    ],
    np.where,
    errors=(
        (lambda flow: flow.where(flow.ones(2), 1, 2), RuntimeError),
        (lambda flow: flow.where(flow.tensor([True]), 1), TypeError),
    ),
)
