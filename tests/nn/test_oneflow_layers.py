"""Layers and functions of OneFlow that PyTorch lacks, against their formulas."""

import numpy as np
import pytest

import flowvm as flow
from flowvm import nn
from flowvm.nn import functional as F


def test_activations(rng):
    x = rng.normal(size=(4, 5)) * 3
    gate = 1 / (1 + np.exp(-1.702 * x))
    for layer, function, expected, slope in (
        (nn.QuickGELU(), F.quick_gelu, x * gate, gate + 1.702 * x * gate * (1 - gate)),
        (nn.SquareReLU(), F.square_relu, np.maximum(x, 0) ** 2, 2 * np.maximum(x, 0)),
    ):
        inputs = flow.tensor(x, requires_grad=True)
        out = layer(inputs)
        np.testing.assert_allclose(out.detach().numpy(), expected, 1e-12, 1e-12)
        np.testing.assert_array_equal(out.detach().numpy(), function(flow.tensor(x)).numpy())
        out.sum().backward()
        np.testing.assert_allclose(inputs.grad.numpy(), slope, 1e-12, 1e-12)
    assert flow.quick_gelu is F.quick_gelu
    assert flow.square_relu is F.square_relu


@pytest.mark.parametrize("kind", [flow.int8, flow.int32, flow.int64])
def test_sparse_softmax_cross_entropy(kind, rng):
    x, labels = rng.normal(size=(2, 3, 5)), rng.integers(0, 5, (2, 3))
    logits = flow.tensor(x, requires_grad=True)
    loss = F.sparse_softmax_cross_entropy(labels=flow.tensor(labels, dtype=kind), logits=logits)
    chance = np.exp(x) / np.exp(x).sum(-1, keepdims=True)
    own = np.take_along_axis(chance, labels[..., None], -1)[..., 0]
    np.testing.assert_allclose(loss.detach().numpy(), -np.log(own), 1e-12)
    loss.sum().backward()
    np.testing.assert_allclose(logits.grad.numpy(), chance - np.eye(5)[labels], 1e-9, 1e-12)
    with pytest.raises(ValueError, match=r"want labels \(2, 3\), got \(3,\)"):
        F.sparse_softmax_cross_entropy(flow.zeros(3, dtype=kind), logits)
    with pytest.raises(TypeError, match="float32"):
        F.sparse_softmax_cross_entropy(flow.zeros(2, 3), logits)


def test_rms_layer_norm(rng):
    x = rng.normal(size=(3, 4, 6))
    layer = nn.RMSLayerNorm(6, eps=1e-3).double()
    weight = rng.normal(size=6)
    layer.load_state_dict({"weight": flow.tensor(weight)})
    expected = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-3) * weight
    out = layer(flow.tensor(x))
    np.testing.assert_allclose(out.detach().numpy(), expected, 1e-12)
    with pytest.raises(ValueError, match="5"):
        layer(flow.ones(2, 5, dtype=flow.float64))


@pytest.mark.parametrize("m", [(1.0, 0.0, 0.0), (0.3, 0.5, 0.4), (1.0, 0.5, 0.0)])
def test_combined_margin_loss(m, rng):
    x, labels = rng.uniform(-0.9, 0.9, (5, 4)), rng.integers(0, 4, 5)
    m1, m2, m3 = m
    inputs = flow.tensor(x, requires_grad=True)
    layer = nn.CombinedMarginLoss(m1, m2, m3)
    out = layer(inputs, flow.tensor(labels, dtype=flow.int32))
    own = np.eye(4, dtype=bool)[labels]
    angle = m1 * np.arccos(x) + m2
    np.testing.assert_allclose(out.detach().numpy(), np.where(own, np.cos(angle) - m3, x), 1e-12)
    out.sum().backward()
    slope = np.where(own, np.sin(angle) * m1 / np.sqrt(1 - x * x), 1.0)
    np.testing.assert_allclose(inputs.grad.numpy(), slope, 1e-9)
    with pytest.raises(ValueError, match="x is"):
        layer(inputs, flow.zeros(3).long())
    with pytest.raises(TypeError, match="float32"):
        layer(inputs, flow.zeros(5))
    with pytest.raises(IndexError, match="4"):
        layer(inputs, flow.full((5,), 4)).sum().item()


