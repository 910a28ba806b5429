"""nn.Graph from the user's side: replays do the same as eager code, and nothing else."""

from __future__ import annotations

import gc
import traceback

import numpy as np
import pytest

import flowvm as flow
from flowvm.errors import (
    ArgumentError,
    ArgumentTypeError,
    AutogradError,
    CaptureError,
    OutOfRangeError,
)
from tests.vm.live import Background

nn, F = flow.nn, flow.nn.functional


class Forward(nn.Graph):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def build(self, *inputs):
        return self.model(*inputs)


class Train(nn.Graph):
    def __init__(self, model, optimizer, schedule=None):
        super().__init__()
        self.model = model
        self.add_optimizer(optimizer, lr_sch=schedule)

    def build(self, x, y):
        loss = F.cross_entropy(self.model(x), y)
        loss.backward()
        return loss


MODELS = {
    "mlp": (lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)), (5, 8)),
    "cnn": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(64, 3),
        ),
        (6, 1, 8, 8),
    ),
    "dropout": (
        lambda: nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Dropout(0.3), nn.Linear(32, 3)),
        (5, 8),
    ),
    "norms": (
        lambda: nn.Sequential(
            nn.Linear(8, 12), nn.LayerNorm(12), nn.SiLU(), nn.GroupNorm(3, 12), nn.RMSNorm(12),
            nn.Linear(12, 3),
        ),
        (5, 8),
    ),
}  # fmt: skip
OPTIMIZERS = {
    "sgd": lambda p: flow.optim.SGD(p, lr=0.1),
    "momentum": lambda p: flow.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    "nesterov": lambda p: flow.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda p: flow.optim.Adam(p, lr=0.01),
    "adamw amsgrad": lambda p: flow.optim.AdamW(p, lr=0.01, amsgrad=True),
}


def trained(make_model, shape, make_optimizer, captured, without=(), steps=5, scheduled=False):
    """Losses and the final state of a training, eager or by a graph without some passes."""
    flow.manual_seed(0)
    model = make_model()
    optimizer = make_optimizer(model.parameters())
    schedule = flow.optim.lr_scheduler.StepLR(optimizer, 2, 0.5) if scheduled else None
    batches = [(flow.randn(*shape), flow.randint(0, 3, shape[:1])) for _ in range(steps)]
    graph = Train(model, optimizer, schedule)
    graph.config.disable(*without)
    losses = []
    for x, y in batches:
        if captured:
            losses.append(graph(x, y).item())
            continue
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        if schedule is not None:
            schedule.step()
        losses.append(loss.item())
    state = [t.numpy() for t in model.state_dict().values()]
    numbers = [
        {k: v for k, v in entry.items() if not isinstance(v, flow.Tensor)}
        for entry in optimizer.state_dict()["state"].values()
    ]
    return losses, state, numbers


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("model", MODELS)
def test_training_with_a_graph_is_eager_training_bit_for_bit(model, optimizer):
    """Results are equal bit for bit with the same kernels; fused ones differ in the last place."""
    eager = trained(*MODELS[model], OPTIMIZERS[optimizer], False, scheduled=True)
    graph = trained(*MODELS[model], OPTIMIZERS[optimizer], True, ("fusion",), scheduled=True)
    fused = trained(*MODELS[model], OPTIMIZERS[optimizer], True, scheduled=True)
    assert eager[0] == graph[0]
    assert eager[2] == graph[2] == fused[2]
    np.testing.assert_allclose(fused[0], eager[0], rtol=1e-4)
    for ours, close, theirs in zip(graph[1], fused[1], eager[1], strict=True):
        np.testing.assert_array_equal(ours, theirs)
        np.testing.assert_allclose(close, theirs, rtol=1e-3, atol=1e-5)


def test_train_and_eval_graphs_share_a_model_with_eager_code():
    flow.manual_seed(0)
    model = MODELS["cnn"][0]()
    optimizer = OPTIMIZERS["momentum"](model.parameters())
    train, evaluate = Train(model, optimizer), Forward(model)
    x, y = flow.randn(6, 1, 8, 8), flow.randint(0, 3, (6,))
    for _ in range(3):
        model.train()
        train(x, y)
        model.eval()
        np.testing.assert_allclose(
            evaluate(x).numpy(), model(x).detach().numpy(), rtol=1e-5, atol=1e-6
        )
    assert len(train.plans) == 1
    assert len(evaluate.plans) == 1
    assert model[1].num_batches_tracked.item() == 3


