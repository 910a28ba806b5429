"""Gradient clipping, over all the parameters at once."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from flowvm import ops
from flowvm.autograd import no_grad
from flowvm.eager.modes import recording, recording_to
from flowvm.eager.native.trace_cache import steady
from flowvm.eager.tensor import Tensor
from flowvm.errors import InvalidValueError, ModeError
from flowvm.loading.lazy import lazy
from flowvm.loading.listing import listing, own_names
from flowvm.meta.dtype import float64, promote_types
from flowvm.meta.formats import strided
from flowvm.meta.placements import broadcast, placement, rank_and_size
from flowvm.ops.rows.parts.folds import square_up

if TYPE_CHECKING:
    from flowvm.ops.placed import boxing
else:
    boxing = lazy("flowvm.ops.placed.boxing")

# public: nn.utils

__dir__ = listing(globals())


def _grads(parameters: Tensor | Iterable[Tensor]) -> list[Tensor]:
    params = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    grads = [grad for param in params if (grad := param.grad) is not None]
    _refuse_sparse(grads)
    return grads


def _refuse_sparse(grads: list[Tensor]) -> None:
    """ModeError for a sparse gradient, which has several values for an element."""
    for grad in grads:
        if grad.__class__ is not Tensor and grad.layout is not strided:
            raise ModeError(
                f"a gradient of shape {tuple(grad.shape)} is sparse, and sparse gradients are not "
                f"clipped: give the embedding sparse=False, or scale the values of "
                f"grad.coalesce()"
            )


def clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """Scale the gradients so that their norm, taken over all of them as one vector, is at most
    max_norm.

    Returns the norm before clipping, as a 0-d tensor. Nothing waits for it: the scale is applied on
    the device, unless error_if_nonfinite asks to look.  foreach is taken and means nothing.

    >>> w = nn.Parameter(flow.zeros(2))
    >>> w.grad = flow.tensor([3.0, 4.0])
    >>> nn.utils.clip_grad_norm_([w], max_norm=1.0)  # the norm before
    tensor(5.)
    >>> w.grad
    tensor([0.6000, 0.8000])
    """
    grads = _grads(parameters)
    with no_grad():
        total = _checked_norm(grads, norm_type, error_if_nonfinite)
        _scale(grads, max_norm, total)
    return _narrowed(total, grads)


def clip_grad_norm(
    parameters: Tensor | Iterable[Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """`clip_grad_norm_` under its older name."""
    return clip_grad_norm_(parameters, max_norm, norm_type, error_if_nonfinite, foreach)


def get_total_norm(
    tensors: Tensor | Iterable[Tensor],
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """The norm of all elements of `tensors` as one vector, 0-d; foreach means nothing.

    InvalidValueError with error_if_nonfinite, which waits for it, where it is not finite.

    >>> nn.utils.get_total_norm([flow.tensor([3.0]), flow.tensor([0.0, 4.0])])
    tensor(5.)
    """
    held = [tensors] if isinstance(tensors, Tensor) else list(tensors)
    _refuse_sparse(held)
    return _narrowed(_checked_norm(held, norm_type, error_if_nonfinite), held)


def _narrowed(total: Tensor, held: list[Tensor]) -> Tensor:
    """A norm in the dtype that the norms of these tensors have together."""
    if not held:
        return total
    dtype = functools.reduce(promote_types, {t.dtype for t in held})
    narrow: Tensor = total.to(dtype.real if dtype.is_complex else dtype)
    return narrow


def _checked_norm(held: list[Tensor], norm_type: float, error_if_nonfinite: bool) -> Tensor:
    """The norm of all elements, wider than they are: sums of powers leave the range of theirs."""
    if not held:
        return ops.tensor(0.0)
    total = _total_norm(held, float(norm_type))
    if error_if_nonfinite and not math.isfinite(total.item()):
        raise InvalidValueError(
            f"the total norm of order {norm_type} for gradients is {total.item()}, so it "
            "cannot be clipped; error_if_nonfinite=False scales the gradients all the same"
        )
    return total


def clip_grads_with_norm_(
    parameters: Tensor | Iterable[Tensor],
    max_norm: float,
    total_norm: Tensor,
    foreach: bool | None = None,
) -> None:
    """Scale the gradients as `clip_grad_norm_` does for a norm of theirs that is known; foreach
    means nothing.

    >>> w = nn.Parameter(flow.zeros(2))
    >>> w.grad = flow.tensor([3.0, 4.0])
    >>> nn.utils.clip_grads_with_norm_([w], 1.0, flow.tensor(10.0))
    >>> w.grad
    tensor([0.3000, 0.4000])
    """
    with no_grad():
        _scale(_grads(parameters), max_norm, total_norm)


def _scale(grads: list[Tensor], max_norm: float, total: Tensor) -> None:
    scale = _coefficient(total, float(max_norm))
    coefficients = {}  # on each placement, if the norm is of several
    for grad in grads:
        own = scale
        if grad.is_global and not scale.is_global:
            where = grad.placement
            if where not in coefficients:
                every = (broadcast,) * len(where.shape)
                coefficients[where] = scale.to_global(where, every, check_meta=False)
            own = coefficients[where]
        grad.mul_(own)


@steady
def _coefficient(total: Tensor, max_norm: float) -> Tensor:
    """The number that makes `total` at most max_norm, 1 where it is."""
    scale: Tensor = (max_norm / (total + 1e-6)).clamp(max=1.0)
    return scale


def _total_norm(grads: list[Tensor], order: float) -> Tensor:
    total: Tensor
    if order == math.inf:
        total = ops.amax(_stacked([ops.amax(ops.abs(grad)) for grad in grads]))
    elif order == -math.inf:
        total = ops.amin(_stacked([ops.amin(ops.abs(grad)) for grad in grads]))
    elif order == 0.0:  # as PyTorch's, the norm of norms: how many gradients are not zero
        counts = _stacked([ops.sum(ops.ne(grad, 0)) for grad in grads])
        total = ops.sum(ops.ne(counts, 0)).to(grads[0].dtype)
    elif order == 2.0:
        total = ops.sqrt(ops.sum(_squares(grads)))
    else:
        powers = _stacked([ops.sum(ops.abs(grad).to(float64) ** order) for grad in grads])
        total = ops.sum(powers) ** (1.0 / order)
    return total


def _stacked(parts: list[Tensor]) -> Tensor:
    """0-d tensors as one; of several placements, or of one and local ones, as a local tensor."""
    if len({part.placement if part.is_global else None for part in parts}) > 1:
        places = [part.placement for part in parts if part.is_global]
        every = None
        if _some_outside(frozenset(places)):  # as of stages, which all ranks know of
            ranks = sorted({rank for where in places for rank in where.flat})
            every = placement(places[0].type, ranks)
        parts = [_whole(part, every) if part.is_global else part for part in parts]
    return ops.stack(parts)


_known: dict[object, bool] = {}  # by rank and placements: whether some rank is outside of one


def _some_outside(places: frozenset[placement]) -> bool:
    """Return True if a rank has gradients of a placement without it.  Ranks ask each other, once
    for the same placements: a rank that is in all of its own cannot know.
    """
    own = rank_and_size()[0]
    ranks = tuple(sorted({rank for where in places for rank in where.flat}))
    outside = any(own not in where.flat for where in places)
    if own not in ranks or len({frozenset(where.flat) for where in places}) == 1:
        return outside
    if (own, places) not in _known:
        use = boxing.transport[-1]()
        with recording(False), recording_to(None):
            mine = ops.tensor([float(outside)])
            others_outside = use.all_reduce(mine, "max", use.group(ranks)).tolist()
        _known[own, places] = others_outside[0] > 0
    return _known[own, places]


def _whole(part: Tensor, where: placement | None) -> Tensor:
    """A global 0-d tensor as a local one, on all ranks of its placement or of `where`."""
    own = part.placement if where is None else where
    whole: Tensor = part.to_global(own, (broadcast,) * len(own.shape)).to_local()
    return whole


_GROUP = 8  # gradients of one native call: few lengths of lists, so few traces


def _squares(grads: list[Tensor]) -> Tensor:
    """The sums of the squares of each, as one vector."""
    if any(grad.is_global for grad in grads):
        return _stacked([_square(grad) for grad in grads])
    groups = [_group(grads[k : k + _GROUP]) for k in range(0, len(grads), _GROUP)]
    squares: Tensor = groups[0] if len(groups) == 1 else ops.cat(groups)
    return squares


@steady
def _group(grads: list[Tensor]) -> Tensor:
    """See `_squares`: a few of them, which are local."""
    return _stacked([_square(grad) for grad in grads])


def _square(grad: Tensor) -> Tensor:
    """The sum of the squares, in float64."""
    parts: Any = grad.view_as_real() if grad.dtype.is_complex else grad
    return square_up(parts, tuple(range(parts.ndim)), False)


def clip_grad_value_(
    parameters: Tensor | Iterable[Tensor], clip_value: float, foreach: bool | None = None
) -> None:
    """Clamp every gradient element to [-clip_value, clip_value]; foreach means nothing.

    >>> w = nn.Parameter(flow.zeros(2))
    >>> w.grad = flow.tensor([3.0, -0.5])
    >>> nn.utils.clip_grad_value_([w], 1.0)
    >>> w.grad
    tensor([ 1.0000, -0.5000])
    """
    bound = float(clip_value)
    with no_grad():
        for grad in _grads(parameters):
            grad.clamp_(-bound, bound)


__all__ = own_names(globals())
