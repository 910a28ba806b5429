"""Training on a device as a user writes it, against the same on the CPU: layers, losses,
optimizers, schedules, mixed precision, autograd's features, graphs.
"""

import itertools

import numpy as np
import pytest

import flowvm as flow
from flowvm import nn
from flowvm.autograd import Function
from flowvm.errors import AutogradError
from flowvm.nn import functional as F
from flowvm.utils.checkpoint import checkpoint

# layers by family: how they are made, and the shape of their input
LAYERS = {
    "linear": (lambda: nn.Sequential(nn.Linear(5, 4), nn.GELU(), nn.Linear(4, 3)), (4, 5)),
    "conv1d": (lambda: nn.Sequential(nn.Conv1d(2, 3, 3, padding=1), nn.SiLU()), (2, 2, 5)),
    "conv2d": (lambda: nn.Conv2d(2, 4, 3, stride=2, padding=1, groups=2), (2, 2, 4, 5)),
    "batch norm": (lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)), (5, 3)),
    "batch norm 2d": (lambda: nn.BatchNorm2d(2), (2, 2, 3, 3)),
    "layer norm": (lambda: nn.Sequential(nn.LayerNorm(6), nn.Tanh()), (3, 6)),
    "group norm": (lambda: nn.GroupNorm(2, 4), (2, 4, 3)),
    "instance norm": (lambda: nn.InstanceNorm2d(2, affine=True), (2, 2, 3, 3)),
    "rms norm": (lambda: nn.RMSNorm(4), (3, 4)),
    "bilinear": (lambda: Halves(), (3, 4)),
    "max pool": (lambda: nn.Sequential(nn.Conv2d(1, 2, 2), nn.MaxPool2d(2)), (2, 1, 5, 5)),
    "average pool": (lambda: nn.Sequential(nn.Conv1d(1, 2, 2), nn.AvgPool1d(2)), (2, 1, 7)),
    "adaptive pool": (
        lambda: nn.Sequential(nn.Conv2d(1, 2, 1), nn.AdaptiveAvgPool2d(2), nn.Flatten()),
        (2, 1, 3, 5),
    ),
    "upsample": (
        lambda: nn.Sequential(nn.Conv2d(1, 2, 1), nn.Upsample(scale_factor=2)),
        (1, 1, 2, 3),
    ),
    "prelu": (lambda: nn.Sequential(nn.PReLU(3), nn.Softmax(1)), (4, 3)),
}


class Halves(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Bilinear(2, 2, 3)

    def forward(self, x):
        return self.layer(x[:, :2], x[:, 2:])


LOSSES = {
    "cross entropy": (nn.CrossEntropyLoss(label_smoothing=0.1), "classes"),
    "nll": (lambda x, y: F.nll_loss(x.log_softmax(1), y), "classes"),
    "mse": (nn.MSELoss(), "like"),
    "l1": (nn.L1Loss(), "like"),
    "smooth l1": (nn.SmoothL1Loss(), "like"),
    "huber": (nn.HuberLoss(), "like"),
    "bce": (nn.BCEWithLogitsLoss(), "like"),
    "kl": (lambda x, y: F.kl_div(x.log_softmax(1), y.softmax(1), reduction="batchmean"), "like"),
    "soft margin": (nn.SoftMarginLoss(), "like"),
}

OPTIMIZERS = {
    "SGD": (flow.optim.SGD, {"lr": 0.1}),
    "momentum": (flow.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "weight decay": (flow.optim.SGD, {"lr": 0.1, "weight_decay": 0.01}),
    "Adam": (flow.optim.Adam, {"lr": 0.01}),
    "AMSGrad": (flow.optim.Adam, {"lr": 0.01, "amsgrad": True}),
    "AdamW": (flow.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1}),
}

late = pytest.mark.parametrize("device", ["late"], indirect=True)


def mlp():
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))