@pytest.mark.parametrize("skip", [False, True])
def test_fused_mlp(skip, rng):
    mlp = nn.FusedMLP(6, [8, 3], 4, skip_final_activation=skip).double()
    assert list(mlp.state_dict()) == [f"{n}_{k}" for k in range(3) for n in ("weight", "bias")]
    x = y = rng.normal(size=(2, 5, 6))
    for k, (w, b) in enumerate(zip(mlp.weights(), mlp.biases(), strict=True)):
        y = y @ w.detach().numpy().T + b.detach().numpy()
        y = y if skip and k == 2 else np.maximum(y, 0)
    np.testing.assert_allclose(mlp(flow.tensor(x)).detach().numpy(), y, 1e-12, 1e-12)
    assert nn.FusedMLP(3, [], 2)(flow.ones(1, 3)).shape == (1, 2)


def test_fused_mlp_drops_in_training():
    mlp = nn.FusedMLP(4, [8], 100, [1.0], 0.5, skip_final_activation=True)
    bias = mlp.bias_1.detach()
    out = mlp(flow.ones(1, 4)).detach()[0]  # nothing of the hidden layer is left
    assert bool(((out == 0) | flow.isclose(out, 2 * bias)).all())
    assert 20 < int((out == 0).sum()) < 80
    mlp.eval()
    assert not flow.equal(mlp(flow.ones(1, 4)), mlp(flow.zeros(1, 4)))
    with pytest.raises(ValueError, match="2 hidden_features and 1"):
        nn.FusedMLP(4, [8, 8], 2, [0.5])
    with pytest.raises(ValueError, match="p"):
        nn.FusedMLP(4, [8], 2, [1.5])


def test_dropout_of_a_generator():
    layer = nn.Dropout(0.5, generator=flow.Generator().manual_seed(3))
    first = layer(flow.ones(50))
    flow.manual_seed(1)
    layer.generator.manual_seed(3)
    assert flow.equal(layer(flow.ones(50)), first)
    assert not flow.equal(layer(flow.ones(50)), first)
    again = F.dropout(flow.ones(50), 0.5, generator=flow.Generator().manual_seed(3))
    assert flow.equal(again, first)
    before = flow.get_rng_state()
    layer(flow.ones(50))
    assert flow.equal(flow.get_rng_state(), before)
    with pytest.raises(TypeError, match="int"):
        F.dropout(flow.ones(2), generator=3)


def test_pixel_shuffle_of_two_factors(rng):
    x = rng.normal(size=(2, 12, 3, 4))
    out = nn.PixelShuffle(h_upscale_factor=2, w_upscale_factor=3)(flow.tensor(x))
    expected = x.reshape(2, 2, 2, 3, 3, 4).transpose(0, 1, 4, 2, 5, 3).reshape(2, 2, 6, 12)
    np.testing.assert_array_equal(out.numpy(), expected)
    same = nn.PixelShuffle(2)(flow.tensor(x))
    np.testing.assert_array_equal(same.numpy(), F.pixel_shuffle(flow.tensor(x), (2, 2)).numpy())
    for inputs in ({}, {"h_upscale_factor": 2}, {"upscale_factor": 2, "w_upscale_factor": 2}):
        with pytest.raises(ValueError, match="give upscale_factor, or"):
            nn.PixelShuffle(**inputs)
    with pytest.raises(ValueError, match="12 channels"):
        F.pixel_shuffle(flow.tensor(x), (5, 1))
    with pytest.raises(ValueError, match="pair"):
        F.pixel_shuffle(flow.tensor(x), (1, 2, 3))


