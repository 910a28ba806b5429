"""Resized images of uint8 are PyTorch's, to the last bit."""

import itertools

import numpy as np
import pytest

import flowvm as flow

torch = pytest.importorskip("torch")

SIZES = [(5, 7), (13, 20), (60, 64), (9, 30), (20, 30)]


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("antialias", [False, True])
def test_bytes_are_weighed_as_pytorch_weighs_them(mode, antialias):
    image = np.random.default_rng(0).integers(0, 256, (2, 3, 20, 30), dtype=np.uint8)
    for size, corners in itertools.product(SIZES, (False, True)):
        ours, theirs = (
            t.nn.functional.interpolate(
                t.tensor(image), size, mode=mode, align_corners=corners, antialias=antialias
            ).numpy()
            for t in (flow, torch)
        )
        assert ours.dtype == np.uint8
        np.testing.assert_array_equal(ours, theirs, f"{size}, corners {corners}")


@pytest.mark.parametrize("factor", [0.5, 1.7, (2, 0.3)])
def test_by_a_factor(factor):
    image = np.random.default_rng(1).integers(0, 256, (1, 3, 20, 30), dtype=np.uint8)
    for again in (None, True):
        ours, theirs = (
            t.nn.functional.interpolate(
                t.tensor(image), scale_factor=factor, mode="bilinear", recompute_scale_factor=again
            ).numpy()
            for t in (flow, torch)
        )
        np.testing.assert_array_equal(ours, theirs)


def test_other_integers_are_turned_down():
    with pytest.raises(TypeError, match="needs floats"):
        flow.nn.functional.interpolate(flow.ones(1, 3, 4, 4, dtype=flow.int32), 2, mode="bilinear")
    near = flow.nn.functional.interpolate(flow.ones(1, 3, 4, 4, dtype=flow.uint8), 2)
    assert near.dtype is flow.uint8
