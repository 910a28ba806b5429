"""The SBP letters of ops that read or write at places that are data."""

from __future__ import annotations

from flowvm.meta.meta import Attrs
from flowvm.ops.declare.letters import Letters, Metas, all_inexact, numbered


def gathered(metas: Metas, attrs: Attrs, outs: Metas) -> Letters:
    """Name the dimensions of x and of the index that picks each element along `dim`."""
    x, index = metas
    dim = attrs[0] % x.ndim if x.ndim else 0
    names = tuple(
        f"d{i}" if i != dim and a == b else None
        for i, (a, b) in enumerate(zip(x.shape, index.shape, strict=True))
    )
    along = tuple("i" if i == dim else n for i, n in enumerate(names))
    return Letters((names, along), (along,))


def scattered(metas: Metas, attrs: Attrs, outs: Metas) -> Letters | None:
    """Name the dimensions of x, which is written along `dim`; another one may be split where all
    operands have all of it.
    """
    x, index = metas[:2]
    if any(m.ndim not in (0, x.ndim) for m in metas) or x.ndim == 0 or index.ndim == 0:
        return None
    dim = attrs[0] % x.ndim
    full = [m for m in metas if m.ndim]
    names = tuple(
        f"d{i}" if i != dim and len({m.shape[i] for m in full}) == 1 else None
        for i in range(x.ndim)
    )
    return Letters(tuple(names if m.ndim else () for m in metas), ())


def take_letters(metas: Metas, attrs: Attrs, outs: Metas) -> Letters | None:
    """Name the dimensions of x, whose `dim` is replaced by those of the index."""
    x, index = metas
    dim = attrs[0]
    if outs[0].ndim != x.ndim - 1 + index.ndim:
        return None
    names = numbered(x, (dim,))
    places = tuple(f"i{k}" for k in range(index.ndim))
    linear = ((0,),) if all_inexact(x, *outs) else ()
    return Letters((names, places), ((*names[:dim], *places, *names[dim + 1 :]),), linear=linear)


def one_hot(metas: Metas, attrs: Attrs, outs: Metas) -> Letters:
    """Name the index's dimensions; the classes, in the last one, are whole."""
    names = numbered(metas[0])
    return Letters((names,), ((*names, None),))
