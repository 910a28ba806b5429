"""Optimizers that `build` steps itself: in the order of eager code, and with its numbers."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import flowvm as flow
from flowvm import nn
from flowvm.errors import CaptureError, CaptureWarning, RecaptureWarning

bce = nn.functional.binary_cross_entropy_with_logits
OPTIMIZERS = {
    "sgd": lambda params: flow.optim.SGD(params, lr=0.1, momentum=0.9),
    "adam": lambda params: flow.optim.Adam(params, lr=0.05),
}


class Pair:
    """A generator and a discriminator, the same in each test, each with its optimizer."""

    def __init__(self, optimizer):
        flow.manual_seed(0)
        self.g = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
        self.d = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 1))
        self.og, self.od = optimizer(self.g.parameters()), optimizer(self.d.parameters())

    def judge(self, x, fake):
        return sum(
            bce(y, flow.full_like(y, label))
            for y, label in ((self.d(x), 1.0), (self.d(fake.detach()), 0.0))
        )

    def step(self, z, x, critics=1):
        """A step of both, as eager code takes it: the generator's sees the new discriminator."""
        fake = self.g(z)
        for _ in range(critics):
            self.od.zero_grad()
            judged = self.judge(x, fake)
            judged.backward()
            self.od.step()
        self.og.zero_grad()
        fooled = bce(self.d(fake), flow.ones(8, 1))
        fooled.backward()
        self.og.step()
        return judged, fooled

    def weights(self):
        return [p.numpy().copy() for p in (*self.g.parameters(), *self.d.parameters())]


def batches(count):
    rng = np.random.default_rng(0)
    draw = lambda *shape: flow.tensor(rng.standard_normal(shape).astype(np.float32))  # noqa: E731
    return [(draw(8, 4), draw(8, 3)) for _ in range(count)]


class Both(nn.Graph):
    def __init__(self, pair, critics=1):
        super().__init__()
        self.pair, self.critics, self.g, self.d = pair, critics, pair.g, pair.d
        self.add_optimizer(pair.od)
        self.add_optimizer(pair.og)

    def build(self, z, x):
        return self.pair.step(z, x, self.critics)


