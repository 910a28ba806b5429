"""Scaled dot product attention: each query's average of values, weighted by softmax(q k' scale).

On the CPU it is one instruction each way, which never has the matrix of all weights
(`parts.attention_ops`).  What that one does not take is a composition: dropout, a mask with a
gradient, other devices, a second gradient, and calls in a region `sdpa_kernel(SDPBackend.MATH)`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from flowvm.eager.autocast import lowered
from flowvm.eager.modes import departing
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, DTypeError, ShapeError
from flowvm.guards.regions import Mode
from flowvm.meta.dtype import bool_
from flowvm.meta.formats import result_stride
from flowvm.ops.declare.composite import need_tensor
from flowvm.ops.declare.core import arranged
from flowvm.ops.declare.halves import in_float32
from flowvm.ops.declare.registry import Sample, broadcast_shapes, samples
from flowvm.ops.places.repeats import repeat_interleave
from flowvm.ops.random.choices import dropout
from flowvm.ops.sequences.parts.attention_ops import composed, fused, takes
from flowvm.ops.sequences.parts.masks import CausalBias, additive
from flowvm.vm.callers.hot import hot

if TYPE_CHECKING:
    from flowvm.meta.arrays import Array


fusing: Mode[bool] = Mode(True)  # whether calls of this thread may take the fused op
# attends to what several ranks have: a function of local query, key, value, is_causal and scale
around: Mode[Any] = Mode(None, departing())


# public: flow, F
def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: object = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """softmax(query key' * scale + mask) value: (..., L, V).

    query (..., L, E), key (..., S, E), value (..., S, V); the dimensions in front broadcast.
    `attn_mask` broadcasts to (..., L, S): bools say which keys
    a query sees, floats are added; a query that sees none gets zeros; or it is a
    bias of `nn.attention.bias`.  `is_causal`: query i sees
    keys 0 to i.  `dropout_p` drops weights, whether training or not.  `scale` is 1 / sqrt(E) unless
    given.  `enable_gqa`: key and value may have fewer heads, dimension -3, which are repeated.

    ShapeError, DTypeError (one floating point dtype; a mask of it, float32 or bool), ArgumentError
    for a dropout_p that is no probability.  Dao et al., "FlashAttention", 2022.

    >>> q = flow.ones(1, 2, 3, 4)
    >>> flow.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True).shape
    flow.Size([1, 2, 3, 4])
    """
    if hot["autocast"]:
        query, key, value = lowered(query, key, value)
        if isinstance(attn_mask, Tensor) and attn_mask._meta.dtype is not bool_:
            (attn_mask,) = lowered(attn_mask)
    _check(query, key, value, dropout_p)
    if enable_gqa:
        key, value = _repeated(query, key), _repeated(query, value)
    _check_shapes(query, key, value)
    if isinstance(attn_mask, CausalBias):
        attn_mask, is_causal = _of_bias(attn_mask, query, key, is_causal)
    mask = additive(attn_mask, query._meta, key._meta)
    factor = 1 / math.sqrt(max(query._meta.shape[-1], 1)) if scale is None else float(scale)
    if around.inside and (ring := around.now()) is not None and not query.is_global:
        return _around(ring, query, key, value, mask, dropout_p, bool(is_causal), factor)
    if dropout_p == 0 and fusing.now() and takes(query, key, value, mask):
        return _laid_out(query, fused(query, key, value, mask, bool(is_causal), factor))
    drop = (lambda weights: dropout(weights, dropout_p)) if dropout_p else None
    return in_float32(composed)(query, key, value, mask, bool(is_causal), factor, drop)


def _around(
    ring: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout_p: float,
    is_causal: bool, scale: float,
) -> Tensor:  # fmt: skip
    """Attend to the keys of all ranks of a region `context_parallel`."""
    if mask is not None or dropout_p:
        raise ArgumentError(
            "scaled_dot_product_attention: context_parallel takes no attn_mask and no dropout_p; "
            "is_causal is taken"
        )
    return ring(query, key, value, is_causal, scale)  # type: ignore[no-any-return]


def _laid_out(query: Tensor, out: Tensor) -> Tensor:
    """The result, with rows and heads in the order that the query's have, as PyTorch's: so the
    heads of a row, put together again, are a view.
    """
    meta = query._meta
    if meta.contiguous or meta.ndim != 4 or meta.stride[-1] != 1 or meta.shape != out._meta.shape:
        return out
    stride = result_stride(meta.shape, (meta,))
    return out if stride is None else arranged(out, out._meta.dtype, stride)


def _of_bias(
    bias: CausalBias, query: Tensor, key: Tensor, is_causal: bool
) -> tuple[Tensor | None, bool]:
    """(mask, is_causal) that mean the same as a mask that is known to be causal."""
    sizes = query._meta.shape[-2], key._meta.shape[-2]
    if is_causal or bias.shape != sizes:
        raise ShapeError(
            f"scaled_dot_product_attention: attn_mask {bias} is for other sizes than {sizes}, or "
            "is_causal is given too"
        )
    return (None, True) if bias.first else (bias.materialize(query._meta.device), False)


def _check(query: Tensor, key: Tensor, value: Tensor, dropout_p: float) -> None:
    for argument, operand in (("query", query), ("key", key), ("value", value)):
        need_tensor("scaled_dot_product_attention", argument, operand)
    metas = query._meta, key._meta, value._meta
    if any(m.dtype is not metas[0].dtype for m in metas) or not metas[0].dtype.is_floating_point:
        raise DTypeError(
            f"scaled_dot_product_attention: query, key and value must have one floating point "
            f"dtype, got {', '.join(m.dtype.name for m in metas)}"
        )
    if any(m.ndim < 2 for m in metas):
        raise ShapeError(
            f"scaled_dot_product_attention: query, key and value need 2 dimensions at least, got "
            f"shapes {', '.join(str(tuple(m.shape)) for m in metas)}"
        )
    if not 0 <= dropout_p <= 1:
        raise ArgumentError(
            f"scaled_dot_product_attention: dropout_p is a probability, got {dropout_p}"
        )


def _check_shapes(query: Tensor, key: Tensor, value: Tensor) -> None:
    shapes = [tuple(t._meta.shape) for t in (query, key, value)]
    if shapes[0][-1] != shapes[1][-1] or shapes[1][-2] != shapes[2][-2]:
        raise ShapeError(
            f"scaled_dot_product_attention: query and key must have as many features, key and "
            f"value as many places, got shapes {', '.join(map(str, shapes))}"
        )
    broadcast_shapes(*(s[:-2] for s in shapes))


def _repeated(query: Tensor, x: Tensor) -> Tensor:
    """`x` with each head as often as there are queries' heads for it."""
    if query._meta.ndim < 3 or x._meta.ndim < 3:
        raise ShapeError(
            f"scaled_dot_product_attention: enable_gqa needs a dimension of heads, got shapes "
            f"{tuple(query.shape)} and {tuple(x.shape)}"
        )
    heads, own = query._meta.shape[-3], x._meta.shape[-3]
    if own == heads:
        return x
    if own == 0 or heads % own:
        raise ShapeError(
            f"scaled_dot_product_attention: {own} heads of key or value do not divide the "
            f"{heads} of query"
        )
    repeated: Tensor = repeat_interleave(x, heads // own, -3)
    return repeated


# --- samples --------------------------------------------------------------------------------------


def _attention_samples(rng: np.random.Generator) -> list[Sample]:
    x = rng.standard_normal
    four = x((2, 2, 5, 3)), x((2, 2, 4, 3)), x((2, 2, 4, 2))
    mask = rng.random((5, 4)) < 0.6
    mask[2] = False
    return [
        Sample(four),
        Sample(four, {"is_causal": True, "scale": 0.7}),
        Sample((*four, mask)),
        Sample((*four, x((2, 1, 5, 4)))),
        Sample((x((6, 3)), x((7, 3)), x((7, 3)))),
        Sample((x((2, 5, 3)), x((1, 4, 3)), x((4, 3)))),
        Sample((x((4, 5, 3)), x((2, 4, 3)), x((1, 4, 3))), {"enable_gqa": True}),
        Sample((x((2, 0, 3)), x((2, 4, 3)), x((2, 4, 3)))),
        Sample((x((2, 5, 3)), x((2, 0, 3)), x((2, 0, 3)))),
    ]


def _reference(
    q: Array, k: Array, v: Any, mask: Any = None, is_causal: bool = False, scale: object = None,
    enable_gqa: bool = False,
) -> object:  # fmt: skip
    if enable_gqa:
        k, v = (np.repeat(x, q.shape[-3] // x.shape[-3], -3) for x in (k, v))
    scores = q @ np.swapaxes(k, -1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        scores = np.where(np.tri(*scores.shape[-2:]) > 0, scores, -np.inf)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
    top = scores.max(-1, keepdims=True, initial=np.finfo(np.float64).min)
    weights = np.exp(scores - top)
    total = weights.sum(-1, keepdims=True)
    return weights / np.where(total == 0, 1, total) @ v


samples(scaled_dot_product_attention, _attention_samples, _reference)
