"""`oneflow._C`: OneFlow's functions by the names and arguments that its programs call them with.

Here are those that differ from `flow`'s and `nn.functional`'s; all others are these (`named`).
What OneFlow fused by hand is written as what it computes: graphs fuse it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from flowvm import ops
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, MissingNameError
from flowvm.meta.dtype import bool_, float32, float64
from flowvm.methods import function as of_method
from flowvm.nn import functional as F
from flowvm.ops.collectives import collectives
from flowvm.ops.random.choices import dropout as _dropout


def named(name: str) -> Any:
    """The function of `oneflow._C` with this name; MissingNameError where there is none."""
    if name[:1] != "_":
        for place in (_OWN, vars(ops), F):
            function = place.get(name) if isinstance(place, dict) else getattr(place, name, None)
            if callable(function):
                return function
        if callable(getattr(Tensor, name, None)):
            return of_method(name)
    raise MissingNameError(f"flowvm.compat.native has no {name!r}", name)


def matmul(
    input: Tensor,
    other: Tensor,
    transpose_a: bool = False,
    transpose_b: bool = False,
    alpha: float = 1.0,
) -> Any:
    """`alpha` times the product, of tensors whose last two dimensions may be exchanged first."""
    a = input.transpose(-2, -1) if transpose_a else input
    b = other.transpose(-2, -1) if transpose_b else other
    product: Tensor = ops.matmul(a, b)
    return product if alpha == 1.0 else product * alpha


def gather(x: Tensor, indices: Tensor, axis: int = 0) -> Any:
    """The slices of `x` along `axis` that integers of any shape name: that shape in its place."""
    at = axis % x.ndim
    rows = ops.index_select(x, at, indices.reshape(-1))
    return rows.reshape((*x.shape[:at], *indices.shape, *x.shape[at + 1 :]))


def transpose(input: Tensor, perm: Sequence[int]) -> Any:
    """The dimensions in the order `perm`."""
    return input.permute(tuple(perm))


def cast(x: Tensor, dtype: object, pin_memory: bool = False) -> Any:
    """The tensor in another dtype."""
    return x.to(dtype)


def identity(x: Tensor) -> Tensor:
    """The tensor itself: also where OneFlow's autocast has its own rules for it."""
    return x


def bias_add(x: Tensor, bias: Tensor, axis: int = 1) -> Any:
    """`bias`, a vector along `axis`, added to `x`."""
    shape = [1] * x.ndim
    shape[axis] = -1
    return x + bias.reshape(shape)


def softmax(x: Tensor, dim: int | None = None) -> Tensor:
    """softmax over `dim`, by default the last one."""
    out: Tensor = ops.softmax(x, -1 if dim is None else dim)
    return out


def log_softmax(x: Tensor, dim: int | None = None) -> Tensor:
    """log_softmax over `dim`, by default the last one."""
    out: Tensor = ops.log_softmax(x, -1 if dim is None else dim)
    return out


# --- losses ---------------------------------------------------------------------------------------


def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """`F.cross_entropy`."""
    return F.cross_entropy(
        input, target, weight, ignore_index=ignore_index, reduction=reduction,
        label_smoothing=label_smoothing,
    )  # fmt: skip


def sparse_softmax_cross_entropy(logits: Tensor, label: Tensor) -> Any:
    """The cross entropy of each row of logits (*, C) with its class: (*)."""
    rows = logits.reshape((-1, logits.shape[-1]))
    losses = F.cross_entropy(rows, label.reshape(-1), reduction="none")
    return losses.reshape(label.shape)


def sparse_cross_entropy(prediction: Tensor, label: Tensor, depth: int) -> Any:
    """The cross entropy of each row of probabilities (*, depth) with its class: (*)."""
    if prediction.shape[-1] != depth:
        raise ArgumentError(f"sparse_cross_entropy: depth {depth}, and {prediction.shape[-1]} rows")
    own: Tensor = ops.gather(prediction, -1, label.unsqueeze(-1)).squeeze(-1)
    return -own.log()


