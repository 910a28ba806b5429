"""Views of global tensors: a geometry of the whole tensor, translated to the part that is here.

Who makes a view says its shape and strides on a tensor of C order.  A stride is so many steps along
each dimension of the tensor (its digits); the same digits on the part's own strides are the part's
view.  That is a view of the same memory where the split dimension stays a dimension, cut at the
same places: permutations, slices of other dimensions, dimensions added, and reshapes that leave it
or make it a leading dimension of equal parts.  Else other ranks hold what the view shows: the
tensor is made whole first, and the result is a copy, which is not written to (`calling.into`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from flowvm.eager.modes import recording
from flowvm.eager.tensor import Tensor, alias, new_tensor
from flowvm.guards.lru_cache import lru_cached
from flowvm.meta.global_meta import GlobalMeta
from flowvm.meta.meta import TensorMeta
from flowvm.meta.placements import PARTIAL, Sbps, broadcast, split
from flowvm.ops.declare.core import cast, copy_
from flowvm.ops.placed.boxing import boxed, global_of, hollow, part_of
from flowvm.vm.machine.words import OPERAND


def view(x: Tensor, meta: TensorMeta, offset_bytes: int) -> Tensor:
    """Return a view of `x` with `meta`'s shape and strides that begins `offset_bytes` further on.

    `x` is a global tensor of C order; the view is outside the autograd graph.
    """
    out = _view(x, meta, offset_bytes)
    boxes = _boxes(x, out, meta, offset_bytes)
    if boxes is not None:
        out._extra = {"boxed": boxes}
        shown: Any = out._meta
        out._meta = shown.as_copy()
    return out


def _boxes(x: Tensor, out: Tensor, meta: TensorMeta, offset_bytes: int) -> Any:
    """Return the origin of a copy `out`: an alias of it, and the view that it stands for.

    If `out` is a view, return the entry of `x`; None if there is none.
    """
    if out.storage() is not x.storage():
        return alias(out, out._meta), x, meta, offset_bytes
    try:
        return x._extra.get("boxed")
    except AttributeError:
        return None


def _view(x: Tensor, meta: TensorMeta, offset_bytes: int) -> Tensor:
    own: Any = x._meta
    offset = offset_bytes // meta.dtype.itemsize
    if meta.dtype is not own.dtype:
        return _reinterpreted(x, meta, offset)
    sbp = _kept_sbp(own, meta, offset)
    if not own.inside:
        return hollow(GlobalMeta.make(meta.shape, meta.dtype, own.device, sbp or _held(own)))
    cut = any(s.is_split for s in own.sbp)
    if sbp is None or (not cut and own.local.contiguous):
        with recording(False):
            x = _dense(boxed(x, _held(own)))
        local = TensorMeta.of(meta.shape, meta.dtype, own.device.local, meta.stride)
        return _view_of(x, own, meta, _held(own), local, offset)
    shape = GlobalMeta.make(meta.shape, meta.dtype, own.device, sbp).local.shape
    view = _on_part(own, meta, offset, shape)
    if view is None:  # the part's own strides do not allow it
        with recording(False):
            x = _dense(x)
        if not cut:
            return _view(x, meta, offset_bytes)
        dense: Any = x._meta
        view = _on_part(dense, meta, offset, shape)
        assert view is not None  # a part in C order has every view that it could have
    return _view_of(x, own, meta, sbp, *view)


def links(x: Tensor, out: Tensor, meta: TensorMeta, offset: int) -> dict[str, object]:
    """Return the entries of a view `out` of `x`: its geometry, behind those of the views before it.

    If `out` is a copy, its origin is there too, so that changes go back (`written_back`).
    """
    try:
        before = x._extra.get("links", ())
    except AttributeError:
        before = ()
    attrs: dict[str, object] = {"links": (*before, (tuple(meta.shape), meta.stride, offset))}
    boxes = _boxes(x, out, meta, offset * meta.dtype.itemsize)
    return attrs if boxes is None else {**attrs, "boxed": boxes}


def share_base(x: Tensor, out: Tensor) -> None:
    """Let writes to `out`, an alias of a copy in a view's place, reach the viewed tensor of `x`."""
    boxes = x.extra().get("boxed")
    if boxes is not None:
        out.extra()["boxed"] = boxes


def written_back(out: Tensor) -> None:
    """Write a change in place back to the viewed tensor, if `out` is a copy in a view's place."""
    boxes = out.extra().get("boxed")
    while boxes is not None:
        boxed_view, x, meta, offset = boxes
        own = x._meta
        with recording(False):
            whole = boxed(x, _held(own))
            now: Any = whole._meta
            local = cast(part_of(whole), now.dtype)
            shown = boxed_view._meta
            values = part_of(boxed(boxed_view, _held(shown)))
            if own.inside:
                part_meta = TensorMeta.of(meta.shape, meta.dtype, own.device.local, meta.stride)
                copy_(alias(local, part_meta, offset), values)
                change = global_of(local, now.with_sbp(now.sbp))
                copy_(part_of(x), part_of(boxed(change, own.sbp)))
        x.bump()
        boxes = x.extra().get("boxed")