@pytest.mark.parametrize(
    ("on", "off", "kind"), [(1, 0, "int64"), (5, -2, "int64"), (0.9, 0.1, "float32")]
)
def test_one_hot_of_other_values(on, off, kind):
    at = np.array([[0, 2], [1, 1]])
    out = F.one_hot(flow.tensor(at), 3, on, off)
    assert out.dtype is getattr(flow, kind)
    np.testing.assert_allclose(out.numpy(), np.where(np.eye(3)[at] == 1, on, off), 1e-6)
    assert F.one_hot(flow.tensor(at), on_value=on, off_value=off).shape == (2, 2, 3)


def test_keywords():
    x = flow.tensor([[0, 1], [2, 0]])
    rows, columns = flow.nonzero(x, True)
    assert rows.tolist() == [0, 1]
    assert columns.tolist() == [1, 0]
    assert flow.nonzero(x, False).tolist() == [[0, 1], [1, 0]]
    where = flow.placement("cpu", [0])
    window = flow.hann_window(8, placement=where, sbp=flow.sbp.split(0))
    assert window.sbp == (flow.sbp.split(0),)
    np.testing.assert_allclose(window.to_local().numpy(), np.hanning(9)[:-1], 1e-6)
    with pytest.raises(TypeError, match="needs sbp"):
        flow.hamming_window(8, placement=where)


@pytest.mark.parametrize("n", [0, 1, 2, 3])
@pytest.mark.parametrize("training", [True, False])
def test_fused_batch_norm(n, training, rng):
    shape = (4, 3, *(2, 3, 5)[:n])
    x, addend = rng.normal(size=shape), rng.normal(size=shape)
    layer = getattr(nn, f"FusedBatchNorm{max(n, 1)}d")(3, eps=1e-3, momentum=0.3).double()
    layer.load_state_dict({
        "weight": flow.tensor([0.5, -1.0, 2.0]), "bias": flow.tensor([0.1, 0.2, 0.3]),
        "running_mean": flow.tensor([0.1, -0.2, 0.0]), "running_var": flow.tensor([1.5, 0.5, 1.0]),
    })  # fmt: skip
    layer.train(training)
    wide = (1, 3, *(1,) * n)
    weight, bias, mean, var = (
        layer.state_dict()[key].numpy().copy().reshape(wide)
        for key in ("weight", "bias", "running_mean", "running_var")
    )
    axes = (0, *range(2, n + 2))
    if training:
        mean, var = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
    normal = (x - mean) / np.sqrt(var + 1e-3) * weight + bias
    out = layer(flow.tensor(x), addend=flow.tensor(addend))
    np.testing.assert_allclose(out.detach().numpy(), np.maximum(normal + addend, 0), 1e-10, 1e-12)
    if training:
        mean_after = 0.7 * np.array([0.1, -0.2, 0.0]) + 0.3 * mean.reshape(3)
        np.testing.assert_allclose(layer.running_mean.numpy(), mean_after, 1e-6, 1e-7)
    out = layer(flow.tensor(x))
    np.testing.assert_allclose(out.detach().numpy(), np.maximum(normal, 0), 1e-10, 1e-12)


def test_fused_batch_norm_refuses_and_differentiates(rng):
    layer = nn.FusedBatchNorm2d(2).double()
    x, addend = (flow.tensor(rng.normal(size=(3, 2, 2, 2)), requires_grad=True) for _ in "xy")
    assert flow.autograd.gradcheck(layer, (x, addend))
    with pytest.raises(ValueError, match=r"one shape, got \(3, 2, 2, 2\) and \(2, 2, 2\)"):
        layer(x, addend[0])
    with pytest.raises(ValueError, match="4D"):
        layer(x[0])
    with pytest.raises(ValueError, match="num_features"):
        layer(flow.ones(1, 3, 2, 2))
    assert nn.SyncBatchNorm.convert_sync_batchnorm(layer) is layer
    with pytest.raises(ValueError, match="FusedBatchNorm2d has a relu, too"):
        nn.utils.fuse_conv_bn_eval(nn.Conv2d(2, 2, 1).eval(), layer.eval())


