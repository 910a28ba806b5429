"""Every sample of every op on global tensors: results and gradients equal one rank's.

Ranks are threads (`ranks`).  Each sample is called with its tensors held one way or another, drawn
by the seed, first by the cheapest signature of each call inside, then by the other legal ones: a
third of those for each sample, which ones the seed says.
"""

import zlib

import numpy as np
import op_calls
import pytest
import ranks

import flowvm as flow
from flowvm.eager.interpreter import operators
from flowvm.meta import placements
from flowvm.ops.placed import choice

# `placement=` of what takes no tensor is tested in test_tensors.py
NAMED = [(name, op) for name, op in op_calls.all_samples() if op.name not in op_calls.NO_TENSOR]


def called(op, sample, make):
    """The op on the sample with `make` of each array: the arguments made, and the results."""
    results = []

    def tensor(array):
        results.append(make(array))
        return results[-1]

    args = op_calls.mapped(sample.args, tensor)
    kwargs = op_calls.mapped(sample.kwargs, tensor)
    return results, op_calls.tensors_in(op.function(*args, **kwargs))


def gradients(operands, results, upstream):
    outs = [r for r in results if r.requires_grad]
    leaves = [t for t in operands if t.requires_grad]
    if not outs or not leaves:
        return []
    grads = flow.autograd.grad(outs, leaves, upstream(outs), allow_unused=True)
    return [None if g is None else g.numpy() for g in grads]


class Case:
    """A sample, computed by one rank."""

    def __init__(self, op, sample, seed):
        self.op, self.sample, self.seed = op, sample, seed
        rng = np.random.default_rng(seed)
        operands, results = called(op, sample, self._local)
        self.upstream = [rng.standard_normal(r.shape) for r in results if r.requires_grad]
        self.grads = gradients(operands, results, lambda outs: [
            flow.tensor(g, dtype=o.dtype) for g, o in zip(self.upstream, outs, strict=True)
        ])  # fmt: skip
        self.values = [r.numpy() for r in results]
        self.most = 1  # legal signatures that a call inside was seen to have

    def _wants_grad(self, array):
        return self.op.grad and array.dtype.kind == "f"

    def _local(self, array):
        t = flow.tensor(array)
        return t.clone().requires_grad_() if self._wants_grad(array) else t

    def check(self, size, pick=None):
        """Check `size` ranks, by the cheapest signatures or by number `pick` of each call."""
        if pick is not None:  # calls that have an entry of their own are not asked
            for operator in tuple(operators):
                operator.lru.forget()
        for values, grads in ranks.run(size, lambda rank: self._on_rank(size, pick)):
            assert len(values) == len(self.values)
            for actual, expected in zip(values, self.values, strict=True):
                assert actual.dtype == expected.dtype
                np.testing.assert_allclose(actual, expected, rtol=1e-7, atol=1e-9)
            for actual, expected in zip(grads, self.grads, strict=True):
                zero = np.zeros(()) if actual is None or expected is None else None
                actual, expected = (zero if g is None else g for g in (actual, expected))
                np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=1e-8)

    def _on_rank(self, size, pick):
        where = flow.placement("cpu", list(range(size)))
        rng = np.random.default_rng(self.seed + size)

        def make(array):
            options = ranks.each_sbp(array.ndim)
            if array.dtype.kind != "f" or not np.isfinite(array).all():
                options = [o for o in options if o[0] is not placements.partial_sum]
            t = ranks.held(array, where, options[rng.integers(len(options))])
            return t.detach().requires_grad_() if self._wants_grad(array) else t

        def chosen(op, legal):
            self.most = max(self.most, len(legal))
            return pick % len(legal)

        with choice.forced.within(None if pick is None else chosen):
            operands, results = called(self.op, self.sample, make)
            assert all(r.is_global for r in results)
            grads = gradients(operands, results, lambda outs: [
                ranks.whole(np.asarray(g, o.dtype.numpy), where)
                for g, o in zip(self.upstream, outs, strict=True)
            ])  # fmt: skip
            return [r.numpy() for r in results], grads


@pytest.mark.parametrize("op", [op for _, op in NAMED], ids=[name for name, _ in NAMED])
@pytest.mark.product(4)
def test_the_result_is_that_of_one_rank(op, seed):
    seed = (zlib.crc32(op.name.encode()) + seed) % (1 << 31)
    for number, sample in enumerate(op.generate(np.random.default_rng(seed))):
        case = Case(op, sample, seed + number)
        turn = number + seed
        for size in ((1, 4), (2,), (3,))[turn % 3]:
            case.check(size)
        pick = turn % 3
        while pick < case.most:
            case.check(2 + (pick + turn // 3) % 3, pick)
            pick += 3
