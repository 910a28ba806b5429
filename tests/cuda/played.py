"""A declared op played on NumPy arrays by its CUDA rule, beside the same call on the CPU.

    outputs, details = play(operator_of(f), [x, y], attrs, scalars)
    agree(operator_of(f), [x, y], attrs)        # bit for bit with the CPU

Arrays of inputs that the op writes are changed in place.
"""

from __future__ import annotations

import numpy as np
from simulated import Play, status

import flowvm as flow
from flowvm.meta.dtype import dtype_named
from flowvm.meta.meta import TensorMeta
from flowvm.ops.declare import registry
from flowvm.ops.declare.cuda.lowering import launch_of
from flowvm.ops.declare.registry import operator_of

__all__ = ["agree", "launch", "meta_of", "named", "play", "same"]


def named(name, inputs=None):
    """The declared operator of this name; `inputs` where several have it.

    Forms of it that calls have made meanwhile (a number for `y`, complex numbers) are none.
    """
    declared = registry._operators.values()
    candidates = [
        o
        for o in declared
        if o.name == name and o.kernel.infer and inputs in (None, o.signature.inputs)
    ]
    candidates = (
        candidates if len(candidates) == 1 else [o for o in candidates if not o.kernel.complex]
    )
    assert len(candidates) == 1, f"{name}: {candidates}"
    return candidates[0]


def _operator(op):
    return op if hasattr(op, "lower") else operator_of(op)


def meta_of(array):
    """The meta of a dense array."""
    return TensorMeta.of(array.shape, dtype_named(array.dtype.name))


def launch(op, arrays, attrs=()):
    """The op's CudaLaunch."""
    return launch_of(_operator(op), tuple(meta_of(a) for a in arrays), tuple(attrs))


def play(op, arrays, attrs=(), scalars=(), order=""):
    """Return the outputs, and the details; no outputs if the status is not 0."""
    op = _operator(op)
    plan = launch(op, arrays, attrs)
    fresh = list(zip(op.signature.outputs, plan.outputs, strict=True))
    outputs = [_poisoned(m, 0 if name in op.signature.unsized else None) for name, m in fresh]
    run = Play(plan, [*outputs, *arrays], scalars, order)
    if op.signature.unsized:
        details = run.count()
        if status(details):
            return [], details
        for k, (name, meta) in enumerate(fresh):
            if name in op.signature.unsized:
                run.arrays[k] = _poisoned(meta, int(details[k]))
    details = run.run()
    return ([] if status(details) else run.arrays[: len(outputs)]), details


def _poisoned(meta, rows):
    shape = tuple(meta.shape) if rows is None else (rows, *meta.shape[1:])
    array = np.empty(shape, meta.dtype.numpy)
    array.reshape(-1).view(np.uint8).fill(0xA5)
    return array


def on_cpu(op, arrays, attrs=(), scalars=()):
    """Return the CPU's answer: its outputs, and the inputs afterwards."""
    op = _operator(op)
    tensors = [flow.tensor(a) for a in arrays]
    result = op.call(*tensors, *attrs, *scalars)
    results = result if isinstance(result, tuple) else (result,)
    outputs = [r.numpy() for r in results[: len(op.signature.outputs)]]
    return outputs, [t.numpy() for t in tensors]


def same(actual, expected):
    """Check that two arrays have the same bits."""
    assert actual.dtype == expected.dtype, (actual.dtype, expected.dtype)
    assert actual.shape == expected.shape, (actual.shape, expected.shape)
    bits = f"u{actual.itemsize}"
    left, right = (np.ascontiguousarray(a).view(bits) for a in (actual, expected))
    np.testing.assert_array_equal(left, right, f"{actual!r}\nand on the CPU\n{expected!r}")


def agree(op, arrays, attrs=(), scalars=(), order="", outputs=None):
    """Assert that CUDA gives the CPU's result (of the first `outputs` outputs)."""
    expected, changed = on_cpu(op, arrays, attrs, scalars)
    copies = [a.copy() for a in arrays]
    actual, details = play(op, copies, attrs, scalars, order)
    assert status(details) == 0, details
    for a, b in list(zip(actual, expected, strict=True))[:outputs]:
        same(a, b)
    for a, b in zip(copies, changed, strict=True):
        same(a, b)
