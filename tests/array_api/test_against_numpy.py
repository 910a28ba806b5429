"""`flowvm.array_api` beside NumPy, whose main module has the standard's names, too."""

import inspect
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import flowvm as flow
from flowvm import array_api as xp
from flowvm.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError

# fmt: off
CHAPTERS = {
    "creation":
        "arange asarray empty empty_like eye from_dlpack full full_like linspace "
        "meshgrid ones ones_like tril triu zeros zeros_like",
    "dtypes": "astype can_cast finfo iinfo isdtype result_type __array_namespace_info__",
    "elements":
        "abs acos acosh add asin asinh atan atan2 atanh bitwise_and bitwise_left_shift "
        "bitwise_invert bitwise_or bitwise_right_shift bitwise_xor ceil clip conj "
        "copysign cos cosh divide equal exp expm1 floor floor_divide greater "
        "greater_equal hypot imag isfinite isinf isnan less less_equal log log1p log2 "
        "log10 logaddexp logical_and logical_not logical_or logical_xor maximum minimum "
        "multiply negative nextafter not_equal positive pow real reciprocal remainder "
        "round sign signbit sin sinh square sqrt subtract tan tanh trunc",
    "indexing": "take take_along_axis",
    "linalg": "matmul matrix_transpose tensordot vecdot",
    "shapes":
        "broadcast_arrays broadcast_to concat expand_dims flip moveaxis permute_dims "
        "repeat reshape roll squeeze stack tile unstack",
    "searching": "argmax argmin count_nonzero nonzero searchsorted where",
    "sets": "unique_all unique_counts unique_inverse unique_values",
    "sorting": "argsort sort",
    "statistics": "cumulative_prod cumulative_sum max mean min prod std sum var",
    "utilities": "all any diff",
    "constants": "e inf nan newaxis pi __array_api_version__",
    "types": "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float32 float64 complex64 "
        "complex128",
}
EXTENSIONS = {
    "linalg":
        "cholesky cross det diagonal eigh eigvalsh inv matmul matrix_norm matrix_power "
        "matrix_rank matrix_transpose outer pinv qr slogdet solve svd svdvals tensordot "
        "trace vecdot vector_norm",
    "fft":
        "fft ifft fftn ifftn rfft irfft rfftn irfftn hfft ihfft fftfreq rfftfreq "
        "fftshift ifftshift",
}
# fmt: on


def test_every_name_is_here() -> None:
    names = {name for part in CHAPTERS.values() for name in part.split()}
    assert names - set(dir(xp)) == set()
    assert names | {"linalg", "fft"} == set(xp.__all__)
    for module, part in EXTENSIONS.items():
        assert set(part.split()) == set(getattr(xp, module).__all__)


def test_a_tensor_says_where_its_functions_are() -> None:
    x = flow.ones(2)
    assert x.__array_namespace__() is xp
    assert x.__array_namespace__(api_version="2023.12") is xp
    with pytest.raises(ArgumentError, match=r"one of 2021\.12, .* got '1999\.01'"):
        x.__array_namespace__(api_version="1999.01")
    assert x.to_device("cpu") is x
    with pytest.raises(ArgumentError, match="stream is None"):
        x.to_device("cpu", stream=3)


# --- one by one -----------------------------------------------------------------------------------

