"""The pass `updates`: which nodes become one, that each keeps eager code's bits, and its kernel."""

from __future__ import annotations

import ctypes
import functools
import json

import numpy as np
import pytest

import flowvm as flow
from flowvm import nn
from flowvm.eager.live import Live
from flowvm.errors import FlowError
from flowvm.graph.capture.capture import capturing
from flowvm.graph.logical.interpret import interpret
from flowvm.graph.logical.plain import plain, read_operator
from flowvm.graph.passes import update_kernels
from flowvm.graph.passes.passes import PASSES
from flowvm.graph.passes.updates import Merged, merge_updates
from flowvm.graph.plan.plan import compile_plan
from flowvm.launch import Launch
from flowvm.nn import functional
from flowvm.ops.declare.registry import op
from flowvm.optim.optimizer import Optimizer

NEEDED = [name for name in PASSES if name not in ("updates", "dead", "copies")]


def names(graph):
    return [node.operator.name for node in graph.nodes]


def captured(function, *inputs):
    with capturing("f", [(t, f"x{i}") for i, t in enumerate(inputs)]) as capture:
        for t in function(*inputs):
            capture.output(t)
    return capture.graph


def model_of(seed=3):
    flow.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.LayerNorm(7), nn.Linear(7, 3))


def trained(make, steps, by_graph, wrap=lambda model: None):
    """Parameters and states after some steps, and the graph if there was one."""
    model = model_of()
    optimizer = make(model)
    rng = np.random.default_rng(0)
    batches = [flow.tensor(rng.standard_normal((4, 5)).astype(np.float32)) for _ in range(steps)]

    class Train(nn.Graph):
        def __init__(self):
            super().__init__()
            self.model = model
            self.add_optimizer(optimizer)
            for name in NEEDED:
                self.config.disable(name)

        def build(self, x):
            loss = (self.model(x) ** 2).mean()
            loss.backward()
            wrap(self.model)
            return loss

    graph = Train()
    for x in batches:
        if by_graph:
            graph(x)
            continue
        optimizer.zero_grad()
        (model(x) ** 2).mean().backward()
        wrap(model)
        optimizer.step()
    results = [p.numpy() for p in model.parameters()]
    for entry in optimizer.state.values():
        results += [
            v.numpy() if isinstance(v, flow.Tensor) else np.array(v) for v in entry.values()
        ]
    return results, graph