def test_train_or_eval_selects_a_plan():
    model = nn.Dropout(0.5)
    graph, x = Forward(model), flow.ones(1000)
    assert 300 < (graph(x) == 0).sum().item() < 700
    model.eval()
    assert graph(x).tolist() == [1] * 1000
    model.train()
    assert (graph(x) == 0).any().item()
    assert len(graph.plans) == 2


def test_random_numbers_go_on_from_call_to_call_as_in_eager_code():
    graph = flow.compile(lambda x: x + flow.rand(3))
    x = flow.zeros(3)
    flow.manual_seed(1)
    eager = [(x + flow.rand(3)).tolist() for _ in range(4)]
    flow.manual_seed(1)
    assert [graph(x).tolist() for _ in range(4)] == eager


# --- arguments and results --------------------------------------------------------------------


def test_trees_of_arguments_and_results():
    def function(a, pair, *, scale, options):
        b, c = pair
        return {"sum": a + b, "all": [c * scale, (options["z"], None, 7)]}

    graph = flow.compile(function)
    for scale in (2, 2, 3):
        a, b, c, z = (flow.full((2,), float(k)) for k in range(4))
        out = graph(a, (b, c), scale=scale, options={"z": z})
        assert out["sum"].tolist() == [1, 1]
        assert out["all"][0].tolist() == [2 * scale] * 2
        assert out["all"][1][0].tolist() == [3, 3]
        assert out["all"][1][1:] == (None, 7)
    assert len(graph.plans) == 2
    assert "argument 'scale' was 2, is 3" in graph.explain()


def test_what_is_no_tree_is_refused():
    graph = flow.compile(lambda x: x)
    with pytest.raises(CaptureError, match="not set"):
        graph({1, 2})
    with pytest.raises(CaptureError, match="not set"):
        flow.compile(lambda x: {1, 2})(flow.ones(1))


def test_one_tensor_twice_is_two_inputs():
    graph = flow.compile(lambda a, b: a - b)
    x, y = flow.ones(2), flow.full((2,), 5.0)
    assert graph(x, x).tolist() == [0, 0]
    assert graph(y, x).tolist() == [4, 4]
    assert len(graph.plans) == 1


def test_views_as_inputs_wherever_they_begin():
    graph = flow.compile(lambda a: a * 2)
    x = flow.arange(12).float()
    for first in (0, 4, 8):
        assert graph(x[first : first + 4]).tolist() == [2 * k for k in range(first, first + 4)]
    assert len(graph.plans) == 1


def test_other_shapes_dtypes_and_strides_are_captured_on_their_own():
    graph = flow.compile(lambda a: a + a)
    for x in (flow.ones(2), flow.ones(3), flow.ones(2, dtype=flow.int64), flow.ones(2, 3).t()):
        np.testing.assert_array_equal(graph(x).numpy(), 2 * x.numpy())
    assert len(graph.plans) == 4
    assert "argument 0 was f32[2], is f32[3]" in graph.explain()


def test_results_that_are_inputs_variables_and_views():
    w = flow.ones(2, 2)
    graph = flow.compile(lambda x: (x, w, (x + w)[0], x.t()))
    x = flow.arange(4).reshape(2, 2).float()
    for _ in range(2):
        a, b, c, d = graph(x)
        assert a.tolist() == x.tolist()
        assert b.tolist() == w.tolist()
        assert c.tolist() == [1, 2]
        assert d.tolist() == [[0, 2], [1, 3]]
    b.add_(1)
    assert w.tolist() == [[2, 2], [2, 2]]


def test_results_of_calls_are_apart():
    graph = flow.compile(lambda x: x + 1)
    first = graph(flow.zeros(2))
    second = graph(flow.ones(2))
    assert (first.tolist(), second.tolist()) == ([1, 1], [2, 2])


# --- variables --------------------------------------------------------------------------------


def test_free_tensors_are_variables():
    w = flow.ones(2)
    graph = flow.compile(lambda x: x * w)
    assert graph(flow.ones(2)).tolist() == [1, 1]
    w.mul_(3)
    assert graph(flow.ones(2)).tolist() == [3, 3]


def test_a_graph_that_changes_a_variable_is_ordered_with_eager_code():
    w = flow.zeros(1)

    def count(x):
        w.add_(x)
        return w * 10

    graph = flow.compile(count)
    actual = []
    for k in range(6):
        actual.append(graph(flow.ones(1)))
        if k % 2:
            w.sub_(1)
    assert [t.item() for t in actual] == [10, 20, 20, 30, 30, 40]
    assert w.item() == 3


