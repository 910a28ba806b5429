"""Attention with several heads as a function: projections and masks around attention itself."""

from __future__ import annotations

import math

from flowvm import ops
from flowvm.eager.tensor import Tensor
from flowvm.errors import AssertedError, ShapeError
from flowvm.meta.dtype import DType, bool_
from flowvm.ops.random.choices import dropout


def added_mask(mask: Tensor | None, name: str, dtype: DType) -> Tensor | None:
    """`mask` as floats that are added: where bools are true, -inf.  ArgumentError for integers."""
    if mask is None:
        return None
    if mask.dtype is bool_:
        bias: Tensor = ops.where(mask, -math.inf, 0.0).to(dtype)
        return bias
    if not mask.dtype.is_floating_point:
        raise ShapeError(f"{name} must be of bools or floats, got {mask.dtype.name}")
    return mask


def _need(condition: bool, text: str) -> None:
    if not condition:
        raise ShapeError(f"multi_head_attention_forward: {text}")


def _check(query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> bool:
    """Check the shapes; return True if the tensors have a dimension of samples."""
    shapes = ", ".join(str(tuple(t.shape)) for t in (query, key, value))
    if query.ndim not in (2, 3):
        _need(False, f"query must have 2 or 3 dimensions, got shapes {shapes}")
    _need(
        key.ndim == query.ndim == value.ndim,
        f"query, key and value must have as many dimensions, got shapes {shapes}",
    )
    _need(
        padding is None or padding.ndim == query.ndim - 1,
        f"key_padding_mask must have {query.ndim - 1} dimensions, got "
        f"{None if padding is None else tuple(padding.shape)}",
    )
    return query.ndim == 3


def _projected(
    query: Tensor, key: Tensor, value: Tensor, weight: Tensor, bias: Tensor | None
) -> tuple[Tensor, ...]:
    """Query, key and value times the three parts of one weight; what is one tensor, at once."""
    size = query.shape[-1]
    if key is value and query is key:
        return ops.linear(query, weight, bias).chunk(3, -1)
    first, rest = weight.split([size, 2 * size])
    first_bias, rest_bias = (None, None) if bias is None else bias.split([size, 2 * size])
    q = ops.linear(query, first, first_bias)
    if key is value:
        return (q, *ops.linear(key, rest, rest_bias).chunk(2, -1))
    (w_k, w_v), (b_k, b_v) = rest.chunk(2), (None, None)
    if rest_bias is not None:
        b_k, b_v = rest_bias.chunk(2)
    return q, ops.linear(key, w_k, b_k), ops.linear(value, w_v, b_v)


def _widened(mask: Tensor | None) -> Tensor | None:
    """A mask with one more key, which is seen."""
    if mask is None:
        return None
    padding = ops.zeros((*mask.shape[:-1], 1), dtype=mask.dtype, device=mask.device)
    wider: Tensor = ops.cat([mask, padding], -1)
    return wider


# public: F
def multi_head_attention_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None,
    static_v: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Attention of `num_heads` heads: (output (L, N, E), weights), as `nn.MultiheadAttention`.

    query (L, N, E), key and value (S, N, E), or without N.  Weights, if `need_weights`, are (N, L,
    S), averaged over heads, or (N, heads, L, S).  key_padding_mask (N, S) and attn_mask (L, S) or
    (N * heads, L, S): bools are true for what is not seen, floats are added.  `is_causal` says that
    attn_mask, which must be given, is the causal one, so that it need not be looked at.
    `static_k` and `static_v` (N * heads, S, E / heads) take the place of projected keys and values.

    ShapeError where shapes do not fit.

    >>> attention = nn.MultiheadAttention(4, 2)
    >>> x = flow.ones(3, 1, 4)  # (steps, samples, features)
    >>> output, weights = F.multi_head_attention_forward(
    ...     x, x, x, 4, 2, attention.in_proj_weight, attention.in_proj_bias, None, None, False, 0.0,
    ...     attention.out_proj.weight, attention.out_proj.bias)
    >>> output.shape, weights.shape
    (flow.Size([3, 1, 4]), flow.Size([1, 3, 3]))
    """
    batched = _check(query, key, value, key_padding_mask)
    if not batched:
        same_k, same_v = key is query, value is key
        query = query.unsqueeze(1)
        key = query if same_k else key.unsqueeze(1)
        value = key if same_v else value.unsqueeze(1)
        if key_padding_mask is not None:
            key_padding_mask = key_padding_mask.unsqueeze(0)
    length, count, size = query.shape
    keys = key.shape[0]
    dtype = query.dtype
    key_padding_mask = added_mask(key_padding_mask, "key_padding_mask", dtype)
    if is_causal and attn_mask is None:
        raise ShapeError(
            "multi_head_attention_forward: is_causal says what attn_mask is, which must be given"
        )
    if is_causal and key_padding_mask is None and not need_weights:
        attn_mask = None
    else:
        attn_mask = added_mask(attn_mask, "attn_mask", dtype)
        is_causal = False
    heads = num_heads
    width = size // heads
    if size != embed_dim_to_check or width * heads != size:
        raise AssertedError(
            f"multi_head_attention_forward: the query has {size} features; embed_dim is "
            f"{embed_dim_to_check}, which {heads} heads must divide"
        )
    if use_separate_proj_weight:
        _need(key.shape[:2] == value.shape[:2], "key and value must have the same (S, N)")
        weights = (q_proj_weight, k_proj_weight, v_proj_weight)
        _need(all(w is not None for w in weights), "give q_, k_ and v_proj_weight")
        biases = (None,) * 3 if in_proj_bias is None else in_proj_bias.chunk(3)
        q, k, v = (
            ops.linear(x, w, b)
            for x, w, b in zip((query, key, value), weights, biases, strict=True)
        )
    else:
        _need(
            key.shape == value.shape,
            f"key and value must have one shape, got {tuple(key.shape)} and {tuple(value.shape)}",
        )
        _need(in_proj_weight is not None, "give in_proj_weight")
        assert in_proj_weight is not None
        q, k, v = _projected(query, key, value, in_proj_weight, in_proj_bias)
    if attn_mask is not None:
        if attn_mask.ndim == 2:
            attn_mask = attn_mask.unsqueeze(0)
        shapes = (1, length, keys), (count * heads, length, keys)
        _need(
            attn_mask.ndim == 3 and tuple(attn_mask.shape) in shapes,
            f"attn_mask must have shape {(length, keys)} or {shapes[1]}, got "
            f"{tuple(attn_mask.shape)}",
        )
    if bias_k is not None and bias_v is not None:
        _need(static_k is None and static_v is None, "bias_k and bias_v are not for static keys")
        k = ops.cat([k, bias_k.expand(1, count, size)], 0)
        v = ops.cat([v, bias_v.expand(1, count, size)], 0)
        attn_mask, key_padding_mask = _widened(attn_mask), _widened(key_padding_mask)
    q = _split(q, count * heads, width)
    k = _split(k, count * heads, width) if static_k is None else static_k
    v = _split(v, count * heads, width) if static_v is None else static_v
    for name, static in (("static_k", static_k), ("static_v", static_v)):
        _need(
            static is None or (static.shape[0], static.shape[2]) == (count * heads, width),
            f"{name} must have shape {(count * heads, keys, width)}, got "
            f"{None if static is None else tuple(static.shape)}",
        )
    if add_zero_attn:
        k, v = (ops.cat([t, t.new_zeros(count * heads, 1, width)], 1) for t in (k, v))
        attn_mask, key_padding_mask = _widened(attn_mask), _widened(key_padding_mask)
    keys = k.shape[1]
    if key_padding_mask is not None:
        _need(
            tuple(key_padding_mask.shape) == (count, keys),
            f"key_padding_mask must have shape {(count, keys)}, got "
            f"{tuple(key_padding_mask.shape)}",
        )
        every = key_padding_mask.reshape((count, 1, 1, keys)).expand(-1, heads, -1, -1)
        every = every.reshape((count * heads, 1, keys))
        attn_mask = every if attn_mask is None else attn_mask + every
    dropout_p = dropout_p if training else 0.0
    if not need_weights:
        if attn_mask is not None:
            attn_mask = _by_heads(attn_mask, count, heads)
        q, k, v = (t.reshape((count, heads, -1, width)) for t in (q, k, v))
        out = ops.scaled_dot_product_attention(q, k, v, attn_mask, dropout_p, is_causal)
        out = out.permute((2, 0, 1, 3)).reshape((length, count, size))
        out = ops.linear(out, out_proj_weight, out_proj_bias)
        return out if batched else out.squeeze(1), None
    scores = (q * math.sqrt(1 / width)) @ k.transpose(1, 2)
    shares = ops.softmax(scores if attn_mask is None else scores + attn_mask, -1)
    if dropout_p > 0:
        shares = dropout(shares, dropout_p)
    out = (shares @ v).transpose(0, 1).reshape((length, count, size))
    out = ops.linear(out, out_proj_weight, out_proj_bias)
    shares = shares.reshape((count, heads, length, keys))
    shares = shares.mean(1) if average_attn_weights else shares
    return (out, shares) if batched else (out.squeeze(1), shares.squeeze(0))


def _split(x: Tensor, items: int, width: int) -> Tensor:
    """(S, N, heads * width) as (N * heads, S, width)."""
    split: Tensor = x.reshape((x.shape[0], items, width)).transpose(0, 1)
    return split


def _by_heads(mask: Tensor, count: int, heads: int) -> Tensor:
    if mask.shape[0] == 1 and count * heads != 1:
        shared: Tensor = mask.unsqueeze(0)
        return shared
    split: Tensor = mask.reshape((count, heads, -1, mask.shape[-1]))
    return split
