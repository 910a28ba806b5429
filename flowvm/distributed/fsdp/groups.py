"""Parameters that lie cut among ranks, and are whole while a module uses them.

A *group* is the set of parameters that one call of `fully_shard` cuts.  One exchange gathers them,
and one averages their gradients.  A module's attribute for a parameter is the whole local tensor
while its forward runs.  It is also whole from the beginning of its backward until its gradients are
complete.  The module's table of parameters always has the cut ones, which optimizers and state
dicts see.

Whole tensors come from the cut ones through a node (`_Gather`), whose gradient function averages
and cuts.  It runs when the gradients of all parameters of the group are complete.  With `reshard`
nothing keeps the whole tensors between forward and backward.  Nodes save only places in whole
tensors, and the first reader gathers them again.

Invariants
- all ranks run the same modules in the same order, so they issue the same exchanges;
- gathered values are used for as long as the parameters have not changed (`_stand`), whoever
  gathered them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

from flowvm.autograd.function import Function, once_differentiable
from flowvm.autograd.graph import some_saved_tensors_hooks
from flowvm.distributed.fsdp.cuts import Cut, as_dtype, joined, parted
from flowvm.distributed.fsdp.policies import MixedPrecisionPolicy
from flowvm.eager.modes import current_backward, current_recorder, grad_enabled, recording
from flowvm.eager.tensor import Tensor, alias
from flowvm.errors import AutogradError
from flowvm.guards.regions import Mode, reverting
from flowvm.meta.global_meta import GlobalMeta
from flowvm.meta.meta import TensorMeta
from flowvm.meta.placements import Sbps, placement, sizes
from flowvm.nn.module import Module
from flowvm.nn.parallel.distributed import tensors_in
from flowvm.nn.parameter import Parameter
from flowvm.ops.collectives.collectives import all_gather, all_reduce, reduce_scatter
from flowvm.ops.placed.boxing import boxed, global_of, part_of
from flowvm.ops.shapes.join import cat
from flowvm.ranks.world import Group, rank
from flowvm.vm.machine.words import OPERAND

if TYPE_CHECKING:
    from flowvm.eager.modes import Recorder


# the group whose module's forward runs on this thread, the innermost
_running: Mode[ParameterGroup | None] = Mode(None)


def outermost() -> bool:
    """Return True if no group's forward runs on this thread."""
    return _running.now() is None


class Beside(NamedTuple):
    """The state of a parameter before the cut: a global tensor of `meta`, on other ranks than the
    ones of the cut.  `where` has its dimensions first, then the cut's.
    """

    meta: GlobalMeta
    where: placement

    def cut(self, sbps: Sbps) -> GlobalMeta:
        """Return the meta of the cut parameter, held as `sbps` along the dimensions behind its
        own.
        """
        m = self.meta
        return GlobalMeta.make(m.shape, m.dtype, self.where.device(rank()), (*m.sbp, *sbps))

    def whole(self, local: Tensor) -> Tensor:
        """Return the parameter with its layout from before the cut, from its part here."""
        m = self.meta
        return global_of(local, GlobalMeta.make(m.shape, local._meta.dtype, m.device, m.sbp))

    def part(self, g: Tensor) -> Tensor:
        """This rank's part of a gradient, which may be held otherwise."""
        return part_of(boxed(g, self.meta.sbp))