def test_another_parameter_is_captured_anew():
    model = nn.Linear(2, 1, bias=False)
    graph, x = Forward(model), flow.ones(1, 2)
    graph(x)
    model.weight = nn.Parameter(flow.full((1, 2), 7.0))
    assert graph(x).item() == 14
    model.load_state_dict({"weight": flow.full((1, 2), 2.0)})
    assert graph(x).item() == 4


def test_gradients_of_eager_code_are_left_alone():
    flow.manual_seed(0)
    model = nn.Linear(8, 3)
    graph = Train(model, flow.optim.SGD(model.parameters(), lr=0.1))
    x, y = flow.randn(5, 8), flow.randint(0, 3, (5,))
    graph(x, y)
    F.cross_entropy(model(x), y).backward()
    before = model.weight.grad.tolist()
    graph(x, y)
    graph(flow.randn(4, 8), flow.randint(0, 3, (4,)))
    assert model.weight.grad.tolist() == before


# --- numbers that change ----------------------------------------------------------------------


def test_a_learning_rate_set_by_hand_counts():
    w = nn.Parameter(flow.zeros(1))
    optimizer = flow.optim.SGD([w], lr=1.0)

    class Down(nn.Graph):
        def build(self):
            w.sum().backward()

    graph = Down()
    graph.add_optimizer(optimizer)
    calls = []
    for lr in (1.0, 1.0, 0.5, 0.25, 2.0):
        optimizer.param_groups[0]["lr"] = lr
        graph()
        calls.append(w.item())
    assert calls == [-1, -2, -2.5, -2.75, -4.75]
    assert len(graph.plans) == 1


def test_other_numbers_of_a_step_are_live_too_and_other_options_are_not():
    w = nn.Parameter(flow.ones(1))
    optimizer = flow.optim.SGD([w], lr=1.0)

    class Decay(nn.Graph):
        def build(self):
            (w * 0).sum().backward()

    graph = Decay()
    graph.add_optimizer(optimizer)
    for decay, expected in ((0.0, 1.0), (0.0, 1.0), (0.5, 0.5), (0.5, 0.25), (0.0, 0.25)):
        optimizer.param_groups[0]["weight_decay"] = decay
        graph()
        assert w.item() == expected
    assert len(graph.plans) == 1
    optimizer.param_groups[0].update(weight_decay=1.0, maximize=True)
    graph()
    assert w.item() == 0.0
    assert len(graph.plans) == 2


class Two(flow.optim.Optimizer):
    """A user's own, one of whose options is several numbers."""

    live_options = ("lr", "parts")

    def __init__(self, params, parts, decays=False):
        super().__init__(params, {"lr": 1.0, "parts": parts})
        self.decays = decays

    def _step_group(self, group):
        for part in group["parts"]:
            for p in group["params"]:
                p.sub_(p.grad * (part * group["lr"]))
        if self.decays:
            group["parts"] = tuple(part / 2 for part in group["parts"])


def stepped(optimizer, w):
    class Own(nn.Graph):
        def build(self):
            w.sum().backward()

    graph = Own()
    graph.add_optimizer(optimizer)
    return graph


def test_an_option_of_several_live_numbers():
    w = nn.Parameter(flow.zeros(1))
    optimizer = Two([w], (1.0, 2.0))
    graph = stepped(optimizer, w)
    (group,) = optimizer.param_groups
    expected = 0.0
    changes = [(1.0, 2.0), (1.0, 2.0), (0.5, 0.25), (4.0, 0.0), [3.0, 1.0], (1.0, 2.0, 4.0), (8.0,)]
    plans = []
    for parts in changes:
        group["parts"] = parts
        graph()
        expected -= sum(parts)
        assert w.item() == expected
        assert group["parts"] is parts
        plans.append(len(graph.plans))
    assert plans == [0, 1, 1, 1, 1, 2, 3]  # the first step is eager; how many there are counts


def test_a_step_that_changes_several_live_numbers_is_refused():
    w = nn.Parameter(flow.zeros(1))
    optimizer = Two([w], (1.0, 2.0), decays=True)
    graph = stepped(optimizer, w)
    graph()
    with pytest.raises(CaptureError, match=r"'parts'.*live_options"):
        graph()
    assert (optimizer.param_groups[0]["parts"], w.item()) == ((0.5, 1.0), -3.0)