REALS = [
    "acos", "asin", "atan", "cos", "cosh", "exp", "expm1", "log1p", "sin", "sinh", "tan", "tanh",
    "square", "atanh", "asinh", "negative",
]  # fmt: skip
KINDS = {
    "numbers": np.array([[0.5, -0.25, 0.0], [-0.0, 0.75, 0.125]]),
    "single": np.array([[0.5, -0.25, 0.0], [-0.0, 0.75, 0.125]], np.float32),
    "whole": np.array([[3, -2, 0], [5, 7, -1]]),
    "small": np.array([[3, -2, 0], [5, 7, -1]], np.int8),
    "bytes": np.array([[3, 2, 0], [5, 7, 1]], np.uint8),
    "truth": np.array([[True, False, True], [False, False, True]]),
    "odd": np.array([[np.inf, -np.inf, np.nan], [-0.0, 0.0, 1.0]]),
    "complex": np.array([[0.5 + 0.5j, -0.25j, 0.125], [1 - 0.5j, 0.75, -0.5 + 0.25j]]),
}
FLOATS, COMPLEX = ("numbers", "single"), ("numbers", "single", "complex")
WHOLE, NUMBERS = ("whole", "small", "bytes"), ("numbers", "single", "whole", "small", "bytes")
Case = tuple[Callable[[Any, Any], Any], tuple[str, ...]]


def one(name: str) -> Callable[[Any, Any], Any]:
    return lambda m, a: getattr(m, name)(a)


def two(name: str) -> Callable[[Any, Any], Any]:
    """With itself, broadcast, with a number, and with a 0-d array of a wider dtype."""

    def call(m: Any, a: Any) -> Any:
        function, wide = getattr(m, name), m.asarray([2])[0]
        other = [function(a, 1)] if name not in ("logical_and", "logical_or", "logical_xor") else []
        if not m.isdtype(a.dtype, "integral"):  # with whole numbers is left open
            wide = m.astype(wide, m.float64)
        return [function(a, m.flip(a)), function(a, a[:1]), function(wide, a), *other]

    return call  # fmt: skip


