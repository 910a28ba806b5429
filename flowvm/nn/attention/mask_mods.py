"""Masks as functions: a mask_mod says of a place (batch, head, query, key) whether it is seen."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING

import flowvm.ops as _ops
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, ArgumentTypeError
from flowvm.meta.dtype import bool_
from flowvm.nn.attention.lanes import over_places

if TYPE_CHECKING:
    from flowvm.meta.device import DeviceLike


MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def noop_mask(batch: Tensor, head: Tensor, token_q: Tensor, token_kv: Tensor) -> Tensor:
    """The mask_mod that lets every query see every key.

    >>> from flowvm.nn.attention.flex_attention import create_mask, noop_mask
    >>> create_mask(noop_mask, None, None, 1, 2)
    tensor([[[[True, True]]]])
    """
    return batch.new_ones((), dtype=bool_)


def _combined(what: str, mods: tuple[MaskMod, ...], every: bool) -> MaskMod:
    if not all(callable(mod) for mod in mods):
        raise ArgumentError(f"{what}: all inputs should be callable mask_mods, got {mods}")

    def mask(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        combined: Tensor = (b.new_ones if every else b.new_zeros)((), dtype=bool_)
        for mod in mods:
            part = mod(b, h, q_idx, kv_idx)
            combined = combined & part if every else combined | part
        return combined

    return mask


def or_masks(*mask_mods: MaskMod) -> MaskMod:
    """The mask_mod by which a query sees what it sees by any of these.

    >>> from flowvm.nn.attention.flex_attention import create_mask, or_masks
    >>> first = or_masks(lambda b, h, q, k: q == k, lambda b, h, q, k: k == 0)
    >>> create_mask(first, None, None, 2, 2)[0, 0]
    tensor([[ True, False],
            [ True,  True]])
    """
    return _combined("or_masks", mask_mods, False)


def and_masks(*mask_mods: MaskMod) -> MaskMod:
    """The mask_mod by which a query sees what it sees by all of these.

    >>> from flowvm.nn.attention.flex_attention import and_masks, create_mask
    >>> near = and_masks(lambda b, h, q, k: q >= k, lambda b, h, q, k: q - k < 2)
    >>> create_mask(near, None, None, 3, 3)[0, 0]
    tensor([[ True, False, False],
            [ True,  True, False],
            [False,  True,  True]])
    """
    return _combined("and_masks", mask_mods, True)


def numbers_of(function: Callable[..., object]) -> int:
    """Count the arguments without defaults: 5 of a score_mod, 4 of a mask_mod.

    ArgumentTypeError for another number.
    """
    known = inspect.signature(function).parameters.values()
    count = sum(
        p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        for p in known
    )
    if count not in (4, 5):
        raise ArgumentTypeError(
            f"a score_mod takes (score, b, h, q_idx, kv_idx), a mask_mod (b, h, q_idx, kv_idx); "
            f"got a function of {count}"
        )
    return count


def mask_of(mod: MaskMod, sizes: tuple[int, ...], device: DeviceLike) -> Tensor:
    """Bools that broadcast to `sizes`: what a mask_mod says of each place."""
    mask = over_places("mask_mod", mod, sizes, None, device)
    return mask if mask.dtype is bool_ else mask.to(bool_)


def create_mask(
    mod_fn: Callable[..., Tensor],
    B: int | None,
    H: int | None,
    Q_LEN: int,
    KV_LEN: int,
    device: DeviceLike | None = None,
) -> Tensor:
    """Return the mask of the keys that each query sees: bools (B, H, Q_LEN, KV_LEN); None is 1.

    mod_fn   a mask_mod (b, h, q_idx, kv_idx), or a score_mod (score, b, h, q_idx, kv_idx), which
             hides what it makes -inf

    >>> from flowvm.nn.attention.flex_attention import create_mask
    >>> create_mask(lambda b, h, q, k: q >= k, None, None, 2, 3)[0, 0]
    tensor([[ True, False, False],
            [ True,  True, False]])
    """
    sizes = (1 if B is None else B, 1 if H is None else H, Q_LEN, KV_LEN)
    where = "cpu" if device is None else device
    if numbers_of(mod_fn) == 4:
        return mask_of(mod_fn, sizes, where).expand(sizes).contiguous()
    score = _ops.zeros(*sizes, device=where)
    scores = over_places("score_mod", mod_fn, sizes, score, where)
    return (~_ops.isneginf(scores)).expand(sizes).contiguous()  # type: ignore[no-any-return]
