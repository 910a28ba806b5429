"""Optimizer updates on CUDA against the CPU's: the same arithmetic, but for fused products, which
round once where two operations round twice.
"""

import numpy as np
import pytest
from played import agree, launch, named, on_cpu, play, same

import flowvm as flow
from flowvm.cuda.compiler import compilation
from flowvm.launch import GRAIN
from flowvm.ops.updates.loss_scaling import unscale_, update_scale_

SIZES = (0, 1, 31, 33, 300)
ADAM = (1e-3, 0.9, 0.99, 1e-8, 0.01)
CALLS = [
    *(("sgd_step_", 2, (maximize, 0.1, 0.01)) for maximize in (0, 1)),
    *(
        ("sgd_momentum_step_", 3, (nesterov, 0, 0.1, 0.9, 0.1, 0.01, first))
        for nesterov in (0, 1)
        for first in (0, 1)
    ),
    *(
        ("adam_step_", 4, (decoupled, 1, corrected, *ADAM, 5))
        for decoupled in (0, 1)
        for corrected in (0, 1)
    ),
    *(("amsgrad_step_", 5, (decoupled, 0, 1, *ADAM, 1)) for decoupled in (0, 1)),
]
assert flow.eye(1).numel() == 1  # all ops are declared


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize(("name", "count", "scalars"), CALLS)
@pytest.mark.product(4)
def test_updates(rng, name, count, scalars, n, dtype):
    arrays = [rng.random(n).astype(dtype) for _ in range(count)]
    _, expected = on_cpu(named(name), arrays, (), scalars)
    play(named(name), arrays, (), scalars)
    for actual, right in zip(arrays, expected, strict=True):
        assert actual.dtype == right.dtype
        np.testing.assert_allclose(actual, right, rtol=0, atol=8 * np.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
@pytest.mark.parametrize("n", SIZES)
def test_gradients_are_added(rng, n, dtype):
    total, g = (rng.integers(-9, 9, n).astype(dtype) for _ in range(2))
    agree(named("accumulate_"), [total, g])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", SIZES)
def test_gradients_are_unscaled(rng, n, dtype):
    g, scale = rng.standard_normal(n).astype(dtype), np.array([8.0], np.float32)
    agree(unscale_, [g, scale])
    for bad in (np.inf, -np.inf, np.nan):
        if n > 0:
            g[n // 2] = bad
            agree(unscale_, [g, scale], order="reversed")


def test_each_block_of_a_gradient_says_whether_it_is_finite():
    g = np.ones(2 * GRAIN + 5, np.float32)
    g[GRAIN] = np.inf
    scale = np.array([2.0], np.float32)
    (overflow,), _ = play(unscale_, [g, scale])
    same(overflow, np.array([0, 1, 0], np.float32))


def test_the_scale_is_updated(rng):
    """The scale's one element is left to the generic adapter of bodies."""
    for overflow, tracker in ((1.0, 2), (0.0, 1), (0.0, 3)):
        arrays = [
            np.array([8.0], np.float32), np.array([tracker], np.int32),
            np.array([overflow], np.float32),
        ]  # fmt: skip
        agree(update_scale_, arrays, (), (2.0, 0.5, 4))


OPTIMIZERS = {"SGD": {"momentum": 0.9, "nesterov": True}, "Adam": {"amsgrad": True}, "AdamW": {}}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_with_a_scaler_is_that_of_the_cpu(device, name):
    """The second step has a loss without bounds, so it is skipped, and the scale halves."""
    results = []
    for place in (flow.device("cpu"), device):
        flow.manual_seed(3)
        layer = flow.nn.Linear(4, 3).to(place)
        optimizer = getattr(flow.optim, name)(layer.parameters(), lr=0.01, **OPTIMIZERS[name])
        scaler = flow.amp.GradScaler(growth_interval=2)
        x = flow.arange(32, device=place).reshape(8, 4) / 16
        for size in (1.0, float("inf"), 1.0, 1.0):
            optimizer.zero_grad()
            scaler.scale((layer(x) ** 2).sum() * size).backward()
            scaler.step(optimizer)
            scaler.update()
        assert scaler.get_scale() == 2.0**16  # halved, then doubled
        results.append([p.detach().cpu().numpy() for p in layer.parameters()])
    for cpu, cuda in zip(*results, strict=True):
        np.testing.assert_allclose(cuda, cpu, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_kernels_compile(ptx_of, dtype, monkeypatch):
    monkeypatch.setattr(compilation, "simulated", lambda: False)
    x = np.zeros(1000, dtype)
    plans = [launch(named(name), [x] * count) for name, count, _ in CALLS]
    plans.append(launch(named("accumulate_"), [x, x]))
    plans.append(launch(unscale_, [x, np.ones(1, np.float32)]))
    for one in plans:
        assert all(".entry" in text for text in ptx_of.launch(one, ((7, 0), (10, 0))))
