"""Masks of attention: tensors to add to scores, and causal masks that need no tensor."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any

from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError
from flowvm.meta.dtype import bool_, float32
from flowvm.meta.meta import TensorMeta
from flowvm.ops.declare.registry import broadcast_shapes
from flowvm.ops.pointwise.compare import where
from flowvm.ops.shapes.fill import ones, zeros
from flowvm.ops.shapes.matrices import tril

if TYPE_CHECKING:
    from flowvm.meta.device import DeviceLike


INFINITY = float("inf")


class CausalVariant(enum.IntEnum):
    """The corner of a causal mask that is not square."""

    UPPER_LEFT = 1
    LOWER_RIGHT = 2


class CausalBias:
    """A causal mask (queries, keys) by its kind: a kernel need not read it."""

    def __init__(self, variant: CausalVariant, *size: Any) -> None:
        if len(size) == 1 and not isinstance(size[0], int):
            size = tuple(size[0])
        if len(size) != 2:
            raise ArgumentError(f"a causal mask has two sizes, queries and keys; got {size}")
        self.variant = CausalVariant(variant)
        self.seq_len_q, self.seq_len_kv = size

    @property
    def shape(self) -> tuple[int, int]:
        """(queries, keys)."""
        return self.seq_len_q, self.seq_len_kv

    @property
    def first(self) -> bool:
        """True if the mask is the one that `is_causal` means."""
        square = self.seq_len_q == self.seq_len_kv
        return square or self.variant is CausalVariant.UPPER_LEFT

    def materialize(self, device: DeviceLike | None = None) -> Tensor:
        """Return the keys that each query sees, as bools."""
        return causal(*self.shape, self.variant is CausalVariant.LOWER_RIGHT, device)

    def __repr__(self) -> str:
        return f"CausalBias({self.variant.name}, {self.seq_len_q}, {self.seq_len_kv})"


def additive(mask: Any, query: TensorMeta, key: TensorMeta) -> Tensor | None:
    """The mask as numbers that are added to scores, of the query's dtype, at least 2-d."""
    if mask is None:
        return None
    if not isinstance(mask, Tensor):
        raise ArgumentTypeError(
            f"scaled_dot_product_attention: attn_mask must be a Tensor, got {type(mask).__name__}"
        )
    meta = mask._meta
    if meta.dtype not in (bool_, query.dtype, float32):
        raise DTypeError(
            f"scaled_dot_product_attention: attn_mask must be of bools or of the query's "
            f"{query.dtype.name}, got {meta.dtype.name}"
        )
    scores = (query.shape[-2], key.shape[-2])
    around = broadcast_shapes(query.shape[:-2], key.shape[:-2])
    if meta.ndim < 2 or broadcast_shapes(meta.shape, (*around, *scores))[-2:] != scores:
        raise ShapeError(
            f"scaled_dot_product_attention: attn_mask of shape {tuple(meta.shape)} does not "
            f"broadcast to {(*around, *scores)}: queries by keys"
        )
    if meta.dtype is bool_:
        bias: Tensor = where(mask, 0.0, -INFINITY).to(query.dtype)
        return bias
    offsets: Tensor = mask.to(query.dtype)
    return offsets


def causal(queries: int, keys: int, last: bool, device: Any) -> Tensor:
    """Return the keys that each query sees, (queries, keys) of bools: the keys up to its own place.

    Places are counted from the first query and key or, if `last`, from the last ones.
    """
    every = ones((queries, keys), dtype=bool_, device=device)
    if queries == 0 or keys == 0:
        return zeros((queries, keys), dtype=bool_, device=device)
    mask: Tensor = tril(every, keys - queries if last else 0)
    return mask
