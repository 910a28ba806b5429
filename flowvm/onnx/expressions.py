"""ONNX nodes of an elementwise op, from the expression that declares it.

One walk over the expression's syntax tree serves every op of `Elementwise`.  Arguments are cast to
the dtype in which the op computes.  Each operator and function of the expression becomes one or
more nodes.  A function without an ONNX form, direct or composed, is an Untranslated.
"""

from __future__ import annotations

import ast
import functools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from flowvm.meta.dtype import DType, bool_, int32
from flowvm.onnx.writer import Writer
from flowvm.ops.declare.elementwise import Elementwise
from flowvm.ops.declare.facts import Fact
from flowvm.ops.declare.registry import broadcast_shapes
from flowvm.ops.pointwise import activation

if TYPE_CHECKING:
    from flowvm.meta.meta import TensorMeta


class Untranslated(Exception):  # noqa: N818 - caught where the node is known
    """The reason why an op has no translation."""


class Value:
    """A value of an expression: a name with its dtype."""

    def __init__(self, name: str, dtype: DType) -> None:
        self.name, self.dtype = name, dtype


Part = Value | bool | int | float  # a number as long as nothing but numbers is in it


def elementwise(
    w: Writer,
    op: Elementwise,
    pattern: str,
    inputs: Sequence[str],
    metas: Sequence[Any],
    kinds: Sequence[type],
    numbers: Sequence[Any],
    out: TensorMeta,
) -> str:
    """Translate an elementwise op on these values and numbers.  Return a value of the shape and
    dtype of `out`.
    """
    compute, result = op.types_of(pattern, metas, kinds)
    values, rest = iter(zip(inputs, metas, strict=True)), iter(numbers)
    scope: dict[str, Part] = {}
    shapes = []
    tree = ast.parse(op.expr, mode="eval").body
    named = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
    direct = _DIRECT.of(op)
    for (name, _), p, dtype in zip(op.args.items(), pattern, compute, strict=True):
        if p == "s":
            number = next(rest)
            scope[name] = bool(number) if dtype is bool_ else _as(number, dtype)
            continue
        value, meta = next(values)
        # a bool has no arithmetic in ONNX: it is 0 or 1, and every number but 0 is true
        truth = dtype is bool_ and (op.types == "logical" or op.args[name] == "bool")
        compute_dtype = dtype.compute if truth or dtype is not bool_ or op.types == "int" else int32
        scope[name] = Value(_cast(w, value, meta.dtype, compute_dtype), compute_dtype)
        if name in named:
            shapes.append(meta.shape)
    computing = next((d for d in compute if d is not bool_), bool_).compute
    walk = _Walk(w, scope, int32 if computing is bool_ and op.types != "int" else computing)
    if direct is not None and computing.is_floating_point and isinstance(scope["x"], Value):
        kind, names = direct
        attributes = {n: float(_number(scope[own])) for n, own in names.items()}
        part: Part = Value(w.op(kind, scope["x"].name, **attributes), scope["x"].dtype)
    else:
        part = walk.part(tree)
    ready = walk.value(part)
    converted = _cast(w, _cast(w, ready.name, ready.dtype, result), result, out.dtype)
    shape = tuple(broadcast_shapes(*shapes)) if shapes else ()
    return converted if shape == tuple(out.shape) else w.expand(converted, out.shape)


# ONNX's own op, and its attributes by the expression's arguments
_DIRECT: Fact[tuple[str, dict[str, str]]] = Fact()
_DIRECT.say(("Relu", {}), activation._relu)
_DIRECT.say(("Elu", {"alpha": "a"}), activation._elu)
_DIRECT.say(("LeakyRelu", {"alpha": "a"}), activation._leaky_relu)
_DIRECT.say(("Softsign", {}), activation._softsign)


def _as(number: Any, dtype: DType) -> Any:
    return float(number) if dtype.is_floating_point else number


def _number(part: Part) -> float:
    if isinstance(part, Value):
        raise Untranslated("a parameter that is a tensor")
    return part


def _cast(w: Writer, name: str, dtype: DType, target: DType) -> str:
    return name if dtype is target else w.cast(name, target)


