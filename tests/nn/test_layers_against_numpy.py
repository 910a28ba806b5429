"""Layers against NumPy written out, so that there is an oracle where torch is not installed."""

import math
from collections.abc import Callable

import numpy as np
import pytest

import flowvm as flow
from flowvm import nn


def out_of(module: nn.Module, *inputs: np.ndarray) -> np.ndarray:
    return np.asarray(module.double()(*map(flow.tensor, inputs)).detach().numpy())


def weights_of(module: nn.Module) -> list[np.ndarray]:
    return [np.array(p.detach().numpy()) for p in module.double().parameters()]


def conv2d(
    x: np.ndarray, w: np.ndarray, b: np.ndarray, stride: int, padding: int, groups: int
) -> np.ndarray:
    x = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    n, _, h, width = x.shape
    out_c, in_g, kh, kw = w.shape
    oh, ow = (h - kh) // stride + 1, (width - kw) // stride + 1
    out = np.zeros((n, out_c, oh, ow))
    for c in range(out_c):
        first = c // (out_c // groups) * in_g
        for i in range(oh):
            for j in range(ow):
                window = x[:, first : first + in_g, i * stride :, j * stride :][:, :, :kh, :kw]
                out[:, c, i, j] = (window * w[c]).sum((1, 2, 3)) + b[c]
    return out


def test_linear(rng: np.random.Generator) -> None:
    layer, x = nn.Linear(5, 3), rng.normal(size=(4, 5))
    w, b = weights_of(layer)
    np.testing.assert_allclose(out_of(layer, x), x @ w.T + b)


def test_bilinear(rng: np.random.Generator) -> None:
    layer, x1, x2 = nn.Bilinear(3, 4, 5), rng.normal(size=(6, 3)), rng.normal(size=(6, 4))
    w, b = weights_of(layer)
    expected = np.einsum("ni,kij,nj->nk", x1, w, x2) + b
    np.testing.assert_allclose(out_of(layer, x1, x2), expected)


@pytest.mark.parametrize(("stride", "padding", "groups"), [(1, 0, 1), (2, 1, 1), (1, 1, 2)])
def test_conv2d(rng: np.random.Generator, stride: int, padding: int, groups: int) -> None:
    layer = nn.Conv2d(4, 6, 3, stride, padding, groups=groups)
    x = rng.normal(size=(2, 4, 6, 5))
    w, b = weights_of(layer)
    np.testing.assert_allclose(out_of(layer, x), conv2d(x, w, b, stride, padding, groups))


def test_conv1d_same_pads_the_odd_element_at_the_end(rng: np.random.Generator) -> None:
    layer, x = nn.Conv1d(1, 1, 4, padding="same"), rng.normal(size=(1, 1, 7))
    w, b = weights_of(layer)
    padded = np.pad(x[0, 0], (1, 2))
    expected = np.correlate(padded, w[0, 0], "valid") + b
    np.testing.assert_allclose(out_of(layer, x)[0, 0], expected)


def test_batch_norm_trains_and_evaluates(rng: np.random.Generator) -> None:
    layer, x = nn.BatchNorm1d(3, momentum=0.2), rng.normal(2.0, 3.0, size=(8, 3))
    mean, var = x.mean(0), x.var(0)
    np.testing.assert_allclose(out_of(layer, x), (x - mean) / np.sqrt(var + 1e-5))
    running_mean = 0.2 * mean
    running_var = 0.8 + 0.2 * x.var(0, ddof=1)
    np.testing.assert_allclose(layer.running_mean.numpy(), running_mean)
    np.testing.assert_allclose(layer.running_var.numpy(), running_var)
    assert layer.num_batches_tracked.item() == 1
    evaluated = out_of(layer.eval(), x)
    np.testing.assert_allclose(evaluated, (x - running_mean) / np.sqrt(running_var + 1e-5))
    layer.reset_running_stats()
    np.testing.assert_array_equal(layer.running_var.numpy(), np.ones(3))


def test_norms(rng: np.random.Generator) -> None:
    x = rng.normal(size=(4, 6, 5))
    mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    np.testing.assert_allclose(out_of(nn.LayerNorm(5), x), (x - mean) / np.sqrt(var + 1e-5))
    rms = np.sqrt((x**2).mean(-1, keepdims=True) + 1e-3)
    np.testing.assert_allclose(out_of(nn.RMSNorm(5, eps=1e-3), x), x / rms)
    grouped = x.reshape(4, 2, 15)
    mean, var = grouped.mean(-1, keepdims=True), grouped.var(-1, keepdims=True)
    expected = ((grouped - mean) / np.sqrt(var + 1e-5)).reshape(x.shape)
    np.testing.assert_allclose(out_of(nn.GroupNorm(2, 6), x), expected)
    mean, var = x.mean(2, keepdims=True), x.var(2, keepdims=True)
    expected = (x - mean) / np.sqrt(var + 1e-5)
    np.testing.assert_allclose(out_of(nn.InstanceNorm1d(6), x), expected)


