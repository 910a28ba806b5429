"""SBP letters: what an op's declaration says of its dimensions, `letters=`.

A rule is called with the local metas of the inputs, of the logical shapes, the call's attributes,
and the metas of the results.  It names each dimension of each operand by a letter, as an einsum
does; `flowvm.ops.placed.signatures` derives the legal signatures from that.  What a rule says is
held against results by `tests/ops/placed`.

A dimension named `None` is needed in full by every rank.  A rule that returns `None` says so of all
dimensions of all operands; `unsplit` is the rule that always does.  Here are the rules that ops of
several rooms share; a family's own rule stands beside its declarations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from flowvm.meta.meta import Attrs, TensorMeta

Metas = tuple[TensorMeta, ...]
Names = tuple[Any, ...]  # a letter, or None, for each dimension


class Letters(NamedTuple):
    """The letters of a call's operands, and what may be split or left as a sum.

    sums     letters that operands have and (some) results lack, over which these are sums
    added    inputs that are added to a sum: they are partial sums where it is
    linear   groups of inputs in which the op is linear, the others held fixed
    even     letters that are split where all parts are equal, and not otherwise
    """

    inputs: tuple[Names, ...]
    outputs: tuple[Names, ...]
    sums: frozenset[str] = frozenset()
    added: frozenset[int] = frozenset()
    linear: tuple[tuple[int, ...], ...] = ()
    even: frozenset[str] = frozenset()


Rule = Callable[[Metas, Attrs, Metas], "Letters | None"]


def numbered(meta: TensorMeta, without: Sequence[int] = ()) -> Names:
    """A letter for each dimension, None for those in `without`."""
    dropped = {d % meta.ndim for d in without if meta.ndim}
    return tuple(None if i in dropped else f"d{i}" for i in range(meta.ndim))


def all_inexact(*metas: TensorMeta) -> bool:
    """True if all dtypes are floats or complex numbers: integers are not linear in conversions."""
    return all(m.dtype.inexact for m in metas)


def unsplit(metas: Metas, attrs: Attrs, outs: Metas) -> None:
    """Say that every rank needs all of every operand, and has all of every result."""


def same(*without: int, linear: tuple[int, ...] = ()) -> Rule:
    """Make the rule of operands of one shape, whose dimensions are apart but for `without`."""

    def rule(metas: Metas, attrs: Attrs, outs: Metas) -> Letters | None:
        operands = (*metas, *outs)
        ndim = max(m.ndim for m in operands)
        if any(m.ndim != ndim for m in operands):
            return None
        named = tuple(numbered(m, without) for m in operands)
        groups = (linear,) if linear and all_inexact(*operands) else ()
        return Letters(named[: len(metas)], named[len(metas) :], linear=groups)

    return rule


def along_dim(*linear: tuple[int, ...]) -> Rule:
    """Make the rule of operands of one shape and an op along its first attribute, a dimension."""

    def rule(metas: Metas, attrs: Attrs, outs: Metas) -> Letters | None:
        operands = (*metas, *outs)
        if any(m.shape != metas[0].shape for m in operands):
            return None
        names = numbered(metas[0], (attrs[0],))
        groups = linear if all_inexact(*operands) else ()
        return Letters((names,) * len(metas), (names,) * len(outs), linear=groups)

    return rule


def rows_apart(metas: Metas, attrs: Attrs, outs: Metas) -> Letters | None:
    """Name the dimensions in front of the first operand's last, which all operands have: rows."""
    lead = metas[0].ndim - 1
    names = []
    for m in (*metas, *outs):
        if m.shape[:lead] != metas[0].shape[:lead]:
            return None
        names.append(numbered(m, range(lead, m.ndim)))
    return Letters(tuple(names[: len(metas)]), tuple(names[len(metas) :]))


def broadcasting(metas: Metas, attrs: Attrs, outs: Metas) -> Letters:
    """Name the dimensions of one input, which is broadcast to the result: a copy."""
    (x,), out = metas, outs[0]
    lead = out.ndim - x.ndim
    names = numbered(out)
    inner = tuple(n if d == out.shape[i + lead] else None
                  for i, (d, n) in enumerate(zip(x.shape, names[lead:], strict=True)))  # fmt: skip
    return Letters((inner,), (names,), linear=((0,),) if all_inexact(x, *outs) else ())


def fold(adds: bool = False, linear: bool = False) -> Rule:
    """Make the rule of a reduction: of all elements, or over its attributes (dim or dims, keepdim).

    adds     its result is the sum of the results of parts
    linear   and it is linear in its input
    """

    def rule(metas: Metas, attrs: Attrs, outs: Metas) -> Letters:
        (x,) = metas
        names = numbered(x)
        dims, keepdim = attrs[:2] if attrs else (tuple(range(x.ndim)), False)
        folded = {names[d] for d in (dims if isinstance(dims, tuple) else (dims,)) if x.ndim}
        out = tuple(None if n in folded else n for n in names if keepdim or n not in folded)
        inner = names if adds else tuple(None if n in folded else n for n in names)
        groups = ((0,),) if linear and all_inexact(x, *outs) else ()
        sums = frozenset(folded) if adds else frozenset()
        return Letters((inner,), (out,) * len(outs), sums, linear=groups)

    return rule


def matrices(metas: Metas, attrs: Attrs, outs: Metas) -> Letters | None:
    """Name the batch dimensions that all operands have in front of their matrices or vectors."""
    first = metas[0]
    lead = max(0, first.ndim - 2)
    if lead == 0:
        return None
    batch = first.shape[:lead]
    names = []
    for m in (*metas, *outs):
        if m.shape[:lead] != batch:
            return None
        names.append((*(f"d{i}" for i in range(lead)), *[None] * (m.ndim - lead)))
    return Letters(tuple(names[: len(metas)]), tuple(names[len(metas) :]))
