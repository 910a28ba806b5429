"""Checkpointing and recomputation in graphs: the same bits, less memory, nothing run that must not
run twice.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flowvm as flow
from flowvm.errors import ArgumentError
from flowvm.graph.capture.capture import capturing
from flowvm.graph.logical.interpret import interpret
from flowvm.graph.passes.checkpointing import checkpoint_regions, pair_with_gradients, recompute
from flowvm.graph.passes.order import peak_of
from flowvm.graph.passes.passes import PASSES, optimize
from flowvm.utils.checkpoint import checkpoint
from tests.graph.helpers import INEXACT, exact

nn, F = flow.nn, flow.nn.functional


class Block(nn.Module):
    """A residual block with all that has state: batch norm's statistics, dropout's draws."""

    def __init__(self, d):
        super().__init__()
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)
        self.norm, self.drop = nn.BatchNorm1d(d), nn.Dropout(0.3)

    def forward(self, x):
        return x + self.drop(self.down(F.gelu(self.up(self.norm(x)))))


class Model(nn.Module):
    def __init__(self, d=16, depth=3, eager=False):
        super().__init__()
        self.blocks = nn.ModuleList(Block(d) for _ in range(depth))
        self.head = nn.Linear(d, 5)
        self.eager = eager

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x) if self.eager else block(x)
        return self.head(x)


class Train(nn.Graph):
    def __init__(self, model, optimizer):
        super().__init__()
        self.model = model
        self.add_optimizer(optimizer)

    def build(self, x, y):
        loss = F.cross_entropy(self.model(x), y)
        loss.backward()
        return loss


def trained(configure=lambda graph: None, *, eager=False, captured=True, steps=3):
    """Losses, the model's state afterwards, and the graph."""
    flow.manual_seed(3)
    model = Model(eager=eager)
    optimizer = flow.optim.AdamW(model.parameters(), lr=0.01)
    graph = exact(Train(model, optimizer))
    configure(graph)
    losses = []
    for _ in range(steps):
        x, y = flow.randn(64, 16), flow.randint(0, 5, (64,))
        if captured:
            losses.append(graph(x, y).tolist())
        else:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.tolist())
    return losses, {k: v.numpy() for k, v in model.state_dict().items()}, graph


def assert_same(ours, theirs):
    assert ours[0] == theirs[0]
    for name, value in theirs[1].items():
        np.testing.assert_array_equal(ours[1][name], value, err_msg=name)


def by_module(graph):
    graph.config.checkpoint(*graph.model.blocks)


def by_path(graph):
    graph.config.checkpoint(*(f"model.blocks.{k}" for k in range(3)))


def all_of_it(graph):
    graph.config.checkpoint(graph.model)


@pytest.mark.parametrize("configure", [by_module, by_path, all_of_it])
def test_checkpointed_modules_give_the_same_bits(configure):
    """Dropout draws the mask it drew, and batch norm counts a batch once."""
    plain, checkpointed = trained(captured=False), trained(configure)
    assert_same(checkpointed, plain)
    assert checkpointed[1]["blocks.0.norm.num_batches_tracked"] == 3
    nodes = checkpointed[2].graphs[0].nodes
    again = [n for n in nodes if n.again]
    assert again
    assert {n.phase for n in again} == {"backward"}
    assert not any(n.operator.signature.writes or n.into for n in again)


def test_checkpoints_lower_the_peak():
    peaks = []
    for configure in (lambda graph: None, by_module):
        graph = trained(configure, steps=2)[2].graphs[0]
        peaks.append(peak_of(graph))
    assert peaks[1] < 0.7 * peaks[0]


def test_each_call_is_computed_again_when_its_gradients_need_it():
    graph = trained(by_module, steps=2)[2].graphs[0]
    order = [n.again for n in graph.nodes if n.again]
    changes = [a for a, b in zip(order, [0, *order], strict=False) if a != b]
    assert len(changes) == 3  # the last block first, none of them mixed with another
    assert changes == sorted(changes, reverse=True)