def test_instance_norm_follows_its_batches(rng: np.random.Generator) -> None:
    x = rng.normal(size=(4, 6, 5))
    layer = nn.InstanceNorm1d(6, momentum=0.5, track_running_stats=True, dtype=flow.float64)
    layer(flow.tensor(x))
    mean, var = 0.5 * x.mean((0, 2)), 0.5 + 0.5 * x.var(2, ddof=1).mean(0)
    np.testing.assert_allclose(layer.running_mean.numpy(), mean)
    np.testing.assert_allclose(layer.running_var.numpy(), var)
    assert layer.num_batches_tracked.item() == 0  # which nobody asks for
    expected = (x - mean[:, None]) / np.sqrt(var[:, None] + 1e-5)
    np.testing.assert_allclose(layer.eval()(flow.tensor(x)).numpy(), expected)
    np.testing.assert_allclose(layer(flow.tensor(x[0])).numpy(), expected[0])  # no batch


def test_embedding_and_its_padding_row() -> None:
    layer = nn.Embedding(4, 3, padding_idx=1)
    index = flow.tensor(np.array([[0, 1], [3, 1]]))
    table = np.array(layer.weight.detach().numpy())
    assert not table[1].any()
    np.testing.assert_array_equal(layer(index).detach().numpy(), table[[[0, 1], [3, 1]]])
    layer(index).sum().backward()
    assert layer.weight.grad is not None
    np.testing.assert_array_equal(
        layer.weight.grad.numpy(), np.array([[1.0] * 3, [0] * 3, [0] * 3, [1] * 3])
    )


def test_embedding_from_pretrained() -> None:
    table = flow.tensor(np.arange(6.0).reshape(3, 2))
    layer = nn.Embedding.from_pretrained(table)
    assert not layer.weight.requires_grad
    np.testing.assert_array_equal(layer(flow.tensor([2])).numpy(), [[4.0, 5.0]])


def test_pooling(rng: np.random.Generator) -> None:
    x = rng.normal(size=(2, 3, 4, 6))
    tiles = x.reshape(2, 3, 2, 2, 3, 2)
    np.testing.assert_array_equal(out_of(nn.MaxPool2d(2), x), tiles.max((3, 5)))
    np.testing.assert_allclose(out_of(nn.AvgPool2d(2), x), tiles.mean((3, 5)))
    np.testing.assert_allclose(out_of(nn.AdaptiveAvgPool2d((2, 3)), x), tiles.mean((3, 5)))
    np.testing.assert_allclose(out_of(nn.AdaptiveAvgPool2d(1), x), x.mean((2, 3), keepdims=True))


def test_activations(rng: np.random.Generator) -> None:
    x = rng.normal(size=(3, 4)) * 2
    sigmoid = 1 / (1 + np.exp(-x))
    normal = np.vectorize(lambda v: 0.5 * (1 + math.erf(v / math.sqrt(2))))
    expected = {
        nn.ReLU(): np.maximum(x, 0),
        nn.LeakyReLU(0.3): np.where(x > 0, x, 0.3 * x),
        nn.Sigmoid(): sigmoid,
        nn.SiLU(): x * sigmoid,
        nn.GELU(): x * normal(x),
        nn.Hardtanh(-0.5, 1.5): np.clip(x, -0.5, 1.5),
        nn.Softplus(): np.log1p(np.exp(x)),
        nn.Softmax(-1): np.exp(x) / np.exp(x).sum(-1, keepdims=True),
        nn.PReLU(): np.where(x > 0, x, 0.25 * x),
        nn.ELU(): np.where(x > 0, x, np.exp(x) - 1),
        nn.Threshold(0.5, -1.0): np.where(x > 0.5, x, -1.0),
    }
    for module, value in expected.items():
        np.testing.assert_allclose(out_of(module, x), value, 1e-7, err_msg=repr(module))


@pytest.mark.parametrize("make", [nn.ReLU, nn.SiLU, lambda inplace: nn.LeakyReLU(0.1, inplace)])
def test_inplace_writes_the_input_and_differentiates(
    make: type[nn.ReLU], rng: np.random.Generator
) -> None:
    value = rng.normal(size=(3, 4))
    leaf = flow.tensor(value, requires_grad=True)
    x = leaf * 1.0
    out = make(inplace=True)(x)
    assert out is x
    out.sum().backward()
    again = flow.tensor(value, requires_grad=True)
    make(inplace=False)(again).sum().backward()
    assert leaf.grad is not None
    assert again.grad is not None
    np.testing.assert_allclose(leaf.grad.numpy(), again.grad.numpy())