def test_interpolate_like(rng):
    for shape, mode, corners in (
        ((2, 3, 4), "linear", True), ((2, 3, 4, 5), "nearest", None),
        ((2, 3, 4, 5), "bilinear", False), ((1, 1, 2, 2, 3), "trilinear", True),
        ((2, 3, 4, 5), "area", None),
    ):  # fmt: skip
        x = flow.tensor(rng.normal(size=shape), requires_grad=True)
        like = flow.ones(1, 7, *range(5, 3 + len(shape)), dtype=flow.bool)
        out = F.interpolate_like(x, like, mode=mode, align_corners=corners)
        same = F.interpolate(x, tuple(like.shape[2:]), mode=mode, align_corners=corners)
        assert out.shape == (*shape[:2], *like.shape[2:])
        assert flow.equal(out, same)
        assert out.requires_grad
    with pytest.raises(ValueError, match=r"\(1, 1, 4\) and \(4, 4\)"):
        F.interpolate_like(flow.ones(1, 1, 4), flow.ones(4, 4))
    with pytest.raises(TypeError, match="like"):
        F.interpolate_like(flow.ones(1, 1, 4), (4,))


def decoded_by_hand(x, lengths, merge):
    """Step by step."""
    t, n, classes = x.shape
    labels, sums = np.zeros((n, t), np.int64), np.zeros((n, 1))
    for k in range(n):
        count, before = 0, -1
        for step in range(lengths[k]):
            best = int(np.argmax(x[step, k]))
            sums[k] -= x[step, k, best]
            if best != classes - 1 and not (merge and best == before):
                labels[k, count] = best
                count += 1
            before = best
    return labels, sums


@pytest.mark.parametrize("merge", [True, False])
@pytest.mark.parametrize("shape", [(9, 5, 3), (1, 2, 4), (4, 3, 1), (0, 2, 3), (6, 0, 3)])
def test_ctc_greedy_decoder(merge, shape, rng):
    x, lengths = rng.normal(size=shape), rng.integers(0, shape[0] + 1, shape[1])
    expected = decoded_by_hand(x, lengths, merge)
    inputs = flow.tensor(x, requires_grad=True)
    outputs = F.ctc_greedy_decoder(inputs, flow.tensor(lengths, dtype=flow.int32), merge)
    assert [t.dtype for t in outputs] == [flow.int64, flow.float64]
    for ours, theirs in zip(outputs, expected, strict=True):
        np.testing.assert_allclose(ours.detach().numpy(), theirs, 1e-12)
    outputs[1].sum().backward()
    inside = np.arange(shape[0])[:, None] < lengths
    best = (x == x.max(-1, keepdims=True)) & inside[..., None]
    np.testing.assert_array_equal(inputs.grad.numpy(), np.where(best, -1.0, 0.0))


def test_ctc_greedy_decoder_elsewhere(rng):
    x, lengths = flow.tensor(rng.normal(size=(6, 3, 4))), flow.tensor([6, 2, 0])
    eager, graph = F.ctc_greedy_decoder(x, lengths), flow.compile(F.ctc_greedy_decoder)
    for _ in range(2):
        assert all(map(flow.equal, graph(x, lengths), eager))
    outputs = F.ctc_greedy_decoder(x.to("meta"), lengths.to("meta"))
    assert [t.shape for t in outputs] == [(3, 6), (3, 1)]
    assert flow.equal(F.ctc_greedy_decoder(x, (6, 2, 0))[0], eager[0])
    for wrong in (7, -1):
        for result in F.ctc_greedy_decoder(x, flow.tensor([6, wrong, 0])):
            with pytest.raises(IndexError, match=f"index {wrong} .* size 7"):
                result.numpy()
    with pytest.raises(ValueError, match="input_lengths has one number for each of 3"):
        F.ctc_greedy_decoder(x, lengths[:2])
    with pytest.raises(TypeError, match="int64"):
        F.ctc_greedy_decoder(x.long(), lengths)
    with pytest.raises(TypeError, match="input_lengths are integers"):
        F.ctc_greedy_decoder(x, lengths.float())
    with pytest.raises(ValueError, match="T, N, C"):
        F.ctc_greedy_decoder(x[0], lengths)