def test_eager_checkpoints_in_build_are_captured_as_what_they_do():
    """Checkpoints act as in eager code: batch norm counts twice, dropout repeats its numbers."""
    eager = trained(eager=True, captured=False)
    captured = trained(eager=True)
    assert_same(captured, eager)
    assert captured[1]["blocks.0.norm.num_batches_tracked"] == 6
    plain = trained(captured=False)
    assert eager[0][0] == plain[0][0]
    nodes = captured[2].graphs[0].nodes
    assert sum(n.again > 0 for n in nodes) >= 3 * 4


def test_common_subexpressions_do_not_undo_a_checkpoint():
    x = flow.randn(8, 8)

    def function(x):
        w = flow.ones(8, 8).requires_grad_()
        y = checkpoint(lambda t: (t @ w).tanh().tanh(), x)
        y.sum().backward()
        return w.grad

    with capturing("f", [(x, "x")]) as capture:
        capture.output(function(x))
    graph = capture.graph
    common = PASSES["common"](graph)
    products = [n for n in common.nodes if n.operator.name == "matmul"]
    assert [bool(n.again) for n in products[:2]] == [False, True]
    optimized = optimize(graph, [p for p in INEXACT if p in PASSES])
    np.testing.assert_array_equal(
        interpret(optimized, [x])[0].numpy(), interpret(graph, [x])[0].numpy()
    )


# --- the pass ---------------------------------------------------------------------------------


def captured_step(function, x, marked=True):
    """Capture `function` of `x` and a weight, forward and backward, all of it marked."""
    w = flow.ones(*x.shape[-1:]).requires_grad_()
    with capturing("f", [(x, "x")]) as capture:
        if marked:
            capture.checkpoints = ("all",)
            with capture.forgetting(None, "all"):
                y = function(x, w)
        else:
            y = function(x, w)
        y.sum().backward()
        capture.output(w.grad)
    w.grad = None
    return capture.graph


def clones(graph):
    return [n.operator.name for n in graph.nodes if n.again]


def same_values(graph, other, x):
    values = [[t.numpy() for t in interpret(g, [x])] for g in (graph, other)]
    for a, b in zip(*values, strict=True):
        np.testing.assert_array_equal(a, b)


def test_what_backward_does_not_read_is_not_computed_again():
    graph = captured_step(lambda x, w: (x * w).exp() + 1, flow.randn(4, 8))
    result = checkpoint_regions(graph)
    result.check()
    assert clones(result) == ["mul", "exp"]
    same_values(graph, result, flow.randn(4, 8))


def test_a_graph_without_marks_is_left_alone():
    graph = captured_step(lambda x, w: (x * w).exp() + 1, flow.randn(4, 8), marked=False)
    assert checkpoint_regions(graph) is graph


def test_in_place_changes_are_not_made_again():
    """A buffer with two writers is kept, and the values made of it are computed again."""

    def function(x, w):
        y = x * w
        y = y.clone()
        y.mul_(2.0)
        return y.exp().tanh()

    graph = captured_step(function, flow.randn(4, 8))
    result = checkpoint_regions(graph)
    result.check()
    assert clones(result) == ["exp"]  # tanh's result is what the call gives
    same_values(graph, result, flow.randn(4, 8))


def test_what_was_changed_since_is_kept():
    """The table that the sum reads is another one in backward: the sum must stay."""
    table = flow.zeros(8)

    def function(x, w):
        y = (x * w + table).exp().sin().sin()
        with flow.no_grad():
            table.add_(1.0)
        return y

    graph = captured_step(function, flow.randn(4, 8))
    result = checkpoint_regions(graph)
    result.check()
    assert clones(result) == ["exp", "sin"]
    x = flow.randn(4, 8)
    first = interpret(graph, [x])[0].numpy()
    table.sub_(1.0)
    np.testing.assert_array_equal(interpret(result, [x])[0].numpy(), first)


def test_results_that_others_read_are_kept():
    """The result of a marked call exists in forward; backward does not compute it again."""
    x = flow.randn(4, 8)
    w = flow.ones(8).requires_grad_()
    with capturing("f", [(x, "x")]) as capture:
        capture.checkpoints = ("all",)
        with capture.forgetting(None, "all"):
            y = (x * w).sin().sin().exp()
        (y * y).sum().backward()
        capture.output(w.grad)
    result = checkpoint_regions(capture.graph)
    assert clones(result) == ["mul", "sin"]
    same_values(capture.graph, result, x)