CASES: dict[str, Case] = {
    **{name: (one(name), COMPLEX) for name in REALS},
    **{name: (one(name), FLOATS) for name in ("ceil", "floor", "trunc", "round", "signbit",
            "sign")},
    **{name: (one(name), (*FLOATS, "odd", *WHOLE, "complex")) for name in (
        "isfinite", "isinf", "isnan", "abs", "positive", "conj", "real", "imag", "square")},
    **{name: (lambda m, a, name=name: getattr(m, name)(m.abs(a) + 1), COMPLEX) for name in (
        "log", "log2", "log10", "sqrt", "acosh", "reciprocal")},
    **{f"{name} of odd ones": (one(name), ("odd",)) for name in (
        "ceil", "floor", "trunc", "round", "signbit", "sign", "exp", "tanh", "atan")},
    **{f"{name} of whole ones": (one(name), WHOLE) for name in (
        "ceil", "floor", "trunc", "round", "sign", "abs", "bitwise_invert")},
    "logical_not": (one("logical_not"), (*NUMBERS, "truth")),
    "bitwise_invert": (one("bitwise_invert"), ("truth",)),
    **{name: (two(name), (*NUMBERS, "complex")) for name in (
        "add", "multiply", "subtract", "equal", "not_equal")},
    **{name: (two(name), (*NUMBERS, "odd")) for name in (
        "greater", "greater_equal", "less", "less_equal", "maximum", "minimum")},
    **{name: (two(name), ("numbers", "odd")) for name in (
        "copysign", "nextafter", "hypot", "atan2", "logaddexp")},
    **{name: (two(name), ("truth",)) for name in ("logical_and", "logical_or", "logical_xor")},
    **{name: (two(name), ("whole", "bytes")) for name in (
        "bitwise_and", "bitwise_or", "bitwise_xor")},
    **{name: (lambda m, a, name=name: getattr(m, name)(a, m.asarray([[2, 0, 1]], dtype=a.dtype)),
              ("whole", "bytes")) for name in ("bitwise_left_shift", "bitwise_right_shift")},
    "divide": (lambda m, a: m.divide(a, m.asarray(3.0)), COMPLEX),
    **{name: (lambda m, a, name=name: getattr(m, name)(a, m.asarray([2, -3, 4], dtype=a.dtype)),
              ("numbers", "single", "whole", "small")) for name in ("floor_divide", "remainder")},
    "pow": (lambda m, a: [m.pow(a, 2), m.pow(2, m.abs(a)), m.pow(m.abs(a), a * 0 + 3)],
            ("numbers", "whole", "bytes")),
    "clip": (lambda m, a: [m.clip(a, 0, 2), m.clip(a, min=1), m.clip(a, max=m.asarray([[1], [2]],
             dtype=a.dtype)), m.clip(a)], NUMBERS),
    # creation
    "arange": (lambda m, a: [m.arange(3), m.arange(1, 4), m.arange(5, 0, -2), m.arange(0, -1),
               m.arange(3, dtype=m.float32)], ("whole",)),
    "eye": (lambda m, a: [m.eye(3), m.eye(2, 4, k=1), m.eye(3, 2, k=-1, dtype=m.int8), m.eye(0)],
            ("numbers",)),
    "full": (lambda m, a: [m.full((2,), 3), m.full(2, True), m.full_like(a, 2), m.zeros((2, 3)),
             m.ones(3, dtype=m.int32), m.zeros_like(a), m.ones_like(a), m.full((), 2j)], COMPLEX),
    "linspace": (lambda m, a: [m.linspace(0, 1, 5, dtype=m.float64), m.linspace(0, 1, 4,
                 endpoint=False, dtype=m.float64), m.linspace(0, 1j, 3, dtype=m.complex128)],
                 ("numbers",)),
    "meshgrid": (lambda m, a: [*m.meshgrid(a[0], a[1]), *m.meshgrid(a[0], a[1], indexing="ij")],
                 ("numbers",)),
    "tril": (lambda m, a: [m.tril(a), m.triu(a, k=1), m.tril(a, k=-1)], NUMBERS),
    "asarray": (lambda m, a: [m.asarray([[1, 2], [3, 4]]), m.asarray(a, copy=True),
                m.asarray([True, False]), m.asarray(a, dtype=m.float64)], ("whole", "single")),
    "from_dlpack": (lambda m, a: m.from_dlpack(a), ("numbers", "whole")),
    "empty": (lambda m, a: [m.empty((0, 2)), m.empty_like(a)[:0]], NUMBERS),
    "astype": (lambda m, a: [m.astype(a, m.float32), m.astype(a, m.int16), m.astype(a, m.bool)],
               NUMBERS),
    # shapes
    "broadcast": (lambda m, a: [*m.broadcast_arrays(a, a[0]), m.broadcast_to(a, (2, 2, 3))],
               NUMBERS),
    "concat": (lambda m, a: [m.concat([a, a]), m.concat([a, a[:, :1]], axis=1),
               m.concat([a, a], axis=None), m.concat([a, m.astype(a, m.float64)])], NUMBERS),
    "stack": (lambda m, a: [m.stack([a, a]), m.stack([a, a], axis=-1), *m.unstack(a),
              *m.unstack(a, axis=1)], NUMBERS),
    "expand_dims": (lambda m, a: [m.expand_dims(a, axis=n) for n in (-3, -1, 0, 2)], NUMBERS),
    "squeeze": (lambda m, a: [m.squeeze(a[:1], 0), m.squeeze(a[:1, :1], (0, 1))], NUMBERS),
    "flip": (lambda m, a: [m.flip(a), m.flip(a, axis=1), m.flip(a, axis=(0, -1))], NUMBERS),
    "moveaxis": (lambda m, a: [m.moveaxis(a, 0, 1), m.permute_dims(a, (1, 0)),
               m.matrix_transpose(a)],
                 NUMBERS),
    "repeat": (lambda m, a: [m.repeat(a, 2), m.repeat(a, 3, axis=1),
               m.repeat(a, m.asarray([2, 0]), axis=0)], NUMBERS),
    "reshape": (lambda m, a: [m.reshape(a, (3, -1)), m.reshape(a, (6,), copy=False),
                m.reshape(a, (6,), copy=True)], NUMBERS),
    "roll": (lambda m, a: [m.roll(a, 2), m.roll(a, -1, axis=1), m.roll(a, (1, 1), axis=(0, 1)),
             m.roll(a, 1, axis=(0, 1))], NUMBERS),
    "tile": (lambda m, a: [m.tile(a, (2,)), m.tile(a, (2, 1, 2))], NUMBERS),
    # many elements
    **{name: (lambda m, a, name=name: [getattr(m, name)(a, axis=d, keepdims=k)
              for d in (None, 0, -1, (0, 1), ()) for k in (False, True)],
              (*NUMBERS, "odd")) for name in ("max", "min", "all", "any", "count_nonzero")},
    **{name: (lambda m, a, name=name: [getattr(m, name)(a, axis=d, keepdims=k)
              for d in (None, 0, -1, (0, 1), ()) for k in (False, True)],
              ("numbers", "single", "whole", "complex", "truth")) for name in ("sum", "prod")},
    "sum in a dtype": (lambda m, a: [m.sum(a, dtype=m.float64), m.prod(a, axis=1, dtype=m.int8),
                       m.cumulative_sum(a, axis=0, dtype=m.int16)], WHOLE),
    **{name: (lambda m, a, name=name: [getattr(m, name)(a, axis=d) for d in (None, 0, (0, 1))],
              FLOATS) for name in ("mean", "var", "std")},
    "var, corrected": (lambda m, a: [m.var(a, correction=1), m.std(a, axis=1, correction=0.5)],
                       ("numbers",)),
    **{name: (lambda m, a, name=name: [getattr(m, name)(a, axis=0), getattr(m, name)(a[0]),
              getattr(m, name)(a, axis=-1, include_initial=True)],
              ("numbers", "whole", "complex")) for name in ("cumulative_sum", "cumulative_prod")},
    "diff": (lambda m, a: [m.diff(a), m.diff(a, axis=0, n=1), m.diff(a, n=2, prepend=a, append=a)],
             ("numbers", "whole")),
    # places
    "argmax": (lambda m, a: [m.argmax(a), m.argmin(a, axis=0), m.argmax(a, axis=-1, keepdims=True)],
               NUMBERS),
    "nonzero": (lambda m, a: list(m.nonzero(a)), NUMBERS),
    "searchsorted": (lambda m, a: [m.searchsorted(m.sort(a[0]), a, side=s)
                     for s in ("left", "right")] + [m.searchsorted(a[0], a,
                             sorter=m.argsort(a[0]))],
                     NUMBERS),
    "where": (lambda m, a: [m.where(a > 1, a, a * 2), m.where(a > 0, a, 0), m.where(a > 0,
              m.asarray(2.5), a[:1])], ("numbers", "whole")),
    "take": (lambda m, a: [m.take(a, m.asarray([1, 0, 1]), axis=1), m.take(a[0], m.asarray([2,
               -1])),
             m.take_along_axis(a, m.asarray([[0, 2], [1, 1]]), axis=1)], NUMBERS),
    "sort": (lambda m, a: [m.sort(a), m.sort(a, axis=0), m.argsort(a), m.argsort(a, axis=0)],
             (*NUMBERS, "odd")),
    # products
    "matmul": (lambda m, a: [m.matmul(a, m.matrix_transpose(a)), m.matmul(a, a[0]),
               m.matmul(a, m.astype(m.matrix_transpose(a), m.float64))],
               ("numbers", "single", "whole")),
    "tensordot": (lambda m, a: [m.tensordot(a, a), m.tensordot(a, a, axes=((0,), (0,))),
                  m.tensordot(a, a, axes=0)], ("numbers", "whole")),
    "vecdot": (lambda m, a: [m.vecdot(a, a), m.vecdot(a, a[0]), m.vecdot(a, a, axis=-2)],
               ("numbers", "small", "complex")),
    "outer": (lambda m, a: [m.linalg.outer(a[0], a[1]), m.linalg.cross(a, a[0]),
               m.linalg.diagonal(a),
              m.linalg.trace(a), m.linalg.trace(a, offset=1)], ("numbers", "whole")),
    "norms": (lambda m, a: [m.linalg.vector_norm(a), m.linalg.vector_norm(a, axis=0, ord=1),
              m.linalg.vector_norm(a, axis=(0, 1), keepdims=True, ord=np.inf),
              m.linalg.matrix_norm(a), m.linalg.matrix_norm(a, ord=1), m.linalg.matrix_norm(a,
              ord="nuc", keepdims=True), m.linalg.svdvals(a), m.linalg.pinv(a),
              m.linalg.matrix_rank(a)], ("numbers",)),
    "factors": (lambda m, a: [m.abs(p) for s in (a @ m.matrix_transpose(a) + m.eye(2,
               dtype=a.dtype),)
                for p in (*m.linalg.eigh(s), *m.linalg.qr(s), *m.linalg.slogdet(s),
                        *m.linalg.svd(s),
                m.linalg.cholesky(s), m.linalg.cholesky(s, upper=True), m.linalg.det(s),
                m.linalg.inv(s), m.linalg.eigvalsh(s), m.linalg.matrix_power(s, 3),
                m.linalg.solve(s, a), m.linalg.solve(s, a[:, 0]))], ("numbers",)),
    # transforms
    "fft": (lambda m, a: [m.fft.fft(a), m.fft.ifft(a, n=4), m.fft.fft(a, axis=0, norm="ortho"),
            m.fft.fftn(a), m.fft.ifftn(a, axes=(0,)), m.fft.fftshift(a), m.fft.ifftshift(a, axes=0),
            m.fft.hfft(a), m.fft.irfft(a), m.fft.irfftn(a)], ("numbers", "complex")),
    "rfft": (lambda m, a: [m.fft.rfft(a), m.fft.rfftn(a), m.fft.ihfft(a), m.fft.fftfreq(5, d=0.5),
             m.fft.rfftfreq(6)], ("numbers",)),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "kind"), [(name, kind) for name, (_, kinds) in CASES.items() for kind in kinds]
)
@pytest.mark.product(4)
def test_as_numpy_has_it(name: str, kind: str) -> None:
    """Values and dtypes, beside NumPy's default of float64."""
    function, _ = CASES[name]
    before = flow.get_default_dtype()
    flow.set_default_dtype(flow.float64)
    try:
        with np.errstate(all="ignore"):
            expected = function(np, KINDS[kind])
        actual = function(xp, flow.tensor(KINDS[kind].copy()))
    finally:
        flow.set_default_dtype(before)
    expected, actual = (x if isinstance(x, (list, tuple)) else [x] for x in (expected, actual))
    assert len(expected) == len(actual)
    for number, (theirs, mine) in enumerate(zip(expected, actual, strict=True)):
        theirs, mine = np.asarray(theirs), mine.numpy()
        assert mine.dtype == theirs.dtype, number
        assert mine.shape == theirs.shape, number
        tolerance = 1e-5 if mine.dtype in (np.float32, np.complex64) else 1e-12
        np.testing.assert_allclose(mine, theirs, tolerance, tolerance, err_msg=str(number))
        if name.endswith(" of odd ones"):
            zeros = theirs == 0
            np.testing.assert_array_equal(np.signbit(mine[zeros]), np.signbit(theirs[zeros]))