class Lion(Optimizer):
    """A user's optimizer, written in ops on tensors: sign of an interpolated momentum."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    def _step_group(self, group):
        for p in group["params"]:
            state = self.state.setdefault(p, {})
            m = state.setdefault("m", flow.zeros_like(p))
            m.mul_(0.9)
            m.add_(p.grad * 0.1)
            p.sub_(m.sign() * group["lr"])


OPTIMIZERS = {
    "sgd": lambda p: flow.optim.SGD(p, lr=0.1),
    "sgd decay": lambda p: flow.optim.SGD(p, lr=0.1, weight_decay=0.01, maximize=True),
    "momentum": lambda p: flow.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.2),
    "nesterov": lambda p: flow.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda p: flow.optim.Adam(p, lr=0.01, weight_decay=0.1),
    "adamw": lambda p: flow.optim.AdamW(p, lr=0.01),
    "amsgrad": lambda p: flow.optim.AdamW(p, lr=0.01, amsgrad=True),
    "a user's": lambda p: Lion(p, lr=0.01),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_of_every_optimizer_have_the_bits_of_eager_ones(name):
    def make(model):
        return OPTIMIZERS[name](model.parameters())

    eager, _ = trained(make, 4, by_graph=False)
    replayed, graph = trained(make, 4, by_graph=True)
    for a, b in zip(eager, replayed, strict=True):
        assert a.tobytes() == b.tobytes()
    merged = [n for n in graph.graphs[-1].nodes if isinstance(n.operator, Merged)]
    assert {n.operator.count for n in merged if n.phase == "optimizer"} == {6}
    assert len(merged) == (6 if name == "a user's" else 1)


def test_groups_with_other_numbers_are_one_update_and_schedules_reach_it():
    def make(model):
        first, *others = model.parameters()
        groups = [{"params": [first], "lr": 0.5}, {"params": others, "weight_decay": 0.2}]
        return flow.optim.SGD(groups, lr=0.1, momentum=0.5)

    weights, graph = trained(make, 3, by_graph=True)
    expected, _ = trained(make, 3, by_graph=False)
    for a, b in zip(weights, expected, strict=True):
        np.testing.assert_array_equal(a, b)
    (node,) = [n for n in graph.graphs[-1].nodes if n.phase == "optimizer"]
    lives = [s for s in node.scalars if isinstance(s, Live)]
    numbers = [f"{n}[{k}]" for k in range(2) for n in flow.optim.SGD.live_options]
    assert [str(live) for live in lives] == numbers  # of each group, however many parameters
    (optimizer, _) = graph._optimizers[0]
    before = [p.numpy() for p in graph.model.parameters()]
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    graph(flow.ones(4, 5))
    for p, b in zip(graph.model.parameters(), before, strict=True):
        np.testing.assert_array_equal(p.numpy(), b)


@pytest.mark.parametrize("norm", [2.0, 1.5, float("inf")])
def test_gradients_that_are_clipped_are_scaled_by_one_node(norm):
    def clip(model):
        nn.utils.clip_grad_norm_(model.parameters(), 0.05, norm)

    make = functools.partial(lambda model: flow.optim.SGD(model.parameters(), lr=0.1))
    eager, _ = trained(make, 3, False, clip)
    replayed, graph = trained(make, 3, True, clip)
    for a, b in zip(eager, replayed, strict=True):
        np.testing.assert_array_equal(a, b)
    assert [n.operator.count for n in graph.graphs[-1].nodes if n.operator.name == "mul_each"] == [
        6
    ]


def test_what_shares_memory_or_lies_behind_a_reader_stays_apart():
    w, v = flow.zeros(4), flow.ones(4)

    def function(x):
        flow.ops.sgd_step_(w, x, False, 0.5, 0.0)
        flow.ops.sgd_step_(w, x, False, 0.25, 0.0)  # the same parameter again
        y = v * 1
        flow.ops.sgd_step_(v, y, False, 0.5, 0.0)  # a gradient that is made in between
        return w * 1, v * 1

    x = flow.arange(4.0)
    graph = captured(function, x)
    after = merge_updates(graph)
    after.check()
    assert names(after) == names(graph)
    outs = compile_plan(after).launch([x])
    np.testing.assert_array_equal(outs[0].numpy(), -0.75 * np.arange(4))
    np.testing.assert_array_equal(outs[1].numpy(), [0.5] * 4)


def test_a_variable_read_in_between_keeps_its_old_value():
    w, v = flow.zeros(3), flow.zeros(3)

    def function(x):
        flow.ops.sgd_step_(w, x, False, 1.0, 0.0)
        result = v * 1
        flow.ops.sgd_step_(v, x, False, 1.0, 0.0)
        return result, v * 1

    x = flow.ones(3)
    after = merge_updates(captured(function, x))
    assert names(after).count("sgd_step_") == 2
    values, last = compile_plan(after).launch([x])
    assert (values.tolist(), last.tolist()) == ([0] * 3, [-1] * 3)


def test_large_tensors_keep_an_update_of_their_own():
    many = [flow.zeros(300, 1000), flow.zeros(10), flow.zeros(20)]

    def function(x):
        for w, g in [(w, x + flow.zeros_like(w)) for w in many]:
            flow.ops.sgd_step_(w, g, False, 1.0, 0.0)
        return (x + 1,)

    after = merge_updates(captured(function, flow.tensor(1.0)))
    assert sorted(n for n in names(after) if "sgd" in n) == ["sgd_step_", "sgd_step_each"]
    compile_plan(after).launch([flow.tensor(2.0)])
    assert [w.numpy().ravel()[0] for w in many] == [-2, -2, -2]


def test_repetitions_and_streams_are_not_mixed():
    ws = [flow.zeros(3) for _ in range(4)]
    graph = captured(
        lambda x: [flow.ops.sgd_step_(w, x, False, 1.0, 0.0) for w in ws] and (x + 1,), flow.ones(3)
    )
    graph.nodes[1].stream = 2
    graph.nodes[2].repeat = 3
    assert [n.operator.name for n in merge_updates(graph).nodes][:4] == ["sgd_step_"] * 4


def test_interpreting_a_merged_graph_runs_each_member():
    ws = [flow.zeros(2), flow.zeros(3), flow.zeros(1)]

    def function(x):
        for w, added in [(w, x * (k + 1)) for k, w in enumerate(ws)]:
            w.add_(added)
            flow.ops.sgd_step_(w, w, False, 0.5, 0.0)
        return (x + 1,)

    x = flow.ones(1)
    after = merge_updates(captured(function, x))
    assert "sgd_step_each" in names(after)
    assert "add_each" in names(after)
    interpret(after, [x])
    assert [w.tolist() for w in ws] == [[0.5] * 2, [1] * 3, [1.5]]
    compile_plan(after).launch([x])
    assert [w.tolist() for w in ws] == [[0.75] * 2, [1.5] * 3, [2.25]]


@pytest.mark.parametrize("seed", range(20))
def test_random_updates_of_many_sizes(seed):
    rng = np.random.default_rng(seed)
    sizes = [int(n) for n in rng.choice([1, 3, 100, 5000, 16384, 16385, 40000, 70001], size=12)]
    dtypes = [rng.choice(["float32", "float64"]) for _ in sizes]
    starts = [rng.standard_normal(n).astype(d) for n, d in zip(sizes, dtypes, strict=True)]
    grads = [
        flow.tensor(rng.standard_normal(n).astype(d)) for n, d in zip(sizes, dtypes, strict=True)
    ]
    results = []
    for by_graph in (False, True):
        ws = [flow.tensor(s) for s in starts]
        states = [(flow.zeros_like(w), flow.zeros_like(w)) for w in ws]

        def step(x, ws=ws, states=states):
            for w, g, (m, v) in zip(ws, grads, states, strict=True):
                flow.ops.adam_step_(w, g, m, v, True, False, True, 0.1, 0.9, 0.99, 1e-8, 0.01, 3)
            return (x + 1,)

        if by_graph:
            graph = merge_updates(captured(step, flow.ones(1)))
            assert len(graph.nodes) == 2, names(graph)
            compile_plan(graph).launch([flow.ones(1)])
        else:
            step(flow.ones(1))
        results.append([w.numpy() for w in ws])
    for a, b in zip(*results, strict=True):
        np.testing.assert_array_equal(a, b, err_msg=f"seed {seed}")


def test_workers_do_not_change_a_bit():
    results = []
    before = flow.get_num_threads()
    try:
        for threads in (1, 2, 3):
            flow.set_num_threads(threads)
            ws = [flow.tensor(np.arange(n, dtype=np.float32)) for n in (100_000, 3, 50_000, 7)]

            def step(x, ws=ws):
                for w in ws:
                    flow.ops.sgd_step_(w, flow.cos(w.detach() * 1), False, 0.1, 0.01)
                return (x + 1,)

            plan = compile_plan(merge_updates(captured(step, flow.ones(1))))
            for _ in range(3):
                plan.launch([flow.ones(1)])
            results.append([w.numpy() for w in ws])
    finally:
        flow.set_num_threads(before)
    for other in results[1:]:
        for a, b in zip(other, results[0], strict=True):
            np.testing.assert_array_equal(a, b)


def _fails(w, index, lo, hi, details):
    for i in range(lo, hi):
        if index[i] < 0:
            details[0] = index[i]
            return 1
        w[i] += index[i]
    return 0


@op("w!, index -> ")
def _add_checked_(w, index):
    return Launch((), _fails, (), (), w.numel, 4)


def test_a_member_that_fails_reports_what_it_says_itself():
    ws = [flow.zeros(9, dtype=flow.int64) for _ in range(3)]
    good, bad = flow.ones(9, dtype=flow.int64), flow.tensor([1, 1, 1, 1, 1, 1, -7, 1, 1])

    def step(x):
        for w, index in zip(ws, (good, bad, good), strict=True):
            _add_checked_(w, index)
        return (x + 1,)

    errors = []
    for make in (merge_updates, lambda graph: graph):
        (out,) = compile_plan(make(captured(step, flow.ones(1)))).launch([flow.ones(1)])
        with pytest.raises(FlowError) as caught:
            out.numpy()
        errors.append(caught.value)
        ws[:] = [flow.zeros(9, dtype=flow.int64) for _ in range(3)]
    assert type(errors[0]) is type(errors[1])
    assert "-7" in str(errors[0])
    assert str(errors[0]).split(":", 1)[-1] == str(errors[1]).split(":", 1)[-1]


def test_units_are_of_equal_work():
    units = update_kernels._units([(1000, 100), (5, 100), (60, 100), (50, 100), (250, 100)])
    assert sum(hi - lo for unit in units for _, lo, hi in unit) == 1365
    assert all(sum(hi - lo for _, lo, hi in unit) <= 100 for unit in units)
    assert len(units) == 15


def test_the_kernel_as_plain_python():
    """Run `run_pieces` on words written here, with a kernel that notes its arguments."""
    calls = []

    def kernel(args, layout, lo, hi, arena):
        words = (ctypes.c_int64 * 10).from_address(args)
        calls.append((words[8], words[9], ctypes.c_int64.from_address(layout).value, lo, hi, arena))
        return 7 if hi == 99 else 0

    callback = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_uint64] * 2, *[ctypes.c_int64] * 3)(
        kernel
    )
    address = ctypes.cast(callback, ctypes.c_void_p).value
    # units begin at words 3, 9, 12; pieces of members at words 12 and 17
    layout = np.array(
        [3, 9, 12, 12, 0, 4, 17, 0, 9, 12, 4, 99, address, 2, 0, 2, 41, address, 2, 1, 2, 42]
    )
    args = np.arange(100, 120)
    args[8:11] = [1, 2, 3]
    inputs = (args.ctypes.data, layout.ctypes.data)
    assert update_kernels.run_pieces(*inputs, 0, 1, 5) == 0
    assert calls == [(1, 3, 41, 0, 4, 5), (2, 3, 42, 0, 9, 5)]
    assert update_kernels.run_pieces(*inputs, 1, 2, 5) == 7
    assert args[:6].tolist() == [0] * 6


def test_the_operator_can_be_made_again():
    def function(x):
        for k, w in enumerate(many):
            w.add_(x * (k + 1))
            flow.ops.sgd_step_(w, x, False, 1.0, 0.0)
        return (x + 1,)

    many = [flow.zeros(3) for _ in range(3)]
    graph = captured(function, flow.ones(3))
    for node in graph.nodes:
        node.phase = "optimizer"
    operators = [n.operator for n in merge_updates(graph).nodes if isinstance(n.operator, Merged)]
    assert sorted(o.name for o in operators) == ["add_each", "mul_each", "sgd_step_each"]
    for operator in operators:
        where, arguments = operator.origin.recipe
        saved = plain(arguments, "an operator")
        assert read_operator(["recipe", where, json.loads(json.dumps(saved))]) is operator


def test_members_are_named_in_print():
    model, x = model_of(), flow.ones(2, 5)
    optimizer = flow.optim.SGD(model.parameters(), lr=0.1)

    class Train(nn.Graph):
        def __init__(self):
            super().__init__()
            self.model = model
            self.add_optimizer(optimizer)

        def build(self, x):
            loss = functional.mse_loss(self.model(x), flow.zeros(2, 3))
            loss.backward()
            return loss

    graph = Train()
    graph(x), graph(x)
    text = str(graph.graphs[-1])
    assert "and 4 more" in text
    assert max(map(len, text.split("\n"))) < 600
    assert "sgd_step_each" in graph.plans[-1].dump()
