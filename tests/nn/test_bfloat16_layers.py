"""Layers, optimizers, mixed precision and graphs in bfloat16: against float32, and against PyTorch
where it decides.
"""

import numpy as np
import pytest

import flowvm as flow
from flowvm.eager.values import memory_of, values_of
from flowvm.errors import ArgumentError
from flowvm.nn import functional as F

bf = flow.bfloat16
STEP = 2.0**-7

LAYERS = {
    "linear": lambda x: F.linear(x, x[:5] * 0.3, x[:5, 0]),
    "gelu": F.gelu,
    "softmax": lambda x: F.softmax(x, -1),
    "layer_norm": lambda x: F.layer_norm(x, (8,)),
    "batch_norm": lambda x: F.batch_norm(x, None, None, training=True),
    "conv": lambda x: F.conv2d(x.reshape(1, 2, 4, 8), x[:4].reshape(2, 2, 2, 4) * 0.3),
    "average": lambda x: F.avg_pool2d(x.reshape(1, 1, 8, 8), 2),
    "cross_entropy": lambda x: F.cross_entropy(x, flow.arange(8)),
    "mse": lambda x: F.mse_loss(x, x.detach().flip(0)),
    "norm": lambda x: x.norm(dim=1),
}


@pytest.mark.parametrize("name", LAYERS)
def test_values_and_gradients_are_float32s_rounded(name, rng):
    numbers = bf.loaded(bf.stored(rng.standard_normal((8, 8))))
    results = {}
    for dtype in (bf, flow.float32):
        x = flow.tensor(numbers, dtype=dtype, requires_grad=True)
        out = LAYERS[name](x)
        (out * out).sum().backward()
        assert out.dtype is dtype is x.grad.dtype
        results[dtype] = values_of(out), values_of(x.grad)
    for low, full in zip(results[bf], results[flow.float32], strict=True):
        scale = float(np.abs(full).max()) + 1
        np.testing.assert_allclose(low, full, 8 * STEP, 8 * STEP * scale)


OPTIMIZERS = {
    "SGD": {"momentum": 0.9}, "Adam": {}, "AdamW": {"weight_decay": 0.1},
}  # fmt: skip


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizers_step_is_that_of_float32_rounded(name, rng):
    weights, gradients = (bf.loaded(bf.stored(rng.standard_normal(50))) for _ in range(2))
    stepped = {}
    for dtype in (bf, flow.float32):
        p = flow.nn.Parameter(flow.tensor(weights, dtype=dtype))
        p.grad = flow.tensor(gradients, dtype=dtype)
        getattr(flow.optim, name)([p], lr=0.125, **OPTIMIZERS[name]).step()
        assert p.dtype is dtype
        stepped[dtype] = values_of(p.detach())
    full = stepped[flow.float32]
    # the weight is rounded, and before it what is kept of the gradient, which moves by lr at most
    np.testing.assert_allclose(stepped[bf], full, STEP, 4 * STEP * 0.125 * 4)


# --- mixed precision ------------------------------------------------------------------------------


def test_autocast_in_bfloat16():
    a, half = flow.ones(4, 4), flow.ones(4, 4).half()
    with flow.autocast("cpu", dtype=bf):
        assert (a @ a).dtype is bf
        assert (a @ half).dtype is bf
        assert (a @ a).exp().dtype is flow.float32
        assert half.exp().dtype is flow.float32
        assert F.linear(a, a).softmax(1).dtype is flow.float32
        assert (a.double() @ a.double()).dtype is flow.float64
        with flow.autocast("cpu", dtype=flow.float16):
            assert (a @ a.to(bf)).dtype is flow.float16
        with flow.autocast("cpu", enabled=False):
            assert (a @ a).dtype is flow.float32
    with pytest.raises(ArgumentError, match=r"flow.float16 or flow.bfloat16, got flow.float64"):
        flow.autocast("cpu", dtype=flow.float64)


def train(steps, rng_seed, dtype, compiled=False, scaler=None):
    flow.manual_seed(rng_seed)
    model = flow.nn.Sequential(flow.nn.Linear(6, 16), flow.nn.Tanh(), flow.nn.Linear(16, 3))
    x, y = flow.randn(12, 6), flow.randint(0, 3, (12,))
    optimizer = flow.optim.SGD(model.parameters(), lr=0.5)

    class Step(flow.nn.Graph):
        def __init__(self):
            super().__init__()
            self.model = model
            self.add_optimizer(optimizer)
            self.config.enable_amp(True, dtype=dtype)

        def build(self, x, y):
            loss = F.cross_entropy(self.model(x), y)
            loss.backward()
            return loss

    def eager(x, y):
        optimizer.zero_grad()
        with flow.autocast("cpu", dtype=dtype):
            loss = F.cross_entropy(model(x), y)
        if scaler is None:
            loss.backward()
            optimizer.step()
        else:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        return loss

    step = Step() if compiled else eager
    return [step(x, y).item() for _ in range(steps)], [p.detach() for p in model.parameters()]


def test_training_in_mixed_precision(seed):
    losses, weights = train(8, seed, bf)
    assert losses[-1] < losses[0]
    assert {w.dtype for w in weights} == {flow.float32}
    graphs, same = train(8, seed, bf, compiled=True)
    np.testing.assert_allclose(graphs, losses, rtol=1e-2)
    for a, b in zip(same, weights, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=0, atol=4 * STEP)
    scaled, _ = train(8, seed, bf, scaler=flow.amp.GradScaler("cpu", init_scale=1024.0))
    np.testing.assert_allclose(scaled, losses, rtol=1e-2)  # powers of two change no digit


# --- graphs ---------------------------------------------------------------------------------------


def test_a_module_in_bfloat16_is_saved_and_compiled(tmp_path, seed):
    model = flow.nn.Sequential(
        flow.nn.Linear(5, 7), flow.nn.ReLU(), flow.nn.LayerNorm(7)
    ).bfloat16()
    assert {p.dtype for p in model.parameters()} == {bf}
    x = flow.randn(4, 5).to(bf)
    flow.save(model.state_dict(), tmp_path / "weights")
    other = flow.nn.Sequential(
        flow.nn.Linear(5, 7), flow.nn.ReLU(), flow.nn.LayerNorm(7)
    ).bfloat16()
    other.load_state_dict(flow.load(tmp_path / "weights"))
    expected = model(x)
    assert (other(x) == expected).all()
    compiled = flow.compile(lambda x: model(x) * 2 + 1)
    np.testing.assert_array_equal(memory_of(compiled(x)), memory_of(expected * 2 + 1))
