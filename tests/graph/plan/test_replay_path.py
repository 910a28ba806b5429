"""The one function that is a call of a graph: each thing it looks at, changed under its eyes."""

from __future__ import annotations

import gc
import math
from collections import namedtuple

import numpy as np
import pytest

import flowvm as flow
from flowvm.graph.plan import launch_code
from flowvm.graph.plan.launch_code import MOST_BLOCKS
from flowvm.nn.graph.compiled import MISS, Segmented
from flowvm.vm.engine.engine import engine
from tests.vm.live import script

nn, F = flow.nn, flow.nn.functional
pytestmark = pytest.mark.filterwarnings("ignore::flowvm.errors.RecaptureWarning")
Pair = namedtuple("Pair", "a b")
SCALE = 2.0


def warm(graph, *args, **kwargs):
    """The graph with its replay function for calls like this one."""
    for _ in range(3):
        graph(*args, **kwargs)
    assert graph._replay is not None
    assert graph._replay(graph, args, kwargs) is not MISS
    return graph


X = flow.tensor([[1.0, -2.0], [3.0, 4.0]])


def described(*args, **kwargs):
    """Return a number that depends on everything about the arguments."""
    total = flow.zeros(())

    def visit(value, weight):
        nonlocal total
        if isinstance(value, flow.Tensor):
            total = total + weight * value.float().sum() + value.ndim
        elif isinstance(value, (list, tuple)):
            total = total + (10 if isinstance(value, list) else 20) * weight
            for k, item in enumerate(value):
                visit(item, weight + k + 1)
        elif isinstance(value, dict):
            for k, (key, item) in enumerate(value.items()):
                visit(item, weight + k + len(key))
        elif isinstance(value, float):
            total = total + (math.copysign(3, value) if value == value else 7) * weight + weight
        else:
            total = total + (100 if value is True else hash(value) % 97) * weight

    visit(args, 1)
    visit(dict(sorted(kwargs.items())), 50)
    return total


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (((X,), {}), ((X, X), {})),
        (((X, X), {}), ((X,), {})),
        (((X,), {}), ((X,), {"k": X})),
        (((X,), {"k": X}), ((X,), {})),
        (((X,), {"k": X}), ((X,), {"longer": X})),
        (((X,), {"k": X}), ((X, X), {})),
        ((([X, X],), {}), (((X, X),), {})),
        ((([X, X],), {}), (([X, X, X],), {})),
        ((([X, X],), {}), ((X,), {})),
        (((X,), {}), (([X],), {})),
        (((Pair(X, X),), {}), (((X, X),), {})),
        (((Pair(X, X),), {}), (([X, X],), {})),
        ((({"a": X, "bcd": X * 2},), {}), (({"bcd": X * 2, "a": X},), {})),
        ((({"a": X},), {}), (({"bcd": X},), {})),
        (((X, 2), {}), ((X, 3), {})),
        (((X, 1), {}), ((X, True), {})),
        (((X, 0.0), {}), ((X, -0.0), {})),
        (((X, 1.0), {}), ((X, math.nan), {})),
        (((X, None), {}), ((X, X), {})),
        (((X, "a"), {}), ((X, "b"), {})),
        (((X,), {}), ((X[0],), {})),
        (((X,), {}), ((X.to(flow.int64),), {})),
        (((X,), {}), ((X.T,), {})),
    ],
)
def test_arguments_of_another_kind(before, after):
    graph = flow.compile(described)
    warm(graph, *before[0], **before[1])
    for args, kwargs in (after, before, after, after):
        assert graph(*args, **kwargs).item() == described(*args, **kwargs).item()
    assert len(graph.plans) == 2
    graph(*before[0], **before[1])
    assert graph._replay(graph, *after) is MISS


def test_nan_is_the_same_number_again():
    graph = flow.compile(lambda x, number: x * number)
    warm(graph, X, math.nan)
    assert len(graph.plans) == 1


