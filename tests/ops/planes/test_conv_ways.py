"""Convolutions by windows, turned weights, plain products, with channels side by side and by
Winograd's way, against PyTorch's in float64.
"""

import numpy as np
import pytest

import flowvm as flow
from flowvm.meta.device import cpu
from flowvm.meta.meta import TensorMeta
from flowvm.ops.planes.cpu import conv_ways
from flowvm.ops.planes.cpu.conv_depthwise import depthwise_body
from flowvm.ops.planes.cpu.conv_plan import (
    DEPTHWISE,
    PRODUCT,
    STRIPS,
    TURNING,
    WINDOWS,
    WINOGRAD,
    Shape,
)
from flowvm.ops.planes.cpu.conv_strips import strips_body
from flowvm.ops.planes.cpu.conv_ways import Way, best_way
from flowvm.ops.planes.cpu.conv_windows import windows_body
from flowvm.ops.planes.cpu.conv_winograd import winograd_body
from flowvm.ops.planes.cpu.depthwise_plan import depthwise_of
from flowvm.ops.planes.cpu.pixel_weights import pixel_weights_body
from flowvm.ops.planes.cpu.pixel_weights_plan import pixel_weights_of
from flowvm.ops.planes.cpu.windows_plan import FORWARD, INPUT, TURNED, WEIGHT, windows_of
from flowvm.ops.planes.cpu.winograd_plan import FEW, winograd_of, winograd_weights_of
from flowvm.ops.planes.cpu.winograd_weights import winograd_weights_body
from flowvm.ops.planes.parts import conv_ops
from tests.ops.helpers.python_launches import python_outputs

torch = pytest.importorskip("torch")
ONE = (1, 1, 1)


def leaf(array):
    return flow.from_numpy(np.array(array)).requires_grad_()


def _geometry(rng, way):
    """Shapes and options of a convolution that a way can do."""
    n, groups = int(rng.integers(1, 4)), int(rng.choice([1, 1, 2]))
    if way == DEPTHWISE:
        n, groups = 2, int(rng.integers(16, 70))
    kernel, dilation, padding = (rng.integers(a, b, n) for a, b in ((1, 4), (1, 3), (0, 3)))
    stride = rng.integers(1, 4, n)
    if way not in (WINDOWS, DEPTHWISE):
        stride[:] = 1
    if way == PRODUCT:
        kernel[:], dilation[:], padding[:] = 1, 1, 0
    if way == WINOGRAD:
        n, kernel, dilation, padding = 2, *(np.full(2, k) for k in (3, 1)), rng.integers(0, 3, 2)
        stride = np.ones(2, int)
    size = dilation * (kernel - 1) + 8 + rng.integers(0, (40, 12, 3)[n - 1], n)
    channels, outputs = (
        rng.integers(16 if way == WINOGRAD else 8, 40, 2) if way != DEPTHWISE else (1, 1)
    )
    shapes = (
        (int(rng.integers(1, 12)), int(channels) * groups, *map(int, size)),
        (int(outputs) * groups, int(channels), *map(int, kernel)),
    )
    options = {
        name: tuple(map(int, numbers))
        for name, numbers in (("stride", stride), ("padding", padding), ("dilation", dilation))
    }
    return n, *shapes, {**options, "groups": groups}


def _forced(monkeypatch, way):
    """Have all directions computed in a way, those that it does not have by windows."""

    def forced(s, dtype, direction, gain=1.0):
        if way == DEPTHWISE:
            return Way(DEPTHWISE, depthwise_of(s, dtype))
        if way == PRODUCT and direction == WEIGHT:
            return Way(PRODUCT, pixel_weights_of(s, dtype))
        if way == PRODUCT:
            return Way(PRODUCT)
        if way == WINOGRAD and direction == WEIGHT:
            weights = winograd_weights_of(s, dtype)
            if weights is not None:
                return Way(WINOGRAD, weights)
        tiles = winograd_of(s, dtype, direction == INPUT)
        if way == WINOGRAD and direction != WEIGHT and tiles is not None:
            return Way(WINOGRAD, tiles)
        if way == TURNING and direction == INPUT:
            return Way(TURNING, windows_of(s, dtype, TURNED))
        return Way(WINDOWS, windows_of(s, dtype, direction))

    monkeypatch.setattr(conv_ways, "best_way", forced)
    monkeypatch.setattr(conv_ops, "FEW", -1)


