"""Counts of values between edges, against NumPy's histograms."""

import math

import numpy as np
import pytest

import flowvm as flow
from flowvm.errors import ArgumentError, DTypeError, ShapeError
from flowvm.ops.places import histograms


@pytest.mark.parametrize("bins", [1, 7, [0.0, 0.5, 2.0], [-1.0, 0.0, 0.0, 1.0], [0.0, 1.0, 1.0]])
@pytest.mark.parametrize("density", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_counts_are_numpys(rng, bins, density, weighted):
    x = np.round(rng.standard_normal((5, 9)), 1)  # many on edges
    w = rng.random((5, 9)) if weighted else None
    edges = flow.tensor(bins).double() if isinstance(bins, list) else bins
    ours = histograms.histogram(
        flow.tensor(x), edges, weight=None if w is None else flow.tensor(w), density=density
    )
    ends = ours.bin_edges.numpy()
    np.testing.assert_allclose(ends, np.histogram_bin_edges(x, bins), rtol=1e-12, atol=1e-12)
    with np.errstate(all="ignore"):  # by the same bits of edges, on which many values are
        expected, _ = np.histogram(x, ends, weights=w, density=density)
    np.testing.assert_allclose(ours.hist.numpy(), expected, rtol=1e-12)


def test_values_outside_of_a_range_count_nowhere():
    x = flow.tensor([-1.0, 0.0, 1.0, 2.0, 3.0, math.nan])
    ours = histograms.histogram(x, 2, range=(0.0, 2.0))
    assert ours.hist.tolist() == [1, 2]
    assert histograms.histogram(x[:0], 2).hist.tolist() == [0, 0]
    same = histograms.histogram(flow.tensor([4.0, 4.0]), 3)
    assert (same.hist.tolist(), same.bin_edges.tolist()[::3]) == ([0, 2, 0], [3.5, 4.5])


def test_boxes_are_numpys(rng):
    x = rng.standard_normal((30, 2))
    ours = histograms.histogramdd(flow.tensor(x), [3, 4])
    expected, edges = np.histogramdd(x, [3, 4])
    np.testing.assert_array_equal(ours.hist.numpy(), expected)
    for a, b in zip(ours.bin_edges, edges, strict=True):
        np.testing.assert_allclose(a.numpy(), b, rtol=1e-12)
    ranged = histograms.histogramdd(flow.tensor(x), 2, [-1.0, 1.0, 0.0, 2.0], density=True)
    expected, _ = np.histogramdd(x, 2, [(-1, 1), (0, 2)], density=True)
    np.testing.assert_allclose(ranged.hist.numpy(), expected, rtol=1e-12)


def test_wrong_calls_are_named():
    x = flow.rand(4)
    for wrong in ((2.0, 1.0), (0.0, math.inf), (math.nan, 1.0)):
        with pytest.raises(ArgumentError, match="finite ends in ascending order"):
            histograms.histogram(x, 2, range=wrong)
    with pytest.raises(ArgumentError, match="range goes with a number of bins"):
        histograms.histogram(x, flow.tensor([0.0, 1.0]), range=(0.0, 1.0))
    with pytest.raises(ArgumentError, match="bins is positive, got 0"):
        histograms.histogram(x, 0)
    with pytest.raises(ShapeError, match="edges are a vector of float32, got float64"):
        histograms.histogram(x, flow.tensor([0.0, 1.0]).double())
    with pytest.raises(DTypeError, match="input is float32 or float64, got int64"):
        histograms.histogram(flow.arange(3))
    with pytest.raises(ShapeError, match=r"weight is float32 of shape \(4,\)"):
        histograms.histogram(x, 2, weight=flow.ones(3))
    with pytest.raises(ShapeError, match="2 dimensions or more"):
        histograms.histogramdd(x, 2)
    with pytest.raises(ArgumentError, match="2 dimensions, bins"):
        histograms.histogramdd(flow.rand(3, 2), [2])
