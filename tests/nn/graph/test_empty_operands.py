"""Graphs of tensors without elements: every op with an empty sample.

Results and gradients are the same as in eager code.
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
from tests.graph.helpers import arrays_in, same_bits, tensors_in

F = flow.nn.functional
NAMED = calls.all_samples()
MOST = 3  # samples of an op


def without(arrays: list[np.ndarray], size: int) -> list[np.ndarray]:
    """The arrays with each dimension of this size empty."""
    return [a[tuple(slice(0 if n == size else n) for n in a.shape)] for a in arrays]


def results(function: Any, tensors: list[Any]) -> list[np.ndarray]:
    """Return a call's results, and the gradients of their sum."""
    tensors_out = tensors_in(function(*tensors))
    expected = [t for t in tensors if t.requires_grad]
    sums = [r.sum() for r in tensors_out if r.requires_grad]
    if not expected or not sums:
        return [*tensors_out]
    grads = flow.autograd.grad(sum(sums[1:], sums[0]), expected, allow_unused=True)
    return [*[r.detach() for r in tensors_out], *[g for g in grads if g is not None]]


@pytest.mark.parametrize("op", [op for _, op in NAMED], ids=[name for name, _ in NAMED])
@pytest.mark.product(4)
def test_samples_without_elements(op: Any, seed: int) -> None:
    tried: set[Any] = set()
    for sample in op.generate(np.random.default_rng(seed)):
        sample = calls.in_dtype(sample, op.floats[min(1, len(op.floats) - 1)])
        arrays = calls.arrays_of(sample)
        for size in {n for a in arrays for n in a.shape}:
            empty = without(arrays, size)
            shapes = tuple(a.shape for a in empty)
            if len(tried) >= MOST or shapes in tried:
                continue

            def function(*tensors: Any) -> Any:
                held = iter(t.clone() if op.name.endswith("_") else t for t in tensors)
                return calls.call(op.function, sample, lambda _: next(held))  # noqa: B023

            def new_tensors() -> list[Any]:
                tensors = [calls.as_tensor(a) for a in empty]  # noqa: B023
                return [
                    t.requires_grad_(True) if op.grad and t.dtype.is_floating_point else t
                    for t in tensors
                ]

            def run(call: Any) -> Any:
                flow.manual_seed(seed)
                arrays = arrays_in(call())
                flow.vm.sync()  # also what no result depends on
                return arrays

            try:
                expected = run(lambda: results(function, new_tensors()))
            except (FlowError, IndexError, ValueError, TypeError):
                with contextlib.suppress(FlowError):
                    flow.vm.sync()  # there may be more errors than the one that was read
                continue
            tried.add(shapes)
            graph = flow.compile(lambda *tensors: results(function, list(tensors)))
            for _ in range(2):
                try:
                    actual = run(lambda: graph(*new_tensors()))  # noqa: B023
                except CaptureError as error:
                    if "depends on values" in str(error) or "has no value" in str(error):
                        return
                    raise
                same_bits(actual, expected, f"{shapes} for {calls.shown(op, sample, seed)}")
