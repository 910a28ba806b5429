"""A declared op played on NumPy arrays of any strides, as tensors of a CUDA device.

    outputs, details = answer(f, [x, y], attrs)
    like_cpu(f, [x, y], attrs)                  # compared with the same call on the CPU

Arrays that the op writes are changed in place.  Infer functions see metas on "cuda:0", so those
that plan nothing for other devices do not.
"""

from __future__ import annotations

import numpy as np
from compiled import CAPABILITIES
from simulated import run, status

import flowvm as flow
from flowvm.cuda.launch import KernelStep
from flowvm.meta.device import Device
from flowvm.meta.dtype import dtype_named
from flowvm.meta.meta import TensorMeta
from flowvm.ops.declare.cuda.lowering import launch_of
from flowvm.ops.declare.registry import operator_of

__all__ = ["answer", "close", "compiles", "kernels", "launch", "like_cpu", "meta_of"]

CUDA = Device("cuda:0")
TOLERANCES = {"float64": 1e-12, "float32": 2e-5, "float16": 4e-3}


def meta_of(array):
    """The meta of an array on the device."""
    strides = tuple(s // array.itemsize for s in array.strides)
    return TensorMeta.of(array.shape, dtype_named(array.dtype.name), CUDA, strides)


def launch(function, arrays, attrs=()):
    """The CudaLaunch of a call."""
    metas = tuple(meta_of(a) for a in arrays)
    return launch_of(operator_of(function), metas, tuple(attrs))


def kernels(plan):
    """The names of what a launch calls."""
    return [s.kernel.__name__ if isinstance(s, KernelStep) else s.name for s in plan.steps]


def answer(function, arrays, attrs=(), order=""):
    """Outputs and details; both orders of a block's threads must be right."""
    plan = launch(function, arrays, attrs)
    outputs = []
    for meta in plan.outputs:
        out = np.empty(tuple(meta.shape), meta.dtype.numpy)
        out.reshape(-1).view(np.uint8).fill(0xA5)
        outputs.append(out)
    return outputs, run(plan, [*outputs, *arrays], (), order)


def like_cpu(function, arrays, attrs=(), exact=False):
    """Assert that CUDA gives the CPU's result, and return it."""
    tensors = [flow.tensor(a) for a in arrays]
    result = function(*tensors, *attrs)
    results = result if isinstance(result, tuple) else (result,)
    expected = [r.numpy() for r in results]
    for order in ("", "reversed"):
        inputs = [a.copy() for a in arrays]
        outputs, details = answer(function, inputs, attrs, order)
        assert status(details) == 0, details
        for actual, want in zip(outputs or inputs[:1], expected, strict=True):
            close(actual, want, 0.0 if exact else TOLERANCES.get(want.dtype.name, 0.0))
    return expected


def close(actual, expected, tolerance=None):
    """Assert that two arrays agree, exactly with a tolerance of 0."""
    assert actual.shape == expected.shape, (actual.shape, expected.shape)
    if tolerance is None:
        tolerance = TOLERANCES.get(actual.dtype.name, 0.0)
    if tolerance == 0:
        np.testing.assert_array_equal(actual, expected)
    else:
        np.testing.assert_allclose(
            actual.astype(np.float64), expected.astype(np.float64), rtol=tolerance, atol=tolerance
        )


def compiles(ptx_of, launches, dtype):
    """Assert that all kernels become PTX: for every capability if the dtype is float32."""
    for plan in launches:
        texts = ptx_of.launch(plan, CAPABILITIES if dtype == "float32" else CAPABILITIES[:1])
        assert texts
        assert all(".entry" in text for text in texts)
