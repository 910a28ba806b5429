"""Each translation: onnxruntime gives flowvm's results."""

import math
from typing import Any

import numpy as np
import pytest

import flowvm as flow
from flowvm import nn
from flowvm.nn import functional as F

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from tests.onnx_files.helpers import check


def values(*shape: int, seed: int = 0) -> flow.Tensor:
    """Normal numbers."""
    return flow.from_numpy(np.random.default_rng(seed).standard_normal(shape, np.float32))


V, S, X = values(4, 6), values(2, 5, 8), values(2, 3, 8, 8)
I = flow.tensor([1, 0, 2])  # noqa: E741
POSITIVE = V.abs() + 0.1
WHOLE = flow.tensor([[7, -7, 3], [-3, 8, 1]])
MASK = flow.tensor([[True, False, True, True, False]])


def in_place(a: flow.Tensor) -> flow.Tensor:
    b = a.clone()
    b[1:3] += a[0]
    b[:, ::2] = 5.0
    b[0] = a[1]
    b.T[1].mul_(2)
    return b


def put(a: flow.Tensor) -> flow.Tensor:
    b, rows = a.clone(), flow.tensor([3, 1])
    b[rows] = a[:2] * 3
    b[:, rows] = 7.0
    b[rows, rows] += 1
    b.index_add_(0, rows, a[:2])
    b.index_copy_(1, rows, a[:, :2])
    return b.index_fill(1, flow.tensor([5]), 9.0)


def scattered(a: flow.Tensor) -> flow.Tensor:
    index = flow.tensor([[0, 2], [1, 3]])
    a = a.scatter_add(1, index, a * 3).scatter_reduce(0, index, a, "amax")
    return a.scatter(1, index, 2.0) + a.scatter(0, index, a * 2)