def _all(own: GlobalMeta) -> Sbps:
    return (broadcast,) * len(own.sbp)


def _held(own: GlobalMeta) -> Sbps:
    """Return the sbp of `own` without splits; sums stay."""
    return tuple(broadcast if s.is_split else s for s in own.sbp)


def _dense(x: Tensor) -> Tensor:
    meta: Any = x._meta
    if meta.local.contiguous:
        return x
    return global_of(cast(part_of(x), meta.dtype), meta.with_sbp(meta.sbp))


def _view_of(
    x: Tensor, own: GlobalMeta, meta: TensorMeta, sbp: Sbps, local: TensorMeta, at: int
) -> Tensor:
    shown = GlobalMeta.make(meta.shape, meta.dtype, own.device, sbp).with_local(local)
    ref = x._ref + (at * meta.dtype.itemsize << OPERAND.STORAGE_BITS)
    return new_tensor(ref, shown, x.storage())


class _Dim(NamedTuple):
    """A dimension: its logical size and stride, the part's size and stride, and its place."""

    size: int
    stride: int
    local_size: int
    local_stride: int
    place: int


def _dims(own: GlobalMeta) -> list[_Dim]:
    """Return the dimensions of more than one element."""
    local: TensorMeta = own.local if own.inside else own  # a rank outside has no part
    known = zip(own.shape, own.stride, local.shape, local.stride, strict=True)
    return [_Dim(n, s, m, t, d) for d, (n, s, m, t) in enumerate(known) if n != 1]


@lru_cached("views")
def _kept_sbp(own: GlobalMeta, meta: TensorMeta, offset: int) -> Sbps | None:
    """Return the sbp of the view if each rank has all that the view shows of its part; else None.

    It follows from logical shapes alone, so all ranks find the same.
    """
    dims = _dims(own)
    cuts = {s.dim for s in own.sbp if s.is_split}
    if not cuts:
        return own.sbp
    if own.numel == 0 or meta.numel == 0:
        return None
    starts = _digits(offset, dims)
    if starts is None or any(k for k, d in zip(starts, dims, strict=True) if d.place in cuts):
        return None
    cut_of: dict[int, int] = {}  # dimension of own that is cut: the view's
    spread: dict[int, list[int]] = {}  # one that is cut several times: the view's, for each cut
    for j, (size, step) in enumerate(zip(meta.shape, meta.stride, strict=True)):
        if size == 1 or step == 0:
            continue
        walk = _walked(step, size, dims, starts, False)
        if walk is None:
            return None
        for d in set(walk[0]) & cuts:
            n, parts = own.shape[d], _parts(own, d)
            whole = size == n and step == own.stride[d]
            if _spreads(own, meta, d, j, spread):
                continue
            if not whole and n % parts:
                return None
            if not whole and not _leads(own, meta, d, j):
                if (size - 1) * step >= n // parts * own.stride[d]:
                    return None  # it goes from one part into the next
                continue
            if d in cut_of or not (whole or size % parts == 0):
                return None
            cut_of[d] = j
    if any(len(js) < sum(s.dim == d for s in own.sbp) for d, js in spread.items()):
        return None
    for d in cuts - set(cut_of) - set(spread):
        if own.shape[d] != 1:
            return None
        same = [j for j, n in enumerate(meta.shape) if n == 1]
        if meta.shape != own.shape and len(same) != 1:
            return None
        cut_of[d] = d if meta.shape == own.shape else same[0]
    dims_of_views = [*cut_of.values(), *(j for js in spread.values() for j in set(js))]
    if len(set(dims_of_views)) != len(dims_of_views):
        return None
    behind = {d: iter(js) for d, js in spread.items()}
    return tuple(
        s if not s.is_split else split(next(behind[s.dim]) if s.dim in behind else cut_of[s.dim])
        for s in own.sbp
    )


