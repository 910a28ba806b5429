"""Mixed precision in graphs: what a loop with autocast and GradScaler does, bit for bit."""

from __future__ import annotations

import copy

import numpy as np
import pytest

import flowvm as flow
from flowvm.errors import ArgumentError, ArgumentTypeError
from flowvm.graph.logical.interpret import interpret

nn, F = flow.nn, flow.nn.functional
half = flow.float16
pytestmark = pytest.mark.filterwarnings("ignore::flowvm.errors.RecaptureWarning")


class Training(nn.Graph):
    def __init__(self, model, optimizers=(), scaler=None, clip=0.0):
        super().__init__()
        self.model, self.clip = model, clip
        self.optimizers = list(optimizers)
        for optimizer in self.optimizers:
            self.add_optimizer(optimizer)
        if scaler is not None:
            self.set_grad_scaler(scaler)

    def build(self, x, y):
        loss = F.cross_entropy(self.model(x), y)
        loss.backward()
        if self.clip:
            self._scaler.unscale_(self.optimizers[0])
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        return loss


def mlp():
    return nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 4))


def cnn():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Dropout(0.1), nn.Linear(64, 4),
    )  # fmt: skip


MODELS = {"mlp": (mlp, (8,)), "cnn": (cnn, (1, 8, 8))}
OPTIMIZERS = {
    "sgd": lambda p: flow.optim.SGD(p, lr=0.1),
    "momentum": lambda p: flow.optim.SGD(p, lr=0.1, momentum=0.9),
    "adamw": lambda p: flow.optim.AdamW(p, lr=0.01),
}


def batches(shape, count, bad=()):
    """Yield inputs and labels; the batches in `bad` overflow."""
    rng = np.random.default_rng(0)
    for k in range(count):
        x = rng.standard_normal((6, *shape)).astype(np.float32)
        if k in bad:
            x[0] = np.inf
        yield flow.from_numpy(x), flow.from_numpy(rng.integers(0, 4, 6))


def eager(model, optimizers, scaler, data, amp=True, clip=0.0):
    losses = []
    for x, y in data:
        for optimizer in optimizers:
            optimizer.zero_grad()
        with flow.autocast(dtype=flow.float16, enabled=amp):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        if clip:
            scaler.unscale_(optimizers[0])
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return losses


def same_state(ours, theirs, tolerance=0.0):
    for (name, a), b in zip(ours.state_dict().items(), theirs.state_dict().values(), strict=True):
        np.testing.assert_allclose(
            a.numpy(), b.numpy(), rtol=tolerance, atol=tolerance, err_msg=name
        )


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("name", MODELS)
def test_training_with_overflows_is_eager_training(name, kind):
    make, shape = MODELS[name]
    flow.manual_seed(0)
    model = make()
    other = copy.deepcopy(model)
    data = list(batches(shape, 9, bad=(3, 6)))
    if name == "cnn":  # an infinity would stay in the running statistics
        data = [(flow.nan_to_num(x, posinf=1e30), y) for x, y in data]
    options = {"init_scale": 256.0, "growth_interval": 2}
    scalers = [flow.amp.GradScaler(**options) for _ in range(2)]
    optimizers = [OPTIMIZERS[kind](m.parameters()) for m in (model, other)]
    graph = Training(model, optimizers[:1], scalers[0])
    graph.config.enable_amp(True)
    flow.manual_seed(1)
    losses = [graph(x, y).item() for x, y in data]
    flow.manual_seed(1)
    expected = eager(other, optimizers[1:], scalers[1], data)
    np.testing.assert_allclose(losses, expected, rtol=2e-3)
    same_state(model, other, 4e-3)
    assert scalers[0].state_dict() == scalers[1].state_dict()
    steps = [[e.get("step") for e in o.state.values()] for o in optimizers]
    assert steps[0] == steps[1]
    assert len({f"{s:g}" for s in losses}) > 3


def test_without_passes_every_bit_is_eager_codes():
    flow.manual_seed(0)
    model = mlp()
    other = copy.deepcopy(model)
    data = list(batches((8,), 6, bad=(2,)))
    optimizers = [OPTIMIZERS["adamw"](m.parameters()) for m in (model, other)]
    scalers = [flow.amp.GradScaler(init_scale=64.0) for _ in range(2)]
    graph = Training(model, optimizers[:1], scalers[0])
    graph.config.enable_amp(True)
    graph.config.disable(*graph.config.passes)
    losses = [graph(x, y).item() for x, y in data]
    np.testing.assert_array_equal(losses, eager(other, optimizers[1:], scalers[1], data))
    same_state(model, other)


