"""Bodies of scans as Python, whole rows, segments and columns, against NumPy's running results."""

import numpy as np
import pytest
from python_launches import python_outputs

import flowvm as flow
from flowvm.meta.meta import TensorMeta
from flowvm.ops.rows.cpu import scan_kernels, scan_launch
from flowvm.ops.rows.cpu.scan_launch import Scanned
from flowvm.ops.rows.parts import scan_programs

SHAPES = [(40,), (3, 5), (2, 3, 4), (7, 1), (1, 70), (2, 0), (0, 3)]
SHAPED = [(shape, dim) for shape in SHAPES for dim in range(len(shape))]


def scanned(maker, x, dim, reverse=False, outputs=1, **how):
    meta = TensorMeta.of(x.shape, flow.float64)
    outs = (meta, meta.dense(flow.int64))[:outputs]
    launch = scan_launch.scan_launch(Scanned(maker, dim, reverse), outs, meta)
    return launch, python_outputs(launch, x, **how)


def turned(function, x, dim, reverse):
    x = np.flip(x, dim) if reverse else x
    out = function(x, dim)
    return np.flip(out, dim) if reverse else out


@pytest.mark.parametrize(("shape", "dim"), SHAPED)
@pytest.mark.parametrize("reverse", [False, True])
def test_running_sums_and_products(rng, shape, dim, reverse):
    x = rng.standard_normal(shape)
    for maker, function in ((scan_programs.sums, np.cumsum), (scan_programs.products, np.cumprod)):
        for pieces, backwards in ((1, False), (3, True)):
            _, (out,) = scanned(maker, x, dim, reverse, pieces=pieces, backwards=backwards)
            expected = turned(function, x, dim, reverse)
            np.testing.assert_allclose(out, expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("n", [31, 32, 33, 100])
def test_long_rows_go_in_segments(rng, monkeypatch, reverse, n):
    monkeypatch.setattr(scan_launch, "ROW_SEGMENT", 16)
    x = rng.standard_normal((3, n))
    launch, (out,) = scanned(scan_programs.sums, x, 1, reverse, pieces=4, backwards=True)
    assert launch.phases == ((launch.units, launch.grain),)
    assert launch.units == 3 * -(-n // 16)
    np.testing.assert_allclose(out, turned(np.cumsum, x, 1, reverse), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(("shape", "dim"), [((2, 9), 1), ((4, 3), 0), ((2, 3, 2), 1)])
@pytest.mark.parametrize("reverse", [False, True])
def test_running_extremes_are_of_the_last_of_equals(rng, shape, dim, reverse):
    x = rng.integers(0, 4, shape).astype(float)
    x.reshape(-1)[3] = np.nan
    for maker, best in ((scan_programs.largest, np.maximum), (scan_programs.smallest, np.minimum)):
        _, (values, places) = scanned(maker, x, dim, reverse, 2)
        expected = turned(lambda x, d, best=best: best.accumulate(x, d), x, dim, reverse)
        np.testing.assert_array_equal(values, expected)
        line = np.moveaxis(x, dim, -1).reshape(-1, shape[dim])
        at = np.moveaxis(places, dim, -1).reshape(line.shape)
        running = np.moveaxis(expected, dim, -1).reshape(line.shape)
        for row, place, value in zip(line, at, running, strict=True):
            for k in range(len(row)):
                seen = range(len(row) - 1, k - 1, -1) if reverse else range(k + 1)
                if np.isnan(value[k]):
                    expected_place = next(j for j in seen if np.isnan(row[j]))
                    assert np.isnan(row[place[k]])
                    assert place[k] in seen or place[k] == expected_place
                else:
                    assert place[k] == [j for j in seen if row[j] == value[k]][-1]


@pytest.mark.parametrize(("shape", "dim"), [((2, 300), 1), ((5, 3), 0), ((4,), 0)])
@pytest.mark.parametrize("reverse", [False, True])
def test_sums_of_exponentials(rng, shape, dim, reverse):
    x = rng.standard_normal(shape) * 300
    x.reshape(-1)[0] = -np.inf
    _, (out,) = scanned(scan_programs.exponentials, x, dim, reverse)
    expected = turned(lambda x, d: np.logaddexp.accumulate(x, d), x, dim, reverse)
    np.testing.assert_allclose(out, expected, rtol=1e-12)


def test_tiles_of_columns_are_narrow(rng, monkeypatch):
    monkeypatch.setattr(scan_launch, "TILE", 4)
    x = rng.standard_normal((2, 5, 11))
    launch, (out,) = scanned(scan_programs.sums, x, 1, pieces=5, backwards=True)
    assert launch.units == 2 * 3
    np.testing.assert_allclose(out, np.cumsum(x, 1), rtol=1e-12)
    assert launch.consts == (scan_kernels.Matrices(5, 11, 4, False),)
