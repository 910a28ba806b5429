"""Generated kernels against NumPy: layouts, dtypes, splits, bodies, and the scalar functions."""

import ctypes
import itertools
import math
import re
from typing import NamedTuple

import numpy as np
import pytest
from scipy import special

from flowvm.compiler import jit
from flowvm.errors import CompileError
from flowvm.launch import View
from flowvm.meta.dtype import dtype_named
from flowvm.ops.declare.cpu import body_kernel as bodies
from flowvm.ops.declare.cpu.body_arrays import array_in
from flowvm.ops.declare.cpu.body_kernel import Operand, body_kernel, body_layout, kind_of
from flowvm.ops.declare.cpu.element_tiles import DIVISION_BY_ZERO, Program
from flowvm.ops.declare.cpu.elementwise_kernel import elementwise_kernel
from flowvm.ops.declare.cpu.tile_plan import plan_of
from flowvm.ops.declare.cpu.walk import copy_kernel, walk
from flowvm.ops.scalar import functions as scalar

KERNEL = ctypes.CFUNCTYPE(
    ctypes.c_int32, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int64, ctypes.c_int64,
    ctypes.c_uint64,
)  # fmt: skip


def call(address, layout, operands, scalars=(), units=None, splits=(), scratch=None):
    """Run a kernel over [0, units) cut at `splits`: its status and the six details."""
    words = np.zeros(8 + len(operands) + len(scalars), np.int64)
    words[6] = 0 if scratch is None else scratch.ctypes.data
    words[8 : 8 + len(operands)] = [x.ctypes.data for x in operands]
    for k, value in enumerate(scalars, 8 + len(operands)):
        words[k] = np.float64(value).view(np.int64) if isinstance(value, float) else value
    edges, arena = [0, *splits, units], np.zeros(64, np.uint8)
    for lo, hi in itertools.pairwise(edges):
        status = KERNEL(address)(words.ctypes.data, layout.ctypes.data, lo, hi, arena.ctypes.data)
        if status:
            return status, words[:6].tolist()
    return 0, words[:6].tolist()


def elementwise(expr, outs, ins, compute=None, scalars=None, splits=()):
    """Run `expr` of x, y, z into `outs`; `scalars` are named dynamic numbers."""
    scalars = scalars or {}
    names = ["x", "y", "z"][: len(ins)]
    dtypes = [str(a.dtype) for a in ins]
    kinds = ["float64" if isinstance(v, float) else "int64" for v in scalars.values()]
    compute = compute or [*dtypes, *(dtypes[:1] * len(kinds) or kinds)]
    results = tuple(str(o.dtype) for o in outs)
    arguments = (*names, *scalars), (*dtypes, *kinds), results, tuple(compute), frozenset(scalars)
    address = elementwise_kernel(Program(expr, *arguments))
    operands = [*outs, *(np.broadcast_to(a, outs[0].shape) for a in ins)]
    plan = planned(operands)
    cuts = [s for s in splits if s < plan.units]
    return call(address, plan.layout, operands, list(scalars.values()), plan.units, cuts)[0]


