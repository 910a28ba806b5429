"""The objects that users can make graphs of, and the arguments that graphs take."""

from __future__ import annotations

import copy
import gc
import io
import weakref

import numpy as np
import pytest

import flowvm as flow
from flowvm.errors import (
    ArgumentError,
    ArgumentTypeError,
    AutogradError,
    CaptureError,
    CaptureWarning,
)
from flowvm.ops import Launch, elementwise, op

nn, F = flow.nn, flow.nn.functional
pytestmark = pytest.mark.filterwarnings("ignore::flowvm.errors.RecaptureWarning")


def mlp():
    flow.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


class Train(nn.Graph):
    def __init__(self, model, optimizer, schedule=None, loss=F.cross_entropy):
        super().__init__()
        self.model, self.loss = model, loss
        self.add_optimizer(optimizer, lr_sch=schedule)

    def build(self, x, y):
        loss = self.loss(self.model(x), y)
        loss.backward()
        return loss


def data(n=5):
    rng = np.random.default_rng(n)
    return flow.tensor(rng.standard_normal((n, 4), np.float32)), flow.tensor(rng.integers(0, 3, n))


# --- functions, modules, methods ------------------------------------------------------------------


def test_a_compiled_module_is_a_graph_with_the_modules_attributes():
    model, (x, _) = mlp(), data()
    compiled = flow.compile(model)
    np.testing.assert_allclose(compiled(x).numpy(), model(x).detach().numpy(), rtol=1e-5)
    assert [id(p) for p in compiled.parameters()] == [id(p) for p in model.parameters()]
    assert compiled.state_dict().keys() == model.state_dict().keys()
    compiled.eval()
    assert not model.training
    compiled.load_state_dict({k: v * 0 for k, v in model.state_dict().items()})
    assert compiled(x).abs().sum().item() == 0
    with pytest.raises(AttributeError, match="nothing_such"):
        _ = compiled.nothing_such


def test_a_compiled_module_trains_from_outside():
    """As in PyTorch's programs, the results of a compiled module have gradients."""
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Dropout(0.5), nn.Linear(5, 3))
    twin, (x, y) = copy.deepcopy(model), data()
    compiled = flow.compile(model, mode="reduce-overhead", dynamic=False)
    for each in (compiled, twin):
        flow.manual_seed(0)
        optimizer = flow.optim.SGD(each.parameters(), 0.1, momentum=0.9)
        for _ in range(3):
            optimizer.zero_grad()
            nn.functional.cross_entropy(each(x), y).backward()
            optimizer.step()
    for name, value in twin.state_dict().items():
        np.testing.assert_array_equal(model.state_dict()[name].numpy(), value.numpy(), name)
    assert not compiled.plans
    compiled.eval()
    with flow.no_grad():
        np.testing.assert_allclose(compiled(x).numpy(), model(x).numpy(), rtol=1e-5)
    assert len(compiled.plans) == 1


def test_compile_has_pytorchs_arguments():
    @flow.compile(fullgraph=True, backend="inductor", options={"trace.enabled": True})
    def double(x):
        return x + x

    assert double(flow.ones(2)).tolist() == [2, 2]
    assert flow.compile(len, disable=True) is len
    with pytest.raises(ArgumentError, match="mode is one of"):
        flow.compile(len, mode="fast")
    with pytest.raises(ArgumentTypeError, match="backend is the name of a backend"):
        flow.compile(len, backend=lambda gm, x: gm)


def test_a_graph_of_a_graph_is_that_graph():
    graph = flow.compile(lambda x: x + 1)
    assert flow.compile(graph) is graph


def test_trace_is_a_decorator_like_compile():
    @nn.Graph.trace
    def double(x):
        """Twice x."""
        return x * 2

    assert isinstance(double, nn.Graph)
    assert (double.__name__, double.__doc__, double.name) == ("double", "Twice x.", "double")
    assert double(flow.ones(2)).tolist() == [2, 2]
    assert len(double.plans) == 1


def test_a_method_compiled_in_its_class_is_a_graph_for_each_instance():
    class Net(nn.Module):
        def __init__(self, scale):
            super().__init__()
            self.fc, self.scale = nn.Linear(4, 3), scale

        @flow.compile
        def forward(self, x):
            return self.fc(x) * self.scale

        @flow.compile
        def loss(self, x, y):
            return F.cross_entropy(self(x), y)

    x, y = data()
    one, two = Net(1.0), Net(3.0)
    for net in (one, two, one):
        expected = net.fc(x) * net.scale
        np.testing.assert_allclose(net(x).numpy(), expected.detach().numpy(), rtol=1e-5)
        loss = F.cross_entropy(expected, y)
        np.testing.assert_allclose(net.loss(x, y).item(), loss.item(), rtol=1e-5)
    assert one.loss is one.loss
    assert one.loss is not two.loss
    assert len(one.loss.plans) == 1
    assert isinstance(Net.loss, nn.Graph)

    other = copy.deepcopy(one)
    other.scale = 10.0
    np.testing.assert_allclose(other(x).numpy(), 10 * one(x).numpy(), rtol=1e-5)
    shallow = copy.copy(two)
    assert shallow.loss is not two.loss

    gone = weakref.ref(two)
    del two, net, shallow
    gc.collect()
    assert gone() is None