def test_results_are_the_trees_that_build_returns():
    case = (lambda x: Pair(x + 1, [{"k": x * 2, 3: (None, "text", -0.0)}, x]), X)
    graph = warm(flow.compile(case[0]), X)
    out = graph(X)
    assert type(out) is Pair
    assert out.a.tolist() == (X + 1).tolist()
    assert list(out.b[0]) == ["k", 3]
    assert out.b[0]["k"].tolist() == (X * 2).tolist()
    assert out.b[0][3][:2] == (None, "text")
    assert math.copysign(1, out.b[0][3][2]) == -1
    assert out.b[1].tolist() == X.tolist()


def test_what_is_no_tensor_is_refused_as_at_the_first_call():
    graph = warm(flow.compile(lambda x: x + 1), X)

    class Alike:
        _meta, _node, _ref = X._meta, None, X._ref

    replay = graph._replay
    for wrong in (np.zeros((2, 2), np.float32), object(), Alike()):
        assert replay(graph, (wrong,), {}) is MISS


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(2, 2)
        self.drop = nn.Dropout(0.0)
        self.gain = 1.0
        self.register_buffer("shift", flow.zeros(2))

    def forward(self, x):
        return self.drop(self.fc(x)) * self.gain + self.shift


class Train(nn.Graph):
    def __init__(self, model, optimizer):
        super().__init__()
        self.model, self.factor = model, 1.0
        self.add_optimizer(optimizer)

    def build(self, x):
        loss = (self.model(x) * self.factor * SCALE).pow(2).mean()
        loss.backward()
        return loss


def pair(make):
    """Two equal models with their optimizers: one is trained eagerly, one by a graph."""
    results = []
    for _ in range(2):
        flow.manual_seed(3)
        model = Net()
        results.append((model, make(model.parameters())))
    return results


def eager_step(model, optimizer, factor=1.0):
    optimizer.zero_grad()
    loss = (model(X) * factor * SCALE).pow(2).mean()
    loss.backward()
    optimizer.step()
    return loss.item()


def set_global(value):
    global SCALE
    SCALE = value


def swap_state(model, optimizer):
    optimizer.load_state_dict(optimizer.state_dict())


def swap_one(model, optimizer):
    entry = optimizer.state[model.fc.weight]
    entry["momentum_buffer"] = entry["momentum_buffer"].clone() * 3


def hook(model, optimizer):
    model.fc.register_forward_hook(lambda module, args, out: out * 2)


def new_weight(model, optimizer):
    group = optimizer.param_groups[0]["params"]
    weight = nn.Parameter(model.fc.weight.detach() * 2)
    optimizer.state[weight] = optimizer.state.pop(model.fc.weight)
    group[[p is model.fc.weight for p in group].index(True)] = weight
    model.fc.weight = weight


CHANGES = {
    "setting": lambda m, o: setattr(m, "gain", 3.0),
    "p of a child": lambda m, o: setattr(m.drop, "p", 1.0),
    "eval": lambda m, o: m.drop.eval(),
    "parameter": new_weight,
    "buffer": lambda m, o: setattr(m, "shift", flow.ones(2)),
    "values": lambda m, o: m.shift.fill_(2.0),
    "child": lambda m, o: setattr(m, "drop", nn.ReLU()),
    "dtype and back": lambda m, o: m.double().float(),
    "hook": hook,
    "frozen": lambda m, o: m.fc.bias.requires_grad_(False),
    "forward": lambda m, o: setattr(m, "forward", lambda x: m.fc(x) - 1),
    "learning rate": lambda m, o: o.param_groups[0].update(lr=0.5),
    "live option": lambda m, o: o.param_groups[0].update(weight_decay=0.5),
    "decisive option": lambda m, o: o.param_groups[0].update(momentum=0.0),
    "option": lambda m, o: o.param_groups[0].update(maximize=True),
    "loaded state": swap_state,
    "one state": swap_one,
}