def planned(operands, **options):
    strides = [[s // a.itemsize for s in a.strides] for a in operands]
    return plan_of(operands[0].shape, strides, [a.itemsize for a in operands], **options)


def floats(rng, *shape, dtype="float32"):
    return rng.standard_normal(shape).astype(dtype)


# --- layouts --------------------------------------------------------------------------------


def test_plans():
    def words(shape, *strides):
        plan = plan_of(shape, strides, [4] * len(strides))
        return plan.layout.tolist(), plan.units, plan.grain

    # outer dimensions, rows, columns, rows and columns of a tile, pattern, flat; then each operand
    # (how, size, place in the stage, strides in bytes)
    direct = [0, 4, 0, 0, 4]
    dense = [0, 1, 24, 1, 24, 0, 0, *direct, *direct]
    assert words((2, 3, 4), (12, 4, 1), (12, 4, 1)) == (dense, 1, 1365)
    one = [0, 1, 8, 1, 8, 0, 0, *direct, *direct]
    assert words((2, 1, 4), (4, 99, 1), (4, 7, 1))[0] == one
    rows, units, grain = words((2000, 300), (300, 1), (0, 1))
    assert rows[:7] == [0, 2000, 300, 109, 300, 0, 0]
    assert (units, grain) == (19, 1)
    assert words((200, 300), (300, 1), (1, 0))[0][5] == 2  # the pattern: operand 1 is single
    turned = words((200, 300), (300, 1), (1, 200))[0]
    assert turned[:7] == [0, 200, 300, 64, 64, 0, 0]
    assert turned[12:] == [2, 4, 0, 4, 800]  # staged
    short = words((200, 3), (3, 1), (0, 1))[0]
    assert short[:7] == [0, 200, 3, 200, 3, 0, 1]  # flat
    assert words((), (), ())[0] == [0, 1, 1, 1, 1, 0, 0, *direct, *direct]
    assert words((3, 0), (0, 1), (0, 1))[1] == 0
    with pytest.raises(ValueError, match="operands"):
        plan_of((2,), [(1,)] * 33, [4] * 33)


def test_body_layouts():
    views = [view_of(np.zeros((2, 3))), view_of(np.zeros(()))]
    words = body_layout(views, [7, 0.5, True], scratch=64)
    half = int(np.float64(0.5).view(np.int64))
    assert words.tolist() == [2, 3, 3, 1, 7, half, 1, 64]
    words = body_layout(views[1:], [(7, 8), Sizes(3, 0.5, False)], scratch=64)
    assert words.tolist() == [6, 2, 3, half, 0, 64, 7, 8]


# --- elementwise ----------------------------------------------------------------------------


def views(rng):
    """Pairs of equal shape that differ in how they lie in memory."""
    a, b = floats(rng, 6, 7, 5), floats(rng, 6, 7, 5)
    yield "dense", a, b
    yield "transposed", a.transpose(2, 0, 1), b.transpose(2, 0, 1)
    yield "mixed", a, b.transpose(1, 0, 2).copy().transpose(1, 0, 2)
    yield "sliced", a[::2, 1:, ::3], b[::2, 1:, ::3]
    yield "reversed", a[::-1, :, ::-1], b
    yield "row", a, b[0, 0]
    yield "column", a, b[:, :, :1]
    yield "middle", a, b[:, :1]
    yield "number", a, b[0, 0, 0]
    yield "both", a[:, :1], b[:1]


@pytest.fixture(params=["as it is", "small tiles"])
def tiles(request, monkeypatch):
    """Run the test also with tiles so small that small arrays have many."""
    if request.param == "small tiles":
        for name, value in (("CHUNK", 24), ("STAGE", 512), ("SHORT", 4), ("PIECE", 4)):
            monkeypatch.setattr(f"flowvm.ops.declare.cpu.tile_plan.{name}", value)


@pytest.mark.parametrize("splits", [(), (1,), (3, 4, 9), tuple(range(1, 210))])
def test_strides_and_splits(rng, tiles, splits):
    for name, a, b in views(rng):
        out = np.full(np.broadcast_shapes(a.shape, b.shape), np.nan, np.float32)
        assert elementwise("x - y", [out], [a, b], splits=splits) == 0
        np.testing.assert_array_equal(out, a - b, err_msg=name)


def arrangement(rng, shape, dtype, whole):
    """An array of this shape with random contents, somehow in memory: any order of dimensions,
    gaps, backwards; unless `whole`, broadcast at times.
    """
    order = rng.permutation(len(shape))
    gaps = rng.integers(1, 4, len(shape)) * (rng.random(len(shape)) < 0.3)
    stored = [shape[d] * max(1, g) for d, g in zip(order, gaps, strict=True)]
    x = rng.integers(-99, 100, stored).astype(dtype)
    steps = [max(1, g) * rng.choice((1, 1, -1)) for g in gaps]
    x = x[tuple(slice(None, None, s) for s in steps)].transpose(np.argsort(order))
    if not whole and rng.random() < 0.5:
        once = rng.random(len(shape)) < 0.4
        x = x[tuple(slice(0, 1) if o else slice(None) for o in once)]
    return x


SHAPES = ((7,), (300,), (3, 500), (500, 3), (70, 70), (33, 17, 5), (2, 3, 4, 5), (40, 1, 40), (1,))


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.product(4)
def test_any_arrangement(seed, tiles):
    rng = np.random.default_rng(seed)
    for shape in SHAPES:
        dtypes = rng.choice(["float32", "float64", "int16", "uint8", "int64"], 3).tolist()
        out, x, y = (arrangement(rng, shape, d, k == 0) for k, d in enumerate(dtypes))
        splits = sorted(set(rng.integers(1, 50, 3).tolist()))
        compute = [dtypes[0]] * 2
        assert elementwise("x + y", [out], [x, y], compute=compute, splits=splits) == 0
        with np.errstate(all="ignore"):
            expected = x.astype(dtypes[0]) + y.astype(dtypes[0])
        np.testing.assert_array_equal(
            out, np.broadcast_to(expected, shape), err_msg=f"{seed=} {shape=} {dtypes=}"
        )


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.product(4)
def test_copies_of_any_arrangement(seed, tiles):
    rng = np.random.default_rng(seed)
    for shape in SHAPES:
        dtype = rng.choice(["float32", "float64", "int16", "uint8"])
        out, x = (arrangement(rng, shape, dtype, k == 0) for k in range(2))
        spread = np.broadcast_to(x, shape)
        plan = planned([out, spread], copy=True)
        cuts = [s for s in (1, 5, 6) if s < plan.units]
        assert call(copy_kernel(), plan.layout, [out, spread], (), plan.units, cuts)[0] == 0
        np.testing.assert_array_equal(out, spread, err_msg=f"{seed=} {shape=} {dtype=}")


def test_outputs_of_any_layout(rng, tiles):
    a, b = floats(rng, 4, 5, 6), floats(rng, 4, 5, 6)
    big = np.full((8, 6, 10), np.nan, np.float32)
    out = big[::2, ::-1, ::2].transpose(0, 2, 1)
    assert elementwise("x * y", [out], [a, b], splits=(7, 55)) == 0
    np.testing.assert_array_equal(out, a * b)
    assert np.isnan(big[1::2]).all()


def test_empty_and_0d(rng):
    x = np.array(2.5, np.float32)
    out = np.empty_like(x)
    assert elementwise("x * x", [out], [x]) == 0
    assert out == 6.25
    empty = np.empty((3, 0, 2), np.float32)
    assert elementwise("x * x", [empty], [empty]) == 0


def test_in_place(rng):
    x, y = floats(rng, 1000), floats(rng, 1000)
    expected = x * 2 + y
    assert elementwise("x * 2 + y", [x], [x, y], splits=(37,)) == 0
    np.testing.assert_allclose(x, expected, rtol=1e-6, atol=1e-6)
    for matrix in (
        floats(rng, 30, 30).T,
        floats(rng, 90, 90)[::3, ::2],
        floats(rng, 500, 3)[:, 1:],
    ):
        expected = matrix * matrix
        assert elementwise("x * y", [matrix], [matrix, matrix]) == 0
        np.testing.assert_array_equal(matrix, expected)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "int32", "int64"])
