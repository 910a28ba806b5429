"""Convolution and pooling against their definitions, in the sizes that take another path."""

import itertools

import numpy as np
import pytest

import flowvm as flow
from flowvm.errors import ArgumentError, DTypeError, ShapeError
from flowvm.ops.conv import _conv_reference, _transposed_reference


def tensor(array):
    return flow.from_numpy(np.array(array))


def leaf(array):
    return tensor(array).requires_grad_()


CASES = {
    "blocks of places": ((2, 8, 40, 50), (4, 8, 3, 3), {"padding": 1}),
    "blocks within a line": ((1, 40, 1, 700), (2, 40, 1, 9), {}),
    "many small samples": ((40, 2, 4, 4), (3, 2, 3, 3), {"padding": 1}),
    "one by one": ((3, 4, 5, 5), (6, 4, 1, 1), {}),
    "one by one, strided": ((3, 4, 5, 5), (6, 4, 1, 1), {"stride": 2}),
    "depthwise": ((2, 6, 5, 5), (12, 1, 3, 3), {"groups": 6, "padding": 1}),
    "many channels": ((2, 40, 5, 5), (3, 40, 2, 2), {}),
    "one channel, many outputs": ((3, 1, 6, 6), (40, 1, 3, 3), {}),
    "far apart": (
        (2, 3, 9, 9),
        (2, 3, 2, 3),
        {"dilation": (3, 2), "stride": (2, 3), "padding": (2, 3)},
    ),
    "padding only": ((1, 1, 1, 1), (1, 1, 3, 3), {"padding": 2}),
    "same, even kernel": ((1, 2, 5, 6), (2, 2, 4, 2), {"padding": "same"}),
}


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.replace(" ", "_"))
def test_forward_and_gradients(rng, case):
    size, kernel, options = CASES[case]
    x, w, b = (rng.standard_normal(s) for s in (size, kernel, kernel[:1]))
    leaves = [leaf(v) for v in (x, w, b)]
    out = flow.conv2d(*leaves, **options)
    np.testing.assert_allclose(
        out.numpy(), _conv_reference(x, w, b, **options), rtol=1e-8, atol=1e-8
    )
    # The gradient of a linear function: <conv(dx), g> = <dx, gradient>, and so for the weight.
    g = rng.standard_normal(tuple(out.shape))
    out.backward(tensor(g))
    for i, like in enumerate((x, w)):
        other = rng.standard_normal(like.shape)
        moved = _conv_reference(*(other if j == i else v for j, v in enumerate((x, w))), **options)
        np.testing.assert_allclose(
            (moved * g).sum(), (other * leaves[i].grad.numpy()).sum(), rtol=1e-7
        )
    np.testing.assert_allclose(leaves[2].grad.numpy(), g.sum((0, 2, 3)), rtol=1e-8, atol=1e-8)


def test_results_do_not_depend_on_threads(rng):
    x, w = (rng.standard_normal(s).astype("float32") for s in ((8, 6, 20, 20), (7, 6, 3, 3)))

    def step():
        leaves = leaf(x), leaf(w)
        out = flow.conv2d(*leaves, padding=1)
        out.sum().backward()
        return [t.numpy() for t in (out, leaves[0].grad, leaves[1].grad)]

    shared = step()
    with flow.vm.sequential():
        alone = step()
    for s, a in zip(shared, alone, strict=True):
        np.testing.assert_array_equal(s, a)


def test_without_a_batch(rng):
    x, w = rng.standard_normal((2, 5, 5)), rng.standard_normal((3, 2, 3, 3))
    out = flow.conv2d(tensor(x), tensor(w))
    assert tuple(out.shape) == (3, 3, 3)
    np.testing.assert_allclose(out.numpy(), _conv_reference(x, w), rtol=1e-10)


def test_transposed_undoes_the_shape(rng):
    x = rng.standard_normal((2, 4, 7, 6))
    w = rng.standard_normal((4, 3, 3, 3))
    options = {"stride": 3, "padding": 1, "output_padding": 2}
    out = flow.conv_transpose2d(tensor(x), tensor(w), **options)
    np.testing.assert_allclose(out.numpy(), _transposed_reference(x, w, **options), rtol=1e-9)
    back = flow.conv2d(out, flow.ones(1, 3, 3, 3, dtype=flow.float64), stride=3, padding=1)
    assert tuple(back.shape) == (2, 1, 7, 6)


