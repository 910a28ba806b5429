"""Causal masks by what they are, for `attn_mask` of scaled_dot_product_attention."""

from __future__ import annotations

from flowvm.loading.listing import listing
from flowvm.ops.sequences.parts.masks import CausalBias, CausalVariant

__all__ = ["CausalBias", "CausalVariant", "causal_lower_right", "causal_upper_left"]
__dir__ = listing(globals())


def causal_upper_left(*size: int) -> CausalBias:
    """Query i of (queries, keys) sees keys 0 to i: what `is_causal` means."""
    return CausalBias(CausalVariant.UPPER_LEFT, *size)


def causal_lower_right(*size: int) -> CausalBias:
    """The last query of (queries, keys) sees all keys, the one before it one less: what a query
    that follows cached keys sees.

    >>> nn.attention.bias.causal_lower_right(2, 3).materialize()
    tensor([[ True,  True, False],
            [ True,  True,  True]])
    """
    return CausalBias(CausalVariant.LOWER_RIGHT, *size)
