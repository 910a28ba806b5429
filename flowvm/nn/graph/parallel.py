"""`graph.config.enable_auto_parallel()`: how parameters and inputs are held, found by a cost model.

Before the first call `build` is captured with parameters held in one way and another, and each
capture is priced: kernels by their operations and bytes, exchanges by messages and bytes, at rates
that were measured on these ranks.  Nothing is computed: captured nodes say what a rank would do.
The search goes down one *group* at a time: parameters whose names differ in numbers alone (the
layers of a stack), placed and held alike, and inputs that are.  Where two have to change together
(what comes out of one layer cut, what goes into the next) neither pays alone; so it also goes down
as if exchanges were cheap, which cuts all there is, and then less and less so.  Ranks add up their
prices, so all decide the same.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flowvm import ops
from flowvm.autograd.backward import seeded
from flowvm.eager.global_calls import partial_grads
from flowvm.eager.tensor import Tensor, new_tensor
from flowvm.errors import CaptureError
from flowvm.graph.capture.capture import capturing
from flowvm.graph.logical.nodes import OpNode
from flowvm.loading.lazy import lazy
from flowvm.meta.dtype import float64
from flowvm.meta.global_meta import GlobalMeta
from flowvm.meta.meta import TensorMeta
from flowvm.meta.placements import Sbps, broadcast, here, split
from flowvm.nn.graph.accumulation import micro_meta, settle
from flowvm.nn.graph.grads import SetAside
from flowvm.nn.graph.prices import Price, Rates, exchange_price, kernel_price, measured
from flowvm.ops.declare.composite import empty_of

if TYPE_CHECKING:
    from flowvm.ops.placed import boxing
else:
    boxing = lazy("flowvm.ops.placed.boxing")

TOUCHED = 7  # how often an optimizer's step goes over a parameter: it, its gradient, two states
WORTH = 0.01  # of the price: what saves less is left as it is
MOST = 240  # captures of a search
CHEAP = ((1.0,), (0.01, 0.1, 0.3, 1.0))  # parts of exchanges' prices, by which it goes down


@dataclass
class Held:
    """A group: its name, its tensors, how they may be held, and how they are now."""

    name: str
    members: list[Any]
    ways: list[Sbps]
    before: Sbps
    now: Sbps


@dataclass
class Found:
    """What the search gave: prices as it was and as it is, and how often `build` was captured."""

    rates: Rates
    before: Price
    after: Price
    captures: int
    groups: list[Held]
    inputs: dict[int, Sbps]

    def lines(self) -> list[str]:
        """For `graph.explain()`."""
        changed = [g for g in self.groups if g.now != g.before]
        lines = [
            f"auto parallel: {self.after} a call predicted, {self.before} as it was; "
            f"{self.captures} ways captured",
            f"  measured: {self.rates}",
        ]
        lines += [f"  {g.name}: {_short(g.before)} -> {_short(g.now)}" for g in changed]
        same = len(self.groups) - len(changed)
        return lines + ([f"  {same} more as they were"] if same else [])


def _short(sbps: Sbps) -> str:
    return ", ".join(s.short for s in sbps)


# --- the search -----------------------------------------------------------------------------------


class Search:
    """One search, for a graph and the tensors of a call; `groups` first says what may be held how.

    build       runs the graph's build with such tensors
    parameters  by name; `stepped` of them are updated by the graph's optimizers
    """

    def __init__(
        self,
        name: str,
        build: Callable[[Any], Any],
        leaves: Sequence[Tensor],
        parameters: Mapping[str, Any],
        stepped: Sequence[Tensor],
        times: int,
        least: int,
    ) -> None:
        self.name, self.build, self.leaves = name, build, leaves
        self.parameters, self.stepped, self.times = parameters, stepped, times
        self.groups = [*_groups(parameters, least), *self._inputs()]
        self.captures = 0
        self.prices: dict[tuple[Sbps, ...], Price] = {}

    def run(self) -> Found | None:
        """The cheapest that was found; None where nothing may be held otherwise."""
        if not any(len(group.ways) > 1 for group in self.groups):
            return None
        self.rates = measured()
        before = best = self._price()
        found = [group.before for group in self.groups]
        for parts, order in itertools.product(CHEAP, (1, -1)):
            for group in self.groups:
                group.now = group.before
            for part in parts:
                price = self._descend(part, self.groups[::order])
            if price.total < (1 - WORTH) * best.total:
                best, found = price, [group.now for group in self.groups]
        for group, way in zip(self.groups, found, strict=True):
            group.now = way
        inputs = {k: g.now for g in self.groups for k in g.members if isinstance(k, int)}
        return Found(self.rates, before, best, self.captures, self.groups, inputs)

    def _descend(self, part: float, groups: Sequence[Held]) -> Price:
        """Change one group after the other while that saves something."""
        best, improved = self._price(), True
        while improved:
            improved = False
            for group in groups:
                for way in group.ways:
                    if way == group.now or self.captures >= MOST:
                        continue
                    was, group.now = group.now, way
                    price = self._price()
                    if price.weighed(part) < (1 - WORTH) * best.weighed(part):
                        best, improved = price, True
                    else:
                        group.now = was
        return best

    def _inputs(self) -> Iterator[Held]:
        """The inputs that are held alike and have as many rows, together."""
        alike: dict[Any, list[int]] = {}
        for k, t in enumerate(self.leaves):
            meta = t._meta
            if isinstance(meta, GlobalMeta) and meta.ndim and not meta.has_partial:
                alike.setdefault((meta.placement, meta.sbp, meta.shape[0]), []).append(k)
        for (where, sbp, rows), members in alike.items():
            ways = [sbp]
            for axis, n in enumerate(where.shape):
                for s in (split(0), broadcast):
                    way = (*sbp[:axis], s, *sbp[axis + 1 :])
                    if n > 1 and way not in ways and rows % (self.times * where.size) == 0:
                        ways.append(way)
            names = ", ".join(map(str, members))
            yield Held(f"input{'s' * (len(members) > 1)} {names}", list(members), ways, sbp, sbp)

    # --- the price of one way -----------------------------------------------------------------

    def _price(self) -> Price:
        """Of what is held as the groups say now."""
        key = tuple(group.now for group in self.groups)
        if key not in self.prices:
            self.captures += 1
            seconds = ops.tensor([self._computing_and_exchanging()], dtype=float64)
            size = here()[1]
            if size > 1:
                use = boxing.transport[-1]()
                seconds = use.all_reduce(seconds, "sum", use.group(tuple(range(size))))
            computing, exchanging = (float(v) / size for v in seconds.numpy()[0])
            self.prices[key] = Price(computing, exchanging)
        return self.prices[key]

    def _computing_and_exchanging(self) -> tuple[float, float]:
        params = self.parameters.values()
        restored = [(p, p._meta, p.storage(), p._ref) for p in params]
        inputs = {k: g.now for g in self.groups for k in g.members if isinstance(k, int)}
        for group in self.groups:
            for p in group.members:
                if not isinstance(p, int) and p._meta.sbp != group.now:
                    meta: Any = p._meta.with_sbp(group.now)
                    p.data = boxing.global_of(empty_of(meta.local), meta)
        try:
            once, repeated = self._captured(inputs)
            updated = sum(_local(p).nbytes for p in self.stepped)
        finally:
            for p, meta, storage, ref in restored:
                p.data = _alias(ref, meta, storage)
        rates = self.rates
        computing, exchanging = TOUCHED * updated / rates.memory, 0.0
        for times, nodes in ((1, once), (self.times, repeated)):
            for node in nodes:
                if (price := exchange_price(node, rates)) is not None:
                    exchanging += times * price
                else:
                    computing += times * kernel_price(node, rates)
        return computing, exchanging

    def _captured(self, inputs: dict[int, Sbps]) -> tuple[list[OpNode], list[OpNode]]:
        """Nodes that run once in a call, and those that run for each micro-batch."""
        with SetAside([*self.parameters.values()]), capturing(self.name) as capture:
            capture.on_step = _no_step
            given = []
            for k, t in enumerate(self.leaves):
                meta = micro_meta(t._meta, self.times, self.name, k)
                own = capture.placeholder(meta, f"input {k}")
                own.requires_grad_(t.requires_grad)
                given.append(held_as(own, inputs.get(k)))
            with seeded(1.0 / self.times), partial_grads.within(self.times > 1):
                self.build(given)
            repeated = [*capture.graph.nodes]
            if self.times > 1:
                settle(self.stepped)
            return capture.graph.nodes[len(repeated) :], repeated


def _no_step(optimizer: Any) -> None:
    raise CaptureError(
        "auto parallel: build steps an optimizer itself; give it to add_optimizer alone, or choose "
        "sbp yourself"
    )


def held_as(t: Tensor, sbp: Sbps | None) -> Tensor:
    """An input as the search wants it."""
    if sbp is None or t._meta.sbp == sbp:  # type: ignore[attr-defined]
        return t
    out: Tensor = t.to_global(sbp=sbp)
    return out


def _alias(ref: int, meta: TensorMeta, storage: Any) -> Tensor:
    return new_tensor(ref, meta, storage)


def _local(t: Tensor) -> TensorMeta:
    meta = t._meta
    return meta.local if isinstance(meta, GlobalMeta) else meta


def _groups(parameters: Mapping[str, Any], least: int) -> Iterator[Held]:
    """The parameters that may be held otherwise, the largest first."""
    alike: dict[Any, list[Tensor]] = {}
    for name, p in parameters.items():
        meta = p._meta
        if isinstance(meta, GlobalMeta) and meta.numel >= least and not meta.has_partial:
            key = re.sub(r"\d+", "#", name), meta.shape, meta.placement, meta.sbp
            alike.setdefault(key, []).append(p)
    for (name, shape, where, sbp), members in sorted(
        alike.items(), key=lambda item: -math.prod(item[0][1]) * len(item[1])
    ):
        each = [
            [broadcast, *(split(d) for d, size in enumerate(shape) if size >= n)]
            if n > 1
            else [held]
            for n, held in zip(where.shape, sbp, strict=True)
        ]
        ways = [way for way in itertools.product(*each) if _fits(way)]
        text = f"{name} ({len(members)} of {'x'.join(map(str, shape))})"
        yield Held(text, list(members), ways, sbp, sbp)


def _fits(way: Sbps) -> bool:
    """Whether no dimension is cut twice."""
    cut = [s.dim for s in way if s.is_split]
    return len(set(cut)) == len(cut)
