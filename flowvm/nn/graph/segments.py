"""Segmented: what a call of a graph looks up and runs when the graph is not one Plan.

It stands where a `Compiled` stands otherwise.  The way through its segments is found anew by each
call; a way that no call has taken yet is captured during it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from flowvm.eager.tensor import Tensor
from flowvm.errors import CaptureError
from flowvm.graph.capture.breaks import Breaks
from flowvm.graph.capture.segments import MAX_FOLLOWING, Outcome, Run, Segment
from flowvm.graph.logical.logical import Uses
from flowvm.graph.plan.plan import Plan
from flowvm.nn.graph.calls import Call, CallTest
from flowvm.nn.graph.explain import say

if TYPE_CHECKING:
    from flowvm.optim import Optimizer


class Segmented:
    """A graph in segments.

    `capture(inputs, breaks)` runs the code again and gives the segment that it ends with, or None.
    `uses` is what its Plans do, those found later too.  `lock` is the graph's, which it is held
    under.
    """

    cleared: frozenset[int] = frozenset()  # what decides between segments may have looked

    def __init__(
        self,
        capture: Callable[[Sequence[Tensor], Breaks], Segment | None],
        breaks: Breaks,
        optimizers: Sequence[tuple[Optimizer, Any]],
        lock: AbstractContextManager[Any],
    ) -> None:
        self.lock = lock
        self.capture, self.optimize, self.optimizers = capture, breaks.optimize, optimizers
        self.root = breaks.path[0][0]
        self._begun: Run | None = breaks.run  # the call that captured this is on its way
        self._last = breaks.last
        self._replay: Any = None
        self.uses = Uses()
        self._note_uses()

    def _note_uses(self) -> None:
        for plan in self.plans:
            self.uses.add(plan.uses)

    @property
    def segments(self) -> list[Segment]:
        """All of them, each before those that may follow it."""
        return self.root.tree()

    @property
    def plans(self) -> list[Plan]:
        """The Plans of all segments that have one."""
        return [s.plan for s in self.segments if s.plan is not None]

    def holds(self) -> bool:
        """Whether the first segment would be captured the same now; the others are asked later."""
        return self.root.holds()

    def replay_for(self, call: Call) -> Callable[..., Any]:
        """`replay_plan(graph, args, kwargs)`: the outputs, or MISS if the call is of another kind
        than `call`.
        """
        if self._replay is None:
            own = {"run": self.run}
            test = CallTest(self.root, call, self.optimizers, self.uses, own, {}, grows=True)
            arguments = ", ".join(f"x{k}" for k in range(len(call.metas)))
            lines = [f"    return run([{arguments}])"]
            self._replay = test.before(lambda depth: lines, self.root.name, alone=True)
        replay: Callable[..., Any] = self._replay
        return replay

    def run(self, inputs: list[Tensor]) -> Any:
        """Run segments from the first to a last one: the outputs."""
        run, segment = Run(inputs), self.root
        if self._begun is not None and self._begun.inputs is inputs:
            assert self._last is not None
            run, segment = self._begun, self._last
        self._begun = self._last = None
        path: list[tuple[Segment, Outcome]] = []
        while segment.end is None:
            outcome = run.through(segment)
            path.append((segment, outcome))
            segment = segment.follow(outcome) or self._capture_on(run, path)
        run.enter(segment)
        return segment.end.run(run.arguments(segment))

    def _capture_on(self, run: Run, path: list[tuple[Segment, Outcome]]) -> Segment:
        """Capture what follows this path, running it: the last segment.  Another thread may have
        captured it meanwhile: then the segment that follows.
        """
        with self.lock:
            segment, outcome = path[-1]
            return segment.follow(outcome) or self._captured(run, path)

    def _captured(self, run: Run, path: list[tuple[Segment, Outcome]]) -> Segment:
        segment, outcome = path[-1]
        if len(segment.following) == MAX_FOLLOWING and outcome not in segment.following:
            say(
                f"graph {segment.name} is captured again ({_outcome_text(segment, outcome)}), and "
                f"of {MAX_FOLLOWING} outcomes there the one that did not come for longest is "
                f"forgotten.  Where there are many sizes, run this part eagerly, or give it a "
                f"fixed one"
            )
        breaks = Breaks(run, self.optimize, path)
        last = self.capture(run.inputs, breaks)
        self._note_uses()
        if last is None:
            raise CaptureError(
                f"{segment.name}: what follows {segment.why} updates a parameter that no step has "
                f"updated before, so the optimizer has no state for it; take one step eagerly in "
                f"which every parameter gets a gradient"
            )
        return last

    def describe(self) -> list[str]:
        """What `explain` says: where the graph is cut, and the ways that calls took."""
        cuts = list(dict.fromkeys(s.why for s in self.segments if s.end is None))
        depth = 1 + _depth(self.root)
        lines = [f"runs in {depth} segments, because what follows depends on values"]
        lines += [f"  after {why}" for why in cuts]
        for segment in self.segments:
            lines += [
                f"  {_outcome_text(segment, outcome)}: {len(same)} "
                f"continuation{'s' * (len(same) != 1)}"
                for outcome, same in segment.following.items()
            ]
        return lines


def _depth(segment: Segment) -> int:
    """How many segments may follow one another behind this one."""
    ways = [s for same in segment.following.values() for s in same]
    return max((1 + _depth(s) for s in ways), default=0)


def _outcome_text(segment: Segment, outcome: Outcome) -> str:
    known = zip(segment.asks, outcome, strict=True)
    parts = [f"{n} row{'s' * (n != 1)}" if kind == "rows" else repr(n) for (kind, _), n in known]
    return f"{', '.join(parts) or 'nothing asked'} at {segment.why}"