POINTWISE = {
    "numbers": lambda a: 1 - a * 2 + 3 / (a + 10) - (-a),
    "alpha": lambda a: flow.add(a, a, alpha=2) - flow.sub(a, a.T.T, alpha=3),
    "powers": lambda a: a**2 + a**3 + (a.abs() + 1) ** 0.75,
    "functions": lambda a: flow.exp(a) + a.sin() + a.cos() + a.tan() + a.abs() + a.sign()
    + a.atan() + a.sinh() + a.cosh() + a.asinh() + a.erf() + a.sigmoid() + a.tanh(),
    "rounded": lambda a: (a * 4).floor() + (a * 4).ceil() + (a * 4).round() + (a * 4).trunc(),
    "positive": lambda a: (a.abs() + 0.1).log() + (a.abs() + 0.1).log2() + (a * a + 1).rsqrt()
    + a.abs().sqrt() + (a.abs() + 1).log10() + (a * a + 1).reciprocal(),
    "near_zero": lambda a: (a * 1e-4).expm1() * 1e4 + (a.abs() * 1e-4).log1p() * 1e4,
    "exponents": lambda a: a.exp2() + a.expm1() + a.abs().log1p() + flow.logaddexp(a, a * 2),
    "pairs": lambda a: flow.maximum(a, a * a) + flow.minimum(a, -a) + flow.hypot(a, a + 1)
    + flow.atan2(a, a - 0.5),
    "rests": lambda a: a % 0.7 + a // 0.7 + flow.fmod(a, 0.7) + flow.remainder(a, -0.7),
    "compared": lambda a: ((a > 0) & ~(a < 1) | (a == 2)).to(flow.int64) + (a <= 0) + (a >= 1),
    "where": lambda a: flow.where(a > 0, a, 0.0) + flow.where(a != a.floor(), a * 2, a),
    "clamped": lambda a: a.clamp(-0.5, 0.5) + a.clamp(min=0) + a.clamp(max=0.1) + F.hardtanh(a),
    "filled": lambda a: a.masked_fill(a > 0, -1.0) + a.nan_to_num(),
    "isnan": lambda a: (a.isnan(), a.isinf(), (1 / (a - a)).isfinite()),
    "mixed": lambda a: a + flow.arange(6) + a.to(flow.float64) * flow.tensor(2),
    "lerp": lambda a: flow.lerp(a, a * 2, 0.3) + flow.addcmul(a, a, a, value=2)
    + flow.addcdiv(a, a, a.abs() + 1),
    "gelu": lambda a: F.gelu(a) + F.gelu(a, approximate="tanh"),
    "silu": lambda a: F.silu(a) + F.mish(a) + F.hardswish(a) + F.hardsigmoid(a) + F.relu6(a),
    "relu": lambda a: F.relu(a) + F.leaky_relu(a, 0.2) + F.elu(a, 0.7) + F.selu(a) + F.celu(a),
    "softplus": lambda a: F.softplus(a) + F.softplus(a, 2.0, 1.0) + F.logsigmoid(a)
    + F.softsign(a) + F.tanhshrink(a) + F.softshrink(a) + F.hardshrink(a) + F.glu(a).sum(),
    "in_place": lambda a: F.relu_(a + 1).add_(a).mul_(2),
    "losses": lambda a: F.mse_loss(a, a * 2) + F.l1_loss(a, a + 1) + F.smooth_l1_loss(a, a * 3)
    + F.binary_cross_entropy_with_logits(a, a.sigmoid()),
}  # fmt: skip
SHAPES = {
    "reshape": lambda a: a.transpose(0, 1).reshape(10, 8) + 1,
    "permute": lambda a: a.permute(2, 0, 1).contiguous(),
    "slices": lambda a: (a[1, 1:4], a[:, ::2] * 1, a[..., -1] + 1, a[:, 1:, 3:5] * 2, a[None, 0]),
    "steps": lambda a: (a[:, 1::3, ::4] * 1, a.flatten()[3:20:5] * 1, a[0].T[2:5] * 1),
    "overlap": lambda a: (a.unfold(1, 3, 1) * 1, a[0].diagonal() * 1, a.flatten()[5:53] * 1),
    "views": lambda a: (a.view(2, 40) * 1, a.view(10, 2, 4).transpose(0, 2) * 1, a[0].flatten()),
    "cat": lambda a: flow.cat([a, a * 2, a[:, :1]], 1),
    "stack": lambda a: flow.stack([a, a * 2], -1),
    "expand": lambda a: a[:1].expand(3, 5, 8) + a[:, :, None][0, 0],
    "repeat": lambda a: (a.repeat(2, 1, 3), a.repeat_interleave(2, 1)),
    "flip": lambda a: (a.flip(1), a.flip(0, 2), a.roll(2, 1), a.roll((1, 3), (0, 2))),
    "pad": lambda a: (F.pad(a, (1, 2)), F.pad(a, (1, 2), value=3.0), F.pad(a, (0, 0, 2, 1))),
    "crop": lambda a: F.pad(a, (-1, 2)),
    "pad_modes": lambda a: (
        F.pad(a, (1, 2), mode="reflect"), F.pad(a, (1, 2), mode="replicate"),
        F.pad(a, (3, 2), mode="circular"),
    ),
    "chunks": lambda a: (*a.chunk(2, 2), *a.split([2, 3], 1), *a.unbind(0)),
    "made": lambda a: (flow.zeros_like(a) + 1, flow.arange(8) * a, flow.full((3,), 7),
                       flow.linspace(0, 1, 8) * a),
    "triangles": lambda a: (a.tril(), a.triu(1), a.tril(-2)),
    "casts": lambda a: ((a * 9).to(flow.int32), a.to(flow.float16), a > 0, (a > 0).float()),
}  # fmt: skip
ROWS = {
    "sum": lambda a: (a.sum(), a.sum((0, 2), keepdim=True), a.mean(-1), a.mean()),
    "prod": lambda a: (a.prod(1), a.amax(1), a.amin((0, 1)), a.norm(dim=1), a.norm(p=1)),
    "max": lambda a: (*a.max(1), *a.min(2, keepdim=True), a.argmax(-1), a.argmin(0), a.max()),
    "var": lambda a: (a.var(-1), a.std(1, keepdim=True), a.var(0, unbiased=False)),
    "truths": lambda a: ((a > 1).any(1), (a > -1).all(), (a > 0).sum(2), (a > 0).any()),
    "count": lambda a: flow.count_nonzero(a > 0, 1),
    "softmax": lambda a: (a.softmax(1), F.log_softmax(a, -1), a.logsumexp(1), F.softmin(a, 0)),
    "cumsum": lambda a: (a.cumsum(1), (a > 0).cumsum(0)),
    "sort": lambda a: (*a.sort(), *a.sort(1, descending=True), *a.topk(3), *a.topk(2, 1, False)),
    "normalize": lambda a: (F.normalize(a), F.cosine_similarity(a, a * a)),
    "layer_norm": lambda a: (F.layer_norm(a, (8,)), F.layer_norm(a, (5, 8)), F.rms_norm(a, (8,))),
    "instance_norm": lambda a: (F.instance_norm(a), F.group_norm(a, 5)),
    "batch_norm": lambda a: F.batch_norm(a, None, None, training=True),
}  # fmt: skip
PRODUCTS = {
    "matmul": lambda a: (a @ a.transpose(1, 2), a @ a[0, 0], a[0, 0] @ a[0].T, a[0] @ a[0].T),
    "addmm": lambda a: (flow.addmm(a[0, :, 0], a[0], a[0].T, beta=0.5, alpha=2),
                        flow.addmm(a[0, :, 0], a[0], a[0].T)),
    "bmm": lambda a: (flow.bmm(a, a.transpose(1, 2)), flow.outer(a[0, 0], a[1, 1])),
    "baddbmm": lambda a: flow.baddbmm(a @ a.mT, a, a.mT, alpha=0.5),
    "einsum": lambda a: (flow.einsum("bij,bkj->bik", a, a), flow.einsum("bij->ji", a)),
    "tensordot": lambda a: flow.tensordot(a, a, dims=([2], [2])),
    "attention": lambda a: F.scaled_dot_product_attention(a, a, a),
    "causal": lambda a: F.scaled_dot_product_attention(a, a * 2, a, is_causal=True),
    "masked": lambda a: F.scaled_dot_product_attention(a, a, a, attn_mask=MASK.expand(5, 5)),
    "added_mask": lambda a: F.scaled_dot_product_attention(a, a, a, attn_mask=a[0, :, :5], scale=2),
    "blind": lambda a: F.scaled_dot_product_attention(
        a, a, a, attn_mask=flow.zeros(5, 5, dtype=flow.bool)
    ),
    "grouped": lambda a: F.scaled_dot_product_attention(
        a.view(1, 2, 5, 8).repeat(1, 2, 1, 1), a[None], a[None], enable_gqa=True
    ),
}  # fmt: skip
PLANES = {
    "max_pool": lambda a: (
        F.max_pool2d(a, 2), F.max_pool2d(a, 3, 2, 1, ceil_mode=True),
        F.max_pool2d(a, 2, dilation=2), F.max_pool1d(a[0], 2), F.max_pool2d(a[0], (3, 2)),
    ),
    "max_pool_places": lambda a: F.max_pool2d(a, 3, 2, 1, return_indices=True),
    "avg_pool": lambda a: (
        F.avg_pool2d(a, 2), F.avg_pool2d(a, 3, 2, 1), F.avg_pool1d(a[0], 2, padding=1),
        F.avg_pool2d(a, 3, 2, 1, count_include_pad=False),
        F.avg_pool2d(a, 3, 2, 1, ceil_mode=True), F.avg_pool2d(a, 3, divisor_override=5),
        F.avg_pool2d(a, 3, 2, ceil_mode=True),
    ),
    "adaptive": lambda a: (
        F.adaptive_avg_pool2d(a, 1), F.adaptive_avg_pool2d(a, (4, 2)),
        F.adaptive_avg_pool2d(a, (3, 5)), F.adaptive_max_pool2d(a, 1),
        F.adaptive_max_pool2d(a, (3, 5)), F.adaptive_avg_pool1d(a[0], 3),
    ),
    "nearest": lambda a: (
        F.interpolate(a, scale_factor=2), F.interpolate(a, size=(5, 11)),
        F.interpolate(a, size=(5, 11), mode="nearest-exact"), F.interpolate(a[0], size=3),
    ),
    "linear": lambda a: (
        F.interpolate(a, scale_factor=2, mode="bilinear"),
        F.interpolate(a, size=(5, 7), mode="bilinear", align_corners=True),
        F.interpolate(a, scale_factor=1.7, mode="bilinear"),
        F.interpolate(a[0], size=13, mode="linear"),
        F.interpolate(a[None], size=(4, 5, 6), mode="trilinear"),
    ),
    "cubic": lambda a: F.interpolate(a, size=(5, 11), mode="bicubic"),
    "unfold": lambda a: (F.unfold(a, 2), F.unfold(a, (3, 2), 2, 1, 2)),
    "shuffle": lambda a: F.pixel_shuffle(a.reshape(2, 12, 4, 4), 2),
    "lp_pool": lambda a: F.lp_pool2d(a, 2, 2),
    "local": lambda a: F.local_response_norm(a, 2),
    "grid": lambda a: F.grid_sample(a, a[:, :2].permute(0, 2, 3, 1) * 0.3, align_corners=False),
    "conv_same": lambda a: F.conv2d(a, a[:, :, :4, :4] * 0.1, padding="same"),
}  # fmt: skip
PLACES = {
    "embedding": (lambda i: F.embedding(i, V), I),
    "index": (lambda a, i: (a[i], a[:, i], a[i, i], a.take(i), a[-i - 1]), V, I),
    "index_select": (lambda a, i: (a.index_select(1, i), a.index_select(0, i)), V, I),
    "gather": (lambda a, i: a.gather(1, i.expand(4, 3)), V, I),
    "scatter": (scattered, V),
    "put": (put, V),
    "one_hot": (lambda i: F.one_hot(i, 4), I),
    "written": (in_place, values(4, 6, seed=1)),
    "integers": (lambda a: (a // 2, a % 3, a * a, a.clamp(0, 5), a > 1, -a, a.abs()), WHOLE),
    "bits": (lambda a: (a & 3, a | 4, a ^ 1, ~a), WHOLE),
    "truths": (lambda m: (m & ~m, m | m, m ^ m, m + m, m.sum(), m * m), MASK),
    "two": (lambda a, b: a @ b.T, V, POSITIVE),
}
LAYERS: dict[str, tuple[Any, ...]] = {
    "linear": (nn.Linear(6, 3), V),
    "linear_of_one": (nn.Linear(6, 3), V[0]),
    "linear_without_bias": (nn.Linear(6, 3, bias=False), V),
    "bilinear": (nn.Bilinear(6, 6, 2), V, POSITIVE),
    "conv": (nn.Conv2d(3, 4, 3, 2, 1, dilation=2), X),
    "conv_groups": (nn.Conv2d(3, 6, 3, groups=3, bias=False), X),
    "conv_reflect": (nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect"), X),
    "conv_circular": (nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular"), X),
    "conv1d": (nn.Conv1d(5, 4, 3, padding=2), S),
    "conv3d": (nn.Conv3d(3, 4, 2, stride=(1, 2, 1)), values(1, 3, 5, 5, 5)),
    "transposed": (nn.ConvTranspose2d(3, 4, 3, 2, 1, output_padding=1), X),
    "transposed_groups": (nn.ConvTranspose2d(3, 6, 3, groups=3, dilation=2), X),
    "transposed1d": (nn.ConvTranspose1d(5, 4, 4, 3), S),
    "transposed3d": (nn.ConvTranspose3d(3, 2, 2, 2), values(1, 3, 3, 3, 3)),
    "batch_norm": (nn.BatchNorm2d(3), X),
    "batch_norm1d": (nn.BatchNorm1d(6), V),
    "batch_norm_plain": (nn.BatchNorm2d(3, affine=False), X),
    "layer_norm": (nn.LayerNorm(8), S),
    "group_norm": (nn.GroupNorm(3, 3), X),
    "instance_norm": (nn.InstanceNorm2d(3, affine=True), X),
    "rms_norm": (nn.RMSNorm(8), S),
    "prelu": (nn.PReLU(), V),
    "dropout": (nn.Sequential(nn.Dropout(), nn.Linear(6, 2), nn.Dropout(0.9)), V),
    "embedding": (nn.Embedding(5, 4, padding_idx=0), I),
    "attention": (nn.MultiheadAttention(8, 2, batch_first=True), S, S, S),
    "encoder": (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), S),
    "encoder_first": (nn.TransformerEncoderLayer(8, 2, 16, norm_first=True), S),
    "decoder": (nn.TransformerDecoderLayer(8, 2, 16, batch_first=True), S, S * 2),
    "upsample": (nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True), X),
}


@pytest.mark.parametrize("name", POINTWISE)
def test_pointwise(name: str) -> None:
    check(POINTWISE[name], V)


@pytest.mark.parametrize("name", SHAPES)
def test_shapes(name: str) -> None:
    check(SHAPES[name], S)


@pytest.mark.parametrize("name", ROWS)
def test_rows(name: str) -> None:
    check(ROWS[name], S, tol=5e-5)


@pytest.mark.parametrize("name", PRODUCTS)
def test_products(name: str) -> None:
    check(PRODUCTS[name], S)


@pytest.mark.parametrize("name", PLANES)
def test_planes(name: str) -> None:
    check(PLANES[name], X)


@pytest.mark.parametrize("name", PLACES)
def test_places(name: str) -> None:
    function, *args = PLACES[name]
    check(function, *args)


@pytest.mark.parametrize("name", LAYERS)
def test_layers(name: str) -> None:
    layer, *args = LAYERS[name]
    check(layer, *args)


def test_an_odd_view_of_a_parameter() -> None:
    weight = nn.Parameter(values(6, 4).T)  # lies in memory the other way round
    check(lambda a: (a @ weight.T, weight[1:3] + 1, weight.flatten()), V)
    check(lambda a: a + V[1:3, ::2][0].repeat(2), V)


def test_an_input_that_is_no_whole_tensor() -> None:
    check(lambda a, b: (a + 1, b * 2), S.transpose(0, 2), S[:, ::2, 1:4])


def test_a_rest_has_the_divisors_sign_and_halves_go_to_even() -> None:
    a = flow.tensor([-3.0, -0.5, 0.5, 1.5, 2.5, 3.0])
    check(lambda x: (x % 2, x % -2, flow.fmod(x, 2), x.round(), x // 2, x // -2), a, tol=0)
    check(lambda x: (x % 5, x % -5, x // 5, x // -5), WHOLE, tol=0)


def test_numbers_beyond_all_stay_so() -> None:
    a = flow.tensor([-math.inf, -100.0, 0.0, 100.0, math.inf, math.nan])
    check(lambda x: (F.softplus(x), x.tanh(), x.exp(), x.clamp(-1, 1), x.log1p(), x.expm1()), a)
