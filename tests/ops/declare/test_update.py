"""Updates: one program in place; numbers that follow from its numbers are computed once."""

from __future__ import annotations

import math

import numpy as np
import pytest

import flowvm as flow
from flowvm.errors import DTypeError, ShapeError
from flowvm.graph.capture.capture import capturing
from flowvm.graph.passes.updates import Merged, merge_updates
from flowvm.graph.plan.plan import compile_plan
from flowvm.ops.declare.registry import operator_of
from flowvm.ops.declare.update import update

# what the next optimizers need of a declaration: numbers that depend on the step by branches,
# powers and roots, integers among them, and several tensors that change
blend_ = update(
    "blend_",
    "x!, g, state!",
    "rate: float, beta: float, step: int, flip: int",
    once="""
        sign = -1.0 if flip else 1.0
        share = beta ** (step * 0.5)
        length = 2 / (1 - beta) - 1
        size = sqrt(length - 1) * rate if length > step else rate
    """,
    each="""
        d = sign * g
        state = maximum(state * beta, abs(d))
        x = x - size * (share * d + (1 - share) * state)
    """,
)


def blended(x, g, state, rate, beta, step, flip):
    d = -g if flip else g
    share, length = beta ** (step * 0.5), 2 / (1 - beta) - 1
    size = math.sqrt(length - 1) * rate if length > step else rate
    state = np.maximum(state * beta, np.abs(d))
    return x - size * (share * d + (1 - share) * state), state


@pytest.mark.parametrize("n", [0, 1, 17, 100_001])
@pytest.mark.parametrize(("step", "flip"), [(3, False), (3, True), (90, 0)])
def test_an_update_is_its_program(rng, n, step, flip):
    x, g, state = (rng.standard_normal(n) for _ in range(3))
    expected = blended(x, g, state, 0.1, 0.9, step, flip)
    for dtype, atol in (("float64", 1e-14), ("float32", 1e-6), ("bfloat16", 0.05)):
        kind = getattr(flow, dtype)
        a, b, c = (flow.tensor(v).to(kind) for v in (x, g, state))
        versions = [t.version for t in (a, b, c)]
        assert blend_(a, b, c, 0.1, 0.9, step, flip) is a
        changed = [t.version > v for t, v in zip((a, b, c), versions, strict=True)]
        assert changed == [True, False, True]
        np.testing.assert_allclose(a.double().numpy(), expected[0], rtol=atol, atol=atol)
        np.testing.assert_allclose(c.double().numpy(), expected[1], rtol=atol, atol=atol)


def test_operands_that_are_not_dense(rng):
    x, g, state = (rng.standard_normal((6, 5)) for _ in range(3))
    a, b, c = flow.tensor(x).t(), flow.tensor(g).t(), flow.tensor(np.repeat(state, 2, 0))[::2].t()
    blend_(a, b, c, 0.1, 0.9, 3, False)
    for actual, expected in zip((a, c), blended(x, g, state, 0.1, 0.9, 3, False), strict=True):
        np.testing.assert_allclose(actual.numpy(), expected.T, rtol=1e-14, atol=1e-14)


def test_another_number_is_not_another_entry():
    entries = operator_of(blend_).lru.young
    entries.clear()
    for step in range(1, 5):
        blend_(flow.ones(3), flow.ones(3), flow.ones(3), 0.1 * step, 0.9, step, step > 2)
    assert len(entries) == 1


def test_updates_of_many_tensors_are_one_node(rng):
    values = [rng.standard_normal(k + 1).astype(np.float32) for k in range(6)]
    results = []
    for merge in (False, True):
        x, g, s = ([flow.tensor(v) * (k + 1) for v in values] for k in range(3))
        with capturing("f", []) as capture:
            for a, b, c in zip(x, g, s, strict=True):
                blend_(a, b, c, 0.1, 0.9, 3, True)
            capture.output(flow.ones(1))
        graph = merge_updates(capture.graph) if merge else capture.graph
        assert sum(isinstance(n.operator, Merged) for n in graph.nodes) == merge
        compile_plan(graph).launch([])
        results.append(b"".join(t.numpy().tobytes() for t in (*x, *g, *s)))
    assert results[0] == results[1]


def test_operands_must_agree():
    with pytest.raises(ShapeError, match=r"blend_: g has shape \(2,\), x \(3,\)"):
        blend_(flow.ones(3), flow.ones(2), flow.ones(3), 0.1, 0.9, 1, False)
    with pytest.raises(DTypeError, match=r"blend_: state has dtype flow\.float64, x flow\.float32"):
        blend_(flow.ones(3), flow.ones(3), flow.ones(3).double(), 0.1, 0.9, 1, False)


def test_declarations_that_cannot_be_meant():
    with pytest.raises(ValueError, match="`each` gives y no new value"):
        update("wrong_", "x!, y!", each="x = x + y")
    with pytest.raises(ValueError, match="`once` cannot give by another value"):
        update("wrong_", "x!", "by: float", once="by = 1 - by", each="x = x * by")