@pytest.mark.parametrize("way", [WINDOWS, TURNING, PRODUCT, DEPTHWISE, WINOGRAD])
@pytest.mark.parametrize("case", range(4))
def test_random_geometries(seed, way, case, monkeypatch):
    rng = np.random.default_rng([seed, way, case])
    _forced(monkeypatch, way)
    n, size, kernel, options = _geometry(rng, way)
    x, w, b = (rng.standard_normal(s).astype("float32") for s in (size, kernel, kernel[:1]))
    exact = [torch.tensor(v.astype("float64"), requires_grad=True) for v in (x, w, b)]
    expected = getattr(torch, f"conv{n}d")(*exact, **options)
    g = rng.standard_normal(tuple(expected.shape)).astype("float32")
    expected.backward(torch.tensor(g.astype("float64")))
    leaves = [leaf(v) for v in (x, w, b)]
    out = getattr(flow, f"conv{n}d")(*leaves, **options)
    out.backward(flow.from_numpy(g))
    np.testing.assert_allclose(out.numpy(), expected.detach().numpy(), rtol=1e-4, atol=1e-3)
    for ours, theirs in zip(leaves, exact, strict=True):
        scale = np.abs(theirs.grad.numpy()).max()
        np.testing.assert_allclose(
            ours.grad.numpy(), theirs.grad.numpy(), rtol=1e-4, atol=1e-5 * scale
        )


def test_transposed_with_a_bias(rng, monkeypatch):
    """The bias of a transposed convolution is where sums of pixels begin."""
    _forced(monkeypatch, WINDOWS)
    x, w, b = (rng.standard_normal(s) for s in ((3, 9, 5, 6), (9, 11, 3, 2), (11,)))
    out = flow.conv_transpose2d(*map(flow.tensor, (x, w, b)), stride=2, padding=1)
    expected = torch.conv_transpose2d(*map(torch.tensor, (x, w, b)), stride=2, padding=1)
    np.testing.assert_allclose(out.numpy(), expected.numpy(), rtol=1e-9, atol=1e-9)


SIZES = {
    "whole samples": (WINDOWS, 3, 64, 64, 7, 3),
    "a sample's positions in parts": (WINDOWS, 1, 64, 64, 23, 3),
    "turned": (TURNING, 7, 64, 40, 7, 3),
    "one by one": (PRODUCT, 4, 64, 64, 8, 1),
    "side by side": (DEPTHWISE, 24, 1, 100, 6, 3),
    "few tiles": (WINOGRAD, 5, 40, 70, 7, 3),
    "many tiles": (WINOGRAD, 2, 33, 70, 29, 3),
    "many tiles, several samples of a block": (WINOGRAD, 40, 150, 33, 5, 3),
}