@pytest.mark.parametrize("kind", [*NUMBERS, "complex", "truth"])
def test_what_is_there_once(kind: str) -> None:
    """The standard leaves the order open; flowvm has the order of `numpy.unique`."""
    a = KINDS[kind]
    values, places, inverse, counts = np.unique(a, True, True, True)
    x = flow.tensor(a)
    actual = [*xp.unique_all(x), *xp.unique_counts(x), *xp.unique_inverse(x), xp.unique_values(x)]
    expected = [values, places, inverse, counts, values, counts, values, inverse, values]
    for mine, theirs in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(mine.numpy(), theirs)
    nans = xp.unique_counts(flow.tensor([flow.nan, 1.0, flow.nan]))
    assert nans.counts.tolist() == [1, 1, 1]
    pairs = xp.unique_all(flow.tensor([[1j, 0j], [complex(flow.nan, 0), complex(-0.0, 1)]]))
    assert pairs.values[:2].tolist() == [0, 1j]
    assert [part.tolist() for part in pairs[1:]] == [[1, 0, 2], [[1, 0], [2, 1]], [1, 2, 1]]


@pytest.mark.parametrize("name", sorted(xp.__all__))
def test_functions_say_what_they_do(name: str) -> None:
    value = getattr(xp, name)
    if inspect.isfunction(value):
        assert value.__doc__
        assert value.__name__ == name


