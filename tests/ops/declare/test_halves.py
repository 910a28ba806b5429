"""Functions that compute 16-bit floats in float32."""

import flowvm as flow
from flowvm.ops.declare.halves import in_float32, wide


def test_halves_are_float32_inside_and_rounded_once():
    calls = []

    @in_float32
    def length(x):
        calls.append(x.dtype)
        return (x * x).sum().sqrt()

    result = length(flow.tensor([300.0, 400.0], dtype=flow.float16))
    assert calls == [flow.float32]
    assert (result.dtype, result.item()) == (flow.float16, 500.0)
    assert length(flow.tensor([3.0, 4.0])).dtype is flow.float32


def test_halves_in_a_tuple_are_widened():
    x = flow.tensor([1.0], dtype=flow.bfloat16)
    whole, (half, number) = wide((flow.ones(1), (x, 3)))
    assert (whole.dtype, half.dtype, number) == (flow.float32, flow.float32, 3)
