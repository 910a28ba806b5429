"""Expressions of elementwise ops as ONNX's nodes, run by ONNX's reference, against NumPy."""

import ast
import math

import numpy as np
import pytest

import flowvm as flow

pytest.importorskip("onnx")

import onnx
from onnx.reference import ReferenceEvaluator

from flowvm.onnx import expressions
from flowvm.onnx.expressions import FUNCTIONS, Untranslated, Value
from flowvm.onnx.writer import Writer

NAN, INF = math.nan, math.inf


def computed(text, dtype=flow.float64, **arrays):
    """The value of an expression of these arrays, all of which have one length."""
    w = Writer(18)
    scope = {w.name(n): Value(n, dtype) for n in arrays}
    walk = expressions._Walk(w, dict(scope), dtype)
    out = walk.value(walk.part(ast.parse(text, mode="eval").body))
    size = len(next(iter(arrays.values())))
    proto = w.model(
        "m", [(n, dtype, (size,)) for n in arrays], [(out.name, out.dtype, (size,))], False, True
    )
    onnx.checker.check_model(proto, full_check=True)
    kind = np.dtype(dtype.name)
    return ReferenceEvaluator(proto).run(
        None, {n: np.array(a, kind) for n, a in arrays.items()}
    )[0]  # fmt: skip


X = np.array([-2.5, -1.0, -0.5, -0.0, 0.0, 0.25, 1.0, 3.5])
Y = np.array([2.0, -3.0, 0.75, 1.5, -2.0, -0.5, 4.0, 1.25])
POSITIVE = np.array([1e-9, 0.25, 1.0, 7.0])
UNIT = np.array([-0.9, -0.1, 0.0, 0.5])

NEAR = np.array([-0.5, 0, 1e-17, 1e-9, 2])

ONE = {
    "exp": (X, np.exp), "log": (POSITIVE, np.log), "sqrt": (POSITIVE, np.sqrt), "abs": (X, np.abs),
    "sign": (X, np.sign), "sin": (X, np.sin), "cos": (X, np.cos), "tan": (X, np.tan),
    "asin": (UNIT, np.arcsin), "acos": (UNIT, np.arccos), "atan": (X, np.arctan),
    "sinh": (X, np.sinh), "cosh": (X, np.cosh), "tanh": (X, np.tanh), "asinh": (X, np.arcsinh),
    "acosh": (POSITIVE + 1, np.arccosh), "atanh": (UNIT, np.arctanh),
    "sigmoid": (X, lambda x: 1 / (1 + np.exp(-x))), "softplus": (X, lambda x: np.log1p(np.exp(x))),
    "erf": (X, np.vectorize(math.erf)), "floor": (X, np.floor), "ceil": (X, np.ceil),
    "round": (X, np.round), "trunc": (X, np.trunc), "exp2": (X, np.exp2),
    "log2": (POSITIVE, np.log2), "log10": (POSITIVE, np.log10),
    "rsqrt": (POSITIVE, lambda x: x**-0.5), "log1p": (NEAR, np.log1p),
    "expm1": (np.array([-3, -1e-12, 0, 1e-12, 2]), np.expm1),
    "normal_cdf": (X, np.vectorize(lambda x: 0.5 * math.erfc(-x / math.sqrt(2)))),
    "erfc": (X, np.vectorize(math.erfc)), "probability": (X, lambda x: x),
    "tanh_softplus": (X, lambda x: np.tanh(np.log1p(np.exp(x)))),
    "isinf": (np.array([INF, -INF, NAN, 1]), np.isinf),
    "isfinite": (np.array([INF, -INF, NAN, 1]), np.isfinite),
}  # fmt: skip
TWO = {
    "pow": lambda x, y: np.abs(x) ** y, "maximum": np.maximum, "minimum": np.minimum,
    "copysign": np.copysign, "fmod": np.fmod, "remainder": np.mod, "floor_divide": np.floor_divide,
    "atan2": np.arctan2, "hypot": np.hypot, "logaddexp": np.logaddexp,
}  # fmt: skip