@pytest.mark.parametrize("make", [nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.AlphaDropout])
def test_dropout_only_in_training(make: type[nn.Dropout]) -> None:
    x = flow.ones(8, 16, 10)
    layer = make(0.25)
    assert layer.eval()(x) is x
    output = layer.train()(x).numpy()
    assert (output != 1).any()
    if make is not nn.AlphaDropout:
        assert set(np.unique(output).round(5)) == {0.0, np.float32(4 / 3).round(5)}
    if make is nn.Dropout1d:
        assert len(np.unique(output, axis=2)[0, 0]) == 1  # a channel lives or dies as one


def test_alpha_dropout_keeps_mean_and_variance() -> None:
    out = nn.AlphaDropout(0.3)(flow.randn(200, 500)).numpy()
    assert abs(out.mean()) < 0.02
    assert abs(out.std() - 1) < 0.02


def test_losses(rng: np.random.Generator) -> None:
    x, y = rng.normal(size=(4, 3)), rng.normal(size=(4, 3))
    np.testing.assert_allclose(out_of(nn.MSELoss(), x, y), ((x - y) ** 2).mean())
    np.testing.assert_allclose(out_of(nn.L1Loss(reduction="sum"), x, y), np.abs(x - y).sum())
    log_p = x - np.log(np.exp(x).sum(1, keepdims=True))
    classes = np.array([2, 0, 1, 1])
    nll = -log_p[np.arange(4), classes]
    np.testing.assert_allclose(out_of(nn.CrossEntropyLoss(), x, classes), nll.mean())
    np.testing.assert_allclose(out_of(nn.NLLLoss(reduction="none"), log_p, classes), nll)
    p = 1 / (1 + np.exp(-y))
    bce = -(p * np.log(1 / (1 + np.exp(-x))) + (1 - p) * np.log(1 - 1 / (1 + np.exp(-x))))
    np.testing.assert_allclose(out_of(nn.BCEWithLogitsLoss(), x, p), bce.mean())
    margin = np.maximum(0, -np.sign(y) * x + 0.5)
    ours = out_of(nn.MarginRankingLoss(0.5), x, np.zeros_like(x), np.sign(y))
    np.testing.assert_allclose(ours, margin.mean())


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: nn.Linear(-1, 3), "in_features must be at least 0, got -1"),
        (lambda: nn.Linear(2.5, 3), "in_features must be an int"),  # type: ignore[arg-type]
        (lambda: nn.Conv2d(3, 4, 3, groups=2), "in_channels=3 must be divisible by groups=2"),
        (lambda: nn.Conv2d(3, 4, (3, 3, 3)), "kernel_size must be an int or 2"),  # type: ignore[arg-type]
        (lambda: nn.Conv2d(3, 4, 3, stride=0), "stride must be at least 1"),
        (lambda: nn.Conv2d(3, 4, 3, stride=2, padding="same"), "strided"),
        (lambda: nn.Conv2d(3, 4, 3, padding="full"), "padding must be one of"),
        (lambda: nn.Conv2d(3, 4, 3, padding_mode="mirror"), "padding_mode must be one of"),
        (lambda: nn.GroupNorm(4, 6), "must be divisible by num_groups=4"),
        (lambda: nn.Dropout(1.5), r"p must be in \[0, 1\], got 1.5"),
        (lambda: nn.Embedding(4, 3, padding_idx=4), "padding_idx=4 is not a row of 4"),
        (lambda: nn.GELU("erf"), "approximate must be one of"),
        (lambda: nn.MSELoss(reduction="average"), "reduction must be one of"),
        (lambda: nn.MaxPool2d(0), "kernel_size must be at least 1"),
        (lambda: nn.CrossEntropyLoss(label_smoothing=2.0), "label_smoothing"),
    ],
)
def test_bad_arguments_raise_where_the_layer_is_built(build: object, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        build()  # type: ignore[operator]


@pytest.mark.parametrize(
    ("build", "shape", "message"),
    [
        (lambda: nn.Conv2d(3, 4, 3), (2, 4, 8, 8), "dimension -3 must be 3"),
        (lambda: nn.Conv1d(3, 4, 3), (8,), "dimension -2 must be 3"),
        (lambda: nn.BatchNorm1d(5), (2, 6), "dimension 1 must be 5"),
        (lambda: nn.BatchNorm2d(5), (2, 5), "expected 4D input, got 2D"),
        (lambda: nn.GroupNorm(2, 6), (2, 4, 3), "dimension 1 must be 6"),
        (lambda: nn.Bilinear(3, 4, 2), (5, 4), "dimension -1 must be 3"),
    ],
)
def test_inputs_that_do_not_fit_raise_at_the_call(
    build: Callable[[], nn.Module], shape: tuple[int, ...], message: str
) -> None:
    layer = build()
    with pytest.raises(RuntimeError, match=message):
        layer(*[flow.ones(*shape)] * (2 if isinstance(layer, nn.Bilinear) else 1))
