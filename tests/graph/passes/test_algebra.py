"""The pass `algebra`: its rewrites; every bit stays, of special values too."""

from __future__ import annotations

import numpy as np
import pytest

import flowvm as flow
from flowvm.graph.logical.interpret import interpret
from flowvm.graph.passes.algebra import _lossless, simplify
from flowvm.graph.passes.passes import PASSES, optimize
from flowvm.graph.plan.plan import compile_plan
from tests.graph.helpers import captured, names

FLOATS = ("float16", "float32", "float64")
INTEGERS = ("uint8", "int8", "int16", "int32", "int64")


def special(dtype):
    """Numbers on which rules go wrong: signed zeros, infinities, NaN, the least and the largest."""
    kind = np.dtype(dtype)
    if kind.kind == "f":
        info = np.finfo(kind)
        ends = [info.max, -info.max, info.tiny, -info.tiny, info.smallest_subnormal]
        values = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 1 / 3, -2.5, 1000.7, *ends]
        values += [info.tiny * 1.5, info.tiny * 3.3, info.max / 3]
    else:
        info = np.iinfo(kind)
        values = [0, 1, 2, 3, 7, 100, info.max, info.min, info.max - 1, info.min // 2]
    return flow.tensor(np.array(values, kind))


def same_bits(function, *inputs):
    """Return names of the nodes after the pass; check that the results have the same bits."""
    before = captured(function, *inputs)
    after = simplify(before)
    after.check()
    plan = compile_plan(PASSES["dead"](PASSES["copies"](after)))
    for results in (interpret(after, inputs), plan.launch(list(inputs))):
        for ours, theirs in zip(results, interpret(before, inputs), strict=True):
            a, b = ours.numpy(), theirs.numpy()
            assert a.dtype == b.dtype
            nan = np.isnan(b) if b.dtype.kind == "f" else np.zeros(b.shape, bool)
            assert (np.isnan(a) == nan).all() if b.dtype.kind == "f" else True
            assert a[~nan].tobytes() == b[~nan].tobytes(), (a, b)
    return names(after)


NEUTRAL = {
    "times one": lambda x: x * 1,
    "one times": lambda x: 1.0 * x if x.dtype.is_floating_point else 1 * x,
    "minus zero": lambda x: x - 0,
    "plus -0.0": lambda x: x + -0.0 if x.dtype.is_floating_point else x + 0,
    "negated twice": lambda x: (-x).neg(),
    "times ones": lambda x: x * flow.ones_like(x),
    "ones times": lambda x: flow.ones(1, dtype=x.dtype) * x,
}


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS)
@pytest.mark.parametrize("name", NEUTRAL)
def test_what_gives_what_is_there_becomes_a_copy(name, dtype):
    assert same_bits(NEUTRAL[name], special(dtype))[-1] == "cast"


@pytest.mark.parametrize("dtype", FLOATS)
def test_divisions_by_one_and_by_powers_of_two(dtype):
    x = special(dtype)
    assert same_bits(lambda x: x / 1, x) == ["cast"]
    for exponent in (-9, -3, 1, 2, 5, 10):
        assert same_bits(lambda x, e=exponent: x / 2.0**e, x) == ["mul"]
        assert same_bits(lambda x, e=exponent: x / -(2.0**e), x) == ["mul"]
    for other in (3.0, 0.0, float("inf"), float("nan"), 2.0**-149, 2.0**127, 2.0**1023):
        assert same_bits(lambda x, c=other: x / c, x) == (
            ["mul"] if dtype == "float64" and abs(np.log2(other or 3)) in (149, 127) else ["div"]
        )


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x + 0.0,
        lambda x: x * 0,
        lambda x: x - x,
        lambda x: 0 - x,
        lambda x: 1 / x,
        lambda x: x * 1.0000001,
        lambda x: x * flow.full_like(x, 2),
        lambda x: flow.ones(3, 1, dtype=x.dtype) * x,
        lambda x: (x * 3) * 5,
    ],
)
def test_what_would_change_a_bit_or_a_shape_stays(function):
    assert "cast" not in same_bits(function, special("float32"))


