"""The SBP letters of norms: rows or samples are apart.

The statistics of rows have their dimensions; those of samples, (2, groups), lie one sample behind
the other, so samples are split evenly or not at all.
"""

from __future__ import annotations

from flowvm.meta.meta import Attrs, TensorMeta
from flowvm.ops.declare.letters import Letters, Metas, Names


def _around(x: TensorMeta, attrs: Attrs) -> tuple[Names, Names, Names, frozenset[str]] | None:
    """The letters of x, of its statistics, those apart, and those split evenly; None for a batch
    norm, whose statistics are over samples.
    """
    if attrs[0] not in ("layer", "group", "instance"):
        return None
    rows = attrs[0] == "layer"
    lead = x.ndim - len(attrs[1]) if rows else 1
    if lead < 1:
        return None
    apart = tuple(f"d{i}" for i in range(lead))
    tall, stats = (*apart, *[None] * (x.ndim - lead)), (None, *apart)
    return tall, stats, apart, frozenset(() if rows else apart)


def normalized(metas: Metas, attrs: Attrs, outs: Metas) -> Letters | None:
    """Name the dimensions of x, of weights, and of the result and its statistics."""
    around = _around(metas[0], attrs)
    if around is None:
        return None
    tall, stats, _, even = around
    return Letters((tall, *_whole(metas[1:])), (tall, stats), even=even)


def normalized_back(metas: Metas, attrs: Attrs, outs: Metas) -> Letters | None:
    """Name the dimensions of the gradient, x and its statistics; weights' gradients are sums."""
    around = _around(metas[1], attrs)
    if around is None:
        return None
    tall, stats, apart, even = around
    inputs = (tall, tall, stats, *_whole(metas[3:]))
    return Letters(inputs, (tall, *_whole(outs[1:])), frozenset(apart), even=even)


def _whole(metas: Metas) -> tuple[Names, ...]:
    return tuple((None,) * m.ndim for m in metas)