class Averaging(flow.optim.Optimizer):
    """A user's own: plain tensor code, a tensor and a step count a parameter, and a decision."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    def _step_group(self, group):
        for p in group["params"]:
            if p.grad is None:
                continue
            state = self.state.setdefault(p, {})
            if not state:
                state["step"], state["mean"] = 0, flow.zeros_like(p)
            state["step"] += 1
            state["mean"].mul_(0.5).add_(p.grad)
            if state["step"] > 3:
                p.sub_(state["mean"])
            else:
                p.add_(state["mean"])


def test_an_optimizer_of_the_users_own_with_a_decision_by_its_step():
    def run(captured):
        w = nn.Parameter(flow.ones(2))
        optimizer = Averaging([w], 0.1)

        class Own(nn.Graph):
            def build(self, x):
                loss = (w * x).sum()
                loss.backward()
                return loss

        graph = Own()
        graph.add_optimizer(optimizer)
        losses = []
        for k in range(7):
            x = flow.full((2,), float(k))
            if captured:
                losses.append(graph(x).item())
            else:
                optimizer.zero_grad()
                loss = (w * x).sum()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
        return losses, w.tolist(), optimizer.state[w]["step"]

    assert run(True) == run(False)


# --- what cannot be ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * x.sum().item(),
        lambda x: x if x.sum() > 0 else -x,
        lambda x: flow.from_numpy(x.numpy()),
        lambda x: x[: int(x[0])],
        lambda x: f"{x.max().item()}",
    ],
    ids=["item", "if", "numpy", "slice by value", "text"],
)
def test_code_that_depends_on_values_is_an_error_that_names_the_line(function):
    graph = flow.compile(function)
    with pytest.raises(CaptureError) as caught:
        graph(flow.ones(3))
    text = "".join(traceback.format_exception(caught.value))
    assert "test_graph.py" in text.split("in build")[-1]
    assert (flow.ones(2) + 1).tolist() == [2, 2]
    assert flow.compile(lambda x: x + 1)(flow.ones(2)).tolist() == [2, 2]
    flow.vm.sync()


def test_wrong_uses_say_so():
    with pytest.raises(NotImplementedError, match="build"):
        nn.Graph()()
    with pytest.raises(ArgumentTypeError, match="Optimizer"):
        nn.Graph().add_optimizer("sgd")
    with pytest.raises(ArgumentTypeError, match="function"):
        flow.compile(3)
    graph = flow.compile(lambda: flow.ones(2))
    graph()
    with pytest.raises(ArgumentError, match="before the first call"):
        graph.add_optimizer(flow.optim.SGD([nn.Parameter(flow.ones(1))], lr=1))


def test_an_error_inside_a_replay_names_the_captured_line_and_keeps_the_parameters():
    flow.manual_seed(0)
    model = nn.Sequential(nn.Embedding(10, 4), nn.Flatten(), nn.Linear(8, 3))
    graph = Train(model, flow.optim.SGD(model.parameters(), lr=0.1))
    good, bad = flow.tensor([[1, 2]]), flow.tensor([[1, 10]])
    y = flow.tensor([0])
    for _ in range(2):
        graph(good, y)
    before = [p.tolist() for p in model.parameters()]
    loss = graph(bad, y)
    with pytest.raises(OutOfRangeError, match="index 10") as caught:
        loss.item()
    note = "\n".join(caught.value.__notes__)
    assert "index_select (node 0) of Train" in note
    assert "self.model(x)" in note
    assert [p.tolist() for p in model.parameters()] == before
    assert np.isfinite(graph(good, y).item())


# --- threads, memory, lifetime ----------------------------------------------------------------


def test_two_graphs_and_eager_code_from_two_threads():
    def work(seed):
        generator = np.random.default_rng(seed)
        w = flow.tensor(generator.standard_normal(16).astype(np.float32))
        graph = flow.compile(lambda x: (x * w).sum() + w)
        total = flow.zeros(16)
        expected = np.zeros(16)
        for _ in range(100):
            x = generator.standard_normal(16).astype(np.float32)
            total = total + graph(flow.tensor(x)) * 2
            expected += ((x * w.numpy()).sum(dtype=np.float64) + w.numpy()) * 2
        np.testing.assert_allclose(total.numpy(), expected, rtol=1e-3, atol=1e-3)
        return True

    threads = [Background(work, seed) for seed in range(2)]
    assert all(t.result() for t in threads)


def test_a_graph_deleted_while_it_runs():
    x = flow.ones(200, 200)
    outs = []
    for _ in range(5):
        w = flow.full((200, 200), 0.01)
        graph = flow.compile(lambda a, w=w: a @ w @ w)
        outs.append(graph(x))
        outs.append(graph(x))
        del graph, w
        gc.collect()
    for out in outs:
        np.testing.assert_allclose(out.numpy(), np.full((200, 200), 4.0), rtol=1e-4)


def test_streams_order_launches_by_their_operands():
    w, stream = flow.zeros(4), flow.Stream("side")

    def step(x):
        w.add_(x)
        return w + 0

    graph = flow.compile(step)
    actual = []
    for k in range(20):
        with flow.stream(stream) if k % 2 else flow.stream(flow.current_stream()):
            actual.append(graph(flow.ones(4)))
    assert [t[0].item() for t in actual] == list(range(1, 21))


def test_what_a_graph_looks_like():
    graph = Forward(nn.Linear(2, 3))
    assert "not captured" in repr(graph)
    graph(flow.ones(1, 2))
    assert "model.weight" in repr(graph)
    (plan,) = graph.plans
    dump = plan.dump()
    for part in ("1 tasks on one stream", "variable model.weight", "input 0", "task 0 linear"):
        assert part in dump
    assert "chunk" in repr(plan)


# --- traps ------------------------------------------------------------------------------------

GLOBAL = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5))


def test_backward_in_a_capture_leaves_nothing_for_eager_code():
    w = flow.ones(5, requires_grad=True)

    def function(x):
        loss = (w * x).prod()
        loss.backward()
        return loss, w.grad

    flow.compile(function)(flow.ones(5))
    w.grad = None
    (w * 2).sum().backward()
    assert w.grad.tolist() == [2] * 5


def test_backward_through_an_output_is_an_error_and_not_nothing():
    body, head = nn.Linear(3, 3), nn.Linear(3, 1)
    graph, x = flow.compile(lambda x: body(x)), flow.ones(2, 3)
    for _ in range(2):
        with pytest.raises(AutogradError, match="replayed, not recorded"):
            head(graph(x)).sum().backward()
    head.zero_grad()
    with flow.no_grad():
        out = graph(x)
    head(out).sum().backward()
    assert body.weight.grad is None
    assert head.weight.grad is not None


def test_settings_of_modules_that_are_globals_or_in_lists_count():
    x = flow.ones(4, 3)
    layers = [nn.Dropout(0.5)]

    def function(x):
        for layer in layers:
            x = layer(x)
        return GLOBAL(x)

    GLOBAL.train()
    graph = flow.compile(function)
    graph(x)
    GLOBAL.eval()
    layers[0].eval()
    expected = GLOBAL(x).detach().numpy()
    for _ in range(2):
        np.testing.assert_allclose(graph(x).detach().numpy(), expected, rtol=1e-6)
    GLOBAL.train()
    GLOBAL[1].p = 0.0
    np.testing.assert_allclose(graph(x).detach().numpy(), expected, rtol=1e-6)
    GLOBAL.eval()
    assert len(graph.plans) == 3
    assert flow.compile(GLOBAL)(x).shape == (4, 3)
    assert flow.compile(GLOBAL.forward)(x).shape == (4, 3)


def test_steps_in_build_of_another_optimizer_are_refused():
    w = nn.Parameter(flow.ones(1))
    optimizer = flow.optim.SGD([w], lr=0.5)

    class Twice(nn.Graph):
        def build(self):
            w.sum().backward()
            optimizer.step()

    with pytest.raises(CaptureError, match="add_optimizer"):
        Twice()()
    assert w.item() == 1


def test_learning_rates_count_in_build_too():
    w = nn.Parameter(flow.ones(1))
    optimizer = flow.optim.SGD([w], lr=0.5)

    class Scaled(nn.Graph):
        def build(self, x):
            lr = optimizer.param_groups[0]["lr"]
            assert f"{lr:.2f}"
            (w * 0).sum().backward()
            return x * lr + lr

    graph = Scaled()
    graph.add_optimizer(optimizer)
    for lr in (0.5, 0.25, 2.0):
        optimizer.param_groups[0]["lr"] = lr
        assert graph(flow.ones(1)).item() == 2 * lr
    assert len(graph.plans) == 1


def test_messages_of_wrong_graphs():
    class NoInit(nn.Graph):
        def __init__(self):
            pass

    with pytest.raises(ArgumentError, match="super"):
        NoInit()()
    w = nn.Parameter(flow.ones(1))
    optimizer = flow.optim.SGD([w], lr=0.5)
    plateau = flow.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    with pytest.raises(ArgumentTypeError, match="metric"):
        nn.Graph().add_optimizer(optimizer, lr_sch=plateau)
    with flow.config(debug_pass="fuson"), pytest.raises(ArgumentError, match="is not a pass"):
        flow.compile(lambda x: x + 1)(flow.ones(1))


def test_keyword_order_is_no_difference():
    graph = flow.compile(lambda a, b: a - b)
    x, y = flow.ones(1), flow.zeros(1)
    assert graph(a=x, b=y).item() == graph(b=y, a=x).item() == 1
    assert len(graph.plans) == 1