def test_no_samples():
    w = leaf(np.ones((2, 3, 2, 2)))
    flow.conv2d(flow.ones(0, 3, 4, 4, dtype=flow.float64), w).sum().backward()
    assert (w.grad.numpy() == 0).all()


def test_conv_refuses():
    x, w = flow.ones(1, 3, 4, 4), flow.ones(2, 3, 3, 3)
    with pytest.raises(ShapeError, match="for 3 input channels"):
        flow.conv2d(flow.ones(1, 2, 4, 4), w)
    with pytest.raises(ShapeError, match="groups=2"):
        flow.conv2d(x, w, groups=2)
    with pytest.raises(ShapeError, match="larger than the padded input"):
        flow.conv2d(flow.ones(1, 3, 2, 2), w)
    with pytest.raises(ShapeError, match="2 output channels"):
        flow.conv2d(x, w, flow.ones(3))
    with pytest.raises(ShapeError, match="dimensions"):
        flow.conv2d(flow.ones(3), w)
    with pytest.raises(DTypeError, match="float64"):
        flow.conv2d(x.to(flow.float64), w)
    with pytest.raises(ArgumentError, match="same"):
        flow.conv2d(x, w, padding="full")
    with pytest.raises(ArgumentError, match="at least 1"):
        flow.conv2d(x, w, dilation=0)


# --- pooling -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("ceil_mode", "dilation"), list(itertools.product((False, True), (1, 2))))
def test_max_pool_places(rng, ceil_mode, dilation):
    x = rng.standard_normal((2, 3, 8, 7))
    out, places = flow.max_pool2d(
        tensor(x), 3, 2, 1, dilation, ceil_mode=ceil_mode, return_indices=True
    )
    assert places.dtype is flow.int64
    flat = x.reshape(2, 3, -1)
    chosen = np.take_along_axis(flat, places.numpy().reshape(2, 3, -1), -1)
    np.testing.assert_array_equal(chosen.reshape(tuple(out.shape)), out.numpy())


def test_max_pool_of_integers_and_nan():
    assert flow.max_pool1d(flow.tensor([[1, 5, 3, 2]]), 2).tolist() == [[5, 3]]
    assert np.isnan(flow.max_pool1d(flow.tensor([[1.0, float("nan"), 3.0]]), 3).item())
    assert flow.max_pool1d(flow.tensor([[-float("inf")] * 2]), 2).item() == -float("inf")


def test_max_pool_gradient_goes_to_one_place():
    x = leaf(np.zeros((1, 1, 4)))
    flow.max_pool1d(x, 3, 1).sum().backward()
    assert x.grad.tolist() == [[[1.0, 1.0, 0.0, 0.0]]]


def test_ceil_mode_never_starts_in_the_padding():
    assert tuple(flow.max_pool1d(flow.ones(1, 1, 5), 2, 2, ceil_mode=True).shape) == (1, 1, 3)
    assert tuple(flow.max_pool1d(flow.ones(1, 1, 4), 2, 3, 1, ceil_mode=True).shape) == (1, 1, 2)


def test_avg_pool_divisors():
    x = flow.ones(1, 1, 4)
    np.testing.assert_allclose(flow.avg_pool1d(x, 3, 2, 1).numpy(), [[[2 / 3, 1.0]]], rtol=1e-6)
    assert flow.avg_pool1d(x, 3, 2, 1, count_include_pad=False).tolist() == [[[1.0, 1.0]]]
    assert flow.avg_pool2d(flow.ones(1, 2, 2), 2, divisor_override=8).tolist() == [[[0.5]]]


def test_pool_refuses():
    with pytest.raises(ArgumentError, match="half of the kernel"):
        flow.max_pool1d(flow.ones(1, 1, 5), 2, padding=2)
    with pytest.raises(ShapeError, match="larger than"):
        flow.avg_pool2d(flow.ones(1, 3, 3), 4)
    with pytest.raises(ShapeError, match="dimensions"):
        flow.max_pool2d(flow.ones(3, 3), 2)
    with pytest.raises(DTypeError, match="floating point"):
        flow.avg_pool1d(flow.tensor([[1, 2]]), 2)
    with pytest.raises(ArgumentError, match="output_size"):
        flow.adaptive_avg_pool2d(flow.ones(1, 3, 3), (1, 2, 3))