# --- what NumPy has otherwise ---------------------------------------------------------------------


def test_what_the_standard_says_of_odd_numbers() -> None:
    """Quotients of infinities, remainders of 0, signs of NaN; PyTorch has others."""
    inf = flow.inf
    x1, x2 = flow.tensor([inf, inf, -inf, 1.0, -1.0]), flow.tensor([2.0, -2.0, 2.0, -inf, inf])
    quotients = xp.floor_divide(x1, x2)
    assert quotients.tolist() == [inf, -inf, -inf, 0.0, 0.0]
    assert xp.signbit(quotients).tolist()[3:] == [True, True]
    rests = xp.remainder(flow.tensor([-0.0, 0.0, 4.0]), flow.tensor([1.0, -1.0, -2.0]))
    assert rests.tolist() == [0, 0, 0]
    assert xp.signbit(rests).tolist() == [False, True, True]
    assert xp.isnan(xp.sign(flow.tensor(flow.nan)))
    assert xp.sum(xp.asarray([0.1], dtype=xp.float64), axis=()).tolist() == [0.1]


def test_dtypes() -> None:
    assert xp.result_type(xp.int8, xp.ones((), dtype=xp.float64), 1) is xp.float64
    assert xp.result_type(xp.float32, 1j) is xp.complex64
    assert xp.can_cast(xp.int8, xp.int16)
    assert not xp.can_cast(xp.ones(1), xp.int64)
    assert xp.isdtype(xp.uint8, ("signed integer", "integral"))
    assert not xp.isdtype(xp.uint8, "signed integer")
    assert xp.isdtype(xp.bool, xp.bool)
    assert xp.isdtype(flow.bfloat16, "real floating")
    assert xp.finfo(xp.complex64).dtype is xp.float32
    assert xp.finfo(xp.ones(2, dtype=xp.float64)).eps == np.finfo(np.float64).eps
    assert xp.iinfo(xp.int16).max == 32767
    assert xp.iinfo(xp.int16).dtype is xp.int16
    info = xp.__array_namespace_info__()
    assert info.default_dtypes()["indexing"] is xp.int64
    assert info.dtypes(kind="bool") == {"bool": xp.bool}
    assert set(info.dtypes()) == set(CHAPTERS["types"].split())
    assert info.capabilities()["boolean indexing"] is True
    assert info.devices() == [info.default_device()]


