"""Attention as ops: the composition for all devices, and the op that has no matrix of weights.

While gradients are recorded, the op's backward is a composition too, so that it can be
differentiated again.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flowvm.eager.modes import grad_enabled
from flowvm.eager.native.trace_cache import steady
from flowvm.eager.tensor import Tensor
from flowvm.launch import ARENA_BYTES, Launch, View
from flowvm.meta.device import cpu
from flowvm.meta.meta import TensorMeta
from flowvm.ops.declare.kinds import Metas, Values, computes
from flowvm.ops.declare.letters import matrices
from flowvm.ops.declare.registry import broadcast_shapes, op
from flowvm.ops.places.masks import masked_fill
from flowvm.ops.pointwise.compare import eq, logical_not
from flowvm.ops.products.cpu.tile import tile_functions
from flowvm.ops.products.cpu.tile_shape import tile_shape
from flowvm.ops.products.matmul import _matmul_nt, _matmul_tn, matmul
from flowvm.ops.rows.reduce import amax
from flowvm.ops.rows.softmax import softmax
from flowvm.ops.sequences.cpu.attention_kernels import Attention, backward_body, forward_body
from flowvm.ops.sequences.parts.masks import INFINITY, causal

if TYPE_CHECKING:
    from flowvm.eager.nodes import Node


BLOCK, ACROSS = 48, 96  # queries and keys of a block: four tiles' rows, whole panels


def _weights(
    query: Tensor, key: Tensor, mask: Tensor | None, is_causal: bool, scale: float
) -> Tensor:
    """softmax(query key' * scale + mask).

    A row of scores that are all -inf has no softmax: its weights are 0, and so are its gradients.
    """
    scores = _matmul_nt(query * scale, key)
    if is_causal:
        queries, keys = scores._meta.shape[-2:]
        is_visible = causal(queries, keys, False, scores._meta.device)
        scores = masked_fill(scores, logical_not.call(is_visible), -INFINITY)
    if mask is None or scores._meta.shape[-1] == 0:
        weights: Tensor = softmax(scores, -1)
        return weights
    scores = scores + mask
    blind = eq.call(amax(scores.detach(), -1, True), -INFINITY)
    return masked_fill(softmax(masked_fill(scores, blind, 0.0), -1), blind, 0.0)


@steady
def composed(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    is_causal: bool,
    scale: float,
    drop: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """The matrix of weights, dropped, times the values."""
    weights = _weights(query, key, mask, is_causal, scale)
    out: Tensor = matmul(weights if drop is None else drop(weights), value)
    return out


def _composed_back(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, g: Tensor, is_causal: bool, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    weights = _weights(q, k, mask, is_causal, scale)
    slopes = _matmul_nt(g, v)
    slopes = weights * (slopes - (slopes * weights).sum(-1, keepdim=True)) * scale
    return matmul(slopes, k), _matmul_tn(slopes, q), _matmul_tn(weights, g)


# --- fused ----------------------------------------------------------------------------------------


def _flat(meta: TensorMeta) -> View:
    return View(meta.dtype, (meta.span // meta.dtype.itemsize,))


def _record(
    q: TensorMeta, k: TensorMeta, v: TensorMeta, mask: TensorMeta | None, is_causal: bool,
    scale: float,
) -> Attention:  # fmt: skip
    name, size = q.dtype.name, q.dtype.itemsize
    tile, functions = tile_shape(name), tile_functions(name, ("tile", "copy", "transpose"))
    across = ACROSS // tile.columns * tile.columns
    block = max(tile.rows, BLOCK // tile.rows * tile.rows)
    mask_strides: tuple[int, ...] = (0, 0, 0)
    if mask is not None:
        around = zip(mask.shape[:3], mask.stride[:3], strict=True)
        mask_strides = tuple(0 if n == 1 else s for n, s in around)
    numbers = (
        q.shape[1], q.shape[2], k.shape[2], q.shape[3], v.shape[3], block, across, int(is_causal),
        *q.stride[:3], *k.stride[:3], *v.stride[:3], *mask_strides, tile.rows, tile.columns,
        tile.lanes, size, functions.tile, functions.copy, functions.transpose, float(scale),
    )  # fmt: skip
    return Attention._make(numbers)


def _forward(
    q: TensorMeta, k: TensorMeta, v: TensorMeta, mask: TensorMeta | None, is_causal: bool,
    scale: float,
) -> Launch:  # fmt: skip
    p = _record(q, k, v, mask, is_causal, scale)
    batch, heads, queries = q.shape[:3]
    out, levels = q.with_shape((*q.shape[:3], p.width)), q.with_shape(q.shape[:3])
    views = *(_flat(t) for t in (out, levels, q, k, v)), _mask_view(mask, q)
    units = batch * heads * -(-queries // p.block)
    return Launch(
        (out, levels), forward_body, views, (p,), units, 1, arena=p.forward_elements() * p.size
    )


def _mask_view(mask: TensorMeta | None, q: TensorMeta) -> View:
    return View.optional(None if mask is None else _flat(mask), q.dtype)


def _backward(
    q: TensorMeta, k: TensorMeta, v: TensorMeta, out: TensorMeta, levels: TensorMeta,
    g: TensorMeta, mask: TensorMeta | None, is_causal: bool, scale: float,
) -> Launch:  # fmt: skip
    p = _record(q, k, v, mask, is_causal, scale)
    outputs = q.with_shape(q.shape), k.with_shape(k.shape), v.with_shape(v.shape)
    views = *(_flat(t) for t in (*outputs, q, k, v, out, levels, g)), _mask_view(mask, q)
    units = q.shape[0] * q.shape[1]
    return Launch(
        outputs, backward_body, views, (p,), units, 1, arena=p.backward_elements() * p.size
    )


def _plain_grad(c: Node, g: Tensor) -> tuple[object, ...]:
    q, k, v, out, levels = c.saved
    if grad_enabled():
        return _composed_back(q, k, v, None, g, *c.attrs)
    gradients: tuple[Any, ...] = _plain_back(q, k, v, out, levels, g.contiguous(), *c.attrs)
    return gradients


def _attends(q: TensorMeta, k: TensorMeta, v: TensorMeta, mask: TensorMeta | None) -> bool:
    """Tell whether these are what `fused` makes of what it is given."""
    operands = (q, k, v) if mask is None else (q, k, v, mask)
    if any(m.ndim != 4 or (m.stride[-1] != 1 and not m.contiguous) for m in operands):
        return False
    if not (q.shape[:2] == k.shape[:2] == v.shape[:2] and q.shape[3] == k.shape[3]):
        return False
    if mask is not None:
        around = zip(mask.shape, (*q.shape[:3], k.shape[2]), strict=True)
        if mask.shape[3] != k.shape[2] or any(have not in (1, want) for have, want in around):
            return False
    return k.shape[2] == v.shape[2] and computes(*operands) and _has_room(q, k, v)


def _takes(metas: Metas, values: Values) -> bool:
    q, k, v = metas[:3]
    return _attends(q, k, v, metas[3] if len(metas) > 3 else None)


def _takes_back(metas: Metas, values: Values) -> bool:
    q, k, v, out, levels, g = metas[:6]
    whole = (*q.shape[:3], v.shape[-1])
    fit = tuple(out.shape) == tuple(g.shape) == whole and levels.shape == q.shape[:3]
    same = all(m.dtype is q.dtype and m.contiguous for m in (out, levels, g))
    return fit and same and _attends(q, k, v, metas[6] if len(metas) > 6 else None)


@op(
    "q, k, v -> out, levels", name="attention", saves="q, k, v, out, levels", constants="levels",
    grad=_plain_grad, dense=False, letters=matrices, takes=_takes,
)  # fmt: skip
def _plain(q: TensorMeta, k: TensorMeta, v: TensorMeta, is_causal: bool, scale: float) -> Launch:
    return _forward(q, k, v, None, is_causal, scale)


@op(
    "q, k, v, out, levels, g -> dq, dk, dv",
    name="attention_backward",
    dense=False,
    letters=matrices,
    takes=_takes_back,
)
def _plain_back(
    q: TensorMeta, k: TensorMeta, v: TensorMeta, out: TensorMeta, levels: TensorMeta,
    g: TensorMeta, is_causal: bool, scale: float,
) -> Launch:  # fmt: skip
    return _backward(q, k, v, out, levels, g, None, is_causal, scale)


def _masked_grad(c: Node, g: Tensor) -> tuple[object, ...]:
    q, k, v, mask, out, levels = c.saved
    if grad_enabled():
        return *_composed_back(q, k, v, mask, g, *c.attrs), None
    return *_masked_back(q, k, v, out, levels, g.contiguous(), mask, *c.attrs), None


@op(
    "q, k, v, mask -> out, levels", name="attention", saves="q, k, v, mask, out, levels",
    constants="levels", grad=_masked_grad, dense=False, letters=matrices, takes=_takes,
)  # fmt: skip
def _masked(
    q: TensorMeta, k: TensorMeta, v: TensorMeta, mask: TensorMeta, is_causal: bool, scale: float
) -> Launch:
    return _forward(q, k, v, mask, is_causal, scale)


@op(
    "q, k, v, out, levels, g, mask -> dq, dk, dv",
    name="attention_backward",
    dense=False,
    letters=matrices,
    takes=_takes_back,
)
def _masked_back(
    q: TensorMeta, k: TensorMeta, v: TensorMeta, out: TensorMeta, levels: TensorMeta,
    g: TensorMeta, mask: TensorMeta, is_causal: bool, scale: float,
) -> Launch:  # fmt: skip
    return _backward(q, k, v, out, levels, g, mask, is_causal, scale)


def takes(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> bool:
    """Return True if `fused` can run these tensors.

    They are on the CPU and have queries and keys; the mask is constant, and the features leave room
    for blocks in a thread's arena.
    """
    metas = query._meta, key._meta, value._meta
    return fits(*metas) and (mask is None or mask._node is None)


def fits(query: TensorMeta, key: TensorMeta, value: TensorMeta) -> bool:
    """Return True if `takes` accepts tensors with these metas."""
    on_cpu = all(m.device.type == cpu.type for m in (query, key, value))
    return on_cpu and _has_room(query, key, value)


def _has_room(query: TensorMeta, key: TensorMeta, value: TensorMeta) -> bool:
    """Return True if there are queries and keys, and an arena has room for their blocks."""
    wide = query.shape[-1] + value.shape[-1]
    room = (4 * ACROSS + 4 * BLOCK) * (wide + 64) * max(4, query.dtype.itemsize) <= ARENA_BYTES
    return room and all(m.numel > 0 for m in (query, key, value))


@steady
def fused(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, is_causal: bool, scale: float
) -> Tensor:
    """Run attention as one instruction; the result is the same as `composed` gives."""
    around = broadcast_shapes(*(t._meta.shape[:-2] for t in (query, key, value)))
    rows = query._meta.shape[-2], key._meta.shape[-2], value._meta.shape[-2]
    operands = [_four(t, around, n) for t, n in zip((query, key, value), rows, strict=True)]
    if mask is None:
        out = _plain(*operands, is_causal, scale)[0]
    else:
        out = _masked(*operands, _four_of_mask(mask, around, rows[1]), is_causal, scale)[0]
    if len(around) == 2:
        whole: Tensor = out
        return whole
    result: Tensor = out.reshape((*around, *out._meta.shape[-2:]))
    return result


def _heads(around: tuple[int, ...]) -> tuple[int, int]:
    """(batch, heads) of the dimensions in front."""
    return (math.prod(around[:-1]), around[-1]) if around else (1, 1)


def _four(t: Tensor, around: tuple[int, ...], rows: int) -> Tensor:
    """`t` as (batch, heads, rows, features), with contiguous features."""
    if t._meta.shape[:-2] != around:
        t = t.expand((*around, rows, t._meta.shape[-1]))
    if len(around) != 2:
        t = t.reshape((*_heads(around), rows, t._meta.shape[-1]))
    return t if t._meta.stride[-1] == 1 else t.contiguous()


def _four_of_mask(mask: Tensor, around: tuple[int, ...], keys: int) -> Tensor:
    """Return the mask in four dimensions; kernels broadcast dimensions of size 1."""
    meta = mask._meta
    if meta.shape[-1] != keys or meta.stride[-1] != 1:
        mask = mask.expand((*meta.shape[:-1], keys)).contiguous()
    if meta.ndim - 2 > 2 or len(around) > 2:
        rows = mask._meta.shape[-2]
        mask = mask.expand((*around, rows, keys)).reshape((*_heads(around), rows, keys))
    while mask._meta.ndim < 4:
        mask = mask.unsqueeze(0)
    return mask