def test_a_bound_method_and_a_callable_object():
    class Scaled:
        def __init__(self, by):
            self.by = by

        def __call__(self, x):
            return x * self.by

        def more(self, x):
            return x * (self.by + 1)

    scaled = Scaled(2.0)
    assert flow.compile(scaled)(flow.ones(2)).tolist() == [2, 2]
    assert flow.compile(scaled.more)(flow.ones(2)).tolist() == [3, 3]
    with pytest.raises(ArgumentTypeError, match="function or a module"):
        flow.compile(3)


def test_reset_forgets_plans_and_history():
    graph = flow.compile(lambda x: x + 1)
    graph(flow.ones(2))
    graph(flow.ones(3))
    plan = weakref.ref(graph.plan)
    graph.reset()
    assert graph.plans == []
    assert "captured again" not in graph.explain()
    with pytest.raises(ArgumentError, match="no plan before its first call"):
        _ = graph.plan
    gc.collect()
    assert plan() is None
    assert graph(flow.ones(2)).tolist() == [2, 2]
    assert len(graph.plans) == 1


# --- graphs in graphs -----------------------------------------------------------------------------


def test_a_graph_called_in_another_ones_build_becomes_a_part_of_it():
    model, (x, y) = mlp(), data()
    inner = flow.compile(lambda x: model(x) * 2)

    class Outer(nn.Graph):
        def __init__(self):
            super().__init__()
            self.inner = inner
            self.add_optimizer(flow.optim.SGD(model.parameters(), lr=0.1))

        def build(self, x, y):
            loss = F.cross_entropy(self.inner(x), y)
            loss.backward()
            return loss

    outer, alone = Outer(), inner(x).numpy()  # compiled on its own, too
    losses = [outer(x, y).item() for _ in range(4)]
    assert len(inner.plans) == 1
    assert len(outer.plans) == 1
    assert not np.allclose(inner(x).numpy(), alone)

    model = mlp()
    optimizer = flow.optim.SGD(model.parameters(), lr=0.1)
    for expected in losses:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x) * 2, y)
        loss.backward()
        optimizer.step()
        np.testing.assert_allclose(expected, loss.item(), rtol=1e-5)


def test_what_an_inner_graph_reads_is_watched_too():
    drop = nn.Dropout(0.5)

    class Inner(nn.Graph):
        def __init__(self):
            super().__init__()
            self.drop, self.scale = drop, 2.0

        def build(self, x):
            return self.drop(x) * self.scale

    inner = Inner()
    outer = flow.compile(lambda x: inner(x) + 1)
    x = flow.ones(1000)
    assert set(outer(x).tolist()) == {1.0, 5.0}
    drop.eval()
    assert set(outer(x).tolist()) == {3.0}
    inner.scale = 7.0
    assert set(outer(x).tolist()) == {8.0}


def test_an_inner_graph_computes_in_its_own_precision():
    inner = flow.compile(lambda x: x @ x)
    inner.config.enable_amp()
    x = flow.ones(2, 2)
    outer = flow.compile(lambda x: inner(x))
    assert outer(x).dtype is flow.float16
    inner.config.enable_amp(False)
    assert outer(x).dtype is flow.float32
    inner.config.set_gradient_accumulation_steps(2)
    with pytest.raises(CaptureError, match="set that for the outer graph"):
        flow.compile(lambda x: inner(x))(x)