def batch(seed, *shape):
    return flow.tensor(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def arrays(model, grads=False):
    """Return the arrays of a model: parameters and buffers, and gradients on request."""
    arrays = {k: v.numpy() for k, v in model.state_dict().items()}
    if grads:
        arrays |= {f"{k}.grad": p.grad.numpy() for k, p in model.named_parameters()}
    return arrays


def agree(actual, expected, tolerance=2e-5):
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(
            actual[name], value, rtol=tolerance, atol=tolerance, err_msg=name
        )


def on_both(device, train):
    """`train(place)` on the device and on the CPU, with the same random numbers: both results."""
    results = []
    for place in (device, "cpu"):
        flow.manual_seed(11)
        results.append(train(place))
    return results


# --- layers, losses, optimizers -------------------------------------------------------------------


@late
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_trains_as_on_the_cpu(device, seed, name):
    make, shape = LAYERS[name]

    def train(place):
        model = make().to(place)
        x = batch(seed, *shape).to(place).requires_grad_()
        optimizer = flow.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            out = model(x)
            (out * out.detach().cos()).sum().backward()
            optimizer.step()
        assert all(p.device.type == flow.device(place).type for p in model.parameters())
        return arrays(model, grads=True) | {"out": out.detach().numpy(), "x": x.grad.numpy()}

    agree(*on_both(device, train))


@late
def test_embeddings_train_as_on_the_cpu(device):
    def train(place):
        model = nn.Sequential(nn.Embedding(6, 3, padding_idx=0), nn.Linear(3, 2)).to(place)
        x = flow.tensor([[0, 2, 5], [2, 2, 1]], device=place)
        bag = nn.EmbeddingBag(6, 3, mode="mean").to(place)
        (model(x).sum() + bag(x).square().sum()).backward()
        return arrays(model, grads=True) | {"bag": bag.weight.grad.numpy()}

    agree(*on_both(device, train))


@late
def test_evaluation_drops_nothing_and_uses_running_statistics(device, seed):
    def train(place):
        model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout(0.5)).to(place)
        x = batch(seed, 5, 4).to(place)
        model(x)
        return arrays(model) | {"out": model.eval()(x).detach().numpy()}

    agree(*on_both(device, train))


@late
def test_dropout_draws_the_cpu_s_numbers(device):
    def train(place):
        return {"out": nn.Dropout(0.3)(flow.ones(40, device=place)).numpy()}

    agree(*on_both(device, train), tolerance=1e-7)


@late
@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_is_the_cpu_s(device, seed, name):
    loss, kind = LOSSES[name]

    def train(place):
        x = batch(seed, 4, 3).to(place).requires_grad_()
        y = flow.tensor([0, 2, 1, 1]) if kind == "classes" else batch(seed + 1, 4, 3).sigmoid()
        value = loss(x, y.to(place))
        value.backward()
        return {"loss": value.detach().numpy(), "grad": x.grad.numpy()}

    agree(*on_both(device, train))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_steps_as_on_the_cpu(device, seed, name):
    kind, options = OPTIMIZERS[name]

    def train(place):
        model = mlp().to(place)
        optimizer = kind(model.parameters(), **options)
        x, y = batch(seed, 6, 4).to(place), flow.tensor([0, 1, 2, 0, 1, 2], device=place)
        for _ in range(3):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        for state in optimizer.state.values():
            assert {
                v.device.type for v in state.values() if isinstance(v, flow.Tensor) and v.ndim
            } <= {flow.device(place).type}
        return arrays(model)

    agree(*on_both(device, train))


@late
def test_clipping_and_a_schedule(device, seed):
    def train(place):
        model = mlp().to(place)
        optimizer = flow.optim.SGD(model.parameters(), lr=0.5)
        schedule = flow.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=4)
        norms = []
        for step in range(3):
            optimizer.zero_grad()
            (model(batch(seed + step, 3, 4).to(place)).square().sum() * 10).backward()
            norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.7).item())
            nn.utils.clip_grad_value_(model.parameters(), 0.4)
            optimizer.step()
            schedule.step()
        return arrays(model) | {"norms": np.array(norms), "lr": np.array(schedule.get_last_lr())}

    agree(*on_both(device, train))


# --- mixed precision ------------------------------------------------------------------------------


@late
def test_autocast_and_a_scaler(device, seed):
    def train(place):
        kind = flow.device(place).type
        model = mlp().to(place)
        optimizer = flow.optim.SGD(model.parameters(), lr=0.1)
        scaler = flow.amp.GradScaler(kind, init_scale=256.0, growth_interval=2)
        for step in range(4):
            optimizer.zero_grad()
            with flow.autocast(kind, dtype=flow.float16):
                out = model(batch(seed, 4, 4).to(place))
                assert out.dtype is flow.float16
                loss = out.float().square().mean()
            if step == 1:
                loss = loss * float("inf")  # this step must be left out, and the scale halved
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
        return arrays(model) | {"scale": np.array(scaler.get_scale())}

    agree(*on_both(device, train), tolerance=5e-3)


# --- autograd -------------------------------------------------------------------------------------


