"""Convolutions on CUDA, against the definition: with the whole matrix of windows in memory, and
with room for a part of it.
"""

import numpy as np
import pytest
from on_device import answer, close, compiles, kernels, launch
from simulated import status

from flowvm.ops.planes.conv import _conv_reference
from flowvm.ops.planes.cpu.conv_plan import three_of
from flowvm.ops.planes.cuda import conv as rules
from flowvm.ops.planes.parts.conv_ops import (
    How,
    _conv,
    _conv_bias,
    _conv_input,
    _conv_input_bias,
    _conv_weight,
)

GEMM = "cublasGemmStridedBatchedEx"
# samples, groups, channels and outputs of a group, input, kernel, stride, padding, dilation
CASES = {
    "one dimension": (2, 1, 2, 3, (5,), (3,), (1,), (0,), (1,)),
    "strides in groups": (1, 2, 2, 2, (6,), (2,), (2,), (1,), (2,)),
    "planes": (2, 1, 2, 2, (4, 3), (2, 2), (1, 1), (1, 1), (1, 1)),
    "pointwise": (3, 1, 3, 2, (3, 2), (1, 1), (1, 1), (0, 0), (1, 1)),
    "pointwise, one sample": (1, 1, 3, 2, (3, 2), (1, 1), (1, 1), (0, 0), (1, 1)),
    "pointwise in groups": (2, 2, 2, 1, (3, 2), (1, 1), (1, 1), (0, 0), (1, 1)),
    "one element with a stride": (2, 1, 3, 2, (3, 4), (1, 1), (2, 1), (0, 0), (1, 1)),
    "depthwise": (2, 3, 1, 1, (5, 4), (3, 3), (1, 1), (1, 1), (2, 1)),
    "depthwise, more outputs": (1, 2, 1, 2, (4, 3), (3, 2), (2, 1), (1, 0), (1, 1)),
    "more groups than samples": (2, 3, 2, 2, (4, 4), (3, 2), (1, 2), (1, 1), (1, 1)),
    "more samples than groups": (3, 2, 2, 1, (4, 4), (3, 2), (1, 2), (1, 1), (1, 1)),
    "volumes": (2, 1, 1, 2, (3, 3, 2), (2, 2, 2), (1, 1, 1), (0, 1, 0), (1, 1, 1)),
    "volumes in groups": (1, 2, 2, 1, (3, 4, 2), (2, 2, 1), (2, 1, 1), (1, 1, 0), (1, 2, 1)),
    "a long column": (2, 1, 2, 2, (40, 1), (3, 1), (1, 1), (1, 0), (1, 1)),
    "more positions than threads": (1, 1, 1, 2, (7, 9), (2, 3), (1, 1), (1, 1), (1, 1)),
}
ROOMS = {"all": 1 << 28, "some samples": 1500, "some positions": 400, "one channel": 64}


class Case:
    """A convolution's operands, and its results by the definition."""

    def __init__(self, rng, name):
        n, groups, c, o, size, kernel, *numbers = CASES[name]
        self.groups, self.numbers = groups, numbers
        self.how = How(*(three_of(v, f) for v, f in zip(numbers, (1, 0, 1), strict=True)), groups)
        self.x = rng.standard_normal((n, groups * c, *size))
        self.weight = rng.standard_normal((groups * o, c, *kernel))
        self.bias = rng.standard_normal(groups * o)
        self.back_bias = rng.standard_normal(groups * c)
        self.out = self.reference(self.x, self.weight)
        self.g = rng.standard_normal(self.out.shape)

    def reference(self, x, weight):
        return _conv_reference(x, weight, None, *map(tuple, self.numbers), self.groups)

    def gradient(self, of):
        """Compute by definition: a convolution is linear in its input and in its weight."""
        source = self.x if of == "x" else self.weight
        units = np.eye(source.size).reshape(-1, *source.shape)
        outs = [self.reference(*((u, self.weight) if of == "x" else (self.x, u))) for u in units]
        return np.array([(out * self.g).sum() for out in outs]).reshape(source.shape)


def plus(x, bias):
    return x + bias.reshape((-1,) + (1,) * (x.ndim - 2))


def check(function, arrays, attrs, expected, dtype="float64", tolerance=None):
    outputs, details = answer(function, [a.astype(dtype) for a in arrays], attrs)
    assert status(details) == 0
    close(outputs[0], expected, tolerance)