def test_a_graph_that_steps_an_optimizer_cannot_be_a_part():
    x, y = data()
    model = mlp()
    train = Train(model, flow.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(CaptureError, match="give the optimizer to the outer graph"):
        flow.compile(lambda: train(x, y))()
    train(x, y)


# --- what users write themselves ------------------------------------------------------------------


class SignSgd(flow.optim.Optimizer):
    """An optimizer as a user writes one: state of tensors and numbers, options, groups."""

    def __init__(self, params, lr=0.1, decay=0.5):
        super().__init__(params, {"lr": lr, "decay": decay})

    def _step_group(self, group):
        for p in group["params"]:
            if p.grad is None:
                continue
            state = self.state.setdefault(p, {})
            if not state:
                state["step"], state["mean"] = 0, flow.zeros_like(p)
            state["step"] += 1
            state["mean"].mul_(group["decay"]).add_(p.grad)
            p.sub_(flow.sign(state["mean"]) * group["lr"] / state["step"] ** 0.5)


def smooth_l2(prediction, target):
    """A loss as a user writes one."""
    expected = F.one_hot(target, 3).float()
    return ((prediction.softmax(-1) - expected) ** 2).sum(
        -1
    ).mean() + prediction.abs().mean() * 0.01


own_square = elementwise(
    "own_square_of_a_test", "x * x + 1", types="float", saves="x",
    grad=lambda c, g: (g * 2 * c.saved[0],),
)  # fmt: skip


def _doubled_body(out, x, lo, hi):
    for row in range(lo, hi):
        for i in range(x.shape[1]):
            out[row, i] = 2 * x[row, i]


@op("x -> out", grad=lambda c, g: (own_doubled(g),))
def own_doubled(x):
    """An op with a kernel body of the user's."""
    return Launch(outputs=(x,), body=_doubled_body, units=x.shape[0], grain=4)


class Cube(flow.autograd.Function):
    """A custom autograd function."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 3 * x * x


class Odd(nn.Module):
    """A module of all of them."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(4, 6), nn.Linear(6, 3)
        self.register_buffer("calls", flow.zeros(()))

    def forward(self, x):
        with flow.no_grad():
            self.calls.add_(1)
        x = own_square(self.one(x)) * 0.1
        return self.two(own_doubled(Cube.apply(x) * 0.1))


def trained(captured, loss_of, make_optimizer, calls=6, scheduled=True):
    """Losses and parameters of a training of `Odd`."""
    flow.manual_seed(1)
    model = Odd()
    optimizer = make_optimizer(model.parameters())
    schedule = flow.optim.lr_scheduler.ExponentialLR(optimizer, 0.7) if scheduled else None
    graph = Train(model, optimizer, schedule, loss_of)
    losses = []
    for k in range(calls):
        x, y = data(k % 2 + 4)
        if captured:
            losses.append(graph(x, y).item())
            continue
        optimizer.zero_grad()
        loss = loss_of(model(x), y)
        loss.backward()
        optimizer.step()
        if schedule is not None:
            schedule.step()
        losses.append(loss.item())
    assert model.calls.item() == calls
    return losses, [p.detach().numpy() for p in model.parameters()]


@pytest.mark.parametrize("loss_of", [F.cross_entropy, smooth_l2], ids=["cross_entropy", "own"])
@pytest.mark.parametrize(
    "make_optimizer",
    [
        SignSgd,
        lambda params: SignSgd([{"params": [p], "lr": 0.01 * k} for k, p in enumerate(params, 1)]),
        lambda params: flow.optim.AdamW(params, lr=0.05),
    ],
    ids=["own optimizer", "own optimizer in groups", "AdamW"],
)  # fmt: skip
def test_ops_losses_optimizers_of_the_users_own_are_captured_like_ours(loss_of, make_optimizer):
    losses, params = trained(False, loss_of, make_optimizer)
    captured, weights = trained(True, loss_of, make_optimizer)
    np.testing.assert_allclose(captured, losses, rtol=1e-4)
    for ours, theirs in zip(weights, params, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-5)


def test_ops_of_the_users_own_are_nodes_under_their_names():
    graph = flow.compile(lambda x: own_doubled(own_square(x)))
    graph.config.disable(*graph.config.passes)
    graph(flow.ones(2, 2))
    names = [node.operator.name for node in graph.graphs[0].nodes]
    assert names == ["own_square_of_a_test", "own_doubled"]


# --- state ----------------------------------------------------------------------------------------


def training(make_optimizer=lambda p: flow.optim.Adam(p, lr=0.05)):
    model = mlp()
    optimizer = make_optimizer(model.parameters())
    return Train(model, optimizer, flow.optim.lr_scheduler.StepLR(optimizer, 2, 0.5))


def state_after(graph, calls):
    x, y = data()
    losses = [graph(x, y).item() for _ in range(calls)]
    file = io.BytesIO()
    flow.save(graph.state_dict(), file)
    file.seek(0)
    return losses, file


@pytest.mark.parametrize("calls_before", [0, 1, 3])
def test_state_goes_over_a_file_into_a_graph_before_and_after_its_first_call(calls_before):
    x, y = data()
    first = training()
    _, file = state_after(first, 3)
    expected = [first(x, y).item() for _ in range(3)]
    second = training()
    for p in second.model.parameters():
        p.detach().mul_(0.5)
    for _ in range(calls_before):
        second(x, y)
    second.load_state_dict(flow.load(file))
    assert [second(x, y).item() for _ in range(3)] == expected


def test_state_is_named_as_the_attributes_are():
    graph = training()
    state = graph.state_dict()
    assert list(state) == ["model", "optimizers", "lr_schedulers"]
    assert list(state["model"]) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert list(flow.compile(mlp()).state_dict()) == list(state["model"])
    outer = nn.Graph()
    outer.inner = graph
    assert list(outer.state_dict()) == ["inner"]
    assert list(outer.state_dict()["inner"]) == list(state)


def test_state_that_does_not_fit_is_refused_before_anything_changes():
    graph = training()
    before = graph.model[0].weight.detach().numpy().copy()
    state = graph.state_dict()
    state["model"] = {k: v * 0 for k, v in state["model"].items()}
    with pytest.raises(ArgumentError, match=r"lacks \['optimizers'\] and has \['other'\]"):
        graph.load_state_dict(
            {**{k: v for k, v in state.items() if k != "optimizers"}, "other": {}}
        )
    with pytest.raises(ArgumentError, match="has 2 optimizers, and the graph has 1"):
        graph.load_state_dict({**state, "optimizers": state["optimizers"] * 2})
    with pytest.raises(ArgumentTypeError, match="dict, not list"):
        graph.load_state_dict([])
    np.testing.assert_array_equal(graph.model[0].weight.detach().numpy(), before)
    graph.load_state_dict({"model": state["model"]}, strict=False)
    assert graph.model[0].weight.abs().sum().item() == 0


def test_a_module_cannot_have_a_name_that_the_state_needs():
    graph = nn.Graph()
    graph.optimizers = nn.Linear(1, 1)
    with pytest.raises(ArgumentError, match=r"needs the names \['optimizers'\]"):
        graph.state_dict()


def test_a_loaded_model_needs_no_new_capture():
    model, (x, _) = mlp(), data()
    graph = flow.compile(model)
    with flow.no_grad():
        graph(x)
        plan = graph.plan
        graph.load_state_dict({k: v * 2 for k, v in model.state_dict().items()})
        np.testing.assert_allclose(graph(x).numpy(), model(x).numpy(), rtol=1e-5)
    assert graph.plans == [plan]


def test_results_are_the_objects_that_eager_code_returns():
    weight = nn.Parameter(flow.ones(2))

    @flow.compile
    def call(x, y):
        doubled = y * 2
        return x, x.add_(1), weight, doubled, doubled

    for start in (1.0, 2.0, 3.0):
        x, y = flow.full((2,), start), flow.ones(2)
        results = call(x, y)
        assert results[0] is x
        assert results[1] is x
        assert results[2] is weight
        assert results[3] is results[4]
        assert results[3] is not y
        assert x.tolist() == [start + 1] * 2
        assert results[3].tolist() == [2.0, 2.0]


@pytest.mark.parametrize("kind", ["append", "key", "pop", "number"])
def test_a_list_or_dict_that_a_call_changes(kind):
    """A compiled function changes the caller's, as eager code; a graph of optimizers refuses."""

    def change(value, x):
        if kind == "append":
            value["all"].append(x * 2)
        elif kind == "key":
            value["twice"] = x * 2
        elif kind == "pop":
            value.pop("count")
        else:
            value["count"] += 1
        return x + 1

    compiled = flow.compile(change)
    with pytest.warns(CaptureWarning, match="list or dict among its arguments"):
        compiled({"all": [], "count": 0}, flow.ones(1))
    for start in (3.0, 4.0):
        x, (now, then) = flow.full((1,), start), ({"all": [], "count": 0} for _ in range(2))
        assert compiled(now, x).item() == change(then, x).item() == start + 1
        assert now.keys() == then.keys()
        assert now.get("count") == then.get("count")
        assert [t.item() for t in now["all"]] == [t.item() for t in then["all"]]
        assert "twice" not in then or now["twice"].item() == then["twice"].item()

    class Step(nn.Graph):
        def build(self, value, x):
            return change(value, x)

    with pytest.raises(CaptureError, match="list or dict among its arguments"):
        Step()({"all": [], "count": 0}, flow.ones(1))


def test_a_gradient_asked_for_through_a_replay_is_an_error():
    x = flow.ones(3, requires_grad=True)
    result = flow.compile(lambda t: t * 2)(x)
    with pytest.raises(AutogradError, match="replayed"):
        flow.autograd.grad(result.sum(), x, allow_unused=True)