@pytest.mark.parametrize("cut", [False, True], ids=["one Plan", "segments"])
@pytest.mark.parametrize("change", CHANGES)
def test_training_goes_on_as_eager_training_whatever_is_changed(change, cut):
    """Losses of three steps before and three after; a check left out is a wrong loss.

    A scale of one changes no number, and whether a step is taken is known between two segments.
    """
    (theirs, their_optimizer), (ours, our_optimizer) = pair(
        lambda p: flow.optim.SGD(p, lr=0.1, momentum=0.9)
    )
    graph = Train(ours, our_optimizer)
    if cut:
        graph.set_grad_scaler(flow.amp.StaticGradScaler(1.0))
    graph.config.disable("fusion")
    for _ in range(4):
        expected = eager_step(theirs, their_optimizer)
        assert graph(X).item() == pytest.approx(expected, rel=1e-6)
    assert graph._replay is not None
    assert any(isinstance(c, Segmented) for same in graph._plans.values() for c in same) is cut
    CHANGES[change](theirs, their_optimizer)
    CHANGES[change](ours, our_optimizer)
    for _ in range(3):
        expected = eager_step(theirs, their_optimizer)
        assert graph(X).item() == pytest.approx(expected, rel=1e-5)
    for a, b in zip(theirs.state_dict().values(), ours.state_dict().values(), strict=True):
        np.testing.assert_allclose(b.numpy(), a.numpy(), rtol=1e-5, atol=1e-7)


def test_a_scaler_of_other_settings():
    scaler = flow.amp.GradScaler(init_scale=4.0, growth_interval=100)
    model = Net()
    graph = Train(model, flow.optim.SGD(model.parameters(), lr=0.1))
    graph.set_grad_scaler(scaler)
    warm(graph, X)  # four steps
    scaler.set_growth_interval(5)
    assert graph._replay(graph, (X,), {}) is MISS
    graph(X)
    assert scaler.get_scale() == 8.0
    assert len(graph.plans) == 4


def test_attributes_globals_and_closures():
    (theirs, their_optimizer), (ours, our_optimizer) = pair(lambda p: flow.optim.SGD(p, lr=0.1))
    graph = warm(Train(ours, our_optimizer), X)
    for _ in range(4):
        eager_step(theirs, their_optimizer)
    try:
        graph.factor = 3.0
        assert graph(X).item() == pytest.approx(eager_step(theirs, their_optimizer, 3.0), rel=1e-5)
        set_global(0.5)
        assert graph(X).item() == pytest.approx(eager_step(theirs, their_optimizer, 3.0), rel=1e-5)
    finally:
        set_global(2.0)
    free = 1.0
    function = warm(flow.compile(lambda x: x * free), X)
    free = 4.0
    assert function(X).tolist() == (X * 4).tolist()


def test_what_the_thread_has_switched():
    model = Net()
    graph = warm(flow.compile(lambda x: model(x)), X)
    assert graph(X).requires_grad
    with flow.no_grad():
        assert not graph(X).requires_grad
        assert not warm(graph, X)(X).requires_grad
    assert graph(X).requires_grad
    with flow.autocast("cpu", dtype=flow.float16):
        expected = model(X).dtype
        assert graph(X).dtype is expected
    assert graph(X).dtype is flow.float32
    assert len(graph.plans) == 3


def test_an_input_that_requires_grad_is_another_kind_of_call():
    graph = warm(flow.compile(lambda x: x * 2), X)
    x = X.clone().requires_grad_()
    assert graph._replay(graph, (x,), {}) is MISS
    assert graph(x).requires_grad
    assert not graph(X).requires_grad


def test_configuration():
    graph = warm(flow.compile(lambda x: (x * 2).exp() + 1), X)
    tasks = len(graph.plans[-1].tasks)
    graph.config.disable("fusion")
    graph(X)
    assert len(graph.plans[-1].tasks) > tasks
    graph.config.enable("fusion")
    warm(graph, X)
    assert len(graph.plans) == 2


def test_inside_another_capture_it_is_code():
    inner = warm(flow.compile(lambda x: x + 1), X)
    outer = flow.compile(lambda x: inner(x) * 2)
    assert outer(X).tolist() == ((X + 1) * 2).tolist()