class Cube(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * x * x * g


@late
def test_functions_hooks_and_second_derivatives(device, seed):
    def train(place):
        x = batch(seed, 3).to(place).requires_grad_()
        calls = []
        x.register_hook(lambda g: calls.append(g) or g * 2)
        y = Cube.apply(x).sum() + (x.sin() * x).sum()
        (first,) = flow.autograd.grad(y, x, create_graph=True)
        first.square().sum().backward()
        assert all(g.device is x.device for g in (first, *calls, x.grad))
        return {"first": first.detach().numpy(), "second": x.grad.numpy()}

    agree(*on_both(device, train))


@late
def test_module_hooks_and_checkpoints(device, seed):
    def train(place):
        model, calls = mlp().to(place), []
        model[0].register_forward_hook(lambda m, a, out: calls.append(out.detach()))
        model[2].register_full_backward_hook(lambda m, gi, go: calls.append(go[0]))
        x = batch(seed, 3, 4).to(place).requires_grad_()
        checkpoint(model, x, use_reentrant=False).square().sum().backward()
        assert len(calls) >= 2
        return arrays(model, grads=True) | {"x": x.grad.numpy(), "seen": calls[0].numpy()}

    agree(*on_both(device, train))


@late
def test_gradients_cross_devices(device, seed):
    def train(place):
        x = batch(seed, 3).requires_grad_()
        scale = flow.tensor(2.0, requires_grad=True)  # on the CPU: a number beside device tensors
        ((x.to(place) * scale).exp().cpu() * x).sum().backward()
        assert (x.grad.device.type, scale.grad.device.type) == ("cpu", "cpu")
        return {"x": x.grad.numpy(), "scale": scale.grad.numpy()}

    agree(*on_both(device, train))


@late
def test_a_gradient_must_be_where_its_tensor_is(device):
    x = flow.ones(3, device=device, requires_grad=True)
    with pytest.raises(AutogradError, match="is on cpu and output"):
        (x * 2).backward(flow.ones(3))


# --- moving models --------------------------------------------------------------------------------


def test_a_model_moves_in_place_and_its_optimizer_goes_on(device, seed):
    def train(place):
        model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
        before = list(model.parameters())
        optimizer = flow.optim.SGD(model.parameters(), lr=0.1)
        for where in (place, "cpu", place):
            assert model.to(where) is model
            assert all(a is b for a, b in zip(model.parameters(), before, strict=True))
            held = itertools.chain(model.parameters(), model.buffers())
            assert {t.device for t in held} == {flow.device(where)}
            optimizer.zero_grad()
            model(batch(seed, 5, 4).to(where)).square().sum().backward()
            optimizer.step()
        return arrays(model)

    agree(*on_both(device, train))


def test_checkpoints_of_models_and_optimizers_go_to_any_device(device, seed, tmp_path):
    def make(place):
        model = mlp().to(place)
        return model, flow.optim.Adam(model.parameters(), lr=0.01)

    def step(model, optimizer, place):
        optimizer.zero_grad()
        model(batch(seed, 3, 4).to(place)).square().sum().backward()
        optimizer.step()

    flow.manual_seed(1)
    model, optimizer = make(device)
    step(model, optimizer, device)
    path = tmp_path / "last.safetensors"
    flow.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
    step(model, optimizer, device)
    expected = arrays(model)
    for place, location in ((device, None), (device, device), ("cpu", device), ("cpu", "cpu")):
        saved = flow.load(path, map_location=location)
        home = flow.device("cpu" if location is None else location)
        assert saved["model"]["0.weight"].device == home
        again, stepper = make(place)
        again.load_state_dict(saved["model"])
        stepper.load_state_dict(saved["optimizer"])
        step(again, stepper, place)
        assert again[0].weight.device == flow.device(place)
        agree(arrays(again), expected)
    moved = flow.load(path, map_location={"cpu": device})
    assert moved["model"]["0.weight"].device == flow.device(device)
    with pytest.raises(TypeError, match="expected a device"):
        flow.load(path, map_location=1.5)


# --- graphs ---------------------------------------------------------------------------------------


class Cnn(nn.Graph):
    def __init__(self, place):
        super().__init__()
        self.model = nn.Sequential(
            nn.Conv2d(1, 2, 3, padding=1), nn.BatchNorm2d(2), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(8, 3),
        ).to(place)  # fmt: skip
        self.optimizer = flow.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.add_optimizer(self.optimizer)

    def build(self, x, y):
        loss = F.cross_entropy(self.model(x), y)
        loss.backward()
        return loss


def test_a_convolutional_network_trains_in_a_graph(device, seed):
    def train(place):
        step, losses = Cnn(place), []
        for k in range(4):
            x = batch(seed + k, 2, 1, 4, 4).to(place)
            losses.append(step(x, flow.tensor([k % 3, 1], device=place)))
        return arrays(step.model) | {"losses": np.array([value.item() for value in losses])}

    agree(*on_both(device, train), tolerance=1e-4)