def test_what_is_turned_down() -> None:
    x = flow.ones(2, 3)
    for error, call in {
        ArgumentTypeError: lambda: xp.add(1, 2),
        DTypeError: lambda: xp.astype(xp.ones(2, dtype=xp.complex64), xp.float32),
        ShapeError: lambda: xp.squeeze(x, 0),
        IndexError: lambda: xp.expand_dims(x, axis=3),
    }.items():
        with pytest.raises(error):
            call()
    for call in (
        lambda: xp.concat([x, xp.ones(0)]),
        lambda: xp.sum(x, axis=2),
        lambda: xp.sum(x, axis=(0, -2)),
        lambda: xp.nonzero(xp.ones(())),
        lambda: xp.matrix_transpose(x[0]),
        lambda: xp.vecdot(x, x, axis=0),
        lambda: xp.vecdot(x, x[:, :2]),
        lambda: xp.reshape(x, (0, -1)),
    ):
        with pytest.raises(ShapeError):
            call()
    for call in (
        lambda: xp.cumulative_sum(x),
        lambda: xp.take(x, xp.asarray([0])),
        lambda: xp.asarray([1], copy=False),
        lambda: xp.isdtype(xp.int8, "integer"),
        lambda: xp.result_type(1, 2),
        lambda: xp.reshape(xp.matrix_transpose(x), (6,), copy=False),
    ):
        with pytest.raises(ArgumentError):
            call()


