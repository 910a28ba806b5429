"""bfloat16 in graphs: fused kernels round where eager code does, and no conversion is left out that
changes a bit.
"""

import numpy as np

import flowvm as flow
from flowvm.eager.values import values_of
from flowvm.graph.logical.interpret import interpret
from flowvm.graph.passes.algebra import _lossless
from flowvm.graph.passes.passes import PASSES
from flowvm.graph.plan.plan import compile_plan
from tests.graph.helpers import captured, names


def test_it_is_rounded_where_eager_code_rounds():
    def function(x):
        y = (x.bfloat16() * 3.1 + 0.7).relu() * 3e38
        return y.float() * 0.5, y, (x.half() + x.bfloat16()).bfloat16()

    x = flow.randn(1000) * 2
    before = captured(function, x)
    after = PASSES["fusion"](before)
    assert len(after.nodes) < len(before.nodes)
    assert "fused[" in names(after)[0]
    for ours, theirs in zip(compile_plan(after).launch([x]), interpret(before, [x]), strict=True):
        assert ours.dtype is theirs.dtype
        np.testing.assert_array_equal(values_of(ours), values_of(theirs))
    results = compile_plan(after).launch([x])
    assert np.isinf(values_of(results[1])).any()


def test_which_conversions_keep_every_value():
    dtypes = {d: getattr(flow, d) for d in (
        "bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32",
        "float64")}  # fmt: skip
    exact = {
        (a, b) for a, x in dtypes.items() for b, y in dtypes.items() if a != b and _lossless(x, y)
    }
    low = "bfloat16"
    assert {b for a, b in exact if a == low} == {"float32", "float64"}
    assert {a for a, b in exact if b == low} == {"bool", "uint8", "int8"}
    for a, b in exact - {p for p in exact if low in p}:  # NumPy says the rest
        if a in ("float16", "float32", "float64") and not b.startswith("float"):
            raise AssertionError((a, b))
        assert np.can_cast(a, b, "safe") or b.startswith("float"), (a, b)
