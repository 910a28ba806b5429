"""Gradient accumulation: a call takes a batch, `build` sees a micro-batch of it at a time.

What is captured of `build` is a *section* that each launch repeats n times (`OpNode.repeat`), as
OneFlow's actors do: *unpack* gives it the next slice of every input (an operand that moves by a
step with each repetition), a tensor without dimensions is *repeated*, *acc* adds its gradients
into memory that stays, and *pack* puts its outputs behind each other.  The optimizer's step follows
once.  So does what ranks sum: gradients of global parameters are added up as partial sums.

Gradients are the mean over the micro-batches, since backward starts from 1/n: so a loss that is a
mean gives the gradients of the whole batch.  The same in eager code:

    for x, y in zip(xs.chunk(n), ys.chunk(n)):
        (loss(model(x), y) / n).backward()
    optimizer.step()
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from flowvm.autograd import no_grad
from flowvm.autograd.backward import seeded
from flowvm.eager.global_calls import Globals, local_of, partial_grads
from flowvm.eager.tensor import Tensor, new_tensor
from flowvm.errors import CaptureError
from flowvm.graph.capture.capture import Capture
from flowvm.graph.capture.trees import flatten, unflatten
from flowvm.guards.regions import Switched
from flowvm.loading.lazy import lazy
from flowvm.meta.global_meta import GlobalMeta
from flowvm.meta.meta import TensorMeta
from flowvm.meta.placements import broadcast, split
from flowvm.ops.declare.composite import filled_of
from flowvm.ops.shapes.join import cat, stack

if TYPE_CHECKING:
    from flowvm.ops.placed import boxing
else:
    boxing = lazy("flowvm.ops.placed.boxing")


def micro_meta(meta: TensorMeta, times: int, name: str, which: int) -> TensorMeta:
    """What a micro-batch of an input is: the first `1/times` of its first dimension; of a global
    tensor, of each rank's part.

    A tensor without dimensions is the same for all.  CaptureError unless it can be split.
    """
    if not meta.shape or times == 1:
        return meta
    ranks = _ranks_of_rows(meta)
    if meta.shape[0] % (times * ranks):
        apart = f" on each of the {ranks} ranks that it is cut among" if ranks > 1 else ""
        raise CaptureError(
            f"{name}: input {which} of shape {tuple(meta.shape)} cannot be split into {times} "
            f"micro-batches{apart}: give a batch whose first dimension is a multiple of "
            f"{times * ranks}, or set another number with config.set_gradient_accumulation_steps"
        )
    shape = (meta.shape[0] // times, *meta.shape[1:])
    if isinstance(meta, GlobalMeta):
        stride = None if meta.local.contiguous else meta.local.stride
        return GlobalMeta.make(shape, meta.dtype, meta.device, meta.sbp, stride)
    return TensorMeta.of(shape, meta.dtype, meta.device, meta.stride)


def _ranks_of_rows(meta: TensorMeta) -> int:
    """Among how many ranks the first dimension is cut."""
    if not isinstance(meta, GlobalMeta):
        return 1
    shape = meta.placement.shape
    return math.prod(n for n, s in zip(shape, meta.sbp, strict=True) if s.dim == 0)


class Rows(NamedTuple):
    """Among how many ranks the rows of a call's global tensors are cut, and how many rows those of
    a micro-batch have.
    """

    ranks: int
    counts: frozenset[int]

    @staticmethod
    def of(metas: Sequence[TensorMeta], times: int, name: str) -> Rows:
        """CaptureError where tensors are cut otherwise than others: their slices would not belong
        together.
        """
        cut = [
            (k, _ranks_of_rows(m), m.shape[0] // times)
            for k, m in enumerate(metas)
            if isinstance(m, GlobalMeta) and m.ndim
        ]
        found: dict[int, int] = {}
        for k, ranks, _ in cut:
            found.setdefault(ranks, k)
        if times > 1 and len(found) > 1:
            (first, a), (second, b) = list(found.items())[:2]
            raise CaptureError(
                f"{name}: the rows of input {a} are cut among {first} ranks and those of input {b} "
                f"among {second}, so their micro-batches would not belong together: give both "
                f"alike, by to_global(sbp=...)"
            )
        return Rows(next(iter(found), 1), frozenset(rows for _, _, rows in cut))

    def cut_alike(self, t: Tensor, name: str) -> Tensor:
        """An output as inputs are cut, so that its rows of all micro-batches, behind each other on
        each rank, are in the order of the inputs'.
        """
        meta = t._meta
        if not isinstance(meta, GlobalMeta) or not meta.ndim or _ranks_of_rows(meta) == self.ranks:
            return t
        held = tuple(broadcast if s.dim == 0 else s for s in meta.sbp)
        if self.ranks > 1 and meta.shape[0] in self.counts:
            axes = [k for k, n in enumerate(meta.placement.shape) if n == self.ranks]
            axes = [k for k in axes if not held[k].is_split]
            if not axes or meta.shape[0] % self.ranks:
                raise CaptureError(
                    f"{name}: the rows of an output of shape {tuple(meta.shape)} on "
                    f"{meta.placement!r} cannot be cut among {self.ranks} ranks as those of the "
                    f"inputs are, and would not be in their order: give inputs whole "
                    f"(flow.sbp.broadcast), or return the output from ranks alike"
                )
            held = (*held[: axes[0]], split(0), *held[axes[0] + 1 :])
        with no_grad():
            out: Tensor = t.detach().to_global(sbp=held)
        return out


def _packed_meta(meta: TensorMeta, times: int, name: str) -> TensorMeta:
    """What the outputs of all repetitions are, behind each other; of a global tensor, each rank's
    parts.
    """
    rows, rest = (meta.shape[0], meta.shape[1:]) if meta.shape else (1, ())
    shape = (times * rows, *rest)
    if not isinstance(meta, GlobalMeta):
        return meta.with_shape(shape)
    if rows % _ranks_of_rows(meta):
        raise CaptureError(
            f"{name}: an output of shape {tuple(meta.shape)} is cut unevenly among ranks, so those "
            f"of {times} micro-batches cannot stand behind each other: return it as broadcast"
        )
    return GlobalMeta.make(shape, meta.dtype, meta.device, meta.sbp)


class MicroBatches(Switched):
    """Captures `build` as a section of `times` repetitions; with 1 it changes nothing.

    with seeded(1.0 / times), MicroBatches(capture, times) as batch:
        outputs = build(*batch.unpack(inputs))
        made = batch.pack(made)
        batch.acc(parameters)
    settle(parameters)
    """

    def __init__(self, capture: Capture, times: int) -> None:
        self.capture, self.times = capture, times
        self.name = capture.graph.name
        self._front: list[Any] = []
        self._rows = Rows(1, frozenset())

    def _switch(self) -> MicroBatches:
        self.capture.repeat = self.times
        return self

    def _undo(self) -> None:
        self.capture.repeat = 1

    def _left(self, *error: Any) -> None:
        nodes = self.capture.graph.nodes
        nodes[:0] = self._front
        for number, node in enumerate(nodes):
            node.number = number

    def unpack(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """The micro-batches that stand for these inputs in `build`.

        CaptureError for one that cannot be split, or that requires grad.
        """
        if self.times == 1:
            return list(inputs)
        self._rows = Rows.of([t._meta for t in inputs], self.times, self.name)
        slices = []
        for k, t in enumerate(inputs):
            if t.requires_grad:
                raise CaptureError(
                    f"{self.name}: input {k} requires grad, which a graph with gradient "
                    f"accumulation cannot give: detach() it"
                )
            meta = micro_meta(t._meta, self.times, self.name, k)
            local = local_of(meta)
            if meta.shape and local.numel:
                self.capture.move(t, local.shape[0] * local.stride[0] * meta.dtype.itemsize)
            slices.append(new_tensor(t._ref, meta, t.storage()))
        return slices

    def acc(self, parameters: Iterable[Tensor], others: Sequence[Any]) -> None:
        """Let `.grad` of each be the sum over all repetitions.

        CaptureError if there are `others`, leaves that no optimizer of the graph steps.
        """
        if self.times == 1:
            return
        if others:
            raise CaptureError(
                f"{self.name}: with gradient accumulation, backward() may reach only parameters "
                f"that the graph's optimizers step: add the others to an optimizer, or call "
                f"requires_grad_(False) on them"
            )
        for p in parameters:
            if p.grad is not None:
                meta: Any = p.grad._meta
                if isinstance(meta, GlobalMeta):
                    meta = GlobalMeta.make(meta.shape, meta.dtype, meta.device, meta.sbp)
                    total = boxing.global_of(self._in_front(meta.local), meta)
                else:
                    total = self._in_front(meta)
                total.add_(p.grad)
                p.grad = total

    def pack(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Outputs of all repetitions behind each other along their first dimension; those without
        one become a tensor of one dimension.  What no operation in `build` made is left as it is.
        """
        if self.times == 1:
            return list(tensors)
        return [self._packed(t) if self.capture.is_repeated(t) else t for t in tensors]

    def _packed(self, t: Tensor) -> Tensor:
        t = self._rows.cut_alike(t, self.name)
        meta = _packed_meta(t._meta, self.times, self.name)
        part = boxing.part_of(t) if isinstance(meta, GlobalMeta) else t.detach()
        local = part._meta
        rows = local.shape[0] if local.shape else 1
        whole = self._in_front(local_of(meta))
        if local.numel:
            slot = new_tensor(whole._ref, local.with_shape(tuple(local.shape)), whole.storage())
            self.capture.move(whole, whole._meta.stride[0] * rows * meta.dtype.itemsize)
            slot.copy_(part)
            self.capture.move(whole, 0)
        return boxing.global_of(whole, meta) if isinstance(meta, GlobalMeta) else whole

    def _in_front(self, meta: TensorMeta) -> Tensor:
        """Zeros that are there before the first repetition."""
        capture = self.capture
        start = len(capture.graph.nodes)
        capture.repeat = 1
        zeros = filled_of(meta.with_shape(tuple(meta.shape)), 0)
        capture.repeat = self.times
        self._front += capture.graph.nodes[start:]
        del capture.graph.nodes[start:]
        return zeros


