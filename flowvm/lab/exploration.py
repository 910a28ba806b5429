"""The search for an order that breaks something, and the few instructions that it takes.

Each try runs a step by another seed of a policy, one instruction at a time (`gather`, depth 0), so
the order that went is the whole truth of the try and `flow.vm.replay` gives it again.  What counts
as broken: the step raises, its values are not those of program order, `flow.vm.verify` finds two
accesses in the wrong order, or a check of the caller's says so.

A failing order is brought back towards program order as long as it fails: stretches of it first,
then neighbours.  What is left out of place, and what it met, is what matters.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from flowvm.errors import ArgumentError, ScheduleError
from flowvm.meta.arrays import Array
from flowvm.vm import Trace, record, replay, schedule, sequential, sync, verify
from flowvm.vm.engine.scheduling import Order
from flowvm.vm.machine.words import Access, Kind

if TYPE_CHECKING:
    from flowvm.vm.watch.trace import Traced


_WORK = (Kind.OP_CALL, Kind.CALLBACK, Kind.LAUNCH_PLAN, Kind.RESTORE)
MOST_REPLAYS = 2000  # while one failure is made smaller


class Part(NamedTuple):
    """An instruction that matters: its number, its name, the line that issued it."""

    number: int
    op: str
    where: str


class Failure(NamedTuple):
    """A failure: which try (seed) met it, what broke, the smallest order that breaks it, the
    instructions that matter.
    """

    seed: int
    why: str
    order: Order
    matter: tuple[Part, ...]

    def __repr__(self) -> str:
        rows = [f"  #{m.number} {m.op}  {m.where}" for m in self.matter]
        return "\n".join([f"seed {self.seed}: {self.why}", *rows])


class Exploration:
    """Result of a search: the number of `tries`, and the `failures`.

    >>> flow.lab.explore(lambda: flow.ones(3) + 1, tries=2)
    0 failures in 2 tries
    """

    def __init__(self, tries: int, failures: list[Failure]) -> None:
        self.tries, self.failures = tries, failures

    def __repr__(self) -> str:
        head = f"{len(self.failures)} failures in {self.tries} tries"
        return "\n".join([head, *map(repr, self.failures)])


class _Try(NamedTuple):
    why: str  # "": nothing broke
    order: Order
    trace: Trace


def explore(
    step: Callable[[], object],
    tries: int = 1000,
    policy: object = "pct",
    seed: int = 0,
    check: Callable[[object], object] | None = None,
    streams: Sequence[object] = (),
    shrink: bool = True,
    most: int = 1,
) -> Exploration:
    """Look for an order of a step's instructions that breaks it.

    step      issues work that begins with what it makes itself, or leaves alone; it gives a tensor,
              or several in lists, tuples and dicts, or None
    tries     orders at most
    policy    a name that takes a seed ("pct", "random"), or a function of one
    seed      of the first try; each gets the next
    check     called with what the step gave: raises, or answers False, if that is wrong
    streams   that share the work, as `flow.vm.schedule` has them
    shrink    make failing orders smaller
    most      failures after which the search ends
    ArgumentError: two runs of the step in program order give other values.

    >>> search = flow.lab.explore(lambda: (flow.ones(3) + 1).add_(1), tries=3)
    >>> search.tries, search.failures
    (3, [])
    """
    if isinstance(tries, bool) or not isinstance(tries, int) or tries < 1:
        raise ArgumentError(f"explore: tries is a number from 1 up, got {tries!r}")
    with sequential():
        expected, again = _values(step()), _values(step())
    if (k := _difference(again, expected)) is not None:
        raise ArgumentError(
            f"explore: step gives another value {k} when it runs again in program order.  It "
            "changes what it begins with, or draws random numbers: make a model and "
            "flow.manual_seed(...) part of the step"
        )
    explorer = _Explorer(step, expected, check, streams)
    failures: list[Failure] = []
    count = 0
    for number in range(seed, seed + tries):
        count += 1
        by = policy(number) if callable(policy) and not isinstance(policy, type) else policy
        own_seed = number if by is policy else None
        one = explorer.run(
            lambda by=by, seed=own_seed: schedule(  # type: ignore[misc]
                by, seed=seed, streams=streams, depth=0, gather=True
            )
        )
        if one.why:
            small = explorer.shrunk(one) if shrink else one
            failures.append(Failure(number, small.why, small.order, _matter(small)))
            if len(failures) >= most:
                break
    return Exploration(count, failures)


class _Explorer:
    def __init__(
        self,
        step: Callable[[], object],
        expected: list[Array],
        check: Callable[[object], object] | None,
        streams: Sequence[object],
    ) -> None:
        self.step, self.expected, self.check = step, expected, check
        self.streams = streams
        self.replays = 0

    def run(self, scheduling: Callable[[], Any]) -> _Try:
        """One try: what broke, if something did."""
        why = ""
        result = None
        with record() as trace, scheduling() as sched:
            try:
                result = self.step()
                sync()
            except Exception as error:  # whatever it raises is what is looked for
                why = f"raised {type(error).__name__}: {error}"
        if not why:
            why = self._wrong(result, trace)
        return _Try(why, sched.order, trace)

    def _wrong(self, result: object, trace: Trace) -> str:
        try:
            verify(trace)
        except ScheduleError as error:
            return str(error)
        if (k := _difference(_values(result), self.expected)) is not None:
            return f"value {k} is not that of program order"
        if self.check is not None:
            try:
                if self.check(result) is False:
                    return "the check answered False"
            except Exception as error:  # the same
                return f"the check raised {type(error).__name__}: {error}"
        return ""

    def _fails(self, numbers: list[int], op: dict[int, str]) -> _Try | None:
        """The try with an order, if it fails."""
        self.replays += 1
        order = Order(numbers, [op[n] for n in numbers])
        try:
            one = self.run(lambda: replay(order, streams=self.streams))
        except ScheduleError:
            return None  # the order cannot be: something waits for what comes behind it
        return one if one.why else None

    def shrunk(self, failure: _Try) -> _Try:
        """The failure with as little out of program order as still breaks it."""
        best, self.replays = failure, 0
        op = dict(zip(failure.order.numbers, failure.order.ops, strict=True))
        width = len(failure.order)
        while width >= 2 and self.replays < MOST_REPLAYS:
            at = 0
            while at < len(best.order) and self.replays < MOST_REPLAYS:
                numbers = best.order.numbers
                tried = numbers[:at] + sorted(numbers[at : at + width]) + numbers[at + width :]
                if tried != numbers and (one := self._fails(tried, op)) is not None:
                    best = one
                at += max(1, width // 2)
            width //= 2
        changed = True
        while changed and self.replays < MOST_REPLAYS:
            changed = False
            for n in sorted(_moved(best.order.numbers)):
                others = [k for k in best.order.numbers if k != n]
                place = bisect_left(others, n) if others == sorted(others) else _home(others, n)
                tried = [*others[:place], n, *others[place:]]
                one = self._fails(tried, op) if tried != best.order.numbers else None
                if one is not None:
                    best, changed = one, True
                    break
        return best


def _home(others: list[int], n: int) -> int:
    """The place behind the last of those with a lower number."""
    return max((k + 1 for k, other in enumerate(others) if other < n), default=0)


def _moved(numbers: list[int]) -> set[int]:
    """The least that has to move for an order to be program order: what is in no longest rising
    row of it.
    """
    tails: list[int] = []
    last: list[int] = []
    front = [-1] * len(numbers)
    for k, n in enumerate(numbers):
        place = bisect_left(tails, n)
        tails[place:] = [n, *tails[place + 1 :]]
        last[place:] = [k, *last[place + 1 :]]
        front[k] = last[place - 1] if place else -1
    path, k = set(), last[-1] if last else -1
    while k >= 0:
        path.add(numbers[k])
        k = front[k]
    return set(numbers) - path


def _matter(failure: _Try) -> tuple[Part, ...]:
    """Return the instructions that are out of place, and the passed ones that share a tensor with
    them, one of them writing.
    """
    numbers = failure.order.numbers
    work = [ins for ins in failure.trace.instructions if ins.kind in _WORK]
    moved, place = _moved(numbers), {n: k for k, n in enumerate(numbers)}
    matter = set(moved)
    for n, other in itertools.product(sorted(moved), numbers):
        if (n < other) != (place[n] < place[other]) and max(n, other) < len(work):
            mine, its = _uses(work[n]), _uses(work[other])
            if any(mine[t] or its[t] for t in mine.keys() & its.keys()):
                matter.add(other)
    return tuple(Part(n, work[n].name, work[n].where) for n in sorted(matter) if n < len(work))


def _uses(ins: Traced) -> dict[int, bool]:
    """The tensors of an instruction, and whether it writes them."""
    uses: dict[int, bool] = {}
    for o in ins.operands:
        uses[o.tensor] = uses.get(o.tensor, False) or o.access != Access.CONST
    return uses


def _values(tree: object) -> list[Array]:
    """Copies of the values of all tensors in lists, tuples and dicts."""
    if tree is None:
        return []
    if isinstance(tree, dict):
        return [value for key in tree for value in _values(tree[key])]
    if isinstance(tree, (list, tuple)):
        return [value for one in tree for value in _values(one)]
    return [np.array(tree.numpy() if hasattr(tree, "numpy") else tree)]


def _difference(values: list[Array], expected: list[Array]) -> int | None:
    """Return the number of the first value that differs, None if none does.  NaN equals NaN."""
    for k, (value, other) in enumerate(zip(values, expected, strict=True)):
        if not np.array_equal(value, other, equal_nan=value.dtype.kind in "fc"):
            return k
    return None