def test_calls_inside_calls_are_one():
    x = flow.randn(4, 8)
    with capturing("f", [(x, "x")]) as capture:
        capture.checkpoints = ("outer", "inner")
        with capture.forgetting(None, "outer"):
            x + 1
            with capture.forgetting(None, "inner"):
                x + 2
            x + 3
        with capture.forgetting(None, "inner"):
            x + 4
        x + 5
    assert [n.region for n in capture.graph.nodes] == [1, 1, 1, 2, 0]


steps = st.lists(
    st.tuples(st.integers(0, 7), st.integers(0, 9), st.integers(0, 9), st.booleans()), max_size=25
)


@settings(max_examples=40)
@given(steps, st.sampled_from(["speed", "memory"]))
def test_random_programs_with_random_marks(program, order):
    """Views, in-place changes, a variable that changes, dropout; forward and backward."""
    x, w = flow.randn(6, 8), flow.ones(6, 8).requires_grad_()
    table = flow.zeros(6, 8)
    with capturing("f", [(x, "x")]) as capture:
        capture.checkpoints = ("part",)
        values, region = [x * w], ExitStack()
        for kind, a, b, marked in program:
            left, right = values[a % len(values)], values[b % len(values)]
            if not marked:
                region.close()
            elif not capture.region:
                region.enter_context(capture.forgetting(None, "part"))
            if kind == 0:
                values.append(left * right)
            elif kind == 1:
                values.append((left.sin() + table).sin())
            elif kind == 2:
                values.append(F.dropout(left, 0.5) + right)
            elif kind == 3:
                values.append((left @ w.t()) @ right)
            elif kind == 4:
                values.append((left * 2).mul_(0.5).sin())
            elif kind == 5:
                with flow.no_grad():
                    table.add_(left.detach())
            elif kind == 6:
                values.append(F.softmax(left.t(), -1).t() + 1)
            elif len(values) > 1:
                del values[a % (len(values) - 1) + 1]
        region.close()
        sum((v * v).sum() for v in values).backward()
        capture.output(w.grad)
        capture.output(values[-1])
    w.grad = None
    graph = replace(capture.graph, order=order)
    program = recompute(checkpoint_regions(graph))
    program.check()
    results = []
    others = set(PASSES) - {"common", "dead", "checkpointing", "recompute", "order"}
    for g in (graph, program, optimize(graph, sorted(others))):
        results.append([t.numpy() for t in interpret(g, [x])])
        with flow.no_grad():
            table.zero_()
    for values in results[1:]:
        for a, b in zip(results[0], values, strict=True):
            np.testing.assert_array_equal(a, b)


# --- recomputation ----------------------------------------------------------------------------


def attention(x, w):
    q = x * w
    return F.softmax(q @ q.transpose(-2, -1), -1).exp().tanh()


def test_recomputation_lowers_the_peak_and_changes_no_bit():
    x = flow.randn(64, 32)
    graph = optimize(captured_step(attention, x, marked=False), ("recompute", "order"))
    graph = replace(graph, order="memory")
    result = recompute(graph)
    result.check()
    assert clones(result)
    assert peak_of(result) < peak_of(graph)
    same_values(graph, result, x)


def test_recomputation_is_for_order_memory():
    graph = captured_step(attention, flow.randn(64, 32), marked=False)
    assert recompute(graph) is graph


def test_large_products_are_not_computed_again():
    def function(x, w):
        for _ in range(3):
            x = (x * w) @ x
        return x.exp()

    graph = replace(captured_step(function, flow.randn(96, 96), marked=False), order="memory")
    assert "matmul" not in clones(recompute(graph))


def test_scores_of_attention_are_computed_again_as_one_program_on_rows():
    """Mask and softmax, which the passes have fused, are as cheap as each alone."""
    later = flow.triu(flow.ones(512, 512), 1) > 0

    def function(x, w):
        q = x * w
        for _ in range(2):
            q = F.softmax((q @ q.t()).masked_fill(later, -1e9), -1) @ q
        return q

    x = flow.randn(512, 32)
    graph = optimize(captured_step(function, x, marked=False), ("recompute", "order"))
    assert sum("masked_fill,softmax" in n.operator.name for n in graph.nodes) == 2
    result = recompute(replace(graph, order="memory"))
    assert any("masked_fill,softmax" in name for name in clones(result))
    assert peak_of(result) < peak_of(graph)
    same_values(graph, result, x)