class _Walk:
    """The nodes of one expression; its numbers are of the dtype `computing`."""

    def __init__(self, w: Writer, scope: dict[str, Part], computing: DType) -> None:
        self.w, self.scope, self.computing = w, scope, computing

    def value(self, part: Part) -> Value:
        """A part as a value: a number as a constant of the dtype that is computed in."""
        if isinstance(part, Value):
            return part
        dtype = bool_ if isinstance(part, bool) else self.computing
        return Value(self.w.constant(part, dtype), dtype)

    def real(self, part: Part) -> Value:
        """Return a part as a number; a truth value is converted."""
        value = self.value(part)
        if value.dtype is bool_ and self.computing is not bool_:
            return Value(self.w.cast(value.name, self.computing), self.computing)
        return value

    def truth(self, part: Part) -> Value:
        """Return a part as a truth value; a number is converted."""
        value = self.value(part)
        return value if value.dtype is bool_ else Value(self.w.cast(value.name, bool_), bool_)

    def op(self, kind: str, *parts: Part) -> Value:
        """Add a node from numbers to a number."""
        values = [self.real(p) for p in parts]
        return Value(self.w.op(kind, *[v.name for v in values]), values[0].dtype)

    def asks(self, kind: str, *parts: Part) -> Value:
        """Add a node that gives truth values."""
        values = [self.real(p) for p in parts]
        if values[0].dtype is bool_ and kind != "Equal":
            values = [Value(self.w.cast(v.name, int32), int32) for v in values]
        return Value(self.w.op(kind, *[v.name for v in values]), bool_)

    def no(self, part: Part) -> Value:
        """Add a logical not."""
        return Value(self.w.op("Not", self.truth(part).name), bool_)

    def choose(self, which: Part, yes: Part, no: Part) -> Part:
        """Add a choice: `yes if which else no`."""
        if not isinstance(which, Value):
            return yes if which else no
        one, other = self.value(yes), self.value(no)
        if one.dtype is not other.dtype:
            one, other = self.real(one), self.real(other)
        name = self.w.op("Where", self.truth(which).name, one.name, other.name)
        return Value(name, one.dtype)

    # --- syntax ---------------------------------------------------------------------------------

    def part(self, node: ast.expr) -> Part:
        """The value of a part of the expression."""
        match node:
            case ast.Name(id=name):
                return self.scope[name]
            case ast.Constant(value=bool() | int() | float() as value):
                return value
            case ast.BinOp(left=left, op=kind, right=right):
                return self.binary(type(kind), self.part(left), self.part(right))
            case ast.UnaryOp(op=kind, operand=operand):
                return self.unary(type(kind), self.part(operand))
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return self.choose(self.part(test), self.part(body), self.part(orelse))
            case ast.BoolOp(op=joint, values=nodes):
                word = "And" if isinstance(joint, ast.And) else "Or"
                values = [self.truth(self.part(n)) for n in nodes]
                joined = functools.reduce(lambda a, b: self.w.op(word, a, b), _names(values))
                return Value(joined, bool_)
            case ast.Compare(left=left, ops=kinds, comparators=others):
                return self.compare(self.part(left), kinds, [self.part(o) for o in others])
            case ast.Call(func=ast.Name(id=name), args=arguments):
                parts = [self.value(self.part(a)) for a in arguments]
                if name not in FUNCTIONS:
                    raise Untranslated(f"the function {name}, which ONNX lacks")
                return FUNCTIONS[name](self, *parts)
        raise Untranslated(f"the expression {ast.unparse(node)}")

    def binary(self, kind: type, a: Part, b: Part) -> Part:
        """Translate one of Python's binary operators."""
        if not isinstance(a, Value) and not isinstance(b, Value) and kind in _PLAIN:
            plain: bool | int | float = _PLAIN[kind](a, b)
            return plain
        if kind in _ARITHMETIC:
            return self.op(_ARITHMETIC[kind], a, b)
        if kind not in _BITS:
            raise Untranslated(f"the operator {kind.__name__}")
        values = self.value(a), self.value(b)
        word = _BITS[kind]
        word = word if values[0].dtype is bool_ else f"Bitwise{word}"
        return Value(self.w.op(word, *_names(values)), values[0].dtype)

    def unary(self, kind: type, a: Part) -> Part:
        """Translate +x, -x, not x, ~x."""
        if kind is ast.UAdd:
            return a
        if kind is ast.Not:
            return self.no(a)
        if kind is ast.USub:
            return self.op("Neg", a) if isinstance(a, Value) else -a
        value = self.value(a)
        return self.no(value) if value.dtype is bool_ else self.op("BitwiseNot", value)

    def compare(self, left: Part, kinds: Sequence[ast.cmpop], others: Sequence[Part]) -> Part:
        """Translate one comparison, or a chain of some."""
        comparisons: list[Value] = []
        for kind, right in zip(kinds, others, strict=True):
            if isinstance(kind, ast.NotEq):
                comparisons.append(self.no(self.asks("Equal", left, right)))
            else:
                comparisons.append(self.asks(_COMPARISONS[type(kind)], left, right))
            left = right
        joined = functools.reduce(lambda a, b: self.w.op("And", a, b), _names(comparisons))
        return Value(joined, bool_)


