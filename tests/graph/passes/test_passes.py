"""Each pass: the nodes that it removes, the nodes that it must keep; no result changes."""

from __future__ import annotations

import numpy as np
import pytest

import flowvm as flow
from flowvm.eager.live import Leaf
from flowvm.errors import ArgumentError
from flowvm.graph.capture.capture import capturing
from flowvm.graph.logical.interpret import interpret
from flowvm.graph.passes.passes import PASSES, optimize
from flowvm.graph.plan.plan import compile_plan


def captured(function, *inputs):
    """The graph of `function` on copies of `inputs`."""
    with capturing("f", [(t, f"x{i}") for i, t in enumerate(inputs)]) as capture:
        result = function(*inputs)
        for t in result if isinstance(result, tuple) else (result,):
            capture.output(t)
    return capture.graph


def names(graph):
    return [node.operator.name for node in graph.nodes]


X = flow.ones(3)


def test_dead_code_goes_and_what_changes_variables_stays():
    w = flow.zeros(3)

    def function(x):
        _ = (x * 2).exp()
        w.add_(x)
        return x + 1

    graph = PASSES["dead"](captured(function, X))
    assert names(graph) == ["add", "add"]
    assert [n.number for n in graph.nodes] == [0, 1]


def test_dead_code_keeps_in_place_changes_of_what_is_read():
    def function(x):
        y = x * 2
        y.add_(1)
        return y

    assert names(PASSES["dead"](captured(function, X))) == ["mul", "add"]


def test_copies_nobody_can_tell_from_their_source_go():
    assert names(PASSES["copies"](captured(lambda x: (x * 2).clone() + 1, X))) == ["mul", "add"]
    assert names(PASSES["copies"](captured(lambda x: (x * 2).clone().clone(), X))) == ["mul"]
    graph = captured(lambda x: (x * 2).clone().add_(1), X)  # nobody touches the source any more
    after = PASSES["copies"](graph)
    assert names(after) == ["mul", "add"]
    np.testing.assert_array_equal(interpret(after, [X])[0].numpy(), X.numpy() * 2 + 1)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.clone(),
        lambda x: (lambda y: (y, y.clone()))(x * 2),
        lambda x: (lambda y, z: (y.add_(1), z)[1] + 0)(*(lambda y: (y, y.clone()))(x * 2)),
        lambda x: (lambda y: (y.clone().add_(1), y + 0)[0])(x * 2) * 1,
        lambda x: (lambda y: (lambda a, b: (b.add_(1), a + b)[1])(y.clone(), y.clone()))(x * 2),
        lambda x: (x * 2).expand(2, 3).clone(),
    ],
    ids=[
        "of an input",
        "two outputs",
        "source written",
        "source read",
        "two copies",
        "other strides",
    ],
)
def test_copies_that_could_be_told_stay(function):
    before = captured(function, X)
    after = PASSES["copies"](before)
    assert {"cast", "copy", "arrange"} & {*names(after)}, names(after)
    for a, b in zip(interpret(before, [X]), interpret(after, [X]), strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())


def test_a_copy_of_a_variable_that_changes_later_stays():
    w = flow.ones(3)

    def function(x):
        before = w.clone()
        w.add_(x)
        return before + w

    graph = optimize(captured(function, X))
    assert interpret(graph, [X])[0].tolist() == [3, 3, 3]


def test_common_subexpressions_are_computed_once():
    def function(x):
        return x.exp() * 2 + x.exp() * 3, x.exp().sum()

    before = captured(function, X)
    after = PASSES["common"](before)
    assert names(before).count("exp") == 3
    assert names(after).count("exp") == 1


def test_what_was_written_in_between_is_not_common():
    w = flow.ones(3)

    def function(x):
        a = w * 2
        w.add_(x)
        return a + w * 2

    graph = optimize(captured(function, X))
    assert interpret(graph, [X])[0].tolist() == [6, 6, 6]
    assert names(PASSES["common"](captured(function, X))).count("mul") == 2


def test_random_numbers_are_not_common():
    graph = PASSES["common"](captured(lambda x: flow.rand(3) - flow.rand(3), X))
    assert names(graph).count("rand") == 2