SCIPY = """
import json
import numpy as np, scipy, flowvm as flow
import scipy.fft, scipy.integrate, scipy.ndimage, scipy.signal, scipy.special, scipy.stats
x = np.random.default_rng(5).normal(size=(20, 3))
cases = {
    "zscore": lambda a: scipy.stats.zscore(a),
    "skew": lambda a: scipy.stats.skew(a),
    "ttest": lambda a: scipy.stats.ttest_1samp(a, 0.0).pvalue,
    "pearsonr": lambda a: scipy.stats.pearsonr(a[:, 0], a[:, 1]).statistic,
    "logsumexp": lambda a: scipy.special.logsumexp(a, axis=1),
    "expit": lambda a: scipy.special.expit(a),
    "detrend": lambda a: scipy.signal.detrend(a, axis=0),
    "convolve": lambda a: scipy.signal.fftconvolve(a[:, 0], a[:, 1]),
    "filter": lambda a: scipy.ndimage.gaussian_filter(a, 1.0),
    "dct": lambda a: scipy.fft.dct(a, axis=0),
    "trapezoid": lambda a: scipy.integrate.trapezoid(a, axis=0),
}
wrong = []
for name, case in cases.items():
    got = case(flow.tensor(x))
    if not isinstance(got, flow.Tensor) or not np.allclose(got.numpy(), case(x)):
        wrong.append(f"{name}: {type(got).__name__} {got}")
print(json.dumps([len(cases), wrong]))
"""


def test_scipy_takes_tensors() -> None:
    """SciPy's functions give tensors for tensors, with the same numbers as for arrays."""
    process = subprocess.run(
        [sys.executable, "-c", SCIPY], capture_output=True, text=True,
        env={**os.environ, "SCIPY_ARRAY_API": "1"},
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    assert json.loads(process.stdout) == [11, []]


def test_gradients_go_through() -> None:
    """Every function is made of flowvm's own, so the tape has it."""
    x = flow.tensor([[1.0, 2.0], [3.0, 5.0]], dtype=flow.float64, requires_grad=True)
    y = xp.sum(xp.linalg.inv(x) * xp.cumulative_sum(xp.matmul(x, x), axis=1) / xp.std(x))
    (grad,) = flow.autograd.grad(y, [x])
    with flow.no_grad():
        step = 1e-6 * xp.asarray([[1.0, -1.0], [0.5, 0.25]], dtype=xp.float64)
        ends = [
            xp.sum(xp.linalg.inv(z) * xp.cumulative_sum(xp.matmul(z, z), axis=1) / xp.std(z))
            for z in (x + step, x - step)
        ]
    assert abs(float((grad * step).sum()) - float(ends[0] - ends[1]) / 2) < 1e-9


def test_importing_flowvm_does_not_import_it() -> None:
    code = textwrap.dedent(
        """
        import sys, flowvm
        print("flowvm.array_api" in sys.modules)
        print(flowvm.ones(1).__array_namespace__().__name__)
        """
    )
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert process.stdout.split() == ["False", "flowvm.array_api"]
