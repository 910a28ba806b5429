"""Patches, resizing and shuffles: sizes and dtypes that the samples are too small for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import flowvm as flow
from flowvm.ops.planes import resize

F = flow.nn.functional

WAYS = [
    ("nearest", None, 1), ("nearest", None, 2), ("nearest", None, 3), ("nearest-exact", None, 2),
    ("linear", False, 1), ("linear", True, 1), ("bilinear", False, 2), ("bilinear", True, 2),
    ("bicubic", False, 2), ("bicubic", True, 2), ("trilinear", False, 3), ("trilinear", True, 3),
    ("area", None, 3),
]  # fmt: skip


def like_torch(function: Any, array: np.ndarray, rtol: float, atol: float) -> None:
    """`function(functional, tensor)` and its gradient are the same in both libraries."""
    torch = pytest.importorskip("torch")
    x, y = flow.tensor(array), torch.from_numpy(array)
    smooth = array.dtype.kind == "f"
    if smooth:
        x.requires_grad_(True), y.requires_grad_(True)
    ours, theirs = function(F, x), function(torch.nn.functional, y)
    actual, expected = ours.detach().numpy(), theirs.detach().numpy()
    assert actual.dtype == expected.dtype
    np.testing.assert_allclose(actual, expected, rtol, atol)
    if smooth:
        weight = np.cos(np.arange(expected.size)).reshape(expected.shape).astype(array.dtype)
        (ours * flow.tensor(weight)).sum().backward()
        (theirs * torch.from_numpy(weight)).sum().backward()
        np.testing.assert_allclose(x.grad.numpy(), y.grad.numpy(), rtol, atol)


@pytest.mark.parametrize(("mode", "corners", "n"), WAYS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_interpolate_to_random_sizes(rng, mode, corners, n, dtype):
    tolerance = 1e-10 if dtype == "float64" else 2e-4  # places are rounded to float32, weights too
    for _ in range(6):
        space, size = rng.integers(1, 40 >> n, n), rng.integers(1, 60 >> n, n)
        array = rng.standard_normal((2, 3, *space)).astype(dtype)
        expected = tuple(int(s) for s in size)

        def resized(lib: Any, x: Any, expected: Any = expected) -> Any:
            return lib.interpolate(x, expected, mode=mode, align_corners=corners)

        like_torch(resized, array, tolerance, tolerance)


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "bilinear", "bicubic"])
@pytest.mark.parametrize("recompute", [None, True])
def test_interpolate_by_random_factors(rng, mode, recompute):
    for _ in range(6):
        array = rng.standard_normal((1, 2, *rng.integers(4, 20, 2)))
        factors = tuple(float(f) for f in rng.uniform(0.3, 4, 2))
        while any(int(n * f) in (n, 2 * n) for n, f in zip(array.shape[2:], factors, strict=True)):
            # there PyTorch takes other elements in two dimensions than in one
            factors = tuple(float(f) for f in rng.uniform(0.3, 4, 2))

        def resized(lib: Any, x: Any, factors: Any = factors) -> Any:
            return lib.interpolate(
                x, scale_factor=factors, mode=mode, recompute_scale_factor=recompute
            )

        like_torch(resized, array, 1e-9, 1e-9)


def test_nearest_places_of_float32_round_as_in_torch(rng):
    for size in (41, 82, 97, 1000, 1023):
        array = np.arange(2 * 137, dtype=np.float32).reshape(1, 2, 137)
        for mode in ("nearest", "nearest-exact"):
            like_torch(lambda lib, x, s=size, m=mode: lib.interpolate(x, s, mode=m), array, 0, 0)


@pytest.mark.parametrize("dtype", ["uint8", "int64", "bool", "float16"])
def test_nearest_moves_any_dtype(rng, dtype):
    array = rng.integers(0, 2, (2, 1, 3, 4)).astype(dtype)
    out = F.interpolate(flow.tensor(array), scale_factor=(2, 3)).numpy()
    assert out.dtype == array.dtype
    np.testing.assert_array_equal(out, array.repeat(2, 2).repeat(3, 3))


def test_rows_longer_than_a_block_and_than_the_arena(rng, monkeypatch):
    monkeypatch.setattr(resize, "SPAN", 16)
    monkeypatch.setattr(resize, "LONGEST", 64)
    array = rng.standard_normal((1, 2, 5, 33))
    for mode in ("bilinear", "bicubic"):
        like_torch(lambda lib, x, m=mode: lib.interpolate(x, (9, 71), mode=m), array, 1e-9, 1e-9)


def test_infinity_and_nan_spread_as_in_torch():
    torch = pytest.importorskip("torch")
    array = np.array([[[1.0, np.nan, 2.0, 3.0, 4.0, np.inf]]])
    for size, corners in ((6, False), (12, False), (11, True), (4, False)):
        ours = F.interpolate(flow.tensor(array), size, mode="linear", align_corners=corners)
        theirs = torch.nn.functional.interpolate(
            torch.from_numpy(array), size, mode="linear", align_corners=corners
        )
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())


@pytest.mark.parametrize("seed", range(12))
def test_patches_of_random_geometry(seed):
    rng = np.random.default_rng(seed)
    kernel, stride, dilation = (tuple(int(v) for v in rng.integers(1, 4, 2)) for _ in range(3))
    padding = tuple(int(v) for v in rng.integers(0, 4, 2))
    space = tuple(int(v) for v in rng.integers(7, 30, 2))
    array = rng.standard_normal((2, 3, *space))

    def round_trip(lib: Any, x: Any) -> Any:
        columns = lib.unfold(x, kernel, dilation, padding, stride)
        return lib.fold(columns, space, kernel, dilation, padding, stride)

    like_torch(lambda lib, x: lib.unfold(x, kernel, dilation, padding, stride), array, 0, 1e-12)
    like_torch(round_trip, array, 1e-12, 1e-12)


def test_unfold_moves_any_dtype(rng):
    for dtype in ("uint8", "bool", "int16", "float16"):
        array = rng.integers(0, 2, (1, 2, 4, 5)).astype(dtype)
        out = F.unfold(flow.tensor(array), 2, padding=1).numpy()
        wide = F.unfold(flow.tensor(array.astype("float64")), 2, padding=1).numpy()
        assert out.dtype == array.dtype
        np.testing.assert_array_equal(out, wide.astype(dtype))


def test_shuffles_undo_each_other(rng):
    array = rng.standard_normal((2, 3, 4, 6))
    x = flow.tensor(array)
    np.testing.assert_array_equal(F.pixel_shuffle(F.pixel_unshuffle(x, 2), 2).numpy(), array)
    np.testing.assert_array_equal(
        F.channel_shuffle(F.channel_shuffle(x.reshape(2, 6, 2, 6), 2), 3).numpy(),
        array.reshape(2, 6, 2, 6),
    )