def test_every_function_has_a_reference():
    assert {*ONE, *TWO} == {*FUNCTIONS}


@pytest.mark.parametrize("name", ONE)
def test_functions_of_one_number(name):
    x, reference = ONE[name]
    with np.errstate(all="ignore"):
        expected = reference(np.asarray(x, np.float64))
    single = name in ("erf", "erfc", "normal_cdf")  # the reference's erf is of float32
    tol = {"rtol": 0, "atol": 1e-7} if single else {"rtol": 1e-12, "atol": 1e-15}
    np.testing.assert_allclose(computed(f"{name}(x)", x=x), expected, **tol)


@pytest.mark.parametrize("name", TWO)
def test_functions_of_two_numbers(name):
    text = "pow(abs(x), y)" if name == "pow" else f"{name}(x, y)"
    with np.errstate(all="ignore"):
        expected = TWO[name](X, Y)
        out = computed(text, x=X, y=Y)
    np.testing.assert_allclose(out, expected, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("name", ["floor", "ceil", "round", "trunc"])
def test_integers_are_rounded_already(name):
    assert computed(f"{name}(x)", flow.int32, x=[-3, 0, 7]).tolist() == [-3, 0, 7]


def test_integers_divide_as_pythons():
    x, y = [-7, 7, -6, 5, 0], [2, -2, 3, 5, -4]
    pairs = [*zip(x, y, strict=True)]
    assert computed("remainder(x, y)", flow.int64, x=x, y=y).tolist() == [a % b for a, b in pairs]
    out = computed("floor_divide(x, y)", flow.int64, x=x, y=y).tolist()
    assert out == [a // b for a, b in pairs]
    assert not computed("isinf(x)", flow.int64, x=x).any()
    assert computed("isfinite(x)", flow.int64, x=x).all()


@pytest.mark.parametrize(
    "text",
    [
        "x + y * 2 - x / 4", "-x", "+x", "+x * -y", "x if x < y else y", "1 if x > 0 else 0",
        "x if x == y or x >= 1 and not y < 0 else -y", "x if 0 <= x < 3 else y", "x != y",
        "x <= y", "2 * 3 + x", "x if 1 < 2 else y", "(x > 0) + (y > 0)",
    ],
)  # fmt: skip
def test_syntax_is_pythons(text):
    expected = [eval(text, {"x": float(x), "y": float(y)}) for x, y in zip(X, Y, strict=True)]
    np.testing.assert_allclose(computed(text, x=X, y=Y), expected, rtol=1e-15)


@pytest.mark.parametrize("text", ["x & y", "x | y", "x ^ y", "~x", "~x & 3", "+x | y"])
def test_bits_are_pythons(text):
    x, y = [12, -5, 0], [10, 6, -1]
    expected = [eval(text, {"x": a, "y": b}) for a, b in zip(x, y, strict=True)]
    assert computed(text, flow.int64, x=x, y=y).tolist() == expected


def test_bits_of_truth_values_are_logical():
    x, y = [True, True, False, False], [True, False, True, False]
    assert computed("x & ~y", flow.bool, x=x, y=y).tolist() == [False, True, False, False]
    assert computed("x ^ y", flow.bool, x=x, y=y).tolist() == [False, True, True, False]
    assert computed("x < y", flow.bool, x=x, y=y).tolist() == [False, False, True, False]
    assert computed("x == y", flow.bool, x=x, y=y).tolist() == [True, False, False, True]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("lgamma(x)", "the function lgamma, which ONNX lacks"),
        ("x ** 2", "the operator Pow"),
        ("x << 1", "the operator LShift"),
        ("[x]", r"the expression \[x\]"),
    ],
)
def test_what_is_not_translated_is_named(text, why):
    with pytest.raises(Untranslated, match=why):
        computed(text, x=X)
