"""Gradients inside a graph: accumulated over micro-batches, and those of leaves that no optimizer
of the graph steps.

Accumulation: a call takes a batch, `build` sees a micro-batch of it at a time.  What is captured of
`build` is a *section* that each launch repeats n times (`OpNode.repeat`), as OneFlow's actors do:
*unpack* gives it the next slice of every input (an operand that moves by a step with each
repetition), a tensor without dimensions is *repeated*, *acc* adds its gradients into memory that
stays, and *pack* puts its outputs behind each other.  The optimizer's step follows once.  So does
what ranks sum: gradients of global parameters are added up as partial sums.

Gradients are the mean over the micro-batches, since backward starts from 1/n: so a loss that is a
mean gives the gradients of the whole batch.  The same in eager code:

    for x, y in zip(xs.chunk(n), ys.chunk(n)):
        (loss(model(x), y) / n).backward()
    optimizer.step()

Gradients of leaves that no optimizer of the graph steps end in `.grad`, as in eager code.  What
`.grad` held before a call is an input of the graph, a *prior*; what the code does to it (adds a
gradient, clips, sets it to None) is captured with the rest, and what it has in the end comes out
beside build's outputs and is put where eager code would have left it: into the prior's memory where
it was changed in place, as a new `.grad` where one was made.

Invariants:
- a capture leaves every `.grad` as it was, whatever happened in it;
- which leaves these are is known only when backward has reached them, so a capture that finds new
  ones is thrown away and made again with their priors as inputs;
- gradients of parameters that the graph's optimizers step are the graph's own, seen nowhere;
- a Plan that was captured where a `.grad` was None, and whose code set it before it looked at it
  (as zero_grad() at the head of a step does), serves calls where there is one, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from flowvm.autograd import no_grad
from flowvm.autograd.backward import seeded
from flowvm.eager.global_calls import Globals, local_of, partial_grads
from flowvm.eager.modes import current_recorder
from flowvm.eager.tensor import Tensor, new_tensor, on_grad_read
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
    from flowvm.nn.graph.compiled import Compiled, Segmented
    from flowvm.ops.placed import boxing
else:
    boxing = lazy("flowvm.ops.placed.boxing")


# --- accumulation -----------------------------------------------------------------------------


def micro_meta(meta: TensorMeta, times: int, name: str, which: int) -> TensorMeta:
    """Return the meta of one micro-batch of an input: the first `1/times` of its first dimension;
    for a global tensor, of each rank's part.

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
        leaves: dict[int, int] = {}
        for k, ranks, _ in cut:
            leaves.setdefault(ranks, k)
        if times > 1 and len(leaves) > 1:
            (first, a), (second, b) = list(leaves.items())[:2]
            raise CaptureError(
                f"{name}: the rows of input {a} are cut among {first} ranks and those of input {b} "
                f"among {second}, so their micro-batches would not belong together: give both "
                f"alike, by to_global(sbp=...)"
            )
        return Rows(next(iter(leaves), 1), frozenset(rows for _, _, rows in cut))

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
    """Return the meta of the outputs of all repetitions behind each other; for a global tensor, of
    each rank's parts.
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

    def _on_exit(self, *error: Any) -> None:
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

    def acc(self, parameters: Iterable[Tensor], others: Sequence[object]) -> None:
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
                meta: TensorMeta | GlobalMeta = p.grad._meta
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
    result: object = None
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


# --- gradients of leaves ----------------------------------------------------------------------


Leaf = Tensor | int  # a tensor of the user's, or the place of one among the call's


class SetAside(Switched):
    """`.grad` of these tensors is None inside, and afterwards as it was before."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._before = [(t, t.grad) for t in tensors]

    def _switch(self) -> None:
        for t, _ in self._before:
            t.grad = None

    def _undo(self) -> None:
        for t, grad in self._before:
            t.grad = grad


class _Noting(dict[str, Any]):
    """The attributes of a leaf; notes whether its `.grad` is first set or first read."""

    first = ""  # "set" or "read"

    def get(self, key: str, default: Any = None) -> Any:
        """See dict."""
        if key == "grad":
            self.first = self.first or "read"
        return super().get(key, default)

    def __setitem__(self, key: str, value: Any) -> None:
        if key == "grad":
            self.first = self.first or "set"
        super().__setitem__(key, value)