@pytest.mark.parametrize("case", SIZES, ids=lambda c: c.replace(" ", "_"))
def test_the_same_bits_with_any_number_of_workers(rng, case, monkeypatch):
    way, samples, inputs, outputs, size, kernel = SIZES[case]
    _forced(monkeypatch, way)
    groups = outputs if way == DEPTHWISE else 1
    x = rng.standard_normal((samples, groups * inputs, size, size)).astype("float32")
    w = rng.standard_normal((outputs, inputs, kernel, kernel)).astype("float32")

    def step():
        leaves = leaf(x), leaf(w)
        out = flow.conv2d(*leaves, padding=kernel // 2, groups=groups)
        (out * out).sum().backward()
        return [t.numpy() for t in (out, *(v.grad for v in leaves))]

    results = []
    for workers in (1, 2, 3):
        with flow.config(workers=workers):
            results.append(step())
    with flow.vm.sequential():
        results.append(step())
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("way", [WINDOWS, WINOGRAD])
def test_not_a_number_stays_where_it_is_seen(way, monkeypatch):
    """A pixel that is no number reaches its windows alone, and so does one of the gradient."""
    _forced(monkeypatch, way)
    outputs = 18 + way  # another shape, or a call of the other way would be repeated
    x, w = np.zeros((2, 20, 6, 6), "float32"), leaf(np.ones((outputs, 20, 3, 3), "float32"))
    x[0, 0, 0, 0], x[1, 3, 5, 5] = np.nan, np.inf
    pixels = leaf(x)
    out = flow.conv2d(pixels, w, padding=1)
    expected = np.zeros((2, outputs, 6, 6))
    expected[0, :, :2, :2], expected[1, :, 4:, 4:] = np.nan, np.inf
    np.testing.assert_array_equal(out.numpy(), expected)
    g = np.zeros((2, outputs, 6, 6), "float32")
    g[1, 2, 0, 5] = np.inf
    out.backward(flow.from_numpy(g))
    expected = np.zeros((2, 20, 6, 6))
    expected[1, :, :2, 4:] = np.inf
    np.testing.assert_array_equal(pixels.grad.numpy(), expected)


@pytest.mark.parametrize("size", [5, 30])
def test_winograd_has_the_infinities_of_a_sum(rng, size, monkeypatch):
    """Infinities of pixels, weights and products stand where a direct sum has them."""
    _forced(monkeypatch, WINOGRAD)
    x = rng.standard_normal((2, 17, size, size)).astype("float32")
    w, b = (rng.standard_normal(s).astype("float32") for s in ((35, 17, 3, 3), (35,)))
    x[0, 3, 2, 1], x[1, 16, 4, 4], x[1, 2, 0, 3] = np.inf, -np.inf, 2e38
    w[7, 5, 1, 2], b[30] = np.inf, -np.inf
    out = flow.conv2d(*map(flow.from_numpy, (x, w, b)), padding=1).numpy()
    with np.errstate(all="ignore"):
        exact = torch.conv2d(*(torch.tensor(v.astype("float64")) for v in (x, w, b)), padding=1)
        expected = exact.numpy().astype("float32")
    assert np.isinf(expected).any()
    assert np.isnan(expected).any()
    np.testing.assert_array_equal(np.isnan(out), np.isnan(expected))
    np.testing.assert_array_equal(out[np.isinf(expected)], expected[np.isinf(expected)])
    usual = np.isfinite(expected) & (np.abs(expected) < 1e3)
    np.testing.assert_allclose(out[usual], expected[usual], rtol=1e-4, atol=1e-4)


def test_winograd_is_as_exact_as_windows(rng, monkeypatch):
    """Errors over 256 channels are at most 2.5 times those of direct sums."""
    x, w = (rng.standard_normal(s).astype("float32") for s in ((3, 256, 14, 14), (64, 256, 3, 3)))
    exact = torch.conv2d(*(torch.tensor(v.astype("float64")) for v in (x, w)), padding=1).numpy()
    errors = []
    for way, samples in ((WINDOWS, 3), (WINOGRAD, 2)):
        _forced(monkeypatch, way)
        out = flow.conv2d(flow.from_numpy(x[:samples].copy()), flow.from_numpy(w), padding=1)
        errors.append(np.abs(out.numpy()[:2] - exact[:2]).max())
    assert 0 < errors[1] < 2.5 * errors[0]


def test_winograd_by_the_weight_has_the_infinities_of_a_sum(rng, monkeypatch):
    """Infinities of pixels, gradients stay; a weight whose sum does not meet them stays finite."""
    _forced(monkeypatch, WINOGRAD)
    x, g = (rng.standard_normal(s).astype("float32") for s in ((3, 18, 9, 9), (3, 25, 9, 9)))
    x[1, 3, 0, 4], x[2, 17, 5, 5], g[0, 8, 2, 8] = np.inf, np.nan, -np.inf
    how, weight = conv_ops.How(ONE, (0, 1, 1), ONE, 1), (25, 18, 3, 3)
    ours = conv_ops._conv_weight(*map(flow.from_numpy, (g, x)), how, weight).numpy()
    rows = np.pad(x.astype("float64"), ((0, 0), (0, 0), (1, 1), (1, 1)))
    expected = np.zeros(weight)
    with np.errstate(all="ignore"):
        for i, j in np.ndindex(3, 3):
            taps = g.astype("float64")[:, :, None] * rows[:, None, :, i : i + 9, j : j + 9]
            expected[:, :, i, j] = taps.sum((0, 3, 4))
    assert np.isinf(expected).any()
    assert np.isfinite(expected[:8, 3, 2]).all()  # whose row meets no pixel of the first one
    np.testing.assert_array_equal(np.isnan(ours), np.isnan(expected))
    np.testing.assert_allclose(ours, expected, rtol=1e-3, atol=1e-3)


def _shape(samples, channels, outputs, groups, size, kernel):
    pad = (0, kernel // 2, kernel // 2)
    plane = (1, size, size)
    return Shape(
        samples, channels, outputs, groups, plane, plane, (1, kernel, kernel), ONE, pad, ONE
    )


def test_the_way_follows_the_shape():
    """Planes of few pixels go by windows or side by side, large ones by strips."""
    small, large = _shape(2, 512, 512, 1, 2, 3), _shape(1, 3, 8, 1, 56, 3)
    apart = _shape(8, 1, 1, 960, 3, 3)
    assert best_way(small, "float32", WEIGHT).way == WINDOWS
    for direction in (FORWARD, INPUT):  # by the registers
        assert best_way(small, "float32", direction).way in (WINDOWS, TURNING, WINOGRAD)
    assert best_way(large, "float32", WEIGHT).way in (STRIPS, WINDOWS)  # by the registers
    for direction in (FORWARD, INPUT, WEIGHT):
        if direction != WEIGHT:
            assert best_way(large, "float32", direction).way == STRIPS
        assert best_way(apart, "float32", direction).way == DEPTHWISE
    assert best_way(_shape(8, 1, 1, 32, 112, 3), "float32", FORWARD).way == STRIPS
    ways = {way.way for way in conv_ways.ways_of(_shape(1, 64, 64, 1, 8, 1), "float32", INPUT)}
    assert ways == {STRIPS, WINDOWS, TURNING, PRODUCT}
    usual = _shape(8, 128, 128, 1, 8, 3)
    assert best_way(usual, "float32", FORWARD).way == WINOGRAD
    assert best_way(usual, "float32", INPUT).way == WINOGRAD
    assert best_way(usual, "float32", WEIGHT).way == WINOGRAD
    assert best_way(usual, "float64", FORWARD).way != WINOGRAD
    for other in (usual._replace(stride=(1, 2, 2)), usual._replace(dilation=(1, 2, 2))):
        assert winograd_of(other, "float32", False) is None
    assert best_way(_shape(0, 64, 64, 1, 8, 1), "float32", FORWARD) == Way(STRIPS)


@pytest.mark.parametrize("stride", [1, 2])
def test_side_by_side_has_the_bits_of_strips(rng, stride, monkeypatch):
    """Forward and by the input; sums by the weight go over samples in another order."""
    x = rng.standard_normal((3, 37, 7, 5)).astype("float32")
    w, b = (rng.standard_normal(s).astype("float32") for s in ((37, 1, 3, 3), (37,)))

    def step(samples):
        pixels = leaf(x[:samples])
        out = flow.conv2d(pixels, leaf(w), leaf(b), stride=stride, padding=1, groups=37)
        (out * out).sum().backward()
        return out.numpy()[:2], pixels.grad.numpy()[:2]

    by_strips = step(3)
    _forced(monkeypatch, DEPTHWISE)
    for a, other in zip(step(2), by_strips, strict=True):
        np.testing.assert_array_equal(a.view("int32"), other.view("int32"))


def _launch(samples, inputs, outputs, size, groups=1):
    """The launch of a convolution 3x3."""
    channels = inputs // groups, outputs // groups
    shapes = (samples, inputs, size, size), (outputs, channels[0], 3, 3)
    x, w = (TensorMeta.of(shape, flow.float32, cpu) for shape in shapes)
    out = x.with_shape((samples, outputs, size, size))
    return conv_ops._strips(out, _shape(samples, *channels, groups, size, 3), False, x, w)


@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("samples", [1, FEW // 4])
def test_winograd_as_python_has_the_bits_of_the_kernel(rng, samples, back, monkeypatch):
    """For units in any pieces and order; few tiles and many, planes of odd sizes, two groups."""
    _forced(monkeypatch, WINOGRAD)
    n, channels, outputs, groups, (h, w), (ph, pw) = samples, 19, 37, 2, (5, 7), (1, 0)
    plane = h + 2 * ph - 2, w + 2 * pw - 2
    s = Shape(
        n, channels, outputs, groups, (1, h, w), (1, *plane), (1, 3, 3), ONE, (0, ph, pw), ONE
    )
    shapes = [
        (n, groups * channels, h, w), (groups * outputs, channels, 3, 3), (groups * outputs,),
        (n, groups * outputs, *plane),
    ]  # fmt: skip
    if back:
        shapes = [shapes[3], shapes[1], (groups * channels,), shapes[0]]
    arrays = [rng.standard_normal(shape).astype("float32") for shape in shapes[:3]]
    arrays[0][-1, -1, 0, 2] = np.inf
    metas = [TensorMeta.of(shape, flow.float32, cpu) for shape in shapes]
    launch = conv_ops._strips(metas[3], s, back, *metas[:3])
    assert launch.body is winograd_body
    convolve = flow.conv_transpose2d if back else flow.conv2d
    ours = convolve(*map(flow.from_numpy, arrays), padding=(ph, pw), groups=groups).numpy()
    for pieces, backwards in ((1, False), (3, True)):
        (played,) = python_outputs(launch, *arrays, pieces=pieces, backwards=backwards)
        np.testing.assert_array_equal(played.view("int32"), ours.view("int32"))


@pytest.mark.parametrize("samples", [1, 30])
def test_winograd_by_the_weight_as_python_has_the_bits_of_the_kernel(rng, samples, monkeypatch):
    """For units in any pieces and order, several blocks, two groups, planes of odd sizes."""
    _forced(monkeypatch, WINOGRAD)
    size = (91, 13) if samples == 1 else (5, 3)
    x = rng.standard_normal((samples, 2 * 70, *size)).astype("float32")
    g = rng.standard_normal((samples, 2 * 19, size[0], size[1] + 2)).astype("float32")
    x[0, 3, 1, 1] = np.inf
    how, weight = conv_ops.How(ONE, (0, 1, 2), ONE, 2), (2 * 19, 70, 3, 3)
    metas = [TensorMeta.of(shape, flow.float32, cpu) for shape in (weight, g.shape, x.shape)]
    s = conv_ops._shape(x.shape, weight, g.shape[2:], how)
    launch = conv_ops._other_way(metas[0], s, WEIGHT, conv_ops._flat(*metas))
    assert launch.body is winograd_weights_body
    assert launch.consts[0].blocks > 1
    assert launch.units > 2
    ours = conv_ops._conv_weight(*map(flow.from_numpy, (g, x)), how, weight).numpy()
    for pieces, backwards in ((1, False), (3, True)):
        (played,) = python_outputs(launch, g, x, pieces=pieces, backwards=backwards)
        np.testing.assert_array_equal(played.view("int32"), ours.view("int32"))


@pytest.mark.parametrize(("channels", "outputs"), [(90, 16), (21, 50)])
def test_weights_of_pixels_as_python_have_the_bits_of_the_kernel(
    rng, channels, outputs, monkeypatch
):
    """Either side is packed; places are more than are multiplied at a time."""
    _forced(monkeypatch, PRODUCT)
    x, g = (rng.standard_normal((3, 2 * c, 23, 29)).astype("float32") for c in (channels, outputs))
    how = conv_ops.How(ONE, (0, 0, 0), ONE, 2)
    weight = 2 * outputs, channels, 1, 1
    metas = [TensorMeta.of(shape, flow.float32, cpu) for shape in (weight, g.shape, x.shape)]
    s = conv_ops._shape(x.shape, weight, g.shape[2:], how)
    launch = conv_ops._other_way(metas[0], s, WEIGHT, conv_ops._flat(*metas))
    assert launch.body is pixel_weights_body
    assert launch.consts[0].swap == (channels > outputs)
    ours = conv_ops._conv_weight(*map(flow.from_numpy, (g, x)), how, weight).numpy()
    for pieces, backwards in ((1, False), (3, True)):
        (played,) = python_outputs(launch, g, x, pieces=pieces, backwards=backwards)
        np.testing.assert_array_equal(played.view("int32"), ours.view("int32"))
    for group in range(2):
        left, right = (v.astype("float64").reshape(3, 2, -1, 667)[:, group] for v in (g, x))
        exact = np.einsum("nop,ncp->oc", left, right)
        part = ours[group * outputs :][:outputs, :, 0, 0]
        np.testing.assert_allclose(part, exact, rtol=1e-4, atol=1e-3)


def test_a_small_one_keeps_the_short_body():
    """A session's first convolution does not wait for a compiler."""
    launch = _launch(1, 2, 4, 8)
    assert launch.body is strips_body
    assert launch.stand_in is not None
    assert _launch(2, 512, 512, 2).body in (windows_body, winograd_body)  # by the registers
    assert _launch(2, 64, 64, 16).body is winograd_body
    assert _launch(8, 960, 960, 3, groups=960).body is depthwise_body


WINDOWS_CASES = {
    "whole samples": (5, (70, 300), 1, (6, 7), 1, 1),
    "a sample's positions in parts": (2, (21, 40), 2, (19, 31), 1, 1),
    "a stride": (3, (17, 30), 1, (13, 9), 3, 2),
    "parts of rows": (1, (3, 20), 1, (31, 27), 5, 1),
}


@pytest.mark.parametrize("case", WINDOWS_CASES, ids=lambda c: c.replace(" ", "_"))
@pytest.mark.parametrize("direction", [FORWARD, INPUT, WEIGHT])
def test_windows_as_python_have_the_bits_of_the_kernel(rng, case, direction, monkeypatch):
    """For units in any pieces and order; pixels as they lie are copied, others gathered."""
    _forced(monkeypatch, WINDOWS)
    n, (channels, outputs), groups, (h, w), kernel, stride = WINDOWS_CASES[case]
    pad = kernel // 2
    plane = (h + 2 * pad - kernel) // stride + 1, (w + 2 * pad - kernel) // stride + 1
    shapes = [
        (n, groups * channels, h, w), (groups * outputs, channels, kernel, kernel),
        (n, groups * outputs, *plane),
    ]  # fmt: skip
    x, weight, g = (rng.standard_normal(shape).astype("float32") for shape in shapes)
    how = conv_ops.How((1, stride, stride), (0, pad, pad), ONE, groups)
    metas = [TensorMeta.of(shape, flow.float32, cpu) for shape in shapes]
    s = conv_ops._shape(shapes[0], shapes[1], plane, how)
    exact = [torch.tensor(v.astype("float64"), requires_grad=True) for v in (x, weight)]
    out = torch.conv2d(*exact, stride=stride, padding=pad, groups=groups)
    out.backward(torch.tensor(g.astype("float64")))
    if direction == WEIGHT:
        operands, expected = (g, x), exact[1].grad
        ours = conv_ops._conv_weight(*map(flow.from_numpy, operands), how, shapes[1])
        views = conv_ops._flat(metas[1], metas[2], metas[0])
        launch = conv_ops._other_way(metas[1], s, WEIGHT, views)
    else:
        back = direction == INPUT
        bias = rng.standard_normal(groups * (channels if back else outputs)).astype("float32")
        operands = (g if back else x, weight, bias)
        result, read = (metas[0], metas[2]) if back else (metas[2], metas[0])
        more = TensorMeta.of(bias.shape, flow.float32, cpu)
        launch = conv_ops._strips(result, s, back, read, metas[1], more)
        call = conv_ops._conv_input_bias if back else conv_ops._conv_bias
        ours = call(*map(flow.from_numpy, operands), how, shapes[0] if back else plane)
        expected = exact[0].grad if back else out.detach()
        expected = expected + torch.tensor(bias.astype("float64"))[:, None, None]
    scale = np.abs(expected.numpy()).max()
    np.testing.assert_allclose(ours.numpy(), expected.numpy(), rtol=1e-4, atol=1e-5 * scale)
    for pieces, backwards in ((1, False), (3, True)):
        (played,) = python_outputs(launch, *operands, pieces=pieces, backwards=backwards)
        np.testing.assert_array_equal(played.view("int32"), ours.numpy().view("int32"))