def softmax_cross_entropy(logits: Tensor, label: Tensor) -> Any:
    """The cross entropy of each row of logits with a row of probabilities."""
    return -(label * ops.log_softmax(logits, -1)).sum(-1)


def binary_cross_entropy_loss(
    input: Tensor, target: Tensor, weight: Tensor | None = None, reduction: str = "mean"
) -> Tensor:
    """`F.binary_cross_entropy`."""
    return F.binary_cross_entropy(input, target, weight, reduction=reduction)


def binary_cross_entropy_with_logits_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    pos_weight: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    """`F.binary_cross_entropy_with_logits`."""
    return F.binary_cross_entropy_with_logits(
        input, target, weight, reduction=reduction, pos_weight=pos_weight
    )


def l1_loss(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """`F.l1_loss`."""
    return F.l1_loss(input, target, reduction=reduction)


def smooth_l1_loss(logits: Tensor, label: Tensor, beta: float, reduction: str) -> Tensor:
    """`F.smooth_l1_loss`."""
    return F.smooth_l1_loss(logits, label, beta=beta, reduction=reduction)


# --- norms ----------------------------------------------------------------------------------------


def layer_norm(x: Tensor, begin_norm_axis: int, begin_params_axis: int, epsilon: float) -> Tensor:
    """`F.layer_norm` over the dimensions from `begin_norm_axis` on."""
    return F.layer_norm(x, tuple(x.shape[begin_norm_axis:]), eps=epsilon)


def layer_norm_affine(
    x: Tensor,
    gamma: Tensor,
    beta: Tensor,
    begin_norm_axis: int,
    begin_params_axis: int,
    epsilon: float,
) -> Tensor:
    """`F.layer_norm` over the dimensions from `begin_norm_axis` on, with its scale and shift."""
    return F.layer_norm(x, tuple(x.shape[begin_norm_axis:]), gamma, beta, epsilon)


def rms_norm(
    x: Tensor, weight: Tensor | None, normalized_shape: Sequence[int], epsilon: float = 1e-6
) -> Tensor:
    """`F.rms_norm`."""
    return F.rms_norm(x, tuple(normalized_shape), weight, epsilon)


def l2_normalize(input: Tensor, axis: int = 0, epsilon: float = 1e-12) -> Tensor:
    """The tensor divided by the root of the sum of its squares along `axis`, at least `epsilon`."""
    return F.l2_normalize(input, axis, epsilon)


# --- shapes ---------------------------------------------------------------------------------------


def reshape_like(x: Tensor, like: Tensor) -> Any:
    """The tensor in the shape of another one."""
    return x.reshape(like.shape)


def reduce_sum_like(x: Tensor, like: Tensor, axis: Sequence[int] = ()) -> Any:
    """The sums over `axis`, in the shape of `like`."""
    return (x.sum(tuple(axis)) if tuple(axis) else x).reshape(like.shape)


def split_like(x: Tensor, like: Sequence[Tensor], axis: int) -> Any:
    """Pieces along `axis`, as long as those of `like`."""
    return x.split([t.shape[axis] for t in like], axis)


def _slices(start: Any, stop: Any, step: Any) -> tuple[slice, ...]:
    return tuple(slice(*ends) for ends in zip(start, stop, step, strict=True))


def slice_of(
    x: Tensor, start: object, stop: object, step: object, enable_view_slice: object = None
) -> Tensor:
    """`x[start:stop:step]`, of each of the first dimensions."""
    part: Tensor = x[_slices(start, stop, step)]
    return part


def slice_update(
    ref: Tensor, value: Tensor, start: object, stop: object, step: object, inplace: bool = False
) -> Any:
    """`ref` with `value` at `[start:stop:step]`; itself if `inplace`."""
    changed = ref if inplace else ref.clone()
    changed[_slices(start, stop, step)] = value
    return changed


def global_arange(
    start: bool | float, end: bool | float | None, step: bool | float = 1, **options: Any
) -> Tensor:
    """`flow.arange` of a global tensor."""
    numbers: Tensor = ops.arange(start, end, step, **options)
    return numbers


# --- what OneFlow fused ---------------------------------------------------------------------------


def fused_bias_add_gelu(a: Tensor, b: Tensor, *, axis: int) -> Tensor:
    """gelu of a sum with a bias."""
    return F.gelu(bias_add(a, b, axis))


def fused_bias_add_dropout(
    a: Tensor, b: Tensor, *, p: float = 0.5, axis: int, generator: Any = None
) -> Tensor:
    """Dropout of a sum with a bias."""
    return _dropout(bias_add(a, b, axis), p, generator=generator)


def fused_fast_gelu_mul(x: Tensor, multiplier: Tensor) -> Tensor:
    """gelu by its tanh approximation, times another tensor."""
    return F.gelu(x, "tanh") * multiplier


def quick_gelu(x: Tensor) -> Any:
    """x * sigmoid(1.702 x)."""
    return x * ops.sigmoid(x * 1.702)


def fused_scale_tril(
    x: Tensor, diagonal: int = 0, fill_value: float = 0, scale: float = 1
) -> Tensor:
    """`scale * x` on and below a diagonal, `fill_value` above it."""
    below = ops.ones(x.shape[-2:], dtype=bool_, device=x.device).tril(diagonal)
    out: Tensor = ops.where(below, x * scale, fill_value)
    return out


def fused_scale_mask_softmax(
    x: Tensor, mask: Tensor, *, fill_value: float = 0.0, scale: float = 1.0
) -> Tensor:
    """softmax over the last dimension of `scale * x`, and of `fill_value` where the mask is 0."""
    masked = ops.where(mask.to(bool_), x * scale, fill_value)
    return softmax(masked)


def fused_scale_mask_softmax_dropout(
    x: Tensor,
    mask: Tensor,
    *,
    fill_value: float = 0.0,
    scale: float = 1.0,
    p: float = 0.5,
    training: bool = True,
    generator: Any = None,
) -> tuple[Tensor, Tensor]:
    """Dropout of `fused_scale_mask_softmax`, and that."""
    shares = fused_scale_mask_softmax(x, mask, fill_value=fill_value, scale=scale)
    return _dropout(shares, p, training, generator=generator), shares


def fused_scale_tril_softmax_mask_scale(
    a: Tensor,
    *,
    p: float = 0.5,
    diagonal: int,
    tril_scale_value: float,
    tril_fill_value: float = -math.inf,
    generator: Any = None,
) -> tuple[Tensor, Tensor]:
    """Dropout of the softmax of `fused_scale_tril`, and that softmax."""
    shares = softmax(fused_scale_tril(a, diagonal, tril_fill_value, tril_scale_value))
    return _dropout(shares, p, generator=generator), shares


def fused_scale_tril_softmax_dropout(
    x: Tensor,
    diagonal: int = 0,
    scale: float = 1.0,
    fill_value: float = -math.inf,
    rate: float = 0.5,
    generator: Any = None,
) -> Tensor:
    """Dropout of the softmax of `fused_scale_tril`."""
    shares = softmax(fused_scale_tril(x, diagonal, fill_value, scale))
    return _dropout(shares, rate, generator=generator)


def fused_bias_add_scale_mask_softmax_dropout(
    x: Tensor, bias: Tensor, mask: Tensor, **options: Any
) -> tuple[Tensor, Tensor]:
    """`fused_scale_mask_softmax_dropout` of a sum with a bias that broadcasts."""
    return fused_scale_mask_softmax_dropout(x + bias, mask, **options)


def fused_self_attention(
    hidden_states: Tensor, head_size: int = 8, alpha: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Scores `alpha * query @ key.T` (batch, heads, n, n) and values (batch, heads, n, size) of
    (n, batch, heads * 3 * size).
    """
    n, batch, width = hidden_states.shape
    parts = hidden_states.reshape((n, batch, width // (3 * head_size), 3 * head_size))
    query, key, value = parts.permute((1, 2, 0, 3)).split(head_size, -1)
    return query @ key.transpose(-2, -1) * alpha, value


def fused_dot_feature_interaction(
    features: Sequence[Tensor],
    output_concat: Tensor | None = None,
    self_interaction: bool = False,
    output_padding: int = 0,
    pooling: str | None = None,
) -> Any:
    """The products of each two rows of features (batch, n, d), behind `output_concat` and in front
    of zeros; or with pooling="sum" their elementwise products added: (batch, d).
    """
    rows: Tensor = ops.cat(list(features), 1)
    if pooling == "sum":
        total = rows.sum(1)
        return (total * total - (rows * rows).sum(1)) * 0.5
    if pooling not in (None, "none"):
        raise ArgumentError(f"fused_dot_feature_interaction: pooling is 'sum', got {pooling!r}")
    count = rows.shape[1]
    first, second = ops.tril_indices(count, count, 0 if self_interaction else -1)
    parts = [(rows @ rows.transpose(1, 2))[:, first, second]]
    if output_concat is not None:
        parts.insert(0, output_concat)
    if output_padding:
        parts.append(rows.new_zeros(rows.shape[0], output_padding))
    return ops.cat(parts, 1)


def fused_cross_feature_interaction(
    x: Tensor, weight: Tensor, x_0: Tensor, bias: Tensor, interaction_mode: str
) -> Any:
    """A layer of a deep and cross network, by a "vector" or a "matrix" of weights."""
    if interaction_mode not in ("vector", "matrix"):
        raise ArgumentError(
            "fused_cross_feature_interaction: interaction_mode is 'vector' or 'matrix', got "
            f"{interaction_mode!r}"
        )
    product = x @ weight.t()
    if interaction_mode == "vector":
        return x_0 * product + bias + x
    return x_0 * (product + bias) + x


def host_scalar_add_by_tensor(x: Tensor, scalar: Tensor) -> Any:
    """The sum with a tensor of one number, on whatever device."""
    return x + scalar.to(x.device)


def roc_auc_score(label: Tensor, pred: Tensor) -> Any:
    """The area below the receiver's curve of predictions for labels 0 and 1: (1,) of float32."""
    truth = (label.reshape(-1) != 0).to(float64)
    shares = pred.reshape(-1)
    ordered = ops.sort(shares)[0].contiguous()
    below = ops.searchsorted(ordered, shares.contiguous())
    upto = ops.searchsorted(ordered, shares.contiguous(), right=True)
    ranks = (below + upto + 1).to(float64) / 2
    positive = truth.sum()
    pairs = positive * (truth.numel() - positive)
    area = ((ranks * truth).sum() - positive * (positive + 1) / 2) / pairs
    return area.to(float32).reshape(1)


def spmm(input: Tensor, mat2: Tensor) -> Any:
    """The product of a sparse matrix and a dense one."""
    return ops.matmul(input, mat2)


def local_all_reduce(x: Tensor, inplace: bool = False) -> Any:
    """The sum of the ranks' tensors, in place of this one's if asked."""
    total = collectives.all_reduce(x)
    return x.copy_(total) if inplace else total


def local_reduce(x: Tensor, dst: int) -> Tensor:
    """The sum of the ranks' tensors, in the place of that of rank `dst`."""
    return collectives.reduce_(x, dst)


_OWN = {
    name: value for name, value in vars().items() if getattr(value, "__module__", "") == __name__
}
_OWN |= {
    "amp_black_identity": identity,
    "amp_white_identity": identity,
    "dropout": _dropout,
    "fused_self_attention_query_mul_key_and_value": fused_self_attention,
    "slice": slice_of,
    "trunc_divide": lambda input, other: ops.div(input, other, rounding_mode="trunc"),
}
