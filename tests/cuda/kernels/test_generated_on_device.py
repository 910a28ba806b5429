"""The declarations' samples on a simulated device: every op's values and gradients.

Values against the op's own reference in float64, as on the CPU; strided arguments too; gradients
against the CPU's, which are checked against finite differences elsewhere.
"""

import itertools
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "ops" / "helpers"))

import op_calls as calls
from op_checks import Checks

from flowvm.eager.tensor import Tensor
from flowvm.errors import DeviceError
from flowvm.ops.declare.registry import Sample

SAMPLES = 4  # of each op: a simulated thread is a thread of Python's
BYTES = 1 << 13  # of all arguments of a sample
ALL = [pytest.param(op, id=name) for name, op in calls.all_samples()]


def copied(array):
    return calls.as_tensor(array).to("cuda")


def strided(array):
    moved = calls.as_tensor(np.repeat(np.array(array, order="C").T, 2, axis=0)).to("cuda")
    return moved[::2].permute(*reversed(range(moved.ndim))) if array.ndim else moved[:1].reshape(())


def small(op, seed):
    """A few samples, small ones."""
    fit = (
        s
        for s in op.generate(np.random.default_rng(seed))
        if sum(a.nbytes for a in calls.arrays_of(s)) <= BYTES
    )
    return list(itertools.islice(fit, SAMPLES))


def on_device(function, sample, place):
    """Call on the device; skip the test if the op is not for CUDA."""
    if not calls.arrays_of(sample):  # it makes a tensor
        sample = Sample(sample.args, {**sample.kwargs, "device": "cuda"})
    try:
        return calls.results(calls.call(function, sample, place))
    except DeviceError as error:
        if "not on CUDA" in str(error) or "no CUDA kernel" in str(error):
            pytest.skip(str(error))
        raise


@pytest.mark.parametrize("device", ["late"], indirect=True)
@pytest.mark.parametrize("op", ALL)
@pytest.mark.product(4)
def test_values(op, device, seed):
    checks = Checks(op, seed)
    for number, original in enumerate(small(op, seed)):
        for dtype in (
            op.floats[1:3] if calls.has_floats(original) and number == 0 else op.floats[:1]
        ):
            sample = calls.in_dtype(original, dtype)
            want = calls.results(calls.call(op.reference, sample, calls.widened))
            # as_strided looks at memory, and not at elements
            places = (
                (copied, strided)
                if number < 2 and not op.name.startswith("as_strided")
                else (copied,)
            )
            for place in places:
                actual = on_device(op.function, sample, place)
                for g in actual:
                    assert not isinstance(g, Tensor) or g.device.type == "cuda"
                checks.same(sample, actual, want, dtype)


@pytest.mark.parametrize("device", ["late"], indirect=True)
@pytest.mark.parametrize("op", [p for p in ALL if p.values[0].grad])
@pytest.mark.product(4)
def test_gradients(op, device, seed):
    checks, dtype = Checks(op, seed), op.floats[0]
    for sample in small(op, seed)[:2]:
        if not calls.has_floats(sample):
            continue
        sample = calls.in_dtype(sample, dtype)
        actual, want = (
            [None if g is None else g.numpy() for g in gradients(op, sample, place)]
            for place in (copied, calls.as_tensor)
        )
        assert [g is None for g in actual] == [g is None for g in want]
        checks.same(
            sample, [g for g in actual if g is not None], [g for g in want if g is not None], dtype
        )


def gradients(op, sample, place):
    """Return the gradients of the results' sum by each floating argument.

    The sum is weighted so that elements differ.
    """
    leaves = []

    def leaf(array):
        tensor = place(array)
        if calls.is_float(array):
            leaves.append(tensor.requires_grad_())
        return tensor

    results = on_device(op.function, sample, leaf)
    total = None
    for r in results:
        if isinstance(r, Tensor) and r.requires_grad:
            weights = np.cos(np.arange(r.numel(), dtype=np.float64)).reshape(tuple(r.shape))
            weights = weights.astype(r.dtype.numpy)
            term = (r * calls.as_tensor(weights).to(r.device)).sum()
            total = term if total is None else total + term
    if total is None:
        pytest.skip("no result requires grad")
    total.backward()
    return [x.grad for x in leaves]
