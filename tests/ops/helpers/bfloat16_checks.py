"""An op's first sample with numbers, in bfloat16, against the reference in float64 on the same
numbers.
"""

import numpy as np
import op_calls as calls
import pytest
from op_calls import results

import flowvm as flow
from flowvm.eager.tensor import Tensor
from flowvm.eager.values import adopt_array, values_of

bf = flow.bfloat16
# what takes float16 takes bfloat16
EACH = [pytest.param(op, id=name) for name, op in calls.all_samples() if "float16" in op.floats]
STEP = 2.0**-7  # from 1 to the next number
ROUNDINGS = 4  # of results between the argument and the result, as many as float16's tests allow


def rounded(array):
    """The nearest numbers that bfloat16 has, in float64."""
    return bf.loaded(bf.stored(array)).astype(np.float64) if calls.is_float(array) else array


def as_tensor(array):
    return adopt_array(bf.stored(array), dtype=bf) if calls.is_float(array) else flow.tensor(array)


def first_sample(op, seed):
    for sample in op.generate(np.random.default_rng(seed)):
        if any(calls.is_float(a) and a.size for a in calls.arrays_of(sample)):
            return sample
    return None


def has_new_ties(sample):
    """Return True if rounding made unequal numbers equal: then their order is open."""
    floats = [a for a in calls.arrays_of(sample) if calls.is_float(a)]
    return any(len(np.unique(rounded(a))) < len(np.unique(a)) for a in floats)


def values(result):
    return values_of(result) if isinstance(result, Tensor) else np.asarray(result)


def check(op, seed, place=as_tensor):
    """`place` makes a tensor of an array."""
    sample = first_sample(op, seed)
    if sample is None:
        pytest.skip("no floating arguments")
    actual = results(calls.call(op.function, sample, place))
    with np.errstate(all="ignore"):
        want = results(calls.call(op.reference, sample, rounded))
    where = calls.shown(op, sample, seed)
    assert len(actual) == len(want), where
    inputs = max(float(np.abs(rounded(a)).max()) for a in calls.arrays_of(sample) if a.size)
    for g, w in zip(actual, want, strict=True):
        assert not isinstance(g, Tensor) or g.dtype is bf or not g.dtype.is_floating_point, where
        a, b = values(g), np.asarray(w)
        text = f"{where}\ngot:\n{a!r}\nexpected:\n{b!r}"
        assert a.shape == b.shape, text
        if a.dtype.kind != "f":
            assert has_new_ties(sample) or np.array_equal(a, b), text
            continue
        b = np.asarray(rounded(b.astype(np.float64)))  # what overflows, overflows on both sides
        finite = np.abs(b[np.isfinite(b)])
        scale = max(1.0, inputs, float(finite.max(initial=0.0)))
        error = ROUNDINGS * STEP
        close = np.allclose(a, b, max(error, op.rtol), max(error * scale, op.atol), equal_nan=True)
        assert close, text
