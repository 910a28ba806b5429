"""The SBP letters of products of matrices."""

from __future__ import annotations

from flowvm.meta.meta import Attrs, TensorMeta
from flowvm.ops.declare.letters import Letters, Metas, Names, Rule, all_inexact


def product(ta: bool, tb: bool) -> Rule:
    """Make the rule of a product whose first (`ta`) or second (`tb`) operand is transposed."""

    def rule(metas: Metas, attrs: Attrs, outs: Metas) -> Letters:
        a, b = metas[:2]
        first: Names = ("k", "m") if ta else ("m", "k")
        second: Names = ("n", "k") if tb else ("k", "n")
        if a.ndim == 1:
            first = ("k",)
        if b.ndim == 1:
            second = ("k",)
        rank = max(a.ndim, b.ndim) - 2
        shape = outs[0].shape

        def batched(m: TensorMeta, last: Names) -> Names:
            count = max(0, m.ndim - 2)
            lead = rank - count
            return (
                *(f"b{i + lead}" if m.shape[i] == shape[i + lead] else None for i in range(count)),
                *last,
            )

        out = (
            *(f"b{i}" for i in range(max(0, rank))),
            *(("m",) if a.ndim > 1 else ()),
            *(("n",) if b.ndim > 1 else ()),
        )
        linear = ((0,), (1,)) if all_inexact(*metas, *outs) else ()
        return Letters((batched(a, first), batched(b, second)), (out,), frozenset("k"),
                       linear=linear)  # fmt: skip

    return rule


def affine(metas: Metas, attrs: Attrs, outs: Metas) -> Letters:
    """Name the dimensions of `linear`: input, weight and bias."""
    batch = tuple(f"d{i}" for i in range(metas[0].ndim - 1))
    return Letters(
        ((*batch, "k"), ("n", "k"), ("n",)),
        ((*batch, "n"),),
        frozenset("k"),
        added=frozenset((2,)),
        linear=((0, 2), (1, 2)),
    )
