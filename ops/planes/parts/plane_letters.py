"""The SBP letters of convolutions, and of ops that leave planes apart."""

from __future__ import annotations

from collections.abc import Callable

from flowvm.meta.meta import Attrs
from flowvm.ops.declare.letters import Letters, Metas, Rule, all_inexact

# Letters of a convolution: n samples, c channels of the input, o of the output.


def convolved(back: bool) -> Rule:
    """Make the rule of a convolution, or `back` to its input: input, weight, and maybe a bias."""

    def rule(metas: Metas, attrs: Attrs, outs: Metas) -> Letters:
        space = (None,) * (outs[0].ndim - 2)
        kernel = (None,) * (metas[1].ndim - 2)
        c, o = (None, None) if attrs[0].groups > 1 else ("c", "o")
        channel, result_channel, summed = (o, c, "o") if back else (c, o, "c")
        biased = len(metas) == 3
        return Letters(
            (("n", channel, *space), (o, c, *kernel), *(((result_channel,),) if biased else ())),
            (("n", result_channel, *space),),
            frozenset(summed),
            added=frozenset((2,)) if biased else frozenset(),
            linear=((0, 2), (1, 2)) if biased else ((0,), (1,)),
            even=frozenset(summed),
        )

    return rule


def conv_weight(metas: Metas, attrs: Attrs, outs: Metas) -> Letters:
    """Name the dimensions of a convolution's back to its weight: a sum over samples."""
    space = (None,) * (outs[0].ndim - 2)
    c, o = (None, None) if attrs[0].groups > 1 else ("c", "o")
    return Letters(
        (("n", o, *space), ("n", c, *space)), ((o, c, *space),), frozenset("n"),
        linear=((0,), (1,)),
    )  # fmt: skip


def planes(count: Callable[[Attrs], int] = lambda attrs: attrs[1], linear: bool = False) -> Rule:
    """Make the rule of planes that are apart: the dimensions in front of the last `count`.

    linear  the op is linear in its first input
    """

    def rule(metas: Metas, attrs: Attrs, outs: Metas) -> Letters | None:
        n = count(attrs)
        lead = outs[0].ndim - n
        names = tuple(f"d{i}" for i in range(lead)) + (None,) * n
        if lead == 0 or any(m.shape[:lead] != outs[0].shape[:lead] for m in metas):
            return None
        groups = ((0,),) if linear and all_inexact(metas[0], outs[0]) else ()
        return Letters((names,) * len(metas), (names,) * len(outs), linear=groups)

    return rule
