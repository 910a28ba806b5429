"""Quantization-aware layers against the formulas, in NumPy's float64."""

import numpy as np
import pytest

import flowvm as flow
from flowvm import nn


def grid(x, formula, bits, scheme, low, high):
    """Scale, zero point, and `x` on that grid."""
    if formula == "cambricon":
        scale = np.floor(np.log2(max(abs(low), abs(high)))) - (bits - 2)
        step, zero, top = 2.0**scale, 0.0, 2 ** (bits - 1) - 1
    elif scheme == "symmetric":
        top = 2 ** (bits - 1) - 1
        scale = step = max(abs(low), abs(high)) / top
        zero = 0.0
    else:
        top = 2**bits - 1
        scale = step = (high - low) / top
        zero = -np.rint(low / scale)
    least = 0 if scheme == "affine" and formula == "google" else -top
    return scale, zero, (np.clip(np.rint(x / step + zero), least, top) - zero) * step


CASES = [("google", 8, "symmetric"), ("google", 4, "affine"), ("cambricon", 8, "symmetric")]


@pytest.mark.parametrize("case", CASES)
def test_a_tensor_on_the_grid_of_its_own_ends(case, rng):
    values = rng.standard_normal((4, 6)).astype(np.float32)
    x = flow.tensor(values, requires_grad=True)
    scale, zero = nn.MinMaxObserver(*case)(x)
    expected = grid(values.astype(np.float64), *case, values.min(), values.max())
    np.testing.assert_allclose([scale.item(), zero.item()], expected[:2], rtol=1e-6)
    y = nn.FakeQuantization(*case)(x, scale, zero)
    np.testing.assert_allclose(y.detach().numpy(), expected[2], atol=1e-5)
    (y * flow.tensor(values)).sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), values)  # as if it were not rounded


def test_each_slice_has_its_own_grid(rng):
    values = rng.standard_normal((3, 5)).astype(np.float32)
    x = flow.tensor(values)
    scale, zero = nn.MinMaxObserver(per_layer_quantization=False)(x)
    np.testing.assert_allclose(scale.numpy(), np.abs(values).max(1) / 127, rtol=1e-6)
    whole = nn.Quantization()(x, scale, zero).numpy()
    expected = np.rint(values / (np.abs(values).max(1, keepdims=True) / 127))
    np.testing.assert_allclose(whole, expected)


def test_affine_integers_begin_with_zero(rng):
    values = rng.standard_normal((3, 5)).astype(np.float32)
    x = flow.tensor(values)
    scale, zero = nn.MinMaxObserver(quantization_scheme="affine")(x)
    whole = nn.Quantization(quantization_scheme="affine")(x, scale, zero).numpy()
    step = np.float32(values.max() - values.min()) / 255
    wanted = np.clip(np.rint(values / step - np.rint(values.min() / step)), 0, 255)
    np.testing.assert_allclose(whole, wanted, atol=1)  # a tie may round either way
    assert whole.min() == 0


@pytest.mark.parametrize("scheme", ["symmetric", "affine"])
def test_averages_move_while_they_may(scheme):
    layer = nn.MovingAverageMinMaxObserver(1, quantization_scheme=scheme, momentum=0.5)
    high = low = 0.0
    for step, (a, b) in enumerate([(-1.0, 2.0), (-3.0, 1.0), (-9.0, 9.0)]):
        layer(flow.tensor([a, b]), flow.tensor([step]))
        top, bottom = (max(-a, b),) * 2 if scheme == "symmetric" else (b, a)
        if step == 0:
            high, low = top, bottom
        elif step <= 1:
            high, low = (high + top) / 2, (low + bottom) / 2
    np.testing.assert_allclose([layer.moving_max.item(), layer.moving_min.item()], [high, low])
    layer.eval()
    layer(flow.tensor([50.0]), 0)
    assert layer.moving_max.item() == high


def test_a_convolution_rounds_its_input_and_weight(rng):
    layer = nn.QatConv2d(2, 3, 3, padding=1, bias=False)
    values = rng.standard_normal((1, 2, 4, 4)).astype(np.float32)
    x, weight = flow.tensor(values), layer.weight.detach()
    fine = [grid(t.numpy(), *CASES[0], t.min().item(), t.max().item())[2] for t in (x, weight)]
    expected = nn.functional.conv2d(*(flow.tensor(t.astype(np.float32)) for t in fine), padding=1)
    out = layer(x)
    np.testing.assert_allclose(out.detach().numpy(), expected.numpy(), atol=1e-4)
    assert layer.current_train_step.tolist() == [1]
    out.sum().backward()
    assert layer.weight.grad is not None
    with pytest.raises(ValueError, match="quantization_bit is from 2 to 8"):
        nn.FakeQuantization(quantization_bit=9)
