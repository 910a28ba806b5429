"""Activations, softmax, normalisation and losses: cases beyond their declared samples."""

import warnings

import numpy as np
import pytest

import flowvm as flow
from flowvm import autograd
from flowvm.errors import (
    ArgumentError,
    ArgumentTypeError,
    AutogradError,
    DTypeError,
    OutOfRangeError,
    ShapeError,
)
from flowvm.nn import functional as F


def tensor(array):
    return flow.from_numpy(np.array(array))


def leaf(array):
    return tensor(array).requires_grad_()


# --- activations -------------------------------------------------------------------------------


def test_relu_keeps_integers_and_nan():
    assert flow.relu(flow.tensor([-2, 3])).dtype is flow.int64
    assert np.isnan(flow.relu(flow.tensor(float("nan"))).item())


@pytest.mark.parametrize(
    "function",
    ["relu", "relu6", "leaky_relu", "elu", "selu", "celu", "silu", "mish", "hardtanh", "hardswish"],
)
def test_inplace(rng, function):
    values = rng.standard_normal(7)
    want = getattr(flow, function)(tensor(values)).numpy()
    x = tensor(values)
    assert getattr(flow, function)(x, inplace=True) is x
    np.testing.assert_array_equal(x.numpy(), want)


def test_inplace_gradient(rng):
    values = rng.standard_normal(7)
    x = leaf(values)
    flow.relu(x * 2, inplace=True).sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), 2.0 * (values > 0))


@pytest.mark.parametrize(
    ("function", "low", "high"),
    [("softplus", 0.0, 1e3), ("logsigmoid", -1e3, 0.0), ("silu", 0.0, 1e3), ("mish", 0.0, 1e3)],
)
def test_far_out(function, low, high):
    x = leaf(np.array([-1e3, 1e3]))
    out = getattr(flow, function)(x)
    np.testing.assert_allclose(out.numpy(), [low, high], atol=1e-12)
    out.sum().backward()
    assert np.isfinite(x.grad.numpy()).all()


def test_third_derivative_says_so():
    x = leaf(np.array(0.3))
    first = autograd.grad(flow.gelu(x), x, create_graph=True)[0]
    second = autograd.grad(first, x, create_graph=True)[0]
    with pytest.raises(AutogradError, match="third"):
        autograd.grad(second, x)


def test_hardtanh_bounds():
    with pytest.raises(ArgumentError, match="greater"):
        flow.hardtanh(flow.ones(1), 1.0, -1.0)


# --- softmax -------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(3, 9000), (2, 5000, 3), (2, 7, 130)], ids=str)
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_softmax_sizes(rng, shape, name):
    x = (rng.standard_normal(shape) * 4).astype("float32")
    wide = x.astype("float64")
    e = np.exp(wide - wide.max(1, keepdims=True))
    want = e / e.sum(1, keepdims=True)
    actual = getattr(flow, name)(tensor(x), 1).numpy()
    np.testing.assert_allclose(
        actual, np.log(want) if name == "log_softmax" else want, rtol=2e-5, atol=1e-6
    )


def test_softmax_of_infinities():
    row = flow.tensor([float("-inf"), 0.0, 0.0])
    assert flow.softmax(row, 0).tolist() == [0.0, 0.5, 0.5]
    assert np.isnan(flow.softmax(row * 0 - float("inf"), 0).numpy()).all()
    assert flow.log_softmax(flow.tensor([1e30, 0.0]), 0).tolist()[0] == 0.0


def test_softmax_dtype():
    assert flow.softmax(flow.tensor([1, 2]), 0, dtype=flow.float64).dtype is flow.float64
    with pytest.raises(DTypeError, match="dtype="):
        flow.softmax(flow.tensor([1, 2]), 0)
    with pytest.raises(OutOfRangeError, match=r"\[-1, 0\]"):
        flow.softmax(flow.ones(2), 1)
    with pytest.raises(ArgumentTypeError, match="dim"):
        flow.softmax(flow.ones(2), None)


# --- normalisation -------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(16, 5), (3, 5, 40)], ids=str)
def test_running_statistics(rng, shape):
    x = rng.standard_normal(shape) * 3 + 1
    mean, var = tensor(np.zeros(5)), tensor(np.ones(5))
    F.batch_norm(tensor(x), mean, var, training=True, momentum=0.25)
    axes = (0, *range(2, x.ndim))
    np.testing.assert_allclose(mean.numpy(), 0.25 * x.mean(axes))
    np.testing.assert_allclose(var.numpy(), 0.75 + 0.25 * x.var(axes, ddof=1))
    F.batch_norm(tensor(x), mean, var)  # without training they stay
    np.testing.assert_allclose(mean.numpy(), 0.25 * x.mean(axes))


