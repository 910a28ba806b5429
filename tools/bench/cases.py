"""The timed expressions of every op; they mean the same in flowvm, PyTorch, JAX and NumPy.

An expression is evaluated with `l` as the library and x, y, z as its arrays.  `l.softmax` is found
in whichever of a library's modules has it; a library that has it nowhere has no figure.
Elementwise ops are not listed one by one: whatever is declared is timed.

`WITHOUT` names the ops that are not timed, with the reason; a test holds both lists against all
that is declared.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["CASES", "OPERANDS", "WITHOUT", "Case", "all_cases"]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Case:
    """`expr` on operands of the given kinds; `other` is the same for JAX and NumPy if it differs.

    `ops` are the declared ops that it covers besides `name`.  `flops(n)` counts floating-point
    operations where they and not memory are what bounds it.  `grad`: also timed with backward.
    """

    name: str
    family: str
    operands: str
    expr: str
    other: str = ""
    ops: tuple[str, ...] = ()
    flops: Callable[[int], float] | None = None
    least: int = 1
    most: int = 1 << 24
    grad: bool = False


def sides(n: int) -> tuple[int, int]:
    """(rows, columns) of a matrix of about n elements, columns the larger power of two."""
    columns = 1 << -(-int(math.log2(max(n, 1))) // 2)
    return max(1, n // columns), columns


def _images(n: int) -> tuple[int, ...]:
    return (max(1, n // (32 * 28 * 28)), 32, 28, 28)


def _normal(rng: np.random.Generator, *shape: int) -> Array:
    return rng.standard_normal(shape, np.float32)


# kind -> array for a size of n elements
OPERANDS: dict[str, Callable[[np.random.Generator, int], Array]] = {
    "v": lambda rng, n: _normal(rng, n),
    "p": lambda rng, n: rng.uniform(0.05, 4, n).astype(np.float32),
    "u": lambda rng, n: rng.uniform(0.05, 0.95, n).astype(np.float32),
    "g": lambda rng, n: rng.uniform(1, 9, n).astype(np.float32),
    "b": lambda rng, n: rng.random(n) < 0.5,
    "i": lambda rng, n: rng.integers(0, n, n),
    "k": lambda rng, n: rng.integers(1, 8, n),
    "s": lambda rng, n: np.sort(_normal(rng, n)),
    "m": lambda rng, n: _normal(rng, *sides(n)),
    "w": lambda rng, n: _normal(rng, sides(n)[1]),
    "c": lambda rng, n: rng.integers(0, sides(n)[1], sides(n)[0]),
    "j": lambda rng, n: rng.integers(0, sides(n)[1], sides(n)),
    "q": lambda rng, n: _normal(rng, math.isqrt(n), math.isqrt(n)),
    "d": lambda rng, n: _positive_definite(rng, math.isqrt(n)),
    "3": lambda rng, n: _normal(rng, max(1, n >> 12), 64, 64),
    "h": lambda rng, n: _normal(rng, *_images(n)),
    "f": lambda rng, n: _normal(rng, 32, 32, 3, 3),
    "1": lambda rng, n: _normal(rng, 64, 32, 1, 1),
    "y": lambda rng, n: _normal(rng, 32, 1, 3, 3),
    "l": lambda rng, n: _normal(rng, max(1, n >> 15), 32, 1024),
    "e": lambda rng, n: _normal(rng, 32, 32, 5),
    "o": lambda rng, n: _normal(rng, max(1, n // (8 * 16**3)), 8, 16, 16, 16),
    "a": lambda rng, n: _normal(rng, 8, 8, 3, 3, 3),
    "t": lambda rng, n: _normal(rng, 32),
}


def _positive_definite(rng: np.random.Generator, n: int) -> Array:
    a = _normal(rng, n, n)
    return a @ a.T / max(n, 1) + np.eye(n, dtype=np.float32)


def _product(n: int) -> float:
    return 2.0 * math.isqrt(n) ** 3


def _windows(n: int, channels: int, outputs: int, window: int) -> float:
    return 2.0 * _images(n)[0] * 28 * 28 * channels * outputs * window


_LOSSES = [
    Case(f"{name}", "loss", "uu", f"F.{name}(x, y)", grad=True)
    for name in ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy",
                 "binary_cross_entropy_with_logits", "kl_div")
]  # fmt: skip
_FOLDS = [
    case
    for name in ("sum", "mean", "amax", "amin", "prod", "std", "var", "logsumexp", "argmax",
                 "argmin", "all", "any", "count_nonzero", "nansum")
    for case in (
        Case(f"{name}, rows", "reduction", "m", f"l.{name}(x, 1)", ops=(name,), grad=name == "sum"),
        Case(f"{name}, columns", "reduction", "m", f"l.{name}(x, 0)"),
    )
]  # fmt: skip
_SCANS = [
    case
    for name in ("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp")
    for case in (
        Case(f"{name}, one row", "scan", "u", f"l.{name}(x, 0)", ops=(name,)),
        Case(f"{name}, rows", "scan", "m", f"l.{name}(x, 1)"),
        Case(f"{name}, columns", "scan", "m", f"l.{name}(x, 0)"),
    )
]
_ROWS = [
    case
    for name in ("softmax", "log_softmax", "softmin")
    for case in (
        Case(f"{name}, rows", "rows", "m", f"F.{name}(x, -1)", "l.softmax(x, -1)",
             ops=(name,), grad=True),
        Case(f"{name}, columns", "rows", "m", f"F.{name}(x, 0)", "l.softmax(x, 0)"),
    )
]  # fmt: skip

CASES: list[Case] = [
    *_FOLDS,
    Case("sum, all", "reduction", "m", "l.sum(x)"),
    Case("max, all", "reduction", "m", "l.max(x)", ops=("max", "min")),
    Case("argmax, all", "reduction", "m", "l.argmax(x)"),
    Case("aminmax", "reduction", "v", "l.aminmax(x)"),
    Case("max with index, rows", "reduction", "m", "l.max(x, 1)"),
    Case("median, rows", "reduction", "m", "l.median(x, 1)", ops=("median",), most=1 << 22),
    Case("kthvalue", "reduction", "v", "l.kthvalue(x, 1)", most=1 << 22),
    Case("norm", "reduction", "v", "l.norm(x)", ops=("vector_norm", "norm zero")),
    Case("var_mean, rows", "reduction", "m", "l.var_mean(x, 1)", ops=("var_mean", "std_mean")),
    *_SCANS,
    Case("diff", "scan", "v", "l.diff(x)"),
    *_ROWS,
    Case("layer_norm", "rows", "mww", "F.layer_norm(x, x.shape[-1:], y, z)", grad=True),
    Case("rms_norm", "rows", "mw", "F.rms_norm(x, x.shape[-1:], y)", grad=True),
    Case("normalize", "rows", "m", "F.normalize(x)"),
    Case("cosine_similarity", "rows", "mm", "F.cosine_similarity(x, y)"),
    Case("vecdot", "rows", "mm", "l.linalg.vecdot(x, y)"),
    Case("batch_norm", "rows", "htt", "F.batch_norm(x, None, None, y, z, True)", least=1 << 14,
         grad=True),
    Case("group_norm", "rows", "htt", "F.group_norm(x, 8, y, z)", least=1 << 14, grad=True),
    Case("instance_norm", "rows", "h", "F.instance_norm(x)", least=1 << 14),
    Case("renorm", "rows", "m", "l.renorm(x, 2, 0, 1)"),
    Case("cdist", "rows", "mm", "l.cdist(x, y)", ops=("pdist",), most=1 << 20),
    Case("cross", "rows", "v",
         "l.cross(x.reshape(-1, 1).expand(-1, 3), x[:3].expand(len(x), 3), 1)", least=3,
         ops=("linalg.cross",)),
    Case("ctc_loss", "loss", "l",
         "F.ctc_loss(x.reshape(1024, -1, 32).log_softmax(2), l.ones((len(x), 100), dtype=l.int64),"
         " l.full((len(x),), 1024), l.full((len(x),), 100))", least=1 << 15, most=1 << 20),
    Case("cross_entropy", "loss", "mc", "F.cross_entropy(x, y)", grad=True),
    Case("nll_loss", "loss", "mc", "F.nll_loss(x, y)"),
    *_LOSSES,
    Case("matmul, square", "product", "qq", "l.matmul(x, y)", ops=("matmul", "mm"), flops=_product,
         most=1 << 22),
    Case("matmul, right transposed", "product", "qq", "l.matmul(x, y.T)", flops=_product,
         most=1 << 22),
    Case("matmul, left transposed", "product", "qq", "l.matmul(x.T, y)", flops=_product,
         most=1 << 22),
    Case("matrix by vector", "product", "mw", "l.matmul(x, y)", ops=("mv", "addmv")),
    Case("linear, 64 to 64", "product", "lt", "F.linear(x.reshape(-1, 64), l.ones((64, 64)))", "",
         ops=("linear", "addmm"), least=1 << 15),
    Case("bmm, 64x64", "product", "33", "l.matmul(x, y)", ops=("bmm", "baddbmm", "addbmm"),
         flops=lambda n: 2.0 * max(1, n >> 12) * 64**3),
    Case("outer", "product", "ww", "l.outer(x, y)"),
    Case("addr", "product", "mw", "l.addr(x, x[:, 0], y)"),
    Case("dot", "product", "vv", "l.dot(x, y)", ops=("inner",)),
    Case("einsum ij,kj->ik", "product", "qq", "l.einsum('ij,kj->ik', x, y)",
         ops=("einsum",), flops=_product, most=1 << 22),
    Case("kron", "product", "tv", "l.kron(x, y)", most=1 << 20),
    Case("cholesky", "linalg", "d", "l.cholesky(x)", ops=("cholesky",), most=1 << 20),
    Case("inverse", "linalg", "d", "l.inverse(x)", ops=("inverse", "linalg.inv"), most=1 << 20),
    Case("solve", "linalg", "dq", "l.solve(x, y)", ops=("solve", "linalg.solve"),
         most=1 << 20),
    Case("det", "linalg", "d", "l.det(x)", most=1 << 20,
         ops=("slogdet", "logdet", "linalg.det", "linalg.slogdet")),
    Case("qr", "linalg", "q", "l.linalg.qr(x)", ops=("orgqr", "ormqr"), most=1 << 18),
    Case("eigh", "linalg", "d", "l.linalg.eigh(x)", most=1 << 18),
    Case("svdvals", "linalg", "q", "l.linalg.svdvals(x)", "l.linalg.svd(x, compute_uv=False)",
         ops=("svdvals", "linalg.cond", "linalg.matrix_rank"), most=1 << 18),
    Case("pinverse", "linalg", "q", "l.linalg.pinv(x)", ops=("pinverse", "pinv"), most=1 << 18),
    Case("cholesky_solve", "linalg", "qd", "l.cholesky_solve(x, y)",
         ops=("cholesky_solve", "cholesky_inverse"), most=1 << 20),
    Case("matrix_exp", "linalg", "d", "l.matrix_exp(x)", most=1 << 18),
    Case("matrix norm", "linalg", "q", "l.linalg.norm(x)",
         ops=("linalg.norm", "linalg.vector_norm", "matrix_norm")),
    Case("conv2d 3x3", "convolution", "hf", "F.conv2d(x, y, padding=1)", ops=("conv2d",),
         flops=lambda n: _windows(n, 32, 32, 9), least=1 << 14, most=1 << 22, grad=True),
    Case("conv2d 1x1", "convolution", "h1", "F.conv2d(x, y)",
         flops=lambda n: _windows(n, 32, 64, 1), least=1 << 14, most=1 << 22, grad=True),
    Case("conv2d 3x3, stride 2", "convolution", "hf", "F.conv2d(x, y, stride=2, padding=1)",
         flops=lambda n: _windows(n, 32, 32, 9) / 4, least=1 << 14, most=1 << 22, grad=True),
    Case("conv2d depthwise", "convolution", "hy", "F.conv2d(x, y, padding=1, groups=32)",
         flops=lambda n: _windows(n, 1, 32, 9), least=1 << 14, grad=True),
    Case("conv1d", "convolution", "le", "F.conv1d(x, y, padding=2)", ops=("conv1d",),
         least=1 << 15, most=1 << 22, grad=True),
    Case("conv3d", "convolution", "oa", "F.conv3d(x, y, padding=1)", ops=("conv3d",),
         least=1 << 15, most=1 << 22, grad=True),
    Case("conv_transpose2d", "convolution", "hf", "F.conv_transpose2d(x, y, padding=1)",
         ops=("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"), least=1 << 14,
         most=1 << 22),
    Case("max_pool2d", "convolution", "h", "F.max_pool2d(x, 2)", ops=("max_pool1d", "max_pool2d"),
         least=1 << 14, grad=True),
    Case("avg_pool2d", "convolution", "h", "F.avg_pool2d(x, 2)", ops=("avg_pool1d", "avg_pool2d"),
         least=1 << 14, grad=True),
    Case("adaptive_avg_pool2d", "convolution", "h", "F.adaptive_avg_pool2d(x, 1)",
         ops=("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_max_pool1d",
              "adaptive_max_pool2d"), least=1 << 14),
    Case("max_pool3d", "convolution", "o", "F.max_pool3d(x, 2)", ops=("max_pool3d",),
         least=1 << 15, grad=True),
    Case("avg_pool3d", "convolution", "o", "F.avg_pool3d(x, 2)", ops=("avg_pool3d",),
         least=1 << 15, grad=True),
    Case("adaptive_avg_pool3d", "convolution", "o", "F.adaptive_avg_pool3d(x, 4)",
         ops=("adaptive_avg_pool3d", "adaptive_max_pool3d"), least=1 << 15),
    Case("grid_sample", "convolution", "h",
         "F.grid_sample(x, F.affine_grid(l.eye(2, 3).expand(len(x), 2, 3), x.shape, False),"
         " align_corners=False)", ops=("grid_sample", "affine_grid"), least=1 << 15, most=1 << 22,
         grad=True),
    Case("unfold 3x3", "convolution", "h", "F.unfold(x, 3)", least=1 << 14, most=1 << 22,
         grad=True),
    Case("fold", "convolution", "l", "F.fold(x, 33, 2)", ops=("fold",), least=1 << 15,
         most=1 << 22, grad=True),
    Case("interpolate, nearest", "convolution", "h", "F.interpolate(x, scale_factor=2)",
         ops=("upsample",), least=1 << 14, most=1 << 22, grad=True),
    Case("interpolate, bilinear", "convolution", "h",
         "F.interpolate(x, scale_factor=2, mode='bilinear')", ops=("interpolate",), least=1 << 14,
         most=1 << 22, grad=True),
    Case("interpolate, bicubic", "convolution", "h",
         "F.interpolate(x, scale_factor=2, mode='bicubic')", least=1 << 14, most=1 << 22,
         grad=True),
    Case("pixel_shuffle", "movement", "h", "F.pixel_shuffle(x, 2)",
         ops=("pixel_shuffle", "pixel_unshuffle", "channel_shuffle"), least=1 << 14),
    Case("sort", "order", "v", "l.sort(x)", ops=("sort", "msort", "argsort"), most=1 << 22),
    Case("sort, rows", "order", "m", "l.sort(x, 1)", most=1 << 22),
    Case("topk 10", "order", "v", "l.topk(x, 10)", ops=("topk",), least=16, most=1 << 22),
    Case("unique", "order", "k", "l.unique(x)", ops=("unique",), most=1 << 22),
    Case("unique_consecutive", "order", "k", "l.unique_consecutive(x)", most=1 << 22),
    Case("searchsorted", "order", "sv", "l.searchsorted(x, y)", ops=("bucketize",), most=1 << 22),
    Case("isin", "order", "kk", "l.isin(x, y[:8])", most=1 << 22),
    Case("bincount", "order", "k", "l.bincount(x)", most=1 << 22),
    Case("histc", "order", "v", "l.histc(x)", ops=("histogramdd",), most=1 << 22),
    Case("nanquantile", "order", "m", "l.nanquantile(x, 0.5, 1)", ops=("nanquantile",),
         most=1 << 22),
    Case("gather", "index", "mj", "l.gather(x, 1, y)", ops=("take_along_dim",)),
    Case("index_select, rows", "index", "mc", "l.index_select(x, 0, y % x.shape[0])",
         ops=("index_select",)),
    Case("index_select, columns", "index", "mc", "l.index_select(x, 1, y)"),
    Case("take", "index", "vi", "l.take(x, y)"),
    Case("x[index]", "index", "vi", "x[y]", ops=("index_put",)),
    Case("x[:, 3]", "index", "m", "x[:, 3] + 0", least=64),
    Case("embedding", "index", "mc", "F.embedding(y % x.shape[0], x)", "", ops=("embedding",),
         grad=True),
    Case("embedding_bag", "index", "mj", "F.embedding_bag(y % x.shape[0], x)",
         ops=("embedding_bag",), most=1 << 16, grad=True),
    Case("scatter_add", "index", "viv", "l.scatter_add(x, 0, y, z)",
         ops=("scatter", "scatter_add", "scatter_reduce")),
    Case("put", "index", "viv", "l.Tensor.put(x, y, z)"),
    Case("index_reduce", "index", "viv", "l.index_reduce(x, 0, y, z, 'amax')"),
    Case("segment_reduce", "index", "v", "l.segment_reduce(x, 'sum', lengths=l.full((len(x),), 1))",
         most=1 << 22),
    Case("select_scatter", "index", "mw", "l.select_scatter(x, y, 0, 0)",
         ops=("select_scatter", "slice_scatter", "diagonal_scatter", "as_strided_scatter")),
    Case("unravel_index", "index", "i", "l.unravel_index(x, (64, 1 << 20))"),
    Case("index_add", "index", "viv", "l.index_add(x, 0, y, z)",
         ops=("index_add", "index_copy", "index_fill")),
    Case("masked_fill", "index", "vb", "l.masked_fill(x, y, 0.0)", ops=("masked_fill",)),
    Case("masked_select", "index", "vb", "l.masked_select(x, y)", "x[y]",
         ops=("masked_select", "masked_scatter")),
    Case("nonzero", "index", "b", "l.nonzero(x)", ops=("argwhere", "nonzero_static")),
    Case("one_hot", "index", "k", "F.one_hot(x, 8)", "l.one_hot(x, 8)", most=1 << 22),
    Case("transpose copy", "movement", "m", "x.T.contiguous()", "x.T.copy()", ops=("t",)),
    Case("permuted copy, NCHW to NHWC", "movement", "h", "x.permute(0, 2, 3, 1).contiguous()",
         "x.transpose(0, 2, 3, 1).copy()", least=1 << 14),
    Case("x + y.T", "movement", "qq", "x + y.T"),
    Case("x + row", "movement", "mw", "x + y"),
    Case("x[:, ::2] + 1", "movement", "m", "x[:, ::2] + 1"),
    Case("flip", "movement", "m", "l.flip(x, (1,))", ops=("flip", "fliplr", "flipud", "rot90")),
    Case("roll", "movement", "v", "l.roll(x, 3)"),
    Case("cat", "movement", "mm", "l.cat((x, y), 1)", "l.concatenate((x, y), 1)",
         ops=("cat", "concat", "hstack", "vstack", "dstack", "column_stack")),
    Case("stack", "movement", "vv", "l.stack((x, y))", ops=("stack",)),
    Case("pad", "movement", "m", "F.pad(x, (1, 1, 1, 1))", "l.pad(x, 1)"),
    Case("repeat", "movement", "m", "x.repeat(2, 2)", "l.tile(x, (2, 2))", ops=("repeat", "tile"),
         most=1 << 22),
    Case("repeat_interleave", "movement", "v", "l.repeat_interleave(x, 2)", "l.repeat(x, 2)",
         most=1 << 22),
    Case("tril", "movement", "q", "l.tril(x)", ops=("tril", "triu")),
    Case("trace", "movement", "q", "l.trace(x)"),
    Case("diag_embed", "movement", "t", "l.diag_embed(x)", ops=("diag_embed", "diag", "diagflat")),
    Case("meshgrid + 0", "movement", "ww", "l.meshgrid(x, y, indexing='ij')[0] + 0",
         ops=("meshgrid", "cartesian_prod", "combinations"), most=1 << 20),
    Case("float to int64", "movement", "v", "x.to(l.int64)", "x.astype('int64')"),
    Case("to float16", "movement", "v", "x.to(l.float16)", "x.astype('float16')"),
    Case("clone", "movement", "v", "x.clone()", "x.copy()", ops=("slice_copy", "narrow_copy")),
    Case("zeros_like", "create", "v", "l.zeros_like(x)", ops=("zeros_like", "ones_like",
         "full_like")),
    Case("arange", "create", "v", "l.arange(len(x))", ops=("range",)),
    Case("hann_window", "create", "v", "l.hann_window(len(x))",
         ops=("hamming_window", "blackman_window", "bartlett_window", "kaiser_window")),
    Case("linspace", "create", "v", "l.linspace(0, 1, len(x))", ops=("linspace", "logspace")),
    Case("rand_like", "create", "v", "l.rand_like(x)", ops=("rand_like",)),
    Case("randn_like", "create", "v", "l.randn_like(x)"),
    Case("bernoulli", "create", "u", "l.bernoulli(x)"),
    Case("randperm", "create", "v", "l.randperm(len(x))", most=1 << 22),
    Case("dropout", "create", "v", "F.dropout(x, 0.1)", ops=("dropout",)),
    Case("prelu", "elementwise", "mw", "F.prelu(x, y)", least=64),
    Case("x ** 2", "elementwise", "v", "x ** 2", ops=("pow", "pow zero")),
    Case("x ** 2.5", "elementwise", "p", "x ** 2.5"),
    Case("clamp", "elementwise", "v", "l.clamp(x, -1, 1)", "l.clip(x, -1, 1)", ops=("clamp",
         "clamp_max", "clamp_min")),
    Case("addcmul", "elementwise", "vvv", "l.addcmul(x, y, z)", ops=("addcmul", "addcdiv")),
    Case("where", "elementwise", "bvv", "l.where(x, y, z)", ops=("where",)),
    Case("int64 add", "elementwise", "kk", "x + y"),
    Case("int64 floor_divide", "elementwise", "kk", "x // y"),
    Case("int64 remainder", "elementwise", "kk", "x % y"),
    Case("int64 left shift", "elementwise", "kk", "x << y", ops=("bitwise_left_shift",
         "bitwise_right_shift")),
    Case("x < y", "elementwise", "vv", "x < y"),
    Case("int64 gcd", "elementwise", "kk", "l.gcd(x, y)", ops=("gcd", "lcm")),
    Case("logical_and", "elementwise", "bb", "l.logical_and(x, y)"),
]  # fmt: skip

WITHOUT = {
    "a view: it moves nothing": (
        "adjoint as_strided atleast_1d atleast_2d atleast_3d broadcast_tensors broadcast_to chunk "
        "diagonal dsplit flatten hsplit linalg.diagonal movedim narrow permute ravel reshape "
        "select split split_with_sizes squeeze tensor_split transpose unbind unflatten unfold "
        "unsqueeze view_as_complex vsplit"
    ),
    "made of timed ops": "add_with_alpha chain_matmul div_rounded glu isclose linalg.vander "
    "matrix_power multi_dot tensordot tensorinv tensorsolve vander",
    "takes Python data": "as_tensor",
    "PyTorch has none": "deform_conv2d nms roi_align",
    "a step of the networks in `targets`": "gru_cell rnn_relu_cell rnn_tanh_cell",
    "in `targets`, forward and backward": "scaled_dot_product_attention",
    "in the group `sparse`, as parts of products": (
        "sparse_grouped sparse_product sparse_row_numbers sparse_samples"
    ),
}

_DOMAINS = {"acos": "u", "asin": "u", "atanh": "u", "erfinv": "u", "acosh": "g", "polygamma": "p"}
_POSITIVE = ("log", "log2", "log10", "log1p", "sqrt", "rsqrt", "lgamma", "digamma", "reciprocal")
_WHOLE = ("bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not")


def all_cases() -> list[Case]:
    """Return CASES, and one case for each declared elementwise op of floats."""
    import flowvm as flow
    import flowvm.linalg  # which declares more
    from flowvm.ops.declare.registry import SAMPLES

    cases = list(CASES)
    known = covered()
    for sampled in SAMPLES:
        name = sampled.name
        declared = getattr(flow, name, None) or getattr(flow.nn.functional, name, None)
        if name in known or declared is None:
            continue
        known.add(name)
        cases.append(_elementwise(name, sampled))
    return cases


def covered() -> set[str]:
    """Names of ops that have a case of their own here, or a reason for having none."""
    names = {name.replace("_", " ") for line in WITHOUT.values() for name in line.split()}
    names |= {name for line in WITHOUT.values() for name in line.split()}
    for case in CASES:
        names |= {case.name, *case.ops}
    return names


def _elementwise(name: str, sampled: Any) -> Case:
    sample = next(iter(sampled.generate(np.random.default_rng(0))))
    arrays = sum(isinstance(a, np.ndarray) for a in sample.args)
    numbers = [a for a in sample.args if not isinstance(a, np.ndarray)]
    kind = _DOMAINS.get(name, "p" if name in _POSITIVE else "k" if name in _WHOLE else "v")
    first = "polygamma(1, x)" if name == "polygamma" else ""
    args = ", ".join([*"xyz"[:arrays], *map(repr, numbers)])
    return Case(name, "elementwise", kind * arrays, f"l.{first or f'{name}({args})'}")
