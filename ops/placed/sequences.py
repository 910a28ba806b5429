"""Attention whose sequence is cut among ranks: keys and values go around a ring.

Each rank keeps its queries.  It attends to the block of keys and values that it has, sends the
block to the next rank, and takes the one of the rank before it.  What blocks give is joined by
their levels, the logarithms of the sums of weights, so no rank has all keys.  Backward goes the
same way, and the gradients of a block travel with it.  Liu et al., "Ring Attention with Blockwise
Transformers", 2023, arXiv:2310.01889.

A rank's part is one chunk of the sequence or several.  Under a causal mask a chunk of queries needs
the chunks of keys in front of it: one chunk each leaves the first rank idle, a chunk from the front
with its counterpart from the back gives all ranks the same work.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from flowvm.eager.interpreter import Operator
from flowvm.eager.modes import grad_enabled, recording
from flowvm.eager.tensor import Tensor
from flowvm.errors import AutogradError
from flowvm.meta.dtype import float32, float64
from flowvm.meta.global_meta import GlobalMeta
from flowvm.meta.meta import TensorMeta
from flowvm.meta.placements import Sbps, sizes, split
from flowvm.ops.declare.composite import Recorded, filled_of, record
from flowvm.ops.placed.boxing import boxed, global_of, hollow, part_of, transport
from flowvm.ops.placed.rewrites import REWRITE
from flowvm.ops.pointwise.ternary import logaddexp
from flowvm.ops.sequences.attention import around
from flowvm.ops.sequences.parts import attention_ops
from flowvm.ops.shapes.join import cat
from flowvm.ops.shapes.slices import narrow

if TYPE_CHECKING:
    from flowvm.eager.nodes import Node
    from flowvm.meta.meta import Attrs

ROWS = 2  # the dimension of the sequence: batch, heads, sequence, features


class Ring(NamedTuple):
    """Ranks in the order in which blocks travel, and the chunks of the sequence on each."""

    ranks: tuple[int, ...]
    own: int  # this rank's place
    chunks: tuple[tuple[tuple[int, int], ...], ...]  # for each rank: (number, rows) of each chunk

    @staticmethod
    def of(ranks: tuple[int, ...], rank: int, rows: int, balanced: bool = False) -> Ring:
        """The ring of a sequence of `rows`.

        balanced  each rank has a chunk from the front and its counterpart from the back; `rows`
                  is then a multiple of twice the ranks
        """
        n = len(ranks)
        chunks: tuple[tuple[tuple[int, int], ...], ...]
        if balanced:
            part = rows // (2 * n)
            chunks = tuple(((k, part), (2 * n - 1 - k, part)) for k in range(n))
        else:
            chunks = tuple(((k, size),) for k, size in enumerate(sizes(rows, n)))
        return Ring(ranks, ranks.index(rank), chunks)

    def rows(self, place: int) -> int:
        """Return the rows that the rank at `place` has."""
        return sum(size for _, size in self.chunks[place])

    def pairs(self, owner: int, causal: bool) -> Iterator[tuple[slice, slice, bool]]:
        """Chunks of queries here and of keys of `owner` that meet, and True on the diagonal."""
        if not causal:
            yield slice(0, None), slice(0, None), False
            return
        low = 0
        for query, count in self.chunks[self.own]:
            start = 0
            for key, size in self.chunks[owner]:
                if key <= query:
                    yield slice(low, low + count), slice(start, start + size), key == query
                start += size
            low += count

    def passed(self, blocks: tuple[Tensor, ...], owner: int) -> tuple[Tensor, ...]:
        """Send blocks to the next rank; return those of the rank before, which are of `owner`."""
        use, n = transport[-1](), len(self.ranks)
        to, source = self.ranks[(self.own + 1) % n], self.ranks[(self.own - 1) % n]
        for block in blocks:
            use.send(block, to)
        metas = (_with_rows(b._meta, self.rows(owner)) for b in blocks)
        return tuple(use.recv(meta, source) for meta in metas)


def _with_rows(meta: TensorMeta, rows: int) -> TensorMeta:
    return meta.with_shape((*meta.shape[:ROWS], rows, *meta.shape[ROWS + 1 :]))


def _rows(x: Tensor, at: slice) -> Tensor:
    whole = at.stop is None or at.stop - at.start == x._meta.shape[ROWS]
    return x if whole else narrow(x, ROWS, at.start, at.stop - at.start)


def _owners(ring: Ring) -> list[int]:
    """The places whose blocks come here, in their order: the own one first."""
    n = len(ring.ranks)
    return [(ring.own - k) % n for k in range(n)]


def _joined(before: Any, part: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Join what two sets of keys give the same queries, by their levels."""
    if before is None:
        return part
    (out, level), (more, other) = before, part
    both = logaddexp(level, other)
    old, new = ((one - both).exp().unsqueeze(-1) for one in (level, other))
    return out * old + more * new, both