@pytest.mark.parametrize("shape", [(130, 70), (6, 70, 9)], ids=str)
def test_batch_norm_sizes(rng, shape):
    x, w, b, g = (rng.standard_normal(s) for s in (shape, 70, 70, shape))
    x = x + 100  # a mean that is large against the spread
    axes, wide = (0, *range(2, x.ndim)), (-1,) + (1,) * (x.ndim - 2)
    leaves = leaf(x), leaf(w), leaf(b)
    out = F.batch_norm(leaves[0], None, None, leaves[1], leaves[2], training=True)
    rstd = 1 / np.sqrt(x.var(axes, keepdims=True) + 1e-5)
    xhat = (x - x.mean(axes, keepdims=True)) * rstd
    np.testing.assert_allclose(
        out.numpy(), xhat * w.reshape(wide) + b.reshape(wide), rtol=1e-7, atol=1e-7
    )
    out.backward(tensor(g))
    h = g * w.reshape(wide)
    want = rstd * (h - h.mean(axes, keepdims=True) - xhat * (h * xhat).mean(axes, keepdims=True))
    np.testing.assert_allclose(leaves[0].grad.numpy(), want, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(leaves[1].grad.numpy(), (g * xhat).sum(axes), rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(leaves[2].grad.numpy(), g.sum(axes), rtol=1e-6, atol=1e-7)


def test_norms_in_float16(rng):
    x = rng.standard_normal((4, 64)).astype("float16") + np.float16(30)
    out = flow.layer_norm(tensor(x), 64)
    assert out.dtype is flow.float16
    wide = x.astype("float64")
    want = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(out.numpy(), want, atol=4e-3)


def test_instance_norm_running_statistics(rng):
    x = rng.standard_normal((4, 3, 10))
    mean, var = tensor(np.zeros(3)), tensor(np.ones(3))
    F.instance_norm(tensor(x), mean, var, momentum=0.5)
    np.testing.assert_allclose(mean.numpy(), 0.5 * x.mean((0, 2)))
    np.testing.assert_allclose(var.numpy(), 0.5 + 0.5 * x.var(2, ddof=1).mean(0))
    fixed = F.instance_norm(tensor(x), mean, var, use_input_stats=False).numpy()
    scaled = (x - mean.numpy()[:, None]) / np.sqrt(var.numpy()[:, None] + 1e-5)
    np.testing.assert_allclose(fixed, scaled)


def test_normalize_zero_has_a_gradient():
    x = leaf(np.zeros((1, 3)))
    flow.normalize(x).sum().backward()
    assert np.isfinite(x.grad.numpy()).all()


def test_norms_refuse():
    with pytest.raises(ShapeError, match="normalized_shape"):
        flow.layer_norm(flow.ones(2, 3), 3, flow.ones(2))
    with pytest.raises(ShapeError, match="do not divide"):
        flow.group_norm(flow.ones(2, 3), 2)
    with pytest.raises(ShapeError, match="weight"):
        F.batch_norm(flow.ones(2, 3), None, None, flow.ones(4), training=True)
    with pytest.raises(DTypeError, match="floating point"):
        flow.layer_norm(flow.ones(2, 3, dtype=flow.int64), 3)
    with pytest.raises(ArgumentError, match="more than one value"):
        F.batch_norm(flow.ones(1, 3), None, None, training=True)


# --- losses --------------------------------------------------------------------------------------


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_cross_entropy_of_many(rng, reduction):
    """Above one thread's size, the loss and its gradient equal the ones of its parts."""
    x, target = rng.standard_normal((9000, 11)), rng.integers(0, 11, 9000)
    target[::7] = -100
    whole = leaf(x)
    loss = flow.cross_entropy(whole, tensor(target), reduction=reduction)
    loss.sum().backward()
    parts, gradients = [], []
    for i in range(0, 9000, 1000):
        part = leaf(x[i : i + 1000])
        kind = "none" if reduction == "none" else "sum"
        small = flow.cross_entropy(part, tensor(target[i : i + 1000]), reduction=kind)
        small.sum().backward()
        parts.append(small.numpy())
        gradients.append(part.grad.numpy())
    divisor = (target >= 0).sum() if reduction == "mean" else 1
    want = np.concatenate(parts) if reduction == "none" else np.sum(parts) / divisor
    np.testing.assert_allclose(loss.numpy(), want, rtol=1e-9)
    np.testing.assert_allclose(
        whole.grad.numpy(), np.concatenate(gradients) / divisor, rtol=1e-9, atol=1e-15
    )


@pytest.mark.parametrize("n", [3, 30000], ids=["one unit", "many"])
@pytest.mark.parametrize("bad", [5, -1])
def test_wrong_class_is_found(n, bad):
    target = np.zeros(n, np.int64)
    target[-1] = bad
    loss = flow.cross_entropy(flow.ones(n, 5), tensor(target))
    with pytest.raises(
        OutOfRangeError, match=f"index {bad} is out of bounds for dimension 1 with size 5"
    ):
        loss.item()
    with pytest.raises(OutOfRangeError, match=str(bad)):
        flow.nll_loss(flow.ones(n, 5), tensor(target)).item()


def test_cross_entropy_is_stable():
    x = leaf(np.array([[1e4, -1e4], [-1e4, 1e4]], np.float32))
    loss = flow.cross_entropy(x, flow.tensor([0, 0]), reduction="none")
    assert loss.tolist() == [0.0, 2e4]
    loss.sum().backward()
    assert x.grad.tolist() == [[0.0, 0.0], [-1.0, 1.0]]


def test_cross_entropy_without_targets_is_nan():
    assert np.isnan(flow.cross_entropy(flow.ones(2, 3), flow.tensor([-100, -100])).item())


def test_small_integer_targets():
    x = flow.tensor([[1.0, 2.0], [3.0, 4.0]])
    want = flow.cross_entropy(x, flow.tensor([0, 1])).item()
    for dtype in (flow.uint8, flow.int32):
        assert flow.cross_entropy(x, flow.tensor([0, 1], dtype=dtype)).item() == want


def test_losses_refuse():
    x = flow.ones(2, 3)
    with pytest.raises(ShapeError, match=r"shape \(2,\)"):
        flow.cross_entropy(x, flow.tensor([0, 1, 2]))
    with pytest.raises(ShapeError, match="probabilities"):
        flow.cross_entropy(x, flow.ones(2))
    with pytest.raises(ShapeError, match="weight"):
        flow.nll_loss(x, flow.tensor([0, 1]), flow.ones(2))
    with pytest.raises(DTypeError, match="class indices are integers"):
        flow.nll_loss(x, flow.ones(2))
    with pytest.raises(ArgumentError, match="reduction"):
        flow.mse_loss(x, x, reduction="all")
    with pytest.raises(ArgumentError, match="label_smoothing"):
        flow.cross_entropy(x, flow.tensor([0, 1]), label_smoothing=2.0)
    with pytest.raises(ShapeError, match="target must have"):
        flow.binary_cross_entropy(x, flow.ones(2))
    with pytest.raises(ArgumentError, match="delta"):
        flow.huber_loss(x, x, delta=0.0)


def test_broadcast_losses_warn():
    with pytest.warns(UserWarning, match="rarely meant"):
        flow.mse_loss(flow.ones(2, 3), flow.ones(3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        flow.mse_loss(flow.ones(2, 3), flow.ones(2, 3))


def test_sure_and_wrong_is_finite():
    x = leaf(np.array([0.0, 1.0]))
    loss = flow.binary_cross_entropy(x, flow.tensor([1.0, 0.0], dtype=flow.float64))
    assert loss.item() == 100.0
    loss.backward()
    assert np.isfinite(x.grad.numpy()).all()
    logits = leaf(np.array([-1e4, 1e4]))
    loss = flow.binary_cross_entropy_with_logits(
        logits, flow.tensor([1.0, 0.0], dtype=flow.float64)
    )
    assert loss.item() == 1e4
    loss.backward()
    assert logits.grad.tolist() == [-0.5, 0.5]


def test_kl_div_of_impossible_outcomes():
    assert (
        flow.kl_div(flow.tensor([0.0, -1.0]), flow.tensor([0.0, 1.0]), reduction="sum").item()
        == 1.0
    )


def test_cosine_of_zero():
    x = leaf(np.zeros((1, 3)))
    out = flow.cosine_similarity(x, tensor(np.ones((1, 3))))
    assert out.item() == 0.0
    out.sum().backward()
    assert np.isfinite(x.grad.numpy()).all()


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize(
    ("x", "y"), [(1.5, 1.0), (-0.1, 0.0), (np.nan, 0.0), (0.5, 1.5), (0.5, -0.5), (0.5, np.nan)]
)
def test_what_is_no_probability_is_an_error_where_the_loss_is_read(graph, x, y):
    eager = F.binary_cross_entropy
    loss = flow.compile(eager) if graph else eager
    for dtype in (flow.float32, flow.float64, flow.bfloat16):
        value = loss(flow.tensor([0.5, x], dtype=dtype), flow.tensor([1.0, y], dtype=dtype))
        with pytest.raises(RuntimeError, match="not between 0 and 1"):
            value.item()
    assert loss(flow.tensor([0.0, 1.0]), flow.tensor([0.0, 1.0])).item() == 0.0
