"""Attention whose scores are changed, and whose keys are hidden, by functions of the user's.

    def near(b, h, q_idx, kv_idx):
        return (q_idx >= kv_idx) & (q_idx - kv_idx < 1024)

    mask = create_block_mask(near, None, None, 4096, 4096)
    out = flex_attention(q, k, v, block_mask=mask)

The functions are written for one place of the matrix; how they are computed at all places:
`flowvm.nn.attention.lanes`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypedDict

import flowvm.ops as _ops
from flowvm.eager.autocast import autocasting, lowered
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, ArgumentTypeError, DeviceError, ModeError
from flowvm.loading.listing import listing
from flowvm.meta.dtype import float32, float64
from flowvm.nn.attention.block_masks import ALL, BLOCK, BlockMask, create_block_mask, whole_mask
from flowvm.nn.attention.lanes import over_places
from flowvm.nn.attention.mask_mods import and_masks, create_mask, noop_mask, numbers_of, or_masks
from flowvm.vm.callers.hot import hot

__all__ = [
    "AuxOutput",
    "AuxRequest",
    "BlockMask",
    "FlexKernelOptions",
    "and_masks",
    "create_block_mask",
    "create_mask",
    "flex_attention",
    "noop_mask",
    "or_masks",
]
__dir__ = listing(globals())
_DEFAULT_SPARSE_BLOCK_SIZE = BLOCK  # a name that programs import


class FlexKernelOptions(TypedDict, total=False):
    """Options of kernels for GPUs: any are taken, and have no meaning here.

    >>> from flowvm.nn.attention.flex_attention import FlexKernelOptions
    >>> FlexKernelOptions(BLOCK_M=64)
    {'BLOCK_M': 64}
    """


class AuxRequest(NamedTuple):
    """The results that `flex_attention` returns beside its output: for each query the log of the
    sum of exp(score), the largest score.

    >>> from flowvm.nn.attention.flex_attention import AuxRequest
    >>> AuxRequest(lse=True)
    AuxRequest(lse=True, max_scores=False)
    """

    lse: bool = False
    max_scores: bool = False


class AuxOutput(NamedTuple):
    """The results of an `AuxRequest`, (B, H, L) each; None for one that was not requested.

    >>> from flowvm.nn.attention.flex_attention import AuxOutput
    >>> AuxOutput()
    AuxOutput(lse=None, max_scores=None)
    """

    lse: Tensor | None = None
    max_scores: Tensor | None = None


def _checked(
    query: Tensor, key: Tensor, value: Tensor, mask: BlockMask | None, enable_gqa: bool
) -> None:
    for name, t in (("query", query), ("key", key), ("value", value)):
        if not isinstance(t, Tensor):
            raise ArgumentTypeError(f"flex_attention: {name} is a Tensor, got {type(t).__name__}")
        if t.ndim != 4:
            raise ModeError(
                f"flex_attention: query, key, and value must be 4D tensors, got {name} of shape "
                f"{tuple(t.shape)}"
            )
    shapes = f"{tuple(query.shape)}, {tuple(key.shape)}, {tuple(value.shape)}"
    if not query.dtype is key.dtype is value.dtype or not query.dtype.is_floating_point:
        raise ArgumentError(
            f"flex_attention: query, key and value have one floating point dtype, got "
            f"{query.dtype}, {key.dtype}, {value.dtype}"
        )
    if not query.device == key.device == value.device:
        raise DeviceError(
            f"flex_attention: query, key and value are on one device, got {query.device}, "
            f"{key.device}, {value.device}"
        )
    if query.shape[-1] != key.shape[-1] or key.shape[:-1] != value.shape[:-1]:
        raise ArgumentError(
            f"flex_attention: query and key have as many features, key and value as many heads and "
            f"places, got shapes {shapes}"
        )
    heads, own = query.shape[1], key.shape[1]
    if not enable_gqa and heads != own:
        raise ArgumentError(
            f"Expect query and key/value to have the same number of heads but got Hq={heads} and "
            f"Hkv={own}. Try setting enable_gqa=True for GQA."
        )
    if own == 0 or heads % own:
        raise ArgumentError(
            f"Expect number of query heads to be a multiple of kv heads for GQA but got Hq={heads} "
            f"and Hkv={own}."
        )
    if query.shape[0] != key.shape[0] and (
        key.shape[0] != 1 or mask is None or mask.kv_num_blocks.shape[0] != query.shape[0]
    ):
        raise ArgumentError(
            f"Expect query and key/value to have the same batch size, or one key for a block_mask "
            f"of query's batch size, got shapes {shapes}"
        )
    if mask is not None:
        _checked_mask(mask, query, key)


def _checked_mask(mask: BlockMask, query: Tensor, key: Tensor) -> None:
    if not isinstance(mask, BlockMask):
        raise ArgumentTypeError(
            f"flex_attention: block_mask is a BlockMask, got {type(mask).__name__}"
        )
    if mask.kv_num_blocks.device != query.device:
        raise DeviceError(
            f"Expect q/k/v and block_mask to be on the same device but got {query.device} and "
            f"{mask.kv_num_blocks.device}."
        )
    lengths = query.shape[-2], key.shape[-2]
    if not _unbounded(mask) and tuple(mask.shape[-2:]) != lengths:
        larger = lengths[0] > mask.shape[-2] or lengths[1] > mask.shape[-1]
        raise ArgumentError(
            f"block_mask was created for block_mask.shape={mask.shape} but got q_len={lengths[0]} "
            f"and kv_len={lengths[1]}: create a new block mask"
            + (
                ", or take its upper left corner by block_mask._adjust(q_len, kv_len)"
                * (not larger)
            )
        )


def _unbounded(mask: BlockMask) -> bool:
    return tuple(mask.BLOCK_SIZE) == (ALL, ALL)


def flex_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Callable[..., Tensor] | None = None,
    block_mask: BlockMask | None = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    kernel_options: Mapping[str, object] | None = None,
    *,
    return_aux: AuxRequest | None = None,
) -> Any:
    """softmax(score_mod(query key' * scale)) value: (B, Hq, L, Ev), of what `block_mask` shows.

    query (B, Hq, L, E), key (B, Hkv, S, E), value (B, Hkv, S, Ev); with `enable_gqa` there may be
    fewer heads of key and value, which are repeated.

    score_mod     (score, b, h, q_idx, kv_idx), all of one number: the score to take.  Scores are
                  float32, float64 of float64 tensors.  It may look into other tensors, which get
                  gradients
    block_mask    of `create_block_mask`.  A query that sees no key gets zeros
    scale         1 / sqrt(E) unless given
    return_lse    give (output, log of the sum of exp(score)) (B, Hq, L)
    return_aux    an `AuxRequest`: give (output, an `AuxOutput`)

    `kernel_options` are taken: they are of kernels for GPUs.  With a score_mod there is a matrix of
    all scores; without, attention is computed as scaled_dot_product_attention computes it.

    ArgumentError for other shapes, dtypes or lengths than these, ModeError for what is not 4-d,
    DeviceError.  Dong et al., "Flex Attention", 2024.

    >>> from flowvm.nn.attention.flex_attention import create_block_mask, flex_attention
    >>> q = flow.arange(6.0).reshape(1, 1, 3, 2)
    >>> causal = create_block_mask(lambda b, h, q, k: q >= k, None, None, 3, 3)
    >>> flex_attention(q, q, q, block_mask=causal)[0, 0, 0]
    tensor([0., 1.])
    >>> flex_attention(q, q, q, lambda score, b, h, q, k: score * (q == k))[0, 0, 0]
    tensor([1.4895, 2.4895])
    """
    if return_lse and return_aux is not None:
        raise ArgumentError(
            "flex_attention: Cannot specify both return_lse and return_aux; "
            "return_aux=AuxRequest(lse=True) has both"
        )
    if score_mod is not None and numbers_of(score_mod) != 5:
        raise ArgumentTypeError(
            "flex_attention: score_mod takes (score, b, h, q_idx, kv_idx), got a function of four, "
            "a mask_mod: block_mask=create_block_mask(...) is for those"
        )
    if hot["autocast"]:
        query, key, value = lowered(query, key, value)
    _checked(query, key, value, block_mask, enable_gqa)
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = (_ops.repeat_interleave(t, groups, 1) for t in (key, value))
    if key.shape[0] != query.shape[0]:
        key, value = (t.expand(query.shape[0], -1, -1, -1) for t in (key, value))
    sizes = (*query.shape[:3], key.shape[2])
    factor = 1 / math.sqrt(max(query.shape[-1], 1)) if scale is None else float(scale)
    visible = None
    if block_mask is not None and not (_unbounded(block_mask) and block_mask.mask_mod is noop_mask):
        visible = whole_mask(block_mask, sizes, query.device)
    if score_mod is None and not return_lse and return_aux is None:
        return _ops.scaled_dot_product_attention(query, key, value, visible, scale=factor)
    with autocasting(None):
        return _composed(query, key, value, score_mod, visible, factor, return_lse, return_aux)


def _composed(
    query: Tensor, key: Tensor, value: Tensor, score_mod: Callable[..., Tensor] | None,
    visible: Tensor | None, scale: float,
    return_lse: bool, aux: AuxRequest | None,
) -> Any:  # fmt: skip
    exact = float64 if query.dtype is float64 else float32
    scores = (query.to(exact) @ key.to(exact).transpose(-2, -1)) * scale
    if score_mod is not None:
        sizes = tuple(scores.shape)
        scores = over_places("score_mod", score_mod, sizes, scores, query.device).expand(sizes)
    scores = scores.to(exact)
    if visible is not None:
        scores = _ops.where(visible, scores, -math.inf)
    blind = (scores == -math.inf).all(-1, keepdim=True)
    # of such a row softmax and logsumexp are not defined, nor are their gradients
    defined = _ops.where(blind, 0.0, scores)
    weights = _ops.where(blind, 0.0, _ops.softmax(defined, -1))
    out = weights.to(query.dtype) @ value
    if aux is None and not return_lse:
        return out
    lse = None
    if return_lse or (aux is not None and aux.lse):
        lse = _ops.where(blind.squeeze(-1), -math.inf, _ops.logsumexp(defined, -1))
    if aux is None:
        return out, lse
    return out, AuxOutput(lse, scores.amax(-1) if aux.max_scores else None)


for _function in (flex_attention, create_block_mask, create_mask):
    setattr(_function, "takes_functions", True)  # noqa: B010 - see `flow.compile`
