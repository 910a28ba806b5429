"""Replay against eager for every op that is declared: results and gradients, twice, with other
values the second time.

`test_bits` leaves out the passes that may round differently and demands eager code's bits, of all
samples, dense and strided.  `test_all_passes` compares one sample an op within rounding.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "ops" / "helpers"))
import op_calls as calls

import flowvm as flow
from flowvm.errors import CaptureError, FlowError
from tests.graph.helpers import arrays_in, close, exact, same_bits, tensors_in

NAMED = calls.all_samples()
# ops that read values before they know what to compute, with such samples or always
READS_VALUES = {
    **dict.fromkeys(
        ("argwhere", "bincount", "masked_select", "nms", "nonzero", "unique", "unique_consecutive"),
        "the result's shape",
    ),
    "index_put": "how many elements a mask picks",
    "one_hot": "the number of classes, unless it is given",
    "repeat_interleave": "the sum of the repeats",
    "segment_reduce": "the lengths, which it looks over",
    "matrix_exp": "how often it squares",
    "cov": "weights, which it looks over",
    **dict.fromkeys(("histogram", "histogramdd"), "the limits, unless given"),
    **dict.fromkeys(
        (name for name, _ in NAMED if "_polynomial_" in name), "the highest of degrees in a tensor"
    ),
}


def each_op():
    return pytest.mark.parametrize("op", [op for _, op in NAMED], ids=[name for name, _ in NAMED])


class Replay:
    """One sample of an op as a function of tensors, eager and captured."""

    def __init__(self, op: Any, sample: Any, seed: int, way: Any) -> None:
        self.op, self.sample, self.seed, self.way = op, sample, seed, way
        self.arrays = calls.arrays_of(sample)
        self.what = calls.shown(op, sample, seed)

    def function(self, *tensors: Any) -> list[Any]:
        """The op's results, and the gradients of an uneven sum of them."""
        # an in-place op may not write an input of a graph
        held = iter([t.clone() if self.op.name.endswith("_") else t for t in tensors])
        results = tensors_in(calls.call(self.op.function, self.sample, lambda _: next(held)))
        floating = [r for r in results if r.requires_grad]
        inputs = [t for t in tensors if t.requires_grad]
        if not floating or not inputs:
            return results
        total = sum(
            (r * flow.arange(1, r.numel() + 1, dtype=r.dtype).reshape(r.shape)).sum()
            for r in floating
        )
        grads = flow.autograd.grad(total, inputs, allow_unused=True)
        return [*[r.detach() for r in results], *[g for g in grads if g is not None]]

    def tensors(self, arrays: list[np.ndarray]) -> list[Any]:
        tensors = [self.way(a) for a in arrays]
        for t, a in zip(tensors, arrays, strict=True):
            if self.op.grad and calls.is_float(a):
                t.requires_grad_(True)
        return tensors

    def eager(self, arrays: list[np.ndarray]) -> list[np.ndarray] | None:
        """Run the op eagerly; return None if it does not take these values."""
        flow.manual_seed(self.seed)
        try:
            return arrays_in(self.function(*self.tensors(arrays)))
        except FlowError:
            with contextlib.suppress(FlowError):
                flow.vm.sync()  # instructions behind the failed one failed, too
            return None

    def replayed(self, graph: Any, arrays: list[np.ndarray]) -> list[np.ndarray]:
        flow.manual_seed(self.seed)
        return arrays_in(graph(*self.tensors(arrays)))

    def check(self, graph: Any, compare: Any) -> None:
        """Call twice and compare; a clear refusal is all right where the op reads values."""
        other = [np.array(a.reshape(-1)[::-1].reshape(a.shape)) for a in self.arrays]
        expected = {name: self.eager(a) for name, a in (("first", self.arrays), ("other", other))}
        if expected["first"] is None:
            return
        try:
            self.replayed(graph, self.arrays)
        except CaptureError:
            if self.op.name not in READS_VALUES:
                raise
            return
        for name, arrays in (("other", other), ("first", self.arrays)):
            if expected[name] is not None:
                actual = self.replayed(graph, arrays)
                compare(actual, expected[name], f"{name} values of {self.what}")
        assert len(graph.plans) == 1 or self.op.name in READS_VALUES, self.what


WAYS = {"dense": calls.as_tensor, "transposed": calls.transposed, "stepped": calls.stepped}


@each_op()
@pytest.mark.product(4)
def test_bits(op, seed):
    for i, sample in enumerate(op.generate(np.random.default_rng(seed))):
        sample = calls.in_dtype(sample, op.floats[min(1, len(op.floats) - 1)])
        for name in ("dense", ("transposed", "stepped")[i % 2]):
            replay = Replay(op, sample, seed, WAYS[name])
            replay.check(exact(flow.compile(replay.function)), same_bits)


@each_op()
@pytest.mark.product(4)
def test_all_passes(op, seed):
    samples = list(op.generate(np.random.default_rng(seed)))
    largest = max(samples, key=lambda s: sum(a.size for a in calls.arrays_of(s)))
    sample = calls.in_dtype(largest, op.floats[min(1, len(op.floats) - 1)])
    replay = Replay(op, sample, seed, calls.as_tensor)
    replay.check(flow.compile(replay.function), close)