@pytest.mark.parametrize("room", ROOMS)
@pytest.mark.parametrize("name", CASES)
def test_output(rng, monkeypatch, name, room):
    monkeypatch.setattr(rules, "WINDOWS", ROOMS[room])
    case = Case(rng, name)
    attrs = case.how, case.out.shape[2:]
    check(_conv, [case.x, case.weight], attrs, case.out)
    arrays = [case.x, case.weight, case.bias]
    check(_conv_bias, arrays, attrs, plus(case.out, case.bias))


@pytest.mark.parametrize("room", ROOMS)
@pytest.mark.parametrize("name", CASES)
def test_gradient_of_the_input(rng, monkeypatch, name, room):
    monkeypatch.setattr(rules, "WINDOWS", ROOMS[room])
    case = Case(rng, name)
    expected, attrs = case.gradient("x"), (case.how, case.x.shape)
    check(_conv_input, [case.g, case.weight], attrs, expected)
    arrays = [case.g, case.weight, case.back_bias]
    check(_conv_input_bias, arrays, attrs, plus(expected, case.back_bias))


@pytest.mark.parametrize("room", ROOMS)
@pytest.mark.parametrize("name", CASES)
def test_gradient_of_the_weight(rng, monkeypatch, name, room):
    monkeypatch.setattr(rules, "WINDOWS", ROOMS[room])
    case = Case(rng, name)
    attrs = case.how, case.weight.shape
    check(_conv_weight, [case.g, case.x], attrs, case.gradient("weight"))


@pytest.mark.parametrize("name", ["depthwise", "more groups than samples"])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-4), ("float16", 5e-2)])
def test_narrower_floats(rng, name, dtype, tolerance):
    case = Case(rng, name)
    attrs = case.how, case.out.shape[2:]
    out = plus(case.out, case.bias)
    check(_conv_bias, [case.x, case.weight, case.bias], attrs, out, dtype, tolerance)
    attrs = case.how, case.x.shape
    check(_conv_input, [case.g, case.weight], attrs, case.gradient("x"), dtype, tolerance)
    attrs, expected = (case.how, case.weight.shape), case.gradient("weight")
    check(_conv_weight, [case.g, case.x], attrs, expected, dtype, tolerance)


@pytest.mark.parametrize("empty", ["samples", "channels", "both"])
def test_nothing_to_add_up(empty):
    n, c = (0 if empty != "channels" else 2), (0 if empty != "samples" else 2)
    how = How((1, 1, 1), (0, 0, 0), (1, 1, 1), 1)
    x, weight, bias = np.ones((n, c, 4)), np.ones((3, c, 2)), np.arange(3.0)
    out = np.zeros((n, 3, 3))
    check(_conv, [x, weight], (how, (3,)), out)
    check(_conv_bias, [x, weight, bias], (how, (3,)), plus(out, bias))
    check(_conv_input, [out, weight], (how, x.shape), x * 0)
    check(_conv_weight, [out, x], (how, weight.shape), weight * 0)


def test_a_pointwise_convolution_is_one_product(rng):
    case = Case(rng, "pointwise")
    plan = launch(_conv, [case.x, case.weight], (case.how, case.out.shape[2:]))
    assert kernels(plan) == [GEMM]
    assert plan.scratch == 0


def test_windows_stay_within_bounds(rng, monkeypatch):
    monkeypatch.setattr(rules, "WINDOWS", 1500)
    case = Case(rng, "planes")
    for plan in (
        launch(_conv, [case.x, case.weight], (case.how, case.out.shape[2:])),
        launch(_conv_input, [case.g, case.weight], (case.how, case.x.shape)),
    ):
        assert 0 < plan.scratch <= 1500


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("name", ["planes", "depthwise"])
def test_the_kernels_compile(ptx_of, rng, name, dtype):
    case = Case(rng, name)
    x, weight, bias, g, back = (
        a.astype(dtype) for a in (case.x, case.weight, case.bias, case.g, case.back_bias)
    )
    plans = [
        launch(_conv_bias, [x, weight, bias], (case.how, case.out.shape[2:])),
        launch(_conv_input_bias, [g, weight, back], (case.how, x.shape)),
        launch(_conv_weight, [g, x], (case.how, weight.shape)),
    ]
    compiles(ptx_of, plans, dtype)