def _on_part(
    own: GlobalMeta, meta: TensorMeta, offset: int, shape: Sequence[int]
) -> tuple[TensorMeta, int] | None:
    """Return the meta of the view of this rank's part, of `shape`, and its begin."""
    if own.local.numel == 0 or 0 in shape:
        return TensorMeta.of(tuple(shape), meta.dtype, own.device.local), 0
    dims = _dims(own)
    starts = _digits(offset, dims)
    if starts is None:
        return None
    stride = [0] * meta.ndim
    for j, (size, step) in enumerate(zip(meta.shape, meta.stride, strict=True)):
        if size == 1 or step == 0:
            continue
        walk = _walked(step, size, dims, starts, True)
        if walk is None:
            return None
        stride[j] = walk[1]
    at = sum(k * d.local_stride for k, d in zip(starts, dims, strict=True))
    return TensorMeta.of(tuple(shape), meta.dtype, own.device.local, tuple(stride)), at


def _parts(own: GlobalMeta, d: int) -> int:
    count = 1
    for s, n in zip(own.sbp, own.placement.shape, strict=True):
        count *= n if s.dim == d else 1
    return count


def _digits(steps: int, dims: Sequence[_Dim]) -> list[int] | None:
    """`steps` elements of C order as steps along each dimension."""
    digits = []
    if steps < 0:
        return None
    for dim in dims:
        k, steps = divmod(steps, dim.stride)
        if k >= dim.size and k > 0:
            return None
        digits.append(k)
    return digits if steps == 0 else None


def _walked(
    step: int, size: int, dims: Sequence[_Dim], starts: Sequence[int], is_local: bool
) -> tuple[list[int], int] | None:
    """Return the dimensions along which `size` steps of `step` go, and the part's stride of a step.

    Return None if there is no such stride or, with `is_local`, if the part does not lie so.
    """
    digits = _digits(step, dims)
    if digits is None:
        return None
    moving = [k for k, n in enumerate(digits) if n]
    local = sum(n * d.local_stride for n, d in zip(digits, dims, strict=True))
    if all(starts[k] + digits[k] * (size - 1) < dims[k].size for k in moving):
        return [dims[k].place for k in moving], local
    # it goes on into dimensions in front, which have to lie behind one another
    if len(moving) != 1:
        return None
    k = moving[0]
    lead, reach = [dims[k].place], dims[k].size // digits[k]
    if starts[k] or dims[k].size % digits[k]:
        return None
    while reach < size:
        if k == 0 or starts[k - 1]:
            return None
        inner, outer = dims[k], dims[k - 1]
        together = outer.local_stride == inner.local_size * inner.local_stride
        if is_local and not together and outer.local_size > 1:
            return None
        k -= 1
        reach *= outer.size
        lead.append(outer.place)
    return (lead, local) if size % (reach // dims[k].size) == 0 else None


def _leads(own: GlobalMeta, meta: TensorMeta, d: int, j: int) -> bool:
    """Return True if `d` and dimension `j` of the view span the same memory.

    Then equal parts of one are equal parts of the other.
    """
    n, step = own.shape[d], own.stride[d]
    return meta.shape[j] * meta.stride[j] == n * step


def _spreads(
    own: GlobalMeta, meta: TensorMeta, d: int, j: int, spread: dict[int, list[int]]
) -> bool:
    """Return True if dimension `j` of the view takes on cuts of `d`, and add it for each.

    The dimension that leads is cut to single elements by the first cuts, and the next one takes on
    the others.
    """
    cuts = [n for s, n in zip(own.sbp, own.placement.shape, strict=True) if s.dim == d]
    js = spread.get(d, [])
    size = meta.shape[j]
    if len(cuts) < 2 or len(js) == len(cuts) or own.shape[d] % _parts(own, d):
        return False
    if js:
        before = meta.shape[j] * meta.stride[j] == meta.stride[js[-1]]
    else:
        before = _leads(own, meta, d, j) and size % _parts(own, d) != 0
    if not before:
        return False
    took = []
    for n in cuts[len(js) :]:
        if size % n:
            break
        size //= n
        took.append(j)
    if not took or (size != 1 and len(js) + len(took) < len(cuts)):
        return False
    spread[d] = [*js, *took]
    return True


def _reinterpreted(x: Tensor, meta: TensorMeta, offset: int) -> Tensor:
    """Parts of complex numbers, and pairs as complex numbers: on a tensor that is whole here."""
    own: Any = x._meta
    if any(s.dim == PARTIAL for s in own.sbp) or not own.inside:
        x = boxed(x, _all(own))
    if not x._meta.inside:  # type: ignore[attr-defined]
        return hollow(GlobalMeta.make(meta.shape, meta.dtype, own.device, _all(own)))
    x = _dense(boxed(x, _all(own)))
    local = TensorMeta.of(meta.shape, meta.dtype, own.device.local, meta.stride)
    ref = x._ref + (offset * meta.dtype.itemsize << OPERAND.STORAGE_BITS)
    own_meta = GlobalMeta.make(meta.shape, meta.dtype, own.device, _all(own)).with_local(local)
    return new_tensor(ref, own_meta, x.storage())