class Landing:
    """The leaves of one graph whose `.grad` its calls change."""

    def __init__(self) -> None:
        self.leaves: list[Leaf] = []
        self.cleared: frozenset[int] = frozenset()  # of which a Plan does not ask what it held

    def owners(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The leaves themselves in a call with these tensors."""
        return [tensors[leaf] if isinstance(leaf, int) else leaf for leaf in self.leaves]

    def priors(
        self, tensors: Sequence[Tensor], ignored: frozenset[int] = frozenset()
    ) -> tuple[list[Tensor], tuple[bool, ...]]:
        """Return the leaves' present `.grad`, and for each leaf whether it has one; ignored leaves
        count as having none.
        """
        owners = enumerate(self.owners(tensors))
        grads = [None if k in ignored else owner.grad for k, owner in owners]
        return [g for g in grads if g is not None], tuple(g is not None for g in grads)


class Gradients(Switched):
    """The gradients of a capture: `.grad` is put aside at its start and restored at its end.

    owned      parameters whose gradients are the graph's own
    landing    the leaves known so far
    given      the call's tensors, with the priors; `inputs`: the placeholders in their place
    """

    def __init__(
        self,
        capture: Capture,
        owned: Sequence[Tensor],
        landing: Landing,
        inputs: Sequence[Tensor],
        tensors: Sequence[Tensor],
    ) -> None:
        self.capture, self.landing = capture, landing
        self.new_leaves: list[Leaf] = []
        has_grad = landing.priors(tensors)[1]
        rest = iter(inputs[len(inputs) - sum(has_grad) :])
        self._priors = [next(rest) if one else None for one in has_grad]
        self._owned, self._inputs = list(owned), tensors
        self._places = {id(t): k for k, t in enumerate(inputs)}
        self._owners = landing.owners(inputs)
        self._known = {id(t) for t in (*self._owned, *self._owners)}
        self._before: list[tuple[Tensor, Tensor | None]] = []
        self._starts: list[tuple[Tensor | None, int]] = []  # with its version
        self.times: dict[int, int] = {}  # by id: how many backward() a leaf's `.grad` is the sum of
        self._noting: list[tuple[int, Tensor, _Noting]] = []  # leaves without a prior

    def _switch(self) -> Gradients:
        for t in self._owned:
            self._set(t, None)
        for k, (t, prior) in enumerate(zip(self._owners, self._priors, strict=True)):
            owned = any(t is own for own in self._owned)
            if owned:  # an optimizer steps it by now
                prior = None
            start = None if prior is None else prior.clone()  # what is added in place, is to this
            self._starts.append((start, 0 if start is None else start.version))
            self._set(t, start)
            if start is None and not owned:
                note = _Noting(t.extra())
                t._extra = note
                self._noting.append((k, t, note))
        self.capture.on_leaf = self._reach
        on_grad_read.append(self._read)
        return self

    def _undo(self) -> None:
        self.capture.on_leaf = None
        if self._read in on_grad_read:
            on_grad_read.remove(self._read)
        for _, t, note in self._noting:
            t._extra = dict(note)
        for t, grad in reversed(self._before):
            t.grad = grad

    def _set(self, leaf: Tensor, grad: Tensor | None) -> None:
        self._before.append((leaf, leaf.grad))
        leaf.grad = grad

    def _reach(self, leaf: Tensor) -> None:
        """Backward is about to add to the `.grad` of `leaf`."""
        if id(leaf) in self._known or self.capture.holds(leaf):
            before = self.times.get(id(leaf), 0) if leaf.grad is not None else 0
            self.times[id(leaf)] = 1 + before
            return
        self.times[id(leaf)] = 1
        place = self._places.get(id(leaf))
        if place is not None and not self._inputs[place].is_leaf:
            raise CaptureError(
                f"{self.capture.graph.name}: backward() reaches input {place}, which was computed "
                f"outside: its gradient cannot go on from there.  Give the graph input.detach(), "
                f"or compute it in build"
            )
        self._find(leaf, place)
        self._set(leaf, None)

    def _read(self, t: Any) -> None:
        """Take a tensor whose `.grad` the code reads for a leaf, so that its gradient is an input
        of the Plan.
        """
        if not isinstance(t, Tensor) or current_recorder() is not self.capture:
            return
        place = self._places.get(id(t))
        if id(t) in self._known or (place is None and self.capture.holds(t)):
            return
        if place is None or self._inputs[place].is_leaf:
            self._find(t, place)
            self._before.append((t, t.grad))  # this capture ends in vain, and may change it

    def _find(self, leaf: Tensor, place: int | None) -> None:
        self._known.add(id(leaf))
        self.new_leaves.append(leaf if place is None else place)

    @property
    def cleared(self) -> frozenset[int]:
        """The leaves without a prior whose `.grad` was set before it was read."""
        return frozenset(k for k, _, note in self._noting if note.first == "set")

    def take(self) -> tuple[tuple[str, ...], list[Tensor]]:
        """Return the action of a replay on each leaf's `.grad`, and the tensors that it uses.

        "keep" nothing, "clear" it, "copy" into it, "assign" it.  CaptureError if there are leaves
        that were not known at the start; they are now.
        """
        if self.new_leaves:
            self.landing.leaves += self.new_leaves
            raise CaptureError(
                f"{self.capture.graph.name}: build runs in segments, and a later segment calls "
                f"backward() on a leaf, or reads its .grad, for the first time: call the graph "
                f"again, for the leaf is known now"
            )
        acts: list[str] = []
        tensors: list[Tensor] = []
        cleared = self.cleared
        for k, owner in enumerate(self._owners):
            grad = owner.grad
            start, version = self._starts[k]
            owned = any(owner is own for own in self._owned)
            if owned or (grad is start and (start is None or start.version == version)):
                acts.append("clear" if k in cleared else "keep")
            elif grad is None:
                acts.append("clear")
            else:
                acts.append("copy" if grad is start else "assign")
                tensors.append(grad)
        return tuple(acts), tensors


class Landed:
    """A compiled call that changes the `.grad` of leaves when it is replayed.

    `inner` gives build's outputs, what is done to each leaf's `.grad`, and the tensors with which.
    """

    def __init__(self, inner: Compiled | Segmented | Landed, landing: Landing) -> None:
        self.inner, self.landing = inner, landing
        landing.cleared |= self.cleared

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def holds(self) -> bool:
        """Return True if a replay does what a new capture would do."""
        return bool(self.inner.holds())

    def run(self, tensors: Sequence[Tensor]) -> Any:
        """Replay; the priors stand behind the call's own tensors."""
        result, acts, gradients = self.inner.run(tensors)  # this very object: see Segmented.run
        rest = iter(gradients)
        for owner, act in zip(self.landing.owners(tensors), acts, strict=False):  # none came since
            if act == "clear":
                owner.grad = None
            elif act == "copy":
                assert owner.grad is not None
                owner.grad.detach().copy_(next(rest))
            elif act == "assign":
                owner.grad = next(rest)
        return result