def ring_forward(
    ring: Ring, q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """The attention of this rank's queries to all keys, and its levels."""
    parts: dict[int, Any] = {}  # by the first row of a chunk of queries
    block: tuple[Tensor, ...] = (k.contiguous(), v.contiguous())
    owners = _owners(ring)
    for owner, following in zip(owners, [*owners[1:], None], strict=True):
        coming = None if following is None else ring.passed(block, following)
        for query_rows, key_rows, diagonal in ring.pairs(owner, causal):
            keys, values = (_rows(x, key_rows) for x in block)
            part = attention_ops._plain(_rows(q, query_rows), keys, values, diagonal, scale)
            parts[query_rows.start] = _joined(parts.get(query_rows.start), part)
        block = block if coming is None else coming
    chunks = [parts[start] for start in sorted(parts)]
    if len(chunks) == 1:
        return chunks[0]  # type: ignore[no-any-return]
    return cat([out for out, _ in chunks], ROWS), cat([level for _, level in chunks], ROWS)


def ring_backward(
    ring: Ring, saved: tuple[Tensor, ...], g: Tensor, causal: bool, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of this rank's queries, keys and values."""
    q, k, v, out, levels = saved
    g = g.contiguous()
    queries: dict[int, Tensor] = {}
    block: tuple[Tensor, ...] = (k.contiguous(), v.contiguous())
    owners = _owners(ring)
    sums: tuple[Tensor, ...] = ()
    for owner, following in zip(owners, [*owners[1:], ring.own], strict=True):
        coming = ring.passed(block, following) if following != ring.own else None
        sums_of_block: list[dict[int, Tensor]] = [{}, {}]
        for query_rows, key_rows, diagonal in ring.pairs(owner, causal):
            own = (_rows(x, query_rows) for x in (q, out, levels, g))
            mine, gave, level, slope = (x.contiguous() for x in own)
            keys, values = (_rows(x, key_rows) for x in block)
            grads = attention_ops._plain_back(
                mine, keys, values, gave, level, slope, diagonal, scale
            )
            _add(queries, query_rows.start, grads[0])
            for place, grad in zip(sums_of_block, grads[1:], strict=True):
                _add(place, key_rows.start, grad)
        partial = _of_block(sums_of_block, block, ring.chunks[owner])
        sums = tuple(a + b for a, b in zip(sums, partial, strict=True)) if sums else partial
        if len(ring.ranks) > 1:  # the sums of a block travel behind it, and come home at last
            sums = ring.passed(sums, following)
        block = block if coming is None else coming
    dq = [queries[start] for start in sorted(queries)]
    return (dq[0] if len(dq) == 1 else cat(dq, ROWS)), sums[0], sums[1]


def _add(table: dict[int, Tensor], at: int, grad: Tensor) -> None:
    table[at] = table[at] + grad if at in table else grad


def _of_block(
    sums: list[dict[int, Tensor]], block: tuple[Tensor, ...], chunks: Iterable[tuple[int, int]]
) -> tuple[Tensor, ...]:
    """The gradients of a block, with zeros for chunks that no query here sees."""
    if len(sums[0]) == 1 and sums[0].get(0) is not None:
        whole = tuple(table[0] for table in sums)
        if whole[0]._meta.shape == block[0]._meta.shape:
            return whole
    grads = []
    for table, x in zip(sums, block, strict=True):
        parts, start = [], 0
        for _, size in chunks:
            known = table.get(start)
            parts.append(filled_of(_with_rows(x._meta, size)) if known is None else known)
            start += size
        grads.append(parts[0] if len(parts) == 1 else cat(parts, ROWS))
    return tuple(grads)


# --- parts by themselves --------------------------------------------------------------------------


def _local_grad(c: Node, g: Tensor) -> tuple[Tensor, ...]:
    if grad_enabled():
        raise AutogradError(
            "ring attention of local parts has no second gradient; global tensors have: "
            "x.to_global(placement, flow.sbp.split(2))"
        )
    ring, causal, scale = c.attrs
    return ring_backward(ring, tuple(c.saved), g, causal, scale)


_local_node = Recorded(
    "ring_attention", _local_grad, ("query", "key", "value"), "query, key, value, out, levels"
)


def ring_attention(
    ring: Ring, query: Tensor, key: Tensor, value: Tensor, causal: bool, scale: float
) -> Tensor:
    """The attention of local parts, which are chunks of a sequence that the ring's ranks share."""
    with recording(False):
        out, levels = ring_forward(ring, query, key, value, causal, scale)
    saved = (query, key, value, out, levels)
    return record(_local_node, (query, key, value), out, (ring, causal, scale), saved)


# --- global tensors -------------------------------------------------------------------------------


def _axis(metas: Sequence[GlobalMeta], causal: bool) -> int | None:
    """The dimension of the placement along which the sequence goes around; None: none does.

    Where ranks could have samples or heads of their own, an all-to-all sends less.
    """
    q, k, _ = metas
    if q.dtype not in (float32, float64) or any(m.sbp != q.sbp or m.has_partial for m in metas):
        return None
    axes = [axis for axis, s in enumerate(q.sbp) if s is split(ROWS)]
    if len(axes) != 1 or any(s.dim > ROWS for s in q.sbp):
        return None
    n = q.placement.shape[axes[0]]
    if min(q.shape[ROWS], k.shape[ROWS]) < n or (causal and q.shape[ROWS] != k.shape[ROWS]):
        return None
    alone = max(q.local.shape[:2], default=0) < n
    return axes[0] if alone or around.now() is not None else None


def _ring_of(meta: GlobalMeta, axis: int, rows: int) -> Ring:
    rank = meta.device.rank
    return Ring.of(meta.placement.group(axis, rank), rank, rows)


def _global_grad(c: Any, g: Tensor) -> tuple[object, ...]:
    q, k, v, out, levels = c.saved
    causal, scale, axis = c.attrs
    if grad_enabled():
        return attention_ops._composed_back(q, k, v, None, g, causal, scale)
    if not q._meta.inside:
        return tuple(hollow(x._meta) for x in (q, k, v))
    held: Sbps = out._meta.sbp
    parts = tuple(part_of(x) for x in (q, k, v, out, levels))
    ring = _ring_of(q._meta, axis, k._meta.shape[ROWS])
    grads = ring_backward(ring, parts, part_of(boxed(g, held)), causal, scale)
    return tuple(global_of(d, x._meta) for d, x in zip(grads, (q, k, v), strict=True))


_global_node = Recorded("attention", _global_grad, ("q", "k", "v"), "q, k, v, out, levels")


@REWRITE(attention_ops._plain)
def _ring(op: Operator, tensors: Any, attrs: Attrs, scalars: tuple[object, ...]) -> object:
    causal, scale = attrs
    metas = [t._meta for t in tensors]
    axis = _axis(metas, causal)
    if axis is None:
        return None
    q, k, v = metas
    outs = [
        GlobalMeta.make(shape, q.dtype, q.device, q.sbp)
        for shape in ((*q.shape[:3], v.shape[3]), q.shape[:3])
    ]
    if not q.inside:
        out, levels = map(hollow, outs)
    else:
        with recording(False):
            query, key, value = (part_of(t) for t in tensors)
            ring = _ring_of(q, axis, k.shape[ROWS])
            result = ring_forward(ring, query, key, value, causal, scale)
        out, levels = (global_of(x, m) for x, m in zip(result, outs, strict=True))
    saved = (*tensors, out, levels)
    return record(_global_node, tensors, out, (causal, scale, axis), saved), levels