def test_results_that_have_another_dtype_or_order_stay():
    assert same_bits(lambda x: x * 1.0, special("int32")) == ["mul"]
    assert same_bits(lambda x: x * 1, flow.tensor([True, False])) == ["mul"]
    turned = flow.randn(3, 4).t()
    same_bits(lambda x: (x * 1).t() + 1, turned)


@pytest.mark.parametrize("source", FLOATS + INTEGERS + ("bool",))
@pytest.mark.parametrize("between", FLOATS + INTEGERS)
def test_conversions_without_loss_are_one(source, between):
    x = flow.tensor([True, False]) if source == "bool" else special(source)
    if (between in INTEGERS and source in FLOATS) or (between == "float16" and source in INTEGERS):
        x = flow.arange(5).to(getattr(flow, source))
    final = source if source != "bool" else "float32"

    def function(x):
        return x.to(getattr(flow, between)).to(getattr(flow, final))

    ops = same_bits(function, x)
    if source == between:
        return
    if not _lossless(getattr(flow, source), getattr(flow, between)):
        assert ops == ["cast", "cast"]
    else:
        assert _holds_all(source, between)
        graph = optimize(captured(lambda x: function(x) + 1, x), ["fusion"])
        assert names(graph) == (["cast", "add"] if source == "bool" else ["add"])


def _holds_all(source, between):
    """Return True if the values next to the ends of `source` survive."""
    values = special(source).numpy() if source != "bool" else np.array([True, False])
    with np.errstate(all="ignore"):
        back = values.astype(between).astype(source)
    return bool(((back == values) | (back != back) & (values != values)).all())


def test_conversions_through_less_stay():
    x = special("float32")
    assert same_bits(lambda x: x.half().float(), x) == ["cast", "cast"]
    assert same_bits(lambda x: x.double().half(), x) == ["cast", "cast"]
    graph = simplify(captured(lambda x: x.half().double(), x))
    assert [n.inputs[0].meta.dtype.name for n in graph.nodes] == ["float32", "float16"]


def test_a_value_that_is_written_in_between_is_not_read_again():
    def function(x):
        y = x * 2
        up = y.double()
        y.add_(1)
        return up.float() + y

    same_bits(function, special("float32"))


def test_copies_and_conversions_of_fills_are_fills():
    assert same_bits(lambda x: x + flow.full((3,), 2.5).clone(), flow.ones(3)) == [
        "fill", "fill", "add",
    ]  # fmt: skip
    ones = same_bits(lambda x: flow.ones(3, dtype=flow.int64).to(flow.float32) + x, flow.ones(3))
    assert ones == ["fill", "fill", "add"]
    halves = same_bits(lambda x: flow.full((3,), 0.1).half() + x, flow.ones(3).half())
    assert halves == ["fill", "cast", "add"]
    graph = optimize(
        captured(lambda x: flow.zeros(3).scatter_add(0, x, flow.ones(3)), flow.arange(3))
    )
    assert "cast" not in names(graph)


def test_the_first_gradient_is_not_multiplied_by():
    w = flow.randn(4, requires_grad=True)

    def function(x):
        (w * x).sum().backward()
        g, w.grad = w.grad, None
        return g * 2

    assert names(optimize(captured(function, flow.randn(4)), ["fusion"])) == ["mul"]


def test_all_rules_at_once_in_random_programs():
    rules = list(NEUTRAL.values())
    for seed in range(30):
        rng = np.random.default_rng(seed)

        def function(x, rng=rng):
            pool = [x]
            for _ in range(10):
                y = pool[int(rng.integers(len(pool)))]
                kind = int(rng.integers(4))
                if kind == 0:
                    pool.append(y + pool[int(rng.integers(len(pool)))])
                elif kind == 1 and y is not x:
                    y.mul_(0.5)
                elif kind == 2:
                    pool.append((y / 4).double().float())
                else:
                    pool.append(rules[int(rng.integers(len(rules)))](y))
            return tuple(pool[int(k)] for k in rng.integers(1, len(pool), size=2))

        same_bits(function, special("float32"))