class ParameterGroup:
    """See the module's docstring.

    params    cut among the ranks along `axis` of the placement; None: whole on every rank
    beside    of each, what it was if that was no local tensor: a tensor parallel module's.  What is
              called whole here is then the part that the rank has of it
    places    where modules have them: (module, name, which)
    """

    def __init__(
        self,
        params: list[Parameter],
        beside: list[Beside | None],
        places: list[tuple[Module, str, int]],
        where: placement,
        axis: int | None,
        reshard: bool | None,
        policy: MixedPrecisionPolicy,
    ) -> None:
        self.params, self.places, self.policy = params, places, policy
        self.beside = beside
        self.reshard_after_forward = reshard  # None: unless no other group's forward runs
        self.reshard_after_backward = self.unshards_in_backward = True
        self.syncs = True
        self.divisor: float | None = None  # of summed gradients; None: the number of ranks
        self.before_forward: list[ParameterGroup] = []  # to be gathered with it
        self.before_backward: list[ParameterGroup] = []  # empty: the one that `follows` says
        self.follows: ParameterGroup | None = None  # whose forward ended last before its own
        self.order: list[ParameterGroup] = []  # in which forwards ended inside the outermost one
        self.pending: dict[int, Tensor] = {}  # whole gradients that are not averaged yet
        self.depth = 0
        self._whole: list[Tensor] | None = None
        self._made_at: Any = None
        self.is_member = where.place_of(rank()) is not None
        self.group = self.others = None
        if self.is_member:
            axes = [a for a in range(len(where.shape)) if a != axis]
            self.group = None if axis is None else Group.of(sorted(where.group(axis, rank())))
            self.others = [Group.of(sorted(where.group(a, rank()))) for a in axes]
        self.ranks = 1 if self.group is None else self.group.size
        self.cuts = []
        for p, other in zip(params, beside, strict=True):
            m: Any = p._meta
            shape = m.shape if other is None else other.meta.local.shape
            dim = 0 if axis is None else m.sbp[axis - len(where.shape)].dim
            lengths = sizes(shape[dim], self.ranks) if m.ndim else (1,)
            self.cuts.append(Cut(tuple(shape), dim, lengths))

    # --- gathering ----------------------------------------------------------------------------

    def _stand(self) -> tuple[Recorder | None, tuple[tuple[int, int, int], ...]]:
        """Return a key of the parameters' present values; new values give another key, and each
        capture has its own.
        """
        now = tuple((id(p.storage()), p._ref, p.version) for p in self.params)
        return current_recorder(), now

    def whole(self) -> list[Tensor]:
        """Return the whole parameters outside the graph; gather them if that is still to be done.
        A tensor parallel module's parameters have their form from before the cut.
        """
        stand = self._stand()
        if self._whole is None or self._made_at != stand:
            with recording(False):
                pairs = zip(self._gathered(), self.beside, strict=True)
                self._whole = [t if other is None else other.whole(t) for t, other in pairs]
            self._made_at = stand
        return self._whole

    def _gathered(self) -> list[Tensor]:
        to = self.policy.param_dtype
        parts = [part_of(p) for p in self.params]
        if to is not None:
            parts = [t.to(to) if t.dtype.is_floating_point else t for t in parts]
        if self.ranks == 1:
            return parts
        gathered: dict[int, Tensor] = {}
        for kind in dict.fromkeys(t.dtype for t in parts):
            which = [i for i, t in enumerate(parts) if t.dtype is kind]
            flat = [parts[i].reshape(-1) for i in which]
            cuts = [self.cuts[i] for i in which]
            counts = [sum(c.count(k) for c in cuts) for k in range(self.ranks)]
            every = all_gather(flat[0] if len(flat) == 1 else cat(flat), self.group, counts)
            gathered.update(zip(which, joined(every, cuts, self.ranks), strict=True))
        return [gathered[i] for i in range(len(parts))]

    def unshard(self) -> None:
        """Give the modules whole parameters."""
        self._show(self.whole())

    def reshard(self) -> None:
        """Give the modules the cut parameters, and drop the whole ones."""
        self._whole = self._made_at = None
        self._show(self.params)

    def _show(self, tensors: Sequence[Tensor]) -> None:
        for module, name, which in self.places:
            object.__setattr__(module, name, tensors[which])

    # --- forward ------------------------------------------------------------------------------

    def call(self, module: Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call a module's `forward` with whole parameters."""
        if not self.is_member:
            return forward(*args, **kwargs)
        outer = _running.now()
        alone = outer is None
        if not self.depth:
            self.order = [] if outer is None else outer.order
        reshards = self.reshard_after_forward
        reshards = not alone if reshards is None else reshards
        if self.policy.param_dtype is not None and self.policy.cast_forward_inputs:
            args, kwargs = as_dtype((args, kwargs), self.policy.param_dtype)
        whole = self.whole()
        if any(p.requires_grad for p in self.params) and grad_enabled():
            self._show(_Gather.apply(self, *self.params))
        else:
            self._show(whole)
        for other in self.before_forward:
            other.whole()
        before = self.depth
        deeper = reverting(
            partial(setattr, self, "depth", before), partial(setattr, self, "depth", before + 1)
        )
        try:
            dropping = self._dropping(whole) if reshards and grad_enabled() else nullcontext()
            with _running.within(self), deeper, dropping:
                out = forward(*args, **kwargs)
        finally:
            if not before:
                if reshards or (current_recorder() is not None and not grad_enabled()):
                    self.reshard()
                else:
                    self._show(self.params)
        if not self.depth and current_backward() is None:  # else a checkpoint computes it again
            self.follows = self.order[-1] if self.order else None
            self.order.append(self)
        if self.policy.output_dtype is not None:
            out = as_dtype(out, self.policy.output_dtype)
        if grad_enabled() and self.unshards_in_backward:
            for t in tensors_in(out):
                if t._node is not None and not t._node.is_leaf:
                    t.register_hook(self._backward_begins)
        return out

    def _dropping(self, whole: list[Tensor]) -> some_saved_tensors_hooks:
        """Return a region in which nodes save, of whole parameters, only their place."""
        storages = {id(t.storage()): i for i, t in reversed([*enumerate(whole)])}
        stand = self._made_at

        def is_dropped(t: Tensor) -> bool:
            return t._storage is not None and id(t._storage) in storages

        def pack(t: Tensor) -> Tensor | tuple[int, TensorMeta, int]:
            if not is_dropped(t):
                return t
            which = storages[id(t._storage)]
            offset = (t._ref >> OPERAND.STORAGE_BITS) - (whole[which]._ref >> OPERAND.STORAGE_BITS)
            return which, t._meta, offset

        def unpack(packed: Tensor | tuple[int, TensorMeta, int]) -> Tensor:
            if isinstance(packed, Tensor):
                return packed
            if self._stand() != stand:
                raise AutogradError(
                    "fully_shard: parameters were changed between forward and backward, which "
                    "needs those of forward; step the optimizer behind backward"
                )
            which, meta, offset = packed
            return alias(self.whole()[which], meta, offset)

        return some_saved_tensors_hooks(is_dropped, pack, unpack)

    # --- backward -----------------------------------------------------------------------------

    def _backward_begins(self, g: Tensor) -> None:
        backward_run = current_backward()
        if backward_run is None or self in backward_run.notes:
            return
        backward_run.notes[self] = None
        with recording(False):
            self.unshard()
            for other in self.before_backward or self._next():
                other.whole()
                backward_run.ends.append(other._backward_ends)
        backward_run.ends.append(self._backward_ends)

    def _next(self) -> list[ParameterGroup]:
        """Return the group whose backward is probably next, if it is to be gathered: then its
        exchange stands before this group's, which has to wait for gradients.
        """
        other = self.follows
        if other is None or other.depth or not other.unshards_in_backward:
            return []
        return [] if current_recorder() is not None else [other]

    def _backward_ends(self) -> None:
        if self.reshard_after_backward and not self.depth:
            self.reshard()

    def take(self, grads: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Return the gradients of the cut parameters, from this rank's gradients of the whole
        ones.  All are None while nothing is averaged.
        """
        due = dict(self.pending)
        for i, g in enumerate(grads):
            if g is not None and self.params[i].requires_grad:
                other = self.beside[i]
                g = g if other is None else other.part(g)
                g = g if self.policy.reduce_dtype is None else g.to(self.policy.reduce_dtype)
                due[i] = due[i] + g if i in due else g
        gradients: list[Tensor | None] = [None] * len(self.params)
        if self.syncs:
            self.pending = {}
            for kind in dict.fromkeys(g.dtype for g in due.values()):
                which = [i for i in sorted(due) if due[i].dtype is kind]
                parts = self._averaged([due[i] for i in which], [self.cuts[i] for i in which])
                for i, g in zip(which, parts, strict=True):
                    meta: Any = self.params[i]._meta
                    gradients[i] = global_of(g.to(meta.dtype).contiguous(), meta)
        else:
            self.pending = due
        self._backward_ends()
        return gradients

    def _averaged(self, grads: list[Tensor], cuts: list[Cut]) -> list[Tensor]:
        flat = parted(grads, cuts, self.ranks)
        op = "mean" if self.divisor is None else "sum"
        position = 0
        if self.group is not None:
            counts = [sum(c.count(k) for c in cuts) for k in range(self.ranks)]
            position = self.group.ranks.index(rank())
            flat = reduce_scatter(flat, op, self.group, counts)
        for other in self.others or ():
            flat = all_reduce(flat, op, other)
        if self.divisor is not None:
            flat = flat / self.divisor
        ends = [0, *accumulate(c.count(position) for c in cuts)]
        return [
            flat[low:high].reshape(c.part_shape(position))
            for c, low, high in zip(cuts, ends, ends[1:], strict=False)
        ]


class _Gather(Function):
    """Whole local parameters of a group from the cut ones."""

    @staticmethod
    def forward(ctx: Any, group: ParameterGroup, *params: Parameter) -> tuple[Tensor, ...]:
        ctx.group = group
        ctx.set_materialize_grads(False)
        whole = [alias(t, t._meta) for t in group.whole()]
        ctx.mark_non_differentiable(
            *(t for t, p in zip(whole, params, strict=True) if not p.requires_grad)
        )
        return tuple(whole)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        return (None, *ctx.group.take(grads))