def agree(run, pair, eager, critics=1):
    for z, x in batches(6):
        for ours, theirs in zip(run(z, x), eager.step(z, x, critics), strict=True):
            np.testing.assert_allclose(ours.detach().numpy(), theirs.detach().numpy(), rtol=1e-5)
    for ours, theirs in zip(pair.weights(), eager.weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("critics", [1, 3])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_graph_of_two_optimizers_takes_each_step_where_build_does(name, critics):
    pair, eager = Pair(OPTIMIZERS[name]), Pair(OPTIMIZERS[name])
    agree(Both(pair, critics), pair, eager, critics)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_compiled_function_steps_the_optimizers_that_it_reaches(name):
    pair, eager = Pair(OPTIMIZERS[name]), Pair(OPTIMIZERS[name])
    step = flow.compile(pair.step)
    with warnings.catch_warnings():  # that eager code leaves .grad behind is no reason
        warnings.simplefilter("error", RecaptureWarning)
        agree(step, pair, eager)
    for ours, theirs in zip(
        (*pair.g.parameters(), *pair.d.parameters()),
        (*eager.g.parameters(), *eager.d.parameters()),
        strict=True,
    ):
        np.testing.assert_allclose(ours.grad.numpy(), theirs.grad.numpy(), rtol=1e-4, atol=1e-6)
    assert pair.og.state_dict()["state"].keys() == eager.og.state_dict()["state"].keys()


def test_a_compiled_step_follows_the_rate():
    pair, eager = Pair(OPTIMIZERS["sgd"]), Pair(OPTIMIZERS["sgd"])
    step = flow.compile(pair.step)
    for k, (z, x) in enumerate(batches(5)):
        for one in (pair, eager):
            one.od.param_groups[0]["lr"] = 0.1 / (k + 1)
        step(z, x)
        eager.step(z, x)
    for ours, theirs in zip(pair.weights(), eager.weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_shape_that_data_decide_between_two_steps(name):
    """A shape that depends on data cuts the graph in segments; each step stays in its own."""
    pair, eager = Pair(OPTIMIZERS[name]), Pair(OPTIMIZERS[name])

    def body(one):
        def run(z, x):
            fake = one.g(z)
            one.od.zero_grad()
            judged = one.judge(x, fake)
            judged.backward()
            one.od.step()
            one.og.zero_grad()
            scores = one.d(fake)
            fooled = -flow.masked_select(scores, scores < 0.2).sum()
            fooled.backward()
            one.og.step()
            return judged, fooled

        return run

    step, plain = flow.compile(body(pair)), body(eager)
    for z, x in batches(8):
        for ours, theirs in zip(step(z, x), plain(z, x), strict=True):
            np.testing.assert_allclose(ours.detach().numpy(), theirs.detach().numpy(), rtol=1e-4)
    for ours, theirs in zip(pair.weights(), eager.weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)


def test_gradients_of_two_backwards_that_are_stepped_with_behind_build_are_said():
    pair = Pair(OPTIMIZERS["sgd"])

    class Behind(Both):
        def build(self, z, x):
            fake = self.pair.g(z)
            self.pair.judge(x, fake).backward()
            bce(self.pair.d(fake), flow.ones(8, 1)).backward()

    graph = Behind(pair)
    graph(*batches(1)[0])  # makes the optimizers' state, eagerly
    with pytest.warns(CaptureWarning, match=r"SGD after build, with the sum of the gradients"):
        graph(*batches(1)[0])


def test_a_build_without_backward_is_said_where_its_modules_train():
    layer = nn.Linear(3, 3)

    class Forgets(nn.Graph):
        def __init__(self):
            super().__init__()
            self.layer = layer
            self.add_optimizer(flow.optim.SGD(layer.parameters(), lr=0.1))

        def build(self, x):
            return self.layer(x).sum()

    graph = Forgets()
    graph(flow.ones(2, 3))
    with pytest.warns(CaptureWarning, match=r"did not call backward\(\).*SGD will change nothing"):
        graph(flow.ones(2, 3))
    layer.eval()
    with warnings.catch_warnings():
        warnings.simplefilter("error", CaptureWarning)
        graph(flow.ones(2, 3))  # evaluates


def test_a_step_of_another_graphs_optimizer_names_what_to_do():
    pair, other = Pair(OPTIMIZERS["sgd"]), Pair(OPTIMIZERS["sgd"])

    class Foreign(Both):
        def build(self, z, x):
            other.od.step()

    graph = Foreign(pair)
    graph(*batches(1)[0])
    with pytest.raises(CaptureError, match=r"SGD\.step\(\) in build: .* add_optimizer\(\)"):
        graph(*batches(1)[0])


@pytest.mark.parametrize("name", OPTIMIZERS)  # captured at once; first an eager step
def test_a_step_in_build_is_refused_where_it_would_see_part_of_a_gradient(name):
    pair = Pair(OPTIMIZERS[name])
    graph = Both(pair)
    graph.config.set_gradient_accumulation_steps(2)
    before = pair.weights()
    with pytest.raises(CaptureError, match="over the parts of a batch"):
        graph(*batches(1)[0])
    scaled = Both(pair)
    scaled.set_grad_scaler(flow.amp.GradScaler())
    with pytest.raises(CaptureError, match="has a grad scaler"):
        scaled(*batches(1)[0])
    for then, now in zip(before, pair.weights(), strict=True):
        np.testing.assert_array_equal(then, now)


def test_step_hooks_are_called_in_order_and_may_change_the_closure():
    layer = nn.Linear(2, 2)
    optimizer = flow.optim.SGD(layer.parameters(), lr=0.1)
    calls = []
    first = optimizer.register_step_pre_hook(
        lambda own, args, kwargs: calls.append(("pre", own is optimizer, args, kwargs))
    )
    optimizer.register_step_pre_hook(lambda own, args, kwargs: ((lambda: 7.0,), {}))
    optimizer.register_step_post_hook(lambda own, args, kwargs: calls.append(("post", len(args))))
    assert optimizer.step() == 7.0
    assert calls == [("pre", True, (), {}), ("post", 1)]
    first.remove()
    optimizer.step()
    assert calls[2:] == [("post", 1)]
    optimizer.register_step_pre_hook(lambda own, args, kwargs: 3)
    with pytest.raises(flow.errors.ArgumentTypeError, match="returns None or"):
        optimizer.step()


class Halved(flow.optim.SGD):
    """A step of its own, which runs no hooks."""

    def step(self, closure=None):
        with flow.no_grad():
            for group in self.param_groups:
                for p in group["params"]:
                    p.sub_(p.grad * 0.5)


@pytest.mark.parametrize("of_the_instance", [False, True])
def test_a_step_of_the_subclass_own_is_noticed(of_the_instance):
    """The graph took it once more, behind build."""

    def new_optimizer():
        w = nn.Parameter(flow.ones(3))
        if not of_the_instance:
            return w, Halved([w], lr=1.0)
        optimizer = flow.optim.SGD([w], lr=1.0)
        optimizer.step = lambda: Halved.step(optimizer)
        return w, optimizer

    class Graph(nn.Graph):
        def __init__(self, w, optimizer):
            super().__init__()
            self.w, self.own = w, optimizer
            self.add_optimizer(optimizer)

        def build(self, x):
            self.own.zero_grad()
            loss = (self.w * x).sum()
            loss.backward()
            self.own.step()
            return loss

    w, optimizer = new_optimizer()
    own = vars(optimizer).get("step")
    graph = Graph(w, optimizer)
    for n in range(1, 4):
        graph(flow.ones(3))
        assert w.tolist() == [1 - 0.5 * n] * 3
    assert vars(optimizer).get("step") is own


@pytest.mark.parametrize("name", ["SGD", "Adam", "Adagrad", "ASGD", "RMSprop"])
def test_a_step_that_begins_with_zero_grad_is_captured_once(name):
    """The values in `.grad` do not matter to such a step; else it has a Plan of its own."""
    results = []
    for compiled in (True, False):
        net = nn.Linear(3, 2)
        with flow.no_grad():
            net.weight.copy_(flow.arange(6.0).reshape(2, 3) / 6)
            net.bias.zero_()
        opt = getattr(flow.optim, name)(net.parameters(), lr=0.1)

        def step(x, fresh=True, net=net, opt=opt):
            if fresh:
                opt.zero_grad()
            loss = (net(x) ** 2).mean()
            loss.backward()
            opt.step()
            return loss.detach()

        run = flow.compile(step) if compiled else step
        with warnings.catch_warnings():
            warnings.simplefilter("error", RecaptureWarning)
            losses = [run(flow.ones(4, 3) + k).item() for k in range(4)]
            assert not compiled or len(run.plans) == 1
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RecaptureWarning)
            for fresh in (False, False, True, False, True):  # gradients add up, and are forgotten
                losses.append(run(flow.ones(4, 3), fresh).item())
                losses += net.weight.grad.reshape(-1).tolist()
            net.zero_grad()
            losses.append(run(flow.ones(4, 3), False).item())
            losses += net.weight.grad.reshape(-1).tolist()
        results.append(losses)
    np.testing.assert_allclose(*results, rtol=1e-5, atol=1e-7)


def test_a_cleared_grad_stays_cleared():
    x = flow.ones(2, requires_grad=True)

    @flow.compile
    def forget(a, learn):
        x.grad = None
        out = (a * x).sum()
        if learn:
            out.backward()
        return out.detach()

    def check():
        forget(flow.ones(2), True)
        assert x.grad.tolist() == [1, 1]
        forget(flow.ones(2), False)
        assert x.grad is None

    forget(flow.ones(2), True)
    x.grad = None
    with pytest.warns(RecaptureWarning, match="argument 1"):
        check()
    with warnings.catch_warnings():
        warnings.simplefilter("error", RecaptureWarning)
        check()
        check()


def test_a_grad_that_is_looked_at_has_plans_of_its_own():
    x = flow.ones(2, requires_grad=True)

    @flow.compile
    def step(a):
        before = x.grad is None
        x.grad = None
        (a * x).sum().backward()
        return a + 1 if before else a

    with pytest.warns(RecaptureWarning, match=r"\.grad of the leaves"):
        assert [step(flow.ones(1)).item() for _ in range(3)] == [2, 1, 1]
