"""Every op gives the same bits whatever the number of threads that share its kernel."""

from __future__ import annotations

import pytest

import flowvm as flow
from tools.bench.cases import OPERANDS, all_cases
from tools.bench.kernels import runners

SIZE = 1 << 17  # elements: some chunks of most kernels
(OURS,) = runners([])
CASES = [c for c in all_cases() if c.least <= SIZE]


def bits(result):
    """Every array in a result, as bytes."""
    if isinstance(result, (list, tuple)):
        return [b for r in result for b in bits(r)]
    return [result.detach().numpy().tobytes()] if isinstance(result, flow.Tensor) else [result]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.product(4)
def test_the_same_bits_with_1_and_3_workers(case, rng):
    size = min(SIZE, case.most)
    arrays = [OPERANDS[kind](rng, size) for kind in case.operands]
    function = eval(f"lambda x, y=None, z=None: {case.expr}", dict(OURS.space))
    results = []
    for workers in (1, 3, 3):
        with flow.config(workers=workers):
            flow.manual_seed(7)
            tensors = [flow.tensor(a) for a in arrays]
            if case.grad:
                floats = [t for t in tensors if t.dtype.is_floating_point]
                for t in floats:
                    t.requires_grad_(True)
                result = function(*tensors)
                (
                    result * flow.linspace(0.5, 2, result.numel()).reshape(result.shape)
                ).sum().backward()
                results.append(bits([result, *(t.grad for t in floats)]))
            else:
                results.append(bits(function(*tensors)))
    assert results[0] == results[1] == results[2]