def test_integers(rng, dtype):
    info = np.iinfo(dtype)
    x = rng.integers(info.min, info.max, 100, dtype, endpoint=True)
    y = rng.integers(1, 11, 100, dtype)
    y[::3] = x[::3] if info.min == 0 else -y[::3]
    y[y == 0] = 1
    x[:2], y[:2] = info.min, (-1 if info.min else 1)
    for name, reference in [
        ("floor_divide", np.floor_divide),
        ("remainder", np.remainder),
        ("fmod", np.fmod),
        ("maximum", np.maximum),
    ]:
        out = np.empty_like(x)
        assert elementwise(f"{name}(x, y)", [out], [x, y]) == 0
        with np.errstate(over="ignore"):
            np.testing.assert_array_equal(out, reference(x, y), err_msg=name)
    assert elementwise("x + 2 * y", [out], [x, y]) == 0
    np.testing.assert_array_equal(out, x + x.dtype.type(2) * y)
    for zero in (0, 50, 99):
        ones = np.ones_like(y)
        ones[zero] = 0
        for name in ("floor_divide", "remainder", "fmod"):
            status = elementwise(f"{name}(x, y)", [out], [x, ones])
            assert status == DIVISION_BY_ZERO


def test_divisions_of_64_bits(rng):
    """Divisions of 64 bits go by way of float64: any rounding there must be corrected."""
    edges = [s * (1 << k) + d for k in range(63) for s in (1, -1) for d in (-1, 0, 1)]
    edges = np.array(sorted({*edges, (1 << 63) - 1, -(1 << 63), 1 - (1 << 63)}), np.int64)
    x, y = (a.ravel() for a in np.meshgrid(edges, edges[edges != 0]))
    low, high = -(1 << 63), (1 << 63) - 1
    wide = rng.integers(low, high, (2, 50000)) >> rng.integers(0, 63, (2, 50000))
    q, d = rng.integers(-(1 << 31), 1 << 31, (2, 50000))
    near = q * d + rng.integers(-1, 2, 50000)  # just below, at and above a whole quotient
    for a, b in ((x, y), wide, (near, d)):
        a, b = np.ascontiguousarray(a), np.where(b == 0, 1, b)
        for name, reference in (
            ("floor_divide", np.floor_divide), ("remainder", np.remainder), ("fmod", np.fmod),
        ):  # fmt: skip
            out = np.empty_like(a)
            assert elementwise(f"{name}(x, y)", [out], [a, b]) == 0
            with np.errstate(over="ignore"):
                np.testing.assert_array_equal(out, reference(a, b), err_msg=name)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_what_no_integer_is_becomes_the_least_anywhere(rng, tiles, dtype, bad):
    for layout in (np.s_[:], np.s_[::2], np.s_[::-1]):
        x = rng.integers(-99, 99, 700).astype(dtype)[layout]
        out = np.empty(x.shape, np.int64)
        options = {"compute": ["float32" if dtype == "float16" else dtype]}
        for at in (0, 63, len(x) // 2, len(x) - 1):
            wrong, expected = x.copy(), x.astype(np.int64)
            wrong[at], expected[at] = bad, -(2**63)
            assert elementwise("whole(x)", [out], [wrong], **options) == 0
            np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_what_raises_does_so_anywhere(rng, tiles, dtype):
    for layout in (np.s_[:], np.s_[::2], np.s_[::-1]):
        x = rng.integers(-99, 99, 700).astype(dtype)[layout]
        y = rng.integers(1, 99, 700).astype(dtype)[layout]
        out = np.empty(x.shape, dtype)
        assert elementwise("fmod(x, y)", [out], [x, y]) == 0
        np.testing.assert_array_equal(out, np.fmod(x, y))
        for at in (0, 63, len(x) // 2, len(x) - 1):
            wrong = y.copy()
            wrong[at] = 0
            status = elementwise("fmod(x, y)", [out], [x, wrong])
            assert status == DIVISION_BY_ZERO  # the status given when it was compiled


DTYPES = ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"]


@pytest.mark.parametrize("target", DTYPES)
def test_conversions(target):
    values = np.array([0, 1, 2, 100, 0, 3])
    for source in DTYPES:
        x = values.astype(source)
        if source not in ("bool", "uint8"):
            x[4] = -7 if target not in ("uint8", "bool") else 0
        out = np.empty(x.shape, target)
        computed = target if target != "float16" else "float32"
        assert elementwise("x", [out], [x], compute=[computed]) == 0
        np.testing.assert_array_equal(out, x.astype(target), err_msg=source)


def test_half_rounds_to_even_and_keeps_special_values(rng):
    x = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    out = np.empty_like(x)
    assert elementwise("x", [out], [x], compute=["float32"]) == 0
    np.testing.assert_array_equal(out, x)
    wide = np.concatenate([floats(rng, 5000) * 100, [65519, 65520, 1e-8, 2049, 2051, np.inf]])
    wide = wide.astype(np.float32)
    half = np.empty(wide.shape, np.float16)
    assert elementwise("x", [half], [wide]) == 0
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(half, wide.astype(np.float16))


def test_bools_are_one_byte_and_any_nonzero_is_true(rng):
    x = np.array([0, 1, 2, 255], np.uint8).view(bool)
    out = np.empty(4, bool)
    assert elementwise("not x", [out], [x]) == 0
    assert out.view(np.uint8).tolist() == [1, 0, 0, 0]
    a, b = floats(rng, 50), floats(rng, 50)
    result = np.empty_like(a)
    assert elementwise("y if x else z", [result], [a > 0, a, b]) == 0
    np.testing.assert_array_equal(result, np.where(a > 0, a, b))


def test_scalars_literals_and_several_outputs(rng):
    x = floats(rng, 40)
    out = np.empty_like(x)
    assert elementwise("x * s + n", [out], [x], scalars={"s": 2.5, "n": 3}) == 0
    np.testing.assert_allclose(out, x * 2.5 + 3, rtol=1e-6, atol=1e-6)
    whole = np.empty(40, np.int32)
    assert elementwise("(floor(x), x - 0.1)", [whole, out], [x]) == 0
    np.testing.assert_array_equal(whole, np.floor(x))
    np.testing.assert_array_equal(out, x - np.float32(0.1))
    assert elementwise("s", [out], [], compute=["float32"], scalars={"s": 7.0}) == 0
    assert (out == 7).all()


def test_wrong_requests_raise_at_once():
    with pytest.raises(ValueError, match="float128"):
        elementwise_kernel(Program("x", ("x",), ("float128",), ("float32",), ("float32",)))
    with pytest.raises(ValueError, match="args"):
        elementwise_kernel(Program("x", ("x", "y"), ("float32",), ("float32",), ("float32",)))


def test_the_walk_means_the_same_in_python():
    """`walk` uncompiled, with a tile function that records its calls and adds one."""
    calls = []
    kind = ctypes.CFUNCTYPE(ctypes.c_int32, *([ctypes.c_int64] * 5))

    def at(address):
        return ctypes.c_int64.from_address(address)

    @kind
    def tile(pointers, steps, rows, columns, args):
        calls.append((rows, columns))
        for r in range(rows):
            for c in range(columns):
                out, x = (at(pointers + 8 * k).value + r * at(steps + 8 * k).value for k in (0, 1))
                at(out + 8 * c).value = at(x + 8 * c).value + 1
        return 0

    table = np.array([0, ctypes.cast(tile, ctypes.c_void_p).value], np.int64)
    x = np.arange(4 * 70).reshape(70, 4)[::-1, ::2]
    y = np.arange(90 * 70).reshape(90, 70).T
    for source in (x, y):
        out = np.zeros(source.shape, np.int64)
        words = np.zeros(16, np.int64)
        words[8:10] = out.ctypes.data, source.ctypes.data
        plan = planned([out, source])
        walk(words.ctypes.data, plan.layout.ctypes.data, 0, plan.units, 1, 2, table.ctypes.data)
        np.testing.assert_array_equal(out, source + 1)
    assert calls[0] == (1, 140)  # flat
    assert calls[1] == (64, 32)  # turned


# --- scalar functions -----------------------------------------------------------------------


def numbers(dtype, rng):
    """Any bit pattern, and the ranges where functions are interesting."""
    word = f"u{np.dtype(dtype).itemsize}"
    bits = rng.integers(0, np.iinfo(word).max, 20000, word)
    info = np.finfo(dtype)
    edges = [0.0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 0.5, -0.5, 2, 3, -2]
    edges += [88.7, -103.9, 709.7, -745]
    edges += [info.tiny, info.smallest_subnormal, -info.smallest_subnormal, info.max, -info.max]
    ranges = [rng.uniform(-r, r, 5000) for r in (1, 10, 110, 750)]
    return np.concatenate([bits.view(dtype), *(np.asarray(r, dtype) for r in (edges, *ranges))])


def errors(actual, exact, dtype):
    """Units in the last place; 0 where both are the same number or both NaN."""
    with np.errstate(all="ignore"):
        want = exact.astype(dtype)
        # the largest number may be an answer where the exact one is rounded to infinity
        most = np.minimum(np.abs(want), np.finfo(dtype).max)
        ulp = np.spacing(most).astype(np.longdouble)
        error = np.abs(actual.astype(np.longdouble) - exact) / ulp
    error[(actual == want) | (np.isnan(actual) & np.isnan(want))] = 0
    return np.where(np.isfinite(error), error, np.inf)


def each(function):
    return np.vectorize(function, otypes=[np.longdouble])


def _lgamma(x):
    try:
        return math.lgamma(x)
    except OverflowError:
        return math.inf
    except ValueError:
        return math.inf  # at 0 and the negative integers


UNARY = {
    "abs": np.abs, "acos": np.arccos, "acosh": np.arccosh, "asin": np.arcsin, "asinh": np.arcsinh,
    "atan": np.arctan, "atanh": np.arctanh, "cbrt": np.cbrt, "ceil": np.ceil, "cos": np.cos,
    "cosh": np.cosh, "erf": each(math.erf), "erfc": each(math.erfc), "erfinv": special.erfinv,
    "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1, "floor": np.floor,
    "log": np.log, "log10": np.log10, "log1p": np.log1p, "log2": np.log2, "round": np.round,
    "rsqrt": lambda x: 1 / np.sqrt(x), "sin": np.sin, "sinh": np.sinh, "sqrt": np.sqrt,
    "tan": np.tan, "tanh": np.tanh, "trunc": np.trunc,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)), "sign": lambda x: np.where(x != x, 0, np.sign(x)),
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", sorted(UNARY))
def test_unary(name, dtype, rng):
    x = numbers(dtype, rng)
    out = np.empty_like(x)
    assert elementwise(f"{name}(x)", [out], [x]) == 0
    narrow = name in ("erf", "erfc", "erfinv")  # references that only have float64
    with np.errstate(all="ignore"):
        exact = UNARY[name](x.astype(np.float64 if narrow else np.longdouble))
    error = errors(out, exact.astype(np.longdouble), dtype)
    worst = error.argmax()
    assert error[worst] <= 4, f"{name}({x[worst]!r}) gave {out[worst]!r}, not {exact[worst]!r}"


BINARY = {
    "atan2": np.arctan2, "copysign": np.copysign, "floor_divide": np.floor_divide, "fmod": np.fmod,
    "hypot": np.hypot, "maximum": np.maximum, "minimum": np.minimum, "nextafter": np.nextafter,
    "pow": np.power, "remainder": np.remainder,
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", sorted(BINARY))
def test_binary(name, dtype, rng):
    x = numbers(dtype, rng)
    y = rng.permutation(x)
    out = np.empty_like(x)
    assert elementwise(f"{name}(x, y)", [out], [x, y]) == 0
    wide = np.longdouble if name in ("atan2", "hypot", "pow") else dtype
    with np.errstate(all="ignore"):
        exact = BINARY[name](x.astype(wide), y.astype(wide)).astype(np.longdouble)
    error = errors(out, exact, dtype)
    worst = error.argmax()
    assert error[worst] <= 4, f"{name}({x[worst]!r}, {y[worst]!r}) gave {out[worst]!r}"


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_functions_with_zeros_of_their_own(dtype, rng):
    x, y = rng.uniform(-30, 30, (2, 20000)).astype(dtype)
    out = np.empty_like(x)
    tolerance = 8 * float(np.finfo(dtype).eps)
    assert elementwise("logaddexp(x, y)", [out], [x, y]) == 0
    exact = np.logaddexp(x.astype(np.float64), y.astype(np.float64))
    np.testing.assert_allclose(out, exact, rtol=tolerance, atol=tolerance)
    inf = np.array([np.inf, -np.inf, np.inf, np.nan], dtype)
    actual = np.empty_like(inf)
    other = np.array([np.inf, -np.inf, 0, 0], dtype)
    assert elementwise("logaddexp(x, y)", [actual], [inf, other]) == 0
    np.testing.assert_array_equal(actual, inf)
    assert elementwise("lgamma(x)", [out], [x]) == 0
    exact = each(_lgamma)(x.astype(np.float64)).astype(np.float64)
    np.testing.assert_allclose(out, exact, rtol=20 * tolerance, atol=20 * tolerance)
    assert elementwise("digamma(x)", [out], [np.abs(x)]) == 0
    exact = special.digamma(np.abs(x).astype(np.float64))
    np.testing.assert_allclose(out, exact, rtol=2 * tolerance, atol=2 * tolerance)


def test_classification(rng):
    x = numbers("float32", rng)
    for name in ("isnan", "isinf", "isfinite"):
        out = np.empty(x.shape, bool)
        assert elementwise(f"{name}(x)", [out], [x]) == 0
        np.testing.assert_array_equal(out, getattr(np, name)(x))


def test_integer_powers():
    x = np.array([2, -3, 1, -1, -1, 5, 7], np.int64)
    y = np.array([10, 3, -5, -3, -2, -1, 0], np.int64)
    out = np.empty_like(x)
    assert elementwise("pow(x, y)", [out], [x, y]) == 0
    assert out.tolist() == [1024, -27, 1, -1, 1, 0, 1]


@pytest.mark.parametrize("name", ["exp", "log", "tanh", "sigmoid", "erf", "log1p", "floor"])
def test_scalar_functions_in_python(name):
    function = scalar.functions()[name]
    for value in (np.float32(0.7), 0.7):
        assert function(value) == pytest.approx(float(UNARY[name](0.7)), rel=1e-6)


# --- bodies ---------------------------------------------------------------------------------


def shifted(v):
    return v + 1


def softmax_body(out, x, n, lo, hi):
    for r in range(lo, hi):
        peak = x[r, 0]
        for j in range(1, n):
            peak = scalar.maximum(peak, x[r, j])
        total = x.dtype.type(0)
        for j in range(n):
            out[r, j] = scalar.exp(x[r, j] - peak)
            total += out[r, j]
        for j in range(n):
            out[r, j] /= total


def gather_body(out, x, index, lo, hi, details):
    for i in range(lo, hi):
        at = index[i]
        if at < 0 or at >= x.shape[0]:
            details[0] = at
            details[1] = x.shape[0]
            return 1
        out[i] = shifted(x[at])
    return 0


def everything_body(out, x, flag, scale, offset, count, scratch, lo, hi):
    work = scratch.view(np.float64)
    for i in range(lo, hi):
        work[i] = x[()] * scale if flag else 0.0
    for i in range(lo, hi):
        out[i] = work[i] + offset * count


def allocating_body(out, lo, hi):
    out[0] = np.zeros(3).sum()


def raising_body(out, lo, hi):
    if lo >= 0:
        raise ValueError("no")
    out[0] = 1


def rows_body(out, x, lo, hi):
    for r in range(lo, hi):
        row = x[r]
        out[r] = row.sum()


class Sizes(NamedTuple):
    rows: int
    scale: float
    turned: bool


def view_of(a, has_value=None):
    strides = tuple(s // a.itemsize for s in a.strides)
    return View(dtype_named(str(a.dtype)), a.shape, strides, has_value)


def run_body(body, arrays, consts=(), units=1, scalars=(), scratch=None, splits=(), more=(), **kw):
    """Run the kernel of a body.

    `more` are views of optional operands; the given ones are the last of `arrays`.
    """
    views = [*map(view_of, arrays[: len(arrays) - sum(v.given for v in more)]), *more]
    address = body_kernel(
        body, [Operand.of(v) for v in views], [kind_of(c) for c in consts],
        [kind_of(s) for s in scalars], **kw,
    )  # fmt: skip
    layout = body_layout(views, consts, 0 if scratch is None else scratch.nbytes)
    return call(address, layout, arrays, scalars, units, splits, scratch)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_body_on_contiguous_and_strided_arrays(rng, dtype):
    x = floats(rng, 20, 33, dtype=dtype)
    for view in (x, x.T, x[::2, ::-3]):
        out = np.empty(view.shape, dtype)
        status, _ = run_body(softmax_body, [out, view], [view.shape[1]], len(view), splits=(3, 4))
        assert status == 0
        np.testing.assert_allclose(out, special.softmax(view.astype(np.float64), 1), rtol=2e-6)


def test_a_body_reports_an_error(rng):
    x, out = floats(rng, 10)[::2], np.empty(3, np.float32)
    index = np.array([4, 0, 2])
    assert run_body(gather_body, [out, x, index], units=3)[0] == 0
    np.testing.assert_array_equal(out, x[index] + 1)
    index[1] = 5
    assert run_body(gather_body, [out, x, index], units=3) == (1, [5, 5, 0, 0, 0, 0])
    assert run_body(raising_body, [out], units=1)[0] == bodies.RAISED


def test_consts_scalars_scratch_and_0d():
    out, x, scratch = np.zeros(4), np.array(3.0), np.zeros(4)
    for flag in (True, False):
        consts, scalars = (flag, 2.5), (0.5, 3)
        assert run_body(everything_body, [out, x], consts, 4, scalars, scratch)[0] == 0
        assert (out == 7.5 * flag + 1.5).all()


def twice_body(out, x, lo, hi):
    for i in range(lo, hi):
        out[i] = x[i] + x[i]


def test_a_loop_over_the_range_is_vectorized(monkeypatch, rng):
    text = []

    def load(make, name):
        lowered = make()
        module = jit._linked(lowered, "symbol")
        jit._optimize(module, lowered.loops_only)
        text.append(str(module))
        return 0

    monkeypatch.setattr(bodies.jit, "load", load)
    operands = (Operand("float32", 1, True),) * 2
    bodies.kernel_of.__wrapped__(bodies.Body(twice_body, operands, (), (), False, False))
    assert re.search(r"load <\d+ x float>", text[0])
    assert "gather" not in text[0]


def ranges_body(out, start, stop, step, lo, hi):
    n = 0
    for i in range(start, stop, step):
        out[n] = i
        n += 1
    out[-1] = n


def test_ranges_count_as_pythons_do():
    most = (1 << 63) - 1
    ends = [(0, 9, 2), (9, -5, -3), (most - 5, most, 4), (-most - 1, -most + 4, 3), (5, 5, 1)]
    for start, stop, step in [*ends, (3, -3, 1), (-4, 4, 1)]:
        out = np.zeros(20, np.int64)
        assert run_body(ranges_body, [out], [start, stop, step])[0] == 0
        values = list(range(start, stop, step))
        assert out[: out[-1]].tolist() == values


def test_row_views_and_reassociated_sums(rng):
    x, out = floats(rng, 8, 100), np.empty(8, np.float32)
    for reassociate in (False, True):
        assert run_body(rows_body, [out, x], units=8, reassociate=reassociate)[0] == 0
        np.testing.assert_allclose(out, x.sum(1), rtol=1e-5, atol=1e-5)


def record_body(out, x, sizes, order, lo, hi):
    for r in range(lo, hi):
        row = order[sizes.rows - 1 - r] if sizes.turned else order[r]
        for j in range(out.shape[1]):
            out[r, j] = x[row, j] * sizes.scale


def optional_body(out, x, bias, turn, lo, hi):
    for r in range(lo, hi):
        out[r] = x[r] + (bias[r] if len(bias) else 0) + turn.shape[1] * turn.size


@pytest.mark.parametrize("turned", [False, True])
def test_consts_of_several_numbers(rng, turned):
    x = floats(rng, 4, 5)
    out, order = np.empty_like(x), (2, 0, 3, 1)
    consts = [Sizes(4, 0.5, turned), order]
    assert run_body(record_body, [out, x], consts, 4, splits=(1,))[0] == 0
    np.testing.assert_array_equal(out, x[list(order[::-1] if turned else order)] * 0.5)


def memory_body(out, x, scratch, arena, lo, hi):
    places = array_in(arena, 4, 3, np.int32)
    reals = array_in(scratch, 8, 2, x)
    for i in range(lo, hi):
        places[2] = i
        reals[1] = x[i]
        out[i] = arena[12] + reals[1]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_arrays_in_memory(rng, dtype):
    x, scratch = floats(rng, 5, dtype=dtype), np.zeros(64, np.uint8)
    outs = np.empty_like(x), np.empty_like(x)
    memory_body(outs[0], x, scratch, np.zeros(64, np.uint8), 0, 5)
    assert run_body(memory_body, [outs[1], x], units=5, scratch=scratch)[0] == 0
    for out in outs:
        np.testing.assert_allclose(out, x + np.arange(5), rtol=1e-6)
    assert scratch[8:].view(dtype)[1] == x[4]


def test_operands_that_a_call_may_lack(rng):
    x, bias, turn = floats(rng, 5), floats(rng, 5), np.zeros((2, 3), np.int64)
    kernels = set()
    for has_bias, has_turn in itertools.product([False, True], repeat=2):
        out = np.empty_like(x)
        more = [
            View.optional(view_of(bias) if has_bias else None, dtype_named("float32")),
            View.optional(view_of(turn) if has_turn else None, dtype_named("int64"), 2),
        ]
        arrays = [out, x, *([bias] * has_bias), *([turn] * has_turn)]
        assert run_body(optional_body, arrays, units=5, more=more)[0] == 0
        np.testing.assert_allclose(out, x + bias * has_bias + 18 * has_turn, rtol=1e-6)
        operands = tuple(Operand.of(v) for v in [view_of(out), view_of(x), *more])
        kernels.add(body_kernel(optional_body, operands))
    assert len(kernels) == 1


def test_bodies_that_cannot_be(rng):
    last = Operand("float64", 1, True, optional=True)
    with pytest.raises(ValueError, match="come last"):
        body_kernel(rows_body, [last, Operand("float64", 1, True)])
    with pytest.raises(ValueError, match="scalars"):
        body_kernel(ranges_body, [last], scalars="iii")
    with pytest.raises(CompileError, match="NRT_"):
        body_kernel(allocating_body, [Operand("float64", 1, True)])
    with pytest.raises(ValueError, match="float16"):
        body_kernel(rows_body, [Operand("float16", 1, True), Operand("float16", 2, True)])
    with pytest.raises(ValueError, match="rows_body"):
        body_kernel(rows_body, [Operand("float32", 1, True)])