def test_different_numbers_are_not_common():
    assert names(PASSES["common"](captured(lambda x: (x + 1) * (x + 2), X))).count("add") == 2
    assert names(PASSES["common"](captured(lambda x: (x + 0.0) * (x + -0.0), X))).count("add") == 2


def test_constants_are_computed_before():
    graph = optimize(captured(lambda x: x * (flow.arange(3) * 2 + 1), X))
    assert names(graph) == ["mul"]
    assert interpret(graph, [X])[0].tolist() == [1, 3, 5]
    assert compile_plan(graph).launch([X])[0].tolist() == [1, 3, 5]


def test_constants_that_are_written_or_shown_are_made_anew():
    def function(x):
        total = flow.zeros(3)
        total.add_(x)
        return total, flow.ones(3)

    plan = compile_plan(optimize(captured(function, X)))
    for _ in range(2):
        total, ones = plan.launch([X])
        assert (total.tolist(), ones.tolist()) == ([1] * 3, [1] * 3)
        ones.add_(5)
        total.add_(5)


def test_live_numbers_are_no_constants():
    box = [1.0]
    with capturing("f", []) as capture:
        w = flow.zeros(2)
        g = flow.ones(2)
        flow.ops.sgd_step_(w, g, False, Leaf(box, (0,)), 0.0)
        capture.output(w)
    plan = compile_plan(optimize(capture.graph))
    assert plan.launch([])[0].tolist() == [-1, -1]
    box[0] = 3.0
    assert plan.launch([])[0].tolist() == [-3, -3]


@pytest.mark.parametrize("left_out", PASSES)
def test_passes_can_be_left_out(left_out):
    graph = captured(lambda x: (x.exp() + x.exp()).clone() * flow.ones(3), X)
    optimized = optimize(graph, [left_out])
    np.testing.assert_array_equal(
        interpret(optimized, [X])[0].numpy(), interpret(graph, [X])[0].numpy()
    )


def test_a_pass_that_is_none():
    with pytest.raises(ArgumentError, match="no pass"):
        optimize(captured(lambda x: x + 1, X), ["fuse everything"])


def test_passes_print_themselves(capsys):
    with flow.config(debug_pass="dead"):
        optimize(captured(lambda x: (x * 3, x + 1)[1], X))
    text = capsys.readouterr().err
    assert "dead: 2 nodes before, 1 after" in text
    assert "LogicalGraph f" in text


def random_program(rng, x, w):
    """A few operations on a pool of tensors, some in place, some reading variables."""
    pool = [x, w, x * 2]
    for _ in range(12):
        a, b = (pool[rng.integers(len(pool))] for _ in range(2))
        kind = rng.integers(7)
        if kind == 0:
            pool.append(a + b)
        elif kind == 1:
            pool.append(a.clone())
        elif kind == 2 and a is not x:
            a.add_(b)
        elif kind == 3:
            pool.append(a * 0.5)
        elif kind == 4:
            pool.append(a[1:].sum() + b)
        elif kind == 5:
            pool.append(flow.full((4,), 0.25) + flow.ones(4))
        else:
            w.mul_(0.5)
    return tuple(pool[k] for k in rng.integers(len(pool), size=3))


@pytest.mark.parametrize("seed", range(150))
@pytest.mark.product(3)
def test_random_programs_mean_the_same_after_all_passes_and_as_plans(seed):
    values = np.random.default_rng(seed).standard_normal((2, 4)).astype(np.float32)
    results = []
    for engine in ("eager", "interpreted", "optimized", "plan"):
        x, w = flow.tensor(values[0]), flow.tensor(values[1])
        outputs = []
        if engine == "eager":
            for _ in range(3):
                outs = random_program(np.random.default_rng(seed), x, w)
                outputs += [t.numpy() for t in outs]
        else:
            graph = captured(lambda x, w=w: random_program(np.random.default_rng(seed), x, w), x)
            graph = optimize(graph) if engine != "interpreted" else graph
            plan = compile_plan(graph)
            for _ in range(3):
                outs = plan.launch([x]) if engine == "plan" else interpret(graph, [x])
                outputs += [t.numpy() for t in outs]
        results.append([*outputs, w.numpy()])
    for other in results[1:]:
        for ours, theirs in zip(other, results[0], strict=True):
            np.testing.assert_array_equal(ours, theirs)