class ByStep(flow.optim.Optimizer):
    """Takes larger steps from the fourth on, and counts for each parameter."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.1})

    def _step_group(self, group):
        for p in group["params"]:
            if p.grad is None:
                continue
            entry = self.state.setdefault(p, {"step": 0})
            entry["step"] = step = entry["step"] + 1
            lr = group["lr"] * 4 if step > 3 else group["lr"] / step
            flow.ops.sgd_step_(p, p.grad, False, lr, 0.0)


def test_decisions_by_a_step_count_are_made_for_each_call():
    (theirs, their_optimizer), (ours, our_optimizer) = pair(ByStep)
    graph = Train(ours, our_optimizer)
    for _ in range(7):
        expected = eager_step(theirs, their_optimizer)
        assert graph(X).item() == pytest.approx(expected, rel=1e-5)
    assert [e["step"] for e in our_optimizer.state.values()] == [7, 7]


def test_step_counts_that_were_equal_and_are_no_longer():
    (theirs, their_optimizer), (ours, our_optimizer) = pair(lambda p: flow.optim.Adam(p, lr=0.01))
    graph = warm(Train(ours, our_optimizer), X)
    for _ in range(4):
        eager_step(theirs, their_optimizer)
    for model, optimizer in ((theirs, their_optimizer), (ours, our_optimizer)):
        optimizer.state[model.fc.bias]["step"] = 40
    for _ in range(3):
        expected = eager_step(theirs, their_optimizer)
        assert graph(X).item() == pytest.approx(expected, rel=1e-5)
    assert [e["step"] for e in our_optimizer.state.values()] == [7, 43]
    assert len(graph.plans) == 2


def test_more_launches_in_flight_than_blocks():
    """Each keeps its own operands, whatever the worker is behind."""
    graph = warm(flow.compile(lambda x: x + 1), X)
    inputs = [flow.full((2, 2), float(k)) for k in range(2 * MOST_BLOCKS + 50)]
    outputs = [graph(x) for x in inputs]
    assert [out[0, 0].item() for out in outputs] == [k + 1.0 for k in range(len(inputs))]


def test_blocks_outlive_a_graph_that_goes_while_it_runs():
    outputs = []
    for k in range(50):
        graph = flow.compile(lambda x: x * 2 + 1)
        outputs.append(graph(flow.full((64, 64), float(k))))
        del graph
    assert [out[0, 0].item() for out in outputs] == [2.0 * k + 1 for k in range(50)]
    flow.vm.sync()
    gc.collect()
    launch_code._forget_released()
    assert not engine.records.outline


def test_small_outputs_are_released_now_and_then():
    graph = warm(flow.compile(lambda x: x + 1), X)
    flow.vm.sync()
    before = engine.storages.next_id
    for _ in range(20):
        for _ in range(100):
            graph(X)
        flow.vm.sync()
    assert engine.storages.next_id - before <= 512


INTERRUPTED = """
    import flowvm as flow
    from flowvm.graph.plan.launch_code import NEVER

    count = flow.zeros(())
    graph = flow.compile(lambda x: count.add_(x))
    one = flow.ones(())
    for _ in range(4):
        graph(one)
    flow.vm.sync()
    assert graph._replay is not None

    done, hits, sent = 4, 0, 0
    def send():  # one after another, wherever the main thread is in its loop
        global sent
        while done == 4:
            os.sched_yield()
        while sent < 60:
            before = hits, done
            sent += 1
            os.kill(os.getpid(), signal.SIGINT)
            while hits == before[0] or done == before[1]:
                os.sched_yield()
    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    while sent < 60 or hits < 60:
        try:
            while sent < 60 or hits < 60:
                graph(one)
                done += 1
        except KeyboardInterrupt:
            hits += 1
            done += 0.5  # it may have been launched
    flow.vm.sync()
    issued = int(repr(hot["counter"])[6:-1])
    assert issued == engine.words[CTL.RECEIVED] == engine.words[CTL.HEAD], "a record was lost"
    assert abs(count.item() - done) <= hits / 2, (done, count.item(), hits)
    assert all(block[0] < NEVER for block in engine.records.outline), "a block is kept for ever"
    print(hits)
"""


def test_a_storm_of_interrupts_loses_no_launch():
    """Each Ctrl-C is raised between launches, or put off until there is no hole to leave."""
    assert int(script(INTERRUPTED).stdout) == 60


def test_a_draw_for_each_call_and_none_for_a_call_of_another_kind():
    graph = flow.compile(lambda x: x + flow.rand(2))
    eager = []
    flow.manual_seed(5)
    for _ in range(5):
        eager.append((X + flow.rand(2)).tolist())
    flow.manual_seed(5)
    assert [graph(X).tolist() for _ in range(5)] == eager
