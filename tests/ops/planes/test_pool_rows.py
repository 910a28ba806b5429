"""Maxima of windows: each result, and its place, is what a scan of the window says."""

import numpy as np
import pytest

import flowvm as flow
from flowvm.nn import functional as F
from flowvm.ops.planes.cpu.pool_kernels import Windows, max_body
from flowvm.ops.planes.parts.pool_ops import GATHERED

pytestmark = pytest.mark.timeout(120)

# height, width, kernel, stride, padding, dilation, ceil mode
CASES = [
    (6, 28, (2, 2), (2, 2), 0, 1, False),
    (5, 37, (2, 2), (1, 1), 0, 1, False),
    (7, 70, (3, 3), (2, 2), 1, 1, False),
    (9, 33, (3, 2), (1, 3), (1, 1), 1, True),
    (8, 131, (2, 4), (2, 4), (1, 2), 1, True),
    (8, 90, (3, 3), (2, 5), 1, (2, 3), False),
    (11, 40, (5, 5), (1, 1), 2, 2, False),
    (4, 17, (1, 7), (1, 2), (0, 3), 1, True),
    (1, 13, (1, 2), (1, 1), 0, 4, False),
]


def _scanned(x, oh, ow, kernel, stride, padding, dilation):
    out, index = np.empty((len(x), oh, ow), x.dtype), np.empty((len(x), oh, ow), np.int64)
    _, h, w = x.shape
    for plane, i, j in np.ndindex(out.shape):
        best, where = None, 0
        for b, e in np.ndindex(*kernel):
            y = i * stride[0] - padding[0] + b * dilation[0]
            z = j * stride[1] - padding[1] + e * dilation[1]
            if 0 <= y < h and 0 <= z < w:
                v = x[plane, y, z]
                if best is None or v > best or v != v:
                    best, where = v, y * w + z
        out[plane, i, j], index[plane, i, j] = best, where
    return out, index


def _pair(value):
    return value if isinstance(value, tuple) else (value, value)


def _planes(rng, shape, dtype):
    """Planes with ties, the lowest numbers and, of floats, what is no number."""
    if np.dtype(dtype).kind != "f":
        info = np.iinfo(dtype)
        return rng.choice(np.array([info.min, info.min + 1, 3, info.max], dtype), shape)
    x = rng.integers(-3, 3, shape).astype(dtype)
    x[rng.random(shape) < 0.3] = -np.inf
    x[rng.random(shape) < 0.05] = np.nan
    return x


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64", "int8", "uint8"])
@pytest.mark.parametrize("case", CASES)
def test_maxima_and_places(case, dtype):
    h, w, kernel, stride, padding, dilation, ceil = case
    x = _planes(np.random.default_rng(1), (3, h, w), dtype)
    out, index = F.max_pool2d(
        flow.tensor(x), kernel, stride, padding, dilation, ceil, return_indices=True
    )
    oh, ow = out.shape[-2:]
    assert ow >= GATHERED, "the case is for vectors of windows"
    sizes = (kernel, _pair(stride), _pair(padding), _pair(dilation))
    best, where = _scanned(x, oh, ow, *sizes)
    np.testing.assert_array_equal(out.numpy(), best)
    np.testing.assert_array_equal(index.numpy(), where)


def test_body_in_python():
    """The Python twin of a row's maxima makes the same of a plane as the code does."""
    x = _planes(np.random.default_rng(2), (2, 7, 19), "float32")
    out, index = F.max_pool2d(flow.tensor(x), 3, 2, 1, return_indices=True)
    best, where = np.empty(out.numel(), x.dtype), np.empty(out.numel(), np.int64)
    sizes = Windows(7, 19, *out.shape[-2:], 3, 3, 2, 2, 1, 1, 1, 1)
    max_body(best, where, x.ravel(), sizes, 0, 2)
    np.testing.assert_array_equal(out.numpy().ravel(), best)
    np.testing.assert_array_equal(index.numpy().ravel(), where)