def _names(values: Sequence[Value]) -> list[str]:
    return [v.name for v in values]


_PLAIN: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
}
_ARITHMETIC: dict[type, str] = {ast.Add: "Add", ast.Sub: "Sub", ast.Mult: "Mul", ast.Div: "Div"}
_BITS: dict[type, str] = {ast.BitAnd: "And", ast.BitOr: "Or", ast.BitXor: "Xor"}
_COMPARISONS: dict[type, str] = {
    ast.Eq: "Equal", ast.Lt: "Less", ast.LtE: "LessOrEqual", ast.Gt: "Greater",
    ast.GtE: "GreaterOrEqual",
}  # fmt: skip

# --- functions ------------------------------------------------------------------------------------


def _same(kind: str) -> Callable[..., Part]:
    return lambda t, *parts: t.op(kind, *parts)


def _isinf(t: _Walk, x: Value) -> Part:
    if not x.dtype.is_floating_point:
        return t.asks("Less", x, x)
    return Value(t.w.op("IsInf", x.name), bool_)


def _isfinite(t: _Walk, x: Value) -> Part:
    nan = t.no(t.asks("Equal", x, x))
    either = t.w.op("Or", nan.name, t.value(_isinf(t, x)).name)
    return t.no(Value(either, bool_))


def _rounded(kind: str) -> Callable[..., Part]:
    """Translate floor and its like, which leave integers as they are."""
    return lambda t, x: t.op(kind, x) if x.dtype.is_floating_point else x


def _trunc(t: _Walk, x: Value) -> Part:
    if not x.dtype.is_floating_point:
        return x
    return t.op("Mul", t.op("Sign", x), t.op("Floor", t.op("Abs", x)))


def _log1p(t: _Walk, x: Value) -> Part:
    """Near 0 by Kahan: log(u) * x / (u - 1), where u is 1 + x as it was rounded."""
    u = t.op("Add", x, 1)
    off = t.op("Sub", u, 1)
    near = t.op("Div", t.op("Mul", t.op("Log", u), x), off)
    near = t.value(t.choose(t.asks("Equal", off, 0), x, near))
    return t.choose(t.asks("Less", t.op("Abs", x), 1), near, t.op("Log", u))


def _expm1(t: _Walk, x: Value) -> Part:
    """tanh(x / 2) * (exp(x) + 1), which has no difference of equals."""
    return t.op("Mul", t.op("Tanh", t.op("Mul", x, 0.5)), t.op("Add", t.op("Exp", x), 1))


def _fmod(t: _Walk, x: Value, y: Value) -> Value:
    return Value(t.w.op("Mod", x.name, y.name, fmod=1), x.dtype)


def _remainder(t: _Walk, x: Value, y: Value) -> Part:
    """Return the remainder with the sign of y."""
    if not x.dtype.is_floating_point:
        return t.op("Mod", x, y)
    rest = _fmod(t, x, y)
    other = t.no(t.asks("Equal", t.op("Sign", rest), t.op("Sign", y)))
    some = t.no(t.asks("Equal", rest, 0))
    both = Value(t.w.op("And", other.name, some.name), bool_)
    return t.choose(both, t.op("Add", rest, y), rest)


