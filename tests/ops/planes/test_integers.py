"""Convolution, pooling and products of integers, to the bit as PyTorch's."""

from typing import Any

import numpy as np
import pytest

import flowvm as flow

torch = pytest.importorskip("torch")

KINDS = ["int64", "int32", "int16", "int8", "uint8"]
# name, shapes of input, weight and bias, options
CONVOLUTIONS: list[tuple[Any, ...]] = [
    ("conv1d", (2, 3, 7), (4, 3, 3), 4, {"stride": 2, "padding": 1}),
    ("conv2d", (2, 4, 6, 5), (6, 2, 3, 2), 6, {"groups": 2, "padding": (2, 1)}),
    ("conv2d", (4, 6, 6), (2, 4, 3, 3), None, {"padding": "same"}),
    ("conv2d", (0, 2, 4, 4), (3, 2, 2, 2), 3, {}),
    ("conv3d", (1, 2, 4, 3, 4), (3, 2, 2, 2, 3), 3, {"stride": (1, 1, 2)}),
]
LONG_ONLY: list[tuple[Any, ...]] = [
    ("conv1d", (2, 3, 9), (4, 3, 3), None, {"dilation": 2, "padding": "same"}),
    ("conv2d", (1, 2, 7, 7), (3, 2, 3, 2), 3, {"dilation": (2, 3), "stride": 2}),
    ("conv_transpose1d", (2, 3, 5), (3, 4, 3), 4, {"stride": 3, "padding": 1}),
    (
        "conv_transpose2d", (2, 4, 3, 4), (4, 2, 3, 2), 4,
        {"groups": 2, "stride": (2, 3), "output_padding": (1, 2), "dilation": 2, "padding": 1},
    ),
    ("conv_transpose2d", (2, 3, 3), (2, 1, 2, 2), None, {"stride": 3, "output_padding": 2}),
    ("conv_transpose3d", (1, 2, 2, 3, 2), (2, 3, 2, 2, 2), 3, {}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("dtype", "call"),
    [*((k, c) for k in KINDS for c in CONVOLUTIONS), *(("int64", c) for c in LONG_ONLY)],
)
def test_convolutions(dtype: str, call: Any, rng: np.random.Generator) -> None:
    name, input, weight, bias, options = call
    shapes = [s for s in (input, weight, bias) if s is not None]
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    arrays = [rng.integers(low, high, s, dtype=dtype, endpoint=True) for s in shapes]
    mine, theirs = (
        getattr(lib.nn.functional, name)(*map(lib.tensor, arrays), **options)
        for lib in (flow, torch)
    )
    assert mine.dtype.name == dtype
    np.testing.assert_array_equal(mine.numpy(), theirs.numpy())


AVERAGES: list[tuple[Any, ...]] = [
    ("avg_pool1d", (2, 3, 8), (3, 2, 1, True, False)),
    ("avg_pool1d", (3, 7), (2,)),
    ("avg_pool2d", (2, 3, 7, 6), ((3, 2), (2, 3), 1, True, False)),
    ("avg_pool2d", (2, 3, 7, 6), (3, 2, 1, True, True)),
    ("avg_pool2d", (2, 7, 6), (2, 1, 1, False, True, 3)),
    ("avg_pool2d", (2, 7, 6), (2, 1, 1, False, True, -3)),
    ("avg_pool3d", (1, 2, 5, 4, 5), (3, 2, 1, True, False)),
    ("avg_pool3d", (2, 5, 4, 5), (2, 2, 0, True, True, 7)),
    ("lp_pool2d", (2, 3, 6, 6), (2, 2)),
]


@pytest.mark.parametrize("call", AVERAGES)
def test_averages_are_rounded_towards_zero(call: Any, rng: np.random.Generator) -> None:
    name, shape, args = call
    x = rng.integers(-50, 50, shape)
    mine, theirs = (getattr(lib.nn.functional, name)(lib.tensor(x), *args) for lib in (flow, torch))
    assert mine.dtype.name == str(theirs.dtype)[6:]
    np.testing.assert_allclose(mine.numpy(), theirs.numpy(), rtol=1e-6)


@pytest.mark.parametrize("dtype", KINDS)
def test_products(dtype: str, rng: np.random.Generator) -> None:
    x, y, w, v, b = (
        rng.integers(0, 100, shape, dtype=dtype)
        for shape in ((2, 3), (2, 4), (5, 3), (5, 3, 4), (5,))
    )
    for name, arrays in (("linear", (x, w, b)), ("bilinear", (x, y, v, b))):
        mine, theirs = (
            getattr(lib.nn.functional, name)(*map(lib.tensor, arrays)) for lib in (flow, torch)
        )
        assert mine.dtype.name == dtype
        np.testing.assert_array_equal(mine.numpy(), theirs.numpy())


def test_what_has_no_integers_says_so() -> None:
    image = flow.ones(1, 1, 4, 4)
    for do in (
        lambda: flow.conv2d(image.bool(), flow.ones(1, 1, 2, 2).bool()),
        lambda: flow.conv2d(image.long(), flow.ones(1, 1, 2, 2)),
        lambda: flow.conv2d(image.long(), flow.ones(1, 1, 2, 2).int()),
        lambda: flow.nn.functional.avg_pool2d(image.int(), 2),
        lambda: flow.nn.functional.adaptive_avg_pool2d(image.long(), 2),
    ):
        with pytest.raises(RuntimeError, match=r"dtype|floating point"):
            do()
