"""Gradients of global parameters that are sums over ranks: several are summed by one exchange.

Backward leaves partial sums where ranks have parts of a batch.  Each becomes whole by an
all-reduce, and many small ones cost more than one large one.  So they are collected in *buckets*,
in the order in which backward comes to the leaves, and a bucket is summed when it is full, or when
backward ends.  Until then the leaf's `.grad` is what it was.

Ranks run the same backward, so they fill the same buckets: how full one is follows from logical
shapes.  Graphs have a pass of their own for this (`flowvm.graph.passes`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import accumulate
from typing import Any

from flowvm.eager.global_calls import partial_grads
from flowvm.eager.modes import current_backward, current_recorder, recording
from flowvm.eager.tensor import Tensor, alias
from flowvm.meta.global_meta import GlobalMeta
from flowvm.meta.placements import Sbps, broadcast, partial_sum
from flowvm.ops.placed.boxing import Step, changed, global_of, part_of, steps
from flowvm.ops.shapes.join import cat

MOST = 1 << 20  # bytes of a bucket: as DistributedDataParallel has them on CPUs
Keep = Callable[[Tensor, Tensor], None]


class Bucket:
    """Gradients that one exchange sums: (leaf, gradient) each; `keep(leaf, sum)` is told then."""

    def __init__(self, changes: tuple[Step, ...]) -> None:
        self.members: list[tuple[Tensor, Tensor]] = []
        self.changes, self.size = changes, 0

    def settle(self, keep: Keep) -> None:
        """Sum the gradients over the ranks.  They are views of one tensor afterwards."""
        members, self.members, self.size = self.members, [], 0
        if not members:
            return
        with recording(False):
            metas: list[Any] = [g._meta for _, g in members]
            parts = [part_of(g).contiguous() for _, g in members]
            whole = parts[0]
            if len(parts) > 1:
                flat = [m.local.with_shape((m.local.numel,)) for m in metas]
                whole = cat([alias(p, f) for p, f in zip(parts, flat, strict=True)])
            for step in self.changes:
                whole = changed(whole, metas[0], step)
            after = self.changes[-1].after
            held = [m.with_sbp(after) for m in metas]
            starts = accumulate([0, *(m.local.nbytes for m in held)])
            for (leaf, _), meta, start in zip(members, held, starts, strict=False):
                local = whole if len(members) == 1 else alias(whole, meta.local, start)
                keep(leaf, global_of(local, meta))


def _settle_all(buckets: Mapping[object, Bucket], keep: Keep) -> None:
    for bucket in buckets.values():
        bucket.settle(keep)


def postpone(leaf: Tensor, g: Tensor, sbp: Sbps, keep: Keep) -> bool:
    """Put `g`, the gradient of `leaf`, into a bucket, whose sum becomes the gradient held as `sbp`;
    False if it is no partial sum that becomes whole, or is to be summed at once.
    """
    now: Any = g._meta
    run = current_backward()
    if run is None or now.nbytes >= MOST or not now.inside or partial_grads.now():
        return False
    if now.placement is not leaf._meta.placement or current_recorder() is not None:  # type: ignore[attr-defined]
        return False
    if now.__class__ is not GlobalMeta or now.sbp == sbp:
        return False
    changes = steps(now.sbp, sbp)
    for step in changes:
        if step.before[step.axis] is not partial_sum or step.after[step.axis] is not broadcast:
            return False
    buckets = run.notes.get(postpone)
    if buckets is None:
        buckets = run.notes[postpone] = {}
        run.ends.append(partial(_settle_all, buckets, keep))
    key = now.placement, now.sbp, sbp, now.dtype
    bucket = buckets.get(key)
    if bucket is None:
        bucket = buckets[key] = Bucket(changes)
    bucket.members.append((leaf, g))
    bucket.size += now.nbytes
    if bucket.size >= MOST:
        bucket.settle(keep)
    return True
