"""Dtypes: PyTorch's promotion table, written out, and the identities that flowvm relies on."""

import copy
import importlib
import itertools
import pickle

import numpy as np
import pytest

from flowvm.errors import ArgumentTypeError, DeviceError, DTypeError
from flowvm.meta.device import Device, as_device, cpu, require

d = importlib.import_module(
    "flowvm.meta.dtype"
)  # `flowvm.dtype` itself is the class, as torch.dtype is
b, u1, i1, i2, i4, i8 = d.bool_, d.uint8, d.int8, d.int16, d.int32, d.int64
f2, bf, f4, f8 = d.float16, d.bfloat16, d.float32, d.float64

# PyTorch's table (c10/core/ScalarType.h), rows and columns in this order.
ORDER = (u1, i1, i2, i4, i8, f2, bf, f4, f8, b)
TABLE = (
    (u1, i2, i2, i4, i8, f2, bf, f4, f8, u1),
    (i2, i1, i2, i4, i8, f2, bf, f4, f8, i1),
    (i2, i2, i2, i4, i8, f2, bf, f4, f8, i2),
    (i4, i4, i4, i4, i8, f2, bf, f4, f8, i4),
    (i8, i8, i8, i8, i8, f2, bf, f4, f8, i8),
    (f2, f2, f2, f2, f2, f2, f4, f4, f8, f2),
    (bf, bf, bf, bf, bf, f4, bf, f4, f8, bf),
    (f4, f4, f4, f4, f4, f4, f4, f4, f8, f4),
    (f8, f8, f8, f8, f8, f8, f8, f8, f8, f8),
    (u1, i1, i2, i4, i8, f2, bf, f4, f8, b),
)


def test_promotion_is_pytorchs_table() -> None:
    for (i, a), (j, c) in itertools.product(enumerate(ORDER), repeat=2):
        assert d.promote_types(a, c) is TABLE[i][j], (a, c)


@pytest.mark.parametrize(
    ("operands", "expected"),
    [
        (((f4, False), float), f4),
        (((u1, False), int), u1),
        (((u1, False), float), f4),
        (((b, False), int), i8),
        (((b, False), bool), b),
        (((i4, False), (i8, True)), i4),
        (((i4, False), (f8, True)), f8),
        (((f2, False), (f8, True)), f2),
        (((f2, True), (f4, True)), f4),
        (((i1, False), (u1, False)), i2),
        (((i1, False), (b, True), float), f4),
        (((b, True), int), i8),
        ((int, float), f4),
        ((int, bool), i8),
        ((bool,), b),
    ],
)
def test_result_type_by_group(operands: tuple, expected: d.DType) -> None:
    assert d.result_type_of(*operands) is expected


def test_result_type_agrees_with_pytorch_for_every_pair() -> None:
    torch = pytest.importorskip("torch")  # runs in CI, which installs it
    order = (*ORDER, d.complex64, d.complex128)
    kinds: list = [(t, zero) for t in order for zero in (False, True)]
    kinds += [bool, int, float, complex]
    numbers = {bool: True, int: 3, float: 2.5, complex: 1j}

    def theirs(kind: object) -> object:
        if isinstance(kind, tuple):
            return torch.ones(() if kind[1] else (2,), dtype=getattr(torch, kind[0].name))
        return numbers[kind]

    for x, y in itertools.product(kinds, repeat=2):
        expected = str(torch.result_type(theirs(x), theirs(y))).removeprefix("torch.")
        expected = expected.replace("complex32", "complex64")  # there is none so narrow here
        assert d.result_type_of(x, y).name == expected, (x, y)


def test_result_type_of_floats_follows_the_default_dtype() -> None:
    before = d.get_default_dtype()
    try:
        d.set_default_dtype(f8)
        assert d.result_type_of((i8, False), float) is f8
    finally:
        d.set_default_dtype(before)
    assert d.result_type(1.5, 2) is f4


def test_can_cast_never_lowers_the_category() -> None:
    assert d.can_cast(f8, f2)
    assert d.can_cast(b, u1)
    assert not d.can_cast(f2, i8)
    assert not d.can_cast(u1, b)
    assert d.can_cast(d.complex128, d.complex64)
    assert d.can_cast(f8, d.complex64)
    assert not d.can_cast(d.complex64, f8)


@pytest.mark.parametrize("dtype", d.ALL_DTYPES)
def test_a_dtype_is_one_object_everywhere(dtype: d.DType) -> None:
    assert pickle.loads(pickle.dumps(dtype)) is dtype
    assert copy.deepcopy(dtype) is dtype
    assert d.dtype_named(dtype.name) is dtype
    assert repr(dtype) == f"flow.{dtype.name}"
    assert dtype.itemsize == np.zeros(1, dtype.storage).nbytes
    if dtype is bf:
        with pytest.raises(ArgumentTypeError, match=r"\.float\(\)"):
            _ = dtype.numpy
    else:
        assert d.from_numpy(dtype.numpy) is dtype
        assert d.as_dtype(dtype.numpy.type) is dtype


def test_a_dtype_cannot_be_changed() -> None:
    with pytest.raises(AttributeError, match="cannot be changed"):
        d.float32.name = "other"


def test_python_types_are_dtypes() -> None:
    assert [d.as_dtype(t) for t in (bool, int, float)] == [b, i8, f8]


@pytest.mark.parametrize("bad", [np.clongdouble, "float32", 3, None, str])
def test_what_is_no_dtype_is_refused_by_name(bad: object) -> None:
    with pytest.raises(ArgumentTypeError, match="dtype"):
        d.as_dtype(bad)


def test_only_a_float_may_be_the_default() -> None:
    with pytest.raises(ArgumentTypeError, match="floating-point"):
        d.set_default_dtype(i8)


def test_limits() -> None:
    assert d.iinfo(u1).max == 255
    assert d.iinfo(i8).min == -(2**63)
    assert d.finfo().eps == float(np.finfo(np.float32).eps)
    assert d.finfo(f2).max == 65504.0
    for dtype in (f2, f4, f8):
        known = np.finfo(dtype.numpy)
        for name in ("bits", "eps", "max", "min", "smallest_normal", "tiny"):
            assert getattr(d.finfo(dtype), name) == float(getattr(known, name)), (dtype, name)
        assert d.finfo(dtype).resolution == pytest.approx(float(known.resolution), rel=1e-3)
        assert dtype.digits == known.nmant + 1
    with pytest.raises(DTypeError, match="use iinfo"):
        d.finfo(i4)
    with pytest.raises(DTypeError, match="integer"):
        d.iinfo(f4)


def test_devices_are_interned() -> None:
    assert Device("cpu") is cpu is Device("cpu:0") is as_device(None)
    assert Device("cuda") is Device("cuda:0") is Device("cuda", 0) is Device(0)
    assert pickle.loads(pickle.dumps(Device("cuda:1"))) is Device("cuda", 1)
    assert copy.deepcopy(cpu) is cpu
    assert (str(Device("cuda:1")), repr(cpu)) == ("cuda:1", "device(type='cpu')")


@pytest.mark.parametrize("bad", ["gpu", "cuda:", "cuda:-1", "cpu:1", "CPU", "", "cuda:01"])
def test_a_misspelt_device_is_refused(bad: str) -> None:
    with pytest.raises(DeviceError):
        Device(bad)


def test_a_device_that_is_not_there_says_so() -> None:
    with pytest.raises(DeviceError, match=r"'cuda:99' is not available.*use device='cpu'"):
        require(Device("cuda:99"))