def _floor_divide(t: _Walk, x: Value, y: Value) -> Part:
    rest = t.value(_remainder(t, x, y))
    quotient = t.op("Div", t.op("Sub", x, rest), y)
    return t.op("Round", quotient) if x.dtype.is_floating_point else quotient


def _atan2(t: _Walk, y: Value, x: Value) -> Part:
    """By half the angle, away from the axis where x is negative and y is 0."""
    angle = t.op("Atan", t.op("Div", y, x))
    up = t.value(t.choose(t.asks("GreaterOrEqual", y, 0), math.pi, -math.pi))
    turned = t.choose(t.asks("Less", x, 0), t.op("Add", angle, up), angle)
    still = Value(
        t.w.op("And", t.asks("Equal", x, 0).name, t.asks("Equal", y, 0).name), bool_
    )  # fmt: skip
    return t.choose(still, 0, turned)


def _copysign(t: _Walk, x: Value, y: Value) -> Part:
    """-0 is below 0 here: 1 / -0 says so."""
    zero = t.w.op("And", t.asks("Equal", y, 0).name, t.asks("Less", t.op("Div", 1, y), 0).name)
    below = Value(t.w.op("Or", t.asks("Less", y, 0).name, zero), bool_)
    size = t.op("Abs", x)
    return t.choose(below, t.op("Neg", size), size)


def _exp2(t: _Walk, x: Value) -> Part:
    return t.op("Pow", 2.0, x)


def _times(kind: str, factor: float) -> Callable[..., Part]:
    return lambda t, x: t.op("Mul", t.op(kind, x), factor)


def _rsqrt(t: _Walk, x: Value) -> Part:
    return t.op("Div", 1, t.op("Sqrt", x))


def _normal_cdf(t: _Walk, x: Value) -> Part:
    return t.op("Mul", 0.5, t.op("Add", 1, t.op("Erf", t.op("Mul", x, math.sqrt(0.5)))))


def _erfc(t: _Walk, x: Value) -> Part:
    return t.op("Sub", 1, t.op("Erf", x))


def _hypot(t: _Walk, x: Value, y: Value) -> Part:
    return t.op("Sqrt", t.op("Add", t.op("Mul", x, x), t.op("Mul", y, y)))


def _logaddexp(t: _Walk, x: Value, y: Value) -> Part:
    apart = t.op("Neg", t.op("Abs", t.op("Sub", x, y)))
    more = t.value(_log1p(t, t.op("Exp", apart)))
    return t.choose(t.asks("Equal", x, y), t.op("Add", x, math.log(2)),
                    t.op("Add", t.op("Max", x, y), more))  # fmt: skip


FUNCTIONS: dict[str, Callable[..., Part]] = {
    **{n: _same(n.capitalize()) for n in (
        "exp", "log", "sqrt", "abs", "sign", "sin", "cos", "tan", "asin", "acos", "atan", "sinh",
        "cosh", "tanh", "asinh", "acosh", "atanh", "sigmoid", "softplus", "erf", "pow",
    )},
    "maximum": _same("Max"), "minimum": _same("Min"),
    "floor": _rounded("Floor"), "ceil": _rounded("Ceil"), "round": _rounded("Round"),
    "trunc": _trunc, "isinf": _isinf, "isfinite": _isfinite, "log1p": _log1p, "expm1": _expm1,
    "copysign": _copysign, "fmod": _fmod, "remainder": _remainder,
    "floor_divide": _floor_divide, "atan2": _atan2,
    "exp2": _exp2, "log2": _times("Log", 1 / math.log(2)),
    "log10": _times("Log", 1 / math.log(10)), "rsqrt": _rsqrt, "normal_cdf": _normal_cdf,
    "erfc": _erfc, "hypot": _hypot, "logaddexp": _logaddexp,
    "tanh_softplus": lambda t, x: t.op("Tanh", t.op("Softplus", x)),
    "probability": lambda t, x: t.op("Identity", x),  # which is checked here alone
}  # fmt: skip