def settle(parameters: Iterable[Tensor]) -> None:
    """Behind all repetitions: sum over ranks what `partial_grads` has left of gradients."""
    for p in parameters:
        if p.grad is not None and isinstance(p._meta, GlobalMeta):
            with no_grad():
                p.grad = Globals.landed(p, p.grad)


def in_turn(
    build: Callable[..., Any], args: Any, kwargs: Any, times: int, name: str
) -> tuple[Any, list[Tensor]]:
    """Run `build` eagerly on one micro-batch after the other: the structure of its outputs, and
    they, packed as a graph packs them.  `settle` has to follow.
    """
    leaves: list[Tensor] = []
    structure = flatten((args, kwargs), leaves)
    groups: list[list[Tensor]] = []
    rows = Rows.of([t._meta for t in leaves], times, name)
    result: Any = None
    for k in range(times):
        slices = []
        for which, t in enumerate(leaves):
            slices.append(_slice(t, micro_meta(t._meta, times, name, which), k))
        results: list[Tensor] = []
        own_args, own_kwargs = unflatten(structure, iter(slices))
        with seeded(1.0 / times), partial_grads.within(times > 1):
            result = flatten(build(*own_args, **own_kwargs), results)
        groups.append([t.detach() for t in results])
    if times == 1:
        return result, groups[0]
    packed = []
    for ts in zip(*groups, strict=True):
        if all(t._ref == ts[0]._ref for t in ts):  # not made in build
            packed.append(ts[0])
        elif isinstance(ts[0]._meta, GlobalMeta):
            alike = [rows.cut_alike(t, name) for t in ts]
            meta: Any = _packed_meta(alike[0]._meta, times, name)
            packed.append(boxing.global_of(_joined([*map(boxing.part_of, alike)]), meta))
        else:
            packed.append(_joined(ts))
    return result, packed


def _slice(t: Tensor, meta: TensorMeta, k: int) -> Tensor:
    """Micro-batch `k` of an input."""
    if not meta.shape or t._meta is meta:
        return t
    part = boxing.part_of(t) if isinstance(meta, GlobalMeta) else t
    rows = local_of(meta).shape[0]
    part = part[k * rows : (k + 1) * rows]
    return boxing.global_of(part, meta) if isinstance(meta, GlobalMeta) else part


def _joined(ts: Sequence[Tensor]) -> Tensor:
    return cat(list(ts)) if ts[0].ndim else stack(list(ts))