def test_what_spares_too_little_for_its_price_is_kept():
    x = flow.randn(64, 32)
    graph = optimize(captured_step(attention, x, marked=False), ("recompute", "order"))
    graph = replace(graph, order="memory")
    assert clones(recompute(graph))
    assert not clones(recompute(replace(graph, spared=1000)))


def test_what_spares_nothing_is_kept():
    """Backward begins with the last value: whether it stays until then is all the same."""

    def function(x, w):
        y = F.softmax(x * w, -1)
        return F.softmax(y @ y.t(), -1)

    graph = captured_step(function, flow.randn(64, 64), marked=False)
    names = clones(recompute(replace(graph, order="memory")))
    assert names.count("softmax") <= 1


# --- pairs ------------------------------------------------------------------------------------


def layers(x, w):
    h = x * w
    return F.gelu(F.silu(h @ x.t()) @ h)


def paired(function, x):
    """A captured step before and after the pass."""
    graph = replace(captured_step(function, x, marked=False), order="memory")
    result = pair_with_gradients(graph)
    result.check()
    return graph, result


def test_an_activation_is_computed_again_with_its_gradient():
    x = flow.randn(64, 64)
    graph, result = paired(layers, x)
    assert clones(result) == ["fused[silu,silu_backward]"]  # GELU's is what the step gives
    assert peak_of(result) < peak_of(graph)
    for a, b in zip(interpret(graph, [x]), interpret(result, [x]), strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-5, atol=1e-5)


def test_pairs_are_for_order_memory():
    graph = captured_step(layers, flow.randn(64, 64), marked=False)
    assert pair_with_gradients(graph) is graph


def test_a_gradient_that_comes_too_late_is_no_pair():
    """The gradient's argument is made of what reads the value first."""

    def function(x, w):
        y = F.silu(x * w)
        return (y * y).exp()  # the gradient of the product reads y, and gives what silu's reads

    graph, result = paired(function, flow.randn(64, 64))
    assert clones(result) == []
    assert [n.operator.name for n in graph.nodes] == [n.operator.name for n in result.nodes]


# --- what is refused --------------------------------------------------------------------------


def test_a_mark_that_nothing_answers_to_is_an_error():
    for mark in ("model.blocks", "model.bloks.0", nn.Linear(2, 2)):
        with pytest.raises(ArgumentError, match=r"config\.checkpoint"):
            trained(lambda graph, mark=mark: graph.config.checkpoint(mark), steps=2)
    with pytest.raises(ArgumentError, match=r"model\.blocks\.0"):
        trained(lambda graph: graph.config.checkpoint("model.blocks"), steps=2)


def test_an_eval_graph_has_nothing_to_forget():
    model = Model().eval()
    graph = flow.compile(lambda x: model(x))
    graph.config.checkpoint(*model.blocks)
    x = flow.randn(4, 16)
    with flow.no_grad():
        np.testing.assert_array_equal(graph(x).numpy(), exact_eval(model, x))
    assert not any(n.again for n in graph.graphs[0].nodes)


def exact_eval(model, x):
    graph = flow.compile(lambda x: model(x))
    return graph(x).numpy()


# --- with gradient accumulation ---------------------------------------------------------------


@pytest.mark.parametrize("order", ["speed", "memory"])
def test_micro_batches_of_a_checkpointed_model(order):
    """Repeated nodes stay together, and clones are repeated with their originals."""

    def accumulating(graph):
        graph.config.set_gradient_accumulation_steps(4)

    def checkpointed(graph):
        accumulating(graph)
        graph.config.order = order
        by_module(graph)

    plain, ours = trained(accumulating), trained(checkpointed)
    assert_same(ours, plain)
    (graph,) = ours[2].graphs
    assert {n.repeat for n in graph.nodes if n.again} == {4}
    repeats = [n.repeat for n in graph.nodes]
    first, last = repeats.index(4), len(repeats) - repeats[::-1].index(4)
    assert set(repeats[first:last]) == {4}
    assert peak_of(graph) < peak_of(plain[2].graphs[0])