def test_clipping_in_build_between_unscale_and_step():
    flow.manual_seed(0)
    model = mlp()
    other = copy.deepcopy(model)
    data = list(batches((8,), 5, bad=(3,)))
    optimizers = [OPTIMIZERS["momentum"](m.parameters()) for m in (model, other)]
    scalers = [flow.amp.GradScaler(init_scale=64.0) for _ in range(2)]
    graph = Training(model, optimizers[:1], scalers[0], clip=0.1)
    losses = [graph(x, y).item() for x, y in data]
    expected = eager(other, optimizers[1:], scalers[1], data, amp=False, clip=0.1)
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    same_state(model, other, 1e-5)


def test_two_optimizers_are_skipped_each_for_itself():
    a, b = flow.ones(2, requires_grad=True), flow.ones(2, requires_grad=True)

    class Both(nn.Graph):
        def __init__(self):
            super().__init__()
            self.a, self.b = a, b
            self.add_optimizer(flow.optim.SGD([a], lr=1.0))
            self.add_optimizer(flow.optim.SGD([b], lr=1.0))
            self.set_grad_scaler(flow.amp.GradScaler(init_scale=4.0))

        def build(self, x, y):
            ((self.a * x).sum() + (self.b * y).sum()).backward()

    graph = Both()
    one, inf = flow.ones(2), flow.full((2,), np.inf)
    for x, y in ((one, one), (one, one), (inf, one), (one, inf), (inf, inf), (one, one)):
        graph(x, y)
    assert a.tolist() == [1 - 4.0] * 2
    assert b.tolist() == [1 - 4.0] * 2
    assert graph._scaler.get_scale() == 0.5


@pytest.mark.parametrize(
    "scaler",
    [flow.amp.StaticGradScaler(128.0), flow.amp.GradScaler(enabled=False)],
    ids=["static", "disabled"],
)
def test_static_and_disabled_scalers(scaler):
    flow.manual_seed(0)
    model = mlp()
    other = copy.deepcopy(model)
    data = list(batches((8,), 4))
    optimizers = [OPTIMIZERS["sgd"](m.parameters()) for m in (model, other)]
    graph = Training(model, optimizers[:1], scaler)
    losses = [graph(x, y).item() for x, y in data]
    expected = eager(other, optimizers[1:], flow.amp.GradScaler(enabled=False), data, amp=False)
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    same_state(model, other, 1e-5)


# --- autocast in graphs -------------------------------------------------------------------------


def test_enable_amp_is_autocast_around_build():
    flow.manual_seed(0)
    model = mlp()
    x = flow.randn(5, 8)

    class Forward(nn.Graph):
        def __init__(self):
            super().__init__()
            self.model = model

        def build(self, x):
            return self.model(x)

    graph = Forward()
    assert graph(x).dtype is flow.float32
    graph.config.enable_amp(True, dtype=half)
    out = graph(x)
    with flow.autocast(dtype=flow.float16):
        expected = model(x)
    assert out.dtype is half is expected.dtype
    np.testing.assert_allclose(out.numpy(), expected.numpy(), rtol=4e-3, atol=1e-3)
    assert any(n.operator.name == "cast" for n in graph.graphs[-1].nodes)
    graph.config.enable_amp(False)
    assert graph(x).dtype is flow.float32
    assert len(graph.plans) == 2


def test_a_region_around_the_call_counts_and_is_part_of_what_a_plan_is_for():
    w = flow.randn(4, 4, requires_grad=True)
    graph = flow.compile(lambda x: x @ w)
    x = flow.randn(2, 4)
    for _ in range(2):
        assert graph(x).dtype is flow.float32
        with flow.autocast(dtype=flow.float16):
            eager_product = x @ w  # keeps a converted w, which the capture must not take
            np.testing.assert_array_equal(graph(x).numpy(), eager_product.numpy())
            with flow.autocast(enabled=False):
                assert graph(x).dtype is flow.float32
    with flow.no_grad():
        w.mul_(2)
    with flow.autocast(dtype=flow.float16):
        np.testing.assert_array_equal(graph(x).numpy(), (x @ w).numpy())
    assert len(graph.plans) == 2


