"""Gradients of leaves that no optimizer of the graph steps: they end in `.grad`, as in eager code.

What `.grad` held before a call is an input of the graph, a *prior*; what the code does to it (adds
a gradient, clips, sets it to None) is captured with the rest, and what it has in the end comes out
beside build's outputs and is put where eager code would have left it: into the prior's memory
where it was changed in place, as a new `.grad` where one was made.

Invariants:
- a capture leaves every `.grad` as it was, whatever happened in it;
- which leaves these are is known only when backward has reached them, so a capture that finds new
  ones is thrown away and made again with their priors as inputs;
- gradients of parameters that the graph's optimizers step are the graph's own, seen nowhere;
- a Plan that was captured where a `.grad` was None, and whose code set it before it looked at it
  (as zero_grad() at the head of a step does), serves calls where there is one, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowvm.eager.tensor import Tensor
from flowvm.errors import CaptureError
from flowvm.graph.capture.capture import Capture
from flowvm.guards.regions import Switched

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
    """What a leaf has beside its data, noting whether its `.grad` is set or read first."""

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

    def owners(self, given: Sequence[Tensor]) -> list[Tensor]:
        """The leaves themselves in a call with these tensors."""
        return [given[leaf] if isinstance(leaf, int) else leaf for leaf in self.leaves]

    def priors(
        self, given: Sequence[Tensor], ignored: frozenset[int] = frozenset()
    ) -> tuple[list[Tensor], tuple[bool, ...]]:
        """What their `.grad` holds now, and which of them have one, as if the ignored had none."""
        owners = enumerate(self.owners(given))
        grads = [None if k in ignored else owner.grad for k, owner in owners]
        return [g for g in grads if g is not None], tuple(g is not None for g in grads)


class Gradients(Switched):
    """What a capture does with `.grad`: put aside, and found again.

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
        given: Sequence[Tensor],
    ) -> None:
        self.capture, self.landing = capture, landing
        self.found: list[Leaf] = []
        there = landing.priors(given)[1]
        rest = iter(inputs[len(inputs) - sum(there) :])
        self._priors = [next(rest) if one else None for one in there]
        self._owned, self._given = list(owned), given
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
        return self

    def _undo(self) -> None:
        self.capture.on_leaf = None
        for _, t, note in self._noting:
            t._extra = dict(note)
        for t, grad in reversed(self._before):
            t.grad = grad

    def _set(self, leaf: Tensor, grad: Tensor | None) -> None:
        self._before.append((leaf, leaf.grad))
        leaf.grad = grad

    def _reach(self, leaf: Tensor) -> None:
        """Backward is about to add to the `.grad` of `leaf`."""
        self.times[id(leaf)] = 1 + (self.times.get(id(leaf), 0) if leaf.grad is not None else 0)
        if id(leaf) in self._known or self.capture.holds(leaf):
            return
        place = self._places.get(id(leaf))
        if place is not None and not self._given[place].is_leaf:
            raise CaptureError(
                f"{self.capture.graph.name}: backward() reaches input {place}, which was computed "
                f"outside: its gradient cannot go on from there.  Give the graph input.detach(), "
                f"or compute it in build"
            )
        self._known.add(id(leaf))
        self.found.append(leaf if place is None else place)
        self._set(leaf, None)

    @property
    def cleared(self) -> frozenset[int]:
        """The leaves without a prior whose `.grad` was set before it was read."""
        return frozenset(k for k, _, note in self._noting if note.first == "set")

    def take(self) -> tuple[tuple[str, ...], list[Tensor]]:
        """What a replay does to each leaf's `.grad`, and the tensors with which.

        "keep" nothing, "clear" it, "copy" into it, "assign" it.  CaptureError if there are leaves
        that were not known at the start; they are now.
        """
        if self.found:
            self.landing.leaves += self.found
            raise CaptureError(
                f"{self.capture.graph.name}: backward() reaches a leaf for the first time, behind "
                f"an operation whose result decides what follows; let a call reach it before that"
            )
        acts: list[str] = []
        made: list[Tensor] = []
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
                made.append(grad)
        return tuple(acts), made


class Landed:
    """What runs a graph whose calls change `.grad`.

    `inner` gives build's outputs, what is done to each leaf's `.grad`, and the tensors with which.
    """

    def __init__(self, inner: Any, landing: Landing) -> None:
        self.inner, self.landing = inner, landing
        landing.cleared |= self.cleared

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def holds(self) -> bool:
        """Whether a replay would be what capturing anew would be."""
        return bool(self.inner.holds())

    def run(self, given: Sequence[Tensor]) -> Any:
        """Replay; the priors stand behind the call's own tensors."""
        result, acts, gradients = self.inner.run(given)
        rest = iter(gradients)
        for owner, act in zip(self.landing.owners(given), acts, strict=False):  # none came since
            if act == "clear":
                owner.grad = None
            elif act == "copy":
                assert owner.grad is not None
                owner.grad.detach().copy_(next(rest))
            elif act == "assign":
                owner.grad = next(rest)
        return result
