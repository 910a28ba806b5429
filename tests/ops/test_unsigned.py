"""uint16, uint32 and uint64, whose numbers go beyond signed integers, against NumPy."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import flowvm as flow
from flowvm.errors import ArgumentError, DTypeError

KINDS = ("uint16", "uint32", "uint64")
Array = np.ndarray[Any, Any]


def _bits(kind: str) -> int:
    return 8 * np.dtype(kind).itemsize


def _pair(kind: str, rng: np.random.Generator) -> tuple[Array, Array]:
    """All pairs of numbers where something changes, and some others."""
    top = 1 << (_bits(kind) - 1)
    edge = [0, 1, 2, 3, 7, top - 1, top, top + 1, 2 * top - 2, 2 * top - 1]
    x, y = np.repeat(np.array(edge, kind), 10), np.tile(np.array(edge, kind), 10)
    more = rng.integers(0, 2 * top - 1, (2, 90), np.uint64).astype(kind)
    return np.concatenate([x, more[0]]), np.concatenate([y, more[1]])


def _shift(y: Any, kind: str) -> Any:
    return y % _bits(kind)


BOTH: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    **{
        f.__name__: (f, f)
        for f in (
            operator.add, operator.sub, operator.mul, operator.and_, operator.or_, operator.xor,
            operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne,
        )
    },
    "maximum": (flow.maximum, np.maximum),
    "minimum": (flow.minimum, np.minimum),
    "gcd": (flow.gcd, np.gcd),
    "where": (lambda x, y: flow.where(x > y, x, y), lambda x, y: np.where(x > y, x, y)),
    "floor_divide": (lambda x, y: x // y.clamp(min=1), lambda x, y: x // np.maximum(y, 1)),
    "remainder": (lambda x, y: x % y.clamp(min=1), lambda x, y: x % np.maximum(y, 1)),
    "fmod": (lambda x, y: flow.fmod(x, y.clamp(min=1)), lambda x, y: x % np.maximum(y, 1)),
    "dot": (lambda x, y: x.dot(y), lambda x, y: np.dot(x, y)),
    "pow": (lambda x, y: x ** (y % 5), lambda x, y: x ** (y % y.dtype.type(5))),
    "divide": (lambda x, y: x / y.clamp(min=1), lambda x, y: x / np.maximum(y, 1).astype("f8")),
    "search": (
        lambda x, y: flow.searchsorted(x.sort()[0], y), lambda x, y: np.searchsorted(np.sort(x), y),
    ),
    "isin": (lambda x, y: flow.isin(x, y[:5]), lambda x, y: np.isin(x, y[:5])),
}  # fmt: skip

ONE: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "invert": (operator.invert, operator.invert),
    "neg": (operator.neg, operator.neg),
    "abs": (abs, abs),
    "sign": (flow.sign, np.sign),
    "square": (lambda x: x**2, lambda x: x**2),
    "shift left": (lambda x: x << 3, lambda x: x << x.dtype.type(3)),
    "shift right": (lambda x: x >> 3, lambda x: x >> x.dtype.type(3)),
    "clamp": (lambda x: x.clamp(3, 100), lambda x: x.clip(3, 100)),
    "max": (lambda x: x.max(), lambda x: x.max()),
    "min": (lambda x: x.min(), lambda x: x.min()),
    "argmax": (lambda x: x.argmax(), lambda x: x.argmax()),
    "amax": (lambda x: x.reshape(10, -1).amax(1), lambda x: x.reshape(10, -1).max(1)),
    "cummax": (lambda x: x.cummax(0)[0], np.maximum.accumulate),
    "sum": (lambda x: x.sum(), lambda x: x.sum(dtype="u8").astype("i8")),
    "cumsum": (lambda x: x.cumsum(0), lambda x: x.cumsum(dtype="u8").astype("i8")),
    "sort": (lambda x: x.sort()[0], np.sort),
    "sort down": (lambda x: x.sort(descending=True)[0], lambda x: np.sort(x)[::-1]),
    "argsort": (lambda x: x.argsort(stable=True), lambda x: x.argsort(kind="stable")),
    "topk": (lambda x: x.topk(5)[0], lambda x: np.sort(x)[::-1][:5]),
    "median": (lambda x: x.median(), lambda x: np.sort(x)[(len(x) - 1) // 2]),
    "unique": (lambda x: x.unique(), np.unique),
    "nonzero": (lambda x: x.nonzero()[:, 0], np.flatnonzero),
    "matmul": (
        lambda x: x[:36].reshape(6, 6) @ x[:36].reshape(6, 6),
        lambda x: x[:36].reshape(6, 6) @ x[:36].reshape(6, 6),
    ),
    "roll": (lambda x: x.roll(3), lambda x: np.roll(x, 3)),
    "cat": (lambda x: flow.cat([x, x]), lambda x: np.concatenate([x, x])),
    "bool": (lambda x: x.bool(), lambda x: x.astype(bool)),
    "int8": (lambda x: x.to(flow.int8), lambda x: x.astype("i1")),
    "int64": (lambda x: x.to(flow.int64), lambda x: x.astype("i8")),
    "float": (lambda x: x.float(), lambda x: x.astype("f4")),
    "double": (lambda x: x.double(), lambda x: x.astype("f8")),
    "complex": (lambda x: x.to(flow.complex128).real, lambda x: x.astype("f8")),
    "less than a number": (lambda x: x < 5, lambda x: x < 5),
    "more than a number below 0": (lambda x: x > -1, lambda x: np.ones_like(x, bool)),
}


def _same(actual: Any, want: Any) -> None:
    actual = actual.numpy()
    if actual.dtype.kind == "f":
        np.testing.assert_allclose(actual, want, 1e-6)
        return
    np.testing.assert_array_equal(actual, want)
    assert actual.dtype == np.asarray(want).dtype


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.product(4)
def test_of_two(kind: str, name: str, rng: np.random.Generator) -> None:
    x, y = _pair(kind, rng)
    ours, theirs = BOTH[name]
    with np.errstate(all="ignore"):
        _same(ours(flow.tensor(x), flow.tensor(y)), theirs(x, y))


@pytest.mark.parametrize("name", ONE)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.product(4)
def test_of_one(kind: str, name: str, rng: np.random.Generator) -> None:
    x, _ = _pair(kind, rng)
    ours, theirs = ONE[name]
    with np.errstate(all="ignore"):
        _same(ours(flow.tensor(x)), theirs(x))


@pytest.mark.parametrize("kind", KINDS)
def test_the_largest_number_goes_in_and_out(kind: str) -> None:
    dtype, largest = getattr(flow, kind), (1 << _bits(kind)) - 1
    x = flow.tensor([0, 1, largest], dtype=dtype)
    assert x.tolist() == [0, 1, largest]
    assert x[2].item() == largest
    assert str(largest) in repr(x)
    assert flow.iinfo(dtype).max == largest
    assert flow.full((2,), largest, dtype=dtype).tolist() == [largest] * 2
    assert x.clone().fill_(largest).tolist() == [largest] * 3
    assert (x + largest).tolist() == [largest, 0, largest - 1]
    assert (x == largest).tolist() == [False, False, True]
    assert (x < largest).tolist() == [True, True, False]
    assert x.masked_fill(x == 0, largest).tolist() == [largest, 1, largest]
    with pytest.raises(ArgumentError, match="does not fit"):
        x + (largest + 1)
    with pytest.raises(ArgumentError, match="does not fit"):
        flow.tensor([largest + 1], dtype=dtype)
    with pytest.raises(ArgumentError, match="does not fit"):
        flow.tensor([-1], dtype=dtype)


@pytest.mark.parametrize("kind", KINDS)
def test_of_floats(kind: str) -> None:
    largest = 2.0 ** (_bits(kind) - 1)
    x = flow.tensor([0.0, 1.7, largest, 1.5 * largest], dtype=flow.float64)
    assert x.to(getattr(flow, kind)).tolist() == [0, 1, int(largest), int(1.5 * largest)]


@pytest.mark.parametrize("kind", KINDS)
def test_files_and_exchange(kind: str, tmp_path: Any) -> None:
    array = np.array([0, 1, 2 ** _bits(kind) - 1], kind)
    x = flow.from_numpy(array)
    assert x.dtype is getattr(flow, kind)
    assert x.numpy().dtype == array.dtype
    for name in ("file", "file.safetensors"):
        flow.save({"x": x}, tmp_path / name)
        assert flow.load(tmp_path / name)["x"].tolist() == array.tolist()
    copy = flow.from_dlpack(np.from_dlpack(x))
    assert copy.dtype is x.dtype
    assert copy.tolist() == array.tolist()
    torch = pytest.importorskip("torch")
    torch.save({"x": torch.tensor(array), "more": torch.ones(2)}, tmp_path / "theirs")
    read = flow.load(tmp_path / "theirs")
    assert read["x"].dtype is x.dtype
    assert read["x"].tolist() == array.tolist()


def test_promotion() -> None:
    u1, u2, u4, u8 = flow.uint8, flow.uint16, flow.uint32, flow.uint64
    i1, i2, i4, i8 = flow.int8, flow.int16, flow.int32, flow.int64
    for a, b, both in (
        (u2, u1, u2), (u2, u4, u4), (u4, u8, u8), (u2, i1, i4), (u2, i4, i4), (u4, i8, i8),
        (u4, i2, i8), (u1, i1, i2), (u2, flow.bool, u2), (u8, flow.float16, flow.float16),
        (u4, flow.complex64, flow.complex64),
    ):  # fmt: skip
        assert flow.promote_types(a, b) is both is flow.promote_types(b, a)
        if both.is_floating_point or both.is_complex or {a, b} <= {u2, u4, u8, i8}:
            continue
        assert np.promote_types(a.numpy, b.numpy) == both.numpy
    with pytest.raises(DTypeError, match="uint64 have no common dtype"):
        flow.ones(2, dtype=i8) + flow.ones(2, dtype=u8)
    assert (flow.ones(2, dtype=u8) + 1).dtype is u8
    assert (flow.ones(2, dtype=u2) + flow.tensor(1)).dtype is u2  # of no dimensions
    assert (flow.ones(2, dtype=u4) + 1.5).dtype is flow.float32


@pytest.mark.parametrize("kind", KINDS)
def test_in_a_graph(kind: str) -> None:
    x = flow.tensor([1, 2 ** _bits(kind) - 1], dtype=getattr(flow, kind))
    twice = flow.compile(lambda t: (t + t) * 3)
    assert twice(x).tolist() == ((x + x) * 3).tolist() == [6, (1 << _bits(kind)) - 6]
