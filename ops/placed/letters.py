"""The letters of ops with bodies, in a table by the op's name; see `signatures`.

A rule sees local metas of the logical shapes, the call's attributes, and the results' metas.  What
it says is held against results by `tests/ops/placed`.

`None` for a dimension: every rank needs all of it.

Long because each family's rule is here, in front of the table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from flowvm.eager.interpreter import Operator
from flowvm.meta.meta import TensorMeta

Metas = tuple[TensorMeta, ...]
Names = tuple[Any, ...]  # a letter, or None, for each dimension


@dataclass(frozen=True)
class Letters:
    """See the modules' docstrings.

    sums     letters that operands have and (some) results lack, over which these are sums
    added    inputs that are added to a sum: they are partial sums where it is
    linear   groups of inputs in which the op is linear, the others held fixed
    even     letters that are split where all parts are equal, and not otherwise
    """

    inputs: tuple[Names, ...]
    outputs: tuple[Names, ...]
    sums: frozenset[str] = frozenset()
    added: frozenset[int] = frozenset()
    linear: tuple[tuple[int, ...], ...] = field(default=())
    even: frozenset[str] = frozenset()


def _dims(meta: TensorMeta, without: Sequence[int] = ()) -> Names:
    """Return a letter for each dimension, except the ones in `without`."""
    dropped = {d % meta.ndim for d in without if meta.ndim}
    return tuple(None if i in dropped else f"d{i}" for i in range(meta.ndim))


def _same(*without: int, linear: tuple[int, ...] = ()) -> Callable[..., Letters | None]:
    """Return a rule: operands have one shape, and all dimensions but `without` may be split."""

    def rule(op: Operator, metas: Metas, attrs: tuple[Any, ...], outs: Metas) -> Letters | None:
        operands = (*metas, *outs)
        ndim = max(m.ndim for m in operands)
        if any(m.ndim != ndim for m in operands):
            return None
        named = tuple(_dims(m, without) for m in operands)
        groups = (linear,) if linear and _floats(metas, outs) else ()
        return Letters(named[: len(metas)], named[len(metas) :], linear=groups)

    return rule


def _floats(metas: Metas, outs: Metas) -> bool:
    return all(m.dtype.inexact for m in (*metas, *outs))


def _along(linear: tuple[tuple[int, ...], ...] = ()) -> Callable[..., Letters | None]:
    """All operands have one shape, and the op goes along the dimension that is its first
    attribute.
    """

    def rule(op: Operator, metas: Metas, attrs: tuple[Any, ...], outs: Metas) -> Letters | None:
        operands = (*metas, *outs)
        if any(m.shape != metas[0].shape for m in operands):
            return None
        names = _dims(metas[0], (attrs[0],))
        groups = linear if _floats(metas, outs) else ()
        return Letters((names,) * len(metas), (names,) * len(outs), linear=groups)

    return rule


def _cast(op: Operator, metas: Metas, attrs: tuple[Any, ...], outs: Metas) -> Letters:
    (x,), out = metas, outs[0]
    lead = out.ndim - x.ndim
    names = _dims(out)
    inner = tuple(n if d == out.shape[i + lead] else None
                  for i, (d, n) in enumerate(zip(x.shape, names[lead:], strict=True)))  # fmt: skip
    return Letters((inner,), (names,), linear=((0,),) if _floats(metas, outs) else ())


# --- reductions -----------------------------------------------------------------------------------

_ADD = ("sum", "count_nonzero", "sum_of_magnitudes", "sum_of_squares")


def _fold(op: Operator, metas: Metas, attrs: tuple[Any, ...], outs: Metas) -> Letters:
    (x,) = metas
    names = tuple(f"d{i}" for i in range(x.ndim))
    dims, keepdim = (attrs[0], attrs[1]) if attrs else (tuple(range(x.ndim)), False)
    folded = {names[d] for d in dims}
    out = tuple(None if n in folded else n for n in names if keepdim or n not in folded)
    adds = op.name in _ADD
    inner = names if adds else tuple(None if n in folded else n for n in names)
    linear = ((0,),) if op.name == "sum" and _floats(metas, outs) else ()
    return Letters((inner,), (out,), frozenset(folded) if adds else frozenset(), linear=linear)


def _extreme(op: Operator, metas: Metas, attrs: tuple[Any, ...], outs: Metas) -> Letters:
    (x,) = metas
    dim = attrs[0] % x.ndim if x.ndim else 0
    names = _dims(x, (dim,))
    out = names if attrs[1] else tuple(n for i, n in enumerate(names) if i != dim)
    return Letters((names,), (out,) * len(outs))


def _moments(op: Operator, metas: Metas, attrs: tuple[Any, ...], outs: Metas) -> Letters:
    (x,), (dims, keepdim) = metas, attrs[:2]
    names = _dims(x, dims)
    out = tuple(n for i, n in enumerate(names) if keepdim or i not in dims)
    return Letters((names,), (out,) * len(outs))


def _batch(op: Operator, metas: Metas, attrs: tuple[Any, ...], outs: Metas) -> Letters | None:
    """Return the letters of batches: operands are matrices or vectors in the last dimensions.

    The dimensions in front, which all operands have, may be split.
    """
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


# --- products -------------------------------------------------------------------------------------


def _product(ta: bool, tb: bool) -> Callable[..., Letters]:
    def rule(op: Operator, metas: Metas, attrs: tuple[Any, ...], outs: Metas) -> Letters:
        a, b = metas[:2]
        first = ("k", "m") if ta else ("m", "k")
        second = ("n", "k") if tb else ("k", "n")
        if a.ndim == 1:
            first = ("k",)  # type: ignore[assignment]
        if b.ndim == 1:
            second = ("k",)  # type: ignore[assignment]
        rank = max(a.ndim, b.ndim) - 2
        shape = outs[0].shape

        def batched(m: TensorMeta, last: tuple[str, ...]) -> Names:
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
        linear = ((0,), (1,)) if _floats(metas, outs) else ()
        return Letters((batched(a, first), batched(b, second)), (out,), frozenset("k"),
                       linear=linear)  # fmt: skip

    return rule


def _linear(op: Operator, metas: Metas, attrs: tuple[Any, ...], outs: Metas) -> Letters:
    batch = tuple(f"d{i}" for i in range(metas[0].ndim - 1))
    return Letters(
        ((*batch, "k"), ("n", "k"), ("n",)),
        ((*batch, "n"),),
        frozenset("k"),
        added=frozenset((2,)),
        linear=((0, 2), (1, 2)),
    )


# --- planes ---------------------------------------------------------------------------------------


def _conv(op: Operator, metas: Metas, attrs: tuple[Any, ...], outs: Metas) -> Letters:
    groups = attrs[0].groups
    space = (None,) * (outs[0].ndim - 2)
    c, o = (None, None) if groups > 1 else ("c", "o")
    kernel = (None,) * (metas[1].ndim - 2)
    bias = ((o,),) if len(metas) == 3 else ()
    both = ((0, 2), (1, 2)) if bias else ((0,), (1,))
    return Letters(
        (("n", c, *space), (o, c, *kernel), *bias),
        (("n", o, *space),),
        frozenset("c"),
        added=frozenset((2,)) if bias else frozenset(),
        linear=both,
        even=frozenset("c"),
    )


def _conv_input(op: Operator, metas: Metas, attrs: tuple[Any, ...], outs: Metas) -> Letters:
    groups = attrs[0].groups
    space = (None,) * (outs[0].ndim - 2)
    c, o = (None, None) if groups > 1 else ("c", "o")
    bias = ((c,),) if len(metas) == 3 else ()
    both = ((0, 2), (1, 2)) if bias else ((0,), (1,))
    return Letters(
        (("n", o, *space), (o, c, *space), *bias),
        (("n", c, *space),),
        frozenset("o"),
        added=frozenset((2,)) if bias else frozenset(),
        linear=both,
        even=frozenset("o"),
    )


def _conv_weight(op: Operator, metas: Metas, attrs: tuple[Any, ...], outs: Metas) -> Letters:
    groups = attrs[0].groups
    space = (None,) * (outs[0].ndim - 2)
    c, o = (None, None) if groups > 1 else ("c", "o")
    return Letters(
        (("n", o, *space), ("n", c, *space)), ((o, c, *space),), frozenset("n"),
        linear=((0,), (1,)),
    )  # fmt: skip


def _planes(op: Operator, metas: Metas, attrs: tuple[Any, ...], outs: Metas) -> Letters | None:
    """Planes are apart: the dimensions in front of the last n."""
    n = len(attrs[0]) if op.name == "max_pool_backward" else attrs[PLANES_AT.get(op.name, 1)]
    lead = outs[0].ndim - n
    names = tuple(f"d{i}" for i in range(lead)) + (None,) * n
    if lead == 0 or any(m.shape[:lead] != outs[0].shape[:lead] for m in metas):
        return None
    linear = ((0,),) if op.name in LINEAR_PLANES and _floats(metas[:1], outs[:1]) else ()
    return Letters((names,) * len(metas), (names,) * len(outs), linear=linear)


PLANES_AT = {"avg_pool_backward": 2}  # which attribute is n, where that is not the second
LINEAR_PLANES = ("avg_pool", "avg_pool_backward", "interpolate", "interpolate_backward")


# --- places ---------------------------------------------------------------------------------------


def _gather(op: Operator, metas: Metas, attrs: tuple[Any, ...], outs: Metas) -> Letters:
    x, index = metas
    dim = attrs[0] % x.ndim if x.ndim else 0
    names = tuple(
        f"d{i}" if i != dim and a == b else None
        for i, (a, b) in enumerate(zip(x.shape, index.shape, strict=True))
    )
    along = tuple("i" if i == dim else n for i, n in enumerate(names))
    return Letters((names, along), (along,))


def _scatter(op: Operator, metas: Metas, attrs: tuple[Any, ...], outs: Metas) -> Letters | None:
    """Into x, along one dimension; the others are apart where all have all of them."""
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


def _index_select(
    op: Operator, metas: Metas, attrs: tuple[Any, ...], outs: Metas
) -> Letters | None:
    x, index = metas
    dim = attrs[0]
    if outs[0].ndim != x.ndim - 1 + index.ndim:
        return None
    names = _dims(x, (dim,))
    places = tuple(f"i{k}" for k in range(index.ndim))
    linear = ((0,),) if _floats(metas[:1], outs) else ()
    return Letters((names, places), ((*names[:dim], *places, *names[dim + 1 :]),), linear=linear)


def _one_hot(op: Operator, metas: Metas, attrs: tuple[Any, ...], outs: Metas) -> Letters:
    names = _dims(metas[0])
    return Letters((names,), ((*names, None),))


def _cat(op: Operator, metas: Metas, attrs: tuple[Any, ...], outs: Metas) -> Letters | None:
    dim, new = attrs
    out = outs[0]
    at = dim % out.ndim
    if any(m.ndim + new != out.ndim for m in metas):
        return None
    names = _dims(out, (at,))
    inner = tuple(n for i, n in enumerate(names) if not (new and i == at))
    linear = (tuple(range(len(metas))),) if _floats(metas, outs) else ()
    return Letters((inner,) * len(metas), (names,), linear=linear)


# --- norms ----------------------------------------------------------------------------------------


def _normalize(op: Operator, metas: Metas, attrs: tuple[Any, ...], outs: Metas) -> Letters | None:
    """Return the letters of norms: rows or samples may be split.

    The statistics of rows have the rows' dimensions; the statistics of samples, (2, groups), lie
    one sample behind the other.
    """
    if attrs[0] not in ("layer", "group", "instance") or len(attrs) != 4:
        return None
    backward = op.name == "normalize_backward"
    x = metas[1] if backward else metas[0]
    rows = attrs[0] == "layer"
    lead = x.ndim - len(attrs[1]) if rows else 1
    if lead < 1:
        return None
    apart = tuple(f"d{i}" for i in range(lead))
    tall, stats = (*apart, *[None] * (x.ndim - lead)), (None, *apart)
    rest = tuple((None,) * m.ndim for m in (metas[3:] if backward else metas[1:]))
    even = frozenset(() if rows else apart)
    if not backward:
        return Letters((tall, *rest), (tall, stats), even=even)
    small = tuple((None,) * m.ndim for m in outs[1:])
    return Letters((tall, tall, stats, *rest), (tall, *small), frozenset(apart), even=even)


# --- attention ------------------------------------------------------------------------------------


def _attention(op: Operator, metas: Metas, attrs: tuple[Any, ...], outs: Metas) -> Letters | None:
    """Sequences and heads are apart: the dimensions in front of the last two."""
    q = metas[0]
    lead = q.ndim - 2
    if lead < 1:
        return None

    def names(m: TensorMeta) -> Names | None:
        if m.shape[:lead] != q.shape[:lead]:
            return None
        return (*(f"d{i}" for i in range(lead)), *[None] * (m.ndim - lead))

    found = [names(m) for m in (*metas, *outs)]
    if any(n is None for n in found):
        return None
    listed: Any = tuple(found)
    return Letters(listed[: len(metas)], listed[len(metas) :])


def _rows(op: Operator, metas: Metas, attrs: tuple[Any, ...], outs: Metas) -> Letters:
    """All but the last dimension, in which rows lie."""
    return Letters(
        tuple(_dims(m, (-1,)) for m in metas), tuple(_dims(m, (m.ndim - 1,)) for m in outs)
    )


def _fft(op: Operator, metas: Metas, attrs: tuple[Any, ...], outs: Metas) -> Letters:
    rows = _dims(metas[0], (-1,))
    return Letters((rows, (None,)), (rows,), linear=((0,),))


RULES: dict[str, Callable[..., Letters | None]] = {
    "cast": _cast,
    "copy": _cast,
    "arrange": _cast,
    "accumulate_": _same(linear=(0, 1)),
    **dict.fromkeys((*_ADD, "amax", "amin", "prod", "all", "any"), _fold),
    "max": _extreme,
    "min": _extreme,
    "moments": _moments,
    "softmax": _along(),
    "log_softmax": _along(),
    "softmax_backward": _along(((0,),)),
    "log_softmax_backward": _along(((0,),)),
    "cumsum": _along(((0,),)),
    "cumprod": _along(),
    "logcumsumexp": _along(),
    "cummax": _along(),
    "cummin": _along(),
    "recurrence": _along(),
    "recurrence_back": _along(),
    "fft": _fft,
    "matmul": _product(False, False),
    "_matmul_nt": _product(False, True),
    "_matmul_tn": _product(True, False),
    "linear": _linear,
    "conv": _conv,
    "conv_input": _conv_input,
    "conv_weight": _conv_weight,
    **dict.fromkeys(
        ("max_pool", "max_pool_backward", "max_pool_gather", *LINEAR_PLANES, "interpolate_nearest"),
        _planes,
    ),
    "gather": _gather,
    "scatter_": _scatter,
    "scatter_reduce_": _scatter,
    "index_select": _index_select,
    "one_hot": _one_hot,
    "cat": _cat,
    "normalize": _normalize,
    "normalize_backward": _normalize,
    "attention": _attention,
    "attention_backward": _attention,
    "tril": _batch,
    "triu": _batch,
    "inverse": _batch,
    "cholesky": _batch,
}
UPDATES = (
    "adadelta_step_", "adagrad_step_", "adam_step_", "adamax_step_", "amsgrad_step_", "asgd_step_",
    "nadam_step_", "radam_step_", "rmsprop_step_", "rmsprop_momentum_step_",
    "rmsprop_centered_step_", "rmsprop_centered_momentum_step_", "rprop_step_", "sgd_step_",
    "sgd_momentum_step_",
)  # fmt: skip
RULES.update(dict.fromkeys(UPDATES, _same()))