def test_a_region_inside_build():
    w = flow.randn(4, 4)

    def f(x):
        with flow.autocast(dtype=flow.float16):
            y = x @ w
        return y, x @ w

    x = flow.randn(2, 4)
    low, full = flow.compile(f)(x)
    assert low.dtype is half
    assert full.dtype is flow.float32
    np.testing.assert_array_equal(low.numpy(), f(x)[0].numpy())


def test_the_optimized_graph_is_the_captured_one_interpreted():
    flow.manual_seed(0)
    model = mlp()
    graph = flow.compile(lambda x: model(x).softmax(-1))
    x = flow.randn(5, 8)
    with flow.autocast(dtype=flow.float16), flow.no_grad():
        graph(x)
    with flow.no_grad():
        (expected,) = interpret(graph.graphs[0], [x])
        with flow.autocast(dtype=flow.float16):
            np.testing.assert_allclose(graph(x).numpy(), expected.numpy(), rtol=2e-3, atol=1e-4)


def test_constants_of_a_graph_are_not_converted_when_they_are_folded():
    def f(x):
        table = flow.ones(3, 3).half() * 2
        with flow.autocast(enabled=False):
            table = table.exp()  # float16, whatever is around the call
        return x + table

    x = flow.ones(3, 3)
    graph = flow.compile(f)
    for _ in range(2):
        with flow.autocast(dtype=flow.float16):
            ours, theirs = graph(x), f(x)
        assert ours.dtype is theirs.dtype
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())
    with flow.autocast(dtype=flow.float16):
        (again,) = interpret(graph.graphs[0], [x])
    np.testing.assert_array_equal(again.numpy(), theirs.numpy())


def test_gradient_accumulation_with_a_scaler():
    flow.manual_seed(0)
    model = mlp()
    other = copy.deepcopy(model)
    optimizers = [OPTIMIZERS["adamw"](m.parameters()) for m in (model, other)]
    scalers = [flow.amp.GradScaler(init_scale=64.0) for _ in range(2)]
    graph = Training(model, optimizers[:1], scalers[0])
    graph.config.enable_amp(True)
    graph.config.set_gradient_accumulation_steps(2)
    for x, y in batches((8,), 5, bad=(2,)):
        graph(x, y)
        optimizers[1].zero_grad()
        for rows in (slice(0, 3), slice(3, 6)):
            with flow.autocast(dtype=flow.float16):
                loss = F.cross_entropy(other(x[rows]), y[rows]) / 2
            scalers[1].scale(loss).backward()
        scalers[1].step(optimizers[1])
        scalers[1].update()
    same_state(model, other, 4e-3)
    assert scalers[0].state_dict() == scalers[1].state_dict()


# --- what is refused ----------------------------------------------------------------------------


def test_a_scaler_is_set_once_and_before_the_first_call():
    graph = Training(mlp())
    with pytest.raises(ArgumentTypeError):
        graph.set_grad_scaler(2.0)
    graph = flow.compile(lambda x: x + 1)
    graph(flow.ones(2))
    with pytest.raises(ArgumentError, match="before the first call"):
        graph.set_grad_scaler(flow.amp.GradScaler())


def test_an_error_in_build_leaves_the_scaler_usable():
    w = flow.ones(2, requires_grad=True)
    scaler = flow.amp.GradScaler(init_scale=2.0)
    optimizer = flow.optim.SGD([w], lr=1.0)
    fails = iter((False, True, False, False))

    class Failing(nn.Graph):
        def __init__(self):
            super().__init__()
            self.w = w
            self.add_optimizer(optimizer)
            self.set_grad_scaler(scaler)

        def build(self, x):
            (self.w * x).sum().backward()
            scaler.unscale_(optimizer)
            if next(fails):
                raise KeyError("no")

    graph = Failing()
    graph(flow.ones(2))
    with pytest.raises(KeyError):
        graph(flow.ones(2))
    for _ in range(2):
        graph(flow.ones(2))
    assert w.tolist() == [-2.0, -2.0]


def test_explain_says_that_the_scaler_decides():
    graph = Training(mlp(), scaler=flow.amp.GradScaler())
    optimizer = OPTIMIZERS["adamw"](graph.model.parameters())
    graph.add_optimizer(optimizer)
    for x, y in batches((8,), 3):
        graph(x, y)
    assert "decision" in graph.explain()
    assert "2 segments" in graph.explain()
